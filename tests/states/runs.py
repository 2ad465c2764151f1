"""Small runs of every method, in arithmetic that every processor rounds alike.

`PYTHONPATH=research python tests/states/runs.py FOLDER [NAME ...]` stores them.

What is stored was saved by version 0.1.0, or, of methods that it did not have, by 0.2.0: the state after some steps, the
parameters there, and where further steps led. `test_stored_states.py` holds later versions to it.
"""

import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import methods
from ctld import CTLD, RMSPreconditioner, Tempering

FIRST, THEN = 23, 17
SHAPES = ((7, 5), (7,), (3, 2, 2), (40,))
NUM_DATA = 50.0


def parameters(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = np.random.Generator(np.random.Philox(5))
    made = [torch.from_numpy(generator.standard_normal(shape)).to(dtype) for shape in SHAPES]
    return [torch.nn.Parameter(tensor) for tensor in made]


def gradients(params: list[Tensor], step: int) -> float:
    """Sets those of Σ k θ²/2 with minibatch noise, and returns the loss, added up exactly."""
    generator = np.random.Generator(np.random.Philox(1000 + step))
    total = []
    for number, parameter in enumerate(params):
        stiffness = 0.5 + 0.25 * number
        noise = torch.from_numpy(generator.integers(-4, 5, parameter.shape) / 16.0).to(parameter.dtype)
        parameter.grad = (parameter.detach() * stiffness).add_(noise)
        total += [0.5 * stiffness * x * x for x in parameter.detach().double().reshape(-1).tolist()]
    return math.fsum(total) + float(generator.integers(-8, 9)) / 64.0


def advance(optimizer: Any, params: list[Tensor], first: int, count: int) -> None:
    for step in range(first, first + count):
        optimizer.step(loss=gradients(params, step))


def _two_groups(params: list[Tensor]) -> list[dict[str, Any]]:
    return [
        {"params": params[:2]},
        {"params": params[2:3], "explore": False, "lr": 0.03},
        {"params": params[3:], "lr": 0.02, "momentum": 0.5},
    ]


def _ctld(params: Any, **options: Any) -> CTLD:
    chosen: dict[str, Any] = {"lr": 0.05, "num_data": NUM_DATA, "exploration_steps": 60, "weight_decay": 0.01}
    chosen |= {"temperature": 0.5, "seed": 11} | options
    return CTLD(params, **chosen)


Run = tuple[torch.dtype, Callable[[list[Tensor]], Any]]
_PLAIN: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05},
    "rmsprop": {"lr": 0.01},
    "adam": {"lr": 0.01},
    "adadelta": {"lr": 0.5},
    "anneal_sgd": {"lr": 0.05, "momentum": 0.5, "seed": 11},
    "sgld": {"lr": 0.05, "num_data": NUM_DATA, "seed": 11, "weight_decay": 0.01},
    "psgld": {"lr": 0.01, "num_data": NUM_DATA, "seed": 11},
    "sghmc": {"lr": 0.05, "num_data": NUM_DATA, "seed": 11},
    "sgnht": {"lr": 0.05, "num_data": NUM_DATA, "seed": 11},
    "langevin": {"lr": 0.05, "num_data": NUM_DATA, "seed": 11, "noise": "three_point"},
    "simulated_annealing": {"lr": 0.05, "num_data": NUM_DATA, "seed": 11},
    "santa": {"lr": 0.001, "num_data": NUM_DATA, "exploration_steps": 30, "seed": 11},
    "easgd": {"lr": 0.05},
    "eamsgd": {"lr": 0.05},
    "csghmc": {"lr": 0.05, "num_data": NUM_DATA, "num_steps": 60, "num_cycles": 3, "seed": 11},
    "tact_hmc": {"lr": 0.01, "num_data": NUM_DATA, "alpha_step": 0.2, "weight_decay": 0.01, "seed": 11},
    "resgld": {"lr": 0.01, "num_data": NUM_DATA, "weight_decay": 0.01, "seed": 11},
}
RUNS: dict[str, Run] = {
    name: (torch.float32, lambda params, name=name, options=options: methods.create(name, params, **options))
    for name, options in _PLAIN.items()
} | {
    "santa-euler": (
        torch.float32,
        lambda params: methods.create("santa", params, integrator="euler", **_PLAIN["santa"]),
    ),
    "ctld": (torch.float32, _ctld),
    "ctld-float64": (torch.float64, _ctld),
    "ctld-bfloat16": (torch.bfloat16, lambda params: _ctld(params, temperature=1.0, num_data=2.0)),
    "ctld-switch": (torch.float32, lambda params: _ctld(params, exploration_steps=30)),
    "ctld-auto": (torch.float32, lambda params: _ctld(params, temperature="auto")),
    "ctld-three-point": (torch.float32, lambda params: _ctld(params, noise="three_point")),
    "ctld-groups": (torch.float32, lambda params: _ctld(_two_groups(params))),
    "ctld-cycles": (torch.float32, lambda params: _ctld(params, exploration_steps=9, cycle_steps=14)),
    "ctld-baoab": (torch.float32, lambda params: _ctld(params, integrator="baoab")),
    "ctld-ubu": (torch.float32, lambda params: _ctld(params, integrator="ubu")),
    "ctld-compensation": (torch.float32, lambda params: _ctld(params, noise_compensation=True)),
    "ctld-preconditioner": (
        torch.float32,
        lambda params: _ctld(params, preconditioner=RMSPreconditioner(every=1, smoothing=0.9)),
    ),
    "ctld-constant": (torch.float32, lambda params: _ctld(params, tempering=Tempering.constant(1.5))),
    "ctld-driven": (torch.float32, lambda params: _ctld(params, tempering=Tempering.driven(20))),
    "ctld-calibrated": (
        torch.float64,
        lambda params: _ctld(
            params, lr=0.02, exploration_steps=400, integrator="baoab", tempering=Tempering.calibrated(0.3, warm_up=100)
        ),
    ),
    "ctld-calibrated-euler": (
        torch.float64,
        lambda params: _ctld(params, lr=0.02, exploration_steps=400, tempering=Tempering.calibrated(0.3, warm_up=100)),
    ),
    "ctld-maximize": (torch.float32, lambda params: _ctld(params, lr=0.001, maximize=True)),
}
SINCE_0_2 = ("tact_hmc", "resgld")


def length(name: str) -> int:
    """Steps before the state is saved: calibrated tempering has to be beyond its warm-up."""
    return 130 if "calibrated" in name else FIRST


def build(name: str) -> tuple[Any, list[Tensor]]:
    dtype, make = RUNS[name]
    params = parameters(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(params), params


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or RUNS:
        optimizer, params = build(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            advance(optimizer, params, 0, length(name))
            stored: dict[str, Any] = {"state": optimizer.state_dict(), "params": [p.detach().clone() for p in params]}
            torch.save(stored, buffer := folder / f"{name}.unfinished")
            advance(optimizer, params, length(name), THEN)
        stored = torch.load(buffer, weights_only=True) | {"then": [p.detach() for p in params]}
        torch.save(stored, folder / f"{name}.pt")
        buffer.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
