"""A temperature that falls within each exploration: a saw from hot to cold, whose teeth the fine-tuning then quenches."""

from typing import Any

from ctld.checks import integer, real
from ctld.tempering.control import TemperatureControl


def falling_ratio(step: int, steps: int, hot: float, cold: float) -> float:
    """Return hot·(cold/hot)^(step/(steps − 1)): `hot` at step 0, `cold` at the last of `steps` and afterwards."""
    if steps == 1 or step >= steps - 1:
        return cold
    return float(hot * (cold / hot) ** (step / (steps - 1)))


class FallingTemperature(TemperatureControl):
    """The temperature ratio falls from `hot` to `cold` in `steps`, geometrically, and starts again with each cycle.

    It is a schedule: blind to the energy, and without a law that it samples.

    Parameters
    ----------
    steps : int
        How long the fall takes: the exploration steps of a cycle.
    hot, cold : float
        What multiplies T at the first step and at the last.
    """

    remedy = "a slower fall, over more exploration steps"

    def __init__(self, steps: int, hot: float = 1.0, cold: float = 0.01) -> None:
        self.fall_steps = integer("steps", steps, at_least=1)
        self.hot = real("hot", hot, above=0)
        self.cold = real("cold", cold, above=0)
        if self.cold > self.hot:
            raise ValueError(f"cold = {self.cold:g} is above hot = {self.hot:g}: the temperature is to fall")
        self.steps = 0

    @property
    def temperature_ratio(self) -> float:
        """Factor on T in the next step."""
        return falling_ratio(self.steps, self.fall_steps, self.hot, self.cold)

    @property
    def mean_temperature_ratio(self) -> float:
        """Return the mean ratio over one fall."""
        ratios = (falling_ratio(step, self.fall_steps, self.hot, self.cold) for step in range(self.fall_steps))
        return sum(ratios) / self.fall_steps

    def end(self, hamiltonian: float, normal: float, hamiltonian_variance: float = 0.0) -> None:
        """Go to the next entry of the timetable; there is no force."""
        self.steps += 1

    def restart(self) -> None:
        """Go back to `hot`, where a cycle begins."""
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "fall_steps": self.fall_steps, "hot": self.hot, "cold": self.cold}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        mine = self.state_dict()
        for name in ("fall_steps", "hot", "cold"):
            if state_dict[name] != mine[name]:
                raise ValueError(
                    f"the state has {name} = {state_dict[name]:g}, this temperature {mine[name]:g}; build it as it was"
                )
        self.steps = integer("steps", state_dict["steps"], at_least=0)

    def __repr__(self) -> str:
        return f"FallingTemperature({self.fall_steps}, hot={self.hot:g}, cold={self.cold:g})"
