"""UCI regression with the published splits. All splits and trials of a method train together (`ctld.chains`)."""

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cells import Found
from ctld import Ensemble, NonFiniteError, create
from ctld.chains import Chains
from ctld_lab.data.uci import load

from .problems import Array, standardized
from .samplers import SAMPLERS, Setting, told

METHODS = ("sgd", "ensemble", "langevin", "sghmc", "baoab", "csghmc", "psgld", "paper", "calibrated")
TRIALS = tuple(product((0.001, 0.004), (0.3, 1.0)))
"""Learning rates (pSGLD: a tenth) and deviations of the prior."""
HIDDEN, BATCH, MOMENTUM, DRAW_EVERY = 50, 64, 0.9, 20


@dataclass(frozen=True)
class Part:
    """The data of one split, standardised by what is trained on; shapes (n, columns) and (n, 1)."""

    inputs: Array
    targets: Array
    test_inputs: Array
    test_targets: Array
    unit: float
    """Deviation of the targets before that."""

    @classmethod
    def of(cls, inputs: Array, targets: Array, train: Any, test: Any) -> "Part":
        x, x_test = standardized(inputs[train], inputs[test])
        y, y_test = standardized(targets[train], targets[test])
        return cls(x, y, x_test, y_test, float(targets[train].std()))


class Net(nn.Module):
    """One hidden layer of ReLU units, and the logarithm of the noise's deviation."""

    def __init__(self, columns: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(columns, HIDDEN), nn.Linear(HIDDEN, 1)
        self.log_noise = nn.Parameter(torch.zeros(1))
        for layer in (self.hidden, self.output):
            for parameter in layer.parameters():
                bound = layer.in_features**-0.5
                nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.hidden(inputs).relu())


def loss(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of −log N(y; f(x), σ²), but for a constant."""
    mean: Tensor = (0.5 * ((model(inputs) - targets) * (-model.log_noise).exp()).square() + model.log_noise).mean()
    return mean


def predicted(state: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(x) and log σ of models whose parameters are stacked, (models, n), for inputs of each."""
    hidden = (inputs @ state["hidden.weight"].mT + state["hidden.bias"][:, None]).relu()
    return (hidden @ state["output.weight"].mT + state["output.bias"][:, None])[..., 0], state["log_noise"]


@dataclass
class Mixture:
    """Gaussian predictives of the draws of several models, as they come in."""

    targets: Tensor
    logs: list[Tensor] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    members: list[Tensor] = field(default_factory=list)
    """True where the draw counts, for each model."""

    def add(self, means: Tensor, log_noise: Tensor, counts: Tensor) -> None:
        away = (means - self.targets) / log_noise.exp()
        self.logs.append(-0.5 * away.square() - log_noise - 0.5 * math.log(2 * math.pi))
        self.means.append(means)
        self.members.append(counts)

    def score(self, units: Tensor) -> list[dict[str, float]]:
        """Return log-likelihood and RMSE of each model in the units of the targets; −1e9 and 1e9 without a draw."""
        logs, means, members = torch.stack(self.logs), torch.stack(self.means), torch.stack(self.members)
        number = members.sum(dim=0)
        logs = logs.masked_fill(~members[..., None], -math.inf).logsumexp(dim=0) - number.log()[:, None]
        mean = (means * members[..., None]).sum(dim=0) / number[:, None]
        likelihood = logs.mean(dim=1) - units.log()
        rmse = (mean - self.targets).square().mean(dim=1).sqrt() * units
        rows = zip(likelihood.tolist(), rmse.tolist(), number.tolist(), strict=True)
        return [
            {"log_likelihood": a if math.isfinite(a) else -1e9, "rmse": b if math.isfinite(b) else 1e9, "draws": n}
            for a, b, n in rows
        ]


def held_out(train: Any, split: int) -> tuple[Any, Any]:
    """Return the rows to train a trial on, and a fifth of the training part to choose by."""
    order = np.random.default_rng([7, split]).permutation(train)
    cut = len(train) // 5
    return order[cut:], order[:cut]


def scored(
    method: str, parts: Sequence[Part], trials: Sequence[tuple[float, float]], steps: int, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Train a network on each part with its (lr, prior), all together; return their scores on the test parts."""
    number, count = len(parts), len(parts[0].inputs)
    names = ("inputs", "targets", "test_inputs", "test_targets")
    stacked = [np.stack([getattr(one, name) for one in parts]) for name in names]
    x, y, x_test, y_test = (torch.tensor(array, dtype=torch.float32) for array in stacked)
    models = [Net(x.shape[-1], torch.Generator().manual_seed(seed)) for seed in seeds]
    made = [
        _optimizer(method, model, seed, lr, prior, count, steps)
        for model, seed, (lr, prior) in zip(models, seeds, trials, strict=True)
    ]
    ensembles = [each for each in made if isinstance(each, Ensemble)]
    chains = Chains(models, [getattr(each, "optimizer", each) for each in made], loss)
    batches = torch.Generator().manual_seed(seeds[0])
    mixture = Mixture(y_test[..., 0])
    for step in range(1, steps + 1):
        rows = torch.randint(count, (number, BATCH), generator=batches)
        places = torch.arange(number)[:, None], rows
        losses = chains.backward(x[places], y[places], shared=False)
        try:
            if ensembles:
                for ensemble, own in zip(ensembles, losses.tolist(), strict=True):
                    ensemble.step(own)
            else:
                chains.step()
        except NonFiniteError:
            pass  # it has diverged, and is scored so
        if method == "sgd":
            for each, (lr, _) in zip(made, trials, strict=True):
                each.param_groups[0]["lr"] = 0.5 * lr * (1 + math.cos(math.pi * step / steps))
        elif not ensembles and 2 * step > steps and step % DRAW_EVERY == 0:
            cold = torch.tensor([SAMPLERS[method].cold(each) for each in made])
            mixture.add(*predicted(chains.stacked, x_test), cold)
    if method == "sgd":
        mixture.add(*predicted(chains.stacked, x_test), torch.ones(number, dtype=torch.bool))
    members = [[sample.state for sample in each.collector] or [dict(each.model.state_dict())] for each in ensembles]
    for place in range(max(map(len, members), default=0)):  # one that collapsed was left out, and has fewer
        chosen = [own[min(place, len(own) - 1)] for own in members]
        states = {name: torch.stack([state[name] for state in chosen]) for name in chains.stacked}
        mixture.add(*predicted(states, x_test), torch.tensor([place < len(own) for own in members]))
    scores = mixture.score(torch.tensor([one.unit for one in parts]))
    return [row | told(each) for row, each in zip(scores, made, strict=True)]


def _optimizer(method: str, model: nn.Module, seed: int, lr: float, prior: float, count: int, steps: int) -> Any:
    decay = 1.0 / (count * prior**2)
    if method == "sgd":
        return create("sgd", model.parameters(), lr=lr, momentum=MOMENTUM, weight_decay=decay)
    if method == "ensemble":
        return Ensemble(model, lr, count, steps, momentum=MOMENTUM, weight_decay=decay, seed=seed)
    if method == "psgld":
        lr = 0.1 * lr * math.sqrt(count)  # its builder divides by the root again
    return SAMPLERS[method].build(model, Setting(count, decay, 1.0, lr, steps), seed)


def work(found: Found, name: str, method: str, steps: int, splits: int) -> Iterator[str]:
    """Choose lr and prior for each split on a fifth of its training part, then train anew and look at the test part."""
    inputs, targets, rows = load(name, None, splits)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what temperings and thermometers say of so short a run is stored or known
        if "tuning" not in found:
            inner = [Part.of(inputs, targets, *held_out(train, split)) for split, (train, _) in enumerate(rows)]
            seeds = [1000 + split for split in range(splits) for _ in TRIALS]
            trials = [trial for _ in inner for trial in TRIALS]
            tried = scored(method, [each for each in inner for _ in TRIALS], trials, steps, seeds)
            table = found["tuning"] = [
                tried[first : first + len(TRIALS)] for first in range(0, len(tried), len(TRIALS))
            ]
            found["chosen"] = [max(range(len(TRIALS)), key=lambda i: row[i]["log_likelihood"]) for row in table]
            yield "tuning"
        whole = [Part.of(inputs, targets, *split) for split in rows]
        found["final"] = scored(method, whole, [TRIALS[i] for i in found["chosen"]], steps, [*range(splits)])
    found["cpu_seconds"] = round(time.process_time() - began, 1)
    yield f"log-likelihood {np.mean([row['log_likelihood'] for row in found['final']]):.3f}"
