"""The methods that are compared. All have the same number of gradients; each returns a prediction, member by member."""

import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from ctld import Ensemble
from ctld_lab.streams import stream_seed
from methods import create

from .problems import Problem
from .training import (
    CHUNK,
    MOMENTUM,
    SAMPLES,
    Options,
    Predict,
    alone,
    along_sgd,
    by_sgd,
    cosine,
    descend,
    down_and_along,
    in_chunks,
    momentum_sgd,
    plain,
    sampled,
    state,
    together,
)

DEEP = 3  # members of the deep ensemble that shares the gradients of one
KEPT = 6  # members of samplers that know no cycles: as many as there are cycles
SANTA_SHARE = 0.2  # share of the steps before Santa refines
NEVER_COLD = "no step was cold when a draw was due"
CSGHMC_SHARE, CSGHMC_SAMPLES = 0.8, 3  # share of a cycle before sampling, as in its paper; samples of each cycle
Train = Callable[[Problem, Options, int], Predict]


@dataclass(frozen=True)
class Method:
    title: str
    train: Train
    rates: str = "sgd"  # the method whose range of lr and weight decay it shares
    third: str = ""  # the option that is tuned beside them
    module: str = ""  # another package that must be installed
    not_for: tuple[str, ...] = ()  # problems that it is not run on


# ---- cycles ----


def cycles(temperature: float | str, tempering: str = "constant") -> Train:
    """`ctld.Ensemble`; temperature "tuned" takes the tuned option."""

    def train(problem: Problem, options: Options, seed: int) -> Predict:
        model = problem.model(seed)
        ensemble = Ensemble(
            model,
            options["lr"],
            problem.num_data,
            problem.size.steps,
            cycles=problem.size.cycles,
            momentum=MOMENTUM,
            weight_decay=options["weight_decay"],
            temperature=options["temperature"] if temperature == "tuned" else temperature,
            tempering=tempering,
            seed=stream_seed(seed, "noise"),
        )
        ratios = []

        def advance(gradient: Callable[[], Tensor]) -> None:
            if ensemble.optimizer.exploring:
                ratios.append(ensemble.optimizer.temperature_ratio)
            ensemble.step(gradient())

        descend(problem, model, advance, seed)
        if not ensemble:
            raise FloatingPointError("every cycle has collapsed")
        # How hot it was on average, beside the T that was asked for; at T = 0 it does not explore.
        facts = {"temperature": ensemble.temperature, "mean_ratio": sum(ratios) / len(ratios)} if ratios else {}
        return together(model, [sample.state for sample in ensemble.collector], facts)

    return train


# ---- one network ----


def sgd(problem: Problem, options: Options, seed: int, member: int = 0) -> Predict:
    return alone(by_sgd(problem, options, seed, steps=problem.size.steps, member=member))


def santa(problem: Problem, options: Options, seed: int) -> Predict:
    """Anneals while it explores, then refines with lr along half a cosine (Chen et al. 2016)."""
    model, steps = problem.model(seed), problem.size.steps
    explored = round(SANTA_SHARE * steps)
    given = {name: options[name] for name in ("lr", "weight_decay", "epsilon")}
    optimizer = _create("santa", problem, model, seed, exploration_steps=explored, **given)

    def rate(step: int) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * max(0, step - explored) / (steps - explored)))

    descend(problem, model, plain(optimizer, LambdaLR(optimizer, rate)), seed)
    return alone(model)


def swa(problem: Problem, options: Options, seed: int) -> Predict:
    """The mean of the weights that SWAG has its Gaussian around (Izmailov et al. 2018)."""
    model, along = along_sgd(problem, options, seed)
    nn.utils.vector_to_parameters(along.mean(dim=0), model.parameters())
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

    return Predict(predict)


def swag(problem: Problem, options: Options, seed: int) -> Predict:
    """A Gaussian along the last quarter of SGD, diagonal and of rank 20, half of each (Maddox et al. 2019)."""
    model, along = along_sgd(problem, options, seed)
    mean, away = along.mean(dim=0), along - along.mean(dim=0)
    generator = torch.Generator().manual_seed(stream_seed(seed, "noise"))
    members = []
    for _ in range(SAMPLES):
        own = torch.randn(len(mean), generator=generator) * along.var(dim=0, correction=0).sqrt()
        shared = torch.randn(len(along), generator=generator) @ away / math.sqrt(len(along) - 1)
        nn.utils.vector_to_parameters(mean + 0.5**0.5 * (own + shared), model.parameters())
        members.append(state(model))
    return together(model, members)


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
    return sampled(problem, model, optimizer, seed, places, CosineAnnealingWarmRestarts(optimizer, each))


def csghmc(problem: Problem, options: Options, seed: int) -> Predict:
    """Samples are taken while it injects noise (Zhang et al. 2020)."""
    model, steps, count = problem.model(seed), problem.size.steps, problem.size.cycles
    about = {"momentum": MOMENTUM, "num_steps": steps, "num_cycles": count, "exploration_share": CSGHMC_SHARE}
    optimizer = _create("csghmc", problem, model, seed, **options, **about)
    last = (1.0 - CSGHMC_SHARE) * (steps // count)
    ends = [steps // count * place for place in range(1, count + 1)]
    places = {end - round(last * place / CSGHMC_SAMPLES) for end in ends for place in range(CSGHMC_SAMPLES)}
    return sampled(problem, model, optimizer, seed, places)


def without_n(problem: Problem, options: Options, seed: int) -> Predict:
    """SGHMC that takes the mean loss for the energy: its noise is that of one example, not of N."""
    model = problem.model(seed)
    optimizer = _create("sghmc", problem, model, seed, momentum=MOMENTUM, **{**options, "num_data": 1})
    return sampled(problem, model, optimizer, seed, _second_half(problem.size.steps))


def theirs(problem: Problem, options: Options, seed: int) -> Predict:
    """torch-uncertainty's SGHMC with its own options, but for lr and weight decay; members as in `without_n`.

    Its noise knows no N: the variance is multiplied by `noise_factor`² = 1e-4, right for 10,000 data. At small lr it has a
    floor, and is louder.
    """
    model = problem.model(seed)
    optimizer = sghmc_of_torch_uncertainty()(model.parameters(), lr=options["lr"], weight_decay=options["weight_decay"])
    with torch.random.fork_rng(devices=[]):  # its noise comes from torch's global stream
        torch.manual_seed(stream_seed(seed, "noise"))
        return sampled(problem, model, optimizer, seed, _second_half(problem.size.steps))


def tempered(name: str, gradients: int) -> Train:
    """TACT-HMC (Luo et al. 2018) or replica exchange (Deng et al. 2020); a draw that is due waits for a cold step.

    lr goes down and stays, as SWAG's. Replica exchange takes two gradients a step, of one batch, hence half the steps.
    """

    def train(problem: Problem, options: Options, seed: int) -> Predict:
        model, steps = problem.model(seed), problem.size.steps // gradients
        optimizer = _create(name, problem, model, seed, momentum=MOMENTUM, **options)
        schedule, places = down_and_along(optimizer, steps)
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
        return together(model, members, {"cold_share": cold / steps} | swaps)

    return train


# ---- other people's packages, each imported where it is used ----


def sam(problem: Problem, options: Options, seed: int) -> Predict:
    """Two gradients a step, hence half the steps (Foret et al. 2021; pytorch-optimizer)."""
    from pytorch_optimizer import SAM

    model, steps = problem.model(seed), problem.size.steps // 2
    given = {"lr": options["lr"], "momentum": MOMENTUM, "weight_decay": options["weight_decay"]}
    optimizer = SAM(model.parameters(), torch.optim.SGD, options["rho"], **given)
    schedule = CosineAnnealingLR(optimizer.base_optimizer, steps)

    def advance(gradient: Callable[[], Tensor]) -> None:
        gradient()
        optimizer.step(gradient)
        schedule.step()

    descend(problem, model, advance, seed, steps=steps)
    return alone(model)


def ivon(problem: Problem, options: Options, seed: int) -> Predict:
    """A variational diagonal Gaussian (Shen et al. 2024; ivon-opt), with the package's own β₂ = 0.99999.

    With β₂ = 0.999 validation nll was higher in two short looks at 5,000 digits.
    """
    from ivon import IVON

    model = problem.model(seed)
    given = {name: options[name] for name in ("lr", "weight_decay", "hess_init")}
    optimizer = IVON(model.parameters(), ess=problem.num_data, **given)
    schedule = CosineAnnealingLR(optimizer, problem.size.steps)

    def advance(gradient: Callable[[], Tensor]) -> None:
        with optimizer.sampled_params(train=True):
            gradient()
        optimizer.step()
        schedule.step()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "noise"))
        descend(problem, model, advance, seed)
        members = []
        for _ in range(SAMPLES):
            with optimizer.sampled_params():
                members.append(state(model))
    return together(model, members)


def laplace(subset: str, how: str) -> Callable[[Problem, Options, int], Predict]:
    """A Gaussian around SGD's network (Daxberger et al. 2021; laplace-torch).

    The last layer is linearised and its prior's precision follows the marginal likelihood. For all layers that would take
    a Jacobian per prediction: networks are drawn, and the precision is tuned.
    """

    def train(problem: Problem, options: Options, seed: int) -> Predict:
        from laplace import Laplace

        model = by_sgd(problem, options, seed, steps=problem.size.steps)
        around = Laplace(model, "classification", subset_of_weights=subset, hessian_structure="kron")
        around.fit(DataLoader(TensorDataset(*problem.train), batch_size=500))
        if "prior_precision" in options:
            around.prior_precision = options["prior_precision"]
        else:
            around.optimize_prior_precision(method="marglik")

        @torch.no_grad()
        def predict(inputs: Tensor) -> Tensor:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream_seed(seed, "noise"))
                given = {"pred_type": how, "n_samples": SAMPLES}
                parts = [around.predictive_samples(part, **given) for part in torch.split(inputs, CHUNK)]
            return torch.cat(parts, dim=1).clamp_min(1e-30).log()

        return Predict(predict)

    return train


def sghmc_of_torch_uncertainty() -> Callable[..., torch.optim.Optimizer]:
    """Return the class from its one file: importing the package takes Lightning, and a torchvision that fits torch."""
    package = importlib.util.find_spec("torch_uncertainty")
    assert package is not None, "check_packages comes first"
    assert package.origin is not None
    loader = SourceFileLoader("sghmc", str(Path(package.origin).parent / "optim" / "sghmc.py"))
    module = ModuleType(loader.name)
    loader.exec_module(module)
    return module.SGHMC


# ---- the table ----


def _create(name: str, problem: Problem, model: nn.Module, seed: int, **options: Any) -> Any:
    given = {"num_data": problem.num_data, "seed": stream_seed(seed, "noise")} | options
    return create(name, model.parameters(), **given)


def _second_half(steps: int) -> set[int]:
    """Return the steps after which samplers that know no cycles are asked for a network."""
    return {steps - round(0.5 * steps * place / KEPT) for place in range(KEPT)}


PACKAGES = {
    "ivon": "ivon-opt",
    "laplace": "laplace-torch",
    "pytorch_optimizer": "pytorch-optimizer",
    "torch_uncertainty": "torch-uncertainty",
}
LAPLACE = {"module": "laplace", "not_for": ("text",)}
METHODS: dict[str, Method] = {
    "ensemble": Method("ctld.Ensemble", cycles("auto")),
    "ensemble_tuned": Method("ctld.Ensemble, T tuned", cycles("tuned"), third="temperature"),
    "ensemble_cold": Method("ctld.Ensemble, T = 0", cycles(0.0)),
    "csghmc": Method("cyclical SGHMC", csghmc, third="temperature"),
    "tact_hmc": Method("TACT-HMC", tempered("tact_hmc", gradients=1), third="temperature"),
    "resgld": Method("replica exchange", tempered("resgld", gradients=2), third="temperature"),
    "sgd": Method("SGD-M", sgd),
    "adamw": Method("AdamW", partial(cosine, torch.optim.AdamW), rates="adamw"),
    "sam": Method("SAM", sam, third="rho", module="pytorch_optimizer"),
    "dropout": Method("MC dropout", dropout, third="dropout"),
    "swag": Method("SWAG", swag),
    "ivon": Method("IVON", ivon, rates="ivon", third="hess_init", module="ivon"),
    "laplace_last": Method("Laplace, last layer", laplace("last_layer", "glm"), **LAPLACE),
    "laplace_kfac": Method("Laplace, KFAC", laplace("all", "nn"), third="prior_precision", **LAPLACE),
    "deep": Method("deep ensemble of 3", deep),
    "without_n": Method("SGHMC without N", without_n),
}
DIGITS60K_AND_TEXT = ("digits60k", "text")
MOVING: dict[str, Method] = {
    f"moving_{name}": Method(title, cycles("tuned", name), third="temperature", not_for=DIGITS60K_AND_TEXT)
    for title, name in {
        "falling T": "falling",
        "driven α": "driven",
        "paper's α": "paper",
        "calibrated α": "calibrated",
    }.items()
}
"""A question of its own: does it help to let the temperature move?"""
OLDER: dict[str, Method] = {
    "swa": Method("SWA", swa),
    "snapshot": Method("snapshot ensemble", snapshot),
    "adam": Method("Adam", partial(cosine, torch.optim.Adam), rates="adam"),
    "santa": Method("Santa", santa, rates="santa", third="epsilon"),
}
"""Methods of 2015 to 2018, compared and corrected by themselves."""
THEIRS: dict[str, Method] = {
    "tu_sghmc": Method(
        "SGHMC of torch-uncertainty", theirs, rates="tu_sghmc", module="torch_uncertainty", not_for=DIGITS60K_AND_TEXT
    ),
}
"""The package for which `without_n` stands."""
EVERY = METHODS | MOVING | OLDER | THEIRS


def check_packages(methods: Iterable[str]) -> None:
    """Refuse a method whose package is missing, with the remedy."""
    for name in methods:
        module = EVERY[name].module
        if module and importlib.util.find_spec(module) is None:
            raise SystemExit(
                f"{EVERY[name].title} needs the package {PACKAGES[module]}, which is not installed. Run `make peers`, or name "
                "others with --only."
            )
