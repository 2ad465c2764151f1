"""A temperature that does not move: the control of every comparison."""

from typing import Any

from ctld.checks import real
from ctld.tempering.control import TemperatureControl


class ConstantTemperature(TemperatureControl):
    """The temperature is ratio·T throughout.

    Parameters
    ----------
    ratio : float
        What stands in place of 1/g(α). The mean of the paper's, over uniform α, is
        `Tempering.paper(...).mean_temperature_ratio`.
    """

    def __init__(self, ratio: float = 1.0) -> None:
        self._ratio = real("ratio", ratio, above=0)

    @property
    def temperature_ratio(self) -> float:
        return self._ratio

    def state_dict(self) -> dict[str, Any]:
        return {"temperature_ratio": self._ratio}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._ratio = real("ratio", state_dict["temperature_ratio"], above=0)

    def __repr__(self) -> str:
        return f"Tempering.constant({self._ratio:g})"
