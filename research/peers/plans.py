"""What is searched, on which problems, and how much is computed."""

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
    """Ends of the ranges: "lr of sgd", "weight_decay of sgd" and so on, and third options by their names."""
    trials: int = 8
    seeds: int = 5
    reference: int = 5
    """Networks of the reference, a deep ensemble whose networks have all the gradients each."""
    small: bool = False

    def searched(self, method: str) -> dict[str, Ends]:
        """Return the ranges of lr, weight decay, and a third option where the method has one."""
        row = EVERY[method]
        ranges = {name: self.spaces[f"{name} of {row.rates}"] for name in ("lr", "weight_decay")}
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


SHARED = {"dropout": (0.02, 0.5), "rho": (0.01, 0.3), "hess_init": (0.05, 1.0), "prior_precision": (10.0, 1e5)}
DIGITS = SHARED | {
    "lr of sgd": (0.03, 0.3), "lr of adamw": (2e-4, 2e-3), "lr of ivon": (0.1, 1.0),
    "weight_decay of sgd": (1e-4, 1e-2), "weight_decay of adamw": (0.05, 5.0), "weight_decay of ivon": (1e-4, 1e-2),
    "temperature": (1e-3, 1e-1),
    "lr of adam": (2e-4, 2e-3), "weight_decay of adam": (1e-4, 1e-2),
    "lr of santa": (3e-7, 3e-6), "weight_decay of santa": (1e-4, 1e-2), "epsilon": (1e-3, 1e-1),
    "lr of tu_sghmc": (1e-3, 1e-2), "weight_decay of tu_sghmc": (1e-4, 1e-2),
}  # fmt: skip
ALL_DIGITS = DIGITS | {
    "weight_decay of sgd": (1e-5, 1e-3), "weight_decay of adamw": (0.02, 2.0), "weight_decay of ivon": (1e-5, 1e-3),
    "temperature": (3e-3, 3e-1), "weight_decay of adam": (1e-5, 1e-3), "weight_decay of santa": (1e-5, 1e-3),
}  # fmt: skip
WINE = SHARED | {
    "lr of sgd": (0.01, 0.1), "lr of adamw": (3e-4, 3e-3), "lr of ivon": (0.03, 0.3),
    "weight_decay of sgd": (1e-3, 1e-1), "weight_decay of adamw": (0.03, 3.0), "weight_decay of ivon": (1e-3, 1e-1),
    "temperature": (1e-2, 1.0),
    "lr of adam": (3e-4, 3e-3), "weight_decay of adam": (1e-3, 1e-1),
    "lr of santa": (1e-4, 1e-3), "weight_decay of santa": (1e-3, 1e-1), "epsilon": (1e-2, 1.0),
    "lr of tu_sghmc": (5e-4, 5e-3), "weight_decay of tu_sghmc": (1e-3, 1e-1),
}  # fmt: skip
TEXT = SHARED | {
    "lr of sgd": (0.6, 6.0), "lr of adamw": (2e-3, 2e-2), "lr of ivon": (0.6, 6.0),
    "weight_decay of sgd": (1e-7, 1e-5), "weight_decay of adamw": (1e-3, 0.1), "weight_decay of ivon": (1e-7, 1e-5),
    "temperature": (1e-2, 1.0),
    "lr of adam": (2e-3, 2e-2), "weight_decay of adam": (1e-7, 1e-5),
    "lr of santa": (1e-4, 1e-3), "weight_decay of santa": (1e-7, 1e-5), "epsilon": (1e-4, 1e-2),
}  # fmt: skip
PLANS: dict[str, dict[str, Plan]] = {
    "smoke": {
        "digits5k": Plan(Size(12, 200, 100, 200, 32, cycles=2, width=8), DIGITS, 2, 2, 2, small=True),
        "wine": Plan(Size(12, 100, 30, 40, 16, cycles=2, width=8), WINE, 2, 2, 2, small=True),
        "text": Plan(Size(6, 40, 8, 8, 4, cycles=2, width=8, clip=5.0), TEXT, 2, 2, 2, small=True),
    },
    "laptop": {
        "wine": Plan(Size(3000, 849, 170, 340, 64, width=50), WINE),
        "digits5k": Plan(Size(6000, 5000, 5000, 10_000, 128), DIGITS),
        "digits60k": Plan(Size(9000, 55_000, 5000, 10_000, 128), ALL_DIGITS),
        "text": Plan(Size(960, 50_000, 2000, 2000, 50, width=64, clip=5.0), TEXT),
    },
}
