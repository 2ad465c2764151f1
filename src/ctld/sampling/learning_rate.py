"""The learning rate of a sampler, from the top eigenvalue k of the Hessian of mean loss and prior.

    step         lr·k at most `STEPS[sampler]`: the variance of the stiffest direction is then right within 5 %
    batches      x = lr·k·M/(1 − μ), M batches an epoch; their heat is x/(2T) with replacement, about x²/(6T) in epochs.
                 x is at most .2 T or .85 √T, which is heat of a tenth

Both are of the stiffest direction: every other one has less. The rule for batches takes the noise of the gradients to be that
of a model which fits (Fisher's information is the Hessian); the thermometers measure what it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ctld.diagnostics.flatness import top_eigenvalues

STEPS = {"baoab": 0.4, "ubu": 0.4, "langevin": 0.2, "sghmc": 0.2, "sgnht": 0.2, "sgld": 0.1, "psgld": 0.1}
"""lr·k. BAOAB's variance is exact at any stable step; those of the others are too large by lr·k/4 and lr·k/2."""
OTHERS = 0.1
REPLACED, RESHUFFLED = 0.2, 0.85
LOOKS = (0.0, 0.1, 0.5)
"""Shares of burn-in after which the curvature is looked at; then once more when burn-in ends."""
ITERATIONS, BATCHES = 12, 4
FUNNEL = 10.0
"""Ratio of the largest to the smallest top eigenvalue at which one learning rate does not serve all places."""


def top_curvature(model: nn.Module, loss: Callable[..., Tensor], batches: Sequence[Any], *, prior: float) -> float:
    """Return the largest eigenvalue of the Hessian of the mean loss over `batches`, and of the prior, at the model.

    The model is copied first, so that running statistics and random numbers stay as they are.
    """
    twin = copy.deepcopy(model)
    parameters = [parameter for parameter in twin.parameters() if parameter.requires_grad]

    def mean_loss() -> Tensor:
        torch.manual_seed(0)  # the same dropout each time
        total: Any = sum(loss(twin, batch) for batch in batches) / len(batches)
        return total  # type: ignore[no-any-return]

    with torch.random.fork_rng():
        try:
            found = top_eigenvalues(mean_loss, parameters, iterations=ITERATIONS)
        except ValueError as error:
            if "differentiated twice" not in str(error):
                raise
            found = top_eigenvalues(mean_loss, parameters, iterations=ITERATIONS, by_differences=True)
    return float(found.values[0] + found.residuals[0]) + prior


def learning_rate(
    sampler: str,
    top: float,
    *,
    momentum: float,
    temperature: float,
    num_data: float,
    batches_per_epoch: int | None,
    replaced: bool,
) -> tuple[float, str]:
    """Return the learning rate for a top eigenvalue, and in a few words why it is not larger."""
    if not top > 0.0 or not math.isfinite(top):
        raise ValueError(
            f'lr="auto" needs a loss with curvature, got a top eigenvalue of {top:.3g}. Give lr, or a weight_decay above 0'
        )
    step = STEPS.get(sampler, OTHERS)
    lr, why = step / top, f"lr·k = {step:g}"
    if batches_per_epoch is None or batches_per_epoch > 1:
        limit = REPLACED * temperature if replaced or batches_per_epoch is None else RESHUFFLED * math.sqrt(temperature)
        count = batches_per_epoch or 1
        heated = limit * (1.0 - momentum) / (count * top)
        if heated < lr:
            lr, why = heated, f"the heat of {count} batches an epoch, x = {limit:g}"
    if sampler == "psgld":  # V is about k·T/N where exp(−U/T) has its mass, and the step of an element is lr/√V
        lr *= math.sqrt(top * temperature / num_data)
    return lr, why


def epsilon_of_psgld(top: float, *, temperature: float, num_data: float) -> float:
    """Return pSGLD's λ: a tenth of the root of V in the stiffest direction."""
    return 0.1 * math.sqrt(top * temperature / num_data)


def remark_of_funnel(tops: Sequence[float]) -> str | None:
    """Return a sentence if the curvature differs so much between places that no one learning rate serves them all."""
    least, most = min(tops), max(tops)
    if least > 0.0 and most / least < FUNNEL:
        return None
    return (
        f"the top curvature at the chains lies between {least:.3g} and {most:.3g}, as in a funnel: lr follows the largest, "
        "flat places are explored slowly, narrower ones may never be entered. Write the model in other variables "
        "(non-centred), and trust R-hat over starts, not the thermometers"
    )
