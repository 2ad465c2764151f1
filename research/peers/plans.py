"""Plans of the searches: what is searched, on which problems, and how much is computed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from scipy.stats import qmc

from ctld_lab.streams import stream_seed

from .methods import EVERY
from .problems import Problem, Size, load

Ends = tuple[float, float]


@dataclass(frozen=True)
class Plan:
    """The size of a problem, what is searched, and how much of it."""

    size: Size
    spaces: Mapping[str, Ends]
    """Ends of the ranges: the rows of `RANGES` for this problem."""
    trials: int = 8
    seeds: int = 5
    reference: int = 5
    """Networks of the reference, a deep ensemble whose networks have all the gradients each."""
    small: bool = False

    def searched(self, method: str) -> dict[str, Ends]:
        """Return the ranges of lr, weight decay, and a third option where the method has one."""
        row = EVERY[method]
        decay = self.spaces.get(f"weight_decay of {row.rates}", self.spaces["weight_decay"])
        ranges = {"lr": self.spaces[f"lr of {row.rates}"], "weight_decay": decay}
        return ranges | ({row.third: self.spaces[row.third]} if row.third else {})

    def trial_options(self, method: str) -> list[dict[str, float]]:
        """Return Sobol points over the logarithms: the same points of the unit cube for every method."""
        ranges = self.searched(method)
        sobol = qmc.Sobol(3, scramble=True, seed=stream_seed(0, "tuning") % 2**31)
        points = [sobol.random(1)[0] for _ in range(self.trials)]  # several at once would warn at odd numbers
        return [
            {
                name: float(f"{low * (high / low) ** place:.3g}")
                for (name, (low, high)), place in zip(ranges.items(), point, strict=False)
            }
            for point in points
        ]

    def load(self, name: str, seed: int, *, tuning: bool) -> Problem:
        return load(name, self.size, seed, tuning=tuning, small=self.small)


RANGES = """
                             wine          digits5k      digits60k     text
lr of sgd                    0.01 0.1      0.03 0.3      0.03 0.3      0.6 6
lr of adamw                  3e-4 3e-3     2e-4 2e-3     2e-4 2e-3     2e-3 2e-2
lr of ivon                   0.03 0.3      0.1 1         0.1 1         0.6 6
lr of adam                   3e-4 3e-3     2e-4 2e-3     2e-4 2e-3     2e-3 2e-2
lr of santa                  1e-4 1e-3     3e-7 3e-6     3e-7 3e-6     1e-4 1e-3
lr of tu_sghmc               5e-4 5e-3     1e-3 1e-2     1e-3 1e-2     –
weight_decay                 1e-3 1e-1     1e-4 1e-2     1e-5 1e-3     1e-7 1e-5
weight_decay of adamw        0.03 3        0.05 5        0.02 2        1e-3 0.1
temperature                  1e-2 1        1e-3 1e-1     3e-3 3e-1     1e-2 1
epsilon                      1e-2 1        1e-3 1e-1     1e-3 1e-1     1e-4 1e-2
dropout                      0.02 0.5      0.02 0.5      0.02 0.5      0.02 0.5
rho                          0.01 0.3      0.01 0.3      0.01 0.3      0.01 0.3
hess_init                    0.05 1        0.05 1        0.05 1        0.05 1
prior_precision              10 1e5        10 1e5        10 1e5        10 1e5
"""
"""Ends of what is searched on each problem, on a logarithmic scale."""


def ranges(problem: str) -> dict[str, Ends]:
    head, *rows = [re.split(r"  +", line.strip()) for line in RANGES.strip().splitlines()]
    cells = {name: dict(zip(head, ends, strict=True))[problem].split() for name, *ends in rows}
    return {name: (float(ends[0]), float(ends[1])) for name, ends in cells.items() if len(ends) == 2}


PLANS: dict[str, dict[str, Plan]] = {
    "smoke": {
        name: Plan(size, ranges(name), trials=2, seeds=2, reference=2, small=True)
        for name, size in {
            "digits5k": Size(12, 200, 100, 200, 32, cycles=2, width=8),
            "wine": Size(12, 100, 30, 40, 16, cycles=2, width=8),
            "text": Size(6, 40, 8, 8, 4, cycles=2, width=8, clip=5.0),
        }.items()
    },
    "laptop": {
        name: Plan(size, ranges(name))
        for name, size in {
            "wine": Size(3000, 849, 170, 340, 64, width=50),
            "digits5k": Size(6000, 5000, 5000, 10_000, 128),
            "digits60k": Size(9000, 55_000, 5000, 10_000, 128),
            "text": Size(960, 50_000, 2000, 2000, 50, width=64, clip=5.0),
        }.items()
    },
}
