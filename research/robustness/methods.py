"""Methods compared: the default, SGD with the same learning rate, weight decay and gradients, and its usual rivals."""

import math
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import ctld
from robustness.problems import Problem

MOMENTUM = 0.9
PASSES = 20  # of MC dropout
DROPOUT = 0.1
DEEP = 3  # members of a deep ensemble, each with a third of the gradients
SWA_SHARE = 0.25  # of the steps average weights

Rows = tuple[Tensor, Tensor, Tensor, Tensor]


class Training:
    """One training: a problem's rows, settings and a seed; every method sees the same batches."""

    def __init__(self, problem: Problem, lr: float, weight_decay: float, epochs: int, seed: int) -> None:
        self.problem, self.lr, self.weight_decay, self.seed = problem, lr, weight_decay, seed
        self.x, self.y, self.judged, _ = problem.draw(seed)
        self.per_epoch = len(self.x) // problem.batch
        self.steps = self.per_epoch * epochs

    def model(self, dropout: float = 0.0, number: int = 0) -> nn.Module:
        torch.manual_seed(1000 * number + self.seed)
        return self.problem.network(dropout)

    def batches(self, steps: int, number: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(1000 * number + self.seed + 7)
        for step in range(steps):
            place = step % self.per_epoch
            if place == 0:
                order = torch.randperm(len(self.x), generator=generator)
            rows = order[place * self.problem.batch : (place + 1) * self.problem.batch]
            yield self.x[rows], self.y[rows]

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), self.lr, MOMENTUM, weight_decay=self.weight_decay, fused=self.lr > 0)


@torch.no_grad()
def outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    training = model.training
    model.eval()
    found: Tensor = model(inputs)
    model.train(training)
    return found


def sgd(
    training: Training, model: nn.Module, steps: int, number: int = 0, after: Callable[[int], None] | None = None
) -> None:
    """SGD with momentum, lr along one cosine to zero."""
    optimizer = training.optimizer(model)
    for step, (x, y) in enumerate(training.batches(steps, number)):
        for group in optimizer.param_groups:
            group["lr"] = training.lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        training.problem.loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if after is not None:
            after(step)


def plain(training: Training) -> list[Tensor]:
    model = training.model()
    sgd(training, model, training.steps)
    return [outputs(model, training.judged)]


def moving_average(training: Training) -> list[Tensor]:
    """An exponential average of the weights, over a twentieth of the run."""
    model = training.model()
    decay = 1.0 - 1.0 / max(2.0, training.steps / 20)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    sgd(training, model, training.steps, after=lambda step: averaged.update_parameters(model))
    return [outputs(averaged, training.judged)]


def swa(training: Training) -> list[Tensor]:
    """Stochastic weight averaging: half of lr for the last quarter, one model averaged over its epochs."""
    model = training.model()
    optimizer, averaged = training.optimizer(model), AveragedModel(model)
    first = int((1 - SWA_SHARE) * training.steps)
    every = max(1, min(training.per_epoch, (training.steps - first) // 5))
    for step, (x, y) in enumerate(training.batches(training.steps)):
        factor = 0.5 + 0.25 * (1 + math.cos(math.pi * min(1.0, step / first)))
        for group in optimizer.param_groups:
            group["lr"] = training.lr * factor
        optimizer.zero_grad()
        training.problem.loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step >= first and (step - first + 1) % every == 0:
            averaged.update_parameters(model)
    update_bn([x for x, _ in training.batches(training.per_epoch)], averaged)
    return [outputs(averaged, training.judged)]


def deep(training: Training) -> list[Tensor]:
    found = []
    for number in range(DEEP):
        model = training.model(number=number)
        sgd(training, model, max(2, training.steps // DEEP), number)
        found.append(outputs(model, training.judged))
    return found


def dropout(training: Training) -> list[Tensor]:
    model = training.model(DROPOUT)
    sgd(training, model, training.steps)
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    with torch.no_grad():
        return [model(training.judged) for _ in range(PASSES)]


def ensemble(**options: object) -> Callable[[Training], list[Tensor]]:
    """ctld.Ensemble with these options; the rest as it comes."""

    def train(training: Training) -> list[Tensor]:
        model = training.model()
        made = ctld.Ensemble(
            model, training.lr, len(training.x), training.steps, momentum=MOMENTUM, weight_decay=training.weight_decay,
            steps_per_epoch=training.per_epoch, seed=training.seed, **options,  # type: ignore[arg-type]
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for x, y in training.batches(training.steps):
                loss = training.problem.loss(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                made.step(loss)
        model.eval()
        with torch.no_grad():
            return [functional_call(model, dict(member.state), training.judged) for member in made.collector]

    return train


METHODS: dict[str, Callable[[Training], list[Tensor]]] = {
    "SGD": plain,
    "auto cycles, T = 0": ensemble(temperature=0.0),
    "auto cycles, T auto": ensemble(),
    "six cycles, T auto": ensemble(cycles=6),
    "SWA": swa,
    "EMA": moving_average,
    "deep ensemble": deep,
    "MC dropout": dropout,
}
CORE = ("SGD", "auto cycles, T = 0", "auto cycles, T auto")
