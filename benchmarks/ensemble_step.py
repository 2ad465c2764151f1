"""What a step of `Ensemble` costs beside the step of `CTLD` in it, for a small network on a CPU.

    python -m benchmarks.ensemble_step

Prints microseconds of the two, the least of many interleaved rounds, while exploring and while fine-tuning. In fine-tuning the
plain loop lowers lr at each step, too, as any schedule does.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ctld import CTLD, Ensemble, Tempering

STEPS, ROUNDS = 200, 30
LOSS = torch.tensor(1.0)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def plain(model: nn.Module, exploration: int) -> Callable[[], None]:
    """A loop's own step: CTLD, its gradients cleared, lr lowered."""
    parameters = list(model.parameters())
    optimizer = CTLD(
        parameters,
        0.01,
        num_data=1000,
        exploration_steps=exploration,
        cycle_steps=100_000,
        weight_decay=1e-3,
        temperature=1e-9,
        tempering=Tempering.constant(),
        seed=0,
    )

    def step() -> None:
        optimizer.step(loss=LOSS)
        for parameter in parameters:
            parameter.grad = None
        if not optimizer.exploring:
            optimizer.param_groups[0]["lr"] *= 0.99999

    return step


def ensemble(model: nn.Module, exploration: int) -> Callable[[], None]:
    """The same by an ensemble."""
    made = Ensemble(
        model,
        0.01,
        1000,
        100_000,
        cycles=1,
        exploration=exploration / 100_000,
        weight_decay=1e-3,
        temperature=1e-9,
        seed=0,
    )

    def step() -> None:
        made.step(LOSS)

    return step


def microseconds(step: Callable[[], None], parameters: list[Tensor], gradients: list[Tensor]) -> float:
    """Time of one step, from the best of so many."""
    started = time.perf_counter()
    for _ in range(STEPS):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        step()
    return 1e6 * (time.perf_counter() - started) / STEPS


def main() -> None:
    torch.set_num_threads(1)
    for phase, exploration in (("exploring", 90_000), ("fine-tuning", STEPS)):
        models = [network(), network()]
        steps = [plain(models[0], exploration), ensemble(models[1], exploration)]
        gradients = [1e-6 * torch.randn_like(parameter) for parameter in models[0].parameters()]
        rows = [
            [microseconds(step, list(model.parameters()), gradients) for step, model in zip(steps, models, strict=True)]
            for _ in range(ROUNDS)
        ][1:]
        ctld, ours = (min(column) for column in zip(*rows, strict=True))
        sys.stdout.write(f"{phase}: CTLD {ctld:.1f} µs, Ensemble {ours:.1f} µs, {ours - ctld:+.1f}\n")


if __name__ == "__main__":
    main()
