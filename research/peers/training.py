"""Parts that the methods share: training by batches, and predictions of networks."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from ctld_lab.streams import stream_seed

from .problems import Problem

MOMENTUM = 0.9
SAMPLES = 20  # draws of methods that have a distribution over networks
CHUNK = 2000  # labels at a time, where no gradient is needed
SWAG_FROM, SWAG_RATE, SWAG_RANK = 0.75, 0.2, 20  # share of the steps before averaging, lr after it; networks averaged

Options = Mapping[str, float]
State = dict[str, Tensor]
Advance = Callable[[Callable[[], Tensor]], Any]
"""Take one step, given a function that computes a gradient and returns the loss."""


@dataclass(frozen=True)
class Predict:
    """Log-probabilities of shape (members, inputs, (characters,) classes); `facts` are stored beside the scores."""

    call: Callable[[Tensor], Tensor]
    facts: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.call(inputs)


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
    """Train by batches. `after` is given the number of steps done."""
    for step, batch in enumerate(problem.batches(seed, steps or problem.size.steps, member), start=1):

        def gradient(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
            model.zero_grad()
            loss = problem.loss(model, batch)
            loss.backward()
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


def cosine(kind: Any, problem: Problem, options: Options, seed: int, **more: Any) -> Predict:
    """Train one network by an optimizer of torch with lr along half a cosine to zero."""
    model = problem.model(seed)
    optimizer = kind(model.parameters(), options["lr"], weight_decay=options["weight_decay"], fused=True, **more)
    descend(problem, model, plain(optimizer, CosineAnnealingLR(optimizer, problem.size.steps)), seed)
    return alone(model)


def momentum_sgd(model: nn.Module, options: Options) -> torch.optim.SGD:
    return torch.optim.SGD(
        model.parameters(), options["lr"], MOMENTUM, weight_decay=options["weight_decay"], fused=True
    )


def by_sgd(problem: Problem, options: Options, seed: int, *, steps: int, member: int = 0, dropout: float = 0.0) -> Any:
    """Return a network trained by SGD with momentum, lr along half a cosine to zero."""
    model = problem.model(seed, member, dropout)
    optimizer = momentum_sgd(model, options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "dropout", member))
        descend(problem, model, plain(optimizer, CosineAnnealingLR(optimizer, steps)), seed, steps=steps, member=member)
    return model


def down_and_along(optimizer: torch.optim.Optimizer, steps: int) -> tuple[LambdaLR, set[int]]:
    """Return lr along half a cosine to a fifth, then constant; and twenty steps of that last stretch."""
    start = round(SWAG_FROM * steps)

    def rate(step: int) -> float:
        return SWAG_RATE + (1.0 - SWAG_RATE) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / start)))

    places = {start + round((steps - start) * place / SWAG_RANK) for place in range(1, SWAG_RANK + 1)}
    return LambdaLR(optimizer, rate), places


def along_sgd(problem: Problem, options: Options, seed: int) -> tuple[Any, Tensor]:
    """Return a network, and the weights of twenty that SGD passed in the last quarter of its steps."""
    model = problem.model(seed)
    optimizer = momentum_sgd(model, options)
    schedule, places = down_and_along(optimizer, problem.size.steps)
    seen: list[Tensor] = []

    def after(step: int) -> None:
        if step in places:
            seen.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())

    descend(problem, model, plain(optimizer, schedule), seed, after=after)
    return model, torch.stack(seen)


def sampled(
    problem: Problem, model: nn.Module, optimizer: Any, seed: int, places: Any, schedule: Any = None
) -> Predict:
    """Train, and keep the network after each of `places`."""
    members: list[State] = []

    def after(step: int) -> None:
        if step in places:
            members.append(state(model))

    descend(problem, model, plain(optimizer, schedule), seed, after=after)
    return together(model, members)


def state(model: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def in_chunks(inputs: Tensor, call: Callable[[Tensor], Tensor]) -> Tensor:
    """Return log-probabilities, some rows at a time; a window of characters has a label for each of them."""
    rows = CHUNK if inputs.is_floating_point() else max(1, CHUNK // inputs.shape[1])
    return torch.cat([call(part).log_softmax(dim=-1) for part in torch.split(inputs, rows)])


def together(
    model: nn.Module, members: Iterable[Mapping[str, Tensor]], facts: Mapping[str, float] | None = None
) -> Predict:
    kept = [dict(member) for member in members]

    def predict(inputs: Tensor) -> Tensor:
        model.eval()
        return torch.stack(
            [in_chunks(inputs, lambda part, own=own: functional_call(model, own, (part,))) for own in kept]
        )

    return Predict(predict, facts or {})


def alone(model: nn.Module) -> Predict:
    return together(model, [state(model)])
