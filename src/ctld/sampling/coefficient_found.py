"""A learning coefficient as it was estimated: its error, its chains, and what says whether to believe it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctld.diagnostics.convergence import Convergence, convergence, to_arviz
from ctld.diagnostics.errors import Estimate


@dataclass(frozen=True)
class LearningCoefficient:
    """An estimate of λ, its standard error, and what says whether to believe it."""

    value: float
    error: float
    """Standard error, by batch means that know the autocorrelation."""
    kinetic_temperature: Estimate | None
    """Kinetic temperature of the chains, in units of the one asked for: 1 is right, above it the estimate is too high."""
    draws: NDArray[np.float64]
    """nβ(L(w) − L(w*)) in shape (chains, draws), each a mean over a stretch of the chain."""
    num_data: float
    nbeta: float
    localization: float
    lr: float
    remarks: tuple[str, ...]
    """Warnings that were given."""

    @property
    def convergence(self) -> Convergence:
        """R-hat and effective sample sizes of the loss over chains."""
        return convergence({"llc": self.draws})["llc"]

    @property
    def r_hat(self) -> float:
        """R-hat of the loss over chains: above 1.05 they have not mixed. NaN for one chain."""
        return float(self.convergence.r_hat) if len(self.draws) > 1 else math.nan

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        heat = self.kinetic_temperature
        hot = "" if heat is None else f", temperature {heat.mean:.3f}"
        return f"<LearningCoefficient {self.value:.4g} ± {self.error:.2g}, R-hat {self.r_hat:.3f}{hot}>"

    def to_arviz(self) -> Any:
        """Return the draws of nβ(L(w) − L(w*)) as ArviZ has them, under the name llc."""
        return to_arviz({"llc": self.draws})
