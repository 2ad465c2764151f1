"""Training by batches, and what networks predict: what the methods have in common."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.lr_scheduler import CosineAnnealingLR

from ctld_lab.peers.problems import Problem
from ctld_lab.streams import stream_seed

MOMENTUM = 0.9
SAMPLES = 20  # of methods that draw networks from a distribution
CHUNK = 2000  # labels at a time, where no gradient is needed

Options = Mapping[str, float]
Predict = Callable[[Tensor], Tensor]
"""From inputs to log-probabilities: members, inputs, (characters,) classes."""
Advance = Callable[[Callable[[], Tensor]], Any]
"""One step, given what computes a gradient and returns the loss."""


@dataclass(frozen=True)
class Noted:
    """A prediction, and what is stored about its training beside the scores."""

    predict: Predict
    facts: Mapping[str, float]

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.predict(inputs)


def descend(
    problem: Problem,
    model: nn.Module,
    advance: Advance,
    seed: int,
    *,
    steps: int | None = None,
    member: int = 0,
    after: Callable[[int], None] = lambda step: None,
) -> None:
    """`after` is told how many steps there have been."""
    for step, batch in enumerate(problem.batches(seed, steps or problem.size.steps, member), start=1):

        def gradient(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
            model.zero_grad()
            loss = problem.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            if problem.size.clip:
                nn.utils.clip_grad_value_(model.parameters(), problem.size.clip)
            return loss.detach()

        advance(gradient)
        after(step)


def plain(optimizer: torch.optim.Optimizer, schedule: Any = None) -> Advance:
    def advance(gradient: Callable[[], Tensor]) -> None:
        gradient()
        optimizer.step()
        if schedule is not None:
            schedule.step()

    return advance


def momentum_sgd(model: nn.Module, options: Options) -> torch.optim.SGD:
    return torch.optim.SGD(
        model.parameters(), options["lr"], MOMENTUM, weight_decay=options["weight_decay"], fused=True
    )


def by_sgd(problem: Problem, options: Options, seed: int, *, steps: int, member: int = 0, dropout: float = 0.0) -> Any:
    """A network trained with lr along half a cosine to zero."""
    model = problem.model(seed, member, dropout)
    optimizer = momentum_sgd(model, options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "dropout", member))
        descend(problem, model, plain(optimizer, CosineAnnealingLR(optimizer, steps)), seed, steps=steps, member=member)
    return model


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def in_chunks(inputs: Tensor, call: Callable[[Tensor], Tensor]) -> Tensor:
    """A window of characters has a label for each of them."""
    rows = CHUNK if inputs.is_floating_point() else max(1, CHUNK // inputs.shape[1])
    return torch.cat([call(part).log_softmax(dim=-1) for part in torch.split(inputs, rows)])


def together(model: nn.Module, members: Iterable[Mapping[str, Tensor]]) -> Predict:
    kept = [dict(member) for member in members]

    def predict(inputs: Tensor) -> Tensor:
        def call(member: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
            return lambda part: functional_call(model, member, (part,))

        model.eval()
        return torch.stack([in_chunks(inputs, call(member)) for member in kept])

    return predict


def alone(model: nn.Module) -> Predict:
    return together(model, [state(model)])
