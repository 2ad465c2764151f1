"""The temperature of a stage of training: counted at every step of exploration, measured now and then."""

import math
from collections.abc import Mapping
from typing import Any

import ctld

NOTHING = {"steps": 0.0, "cold": 0.0, "outside": 0.0, "ratio": 0.0, "highest_ratio": 0.0}


class Heat:
    """Record of the temperature so far; part of the run's checkpoint."""

    def __init__(self) -> None:
        self._counts = dict(NOTHING)
        self._thermometers: dict[str, Any] = {}

    def record(self, optimizer: ctld.CTLD, *, traced: bool) -> dict[str, Any] | None:
        """Count a step of exploration. Return what goes into a line of the trace, if one is due and anything moves."""
        last = optimizer.last
        if last is None:
            return None
        counts = self._counts
        counts["steps"] += 1
        counts["cold"] += last.temperature_ratio == 1.0
        counts["ratio"] += last.temperature_ratio
        counts["highest_ratio"] = max(counts["highest_ratio"], last.temperature_ratio)
        if traced:
            self._thermometers = thermometers(last) or self._thermometers
        if last.alpha is None:
            return None
        counts["outside"] += abs(last.alpha) > getattr(optimizer.tempering, "edge", math.inf)
        if not traced:
            return None
        line = {
            "alpha": last.alpha,
            "temperature_ratio": last.temperature_ratio,
            "kinetic_temperature": last.kinetic_temperature,
            "potential": last.potential,
        }
        return line | self._measured()

    def summary(self, temperature: float) -> dict[str, Any]:
        """Content of the result."""
        counts, steps = self._counts, max(self._counts["steps"], 1)
        tempering = {
            "cold_share": counts["cold"] / steps,
            "share_outside": counts["outside"] / steps,
            "mean_ratio": counts["ratio"] / steps,
            "highest_ratio": counts["highest_ratio"],
        }
        return {"temperature": temperature, **self._measured(), "tempering": tempering}

    def _measured(self) -> dict[str, Any]:
        return {"thermometers": self._thermometers} if self._thermometers else {}

    def state(self) -> dict[str, Any]:
        return {"counts": self._counts, "thermometers": self._thermometers}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._counts, self._thermometers = NOTHING | state["counts"], state["thermometers"]


def thermometers(record: ctld.StepRecord) -> dict[str, Any]:
    """Temperatures of each group that explores, by number, with errors; those that are known."""
    found = {}
    for number, group in enumerate(record.groups):
        if group is not None:
            parts = {name: getattr(group, name) for name in ("kinetic", "configurational", "minibatch_heat")}
            known = {name: {"mean": part.mean, "error": part.standard_error} for name, part in parts.items() if part}
            if known:
                found[str(number)] = known
    return found
