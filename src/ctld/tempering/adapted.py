"""A temperature that whoever watches the run raises or lowers, up to T."""

from typing import Any

from ctld.checks import real
from ctld.tempering.control import TemperatureControl


class AdaptedTemperature(TemperatureControl):
    """Temperature ratio·T; `change` multiplies the ratio, which never exceeds 1.

    `ctld.Ensemble` changes it by what the noise undoes of what training has gained: how much a network bears depends on its
    curvature, which no formula in lr and N knows beforehand.
    """

    def __init__(self, ratio: float = 0.1) -> None:
        self._ratio = min(real("ratio", ratio, above=0), 1.0)

    @property
    def temperature_ratio(self) -> float:
        return self._ratio

    @property
    def mean_temperature_ratio(self) -> float:
        """Return the highest value that the ratio will have, by which T is chosen."""
        return 1.0

    def change(self, factor: float) -> None:
        """Multiply the ratio by `factor`, and keep it at 1 or below."""
        self._ratio = min(self._ratio * real("factor", factor, above=0), 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"temperature_ratio": self._ratio}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        ratio = real("temperature_ratio", state_dict["temperature_ratio"], above=0)
        if ratio > 1:
            raise ValueError(f"temperature_ratio = {ratio:g} is out of range; it is at most 1")
        self._ratio = ratio

    def __repr__(self) -> str:
        return f"AdaptedTemperature({self._ratio:g})"
