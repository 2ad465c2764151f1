"""A run of milliseconds with a checkpoint of any size, for tests that break what a run leaves."""

import torch

from ctld_lab import jobs, workloads
from ctld_lab.control import Control
from ctld_lab.records import RunDirectory

CONFIG = {
    "kind": "train",
    "study": "test",
    "scale": "smoke",
    "role": "final",
    "variant": "tuned",
    "method": "ctld",
    "optimizer": {"lr": 0.05, "momentum": 0.5, "temperature": 0.1},
    "seed": 3,
    "data": {},
    "exploration_steps": 12,
    "steps": [30],
    "evaluations": 5,
    "checkpoint_seconds": 0.0,  # after each step
}


class Small:
    """A regression on `size` numbers; its checkpoint has eight bytes for each, and ten thousand besides."""

    stages = 1
    num_data = 100

    def __init__(self, size):
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, size))

    def begin(self, stage):
        return [self.weight]

    def loss(self, step):
        return torch.nn.functional.dropout(self.weight - 0.01 * step, 0.2).square().mean()

    def evaluate(self, *, thorough):
        value = float(self.weight.detach().square().sum())
        return {"train": {"mse": value}, "test": {"mse": value + thorough}}

    def epochs(self, step):
        return step / 25

    def num_parameters(self):
        return self.weight.numel()

    def state(self):
        return {"weight": self.weight.detach()}

    def load_state(self, state):
        with torch.no_grad():
            self.weight.copy_(state["weight"])


class StopAt(Control):
    """Asks to stop at the n-th look."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    @property
    def stopping(self):
        self.looks -= 1
        return self.looks < 0

    @stopping.setter
    def stopping(self, value):
        pass


def install(replace=setattr):
    replace(workloads, "build", lambda config: Small(config["workload"]["size"]))


def prepare(path, *, size=10, **changes):
    run = RunDirectory(path)
    run.prepare(CONFIG | {"workload": {"name": "small", "size": size}} | changes)
    return run


def execute(run, control=None):
    return jobs.execute(run.path, threads=1, control=control or Control())


def outcome(run):
    """All that a run left, times excepted."""
    metrics, result = run.metrics(), dict(run.result())
    for line in (*metrics, result):
        line.pop("seconds")
    return metrics, run.trace(), result


class AskedOnceBegun(Control):
    """Is asked to stop as soon as the run has begun; one that is asked earlier does not begin."""

    @property
    def stopping(self):
        return self.executing

    @stopping.setter
    def stopping(self, _):
        pass
