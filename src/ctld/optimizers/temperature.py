"""Temperature that fits the parameters: `temperature="auto"`, and a warning where rounding loses the noise.

"auto" is the largest temperature whose noise does not swamp the initial parameters.
During exploration a parameter that the data do not hold spreads by

    sqrt(2 lr T L_s ⟨1/g⟩ / (N (1 − momentum)))     by diffusion, and by no more than
    sqrt(T / (N λ))                                  under a prior, the weight decay λ

Both grow as sqrt(T). T is chosen so that the smaller one equals the RMS of the initial parameters, and is at most 1,
the posterior itself. With 5,000 digits, T = 1 without a prior ends in an error of 62 % (results/digits.json).
"""

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ctld.checks import real, warn_user
from ctld.stepping.foreach import rounding

_log = logging.getLogger("ctld")


class Temperature:
    """T of the posterior: a number that was given, or one that is chosen when there is a group to go by."""

    def __init__(self, value: float | str) -> None:
        if isinstance(value, str) and value != "auto":
            raise ValueError(f'temperature = {value!r} is unknown; give "auto" or a number >= 0')
        self.automatic = value == "auto"
        self.known = not self.automatic
        self.value = 0.0 if self.automatic else real("temperature", value, at_least=0)

    def choose(self, value: float) -> None:
        """Take over the number that "auto" stands for."""
        self.value, self.known = value, True

    def state_dict(self) -> dict[str, Any]:
        return {"temperature": self.value if self.known else math.nan}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        value = state_dict["temperature"]
        known = not (isinstance(value, float) and math.isnan(value) and self.automatic)
        self.value, self.known = real("temperature", value, at_least=0) if known else 0.0, known


def automatic_temperature(
    groups: list[dict[str, Any]],
    *,
    num_data: float,
    exploration_steps: int,
    mean_temperature_ratio: float,
    square_norm: Callable[[list[Tensor]], float],
) -> float:
    """T for these parameter groups, those with `explore=False` left out; the smallest that a group asks for.

    `square_norm` gives Σθ², over all ranks if parameters are spread over them.

    NaN, not chosen yet, while no group explores; 0 if none ever will.
    """
    if not exploration_steps:
        return 0.0
    groups = [group for group in groups if group["explore"] and any(p.requires_grad for p in group["params"])]
    if not groups:
        return math.nan
    # Frozen parameters do not move, and say nothing of how far those that do may go.
    size = _mean_square([p for group in groups for p in group["params"] if p.requires_grad], square_norm)
    temperatures = []
    for group in groups:
        diffusion = (
            2.0 * float(group["lr"]) * exploration_steps * mean_temperature_ratio / (1.0 - float(group["momentum"]))
        )
        # Both per unit of T/N; a spread of 0, at lr = 0, bounds nothing.
        spread = min(diffusion, 1.0 / group["weight_decay"]) if group["weight_decay"] else diffusion
        temperatures.append(min(1.0, size * num_data / spread) if spread else 1.0)
    temperature = min(temperatures)
    _log.info('temperature="auto" chose T = %.4g for initial parameters of RMS %.4g', temperature, size**0.5)
    if any(not group["weight_decay"] for group in groups):
        warn_user(
            f"exploring at T = {temperature:.3g} without weight_decay samples an improper posterior: parameters that the "
            "data do not hold diffuse without limit. Give weight_decay, or explore=False for the group"
        )
    return temperature


def _mean_square(parameters: list[Tensor], square_norm: Callable[[list[Tensor]], float]) -> float:
    """Return the mean square of parameters of two or more dimensions; of all, if there are none or they are zero."""
    for chosen in ([p for p in parameters if p.dim() >= 2], parameters):
        numel = sum(p.numel() for p in chosen)
        total = square_norm(chosen) if numel else 0.0
        if total:
            return total / numel
    raise ValueError(
        'temperature="auto" goes by the size of the initial parameters, and they are all zero; give temperature='
    )


def warn_of_rounding(group: dict[str, Any], *, num_data: float, temperature: float) -> bool:
    """Warn of the first low-precision parameter whose thermal motion is lost, being smaller than the rounding."""
    move = math.sqrt(float(group["lr"]) * temperature / num_data)
    for parameter in group["params"]:
        if (
            parameter.requires_grad
            and parameter.dtype in (torch.bfloat16, torch.float16)
            and move < rounding(parameter)
        ):
            warn_user(
                f"the noise moves a {parameter.dtype} parameter of shape {tuple(parameter.shape)} by {move:.1g} a step, less "
                f"than its rounding of {rounding(parameter):.1g}: most of it is lost. Keep parameters in float32 and use "
                "autocast"
            )
            return True
    return False
