"""UCI regression with the published splits: test log-likelihood and RMSE; rules are in docs/protocols/posterior.md.

All splits and trials of a method train together (`ctld.chains`). A file for each data set and method is written when done.
"""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctld import Ensemble, NonFiniteError, create
from ctld.chains import Chains
from ctld_lab.data.uci import load
from ctld_lab.files import RecordError, read_json, write_json
from ctld_lab.posterior.problems import Array, standardized
from ctld_lab.posterior.samplers import SAMPLERS, Setting, told

METHODS = ("sgd", "ensemble", "langevin", "sghmc", "baoab", "csghmc", "psgld", "paper", "calibrated")
TRIALS = tuple(product((0.001, 0.004), (0.3, 1.0)))
"""Learning rates (pSGLD: a tenth) and deviations of the prior."""
HIDDEN, BATCH, MOMENTUM, DRAW_EVERY = 50, 64, 0.9, 20


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    steps: int
    splits: int


@dataclass(frozen=True)
class Part:
    """The data of one split, standardised by what is trained on; shapes (n, columns) and (n, 1)."""

    inputs: Array
    targets: Array
    test_inputs: Array
    test_targets: Array
    unit: float
    """Deviation of the targets before that."""


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
        return self.output(self.hidden(inputs).relu())  # type: ignore[no-any-return]


def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean of −log N(y; f(x), σ²), but for a constant."""
    log_noise: Any = model.log_noise
    mean: Tensor = (0.5 * ((model(inputs) - targets) * (-log_noise).exp()).square() + log_noise).mean()
    return mean


def predicted(state: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Returns f(x) and log σ of models whose parameters are stacked, (models, n), for inputs of each."""
    hidden = (inputs @ state["hidden.weight"].mT + state["hidden.bias"][:, None]).relu()
    return (hidden @ state["output.weight"].mT + state["output.bias"][:, None])[..., 0], state["log_noise"]


@dataclass
class Mixture:
    """Gaussian predictives of the draws of several models, as they come in."""

    targets: Tensor
    logs: list[Tensor]
    means: list[Tensor]
    members: list[Tensor]
    """Whether the draw counts, for each model."""

    def add(self, means: Tensor, log_noise: Tensor, counts: Tensor) -> None:
        away = (means - self.targets) / log_noise.exp()
        self.logs.append(-0.5 * away.square() - log_noise - 0.5 * math.log(2 * math.pi))
        self.means.append(means)
        self.members.append(counts)

    def score(self, units: Tensor) -> list[dict[str, float]]:
        """Returns log-likelihood and RMSE of each model, in the units of the targets; −∞ where there is no draw."""
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


def part(inputs: Array, targets: Array, train: Any, test: Any) -> Part:
    x, x_test = standardized(inputs[train], inputs[test])
    y, y_test = standardized(targets[train], targets[test])
    return Part(x, y, x_test, y_test, float(targets[train].std()))


def held_out(train: Any, split: int) -> tuple[Any, Any]:
    """Returns the rows to train a trial on, and a fifth of the training part to choose by."""
    order = np.random.default_rng([7, split]).permutation(train)
    cut = len(train) // 5
    return order[cut:], order[:cut]


def scored(
    method: str, parts: Sequence[Part], trials: Sequence[tuple[float, float]], steps: int, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Trains a network on each part with its (lr, prior), all together; returns their scores on the test parts."""
    number, count = len(parts), len(parts[0].inputs)
    stacked = [
        np.stack([getattr(one, of) for one in parts]) for of in ("inputs", "targets", "test_inputs", "test_targets")
    ]
    x, y, x_test, y_test = (torch.tensor(array, dtype=torch.float32) for array in stacked)
    models = [Net(x.shape[-1], torch.Generator().manual_seed(seed)) for seed in seeds]
    made = [
        _optimizer(method, model, seed, lr, prior, count, steps)
        for model, seed, (lr, prior) in zip(models, seeds, trials, strict=True)
    ]
    ensembles = [each for each in made if isinstance(each, Ensemble)]
    chains = Chains(models, [getattr(each, "optimizer", each) for each in made], loss)
    batches = torch.Generator().manual_seed(seeds[0])
    mixture = Mixture(y_test[..., 0], [], [], [])
    everyone = torch.ones(number, dtype=torch.bool)
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
        mixture.add(*predicted(chains.stacked, x_test), everyone)
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
        lr = 0.1 * lr * math.sqrt(count)  # which its builder divides by again
    return SAMPLERS[method].build(model, Setting(count, decay, 1.0, lr, steps), seed)


def carry_out(
    name: str, folder: Path, size: Size, methods: Sequence[str], environment: dict[str, Any], data_dir: Path | None
) -> None:
    """Tunes and runs those methods of which there is no file."""
    inputs, targets, rows = load(name, data_dir, size.splits)
    whole = [part(inputs, targets, *split) for split in rows]
    inner = [part(inputs, targets, *held_out(train, number)) for number, (train, _) in enumerate(rows)]
    for method in methods:
        path = folder / name / f"{method}.json"
        if path.exists():
            if read_json(path).get("size") != asdict(size):
                raise RecordError(f"{path} is of another size; give another directory, or remove it")
            continue
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what temperings and thermometers say of so short a run is in the document
            trials = [trial for _ in inner for trial in TRIALS]
            parts = [each for each in inner for _ in TRIALS]
            tried = scored(
                method, parts, trials, size.steps, [1000 + split for split in range(size.splits) for _ in TRIALS]
            )
            table = [tried[first : first + len(TRIALS)] for first in range(0, len(tried), len(TRIALS))]
            best = [max(range(len(TRIALS)), key=lambda i, row=row: row[i]["log_likelihood"]) for row in table]  # type: ignore[misc]
            final = scored(method, whole, [TRIALS[i] for i in best], size.steps, [*range(size.splits)])
        seconds = round(time.process_time() - begun, 1)
        cell: dict[str, Any] = {
            "data": name,
            "method": method,
            "size": asdict(size),
            "trials": TRIALS,
            "tuning": table,
            "chosen": best,
        }
        cell |= {"final": final, "seconds": seconds, "environment": environment}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, cell)
        mean = np.mean([row["log_likelihood"] for row in final])
        print(f"{name} {method}: log-likelihood {mean:.3f} in {seconds:.0f} s", flush=True)
