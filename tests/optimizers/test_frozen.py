"""Frozen parameters: no state, no say in the temperature, and a momentum of their own once they thaw."""

import pytest
import torch
from torch import nn

from ctld import CTLD, OPTIMIZERS, create

NEEDED = {"num_data": 40, "exploration_steps": 9, "num_steps": 20}


def build(name, params):
    needed = {option: NEEDED[option] for option in OPTIMIZERS[name].needs}
    temperature = {"temperature": 1.0} if name == "ctld" else {}
    return create(name, params, lr=0.01, weight_decay=0.1, seed=3, **needed, **temperature)


def step(optimizer, params):
    for parameter in params:
        parameter.grad = parameter.detach().clone() if parameter.requires_grad else None
    optimizer.step(loss=1.0)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "easgd" not in name and "eamsgd" not in name])
def test_they_have_no_state_until_they_thaw(name):
    frozen, free = nn.Parameter(torch.ones(4), requires_grad=False), nn.Parameter(torch.ones(4))
    optimizer = build(name, [frozen, free])
    for _ in range(3):
        step(optimizer, [frozen, free])
    assert not optimizer.state.get(frozen)
    assert torch.equal(frozen, torch.ones(4))
    again = build(name, [frozen, free])
    again.load_state_dict(optimizer.state_dict())
    frozen.requires_grad_(True)
    for _ in range(2):
        step(again, [frozen, free])
    assert not torch.equal(frozen, torch.ones(4))
    if "momentum_buffer" in again.state[free]:
        assert again.state[frozen]["momentum_buffer"].shape == (4,)


def test_a_state_that_has_momenta_of_what_is_frozen_loads():
    """As version 0.2 saved them."""
    frozen, free = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    saved = build("ctld", [frozen, free]).state_dict()
    frozen.requires_grad_(False)
    optimizer = build("ctld", [frozen, free])
    optimizer.load_state_dict(saved)
    step(optimizer, [frozen, free])
    saved["state"][0]["momentum_buffer"] = torch.ones(5)
    with pytest.raises(ValueError, match="momentum_buffer of parameter 0 has shape"):
        optimizer.load_state_dict(saved)


def test_auto_goes_by_what_is_trained():
    """A frozen backbone with large weights made the head seven times too hot."""
    torch.manual_seed(0)
    head, backbone = torch.randn(8, 8) * 0.1, torch.randn(64, 64) * 10.0
    options = {"num_data": 100, "exploration_steps": 1000, "weight_decay": 1e-3, "lr": 0.1, "seed": 1}
    alone = CTLD([nn.Parameter(head.clone())], **options)
    beside = CTLD([nn.Parameter(head.clone()), nn.Parameter(backbone, requires_grad=False)], **options)
    assert beside.temperature == alone.temperature < 1.0
    both = CTLD([nn.Parameter(head.clone()), nn.Parameter(backbone)], **options)
    assert both.temperature > 7 * alone.temperature
