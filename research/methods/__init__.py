"""Rivals of CTLD as methods of one's own, on the public base `ctld.optimizers.Sampler`.

    from methods import TACTHMC, ReSGLD, create      # research/ is on the path of what runs there

Both were in `ctld.OPTIMIZERS` until version 0.2. Their documented defects make them rivals to measure, not tools to hand out.
"""

from typing import Any

import ctld
from ctld.optimizers import Method
from methods.resgld import ReSGLD
from methods.tact_hmc import TACTHMC

__all__ = ["METHODS", "TACTHMC", "ReSGLD", "create"]

_OPTIONS: dict[str, Any] = {"needs": frozenset({"num_data"}), "needs_loss": True, "samples": True}
METHODS: dict[str, Method] = {
    "tact_hmc": Method(TACTHMC, "TACT-HMC", "Luo et al. 2018", **_OPTIONS),
    "resgld": Method(ReSGLD, "replica exchange", "Deng et al. 2020", **_OPTIONS),
}
"""Name → method, in the form of `ctld.OPTIMIZERS`."""


def create(name: str, params: Any, **options: Any) -> Any:
    """Return the optimizer of this name: one of `METHODS`, or one of `ctld.OPTIMIZERS`."""
    return METHODS[name].optimizer(params, **options) if name in METHODS else ctld.create(name, params, **options)
