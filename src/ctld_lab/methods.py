"""From a run's configuration to its optimizer, and to the learning rate of each of its steps."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import ctld
from ctld.cycles import cycle_factor
from ctld_lab.streams import stream_seed


def build_optimizer(
    config: dict[str, Any], parameters: list[nn.Parameter], *, num_data: int, stage: int
) -> torch.optim.Optimizer:
    """With what the method of the table needs: its noise has a stream of its own.

    `algorithm` names the row of the table, where the `method` of a study is more than an optimizer.
    """
    name = config.get("algorithm", config["method"])
    method = ctld.OPTIMIZERS[name]
    options = dict(config["optimizer"])
    if "num_data" in method.needs:
        options["num_data"] = num_data
    if "exploration_steps" in method.needs:
        options.setdefault("exploration_steps", config["exploration_steps"])
    if "num_steps" in method.needs:
        options["num_steps"] = config["steps"][stage]
    if method.noisy:
        options["seed"] = stream_seed(int(config["seed"]), "noise", stage)
    tempering = options.pop("tempering", None)
    if tempering is not None and options["exploration_steps"]:
        step_size = math.sqrt(options["lr"] / num_data)
        options["tempering"] = _tempering(step_size, options["exploration_steps"], **tempering)
    return ctld.create(name, parameters, **options)


def _tempering(step_size: float, exploration_steps: int, kind: str = "paper", **options: Any) -> Any:
    if kind == "paper":
        return ctld.Tempering.paper(step_size, exploration_steps, **options)
    if kind == "calibrated":
        return ctld.Tempering.calibrated(**options)
    if kind == "driven":
        return ctld.Tempering.driven(**options)
    if kind == "constant":
        return ctld.Tempering.constant(**options)
    raise ValueError(f"there is no tempering of kind {kind!r}; known: paper, calibrated, driven, constant")


def relative_rate(schedule: Mapping[str, Any], step: int) -> float:
    """The factor on lr for a step, counted from 0 in its stage: a pure function, so that a run that goes on needs no state.

    `schedule` says which, by its kind:

    steps     × `factor` every so many steps (`every`); the kind when none is named
    cycles    held for the first `hold_steps` of every `cycle_steps`, then half a cosine to zero: `ctld.CycleLR`, for any method
    settle    half a cosine from 1 to `factor` in `settle_steps`, and constant from there: for averages of weights
    """
    kind = schedule.get("kind", "steps")
    if kind == "steps":
        return float(schedule["factor"] ** (step // int(schedule["every"])))
    if kind == "cycles":
        return cycle_factor(
            step, cycle_steps=int(schedule["cycle_steps"]), hold_steps=int(schedule.get("hold_steps", 0))
        )
    if kind == "settle":
        steps, factor = int(schedule["settle_steps"]), float(schedule["factor"])
        return factor + (1.0 - factor) * (cycle_factor(step, cycle_steps=steps) if step < steps else 0.0)
    raise ValueError(f"there is no schedule of kind {kind!r}; known: steps, cycles, settle")
