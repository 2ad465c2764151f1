"""Ordinary mistakes with an ensemble: each works, or is refused with a remedy; none gives a wrong answer without a word."""

import copy
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import ctld
from ctld import Ensemble, SampleCollector, fit_ensemble, predict
from ctld.ensembles import MultilabelPrediction, Task
from ctld.ensembles.task import task_of_loss
from targets import equal

STEPS = 40


def data(outputs=3, rows=120):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 5, generator=generator)
    return inputs, inputs @ torch.randn(5, outputs, generator=generator)


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, outputs))


def trained(loss_of, outputs=3, model=None, **options):
    """An ensemble of two members, by a loop that hands over the loss as it is."""
    model = network(outputs) if model is None else model
    inputs, scores = data(outputs)
    ensemble = Ensemble(model, 0.1, len(inputs), STEPS, cycles=2, temperature=0, **options)
    for _ in range(STEPS):
        loss = loss_of(model(inputs), scores)
        loss.backward()
        ensemble.step(loss)
    return ensemble, inputs, scores


def classes(output, scores):
    return functional.cross_entropy(output, scores.argmax(-1))


# ---- loaders that change from pass to pass ----


class Augmented(Dataset):
    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index] + 0.1 * torch.randn(5)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize(
    "loader",
    [
        lambda x: DataLoader(TensorDataset(x), 16, sampler=SubsetRandomSampler(range(120))),
        lambda x: DataLoader(TensorDataset(x), 16, sampler=WeightedRandomSampler(torch.ones(120), 120)),
        lambda x: DataLoader(TensorDataset(x), batch_sampler=BatchSampler(RandomSampler(range(120)), 16, False)),
        lambda x: DataLoader(Augmented(x), 16),
    ],
    ids=["subset", "weighted", "batch sampler", "augmentation"],
)
def test_a_loader_that_shuffles_is_refused(loader, members):
    ensemble, inputs, _ = trained(classes, members=members)
    assert len(ensemble) == members
    with pytest.raises(ValueError, match=r"must be the same for every member, .* shuffle=False"):
        ensemble.predict(loader(inputs))
    steady = ensemble.predict(DataLoader(TensorDataset(inputs), 16))
    assert torch.allclose(steady.probabilities, ensemble.predict(inputs).probabilities)


# ---- steps by whoever steps ----


@pytest.mark.parametrize("how", ["step", "watch", "observe", "closure", "scaler"])
def test_whoever_steps_the_optimizer_trains_the_ensemble(how):
    plain, inputs, scores = trained(classes)
    model = network()
    ensemble = Ensemble(model, 0.1, len(inputs), STEPS, cycles=2, temperature=0)
    optimizer, scaler = ensemble.optimizer, torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = classes(model(inputs), scores)
        if how == "watch":
            loss = ensemble.watch(loss)
        if how == "closure":

            def closure(loss=loss):
                loss.backward()
                return loss

            optimizer.step(closure)
        elif how == "scaler":
            scaler.scale(loss).backward()
            scaler.step(optimizer, loss=loss)
            scaler.update()
        else:
            loss.backward()
            if how == "observe":
                optimizer.observe(loss)
            optimizer.step(**({"loss": loss} if how == "step" else {}))
    assert ensemble.done
    assert ensemble.optimizer.param_groups[0]["lr"] == 0
    assert [record.step for record in ensemble.records] == [20, 40]
    assert [r.loss for r in ensemble.records] == pytest.approx([r.loss for r in plain.records], rel=1e-5)
    expected = plain.predict(inputs).probabilities
    torch.testing.assert_close(ensemble.predict(inputs, task="classification").probabilities, expected)


def test_ctrl_c_at_the_end_of_a_cycle_keeps_the_member(monkeypatch):
    straight, inputs, scores = trained(classes)
    model = network()
    ensemble = Ensemble(model, 0.1, len(inputs), STEPS, cycles=2, temperature=0)
    original, calls = SampleCollector.collect, []

    def interrupted(self, **options):
        calls.append(options)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return original(self, **options)

    monkeypatch.setattr(SampleCollector, "collect", interrupted)
    for _ in range(STEPS):
        loss = classes(model(inputs), scores)
        loss.backward()
        try:
            ensemble.step(loss)
        except KeyboardInterrupt:
            assert ensemble.steps == 20
    assert [record.step for record in ensemble.records] == [20, 40]
    assert all(equal(one.state, two.state) for one, two in zip(ensemble.collector, straight.collector, strict=True))


def test_gradients_that_were_left_over_are_dropped():
    inputs, scores = data()
    model, twin = network(), network()
    model[0].weight.requires_grad_(False)
    twin[0].weight.requires_grad_(False)
    model[0].weight.grad = torch.ones(12, 5)
    classes(model(inputs), scores).backward()  # as a look at the loss before training leaves them
    with pytest.warns(UserWarning, match="4 parameters had gradients of an earlier backward, which are dropped"):
        dirty = Ensemble(model, 0.1, 120, STEPS, cycles=2, temperature=0)
    clean = Ensemble(twin, 0.1, 120, STEPS, cycles=2, temperature=0)
    for ensemble in (dirty, clean):
        loss = classes(ensemble.model(inputs), scores)
        loss.backward()
        ensemble.step(loss)
    assert equal(model.state_dict(), twin.state_dict())
    assert torch.equal(model[0].weight, network()[0].weight)


def test_a_schedulers_lr_is_said_to_be_overwritten():
    model = network()
    inputs, scores = data()
    ensemble = Ensemble(model, 0.1, 120, STEPS, cycles=2, temperature=0)
    scheduler = ensemble.scheduler
    with pytest.warns(
        UserWarning, match=r"lr was set to 0.05 by something else, and the cycle sets it back. Leave schedulers out"
    ) as said:
        for step in range(6):
            if step == 1:
                scheduler.step()  # its own changes nothing
            if step > 1:
                ensemble.optimizer.param_groups[0]["lr"] = 0.05
            loss = classes(model(inputs), scores)
            loss.backward()
            ensemble.step(loss)
    assert len(said) == 1
    assert ensemble.optimizer.param_groups[0]["lr"] == 0.1


# ---- losses ----


def test_a_scaled_loss_is_said_and_a_scaler_is_taken():
    inputs, scores = data()
    ensembles = [Ensemble(network(), 0.1, 120, STEPS, cycles=2, temperature=0) for _ in range(3)]
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for ensemble in ensembles:
        loss = classes(ensemble.model(inputs), scores)
        if ensemble is ensembles[0]:
            loss.backward()
            ensemble.step(loss)
            continue
        scaler.scale(loss).backward()
        if ensemble is ensembles[1]:
            ensemble.step(loss, scaler=scaler)
        else:
            with pytest.warns(
                UserWarning, match=r"multiplies losses by 16 .* Give ensemble.step\(loss, scaler=scaler\)"
            ):
                ensemble.step(loss)
    states = [ensemble.model.state_dict() for ensemble in ensembles]
    assert equal(states[0], states[1])
    assert not equal(states[0], states[2])
    loss = classes(ensembles[0].model(inputs), scores)
    scaler.scale(loss).backward()
    scaler.unscale_(ensembles[0].optimizer)
    ensembles[0].step(loss)  # nothing to say: they are unscaled


def test_one_part_of_an_accumulated_loss_is_said_and_watched_parts_add_up():
    inputs, scores = data()

    def run(how):
        model = network()
        ensemble = Ensemble(model, 0.1, 120, STEPS, cycles=2, temperature=0)
        for _ in range(20):
            for x, y in zip(inputs.split(30), scores.split(30), strict=True):
                loss = classes(model(x), y)
                loss = (ensemble.watch(loss) if how == "watch" else loss) / 4
                loss.backward()
            ensemble.step(None if how == "watch" else loss)
        return ensemble.records[0].loss

    with pytest.warns(UserWarning, match="gradients of 4 backward passes are in this step") as said:
        quarter = run("part")
    assert len(said) == 1
    assert run("watch") == pytest.approx(4 * quarter, rel=0.2)


# ---- what the outputs are ----


def test_the_task_is_inferred_from_the_loss():
    ensemble, inputs, scores = trained(
        lambda o, s: functional.binary_cross_entropy_with_logits(o[:, 0], (s[:, 0] > 0).float()), 1
    )
    found = ensemble.predict(inputs)
    assert found.probabilities.shape == (120, 2)
    assert found.metrics(scores[:, 0] > 0)["error"] < 0.1
    assert found.metrics((scores[:, :1] > 0).float())["error"] < 0.1

    ensemble, inputs, scores = trained(lambda o, s: functional.binary_cross_entropy_with_logits(o, (s > 0).float()))
    found = ensemble.predict(inputs)
    assert isinstance(found, MultilabelPrediction)
    assert found.probabilities.shape == (120, 3)
    expected = torch.stack(
        [torch.func.functional_call(ensemble.model, m.state, (inputs,)).sigmoid() for m in ensemble.collector]
    ).mean(0)
    torch.testing.assert_close(found.probabilities, expected.double(), rtol=1e-5, atol=1e-6)
    assert found.metrics(scores > 0)["error"] < 0.1

    ensemble, inputs, scores = trained(lambda o, s: 0.5 * functional.mse_loss(o, s), 2)
    assert ensemble.task == "regression"
    found = ensemble.predict(inputs)
    assert found.metrics(scores)["rmse"] < 0.7
    assert set(found.metrics(scores)) == {"rmse", "mae"}
    assert "nll" in found.metrics(scores, noise=0.3)


def test_what_the_loss_does_not_tell_is_refused_with_the_remedy():
    ensemble, inputs, _ = trained(lambda o, s: (o - s).abs().mean())
    with pytest.raises(ValueError, match=r"task must be known, .* Give Ensemble\(task=...\) or predict\(task=...\)"):
        ensemble.predict(inputs)
    assert ensemble.predict(inputs, task="regression").mean.shape == (120, 3)
    with pytest.raises(ValueError, match="task must be known"):
        ensemble.loss  # noqa: B018


def segmentation():
    torch.manual_seed(0)
    return nn.Conv2d(2, 3, 1)


def test_pictures_have_their_classes_in_the_second_dimension():
    torch.manual_seed(0)
    model, inputs = segmentation(), torch.randn(8, 2, 4, 5)
    labels = inputs.sum(1).gt(0).long()
    ensemble = Ensemble(model, 0.1, 8, STEPS, cycles=2, temperature=0)
    for _ in range(STEPS):
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        ensemble.step(loss)
    found = ensemble.predict(inputs)
    assert found.probabilities.shape == (8, 4, 5, 3)
    assert found.metrics(labels)["error"] < 0.2
    with pytest.raises(
        ValueError, match=r"class_dim must be given for outputs of shape \(8, 3, 4, 5\). Give class_dim=1"
    ):
        predict(model, ensemble.collector, inputs)
    with pytest.raises(ValueError, match=r"class_dim must be a dimension of the outputs, got 7"):
        predict(model, ensemble.collector, inputs, class_dim=7)
    assert torch.equal(predict(model, ensemble.collector, inputs, class_dim=1).probabilities, found.probabilities)


@pytest.mark.parametrize(
    ("outputs", "options", "said"),
    [
        ([[1.0], [2.0]], {}, r'must be one logit for each class, got shape \(2, 1\). Give task="binary"'),
        ([[0.2, 0.8], [0.6, 0.4]], {}, r"must be logits, got probabilities that add up to one. Remove the Softmax"),
        ([[0.2, 0.8], [0.6, 0.4]], {"task": "binary"}, r"must be one logit for each input, got shape \(2, 2\)"),
        ([[0.2, 0.8], [0.6, 0.4]], {"task": "regression"}, r"head must be given for outputs of shape \(2, 2\)"),
        ([[0.2, 0.8, 1.0]], {"head": "mean_log_variance"}, "must have means and logarithms of variances in the last"),
        ([[0.2, 0.8]], {"head": "mean_variance"}, "must be a pair of tensors, got one tensor"),
        ([[0.2, 0.8]], {"head": "mean", "task": "binary"}, "head must be left out for task='binary'"),
        ([[0.2, 0.8]], {"class_dim": 1, "task": "regression"}, "class_dim must be left out for task='regression'"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(outputs, options, said):
    class Fixed(nn.Module):
        def forward(self, rows):
            return torch.tensor(outputs)

    with pytest.raises(ValueError, match=said):
        predict(Fixed(), [{}], torch.zeros(len(outputs)), **options)


def test_a_sigmoid_or_softmax_at_the_end_is_no_logit():
    inputs, _ = data()
    for last, task in ((nn.Sigmoid(), "binary"), (nn.Softmax(-1), "classification"), (nn.Sigmoid(), "multilabel")):
        model = nn.Sequential(*network(1 if task == "binary" else 3), last)
        with pytest.raises(ValueError, match=f"Remove the {type(last).__name__} from the model"):
            predict(model, [dict(model.named_parameters())], inputs, task=task)
    logits = predict(model[:-1], [dict(model.named_parameters())], inputs, task="multilabel")
    given = predict(
        model, [dict(model.named_parameters())], inputs, task="multilabel", forward=lambda m, x: m(x).logit()
    )
    torch.testing.assert_close(logits.probabilities, given.probabilities, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "outputs", "target"),
    [
        ({"task": "classification"}, (6, 3), torch.arange(6) % 3),
        ({"task": "classification", "class_dim": -1}, (6, 4, 3), torch.arange(24).reshape(6, 4) % 3),
        ({"task": "binary"}, (6, 1), torch.arange(6) % 2),
        ({"task": "multilabel"}, (6, 3), torch.arange(18).reshape(6, 3) % 2 == 0),
        ({"task": "regression", "head": "mean"}, (6, 1), torch.arange(6)),
        ({"task": "regression", "head": "mean_log_variance"}, (6, 2), torch.arange(6.0)),
    ],
)
def test_the_loss_that_is_offered_is_the_nll_of_the_prediction(options, outputs, target):
    torch.manual_seed(1)
    ensemble = Ensemble(network(), 0.1, 120, STEPS, cycles=2, temperature=0, **options)
    output = torch.randn(outputs)

    class Fixed(nn.Module):
        def forward(self, rows):
            return output

    found = predict(Fixed(), [{}], torch.zeros(6), **options)
    loss = float(ensemble.loss(output, target))
    if options.get("head") == "mean":
        expected = float(0.5 * (found.mean.squeeze(-1) - target).square().mean())
    elif options["task"] == "regression":
        expected = found.metrics(target)["nll"] - 0.5 * float(np.log(2 * np.pi))
    else:
        expected = found.metrics(target)["nll"]
    assert loss == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="targets must have the shape"):
        Task(("multilabel",)).loss(torch.zeros(4, 2), torch.zeros(4, 3))


def test_a_doubtful_loss_tells_nothing():
    output = torch.randn(6, 3, requires_grad=True)
    labels = torch.arange(6) % 3
    assert task_of_loss(functional.cross_entropy(output, labels) + functional.mse_loss(output, output.detach())) is None
    assert task_of_loss(functional.cross_entropy(output, labels, label_smoothing=0.1)).name == "classification"
    assert task_of_loss(functional.l1_loss(output, output.detach())) is None
    assert task_of_loss(torch.tensor(1.0)) is None


# ---- inputs and labels ----


def test_arrays_are_taken_and_the_rest_is_said():
    ensemble, inputs, scores = trained(classes)
    expected = ensemble.predict(inputs)
    labels = scores.argmax(-1)
    for given in (inputs.numpy(), inputs.double().numpy(), [inputs.numpy()[:60], inputs.numpy()[60:]]):
        torch.testing.assert_close(ensemble.predict(given).probabilities, expected.probabilities)
    for given in (labels.numpy(), labels.tolist(), labels[:, None]):
        assert expected.metrics(given) == expected.metrics(labels)
    with pytest.raises(ValueError, match=r"labels must be whole numbers from 0 to 2, at least one, got torch.bool"):
        expected.metrics(labels > 0)
    with pytest.raises(TypeError, match=r"got the dataset TensorDataset. Give DataLoader\(dataset"):
        ensemble.predict(TensorDataset(inputs))
    with pytest.raises(ValueError, match=r"must be the inputs alone, got a pair of inputs and targets"):
        ensemble.predict((inputs, labels))
    assert len(ensemble.predict(inputs.split(60)).probabilities) == 120
    with pytest.raises(TypeError, match="inputs must be a tensor, an array or batches, got int"):
        ensemble.predict(3)


@pytest.mark.parametrize("form", ["tensor", "array", "loader", "dicts", "forward"])
def test_batch_norm_is_refreshed_by_whatever_predicts(form):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.last = nn.BatchNorm1d(5), nn.Linear(5, 3)

        def forward(self, x):
            return self.last(self.norm(x))

    torch.manual_seed(0)
    ensemble, inputs, scores = trained(classes, model=Net())
    given = {
        "tensor": inputs,
        "array": inputs.numpy(),
        "loader": DataLoader(TensorDataset(inputs, scores), 120, shuffle=True),
        "dicts": [{"x": inputs, "labels": scores}],
        "forward": [(scores, inputs)],
    }[form]
    forward = (lambda model, batch: model(batch[1])) if form == "forward" else None
    ensemble.refresh_batch_norm(given, forward=forward)
    for member in ensemble.collector:
        torch.testing.assert_close(member.state["norm.running_mean"], inputs.mean(0), rtol=1e-5, atol=1e-6)


# ---- numbers of data, frozen weights, folders ----


def test_the_number_of_data_is_that_of_the_sampler():
    inputs, scores = data()
    rows = TensorDataset(inputs, scores.argmax(-1))

    def number(**options):
        loader = DataLoader(rows, 10, **options)
        return fit_ensemble(
            network(), loader, functional.cross_entropy, epochs=8, cycles=2, temperature=0, progress=False
        ).optimizer.num_data

    assert number(sampler=SubsetRandomSampler(range(30))) == 30
    assert number(sampler=WeightedRandomSampler([1.0] * 40 + [0.0] * 80, 120)) == 40
    assert number(shuffle=True) == 120

    class Odd(torch.utils.data.Sampler):
        def __len__(self):
            return 40

        def __iter__(self):
            return iter(range(40))

    with pytest.raises(ValueError, match=r"num_data must be given for a Odd, .* of the 120 examples"):
        number(sampler=Odd())


def test_fit_offers_the_loss_and_clears_up_after_an_interruption():
    inputs, scores = data()
    loader = DataLoader(TensorDataset(inputs, scores.argmax(-1)), 40)
    ensemble = fit_ensemble(network(), loader, epochs=8, cycles=2, task="classification", temperature=0, progress=False)
    assert ensemble.predict(inputs).metrics(scores.argmax(-1))["error"] < 0.2
    model = network()

    def interrupted(ensemble, *arguments, **options):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ensemble, "step", interrupted)
        fit_ensemble(model, loader, functional.cross_entropy, epochs=8, cycles=2, temperature=0, progress=False)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_frozen_tensors_are_held_once():
    model = network()
    model[0].weight.requires_grad_(False)
    ensemble, _, _ = trained(classes, model=model)
    one, two = ensemble.collector
    assert one.state["0.weight"].data_ptr() == two.state["0.weight"].data_ptr() != model[0].weight.data_ptr()
    assert one.state["2.weight"].data_ptr() != two.state["2.weight"].data_ptr()
    size = sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)
    assert f"members of {size / 1e6:.3g} MB" in repr(ensemble)
    with torch.no_grad():
        model[0].weight.add_(1.0)  # an average that is kept by hand is not trained, and moves
    record = ensemble.collector.collect(step=STEPS + 1)
    states = {sample.record.step: sample.state["0.weight"] for sample in ensemble.collector}
    torch.testing.assert_close(states[record.step], states[STEPS] + 1.0)


def test_frozen_tensors_are_saved_once(tmp_path):
    model = nn.Sequential(nn.Linear(5, 2000), nn.Tanh(), nn.Linear(2000, 3))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    ensemble, inputs, _ = trained(classes, model=model)
    ensemble.save(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.pt")
    frozen, rest = 4 * 2000 * 6, 4 * (3 * 2000 + 3)
    # In the model, once for the members, and at most once in the optimizer's state; twice more if each member had it.
    assert file.stat().st_size < 3 * frozen + 5 * rest + 30_000
    again = Ensemble.load(tmp_path / "saved", copy.deepcopy(model))
    assert torch.equal(again.predict(inputs).probabilities, ensemble.predict(inputs).probabilities)


def test_members_on_disk_and_a_missing_library(tmp_path, monkeypatch):
    plain, inputs, _ = trained(classes)
    ensemble, _, _ = trained(classes, members_on=tmp_path / "members")
    assert len(list((tmp_path / "members").glob("*.safetensors"))) == 2
    assert torch.equal(ensemble.predict(inputs).probabilities, plain.predict(inputs).probabilities)
    ensemble.save(tmp_path / "saved")
    again = Ensemble.load(tmp_path / "saved", network(), members_on=tmp_path / "again")
    assert torch.equal(again.predict(inputs).probabilities, plain.predict(inputs).probabilities)
    assert len(list((tmp_path / "again").glob("*.safetensors"))) == 2
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    plain.save(tmp_path / "plain")  # needs nothing else
    assert len(Ensemble.load(tmp_path / "plain", network())) == 2
    with pytest.raises(ImportError, match="python -m pip install safetensors"):
        trained(classes, members_on=tmp_path / "more")
    with pytest.raises(ImportError, match="python -m pip install safetensors"):
        SampleCollector(network(), None, folder=tmp_path / "more")


def test_members_of_several_processes_stay_in_memory(tmp_path, monkeypatch):
    """Rank 0 alone could put a member back."""
    monkeypatch.setattr("ctld.ensembles.ensemble.processes", lambda: 2)
    with pytest.raises(ValueError, match=r'members_on must be "cpu" where several processes train one model'):
        Ensemble(network(), 0.1, 120, STEPS, cycles=2, temperature=0, members_on=tmp_path / "members")


def test_a_collapse_without_noise_is_not_blamed_on_its_temperature():
    model = network()
    inputs, scores = data()
    ensemble = Ensemble(model, 0.1, 120, STEPS, cycles=2, temperature=0)
    with pytest.warns(UserWarning, match=r"a cycle has collapsed.*Give a lower lr \(it is 0.1\)$"):
        for step in range(STEPS):
            if step == 35:
                with torch.no_grad():
                    model[2].weight.mul_(-100.0)
            loss = classes(model(inputs), scores)
            loss.backward()
            if step >= 35:
                for parameter in model.parameters():
                    parameter.grad.zero_()
            ensemble.step(loss)
    assert len(ensemble) == 1


def test_a_copy_of_an_ensemble_goes_on_by_itself():
    model = network()
    inputs, scores = data()
    ensemble = Ensemble(model, 0.1, 120, STEPS, cycles=2, temperature=0)
    other = copy.deepcopy(ensemble)
    for each in (ensemble, other):
        for _ in range(STEPS):
            loss = classes(each.model(inputs), scores)
            loss.backward()
            each.step(loss)
    assert len(other) == len(ensemble) == 2
    assert equal(other.model.state_dict(), ensemble.model.state_dict())
    assert ctld.ensembles.ensemble_of(other.optimizer) is other


def test_a_step_is_hardly_more_work_than_its_optimizers():
    """Python calls, which repeat on every machine: a hundred of CTLD's own, and so many more."""

    def calls(step, model):
        found = []
        for _ in range(12):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            number = [0]

            def count(frame, event, argument, number=number):
                number[0] += event == "call"

            sys.setprofile(count)
            try:
                step()
            finally:
                sys.setprofile(None)
            found.append(number[0])
        return sorted(found)[6]

    model, twin = network(), network()
    ensemble = Ensemble(model, 0.1, 120, 6000, temperature=1e-3, weight_decay=1e-2, seed=0)
    optimizer = ctld.CTLD(
        twin.parameters(),
        0.1,
        num_data=120,
        exploration_steps=600,
        cycle_steps=1000,
        temperature=1e-3,
        weight_decay=1e-2,
        tempering=ctld.Tempering.constant(),
    )
    loss = torch.tensor(1.0)
    mine = calls(lambda: ensemble.step(loss), model)
    assert mine <= calls(lambda: optimizer.step(loss=loss), twin) + 30
