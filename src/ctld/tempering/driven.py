"""α on a timetable: a triangle wave between ±edge, uniform by construction.

It is a schedule of the temperature, and is called one: blind to the energy, and without a law that it samples. It is what fits
into the training of a large network, where a trip of an α that moves by itself would take longer than the training.
"""

import statistics
from typing import Any

from ctld.checks import integer, real
from ctld.tempering.control import TemperatureControl
from ctld.tempering.pieces import Scaling


class DrivenTemperature(TemperatureControl):
    """α(t) = edge·triangle(t/period): from 0 to edge, to −edge, and back to 0 in `period` steps.

    Parameters
    ----------
    period : int
        In steps. The temperature, which depends on |α|, goes up and down twice in a period.
    scaling : TemperatureScaling
        g.
    """

    remedy = (
        "a longer period, Tempering.constant(), or Tempering.calibrated() if modes are separate and parameters few, a "
        "thousand or less"
    )

    def __init__(self, period: int, scaling: Scaling) -> None:
        self.period = integer("period", period, at_least=1)
        self.scaling = scaling
        if scaling.edge is None:
            raise ValueError(f"scaling = {scaling!r} has no `edge`; a driven α goes from −edge to edge")
        self.edge: float = real("edge", scaling.edge, above=0)
        self.steps = 0

    @property
    def alpha(self) -> float:  # type: ignore[override]
        phase = self.steps % self.period / self.period
        return self.edge * (1.0 - abs(4.0 * ((phase + 0.25) % 1.0) - 2.0))

    @property
    def temperature_ratio(self) -> float:
        """1/g(α)."""
        return 1.0 / self.scaling.value(self.alpha)

    @property
    def mean_temperature_ratio(self) -> float:
        """⟨1/g⟩ over an α that is uniform in ±edge."""
        return statistics.fmean(1.0 / self.scaling.value(self.edge * (k + 0.5) / 1500) for k in range(1500))

    def end(self, hamiltonian: float, normal: float, hamiltonian_variance: float = 0.0) -> None:
        """Go to the next entry of the timetable; there is no force."""
        self.steps += 1

    def restart(self) -> None:
        """α returns to 0, where a cycle begins."""
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "period": self.period, "edge": self.edge}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["edge"] != self.edge:
            raise ValueError(
                f"the state has alpha within ±{state_dict['edge']:g}, this scaling ±{self.edge:g}; build the tempering as "
                "it was"
            )
        self.period = integer("period", state_dict["period"], at_least=1)
        self.steps = integer("steps", state_dict["steps"], at_least=0)

    def __repr__(self) -> str:
        return f"Tempering.driven({self.period}, scaling={self.scaling!r})"
