"""What is compared. All have the same number of gradients; each returns what it predicts, member by member."""

import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LambdaLR

from ctld import create
from ctld.ensembles.temperings import Named
from ctld_lab.peers.cycles import cycles
from ctld_lab.peers.packages import ivon, laplace, sam, sghmc_of_torch_uncertainty
from ctld_lab.peers.problems import Problem
from ctld_lab.peers.training import (
    MOMENTUM,
    SAMPLES,
    Noted,
    Options,
    Predict,
    alone,
    by_sgd,
    descend,
    in_chunks,
    momentum_sgd,
    plain,
    state,
    together,
)
from ctld_lab.streams import stream_seed

DEEP = 3  # members of the deep ensemble that shares the gradients of one
KEPT = 6  # of the sampler without N: as many as there are cycles
SWAG_FROM, SWAG_RATE, SWAG_RANK = 0.75, 0.2, 20  # share of the steps before averaging, lr after it; networks averaged
SANTA_SHARE = 0.2  # of the steps, before it refines, as in the study of ensembles
NEVER_COLD = "no step was cold when a draw was due"
CSGHMC_SHARE, CSGHMC_SAMPLES = 0.8, 3  # of a cycle before sampling, as in its paper; samples of each cycle


@dataclass(frozen=True)
class Method:
    title: str
    train: Callable[[Problem, Options, int], Predict]
    rates: str = "sgd"
    """Whose range of lr and weight decay it shares."""
    third: str = ""
    """What is tuned beside them."""
    module: str = ""
    """Of another package, that must be installed; ours and torch's need none."""
    not_for: tuple[str, ...] = ()
    """Problems that the package cannot do."""


# ---- one network ----


def sgd(problem: Problem, options: Options, seed: int, member: int = 0) -> Predict:
    return alone(by_sgd(problem, options, seed, steps=problem.size.steps, member=member))


def adamw(problem: Problem, options: Options, seed: int) -> Predict:
    model = problem.model(seed)
    optimizer = torch.optim.AdamW(model.parameters(), options["lr"], weight_decay=options["weight_decay"], fused=True)
    descend(problem, model, plain(optimizer, CosineAnnealingLR(optimizer, problem.size.steps)), seed)
    return alone(model)


def adam(problem: Problem, options: Options, seed: int) -> Predict:
    """Weight decay is part of the gradient (Kingma and Ba 2015)."""
    model = problem.model(seed)
    optimizer = torch.optim.Adam(model.parameters(), options["lr"], weight_decay=options["weight_decay"], fused=True)
    descend(problem, model, plain(optimizer, CosineAnnealingLR(optimizer, problem.size.steps)), seed)
    return alone(model)


def santa(problem: Problem, options: Options, seed: int) -> Predict:
    """Anneals while it explores, then refines with lr along half a cosine (Chen et al. 2016)."""
    model, steps = problem.model(seed), problem.size.steps
    explored = round(SANTA_SHARE * steps)
    given = {name: options[name] for name in ("lr", "weight_decay", "epsilon")}
    about: dict[str, Any] = {"num_data": problem.num_data, "seed": stream_seed(seed, "noise")}
    optimizer: Any = create("santa", model.parameters(), exploration_steps=explored, **given, **about)

    def rate(step: int) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * max(0, step - explored) / (steps - explored)))

    descend(problem, model, plain(optimizer, LambdaLR(optimizer, rate)), seed)
    return alone(model)


# ---- distributions around one network ----


def dropout(problem: Problem, options: Options, seed: int) -> Predict:
    """Units drop out in prediction too (Gal and Ghahramani 2016)."""
    model = by_sgd(problem, options, seed, steps=problem.size.steps, dropout=options["dropout"])

    def predict(inputs: Tensor) -> Tensor:
        model.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "noise"))
            return torch.stack([in_chunks(inputs, model) for _ in range(SAMPLES)])

    return predict


def swag(problem: Problem, options: Options, seed: int) -> Predict:
    """A Gaussian along the last quarter of SGD, diagonal and of rank 20, half of each (Maddox et al. 2019)."""
    model, along = _along_sgd(problem, options, seed)
    mean, away = along.mean(dim=0), along - along.mean(dim=0)
    generator = torch.Generator().manual_seed(stream_seed(seed, "noise"))
    members = []
    for _ in range(SAMPLES):
        own = torch.randn(len(mean), generator=generator) * along.var(dim=0, correction=0).sqrt()
        shared = torch.randn(len(along), generator=generator) @ away / math.sqrt(len(along) - 1)
        nn.utils.vector_to_parameters(mean + 0.5**0.5 * (own + shared), model.parameters())
        members.append(state(model))
    return together(model, members)


def swa(problem: Problem, options: Options, seed: int) -> Predict:
    """The mean of the weights that SWAG has its Gaussian around (Izmailov et al. 2018)."""
    model, along = _along_sgd(problem, options, seed)
    nn.utils.vector_to_parameters(along.mean(dim=0), model.parameters())
    return alone(model)


def _along_sgd(problem: Problem, options: Options, seed: int) -> tuple[Any, Tensor]:
    """A network, and the weights of twenty that SGD passed in the last quarter of its steps."""
    model, steps = problem.model(seed), problem.size.steps
    optimizer = momentum_sgd(model, options)
    schedule, places = _down_and_along(optimizer, steps)
    seen: list[Tensor] = []

    def after(step: int) -> None:
        if step in places:
            seen.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())

    descend(problem, model, plain(optimizer, schedule), seed, after=after)
    return model, torch.stack(seen)


# ---- several networks ----


def deep(problem: Problem, options: Options, seed: int) -> Predict:
    """Networks of their own, each with its share of the gradients (Lakshminarayanan et al. 2017)."""
    steps = problem.size.steps // DEEP
    models = [by_sgd(problem, options, seed, steps=steps, member=member) for member in range(DEEP)]
    return together(models[0], map(state, models))


def snapshot(problem: Problem, options: Options, seed: int) -> Predict:
    """The network at the end of each of several cosines, one after the other (Huang et al. 2017)."""
    model, each = problem.model(seed), problem.size.steps // problem.size.cycles
    optimizer = momentum_sgd(model, options)
    places = {each * place for place in range(1, problem.size.cycles + 1)}
    return _sampled(problem, model, optimizer, seed, places, CosineAnnealingWarmRestarts(optimizer, each))


def csghmc(problem: Problem, options: Options, seed: int) -> Predict:
    """Samples are taken while it injects noise (Zhang et al. 2020)."""
    model, steps, count = problem.model(seed), problem.size.steps, problem.size.cycles
    optimizer = create(
        "csghmc",
        model.parameters(),
        lr=options["lr"],
        momentum=MOMENTUM,
        num_data=problem.num_data,
        weight_decay=options["weight_decay"],
        temperature=options["temperature"],
        num_steps=steps,
        num_cycles=count,
        exploration_share=CSGHMC_SHARE,
        seed=stream_seed(seed, "noise"),
    )
    sampled = (1.0 - CSGHMC_SHARE) * (steps // count)
    ends = [steps // count * place for place in range(1, count + 1)]
    places = {end - round(sampled * place / CSGHMC_SAMPLES) for end in ends for place in range(CSGHMC_SAMPLES)}
    return _sampled(problem, model, optimizer, seed, places)


def without_n(problem: Problem, options: Options, seed: int) -> Predict:
    """SGHMC that takes the mean loss for the energy, as several packages do: noise for one example, not for N."""
    model, steps = problem.model(seed), problem.size.steps
    given: dict[str, Any] = {"lr": options["lr"], "momentum": MOMENTUM, "weight_decay": options["weight_decay"]}
    optimizer = create("sghmc", model.parameters(), num_data=1, seed=stream_seed(seed, "noise"), **given)
    return _sampled(problem, model, optimizer, seed, _second_half(steps))


def theirs(problem: Problem, options: Options, seed: int) -> Predict:
    """torch-uncertainty's SGHMC as it comes, but for lr and weight decay; members as of `without_n`.

    Its noise knows no N: the variance is multiplied by `noise_factor`² = 1e-4, which is right for 10,000 data and no others; at
    small lr it has a floor, and is louder.
    """
    model, steps = problem.model(seed), problem.size.steps
    optimizer = sghmc_of_torch_uncertainty()(model.parameters(), lr=options["lr"], weight_decay=options["weight_decay"])
    with torch.random.fork_rng(devices=[]):  # its noise is of torch's global stream
        torch.manual_seed(stream_seed(seed, "noise"))
        return _sampled(problem, model, optimizer, seed, _second_half(steps))


def _second_half(steps: int) -> set[int]:
    """The steps after which samplers that know no cycles are asked for a network."""
    return {steps - round(0.5 * steps * place / KEPT) for place in range(KEPT)}


def tact_hmc(problem: Problem, options: Options, seed: int) -> Predict:
    """A temperature that moves by itself, as in this library's paper, with thermostats (Luo et al. 2018)."""
    return _exploring("tact_hmc", problem, options, seed, gradients=1)


def resgld(problem: Problem, options: Options, seed: int) -> Predict:
    """A cold chain and a hot one that may swap (Deng et al. 2020): two gradients a step, of one batch, hence half the steps."""
    return _exploring("resgld", problem, options, seed, gradients=2)


def _exploring(name: str, problem: Problem, options: Options, seed: int, *, gradients: int) -> Predict:
    """A sampler that lr goes down for and stays, as SWAG's; a draw that is due is taken when the model is cold next."""
    model, steps = problem.model(seed), problem.size.steps // gradients
    given = {key: options[key] for key in ("lr", "weight_decay", "temperature")}
    about: dict[str, Any] = {"num_data": problem.num_data, "seed": stream_seed(seed, "noise")}
    optimizer: Any = create(name, model.parameters(), momentum=MOMENTUM, **given, **about)
    schedule, places = _down_and_along(optimizer, steps)
    due, cold, members = 0, 0, []

    def advance(gradient: Callable[[], Tensor]) -> None:
        for _ in range(gradients):
            optimizer.step(loss=gradient())
        schedule.step()

    def after(step: int) -> None:
        nonlocal due, cold
        due += step in places
        if optimizer.temperature_ratio == 1.0:
            cold += 1
            if due:
                members.append(state(model))
                due = 0

    descend(problem, model, advance, seed, steps=steps, after=after)
    if not members:
        raise FloatingPointError(NEVER_COLD)
    swaps = {"swaps": optimizer.swaps} if name == "resgld" else {}
    return Noted(together(model, members), {"cold_share": cold / steps} | swaps)


def _down_and_along(optimizer: torch.optim.Optimizer, steps: int) -> tuple[LambdaLR, set[int]]:
    """lr along half a cosine to a fifth, then constant; and the steps after which twenty networks are taken from there."""
    start = round(SWAG_FROM * steps)

    def rate(step: int) -> float:
        return SWAG_RATE + (1.0 - SWAG_RATE) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / start)))

    places = {start + round((steps - start) * place / SWAG_RANK) for place in range(1, SWAG_RANK + 1)}
    return LambdaLR(optimizer, rate), places


def _sampled(
    problem: Problem, model: nn.Module, optimizer: Any, seed: int, places: set[int], schedule: Any = None
) -> Predict:
    members: list[dict[str, Tensor]] = []

    def after(step: int) -> None:
        if step in places:
            members.append(state(model))

    descend(problem, model, plain(optimizer, schedule), seed, after=after)
    return together(model, members)


PACKAGES = {
    "ivon": "ivon-opt",
    "laplace": "laplace-torch",
    "pytorch_optimizer": "pytorch-optimizer",
    "torch_uncertainty": "torch-uncertainty",
}
METHODS: dict[str, Method] = {
    "ensemble": Method("ctld.Ensemble", cycles("auto")),
    "ensemble_tuned": Method("ctld.Ensemble, T tuned", cycles("tuned"), third="temperature"),
    "ensemble_cold": Method("ctld.Ensemble, T = 0", cycles(0.0)),
    "csghmc": Method("cyclical SGHMC", csghmc, third="temperature"),
    "tact_hmc": Method("TACT-HMC", tact_hmc, third="temperature"),
    "resgld": Method("replica exchange", resgld, third="temperature"),
    "sgd": Method("SGD-M", sgd),
    "adamw": Method("AdamW", adamw, rates="adamw"),
    "sam": Method("SAM", sam, third="rho", module="pytorch_optimizer"),
    "dropout": Method("MC dropout", dropout, third="dropout"),
    "swag": Method("SWAG", swag),
    "ivon": Method("IVON", ivon, rates="ivon", third="hess_init", module="ivon"),
    "laplace_last": Method("Laplace, last layer", laplace("last_layer", "glm"), module="laplace", not_for=("text",)),
    "laplace_kfac": Method(
        "Laplace, KFAC", laplace("all", "nn"), third="prior_precision", module="laplace", not_for=("text",)
    ),
    "deep": Method("deep ensemble of 3", deep),
    "without_n": Method("SGHMC without N", without_n),
}
_MOVING_ALPHA: dict[str, Named] = {
    "falling T": "falling",
    "driven α": "driven",
    "paper's α": "paper",
    "calibrated α": "calibrated",
}
MOVING: dict[str, Method] = {
    f"moving_{name}": Method(title, cycles("tuned", name), third="temperature", not_for=("digits60k", "text"))
    for title, name in _MOVING_ALPHA.items()
}
"""A question of its own, beside the peers: does it help to let the temperature move?"""
OLDER: dict[str, Method] = {
    "swa": Method("SWA", swa),
    "snapshot": Method("snapshot ensemble", snapshot),
    "adam": Method("Adam", adam, rates="adam"),
    "santa": Method("Santa", santa, rates="santa", third="epsilon"),
}
"""What the study of ensembles has beside these, and had not tuned the weight decay of together with all others."""
THEIRS: dict[str, Method] = {
    "tu_sghmc": Method(
        "SGHMC of torch-uncertainty",
        theirs,
        rates="tu_sghmc",
        module="torch_uncertainty",
        not_for=("digits60k", "text"),
    ),
}
"""The warning example itself, for which `without_n` had stood."""
EVERY = METHODS | MOVING | OLDER | THEIRS


def check_packages(methods: Iterable[str]) -> None:
    """Refuses what cannot be run, with the remedy."""
    for name in methods:
        module = EVERY[name].module
        if module and importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(
                f"{EVERY[name].title} needs the package {PACKAGES[module]}, which is not installed: make peers, or "
                "pip install 'ctld[peers]'; or name the others with --methods"
            )
