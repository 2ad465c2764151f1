"""The one training loop: data → loss → step → record → evaluate → checkpoint, the same for every method and workload.

Clocks run apart: training, evaluation, logging with checkpoints, and what comes before the first step of a stage. A run is a
function of its configuration (and of the number of threads, since sums depend on it): killed at any moment, it goes on from
its last checkpoint to the same bits.
"""

import math
import time
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

import ctld
from ctld import NonFiniteError
from ctld.ensembles import SampleCollector
from ctld_lab import methods, workloads
from ctld_lab.checkpoints import load_newest, save_checkpoint
from ctld_lab.control import Control, Interrupted
from ctld_lab.heat import Heat
from ctld_lab.records import Appender, RecordError, RunDirectory
from ctld_lab.streams import stream_seed

NOTHING = nullcontext()
LINES = ("metrics.jsonl", "trace.jsonl")
Splits = dict[str, dict[str, float]]


class Diverged(Exception):
    """The loss is no longer a number. That is a result, not a failure."""


def run(directory: RunDirectory, config: dict[str, Any], control: Control) -> dict[str, Any]:
    """Train as `config` says and return what came out; goes on from a checkpoint if there is one."""
    training = Training(directory, config, control)
    # A weight that decays without a gradient ends in numbers so small that a processor takes a hundred times as long for them.
    torch.set_flush_denormal(bool(config.get("flush_denormals")))
    with warnings.catch_warnings():
        # What CTLD warns of (no prior, α outside) is the study's own choice, or is recorded in the result.
        warnings.simplefilter("ignore", UserWarning)
        try:
            training.restore()
            control.saves = True
            while training.stage < training.workload.stages:
                training.train_stage()
            return training.result(diverged=False)
        except Diverged:
            return training.result(diverged=True)
        finally:
            control.saves = False
            torch.set_flush_denormal(False)
            training.close()


class Training:
    """A run in progress. What `save` stores decides everything that is still to come."""

    # What a stage has; `begin_stage` sets them.
    stage_steps: int
    evaluations: frozenset[int]
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    tempered: ctld.CTLD | None

    def __init__(self, directory: RunDirectory, config: dict[str, Any], control: Control) -> None:
        self.directory, self.config, self.control = directory, config, control
        self._ticked = self._saved = time.perf_counter()
        self.clocks = {"train": 0.0, "evaluate": 0.0, "log": 0.0, "prepare": 0.0}
        self.seed = int(config["seed"])
        self.schedule: Any = config.get("schedule")
        self.clip: float | None = config.get("clip")
        self.autocast = torch.bfloat16 if config.get("autocast") else None
        self.checkpoint_seconds = float(config["checkpoint_seconds"])
        cycle_steps = config["optimizer"].get("cycle_steps")
        cycles = config["steps"][0] // cycle_steps if cycle_steps else 1
        self.trace_every = max(1, cycles * config["exploration_steps"] // 1000)
        self.all_steps = int(sum(config["steps"]))
        self.workload = workloads.build(config)
        self.members, self.kept_steps = None, frozenset(map(int, config.get("members", {}).get("steps", ())))
        if "members" in config:  # part of the checkpoint: a run that goes on has the members that it would have had
            at_most = len(self.kept_steps) * self.workload.stages
            self.members = SampleCollector(self.workload.model, None, at_most=at_most)
        self.stage = self.stage_step = 0
        self.ends: list[dict[str, Any]] = []  # the last evaluation of each stage that is done
        self.heat = Heat()
        self._resumed: dict[str, Any] | None = None  # state of an optimizer that is still to be built
        self.lines: tuple[Appender, ...] = ()  # of metrics and trace, once the checkpoint has been read
        # Nothing but dropout draws from torch's global generator.
        torch.manual_seed(stream_seed(self.seed, "dropout"))

    # ---- one stage ----

    def train_stage(self) -> None:
        """Train from where the stage is to its end."""
        self.begin_stage()
        if self.stage_step == 0:
            self.evaluate()
        while self.stage_step < self.stage_steps:
            self.take_step()
        self.end_stage()

    def begin_stage(self) -> None:
        """Everything that a stage's steps need."""
        self.stage_steps = int(self.config["steps"][self.stage])
        self.evaluations = methods.evaluation_steps(self.stage_steps, self.config["evaluations"])
        self.parameters = self.workload.begin(self.stage)
        self.optimizer = self.build_optimizer(self.parameters)
        if self._resumed is not None:
            self.optimizer.load_state_dict(self._resumed)
            self._resumed = None
        self.tempered = self.optimizer if isinstance(self.optimizer, ctld.CTLD) else None
        self._tick("prepare")

    def end_stage(self) -> None:
        """Evaluate on all data: that is what counts, and no point of a learning curve, which sees less."""
        splits = self.workload.evaluate(thorough=True)
        self._check(splits)
        self.ends.append(splits | self._heat())
        self.stage, self.stage_step = self.stage + 1, 0
        self.heat = Heat()
        self._tick("evaluate")

    def take_step(self) -> None:
        """Data, loss, step; then whatever is due: a record, an evaluation, a checkpoint."""
        optimizer, tempered = self.optimizer, self.tempered
        if self.schedule is not None:
            rate = self.config["optimizer"]["lr"] * methods.relative_rate(self.schedule, self.stage_step)
            for group in optimizer.param_groups:
                group["lr"] = rate
        with torch.autocast("cpu", self.autocast) if self.autocast else NOTHING:
            loss = self.workload.loss(self.stage_step)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip is not None:
            nn.utils.clip_grad_value_(self.parameters, self.clip)  # each element, as char-rnn does
        exploring = tempered is not None and tempered.exploring
        try:
            optimizer.step(loss=loss)  # type: ignore[call-overload]
        except (NonFiniteError, FloatingPointError, OverflowError):
            raise Diverged from None
        self.stage_step += 1
        if self.members is not None and self.stage_step in self.kept_steps:
            self.members.collect(step=self.step)
        if tempered is not None and exploring:
            self._record_heat(tempered)
        self.control.tell(self.directory, self.step, self.all_steps)
        if self.stage_step in self.evaluations:
            self._tick("train")
            self.evaluate()
        stopping = self.control.stopping
        if stopping or time.perf_counter() - self._saved > self.checkpoint_seconds:
            self._tick("train")
            self.save()
            if stopping:
                raise Interrupted

    def build_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return methods.build_optimizer(self.config, parameters, num_data=self.workload.num_data, stage=self.stage)

    # ---- records ----

    @property
    def step(self) -> int:
        """Steps taken over all stages."""
        return int(sum(self.config["steps"][: self.stage])) + self.stage_step

    def evaluate(self) -> None:
        """Append a line to the metrics; a loss that is no number ends the run."""
        splits = self.workload.evaluate(thorough=False)
        self._tick("evaluate")
        line = {
            "step": self.step,
            "stage": self.stage + 1,
            "stage_step": self.stage_step,
            "epoch": self.workload.epochs(self.stage_step),
            **splits,
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "seconds": dict(self.clocks),
        }
        self.lines[0].append(line)
        self.lines[0].flush()
        self._check(splits)
        self._tick("log")

    @staticmethod
    def _check(splits: Splits) -> None:
        if not all(math.isfinite(value) for split in splits.values() for value in split.values()):
            raise Diverged

    def _record_heat(self, optimizer: ctld.CTLD) -> None:
        line = self.heat.record(optimizer, traced=self.stage_step % self.trace_every == 0)
        if line is not None:
            self.lines[1].append({"step": self.step, "stage": self.stage + 1} | line)

    def _heat(self) -> dict[str, Any]:
        """Summary of the temperature of a stage; empty where the method has none."""
        return {} if self.tempered is None else self.heat.summary(self.tempered.temperature)

    def result(self, *, diverged: bool) -> dict[str, Any]:
        """Content of `result.json`."""
        judged = {} if diverged else self._judged()
        self._flush()
        if self.config.get("keep_parameters"):
            save_checkpoint(self.directory.path / "parameters.safetensors", self.workload.model.state_dict())
        self._tick("log")
        result: dict[str, Any] = {
            "steps": self.step,
            "diverged": diverged,
            "parameters": self.workload.num_parameters(),
            "num_data": self.workload.num_data,
        }
        result |= self._heat() if diverged else self.ends[-1] | judged
        if self.workload.stages > 1:
            result["stages"] = self.ends
        return result | {"seconds": dict(self.clocks)}

    def _judged(self) -> dict[str, Any]:
        """Score the members together and, as `last_…`, the last of them alone, which the model is from now on."""
        if self.members is None:
            return {}
        members, workload = [sample.state for sample in self.members], self.workload
        averages = bool(self.config["members"].get("average"))
        if averages:
            members = [workloads.mean_state(members)]
        splits = workloads.judged(workload, members)
        self._check(splits)
        workload.model.load_state_dict(members[-1])
        if averages:  # which is no model that training ended with
            splits["train"] = self.workload.evaluate(thorough=True)["train"]
            self._check(splits)
        self._tick("evaluate")
        return splits | {"members": len(members)}

    def _tick(self, clock: str) -> None:
        """Add the time since the last tick to `clock`."""
        now = time.perf_counter()
        self.clocks[clock] += now - self._ticked
        self._ticked = now

    # ---- checkpoints ----

    def save(self) -> None:
        """Lines first, to the disk; then, in one move, the checkpoint that vouches for them."""
        self._flush()
        self._tick("log")
        state = {
            "stage": self.stage,
            "stage_step": self.stage_step,
            "workload": self.workload.state(),
            "optimizer": self.optimizer.state_dict(),
            "generator": torch.get_rng_state(),
            "ends": self.ends,
            "heat": self.heat.state(),
            "members": None if self.members is None else self.members.state_dict(),
            "clocks": self.clocks,
            "lengths": {name: lines.length for name, lines in zip(LINES, self.lines, strict=True)},
        }
        save_checkpoint(self.directory.checkpoint, state)
        self._tick("log")
        self._saved = time.perf_counter()

    def restore(self) -> None:
        """Take up the newest good checkpoint; where there never was one, start from nothing."""
        path = self.directory.checkpoint
        state, note = load_newest(path) or ({}, "")
        lengths = dict.fromkeys(LINES, 0)
        try:
            if state:
                self._load(state)
                lengths = {name: int(state["lengths"][name]) for name in LINES}
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RecordError(
                f"the checkpoint of {path.parent} does not fit this run ({error}); remove its checkpoint*.safetensors, and the "
                "run starts anew"
            ) from error
        for name, length in lengths.items():
            self.directory.cut(name, length)
        self.lines = tuple(Appender(self.directory.path / name) for name in LINES)
        if note:
            self.directory.note(f"{note}, at step {self.step:,}")

    def _load(self, state: dict[str, Any]) -> None:
        self.stage, self.stage_step = int(state["stage"]), int(state["stage_step"])
        self.ends, self.clocks = state["ends"], state["clocks"]
        self.heat.load_state(state["heat"])
        if self.members is not None:
            self.members.load_state_dict(state["members"])
        self.workload.load_state(state["workload"])
        self._resumed = dict(state["optimizer"])
        torch.set_rng_state(state["generator"])

    def _flush(self) -> None:
        """Write lines to the disk."""
        for lines in self.lines:
            lines.flush(to_disk=True)

    def close(self) -> None:
        for lines in self.lines:
            lines.close()
