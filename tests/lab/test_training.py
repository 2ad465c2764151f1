"""The training loop: a run is a function of its configuration, whatever interrupts it; divergence is a result."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from small_run import StopAt

import ctld
from ctld_lab import jobs, train, workloads
from ctld_lab.checkpoints import load_checkpoint, save_checkpoint
from ctld_lab.control import Control
from ctld_lab.methods import evaluation_steps
from ctld_lab.records import RecordError, RunDirectory
from ctld_lab.workloads.sda import SdA

BASE = {
    "kind": "train",
    "study": "test",
    "scale": "smoke",
    "role": "final",
    "variant": "tuned",
    "seed": 3,
    "data": {},
    "workload": {"name": "tiny"},
    "exploration_steps": 12,
    "steps": [20, 15],
    "evaluations": 4,
    "checkpoint_seconds": 1e9,
}
OPTIONS = {
    "ctld": {"lr": 0.05, "momentum": 0.5, "temperature": 0.1, "tempering": {"depth": 0.7, "width": 0.05}},
    "sgd": {"lr": 0.05, "momentum": 0.9},
    "adam": {"lr": 0.01},
    "santa": {"lr": 1e-4},
    "anneal_sgd": {"lr": 0.05},
    "sghmc": {"lr": 0.01},
    "csghmc": {"lr": 0.01},
}


class Tiny:
    """Two stages of a regression whose noise comes from torch's global generator, as dropout's does."""

    stages = 2
    num_data = 100
    broken_at: int | None = None

    def __init__(self):
        self.layers = torch.nn.ModuleList(torch.nn.Linear(5, 3) for _ in range(2))
        generator = torch.Generator().manual_seed(1)
        for parameter in self.layers.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        self.stage = 0
        self.carried = torch.zeros(3)

    def begin(self, stage):
        self.stage = stage
        return list(self.layers[stage].parameters())

    def loss(self, step):
        inputs = torch.linspace(-1, 1, 20).view(4, 5) + 0.1 * step
        output = torch.nn.functional.dropout(self.layers[self.stage](inputs), 0.2) + self.carried
        self.carried = output.detach()[0]
        loss = output.square().mean()
        return loss * math.nan if self.broken_at is not None and step >= self.broken_at else loss

    def evaluate(self, *, thorough):
        with torch.no_grad():
            size = float(self.layers[self.stage].weight.square().sum())
        return {"train": {"mse": size}, "test": {"mse": size + thorough}}

    def epochs(self, step):
        return step / 25

    def num_parameters(self):
        return 36

    def state(self):
        return {"layers": dict(self.layers.state_dict()), "carried": self.carried}

    def load_state(self, state):
        self.layers.load_state_dict(state["layers"])
        self.carried = state["carried"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(workloads, "build", lambda config: Tiny())
    state = torch.get_rng_state()
    yield Tiny
    torch.set_rng_state(state)
    Tiny.broken_at = None


def execute(path, method="sgd", control=None, **changes):
    run = RunDirectory(path)
    run.prepare(BASE | {"method": method, "optimizer": OPTIONS[method]} | changes)
    state = jobs.execute(path, threads=1, control=control or Control())
    if state == "failed":
        raise AssertionError(run.failure()["traceback"])
    return run, state


def record(run):
    """All that a run left, times excepted."""
    metrics, result = run.metrics(), dict(run.result())
    for line in (*metrics, result):
        assert set(line.pop("seconds")) == {"train", "evaluate", "log", "prepare"}
    return metrics, run.trace(), result


@pytest.mark.parametrize("method", OPTIONS)
def test_interrupted_anywhere_it_ends_in_the_same_bits(tmp_path, method):
    whole, _ = execute(tmp_path / "whole", method)
    stopped = tmp_path / "stopped"
    states = []
    for looks in itertools.cycle((3, 11, 1, 6)):
        run, state = execute(stopped, method, StopAt(looks))
        states.append(state)
        if state == "done":
            break
        assert not (stopped / "result.json").exists()
    assert len(states) > 4
    assert record(run) == record(whole)
    assert not run.checkpoint.exists()


def test_in_bfloat16_it_ends_in_the_same_bits_and_in_others_than_in_full_precision(tmp_path, monkeypatch):
    """The state that the text's network carries from step to step stays in the number format of its parameters."""
    text = np.random.default_rng(1).integers(97, 103, 3000, dtype=np.uint8)

    def build(config):
        sizes = {"hidden": 7, "layers": 2, "batch_size": 5, "length": 9, "curve_characters": 100}
        alphabet = np.arange(97, 103, dtype=np.uint8)
        return workloads.CharLSTM(text, text[:900], alphabet=alphabet, held_out_name="test", seed=3, **sizes)

    monkeypatch.setattr(workloads, "build", build)
    options = {"steps": [20], "autocast": "bfloat16", "keep_parameters": True}
    whole, _ = execute(tmp_path / "whole", "ctld", **options)
    run, state = execute(tmp_path / "stopped", "ctld", StopAt(9), **options)
    assert state == "interrupted"
    assert {part.dtype for part in load_checkpoint(run.checkpoint)["workload"]["carried"]} == {torch.float32}
    run, _ = execute(tmp_path / "stopped", "ctld", **options)
    assert record(run) == record(whole)
    full, _ = execute(tmp_path / "full", "ctld", **options | {"autocast": None})
    file = "parameters.safetensors"
    assert (run.path / file).read_bytes() == (whole.path / file).read_bytes() != (full.path / file).read_bytes()


def test_killed_between_checkpoints_it_ends_in_the_same_bits(tmp_path, monkeypatch):
    """A kill is a run that never gets to the end: lines are written that no checkpoint vouches for."""
    whole, _ = execute(tmp_path / "whole", "ctld")

    class Killed(BaseException):
        pass

    def until(count):
        counts = itertools.count()
        step = ctld.CTLD.step

        def dying(self, *arguments, **options):
            if next(counts) == count:
                raise Killed
            return step(self, *arguments, **options)

        return dying

    path = tmp_path / "killed"
    with pytest.raises(Killed), monkeypatch.context() as patch:
        patch.setattr(ctld.CTLD, "step", until(9))
        execute(path, "ctld", checkpoint_seconds=0.0)
    kept = (path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(Killed), monkeypatch.context() as patch:
        patch.setattr(ctld.CTLD, "step", until(4))
        execute(path, "ctld", checkpoint_seconds=0.0)
    (path / "checkpoint.safetensors").write_bytes(kept)  # as if the last four steps had left lines, and no checkpoint
    with (path / "trace.jsonl").open("ab") as file:
        file.write(b'{"step": 1')
    run, _ = execute(path, "ctld", checkpoint_seconds=0.0)
    assert record(run) == record(whole)


def test_a_run_that_is_done_is_left_alone(tmp_path, monkeypatch):
    run, _ = execute(tmp_path)
    monkeypatch.setattr(train, "run", lambda *_: pytest.fail("it ran again"))
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert execute(tmp_path)[1] == "done"
    assert before == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert run.environment()["attempts"] == 1


def test_changing_the_method_changes_neither_weights_nor_batches_nor_dropout(tmp_path, monkeypatch):
    seen = {}

    class Watched(SdA):
        def loss(self, step):
            made = super().loss(step)
            masks = self.stacks[self._stage].code_dropout.generator.bit_generator.state
            seen[method].append((self._stage, self.batches.rows(self._stage, step).tolist(), str(masks)))
            return made

    def build(config):
        images = np.random.default_rng(0).integers(0, 256, (90, 784), dtype=np.uint8)
        return Watched(images, images, held_out_name="test", seed=config["seed"], widths=(784, 6, 4), batch_size=20)

    monkeypatch.setattr(workloads, "build", build)
    for method in ("sgd", "ctld", "adam", "santa"):
        seen[method] = []
        execute(tmp_path / method, method)
    assert len(seen["sgd"]) == 35
    assert seen["sgd"] == seen["ctld"] == seen["adam"] == seen["santa"]
    first = [RunDirectory(tmp_path / method).metrics()[0]["train"] for method in seen]
    assert first[0] == first[1] == first[2] == first[3]
    method = "another seed"
    seen[method] = []
    execute(tmp_path / method, "sgd", seed=4)
    assert seen[method][0] != seen["sgd"][0]


def test_metrics_are_taken_where_they_should_be(tmp_path):
    run, _ = execute(tmp_path)
    lines = run.metrics()
    assert [(line["stage"], line["stage_step"]) for line in lines] == [
        *((1, step) for step in (0, 5, 10, 15, 20)),
        *((2, step) for step in (0, 4, 8, 11, 15)),
    ]
    assert [line["step"] for line in lines][-2:] == [31, 35]
    result = run.result()
    assert (result["steps"], result["num_data"], len(result["stages"])) == (35, 100, 2)
    assert result["test"] == result["stages"][1]["test"]
    assert result["test"]["mse"] == lines[-1]["train"]["mse"] + 1  # all data count at the end
    assert all(
        line["test"] == line["train"] for line in lines
    )  # and no point of a curve is of other data than the rest


def test_ctld_leaves_a_trace_of_its_exploration(tmp_path):
    run, _ = execute(tmp_path, "ctld")
    trace = run.trace()
    assert [line["step"] for line in trace] == [*range(1, 13), *range(21, 33)]
    assert [line["stage"] for line in trace] == [1] * 12 + [2] * 12
    assert all(line["temperature_ratio"] >= 1.0 for line in trace)
    for number, stage in enumerate(run.result()["stages"], start=1):
        lines = [line for line in trace if line["stage"] == number]
        assert stage["temperature"] == 0.1
        assert stage["tempering"] == {
            "cold_share": np.mean([line["temperature_ratio"] == 1.0 for line in lines]),
            "share_outside": np.mean([abs(line["alpha"]) > 1.5 for line in lines]),
            "mean_ratio": pytest.approx(np.mean([line["temperature_ratio"] for line in lines])),
            "highest_ratio": max(line["temperature_ratio"] for line in lines),
        }
    assert run.result()["tempering"] == stage["tempering"]
    assert execute(tmp_path / "sgd")[0].trace() == []


def test_the_tempering_that_is_asked_for_is_the_one_in_force(tmp_path):
    training = train.Training(
        RunDirectory(tmp_path), BASE | {"method": "ctld", "optimizer": OPTIONS["ctld"]}, Control()
    )
    optimizer = training.build_optimizer(training.workload.begin(0))
    assert optimizer.tempering.scaling.depth == 0.7
    assert optimizer.tempering.bias.width == 0.05
    assert optimizer.tempering.step_size == pytest.approx(math.sqrt(0.05 / 100))


def test_every_stage_has_noise_of_its_own(tmp_path):
    training = train.Training(
        RunDirectory(tmp_path), BASE | {"method": "ctld", "optimizer": OPTIONS["ctld"]}, Control()
    )
    first = training.build_optimizer(training.workload.begin(0)).seed
    training.stage = 1
    assert training.build_optimizer(training.workload.begin(1)).seed != first


def test_a_schedule_is_a_function_of_the_step(tmp_path):
    schedule = {"every": 8, "factor": 0.5}
    run, _ = execute(tmp_path / "whole", schedule=schedule)
    assert [line["lr"] for line in run.metrics()] == [0.05, 0.05, 0.025, 0.025, 0.0125, 0.05, 0.05, 0.05, 0.025, 0.025]
    while execute(tmp_path / "stopped", control=StopAt(5), schedule=schedule)[1] != "done":
        pass
    assert record(RunDirectory(tmp_path / "stopped")) == record(run)


@pytest.mark.parametrize("method", ["sgd", "ctld"])
def test_divergence_is_a_result(tmp_path, tiny, method):
    tiny.broken_at = 7
    run, state = execute(tmp_path, method)
    assert state == "done"
    assert run.result()["diverged"] is True
    assert "test" not in run.result()


def test_exploration_that_runs_away_is_a_result(tmp_path, monkeypatch):
    """Momenta that overflow are found by the Hamiltonian, and not by the loss."""
    heard = []
    step = ctld.CTLD.step

    def watched(self, *arguments, **options):
        try:
            return step(self, *arguments, **options)
        except Exception as error:
            heard.append(type(error))
            raise

    monkeypatch.setattr(ctld.CTLD, "step", watched)
    run, state = execute(tmp_path, "ctld", optimizer=OPTIONS["ctld"] | {"lr": 1e17})
    assert heard == [FloatingPointError]
    assert state == "done"
    assert run.result()["diverged"] is True


def test_clipping_is_by_element(tmp_path, monkeypatch):
    largest = []
    monkeypatch.setattr(
        ctld.optimizers.SGD,
        "step",
        lambda self, closure=None, *, loss=None: largest.append(
            max(float(parameter.grad.abs().max()) for group in self.param_groups for parameter in group["params"])
        ),
    )
    execute(tmp_path, clip=0.01)
    assert max(largest) == pytest.approx(0.01)


def test_a_broken_checkpoint_fails_with_the_remedy(tmp_path):
    execute(tmp_path, control=StopAt(5))
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nonsense")
    assert jobs.execute(tmp_path, threads=1, control=Control()) == "failed"
    run = RunDirectory(tmp_path)
    assert "remove it, and the run starts anew" in run.failure()["error"]
    run.checkpoint.unlink()
    assert jobs.execute(tmp_path, threads=1, control=Control()) == "done"
    assert run.failure() is None
    assert record(run) == record(execute(tmp_path / "whole")[0])


def test_a_checkpoint_of_another_run_is_refused_and_empties_no_file(tmp_path):
    run, _ = execute(tmp_path / "run", control=StopAt(5))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    state = load_checkpoint(run.checkpoint)
    lengths = state.pop("lengths")
    save_checkpoint(run.checkpoint, state)
    assert jobs.execute(run.path, threads=1, control=Control()) == "failed"
    assert "does not fit this run" in run.failure()["error"]
    save_checkpoint(run.checkpoint, state | {"lengths": lengths | {"../victim": 0, str(victim): 0}})
    assert jobs.execute(run.path, threads=1, control=Control()) == "done"
    assert victim.read_text() == "precious"
    with pytest.raises(RecordError, match="no file of"):
        run.cut("../victim", 0)


def test_what_a_killed_writer_left_is_cleaned_up(tmp_path):
    execute(tmp_path)
    for name in (".checkpoint.safetensors.1.unfinished", "checkpoint.safetensors", "progress.json"):
        (tmp_path / name).touch()
    assert jobs.execute(tmp_path, threads=1, control=Control()) == "done"
    names = {"config.json", "environment.json", "metrics.jsonl", "trace.jsonl", "result.json"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_full_disk_fails_the_run_and_no_more(tmp_path, monkeypatch):
    RunDirectory(tmp_path).prepare(BASE | {"method": "sgd", "optimizer": OPTIONS["sgd"]})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ctld_lab.files.write_bytes", full)
    assert jobs.execute(tmp_path, threads=1, control=Control()) == "failed"


def test_a_run_that_goes_on_under_another_commit_says_so(tmp_path, monkeypatch):
    execute(tmp_path, control=StopAt(5))
    monkeypatch.setattr(jobs, "_commit", lambda: ("another", False))
    run, _ = execute(tmp_path)
    environment = run.environment()
    assert environment["commit"] != "another"
    assert [each["commit"] for each in environment["went_on_in"]] == ["another"]
    assert environment["attempts"] == 2


def test_records_are_plain_json(tmp_path):
    run, _ = execute(tmp_path, "ctld")
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{path.name} has {name}"))
    environment = run.environment()
    assert environment["threads"] == 1
    assert set(environment["versions"]) == {"ctld", "torch", "numpy", "python"}


def test_a_run_keeps_the_threads_that_it_began_with(tmp_path):
    before = torch.get_num_threads()
    try:
        execute(tmp_path, control=StopAt(3))
        assert jobs.execute(tmp_path, threads=2, control=Control()) == "done"
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert RunDirectory(tmp_path).environment() | {"threads": 1, "attempts": 2} == RunDirectory(tmp_path).environment()


def test_an_unknown_kind_is_refused(tmp_path):
    RunDirectory(tmp_path).prepare({"kind": "baking"})
    assert jobs.execute(tmp_path, threads=1, control=Control()) == "failed"
    assert "baking" in RunDirectory(tmp_path).failure()["error"]


@pytest.mark.parametrize(("steps", "count", "expected"), [(10, 2, {5, 10}), (3, 10, {0, 1, 2, 3}), (7, 1, {7})])
def test_evaluation_steps(steps, count, expected):
    assert evaluation_steps(steps, count) == expected


def test_lines_that_a_checkpoint_vouches_for_must_be_there(tmp_path):
    execute(tmp_path, control=StopAt(6))
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    assert jobs.execute(tmp_path, threads=1, control=Control()) == "failed"
    assert RecordError.__name__ in RunDirectory(tmp_path).failure()["error"]
