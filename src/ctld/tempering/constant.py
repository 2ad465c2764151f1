"""A temperature that does not move: the control of every comparison."""

from typing import Any

from ctld.checks import real
from ctld.tempering.control import TemperatureControl


class ConstantTemperature(TemperatureControl):
    """Constant temperature ratio·T.

    Parameters
    ----------
    ratio : float
        What stands in place of 1/g(α). The mean of the paper's, over uniform α, is
        `Tempering.paper(...).mean_temperature_ratio`.
    """

    def __init__(self, ratio: float = 1.0) -> None:
        self._ratio = _checked_ratio(ratio)

    @property
    def temperature_ratio(self) -> float:
        return self._ratio

    def state_dict(self) -> dict[str, Any]:
        return {"temperature_ratio": self._ratio}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._ratio = _checked_ratio(state_dict["temperature_ratio"])

    def __repr__(self) -> str:
        return f"Tempering.constant({self._ratio:g})"


def _checked_ratio(ratio: Any) -> float:
    return real("ratio", ratio, above=1e-100, below=1e100)  # temperatures are divided by it
