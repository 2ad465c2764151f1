"""Collapse watch: notices a run that is being lost to its own noise, before its models go into an average.

Three signs, none of which costs a look at a device more often than every `WINDOW` steps. Exploration at a loss far above
that of the start has undone all training. A cycle that gives back a quarter of what training had gained has collapsed, and
its model is not worth keeping. Weights whose size grows by far more than the noise can explain run away.

It also says how to change the temperature: noise is worth its price until exploring undoes a tenth of what training has gained.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ctld.checks import real, warn_user
from ctld.ensembles.samples import bounded, whole
from ctld.stepping.foreach import wide_dtype

WINDOW = 20  # steps over which the loss of the exploration is averaged
START_STEPS = 5  # steps whose mean loss is that of the start
GIVEN_BACK = 0.25  # of what training had gained
UNDONE = 0.1  # of what training has gained, while exploring: to this the temperature is adapted
STRONGEST = (0.1, 3.0)  # factors on the temperature from one cycle to the next
BRAKE = 0.25  # and within a cycle, where exploring undoes half
RUNAWAY = 3.0  # times the size that the noise explains
FIRST_RUNAWAY = 10.0  # in the first cycle, which starts from small weights


class MeanLoss:
    """A mean that is read rarely: on a device it is summed there."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: float | Tensor = 0.0

    def add(self, loss: float | Tensor) -> None:
        if type(loss) is not float and isinstance(loss, Tensor):
            loss = loss.detach().reshape(()).to(wide_dtype(loss.device))
        self._sum = self._sum + loss
        self.count += 1

    def read(self) -> float:
        return float(self._sum) / self.count if self.count else math.nan

    def over_ranks(self, device: torch.device) -> float:
        """Return the mean over all processes, each of which has to call this."""
        mean = self.read()
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
            return mean
        shared = torch.tensor(mean, dtype=torch.float32, device=device)
        distributed.all_reduce(shared)
        return float(shared) / distributed.get_world_size()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "sum": float(self._sum)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count, self._sum = bounded("count", state_dict["count"]), float(state_dict["sum"])


class CollapseWatch:
    """Reads losses and sizes of weights along a run, warns once of each kind of trouble, and judges each cycle.

    Parameters
    ----------
    remedy : str
        What a user can do, the end of each warning.
    size : float
        RMS of the weights before training.
    device : device
        On which processes can tell each other their losses.
    guard : bool
        Whether a collapsed model is left out: a matter of what the warning says.
    """

    def __init__(self, remedy: str, size: float, device: torch.device, *, guard: bool) -> None:
        self._remedy = remedy
        self._guard = guard
        self._device = device
        self._start, self._window, self._late = MeanLoss(), MeanLoss(), MeanLoss()
        self._windows = self._hot_windows = 0
        self._best: float | None = None
        self._size = size
        self._warned: list[str] = []

    def hear(self, loss: float | Tensor, *, exploring: bool, late: bool = False) -> float:
        """Take in the loss of a step, `late` in the second half of an exploration; return a factor on the temperature."""
        if self._start.count < START_STEPS:
            self._start.add(loss)
        if not exploring:
            return 1.0
        if late:
            self._late.add(loss)
        self._window.add(loss)
        if self._window.count < WINDOW:
            return 1.0
        mean, self._window = self._window.over_ranks(self._device), MeanLoss()
        start, best = self._start.over_ranks(self._device), self._best
        self._windows += 1
        # A large lr may throw the first steps of a training far up by itself.
        limit = start + (abs(start) if best is None else max(0.1 * (start - best), abs(best)))
        self._hot_windows = 0 if mean <= limit else self._hot_windows + 1
        if self._hot_windows == 2:
            self._warn(
                "explored",
                f"exploration is at a loss of {mean:.3g}, far above the {start:.3g} at the start: what was learned is "
                "undone",
            )
        # In the first cycle there is nothing to undo yet; that it learns at all must be seen after a while.
        lost = mean > start if best is None else mean > best + 0.5 * self._scale(start, best)
        return BRAKE if lost and self._windows > 2 else 1.0

    def noise_ended(self, size: float, spread: float) -> None:
        """Take in the RMS of the weights at the end of an exploration whose noise spreads free weights by `spread`."""
        before, factor = self._size, RUNAWAY if self._best is not None else FIRST_RUNAWAY
        if not math.isfinite(size) or size > factor * math.hypot(before, spread):
            self._warn(
                "size",
                f"the weights run away: their RMS went from {before:.3g} to {size:.3g} in one exploration, where the noise "
                f"explains {math.hypot(before, spread):.3g}",
            )

    def cycle_ended(self, loss: float, size: float) -> tuple[bool, float]:
        """Return True if the model at the end of a cycle is worth keeping, and a factor on the temperature of the next."""
        start, hot = self._start.over_ranks(self._device), self._late.over_ranks(self._device)
        self._size, self._hot_windows, self._window, self._late = size, 0, MeanLoss(), MeanLoss()
        good = self._judge(loss, start)
        if self._best is None or not math.isfinite(hot):
            return good, 1.0
        allowed = UNDONE * self._scale(start, self._best)
        # What the noise undoes goes with T, and grows faster near the edge of stability: small steps from below.
        least, most = STRONGEST
        return good, max(min(allowed / max(hot - self._best, 1e-30), most), least)

    @staticmethod
    def _scale(start: float, best: float) -> float:
        """Return what training has gained; of a model that was trained before, its loss itself."""
        return max(start - best, abs(best), 1e-30)

    def _judge(self, loss: float, start: float) -> bool:
        best = self._best
        if best is None:
            if not loss < start:
                self._warn(
                    "cycle",
                    f"the first cycle ended at a loss of {loss:.3g}, no better than {start:.3g} at the start: "
                    "nothing was learned",
                )
            self._best = loss if math.isfinite(loss) else None
            return math.isfinite(loss)
        # Of a model that was trained before there may be nothing to give back; then its loss has to double.
        if not loss <= best + max(GIVEN_BACK * (start - best), abs(best)):
            left_out = "Its model is left out, and training goes on from the last one kept"
            kept = "Its model is kept all the same, since guard=False"
            lost = "Its model is left out, since nothing can be averaged with it"
            consequence = left_out if self._guard else kept if math.isfinite(loss) else lost
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
            "late": self._late.state_dict(),
            "windows": self._windows,
            "hot_windows": self._hot_windows,
            "best": self._best,
            "size": self._size,
            "warned": list(self._warned),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._start.load_state_dict(state_dict["start"])
        self._window.load_state_dict(state_dict["window"])
        self._late.load_state_dict(state_dict["late"])
        self._windows = bounded("windows", state_dict["windows"])
        self._hot_windows = bounded("hot_windows", state_dict["hot_windows"])
        best = state_dict["best"]
        self._best = None if best is None else real("best", best)
        self._size = float(state_dict["size"])
        self._warned = [str(kind) for kind in state_dict["warned"]]


def size_of_weights(parameters: list[Tensor] | list[nn.Parameter]) -> float:
    """Return the RMS of the parameters with two or more dimensions; of all, if there are none or they are zero.

    Every rank calls it: a sharded tensor is put together by all of them.
    """
    for chosen in ([p for p in parameters if p.dim() >= 2], list(parameters)):
        number = sum(p.numel() for p in chosen)
        total = sum(float(whole(p).to(wide_dtype(p.device)).square().sum()) for p in chosen) if number else 0.0
        if total:
            return math.sqrt(total / number)
    return 0.0
