"""Notices a run that is being lost to its own noise, before its models go into an average.

Three signs, none of which costs a look at a device more often than every `WINDOW` steps. Exploration at a loss far above
that of the start has undone all training. A cycle that gives back a quarter of what training had gained has collapsed, and
its model is not worth keeping. Weights whose size grows by far more than the noise can explain run away.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ctld.checks import warn_user
from ctld.ensembles.samples import whole

WINDOW = 20  # steps over which the loss of the exploration is averaged
START_STEPS = 5  # steps whose mean loss is that of the start
GIVEN_BACK = 0.25  # of what training had gained
RUNAWAY = 3.0  # times the size that the noise explains
FIRST_RUNAWAY = 10.0  # in the first cycle, which starts from small weights


class MeanLoss:
    """A mean that is read rarely: on a device it is summed there."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: float | Tensor = 0.0

    def add(self, loss: float | Tensor) -> None:
        if isinstance(loss, Tensor):
            loss = loss.detach().reshape(()).to(torch.float32 if loss.device.type == "mps" else torch.float64)
        self._sum = self._sum + loss
        self.count += 1

    def read(self) -> float:
        return float(self._sum) / self.count if self.count else math.nan

    def over_ranks(self, parameter: Tensor) -> float:
        """Returns the mean over all processes, each of which has to call this."""
        mean = self.read()
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
            return mean
        shared = torch.tensor(mean, dtype=torch.float32, device=parameter.device)
        distributed.all_reduce(shared)
        return float(shared) / distributed.get_world_size()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "sum": float(self._sum)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count, self._sum = int(state_dict["count"]), float(state_dict["sum"])


class CollapseWatch:
    """Reads losses and sizes of weights along a run, warns once of each kind of trouble, and judges each cycle.

    Parameters
    ----------
    remedy : str
        What a user can do, the end of each warning.
    size : float
        RMS of the weights before training.
    guard : bool
        Whether a collapsed model is left out: a matter of what the warning says.
    """

    def __init__(self, remedy: str, size: float, *, guard: bool) -> None:
        self._remedy = remedy
        self._guard = guard
        self._start, self._window = MeanLoss(), MeanLoss()
        self._hot_windows = 0
        self._best: float | None = None
        self._size = size
        self._warned: list[str] = []

    def hear(self, loss: float | Tensor, *, exploring: bool) -> None:
        """Hears the loss of a step."""
        if self._start.count < START_STEPS:
            self._start.add(loss)
        if not exploring:
            return
        self._window.add(loss)
        if self._window.count < WINDOW:
            return
        mean, self._window = self._window.read(), MeanLoss()
        start = self._start.read()
        # A large lr may throw the first steps of a training far up by itself.
        limit = start + (abs(start) if self._best is None else max(0.1 * (start - self._best), abs(self._best)))
        self._hot_windows = 0 if mean <= limit else self._hot_windows + 1
        if self._hot_windows == 2:
            self._warn(
                "explored",
                f"exploration is at a loss of {mean:.3g}, far above the {start:.3g} at the start: its noise has undone what "
                "was learned",
            )

    def noise_ended(self, size: float, spread: float) -> None:
        """Hears the RMS of the weights at the end of an exploration whose noise spreads free weights by `spread`."""
        before, factor = self._size, RUNAWAY if self._best is not None else FIRST_RUNAWAY
        if not math.isfinite(size) or size > factor * math.hypot(before, spread):
            self._warn(
                "size",
                f"the weights run away: their RMS went from {before:.3g} to {size:.3g} in one exploration, where the noise "
                f"explains {math.hypot(before, spread):.3g}",
            )

    def cycle_ended(self, loss: float, size: float) -> bool:
        """Returns whether the model at the end of a cycle is worth keeping."""
        self._size, self._window, self._hot_windows = size, MeanLoss(), 0
        start, best = self._start.read(), self._best
        if best is None:
            if not loss < start:
                self._warn(
                    "cycle", f"the first cycle ended at a loss of {loss:.3g}, no better than {start:.3g} at the start"
                )
            self._best = loss if math.isfinite(loss) else None
            return math.isfinite(loss)
        # Of a model that was trained before there may be nothing to give back; then its loss has to double.
        if not loss <= best + max(GIVEN_BACK * (start - best), abs(best)):
            left_out = "Its model is left out, and training goes on from the last one kept"
            consequence = left_out if self._guard else "Its model is kept all the same, since guard=False"
            self._warn(
                "cycle",
                f"a cycle has collapsed: it ended at a loss of {loss:.3g}, after {best:.3g} in the best one before and "
                f"{start:.3g} at the start. {consequence}",
            )
            return False
        self._best = min(best, loss)
        return True

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.append(kind)
            warn_user(f"{message}. {self._remedy}")

    def state_dict(self) -> dict[str, Any]:
        return {
            "start": self._start.state_dict(),
            "window": self._window.state_dict(),
            "hot_windows": self._hot_windows,
            "best": self._best,
            "size": self._size,
            "warned": list(self._warned),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._start.load_state_dict(state_dict["start"])
        self._window.load_state_dict(state_dict["window"])
        self._hot_windows = int(state_dict["hot_windows"])
        self._best, self._size = state_dict["best"], float(state_dict["size"])
        self._warned = list(state_dict["warned"])


def size_of_weights(parameters: list[Tensor] | list[nn.Parameter]) -> float:
    """Returns the RMS of the parameters with two or more dimensions; of all, if there are none or they are zero.

    Every rank calls it: a sharded tensor is put together by all of them.
    """
    for chosen in ([p for p in parameters if p.dim() >= 2], list(parameters)):
        number = sum(p.numel() for p in chosen)
        total = sum(float(whole(p).double().square().sum()) for p in chosen) if number else 0.0
        if total:
            return math.sqrt(total / number)
    return 0.0
