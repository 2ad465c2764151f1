"""The methods, and the points at which each is tried: learning rates and momenta, and thirteen levels of one thing more."""

from dataclasses import dataclass, replace
from typing import Literal

from traps.problem import Problem

LEVELS = 13
"""Quarter decades over three decades, of T where there is noise."""
MOMENTA = (0.8, 0.95)
RUNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30)
"""Numbers of runs that share the budget of the restarts."""
PAIRS = 6
"""Learning rates times momenta."""
CYCLES = 4
SHARE = 0.6
"""Share of a run, or of a cycle, that explores."""


@dataclass(frozen=True)
class Method:
    """A way to spend the budget of gradients."""

    name: str
    title: str
    temperature: Literal["constant", "falling", "driven", "paper", "calibrated"] | None = None
    """The course of T during exploration; None where nothing explores."""
    cycles: int = 1
    keep: Literal["state", "best", "new"] = "state"
    """The start of a cycle: where the last one ended, at the best end so far, or with new weights."""
    adam: bool = False


@dataclass(frozen=True)
class Setting:
    """One point of a design: a row of a computation."""

    lr: float
    momentum: float
    temperature: float = 0.0
    """T/N, in units of the loss."""
    runs: int = 1
    fading: float = 1.0
    """lr at the end, relative to lr at the beginning; exponential between."""


def _cycles() -> list[Method]:
    kept = {"state": "state kept", "best": "best kept", "new": "new weights"}
    kinds: tuple[Literal["constant", "falling"], ...] = ("constant", "falling")
    keeps: tuple[Literal["state", "best", "new"], ...] = ("state", "best", "new")
    return [
        Method(f"cycles-{keep}-{kind}", f"cycles, {kept[keep]}, {kind} T", kind, CYCLES, keep)
        for keep in keeps
        for kind in kinds
    ]


METHODS = {
    method.name: method
    for method in [
        Method("sgd", "SGD-M"),
        Method("restarts", "SGD-M, restarts", keep="new"),
        Method("adam", "Adam", adam=True),
        Method("constant", "one pass, constant T", "constant"),
        Method("falling", "one pass, falling T", "falling"),
        Method("driven", "one pass, driven α", "driven"),
        Method("paper", "one pass, the paper's α", "paper"),
        Method("calibrated", "one pass, calibrated α", "calibrated"),
        *_cycles(),
    ]
}
ONE_PASS = [name for name, method in METHODS.items() if method.temperature and method.cycles == 1]
NOISY = [name for name, method in METHODS.items() if method.temperature]


def setting(problem: Problem, method: Method, pair: int, level: int) -> Setting:
    """Return the point of the design with this pair of learning rate and momentum and this level, both from 0 up."""
    if not (0 <= pair < PAIRS and 0 <= level < LEVELS):
        raise ValueError(f"there is no point ({pair}, {level}); pairs go to {PAIRS - 1}, levels to {LEVELS - 1}")
    rate, momentum = pair % 3, MOMENTA[pair // 3]
    step = 10.0 ** (level / 4.0)
    if method.adam:
        return Setting(problem.adam * step, momentum, fading=10.0**-rate)
    plain = Setting(problem.rates[rate], momentum, runs=method.cycles)
    if method.temperature:
        return replace(plain, temperature=problem.coldest * step)
    return replace(plain, runs=RUNS[level]) if method.keep == "new" else replace(plain, fading=1.0 / step)
