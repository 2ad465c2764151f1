"""Methods that other people's packages bring. Each is imported where it is used: without it the others can be run."""

import importlib.util
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from ctld_lab.peers.problems import Problem
from ctld_lab.peers.training import (
    CHUNK,
    MOMENTUM,
    SAMPLES,
    Options,
    Predict,
    alone,
    by_sgd,
    descend,
    state,
    together,
)
from ctld_lab.streams import stream_seed


def sam(problem: Problem, options: Options, seed: int) -> Predict:
    """Two gradients a step, hence half the steps (Foret et al. 2021; pytorch-optimizer)."""
    from pytorch_optimizer import SAM

    model, steps = problem.model(seed), problem.size.steps // 2
    decay = options["weight_decay"]
    optimizer = SAM(
        model.parameters(), torch.optim.SGD, options["rho"], lr=options["lr"], momentum=MOMENTUM, weight_decay=decay
    )
    schedule = CosineAnnealingLR(optimizer.base_optimizer, steps)

    def advance(gradient: Callable[[], Tensor]) -> None:
        gradient()
        optimizer.step(gradient)
        schedule.step()

    descend(problem, model, advance, seed, steps=steps)
    return alone(model)


def ivon(problem: Problem, options: Options, seed: int) -> Predict:
    """Variational, a diagonal Gaussian (Shen et al. 2024; ivon-opt).

    With the package's own β₂ its Hessian hardly moves in so few steps; with 0.999, as its authors have it for UCI's data,
    validation nll was higher (0.23 and 1.3, not 0.13, on 5,000 digits).
    """
    from ivon import IVON

    model = problem.model(seed)
    given = {name: options[name] for name in ("weight_decay", "hess_init")}
    optimizer = IVON(model.parameters(), lr=options["lr"], ess=problem.num_data, **given)
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
    """Around SGD's network (Daxberger et al. 2021; laplace-torch).

    The last layer is treated as linear, and its prior's precision goes by the marginal likelihood. Of all layers, where that
    would take a Jacobian of every prediction, networks are drawn, for which the marginal likelihood is no guide: it is tuned.
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
                parts = [
                    around.predictive_samples(part, pred_type=how, n_samples=SAMPLES)
                    for part in torch.split(inputs, CHUNK)
                ]
            return torch.cat(parts, dim=1).clamp_min(1e-30).log()

        return predict

    return train


def sghmc_of_torch_uncertainty() -> Callable[..., torch.optim.Optimizer]:
    """From the one file that it is in: to import the package takes Lightning, and a torchvision that fits torch."""
    package = importlib.util.find_spec("torch_uncertainty")
    assert package is not None, "check_packages comes first"
    assert package.origin is not None
    loader = SourceFileLoader("sghmc", str(Path(package.origin).parent / "optim" / "sghmc.py"))
    module = ModuleType(loader.name)
    loader.exec_module(module)
    optimizer: Callable[..., torch.optim.Optimizer] = module.SGHMC
    return optimizer
