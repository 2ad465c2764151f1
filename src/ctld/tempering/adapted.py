"""A temperature that whoever watches the run raises or lowers, up to T."""

from typing import Any

from ctld.checks import real


class AdaptedTemperature:
    """The temperature is ratio·T; `change` multiplies the ratio, which never exceeds 1.

    `ctld.Ensemble` changes it by what the noise undoes of what training has gained: how much a network bears depends on its
    curvature, which no formula in lr and N knows beforehand.
    """

    remedy = "a lower temperature"
    """Against noise that is more than the parameters bear."""

    def __init__(self, ratio: float = 0.1) -> None:
        self.temperature_ratio = min(real("ratio", ratio, above=0), 1.0)

    @property
    def mean_temperature_ratio(self) -> float:
        """Returns what it will be at most: by this T is chosen."""
        return 1.0

    def change(self, factor: float) -> None:
        """Multiplies the ratio by `factor`, and keeps it at 1 or below."""
        self.temperature_ratio = min(self.temperature_ratio * real("factor", factor, above=0), 1.0)

    def advance(self, hamiltonian: float, normal: float, *, hamiltonian_variance: float = 0.0) -> float:
        """Nothing moves by itself."""
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"temperature_ratio": self.temperature_ratio}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        ratio = real("temperature_ratio", state_dict["temperature_ratio"], above=0)
        if ratio > 1:
            raise ValueError(f"temperature_ratio = {ratio:g} is out of range; it is at most 1")
        self.temperature_ratio = ratio

    def __repr__(self) -> str:
        return f"AdaptedTemperature({self.temperature_ratio:g})"
