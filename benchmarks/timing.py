"""Times of several contenders that take turns on a machine which has other things to do as well.

All contenders run in one process, in an order that is shuffled in every round: whatever else the machine does, it does to
all of them. A round times a block of steps of each and divides by the reference's block of the same round; medians,
quartiles and intervals are over rounds. A block whose threads had to wait for a core (Linux counts that) is timed again,
since another program's slice of a core is longer than most blocks; if that does not help, the round does not count.
"""

import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ctld_lab.stopwatch import median_interval as enclosed_median
from ctld_lab.stopwatch import nanoseconds_waited

ATTEMPTS = 10
PATIENCE = 1.0
"""Seconds after which a block is not tried again: where everything waits, waiting does not help."""
UNDISTURBED = 0.02
"""Share of a block's time that its threads may spend waiting for a core."""
FEWEST_ROUNDS = 5


@dataclass(kw_only=True)
class Contender:
    """Something of which steps are timed; a subclass says how to run them."""

    every: int = 1
    """It takes part in one round of so many: most of the time goes to those that matter most."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Per step, by round."""
    waiting: dict[int, float] = field(default_factory=dict)
    """Share of each entry's time that threads spent waiting for a core."""
    parts: dict[int, float] = field(default_factory=dict)
    """Seconds per step of a part of the step, if `run` times one, by round."""
    part: float = 0.0
    """That of the last run."""

    def run(self, steps: int) -> float:
        """Seconds per step."""
        raise NotImplementedError

    def time_block(self, round_number: int, steps: int) -> None:
        """Of a few attempts, the first that hardly had to wait for a core, or the one that waited least."""
        made: list[tuple[float, float, float]] = []
        while len(made) < ATTEMPTS and steps * sum(seconds for _, seconds, _ in made) < PATIENCE:
            before = nanoseconds_waited()
            seconds = self.run(steps)
            share = 1e-9 * (nanoseconds_waited() - before) / (seconds * steps)
            made.append((share, seconds, self.part))
            if share < UNDISTURBED:
                break
        self.waiting[round_number], self.seconds[round_number], self.parts[round_number] = min(made)


def interleave(
    everyone: Sequence[Contender],
    *,
    steps: int | None = None,
    block_seconds: float = 0.005,
    rounds: int | None = None,
    budget: float = math.inf,
    label: str = "",
) -> int:
    """Time everyone in turns; returns how many rounds there were.

    Parameters
    ----------
    everyone : contenders
        Those with `every` = 1 are in all rounds, the reference among them.
    steps : int, optional
        In a block. Left out, as many for each as take `block_seconds`.
    rounds : int, optional
        Left out, as many as fit into `budget` seconds, and no fewer than FEWEST_ROUNDS.
    """
    if rounds is None and not math.isfinite(budget):
        raise ValueError("there is no end to it: give rounds or a budget")
    order = random.Random(0)
    progress = Progress(label)
    chosen = []
    for contender in everyone:
        contender.run(2)  # allocates what the first steps allocate
        chosen.append(steps or max(1, round(block_seconds / _fastest(contender, 4 * block_seconds))))
    blocks = list(zip(everyone, chosen, strict=True))
    start, done = time.perf_counter(), 0

    def another() -> bool:
        if rounds is not None:
            return done < rounds
        return done < FEWEST_ROUNDS or (time.perf_counter() - start) * (done + 1) / done < budget

    while another():
        present = [block for block in blocks if done % block[0].every == 0]
        for contender, count in order.sample(present, len(present)):
            contender.run(1)  # its memory is in the caches again
            contender.time_block(done, count)
        done += 1
        progress.show(f"round {done}" + (f" of {rounds}" if rounds else ""))
    progress.show(f"{done} rounds in {time.perf_counter() - start:.0f} s", last=True)
    return done


def _fastest(contender: Contender, patience: float) -> float:
    """Seconds per step, roughly: of a few runs the fastest is the least disturbed."""
    made: list[float] = []
    while len(made) < 5 and 2 * sum(made) < patience:
        made.append(contender.run(2))
    return min(made)


def calm_rounds(contender: Contender, reference: Contender) -> list[int]:
    """Rounds in which neither had to wait for a core; if there are hardly any, all rounds."""
    rounds = list(contender.seconds)
    calm = [each for each in rounds if max(contender.waiting[each], reference.waiting[each]) < UNDISTURBED]
    return calm if len(calm) >= FEWEST_ROUNDS else rounds


def summary(contender: Contender, reference: Contender) -> dict[str, Any]:
    """Time per step, and relative to the reference in the same round, over the rounds that count."""
    rounds = calm_rounds(contender, reference)
    ratios = [contender.seconds[each] / reference.seconds[each] for each in rounds]
    return {
        "rounds": len(rounds),
        "microseconds": quartiles([contender.seconds[each] for each in rounds], 1e6),
        "relative": quartiles(ratios),
        "interval": median_interval(ratios),
    }


def undisturbed_share(everyone: Sequence[Contender]) -> float:
    """Share of the blocks that were timed without having to wait for a core."""
    calm = [share < UNDISTURBED for contender in everyone for share in contender.waiting.values()]
    return round(statistics.fmean(calm), 3)


def quartiles(values: Sequence[float], unit: float = 1.0) -> dict[str, float]:
    """Lower quartile, median and upper quartile."""
    made = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * [values[0]]
    return {name: rounded(unit * value) for name, value in zip(("lower", "median", "upper"), made, strict=True)}


def median_interval(values: Sequence[float]) -> dict[str, float]:
    """The median, and the order statistics between which the true one lies in 95 % of all cases, whatever the law."""
    low, median, high = (rounded(value) for value in enclosed_median(values))
    return {"low": low, "median": median, "high": high}


def verdict(interval: dict[str, float], target: float) -> str:
    """Whether a ratio is at most its target, as far as the interval of its median can tell."""
    if interval["high"] <= target:
        return "met"
    return "not met" if interval["low"] > target else "undecided"


def rounded(value: float) -> float:
    """Five digits: more than the spread warrants, and a file that can be read."""
    return float(f"{value:.5g}")


class Progress:
    """A line on the terminal that is written over; elsewhere a line every quarter of a minute."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic()

    def show(self, text: str, *, last: bool = False) -> None:
        if not self.label or not (last or time.monotonic() >= self._next):
            return
        self._next = time.monotonic() + (0.2 if self._terminal else 15)
        start, end = ("\r\x1b[2K", "\n" if last else "") if self._terminal else ("", "\n")
        sys.stderr.write(f"{start}{self.label}: {text}{end}")
        sys.stderr.flush()
