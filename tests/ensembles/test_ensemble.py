"""Ensemble: the promise of its first lines, that it is its parts put together, resumes to the bit, and notices a collapse."""

import contextlib
import copy
import hashlib
import json
import math
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import ctld
from ctld import CTLD, CycleLR, Ensemble, NonFiniteError, SampleCollector, Tempering
from ctld.tempering import CalibratedTempering
from ctld.tempering.adapted import AdaptedTemperature
from targets import Classification, equal, saved

CYCLE, CYCLES = 20, 3


def build(problem, **options):
    # The problem's losses come without a graph, which would tell the task.
    options = {
        "task": "classification",
        "weight_decay": 1e-2,
        "momentum": 0.8,
        "temperature": 0.01,
        "seed": 5,
    } | options
    options = {"cycles": CYCLES} | options
    return Ensemble(problem.model, 0.05, 96, CYCLE * CYCLES, **options)


def go_on(problem, ensemble, steps):
    records = []
    for step in steps:
        loss = problem.backward(step)
        records.append(ensemble.step(loss))
    return records


def test_it_is_its_parts_put_together():
    problem, twin = Classification(), Classification()
    ensemble = build(problem)
    records = go_on(problem, ensemble, range(CYCLE * CYCLES))
    optimizer = CTLD(
        twin.model.parameters(),
        0.05,
        0.8,
        num_data=96,
        weight_decay=1e-2,
        temperature=0.01,
        exploration_steps=12,
        cycle_steps=CYCLE,
        tempering=Tempering.constant(),
        seed=5,
    )
    scheduler, collector, losses = CycleLR(optimizer), SampleCollector(twin.model, optimizer), []
    for step in range(CYCLE * CYCLES):
        loss = twin.backward(step)
        losses.append(float(loss))
        optimizer.step(loss=loss)
        scheduler.step()
        collector.update()
    assert torch.equal(problem.flat(), twin.flat())
    assert len(ensemble) == len(collector) == CYCLES
    for mine, theirs in zip(ensemble.collector, collector, strict=True):
        assert equal(mine.state, theirs.state)
        assert mine.record.reading == theirs.record.reading
    kept = [record for record in records if record is not None]
    assert kept == ensemble.records
    assert [record.step for record in kept] == [20, 40, 60]
    # The loss of a member is the mean over the last tenth of its cycle, two steps here.
    assert [record.loss for record in kept] == pytest.approx([sum(losses[k - 2 : k]) / 2 for k in (20, 40, 60)])
    prediction = ensemble.predict(problem.inputs)
    expected = ctld.predict(twin.model, collector, problem.inputs)
    assert torch.equal(prediction.log_probabilities, expected.log_probabilities)


def test_a_step_clears_the_gradients_and_the_end_changes_nothing():
    problem = Classification()
    ensemble = build(problem)
    go_on(problem, ensemble, range(5))
    assert all(parameter.grad is None for parameter in problem.model.parameters())
    go_on(problem, ensemble, range(5, CYCLE * CYCLES))
    assert ensemble.done
    before = problem.flat()
    loss = problem.backward(0)
    with pytest.warns(UserWarning, match="all 60 steps are done, and further ones change nothing: give a larger total"):
        ensemble.step(loss)
    go_on(problem, ensemble, range(3))  # and says so once
    assert torch.equal(problem.flat(), before)
    assert all(parameter.grad is None for parameter in problem.model.parameters())
    assert ensemble.steps == 60


def test_a_step_without_a_gradient_is_refused():
    """Somebody forgot backward: noise alone would move the weights. Nothing is moved, and the step is not counted."""
    problem = Classification()
    ensemble = build(problem)
    go_on(problem, ensemble, range(1))
    before = problem.flat()
    with pytest.raises(RuntimeError, match=r"call loss\.backward\(\) before ensemble\.step\(loss\)"):
        ensemble.step(torch.tensor(1.0))
    assert ensemble.steps == 1
    assert torch.equal(problem.flat(), before)
    go_on(problem, ensemble, range(1, 2))
    assert ensemble.steps == 2


def test_steps_that_do_not_divide_are_left_over():
    problem = Classification()
    ensemble = Ensemble(problem.model, 0.05, 96, 62, cycles=3, temperature=0.01)
    assert (ensemble.cycle_steps, ensemble.exploration_steps) == (20, 12)
    go_on(problem, ensemble, range(62))  # no warning: the user asked for them
    assert (ensemble.steps, len(ensemble)) == (60, 3)


@pytest.mark.parametrize("interruption", [7, 18, 20, 39, 47, 60])
@pytest.mark.parametrize("on_disk", [False, True])
def test_resume_is_bit_for_bit(tmp_path, interruption, on_disk):
    whole, part = Classification(), Classification()
    options = {"members": 2, "keep": "best", "tempering": "falling"}
    straight = build(whole, **options)
    go_on(whole, straight, range(60))
    ensemble = build(part, **options)
    go_on(part, ensemble, range(3))
    if on_disk:
        ensemble.save(tmp_path / "saved")  # once more below: the second takes the place of the first
    go_on(part, ensemble, range(3, interruption))
    if on_disk:
        ensemble.save(tmp_path / "saved")
    else:
        state = saved(ensemble.state_dict())
    go_on(part, ensemble, range(interruption, 60))  # what the first went on to do must not show
    other = Classification(seed=0)
    with torch.no_grad():
        other.model[0].weight.add_(1.0)
    if on_disk:
        resumed = Ensemble.load(tmp_path / "saved", other.model)
    else:
        resumed = build(other, seed=9, **options)
        resumed.load_state_dict(state)
    go_on(other, resumed, range(interruption, 60))
    assert equal(resumed.state_dict(), straight.state_dict())


def test_a_saved_ensemble_predicts(tmp_path):
    problem, other = Classification(), Classification(seed=0)
    ensemble = build(problem)
    go_on(problem, ensemble, range(60))
    ensemble.save(tmp_path / "saved")
    again = Ensemble.load(tmp_path / "saved", other.model)
    assert torch.equal(other.flat(), problem.flat())
    found = again.predict(problem.inputs)
    assert torch.equal(found.log_probabilities, ensemble.predict(problem.inputs).log_probabilities)
    assert again.records == ensemble.records
    with pytest.raises(ValueError, match=r"index of an Ensemble: Ensemble.load reads it"):
        SampleCollector.open(tmp_path / "saved")
    SampleCollector(problem.model, ensemble.optimizer, folder=tmp_path / "other")
    with pytest.raises(FileExistsError, match="has samples of a SampleCollector"):
        ensemble.save(tmp_path / "other")
    with pytest.raises(ValueError, match="has samples and no Ensemble"):
        Ensemble.load(tmp_path / "other", other.model)
    shutil.copytree(tmp_path / "saved", tmp_path / "damaged")
    assert len(list((tmp_path / "damaged").iterdir())) == 2
    largest = max((tmp_path / "damaged").glob("*.pt"))
    largest.write_bytes(largest.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="is damaged or another file"):
        Ensemble.load(tmp_path / "damaged", other.model)
    with pytest.raises(ValueError, match=r"the model has no parameter '0.weight'; build the model as it was saved"):
        Ensemble.load(tmp_path / "saved", nn.Linear(3, 2))


@pytest.mark.parametrize("damage", ["length", "name", "state", "member", "late member", "watch", "steps", "foreign"])
def test_a_damaged_save_is_refused_before_anything_changes(tmp_path, damage):
    problem = Classification()
    ensemble = build(problem)
    go_on(problem, ensemble, range(25))
    ensemble.save(tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    file = index["ensemble"]["file"]
    path = tmp_path / file["name"]
    state = torch.load(path, weights_only=True)
    if damage == "length":
        with path.open("r+b") as opened:
            opened.truncate(2**40)  # sparse: nothing of it may be read
    elif damage == "name":
        file["name"] = "../" + file["name"]
    elif damage == "state":
        state["model"]["0.weight"] = torch.zeros(2, 2)
    elif damage == "member":
        state["collector"]["samples"][0]["state"]["0.weight"][0, 0] = math.nan
    elif damage == "late member":
        state["collector"]["samples"][0]["record"]["step"] = 10**30
    elif damage == "watch":
        state["watch"]["windows"] = -1
    elif damage == "steps":
        state["steps"] = 10**30
    else:
        state = {"x": 1}
    if damage not in ("length", "name"):
        torch.save(state, path)
        file |= {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"damaged or another|is not the name|must|out of range|have not the same"):
        Ensemble.load(tmp_path, Classification().model)
    if damage not in ("length", "name"):
        other = build(Classification(seed=1))
        before = saved(other.state_dict())
        with pytest.raises(ValueError, match=r"must|out of range|have not the same"):
            other.load_state_dict(state)
        assert equal(other.state_dict(), before)


def test_a_state_that_the_optimizer_refuses_changes_nothing():
    problem = Classification()
    ensemble = build(problem)
    go_on(problem, ensemble, range(25))
    state = saved(ensemble.state_dict())
    state["optimizer"]["param_groups"][0]["ctld_temperature"] = "hot"
    other = build(Classification(seed=1))
    before = saved(other.state_dict())
    with pytest.raises(ValueError, match="does not fit"):
        other.load_state_dict(state)
    assert equal(other.state_dict(), before)
    for foreign in (None, 3):
        with pytest.raises(TypeError, match="state_dict must be a dict"):
            other.load_state_dict(foreign)


def test_a_folder_of_version_0_2_goes_on_where_it_was():
    problem, whole = Classification(), Classification()
    straight = build(whole)
    go_on(whole, straight, range(60))
    old = Ensemble.load(Path(__file__).parent / "saved_by_0_2", problem.model)
    assert (old.steps, len(old), old.task) == (47, 2, None)
    go_on(problem, old, range(47, 60))
    torch.testing.assert_close(problem.flat(), whole.flat())
    with pytest.raises(ValueError, match=r"task must be known"):
        old.predict(problem.inputs)
    assert len(old.predict(problem.inputs, task="classification").probabilities) == 96


def test_changes_on_loading_are_applied_or_refused(tmp_path):
    problem = Classification()
    ensemble = build(problem)
    go_on(problem, ensemble, range(25))
    ensemble.save(tmp_path)
    other = Classification()
    changed = Ensemble.load(
        tmp_path, other.model, lr=0.02, weight_decay=0.5, temperature=0.02, members=1, cycles=CYCLES
    )
    group = changed.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], changed.collector.at_most) == (0.02, 0.5, 1)
    assert changed.temperature == 0.02
    go_on(other, changed, range(25, 32))
    assert group["lr"] == 0.02
    go_on(other, changed, range(32, 60))
    assert len(changed) == 1
    assert not torch.equal(other.flat(), problem.flat())
    for name, value in {"total_steps": 90, "seed": 7, "nonsense": 1}.items():
        with pytest.raises(ValueError, match=f"{name} must be what it was, .*, got {value}"):
            Ensemble.load(tmp_path, Classification().model, **{name: value})


def test_a_tempering_of_ones_own_is_given_again(tmp_path):
    problem, other = Classification(), Classification()
    ensemble = build(problem, tempering=Tempering.constant(2.0))
    go_on(problem, ensemble, range(25))
    ensemble.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"give load\(tempering=...\)"):
        Ensemble.load(tmp_path / "saved", other.model)
    again = Ensemble.load(tmp_path / "saved", other.model, tempering=Tempering.constant(2.0))
    assert equal(again.state_dict(), ensemble.state_dict())


def test_a_state_of_other_cycles_is_refused():
    problem = Classification()
    ensemble = build(problem)
    state = copy.deepcopy(ensemble.state_dict())
    other = build(problem, cycles=2)
    with pytest.raises(ValueError, match="the state was saved with cycles = 3, this has 2: build it as it was"):
        other.load_state_dict(state)


def test_groups_batch_norm_and_dicts(tmp_path):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

        def forward(self, x):
            return {"logits": self.head(torch.relu(self.norm(self.body(x))))}

    model = Net()
    inputs = torch.randn(200, 6)
    labels = (inputs @ torch.randn(6, 3)).argmax(-1)
    norms = {"params": list(model.norm.parameters()), "explore": False, "weight_decay": 0.0}
    rest = {"params": [p for module in (model.body, model.head) for p in module.parameters()], "lr": 0.2}
    ensemble = Ensemble(model, 0.1, 200, 120, cycles=3, params=[rest, norms], seed=1)
    for step in range(120):
        batch = torch.arange(32 * step, 32 * step + 32) % 200
        loss = functional.cross_entropy(model(x=inputs[batch])["logits"], labels[batch])
        loss.backward()
        ensemble.step(loss)
    batches = [{"x": inputs[:100], "labels": labels[:100]}, {"x": inputs[100:], "labels": labels[100:]}]
    assert ensemble.predict(batches).metrics(labels)["error"] < 0.1
    whole = ensemble.predict(inputs, forward=lambda model, x: model(x)["logits"])
    torch.testing.assert_close(whole.probabilities, ensemble.predict(batches).probabilities)
    statistics = [sample.state["norm.running_mean"] for sample in ensemble.collector]
    assert not torch.equal(statistics[0], statistics[1])
    ensemble.refresh_batch_norm([(inputs,)])
    assert all(record.batch_norm_refreshed for record in ensemble.records)
    ensemble.save(tmp_path / "saved")
    again = Ensemble.load(tmp_path / "saved", Net())
    assert [group["explore"] for group in again.optimizer.param_groups] == [True, False]
    assert torch.equal(again.predict(batches).probabilities, ensemble.predict(batches).probabilities)


@pytest.mark.parametrize("tempering", ["constant", "falling", "driven", "calibrated", "paper"])
def test_temperings_by_name(tempering):
    problem = Classification()
    rests = pytest.warns(UserWarning, match="the warm-up takes 100 steps, the exploration of 9 cycles of 12")
    with rests if tempering == "calibrated" else contextlib.nullcontext():
        ensemble = build(problem, tempering=tempering, temperature="auto")
    ratios = []
    for step in range(25):
        ratios.append(ensemble.optimizer.temperature_ratio)
        go_on(problem, ensemble, [step])
    kinds = {"constant": AdaptedTemperature, "calibrated": CalibratedTempering, "paper": Tempering}
    assert type(ensemble.optimizer.tempering) is kinds.get(tempering, type(ensemble.optimizer.tempering))
    if tempering == "falling":  # a saw: from hot to cold in the exploration of each cycle
        assert ratios[:12] == pytest.approx([0.01 ** (k / 11) for k in range(12)])
        assert ratios[20:25] == pytest.approx(ratios[:5])
    if tempering == "driven":
        assert max(ratios[:12]) == pytest.approx(1 / 0.15)
    assert len(ensemble) == 1


@pytest.mark.parametrize(
    ("total", "cycles", "warm_up"), [(6000, 6, 600), (2000, 2, 300), (100_000, 4, 4000), (60, 3, 100)]
)
def test_the_warm_up_of_the_calibrated_one_leaves_cycles_to_it(total, cycles, warm_up):
    """Its own 4,000 steps would be all the exploration of six cycles, and α would rest at 0 to the end."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ensemble = Ensemble(
            Classification().model, 0.05, 96, total, cycles=cycles, temperature=0.01, tempering="calibrated", seed=0
        )
    assert ensemble.optimizer.tempering.warm_up_steps == warm_up
    Ensemble(Classification().model, 0.05, 96, total, exploration=0, temperature=0.01, tempering="calibrated", seed=0)
    short = ensemble.exploration_steps < warm_up
    assert [("the warm-up takes" in str(one.message)) for one in said] == [True] * short


# ---- collapse ----


def clusters():
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 100, generator=generator) * 2
    labels = torch.randint(10, (400,), generator=generator)
    return centres[labels] + torch.randn(400, 100, generator=generator), labels


def collapsing(temperature=0.05, *, steps=(), harm=0.0, **options):
    """Four cycles; after these steps something happens to the weights, as too much noise has it happen sooner or later.

    By noise itself it would be another thing on every machine: what runs away makes the last bit of a sum large.
    """
    inputs, labels = clusters()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    ensemble = Ensemble(model, 0.05, 400, 240, cycles=4, temperature=temperature, seed=2, **options)
    generator = torch.Generator().manual_seed(3)
    for step in range(240):
        if step in steps:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(harm)
        batch = torch.randint(400, (32,), generator=generator)
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        ensemble.step(loss)
    return ensemble, inputs, labels


def test_a_collapse_is_said_and_kept_out_of_the_average():
    """Twice, in the second cycle and in the fourth: units that have died stay dead."""
    ensemble, inputs, labels = collapsing()
    assert len(ensemble) == 4
    with pytest.warns(
        UserWarning, match=r"a cycle has collapsed: .* Its model is left out, .* \(it is 0.05\) or a lower lr"
    ) as seen:
        ensemble, inputs, labels = collapsing(steps=(115, 235))
    assert [str(warning.message).count("collapsed") for warning in seen] == [1]  # once, though it happens again
    assert len(ensemble) == 2
    prediction = ensemble.predict(inputs)
    assert prediction.metrics(labels)["nll"] < 0.1
    assert not prediction.outliers


def test_without_the_guard_it_is_only_said():
    with pytest.warns(UserWarning, match="a cycle has collapsed: .* kept all the same, since guard=False") as seen:
        ensemble, inputs, labels = collapsing(steps=(115, 235), guard=False)
    assert len(seen) == 1
    assert len(ensemble) == 4
    with pytest.warns(UserWarning, match="outlier|same for every input|far from"):
        assert ensemble.predict(inputs).metrics(labels)["nll"] > 0.1


def test_without_the_guard_what_is_no_number_is_not_kept_either():
    """In fine-tuning, where a step is SGD's and takes whatever comes."""
    with pytest.warns(UserWarning, match="a cycle has collapsed: .* left out, since nothing can be averaged with it"):
        ensemble, _, _ = collapsing(steps=(238,), harm=math.nan, guard=False)
    assert len(ensemble) == 3
    assert not math.isfinite(ensemble._size())  # and nothing was put back


def test_what_a_float_cannot_hold_gives_the_last_member_back():
    problem = Classification()
    ensemble = build(problem)
    go_on(problem, ensemble, range(25))
    member = next(iter(ensemble.collector)).state
    loss = problem.backward(25)
    with torch.no_grad():
        problem.model[0].weight.fill_(math.inf)
    with pytest.raises((FloatingPointError, NonFiniteError)) as error:
        ensemble.step(loss)
    assert "the model is now the last one that was kept" in " ".join(error.value.__notes__)
    assert "Give a lower temperature (it is" in error.value.__notes__[-1]
    assert equal(dict(problem.model.named_parameters()), member)
    assert all(not state["momentum_buffer"].any() for state in ensemble.optimizer.state.values())
    go_on(problem, ensemble, range(25, 40))
    assert len(ensemble) == 2


def test_one_bad_batch_leaves_the_model_alone():
    problem = Classification()
    ensemble = build(problem)
    go_on(problem, ensemble, range(25))
    before = problem.flat()
    problem.backward(25)
    with pytest.raises(NonFiniteError):
        ensemble.step(math.nan)
    assert torch.equal(problem.flat(), before)
    assert all(parameter.grad is None for parameter in problem.model.parameters())


def test_the_noise_adapts_to_what_the_network_bears():
    """Where it was too much it falls far below, on whatever path a machine's last bits lead; a harmless one grows up to T."""
    with pytest.warns(UserWarning, match="a cycle has collapsed") as seen:
        ensemble, inputs, labels = collapsing(1.0, adapt=True)
    assert len(seen) == 1
    assert len(ensemble) >= 2
    assert ensemble.temperature < 0.5
    prediction = ensemble.predict(inputs)
    assert prediction.metrics(labels)["nll"] < 0.05
    assert not prediction.outliers
    harmless = collapsing(1e-6, adapt=True)[0]
    assert harmless.temperature == 1e-6


def test_an_adapted_temperature_is_resumed():
    ensemble = build(Classification(), adapt=True)
    assert ensemble.temperature == pytest.approx(0.001)
    ensemble.optimizer.tempering.change(2.0)
    other = build(Classification(), adapt=True)
    other.load_state_dict(saved(ensemble.state_dict()))
    assert other.temperature == ensemble.temperature == pytest.approx(0.002)
    with pytest.raises(ValueError, match="adapt=True goes with tempering=\"constant\", not 'driven'"):
        build(Classification(), adapt=True, tempering="driven")


def test_bad_input():
    problem = Classification()
    with pytest.raises(
        ValueError, match="total_steps = 5 leave 1 for each of 3 cycles: give more steps, or fewer cycles"
    ):
        Ensemble(problem.model, 0.1, 96, 5, cycles=3)
    with pytest.raises(ValueError, match=r"exploration = 1.0 is out of range"):
        build(problem, exploration=1.0)
    with pytest.raises(ValueError, match="tempering = 'warm' is unknown; give one of 'constant', 'falling'"):
        build(problem, tempering="warm")
    with pytest.raises(ValueError, match=r"there is no member yet: the first comes after 20 steps, 0 are done"):
        build(problem).predict(problem.inputs)
    with pytest.raises(ValueError, match=r"params has a parameter of shape \(2, 3\) that is not the model's"):
        build(problem, params=[nn.Parameter(torch.zeros(2, 3))])
    for option, value in (
        ("lr", -1.0),
        ("momentum", 1.0),
        ("weight_decay", -1e-3),
    ):  # named before a temperature is chosen
        given = {"lr": 0.1} | {option: value}
        with pytest.raises(ValueError, match=f"{option} = {value}"):
            Ensemble(problem.model, num_data=96, total_steps=60, **given)
    empty = build(problem)
    assert empty
    assert repr(empty) == "<Ensemble: 0 members of 0.0013 MB, step 0 of 3 × 20, T = 0.01>"
