"""Learning rates along a stage: each a pure function of the step, so that a run that goes on needs no state for them."""

import math
from collections.abc import Mapping
from typing import Any


def relative_rate(schedule: Mapping[str, Any], step: int) -> float:
    """The factor on lr for a step, counted from 0 in its stage.

    `schedule` says which, by its kind:

    steps     × `factor` every so many steps (`every`); the kind when none is named
    cycles    held for the first `hold_steps` of every `cycle_steps`, then half a cosine to zero, as `ctld.CycleLR` does.
              One cycle of the whole stage is a plain cosine
    settle    half a cosine from 1 to `factor` in `settle_steps`, and constant from there: for averages of weights
    """
    kind = schedule.get("kind", "steps")
    if kind == "steps":
        return float(schedule["factor"] ** (step // int(schedule["every"])))
    if kind == "cycles":
        cycle_steps, hold_steps = int(schedule["cycle_steps"]), int(schedule["hold_steps"])
        done = step % cycle_steps - hold_steps
        return 1.0 if done < 0 else _half_cosine(done / (cycle_steps - hold_steps))
    if kind == "settle":
        share = min(step / int(schedule["settle_steps"]), 1.0)
        factor = float(schedule["factor"])
        return factor + (1.0 - factor) * _half_cosine(share)
    raise ValueError(f"there is no schedule of kind {kind!r}; known: steps, cycles, settle")


def _half_cosine(share: float) -> float:
    """From 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * share))
