"""From a run's configuration to its optimizer."""

import math
from typing import Any

import torch
from torch import nn

import ctld
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
