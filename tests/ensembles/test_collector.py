"""SampleCollector: what is kept, with which reading, how many, and that it survives interruptions and damage."""

import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ctld import CTLD, SampleCollector, Tempering, diagnostics
from ctld.ensembles import traces
from targets import Classification, equal, saved

EXPLORATION, CYCLE = 30, 40


def build(problem, **options):
    options = {"exploration_steps": EXPLORATION, "cycle_steps": CYCLE, "seed": 5, "weight_decay": 1e-2} | options
    return CTLD(problem.model.parameters(), 0.05, 0.8, num_data=96, temperature=0.01, **options)


def go_on(problem, optimizer, collector, steps):
    """What the model and the thermometer were after each step, by the number of steps done."""
    seen = {}
    for step in steps:
        loss = problem.backward(step)
        optimizer.step(loss=loss)
        collector.update(loss=loss)
        state = {name: tensor.clone() for name, tensor in problem.model.state_dict().items()}
        seen[step + 1] = (state, optimizer.last, optimizer.temperature, loss)
    return seen


@pytest.fixture(params=["memory", "disk"])
def place(request, tmp_path):
    return {"folder": tmp_path / "samples"} if request.param == "disk" else {}


def test_what_is_kept_is_the_model_and_the_reading(place):
    problem = Classification()
    optimizer = build(problem)
    collector = SampleCollector(problem.model, optimizer, cold_every=7, at_most=50, **place)
    seen = go_on(problem, optimizer, collector, range(3 * CYCLE))
    samples = list(collector)
    assert [sample.record for sample in samples] == collector.records
    assert [sample.record.step for sample in collector.of_kind("cycle")] == [CYCLE, 2 * CYCLE, 3 * CYCLE]
    assert [sample.record.cycle for sample in collector.of_kind("cycle")] == [0, 1, 2]
    cold = [sample.record for sample in collector.of_kind("cold")]
    assert cold
    for sample in samples:
        record = sample.record
        state, last, temperature, loss = seen[record.step]
        assert equal(sample.state, state)
        assert record.loss == float(loss)
        if record.kind == "cycle":  # the reading at the end of the exploration that it comes from
            assert record.reading.step == record.step - (CYCLE - EXPLORATION)
            last = seen[record.reading.step][1]
        else:
            assert record.reading.step == record.step
            assert record.reading.temperature_ratio == 1.0
        assert record.reading.kinetic_temperature == last.kinetic_temperature
        assert record.reading.temperature_ratio == last.temperature_ratio
        assert record.reading.alpha == last.alpha
        assert record.reading.target_temperature == temperature * last.temperature_ratio
    sevenths = {step: last for step, (_, last, _, _) in seen.items() if step % 7 == 0 and last.hamiltonian is not None}
    assert [record.step for record in cold] == [step for step, last in sevenths.items() if last.temperature_ratio == 1]
    assert any(last.temperature_ratio > 1.01 for last in sevenths.values())  # else nothing was to be left out


def test_bounded_by_dropping_the_oldest_of_a_kind(place):
    problem = Classification()
    optimizer = build(problem)
    collector = SampleCollector(problem.model, optimizer, cold_every=3, at_most=2, **place)
    seen = go_on(problem, optimizer, collector, range(4 * CYCLE))
    assert [sample.record.step for sample in collector.of_kind("cycle")] == [3 * CYCLE, 4 * CYCLE]
    assert len(list(collector.of_kind("cold"))) == 2
    assert len(collector) == 4
    assert all(equal(sample.state, seen[sample.record.step][0]) for sample in collector)
    if place:
        assert len(list(place["folder"].iterdir())) == 5  # and the index


def test_memory_resumes_as_if_uninterrupted():
    whole, part = Classification(), Classification()
    straight = SampleCollector(whole.model, build(whole), cold_every=5, at_most=3)
    go_on(whole, straight._optimizer, straight, range(110))
    optimizer = build(part)
    collector = SampleCollector(part.model, optimizer, cold_every=5, at_most=3)
    go_on(part, optimizer, collector, range(75))  # in fine-tuning: the reading comes from before
    state = saved([part.model.state_dict(), optimizer.state_dict(), collector.state_dict()])
    go_on(part, optimizer, collector, range(75, 90))
    other = Classification(seed=0)
    resumed = build(other, seed=9)
    again = SampleCollector(other.model, resumed, cold_every=5, at_most=3)
    other.model.load_state_dict(state[0])
    resumed.load_state_dict(state[1])
    again.load_state_dict(state[2])
    go_on(other, resumed, again, range(75, 110))
    assert equal(again.state_dict(), straight.state_dict())


@pytest.mark.parametrize("at_most", [3, 50])
@pytest.mark.parametrize("interruption", [33, 40, 75, 95])
def test_a_folder_resumes_from_a_checkpoint_behind_it(tmp_path, interruption, at_most):
    """The run that died was further than its checkpoint, by 25 steps or none; what it had collected there is taken again."""
    lost = range(interruption, interruption + (0 if interruption == 75 else 25))
    whole, part = Classification(), Classification()
    optimizer = build(whole)
    straight = SampleCollector(whole.model, optimizer, folder=tmp_path / "whole", cold_every=5, at_most=at_most)
    go_on(whole, optimizer, straight, range(125))
    optimizer = build(part)
    collector = SampleCollector(part.model, optimizer, folder=tmp_path / "part", cold_every=5, at_most=at_most)
    go_on(part, optimizer, collector, range(interruption))
    state = saved([part.model.state_dict(), optimizer.state_dict()])
    part.labels = part.labels.flip(0)  # the lost part went elsewhere, so that none of it may stay
    go_on(part, optimizer, collector, lost)
    if lost:
        collector.collect()
    other = Classification()
    resumed = build(other, seed=9)
    other.model.load_state_dict(state[0])
    resumed.load_state_dict(state[1])
    again = SampleCollector.open(tmp_path / "part", other.model, resumed)
    go_on(other, resumed, again, range(interruption, 125))
    # All of them, but for those that the lost part pushed out.
    assert [record for record in straight.records if record in again.records] == again.records
    missing = [record for record in straight.records if record not in again.records]
    assert all(record.step <= interruption for record in missing)
    assert at_most == 3 or not missing
    expected = {(sample.record.kind, sample.record.step): sample.state for sample in straight}
    assert all(equal(sample.state, expected[sample.record.kind, sample.record.step]) for sample in again)
    reopened = SampleCollector.open(tmp_path / "part")
    assert reopened.records == again.records
    assert (reopened.at_most, reopened.cold_every) == (at_most, 5)


def test_a_reading_from_the_future_is_forgotten(tmp_path):
    problem = Classification()
    optimizer = build(problem)
    collector = SampleCollector(problem.model, optimizer, folder=tmp_path / "samples")
    go_on(problem, optimizer, collector, range(EXPLORATION + 5))
    assert collector.collect().reading.step == EXPLORATION
    fresh = build(problem)
    again = SampleCollector.open(tmp_path / "samples", problem.model, fresh)
    go_on(problem, fresh, again, range(10))
    assert again.collect().reading is None
    assert [record.step for record in again.records] == [10]


def test_files_are_exchanged_never_written_into(tmp_path):
    problem = Classification()
    collector = SampleCollector(problem.model, build(problem), folder=tmp_path / "samples")
    collector.collect(step=1)
    index = tmp_path / "samples" / "index.json"
    before = index.read_bytes()
    os.link(index, tmp_path / "old")
    collector.collect(step=2)
    assert (tmp_path / "old").read_bytes() == before != index.read_bytes()


def test_a_kill_between_any_two_writes_leaves_a_whole_collection(tmp_path, monkeypatch):
    problem = Classification()
    optimizer = build(problem)
    collector = SampleCollector(problem.model, optimizer, folder=tmp_path / "a", at_most=2)
    collector.collect(step=1)
    collector.collect(step=2)
    real_replace, real_unlink = os.replace, Path.unlink
    for calls in itertools.count():
        folder = tmp_path / f"killed{calls}"
        shutil.copytree(tmp_path / "a", folder)
        victim = SampleCollector.open(folder, problem.model, optimizer)
        left = [calls]

        def dying(function, left=left):
            def call(*arguments, **options):
                if left[0] == 0:
                    raise KeyboardInterrupt
                left[0] -= 1
                return function(*arguments, **options)

            return call

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", dying(real_replace))
            patched.setattr(Path, "unlink", dying(real_unlink))
            try:
                victim.collect(step=3)
                finished = True
            except KeyboardInterrupt:
                finished = False
        survivor = SampleCollector.open(folder, problem.model, optimizer)
        assert [sample.record.step for sample in survivor] in ([1, 2], [2, 3])
        assert not finished or [record.step for record in survivor.records] == [2, 3]
        survivor.collect(step=4)
        assert len(list(folder.glob("*.safetensors"))) == 2
        if finished:
            break
    assert calls >= 5  # so many kills there were


def test_no_cycles_and_other_optimizers():
    problem = Classification()
    optimizer = build(problem, cycle_steps=None)
    collector = SampleCollector(problem.model, optimizer, cold_every=30)
    go_on(problem, optimizer, collector, range(35))
    assert len(list(collector.of_kind("cycle"))) == 0
    record = collector.collect(loss=0.5)
    assert (record.kind, record.step, record.cycle, record.loss, record.reading.step) == ("cycle", 35, 0, 0.5, 30)
    collector.collect()  # once more at this step takes its place
    assert len(list(collector.of_kind("cycle"))) == 1
    sgd = torch.optim.SGD(problem.model.parameters(), 0.1)
    other = SampleCollector(problem.model, sgd)
    assert other.collect(step=7).step == 7
    with pytest.raises(ValueError, match=r"SGD does not count its steps; give collect\(step=...\)"):
        other.collect()
    with pytest.raises(TypeError, match="cycles of CTLD, not of SGD"):
        other.update()


def test_a_refused_step_keeps_nothing():
    problem = Classification()
    optimizer = build(problem)
    collector = SampleCollector(problem.model, optimizer, cold_every=1, at_most=50)
    assert collector.update() is None
    go_on(problem, optimizer, collector, range(CYCLE))
    count = len(collector)
    problem.backward(0)
    with pytest.raises(ValueError, match="refused"):
        optimizer.step(loss=float("nan"))
    assert collector.update() is None
    assert len(collector) == count


def test_samples_do_not_move_with_the_model():
    problem = Classification()
    collector = SampleCollector(problem.model, build(problem))
    collector.collect()
    before = next(iter(collector)).state["0.weight"].clone()
    with torch.no_grad():
        problem.model[0].weight.add_(1.0)
    assert torch.equal(next(iter(collector)).state["0.weight"], before)


class Normed(nn.Module):
    """Batch norm, a tied weight, a buffer that is not kept."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def test_batch_norm_is_kept_and_refreshed(place):
    torch.manual_seed(0)
    model = Normed()
    collector = SampleCollector(model, torch.optim.SGD(model.parameters(), 0.1), **place)
    inputs = torch.randn(64, 4) * 3 + 1
    for step in (1, 2):
        with torch.no_grad():
            model.first.weight.add_(0.3)
        model(inputs)
        collector.collect(step=step)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kept = list(collector)
    assert equal(kept[1].state["norm.running_mean"], model.norm.running_mean)
    assert "scratch" not in kept[0].state
    assert "last.weight" not in kept[0].state
    collector.refresh_batch_norm([(part, None) for part in inputs.split(16)])
    assert equal(own, model.state_dict())  # the model itself is left alone
    for before, after in zip(kept, collector, strict=True):
        assert after.record.batch_norm_refreshed
        hidden = inputs @ after.state["first.weight"].T + after.state["first.bias"]
        # Cumulative averages over four batches: of means, and of unbiased variances within batches.
        torch.testing.assert_close(after.state["norm.running_mean"], hidden.mean(0))
        within = torch.stack([part.var(0) for part in hidden.split(16)]).mean(0)
        torch.testing.assert_close(after.state["norm.running_var"], within)
        assert not torch.equal(before.state["norm.running_mean"], after.state["norm.running_mean"])
        assert torch.equal(before.state["first.weight"], after.state["first.weight"])
    if place:
        assert [record.batch_norm_refreshed for record in SampleCollector.open(place["folder"]).records] == [True, True]
        assert len(list(place["folder"].iterdir())) == 3


def test_traces_to_arviz(place):
    collectors = []
    for chain in range(2):
        problem = Classification(seed=chain)
        optimizer = build(problem, seed=chain)
        folder = {"folder": place["folder"] / str(chain)} if place else {}
        collector = SampleCollector(problem.model, optimizer, at_most=5, **folder)
        go_on(problem, optimizer, collector, range(5 * CYCLE))
        collectors.append(collector)
    found = traces(collectors, {"bias": lambda s: s.state["0.bias"], "loss": lambda s: s.record.loss})
    assert found["bias"].shape == (2, 5, 10)
    assert found["loss"][1, 3] == collectors[1].records[3].loss
    data = diagnostics.to_arviz(found)
    assert np.array_equal(data.posterior["bias"].values, found["bias"])
    assert set(diagnostics.convergence(found)) == {"bias", "loss"}
    with pytest.raises(ValueError, match=r"the chains have \[5, 4\] samples"):
        traces([collectors[0], list(collectors[1])[1:]], {"loss": lambda s: s.record.loss})


# ---- what it says of itself ----


def test_an_empty_one_is_there():
    collector = SampleCollector(Classification().model, None)
    assert collector
    assert repr(collector) == "<SampleCollector in memory: empty, at most 20 of a kind>"
    collector.collect(step=1)
    assert repr(collector) == "<SampleCollector in memory: 1 cycle, at most 20 of a kind>"


def test_what_is_dropped_is_said_once_and_counted(tmp_path):
    problem = Classification()
    optimizer = build(problem)
    collector = SampleCollector(problem.model, optimizer, folder=tmp_path / "samples")
    for step in range(1, 21):
        collector.collect(step=step)
    with pytest.warns(
        UserWarning, match=r"more than 20 cycle samples, the default of at_most, .* SampleCollector\(at_most"
    ):
        collector.collect(step=21)
    collector.collect(step=22)
    assert collector.dropped == SampleCollector.open(tmp_path / "samples").dropped == 2
    resumed = SampleCollector.open(tmp_path / "samples", problem.model, optimizer)
    with pytest.warns(UserWarning, match="more than 20 cycle samples, the default of at_most"):
        resumed.collect(step=23)  # whoever goes on may not have seen what was said before
    assert "20 cycle, 2 dropped, at most 20" in repr(collector)
    asked_for = SampleCollector(problem.model, optimizer, at_most=1)
    for step in (1, 2):
        asked_for.collect(step=step)  # who gives a number knows
    assert asked_for.dropped == 1
    own = SampleCollector(problem.model, optimizer, folder=tmp_path / "own", at_most=1)
    own.collect(step=1)
    SampleCollector.open(tmp_path / "own", problem.model, optimizer).collect(step=2)
    again = SampleCollector(problem.model, optimizer, at_most=1)
    again.load_state_dict(saved(asked_for.state_dict()))
    assert again.dropped == 1


def test_the_best_of_the_cycles(place):
    """By the loss; of equal ones the newer. The order stays that in which they were taken."""
    problem = Classification()
    collector = SampleCollector(problem.model, build(problem), keep="best", at_most=2, **place)
    for step, loss in enumerate((0.5, 0.2, 0.9, 0.2, 0.3), 1):
        collector.collect(step=step, loss=loss)
    assert [(record.step, record.loss) for record in collector.records] == [(2, 0.2), (4, 0.2)]
    with pytest.raises(ValueError, match=r'keep="best" goes by the loss; hand it over: update\(loss=loss\)'):
        collector.collect(step=9)
    with pytest.raises(ValueError, match="keep = 'worst' is unknown"):
        SampleCollector(problem.model, None, keep="worst")
    if place:
        assert SampleCollector.open(place["folder"]).keep == "best"


@pytest.mark.parametrize(
    ("optimizer", "cold_every", "said"),
    [
        ({"cycle_steps": None}, None, "this CTLD has no cycles"),
        ({"exploration_steps": 0}, 5, "cold_every = 5 never finds a cold sample; this CTLD does not explore"),
        ({"tempering": Tempering.constant(2.0)}, 5, "its temperature ratio is 2 throughout"),
        ({"cycle_steps": None}, 31, "exploration ends after 30 steps: give fewer"),
        ({}, CYCLE, "with cycles of 40 steps none of these is among the 30 that explore"),
    ],
)
def test_one_that_can_never_collect_is_refused_at_once(optimizer, cold_every, said):
    problem = Classification()
    made = build(problem, **optimizer)
    collector = SampleCollector(problem.model, made, cold_every=cold_every)
    made.step(loss=problem.backward(0))
    with pytest.raises(ValueError, match=said):
        collector.update()


# ---- folders that are not as they should be ----


@pytest.fixture
def folder(tmp_path):
    problem = Classification()
    collector = SampleCollector(problem.model, build(problem), folder=tmp_path / "samples")
    collector.collect(step=1)
    return tmp_path / "samples"


def change(folder, edit):
    index = json.loads((folder / "index.json").read_text())
    edit(index)
    (folder / "index.json").write_text(json.dumps(index))


def test_damage_is_refused(folder):
    path = folder / "000001.safetensors"
    content = path.read_bytes()
    for damaged in (content[:-10], content[:-1] + bytes([content[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"000001.safetensors is damaged or another file"):
            list(SampleCollector.open(folder))
    path.unlink()
    assert len(SampleCollector.open(folder)) == 1
    with pytest.raises(FileNotFoundError, match=r"is missing, though index.json names it"):
        list(SampleCollector.open(folder))
    path.symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="is a link or no file at all"):
        list(SampleCollector.open(folder))


@pytest.mark.parametrize(
    "name", ["../000001.safetensors", "/etc/passwd", "000001.safetensors\n", "٠٠٠٠٠١.safetensors", 7]
)
def test_names_cannot_lead_out_of_the_folder(folder, name):
    shutil.copy(folder / "000001.safetensors", folder.parent / "000001.safetensors")
    change(folder, lambda index: index["samples"][0]["file"].update(name=name))
    with pytest.raises(ValueError, match="is not the name of a sample's file"):
        SampleCollector.open(folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda index: index.pop("samples"),
        lambda index: index.update(samples=7),
        lambda index: index.update(samples=["x"]),
        lambda index: index.update(at_most=0),
        lambda index: index["samples"][0].pop("record"),
        lambda index: index["samples"][0]["record"].update(kind="warm"),
        lambda index: index["samples"][0]["record"].update(step="1"),
        lambda index: index["samples"][0]["record"].update(reading={"step": 1}),
        lambda index: index["samples"][0]["record"].update(more=1),
    ],
)
def test_a_foreign_index_is_refused(folder, edit):
    change(folder, edit)
    with pytest.raises(ValueError, match=r"index.json is damaged or foreign"):
        SampleCollector.open(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', "[" * 100_000, "\x00"])
def test_an_index_that_is_none(folder, text):
    (folder / "index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index.json is (damaged|no index of samples of format 1)"):
        SampleCollector.open(folder)


def test_folders_that_are_taken(folder, tmp_path):
    problem = Classification()
    optimizer = build(problem)
    with pytest.raises(FileExistsError, match=r"has samples already: SampleCollector.open goes on with them"):
        SampleCollector(problem.model, optimizer, folder=folder)
    replaced = SampleCollector(problem.model, optimizer, folder=folder, overwrite=True)
    assert len(replaced) == len(SampleCollector.open(folder)) == 0
    assert [path.name for path in folder.iterdir()] == ["index.json"]
    replaced.collect(step=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "000001.safetensors").write_text("precious")
    with pytest.raises(FileExistsError, match="is not empty"):
        SampleCollector(problem.model, optimizer, folder=tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "000001.safetensors").read_text() == "precious"
    with pytest.raises(FileNotFoundError, match="is no folder of samples"):
        SampleCollector.open(tmp_path / "mine")
    reader = SampleCollector.open(folder)
    with pytest.raises(ValueError, match="there is no model to keep"):
        reader.collect(step=3)
    for call in (reader.state_dict, lambda: reader.load_state_dict({})):
        with pytest.raises(ValueError, match="the samples are in"):
            call()


def test_other_bad_input():
    problem = Classification()
    optimizer = build(problem)
    with pytest.raises(ValueError, match="at_most = 0"):
        SampleCollector(problem.model, optimizer, at_most=0)
    with pytest.raises(ValueError, match="cold_every = 0"):
        SampleCollector(problem.model, optimizer, cold_every=0)
    with pytest.raises(ValueError, match="loss = nan"):
        SampleCollector(problem.model, optimizer).collect(loss=float("nan"))
    with pytest.raises(ValueError, match="kind = 'warm' is unknown"):
        list(SampleCollector(problem.model, optimizer).of_kind("warm"))


def test_without_safetensors(tmp_path, monkeypatch):
    problem = Classification()
    collector = SampleCollector(problem.model, build(problem), folder=tmp_path / "samples")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match="python -m pip install safetensors, or keep them in memory"):
        collector.collect()


def test_wrappers_are_taken_off():
    problem = Classification()
    compiled = torch.compile(problem.model, backend="eager")
    collector = SampleCollector(nn.DataParallel(compiled), build(problem))
    collector.collect()
    assert equal(next(iter(collector)).state, dict(problem.model.state_dict()))


def test_rank_zero_writes(tmp_path, monkeypatch):
    problem = Classification()
    monkeypatch.setattr("ctld.ensembles.collector.rank", lambda: 1)
    collector = SampleCollector(problem.model, build(problem), folder=tmp_path / "samples")
    collector.collect()
    assert not (tmp_path / "samples").exists()
    assert len(collector) == 1
    with pytest.raises(ValueError, match="rank 0 has the files"):
        list(collector)
