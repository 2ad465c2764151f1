"""The local learning coefficient of a minimum w*, by sampling around it with BAOAB.

    λ̂ = nβ (E[L(w)] − L(w*)),   w ~ exp(−nβ L(w) − γ‖w − w*‖²/2),   β = 1/log n        (Lau et al. 2023)

A chain that rests at w* sees the same batches. It gives the difference of the losses pair by pair, and the control variate
∇L_B(w) − ∇L_B(w*) + ∇L(w*), without which the noise of the batches heats the chains wherever targets are noisy.
In ctld's units N = n, T = 1/β, and the spring is a weight decay of γT/n about w*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ctld.checks import integer, real, warn_user
from ctld.sampling.around import Around
from ctld.sampling.chains_of import worth_compiling
from ctld.sampling.coefficient_found import LearningCoefficient
from ctld.sampling.loss import num_data_of
from ctld.sampling.progress import reporting

__all__ = ["LearningCoefficient", "learning_coefficient"]


def learning_coefficient(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    loader: Iterable[Any],
    *,
    num_data: float | None = None,
    num_chains: int = 4,
    num_steps: int = 5000,
    burn_in: float = 0.25,
    localization: float = 1.0,
    nbeta: float | None = None,
    lr: float | Literal["auto"] = "auto",
    momentum: float = 0.9,
    control_variate: bool = True,
    parameters: Iterable[str] | None = None,
    seed: int | None = None,
    compile: bool | Literal["auto"] = "auto",
    progress: bool = False,
) -> LearningCoefficient:
    """Estimate the local learning coefficient of a model at its present parameters, which must be a minimum of the loss.

    >>> found = ctld.diagnostics.learning_coefficient(model, nn.functional.mse_loss, loader)   # doctest: +SKIP
    >>> found.value, found.error, found.r_hat                                                  # doctest: +SKIP

    Parameters
    ----------
    model : Module
        It is copied and stays as it is.
    loss_fn : callable
        loss_fn(model(inputs), targets), a mean over the batch; for batches that are no pairs, loss_fn(model, batch). It must be
        the negative log-likelihood of an example: for unit noise half the squared error, not the squared error.
    loader : DataLoader, or a list of batches
    num_data : float, optional
        n; len(loader.dataset) if left out.
    num_chains, num_steps : int
        Chains, and steps of each.
    burn_in : float
        Share of the steps that is left out.
    localization : float
        γ of the spring to w*. A stiffer spring is more local; where the loss has flat directions the estimate depends on it.
    nbeta : float, optional
        nβ; n/log n if left out.
    lr : float or "auto"
        "auto" takes it from the curvature at w*, and again at the chains during burn-in.
    momentum : float
        As in `torch.optim.SGD`.
    control_variate : bool
        Whether the noise of the batches at w* is taken out of the gradients.
    parameters : iterable of str, optional
        Names of the parameters that are sampled, for the refined coefficient; the others rest at w*.
    seed : int, optional
        Of noise and batches.
    compile : bool or "auto"
        As in `ctld.sample`.
    progress : bool
        Whether a bar is written to the standard error.

    Returns
    -------
    LearningCoefficient
        With `value` and `error`. Where chains disagree or are too hot, or w* is no minimum, a warning says so.
    """
    run = Around(
        model,
        loss_fn,
        loader,
        num_data=num_data_of(loader, num_data),
        num_chains=integer("num_chains", num_chains, at_least=1),
        num_steps=integer("num_steps", num_steps, at_least=100),
        burn_in=real("burn_in", burn_in, at_least=0, below=1),
        localization=real("localization", localization, above=0),
        nbeta=None if nbeta is None else real("nbeta", nbeta, above=0),
        lr=None if lr == "auto" else real("lr", lr, above=0),
        momentum=real("momentum", momentum, at_least=0, below=1),
        control=bool(control_variate),
        names=None if parameters is None else list(parameters),
        compile=worth_compiling(compile, num_steps),
        seed=int(torch.randint(2**53, ())) if seed is None else integer("seed", seed, at_least=0),
    )
    with torch.random.fork_rng(), reporting("learning coefficient", run.num_steps, wanted=progress) as report:
        found = run.carry_out(report)
    for remark in found.remarks:
        warn_user(remark)
    return found
