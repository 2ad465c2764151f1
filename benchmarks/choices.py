"""Which optimizers are measured, and with which options."""

import importlib
import importlib.metadata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import ctld
from ctld import Tempering

NUM_DATA = 60_000
FOREVER = 10**9
LR = 1e-3

# The options that a row of the table needs, and those that hold a method with two phases in one of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "num_data": {"num_data": NUM_DATA},
    "exploration_steps": {"exploration_steps": FOREVER},
    "num_steps": {"num_steps": FOREVER},
}
PHASES: dict[str, dict[str, dict[str, Any]]] = {
    "ctld": {"exploration": {"temperature": 1.0}, "fine-tuning": {"exploration_steps": 0}},
    "santa": {"exploration": {}, "refinement": {"exploration_steps": 0}},
    "csghmc": {"exploration": {"exploration_share": 1.0}, "sampling": {"exploration_share": 0.0}},
}
# Of a method's phases, the one that has noise.
NOISY_PHASES = {"santa": "exploration", "csghmc": "sampling"}

Parameters = list[nn.Parameter]


@dataclass(frozen=True)
class Choice:
    """An optimizer with its options, and the name of its row."""

    name: str
    build: Callable[[Parameters], torch.optim.Optimizer]
    takes_loss: bool = True


def from_table(method: str, phase: str = "", **options: Any) -> Callable[[Parameters], torch.optim.Optimizer]:
    """A row of `ctld.OPTIMIZERS` in one of its phases."""
    row = ctld.OPTIMIZERS[method]
    chosen: dict[str, Any] = {"lr": LR} | ({"seed": 0} if row.noisy else {})
    for option in sorted(row.needs):
        chosen |= OPTIONS[option]
    chosen |= PHASES[method][phase] if phase else {}
    return lambda parameters: ctld.create(method, parameters, **(chosen | options))


def _sgd(fused: bool | None) -> Callable[[Parameters], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, LR, 0.9, fused=fused)


FUSED_SGD = Choice("SGD, fused", _sgd(True), takes_loss=False)
"""`torch.optim.SGD(momentum=0.9, fused=True)`, the reference: torch's fastest."""
SGD = Choice("SGD", _sgd(None), takes_loss=False)
GAUSSIAN = Choice("CTLD exploring, Gaussian", from_table("ctld", "exploration"))
THREE_POINT = Choice("CTLD exploring, three-point", from_table("ctld", "exploration", noise="three_point"))
FINE_TUNING = Choice("CTLD fine-tuning", from_table("ctld", "fine-tuning"))
UNCHECKED = [
    Choice("CTLD exploring, Gaussian, unchecked", from_table("ctld", "exploration", check_gradients=False)),
    Choice(
        "CTLD exploring, three-point, unchecked",
        from_table("ctld", "exploration", noise="three_point", check_gradients=False),
    ),
]
LANGEVIN = Choice("langevin", from_table("langevin"))
"""One group of Gaussian noise at a constant temperature: what of an exploring step is not tempering."""
BAOAB = Choice("CTLD exploring, BAOAB", from_table("ctld", "exploration", integrator="baoab"))


def _two_groups(parameters: Parameters) -> torch.optim.Optimizer:
    """One-dimensional parameters do not explore, as the documentation recommends for norms and biases."""
    explore = {"params": [parameter for parameter in parameters if parameter.ndim > 1]}
    others = {"params": [parameter for parameter in parameters if parameter.ndim < 2], "explore": False}
    return from_table("ctld", "exploration")([explore, others])  # type: ignore[list-item]


TWO_GROUPS = Choice("CTLD exploring, two groups", _two_groups)
CONSTANT = Choice(
    "CTLD at constant temperature, BAOAB",
    lambda parameters: from_table("ctld", "exploration", integrator="baoab", tempering=Tempering.constant())(
        parameters
    ),
)


def _calibrated(parameters: Parameters) -> torch.optim.Optimizer:
    # In cycles, of which the first never ends: then the warm-up is as long as it is told to be.
    options = {"integrator": "baoab", "cycle_steps": FOREVER + 1, "tempering": Tempering.calibrated(0.5, warm_up=100)}
    return from_table("ctld", "exploration", **options)(parameters)


CALIBRATED = Choice("CTLD, calibrated tempering, BAOAB", _calibrated)
COMPENSATED = Choice("CTLD exploring, compensated", from_table("ctld", "exploration", noise_compensation=True))
MINIMISERS = [Choice(name, from_table(name)) for name in ("rmsprop", "adam", "adadelta")]


def samplers() -> list[Choice]:
    """Every method that injects noise, where it does, besides CTLD and `langevin`."""
    names = [name for name, method in ctld.OPTIMIZERS.items() if method.noisy and name not in ("ctld", "langevin")]
    return [Choice(name, from_table(name, NOISY_PHASES.get(name, ""))) for name in names]


# ---- other people's SGHMC, where it is installed ----


def peers() -> tuple[list[Choice], dict[str, str]]:
    """Those that can be imported, and what was found of each."""
    made, found = [], {}
    for package, build in (("posteriors", PosteriorsSGHMC), ("torch_sgld", _torch_sgld)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensordict's, on the defaults of posteriors' state classes
            try:
                importlib.import_module(package)
            except ImportError:
                found[package] = "not installed"
                continue
        found[package] = importlib.metadata.version(package.replace("_", "-"))
        made.append(Choice(f"SGHMC of {package} {found[package]}", build, takes_loss=False))
    return made, found


def _torch_sgld(parameters: Parameters) -> torch.optim.Optimizer:
    # Its momentum is the friction, 1 − momentum, and its temperature that of the mean loss.
    optimizer: torch.optim.Optimizer = importlib.import_module("torch_sgld").SGLD(
        parameters, lr=LR, momentum=0.1, temperature=1 / NUM_DATA
    )
    return optimizer


class PosteriorsSGHMC(torch.optim.Optimizer):
    """posteriors' SGHMC on given gradients.

    It computes gradients by itself, from a log posterior; this one has the given gradients without computing anything.
    """

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters, {})
        module = importlib.import_module("posteriors.sgmcmc.sghmc")
        names = [str(number) for number in range(len(parameters))]

        class Given(torch.autograd.Function):
            @staticmethod
            def forward(*inputs: Tensor) -> Tensor:
                return inputs[0].new_zeros(())

            @staticmethod
            def setup_context(context: Any, inputs: Any, output: Any) -> None:
                pass

            @staticmethod
            def backward(context: Any, *output: Any) -> Any:
                return tuple(parameter.grad for parameter in parameters)

        def log_posterior(values: Any, batch: Any) -> tuple[Tensor, Tensor]:
            return Given.apply(*(values[name] for name in names)), torch.empty(0)  # type: ignore[no-untyped-call]

        root = LR**0.5
        self._transform = module.build(log_posterior, lr=root, alpha=0.1 / root, temperature=1 / NUM_DATA, momenta=0.0)
        values = {name: parameter.detach() for name, parameter in zip(names, parameters, strict=True)}
        self._chain = self._transform.init(values)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._chain, _ = self._transform.update(self._chain, None, inplace=True)
