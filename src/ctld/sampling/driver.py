"""`ctld.sample`: draws of a posterior from a model, a loss and a loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ctld.checks import integer, real, warn_user
from ctld.optimizers import OPTIMIZERS
from ctld.sampling.chains_of import worth_compiling
from ctld.sampling.draws import Draws
from ctld.sampling.loss import num_data_of
from ctld.sampling.progress import reporting
from ctld.sampling.run import Plan, Run, Sampler

DRAWS = 1000
"""Draws of each chain that the default of `thin` aims at."""


class ConvergenceWarning(UserWarning):
    """The draws should not be believed as they are; the message says why, and what to do."""


def sample(
    model: nn.Module | Sequence[nn.Module],
    loss_fn: Callable[..., Tensor],
    loader: Iterable[Any],
    *,
    num_data: float | None = None,
    sampler: Sampler = "baoab",
    num_chains: int = 4,
    num_steps: int = 10_000,
    burn_in: float = 0.25,
    thin: int | None = None,
    lr: float | Literal["auto"] = "auto",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    temperature: float = 1.0,
    starts: Literal["spread", "model"] = "spread",
    predict: Any = None,
    keep_parameters: bool = True,
    projections: int | Tensor = 0,
    folder: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    compile: bool | Literal["auto"] = "auto",
    progress: bool = True,
    **options: Any,
) -> Draws:
    """Draw from exp(−U/T), U = N·(mean loss + weight_decay·‖θ‖²/2), by several chains.

    >>> draws = ctld.sample(model, nn.functional.cross_entropy, loader, weight_decay=1e-3)     # doctest: +SKIP
    >>> draws.r_hat, draws.ess, draws.plot(), draws.to_arviz()                                 # doctest: +SKIP

    Parameters
    ----------
    model : Module, or one Module for each chain
        It is copied and stays as it is. Chains of one architecture take their passes together (`ctld.chains.Chains`);
        models for which that is impossible, as LSTMs, take them one after the other.
    loss_fn : callable
        loss_fn(model(inputs), targets), a mean over the batch, without the prior. For batches that are no pairs it is
        loss_fn(model, batch).
    loader : DataLoader, or a list of batches
        It is gone through in epochs. Where it shuffles, each chain has an order of its own.
    num_data : float, optional
        N, the number of examples; len(loader.dataset) if left out.
    sampler : str or callable
        A name of `ctld.OPTIMIZERS` that samples, or a function (parameters, lr, seed) that builds an optimizer.
    num_chains, num_steps : int
        Chains, and steps of each; a step is one batch.
    burn_in : float
        Share of the steps before the first draw.
    thin : int, optional
        Steps from one draw to the next; if left out, as many as give about 1000 draws of each chain.
    lr : float or "auto"
        "auto" takes it from the curvature, at the start and again after burn-in (`ctld.sampling.learning_rate`), and logs it.
    momentum : float
        As in `torch.optim.SGD`, for samplers that have it.
    weight_decay : float
        Of the Gaussian prior: a standard deviation s is weight_decay = 1/(N s²). 0 is a flat prior.
    temperature : float
        T; 1 is the posterior.
    starts : "spread" or "model"
        "spread" starts the first chain at the model and draws the parameters of the others anew, for R-hat says little unless
        chains start further apart than the posterior is wide. "model" starts all of them at the model.
    predict : optional
        Inputs whose outputs, model(predict), are kept with each draw.
    keep_parameters : bool
        Whether the parameters are kept with each draw.
    projections : int or Tensor
        How many random projections of the parameters are kept, or the directions, of shape (count, number of parameters).
    folder : path, optional
        Draws are written there as they come, and memory stays bounded. A run that was killed goes on from there, to the same
        bits, when it is asked for again.
    seed : int, optional
        Of starts, noise and batches.
    compile : bool or "auto"
        Whether the pass of all chains is compiled (`Chains`); "auto" does so from 100,000 steps on.
    progress : bool
        Whether a bar, or without a terminal a line now and then, is written to the standard error.
    options
        Further ones of the sampler.

    Returns
    -------
    Draws
        Where the chains do not agree or are too hot, a `ConvergenceWarning` says so.
    """
    num_steps = integer("num_steps", num_steps, at_least=1)
    burned = int(real("burn_in", burn_in, at_least=0, below=1) * num_steps)
    thin = max(1, (num_steps - burned) // DRAWS) if thin is None else integer("thin", thin, at_least=1)
    if thin > num_steps - burned:
        raise ValueError(
            f"thin must be at most the {num_steps - burned} steps after burn-in, got {thin}. Raise num_steps"
        )
    if starts not in ("spread", "model"):
        raise ValueError(f'starts must be "spread" or "model", got {starts!r}. Give one of them')
    _check(loss_fn, predict, sampler)
    plan = Plan(
        models=_models(model, integer("num_chains", num_chains, at_least=1)),
        loss_fn=loss_fn,
        loader=loader,
        num_data=num_data_of(loader, num_data),
        sampler=sampler,
        num_steps=num_steps,
        burn_in=burned,
        thin=thin,
        lr=None if lr == "auto" else real("lr", lr, above=0),
        momentum=real("momentum", momentum, at_least=0, below=1),
        weight_decay=real("weight_decay", weight_decay, at_least=0),
        temperature=real("temperature", temperature, above=0),
        spread=starts == "spread" and isinstance(model, nn.Module),
        predict=predict,
        keep_parameters=bool(keep_parameters),
        projections=projections,
        seed=None if seed is None else integer("seed", seed, at_least=0),
        compile=worth_compiling(compile, num_steps),
        folder=None if folder is None else Path(folder),
        options=options,
    )
    with torch.random.fork_rng():
        run = Run(plan)
        if run.finished is not None:
            return run.finished
        with reporting("sampling", num_steps, wanted=progress) as report:
            run.go_on(report)
        draws = run.finish()
    for remark in draws.advice():
        warn_user(f"{remark}.", ConvergenceWarning)
    return draws


def _check(loss_fn: Any, predict: Any, sampler: Any) -> None:
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be callable, got {type(loss_fn).__name__}. Give sample(model, loss_fn, loader)")
    if isinstance(predict, DataLoader):
        raise TypeError("predict must be what the model takes, got a DataLoader. Give a tensor of inputs")
    if not callable(sampler) and not (sampler in OPTIMIZERS and OPTIMIZERS[sampler].samples):
        names = ", ".join(name for name, row in OPTIMIZERS.items() if row.samples)
        raise ValueError(
            f"sampler must be one of {names}, got {sampler!r}. Or give a function that builds an optimizer"
        )
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        raise ValueError("sample must run in one process, got several ranks. Call it before init_process_group")


def _models(model: nn.Module | Sequence[nn.Module], num_chains: int) -> list[nn.Module]:
    models = [model] * num_chains if isinstance(model, nn.Module) else list(model)
    odd = next((each for each in models if not isinstance(each, nn.Module)), None)
    if odd is not None or not models:
        raise TypeError(
            f"model must be a torch.nn.Module, or one for each chain, got {type(odd or model).__name__}. Give the model"
        )
    return models
