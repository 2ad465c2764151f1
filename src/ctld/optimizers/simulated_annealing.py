"""Simulated annealing by Brownian dynamics (Geman and Hwang 1986; section 2.2 of the CTLD paper).

    θ ← θ − lr ∇(mean loss) + sqrt(2 lr T(t)/N) z,     T(t) = c/log(2 + t)  or  c/(a + t)^b

It minimises: the law exp(−U/T(t)) contracts to the global minimum, if T falls slowly enough.
"""

from typing import Any, Literal

from ctld.checks import real
from ctld.optimizers.sgld import SGLD
from ctld.schedules import Schedule, described, logarithmic_cooling, polynomial_cooling


class SimulatedAnnealing(SGLD):
    """SGLD whose temperature falls by a schedule; the other parameters are SGLD's.

    Parameters
    ----------
    cooling : "logarithmic", "polynomial" or a callable of the step
        T(t). The names are `logarithmic_cooling` and `polynomial_cooling` of `ctld.schedules` with `temperature` as c.
    temperature : float
        c; not used with a callable.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        cooling: Schedule | Literal["logarithmic", "polynomial"] = "polynomial",
        temperature: float = 1.0,
        **options: Any,
    ) -> None:
        self._scaled = not callable(cooling)
        if callable(cooling):
            self.cooling = cooling
        elif cooling in ("logarithmic", "polynomial"):
            self.cooling = (logarithmic_cooling if cooling == "logarithmic" else polynomial_cooling)(1.0)
        else:
            raise ValueError(
                f'cooling = {cooling!r} is unknown; give "logarithmic", "polynomial" or a function of the step'
            )
        super().__init__(params, lr, temperature=temperature, **options)

    @property
    def is_draw(self) -> bool:
        return False  # it minimises

    def _temperature_now(self) -> float:
        cooled = real("cooling(step)", self.cooling(self.steps), at_least=0)
        return cooled * (self.temperature if self._scaled else 1.0)

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"cooling": described(self.cooling)}
