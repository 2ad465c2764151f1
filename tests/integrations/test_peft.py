"""LoRA by peft: the frozen model gets no noise and no momenta, is held and saved once, and members are the adapters."""

import copy

import peft
import pytest
import torch
from plain import BATCH, STEPS, data
from torch import nn

import ctld

LARGE = 400


def base():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, LARGE), nn.Tanh(), nn.Linear(LARGE, LARGE), nn.Tanh(), nn.Linear(LARGE, 3))


def adapted():
    model = base()
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0", "2"], modules_to_save=["4"]))


def trainable(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def trained(model, how):
    if how == "around":
        optimizer = torch.optim.AdamW(trainable(model), 1e-2)
        ensemble = ctld.Ensemble.around(optimizer, model, STEPS, cycles=3)
    else:
        ensemble = ctld.Ensemble(model, 0.05, 96, STEPS, cycles=3, weight_decay=1e-2, seed=3)
    for inputs, labels in zip(*(part.split(BATCH) for part in data()), strict=True):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        ensemble.step(loss)
    return ensemble


@pytest.mark.parametrize("how", ["around", "noise"])
def test_members_are_adapters_of_one_model(how, tmp_path):
    model = adapted()
    before = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    ensemble = trained(model, how)
    assert len(ensemble) == 3
    own = dict(model.named_parameters())
    assert all(torch.equal(own[name], value) for name, value in before.items())
    members = [sample.state for sample in ensemble.collector]
    for name, parameter in own.items():
        places = {member[name].data_ptr() for member in members}
        assert len(places) == (3 if parameter.requires_grad else 1), name
    adapters = sum(4 * parameter.numel() for parameter in trainable(model))
    whole = sum(4 * parameter.numel() for parameter in model.parameters())
    assert f"members of {adapters / 1e6:.3g} MB" in repr(ensemble)
    inputs, _ = data()
    found = ensemble.predict(inputs)
    each = []
    for member in members:
        single = copy.deepcopy(model)
        single.load_state_dict(member)
        each.append(single(inputs).softmax(-1).detach().double())
    torch.testing.assert_close(found.probabilities, torch.stack(each).mean(0), rtol=1e-5, atol=1e-6)
    ensemble.save(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.pt")
    # The model, and its frozen part once more for all members, whose own are small; momenta may be one more.
    assert file.stat().st_size < 3 * whole + 10 * adapters + 60_000
    other = adapted()
    optimizer = {"optimizer": torch.optim.AdamW(trainable(other), 1e-2)} if how == "around" else {}
    again = ctld.Ensemble.load(tmp_path / "saved", other, **optimizer)
    assert torch.equal(again.predict(inputs).probabilities, found.probabilities)


def test_the_temperature_goes_by_the_adapters():
    """A frozen model twice as large would make it four times as high."""
    model, twin = adapted(), adapted()
    with torch.no_grad():
        for parameter in twin.parameters():
            if not parameter.requires_grad:
                parameter.mul_(100.0)
    options = {"num_data": 96, "total_steps": 600, "weight_decay": 1e-2, "temperature": "auto", "seed": 0}
    one, two = (ctld.Ensemble(each, 0.05, **options).optimizer.temperature for each in (model, twin))
    assert 0 < one == two < 1
