"""Methods from other people's packages. Each package is imported where it is used; without it the others still run."""

import importlib.util
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from ctld_lab.streams import stream_seed

from .problems import Problem
from .training import CHUNK, MOMENTUM, SAMPLES, Options, Predict, alone, by_sgd, descend, state, together


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
