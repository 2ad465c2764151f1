"""Langevin dynamics at constant temperature by splittings of higher order than Euler's: BAOAB and UBU.

Target: exp(−(U + rᵀr/2)/T), U = N·(mean loss + prior). `ctld.stepping.integrators` has the equations of both.

On a Gaussian, with a = lr·curvature of the mean loss, the variance of θ divided by its target is 1 for BAOAB at any stable lr,
1 + a/12 for UBU, and 1/(1 − a/(2(1 + momentum))) for `Langevin`. One gradient a step for each of them.
"""

from functools import lru_cache
from typing import Any, ClassVar

from ctld.optimizers.langevin import Langevin
from ctld.stepping.integrators import planned
from ctld.stepping.sweep import Plan


class BAOAB(Langevin):
    """Langevin dynamics by the splitting of Leimkuhler and Matthews (2013); the parameters are `Langevin`'s.

    A step with a gradient that is not finite raises `NonFiniteError` and changes nothing, as in `CTLD`. The look takes time;
    `check_gradients = False`, on the optimizer, leaves it out.
    """

    integrator: ClassVar[str] = "baoab"
    check_gradients = True

    def _plan(self, group: dict[str, Any]) -> Plan:
        lr, momentum, variance = float(group["lr"]), float(group["momentum"]), self.temperature / self.num_data
        if lr == 0:
            return Plan(())  # neither θ nor r changes
        decay = float(group["weight_decay"])
        return _unmeasured(planned(self.integrator, lr, momentum, variance, decay, group["maximize"]))


class UBU(BAOAB):
    """Langevin dynamics by the splitting of Sanz-Serna and Zygalakis (2021); the parameters are `Langevin`'s.

    It follows the path of the exact dynamics to second order, which counts for averages over short runs.
    """

    integrator = "ubu"

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if float(group["momentum"]) == 0:
            raise ValueError("momentum must be above 0 for UBU, got 0. Give momentum=0.9, or take BAOAB")


@lru_cache(maxsize=256)
def _unmeasured(plan: Plan) -> Plan:
    """Return the plan without sums of energies, which nobody reads here."""
    return plan._replace(measure=False)
