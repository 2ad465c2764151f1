"""How near samplers come to the reference, at equal numbers of gradients; rules are in docs/protocols/posterior.md.

All chains of a stage take their steps together (`ctld.chains`), each by its own optimizer. A file for each problem and sampler
is written after a stage; what is there is not computed again.
"""

import contextlib
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctld import NonFiniteError
from ctld.chains import Chains
from ctld_lab.files import read_of, write_json
from ctld_lab.posterior.problems import Array, Problem
from ctld_lab.posterior.reference import LEVELS, predictions, read
from ctld_lab.posterior.samplers import RATES, SAMPLERS, Setting, told

DRAW_EVERY = 20
BURN_IN = 0.25
"""Share of a run that is dropped."""
FEWEST = 50
"""Draws; a chain with fewer has no predictive, and its distances are infinite."""
_GRID = np.linspace(-6.0, 6.0, 121)


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    steps: int
    """Gradients of a chain."""
    tuning: int
    """Chains at each learning rate."""
    final: int


@dataclass(frozen=True)
class Score:
    """Distances of one chain's predictive to the reference's, means over test inputs."""

    w2: float
    """Of the network's outputs, or probabilities of classes, in units of the reference's deviation."""
    total_variation: float
    """Of the predictive distribution of the target."""
    agreement: float | None
    """Share of inputs at which the most probable class is the same; None without classes."""
    right: float | None
    """Share of draws with the right one of two mirror images; None where there are none."""
    draws: int


def score(problem: Problem, drawn: Array, reference: Array) -> Score:
    """Compares draws, (draws, points, outputs), with quantiles of the reference, (levels, points, outputs)."""
    if len(drawn) < FEWEST or not np.isfinite(drawn).all():
        return Score(np.inf, 1.0, None, None, len(drawn))
    quantiles = np.quantile(drawn, LEVELS, axis=0)
    w2 = np.sqrt(((quantiles - reference) ** 2).mean(axis=0)) / reference.std(axis=0)
    agreement = right = None
    if problem.noise is None:
        ours, theirs = drawn.mean(axis=0), reference.mean(axis=0)
        variation = 0.5 * np.abs(ours - theirs).sum(axis=-1)
        agreement = float((ours.argmax(axis=-1) == theirs.argmax(axis=-1)).mean())
    else:
        difference = _density(problem, quantiles) - _density(problem, reference)
        variation = 0.5 * np.abs(difference).sum(axis=0) * (_GRID[1] - _GRID[0])
    if problem.mirrored:
        tilt = (drawn * problem.test_inputs).mean(axis=(1, 2))
        right = float((tilt > 0).mean())
    return Score(float(w2.mean()), float(variation.mean()), agreement, right, len(drawn))


def _density(problem: Problem, quantiles: Array) -> Array:
    """Returns the density of the target on a grid, (grid, points): a Gaussian about every fourth quantile."""
    assert problem.noise is not None
    away = (_GRID[:, None, None] - quantiles[None, 2::4, :, 0]) / problem.noise
    normal: Array = np.exp(-0.5 * away**2).mean(axis=1) / (problem.noise * np.sqrt(2 * np.pi))
    return normal


def floor(problem: Problem, reference: Array, draws: int, repeats: int = 20) -> Score:
    """Returns the mean score of so many independent draws of the reference: what a perfect sampler has."""
    generator, scores = np.random.default_rng(0), []
    for _ in range(repeats):
        level = generator.integers(len(LEVELS), size=(draws, *reference.shape[1:]))
        scores.append(score(problem, np.take_along_axis(reference, level, axis=0), reference))
    w2, variation = (float(np.mean([getattr(one, of) for one in scores])) for of in ("w2", "total_variation"))
    return Score(w2, variation, None, None, draws)


def model_of(problem: Problem, generator: torch.Generator) -> nn.Sequential:
    """Returns a network with weights as torch's own rule draws them, from the generator given."""
    layers = nn.Linear(problem.inputs.shape[1], problem.hidden), nn.Linear(problem.hidden, problem.outputs)
    for layer in layers:
        for parameter in layer.parameters():
            bound = layer.in_features**-0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1]).double()


def mean_loss(problem: Problem) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Returns the loss whose N-fold, with the prior, is −log posterior."""

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs: Tensor = model(inputs)
        if problem.noise is None:
            return nn.functional.cross_entropy(outputs, targets)
        return 0.5 * (outputs - targets).square().mean() / problem.noise**2

    return loss


def curvature(problem: Problem, folder: Path) -> float:
    """Returns the largest curvature of mean loss and prior at the stored draws of the reference."""
    with np.load(folder / f"{problem.reference or problem.name}.npz", allow_pickle=False) as stored:
        draws = torch.tensor(stored["theta"])
    inputs, targets = torch.tensor(problem.inputs), torch.tensor(problem.targets)
    model, loss = model_of(problem, torch.Generator()), mean_loss(problem)
    shapes = [parameter.shape for parameter in model.parameters()]
    names = [name for name, _ in model.named_parameters()]

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return loss(self.model, inputs, targets)

    def of_vector(theta: Tensor) -> Tensor:
        parts = torch.split(theta, [shape.numel() for shape in shapes])
        named = {f"model.{name}": part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return torch.func.functional_call(Program(), named, ())  # type: ignore[no-any-return]

    hessian: Any = torch.autograd.functional.hessian
    largest = max(float(torch.linalg.eigvalsh(hessian(of_vector, theta))[-1]) for theta in draws)
    return largest + problem.weight_decay


def seed_of(*words: str | int) -> int:
    """Returns a seed that other words do not have."""
    return zlib.crc32(" ".join(map(str, words)).encode())


def run(
    problem: Problem, chains: Sequence[tuple[str, Setting, int]], stage: str, reference: Array
) -> list[dict[str, Any]]:
    """Runs chains, (sampler, setting, number), together; returns the score of each, and how its tempering fared."""
    steps = chains[0][1].steps
    models = [
        model_of(problem, torch.Generator().manual_seed(seed_of(stage, problem.name, "start", number)))
        for _, _, number in chains
    ]
    optimizers = [
        SAMPLERS[name].build(model, setting, seed_of(stage, problem.name, name, number))
        for model, (name, setting, number) in zip(models, chains, strict=True)
    ]
    together = Chains(models, optimizers, mean_loss(problem))
    inputs, targets = torch.tensor(problem.inputs), torch.tensor(problem.targets)
    batches = torch.Generator().manual_seed(seed_of(stage, problem.name, "batches"))
    drawn: list[list[Array]] = [[] for _ in chains]
    for step in range(1, steps + 1):
        batch: Any = slice(None)
        if problem.batch is not None:
            batch = torch.randint(problem.num_data, (problem.batch,), generator=batches)
        together.backward(inputs[batch], targets[batch])
        with contextlib.suppress(NonFiniteError):  # a chain that diverged: it is scored as one
            together.step()
        if step % DRAW_EVERY == 0 and step > BURN_IN * steps:
            flat = torch.cat([part.flatten(1) for part in together.stacked.values()], dim=1).numpy()
            for number, (name, _, _) in enumerate(chains):
                if SAMPLERS[name].cold(optimizers[number]):
                    drawn[number].append(flat[number].copy())
    found = []
    for draws, optimizer in zip(drawn, optimizers, strict=True):
        theta = np.array(draws).reshape(len(draws), problem.dimension)
        with np.errstate(all="ignore"):
            row = asdict(score(problem, predictions(problem, theta), reference))
        found.append({name: _stored(value) for name, value in (row | told(optimizer)).items() if value is not None})
    return found


def _stored(value: Any) -> Any:
    """Returns five digits of a number; infinity as text, which JSON has no number for."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if np.isfinite(value) else "inf"


def carry_out(
    problem: Problem, folder: Path, references: Path, size: Size, samplers: Sequence[str], environment: dict[str, Any]
) -> None:
    """Tunes and runs those samplers of which there is no complete file; each stage is one computation for all of them."""
    reference, _ = read(references, problem)
    steepest = curvature(problem, references)
    cells = {
        name: read_of(
            folder / problem.name / f"{name}.json", {"problem": problem.name, "sampler": name, "size": asdict(size)}
        )
        for name in samplers
    }

    def setting(rate: float) -> Setting:
        return Setting(problem.num_data, problem.weight_decay, steepest, rate, size.steps)

    for stage in ("tuning", "final"):
        missing = [name for name in samplers if stage not in cells[name]]
        if not missing:
            continue
        rates = {name: RATES if stage == "tuning" else (cells[name]["rate"],) for name in missing}
        count = size.tuning if stage == "tuning" else size.final
        plan = [(name, setting(rate), number) for name in missing for rate in rates[name] for number in range(count)]
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what thermometers say is measured; that tempering warned is stored
            rows = run(problem, plan, stage, reference)
        seconds = (time.process_time() - begun) / len(missing)
        for name in missing:
            mine = [{"rate": at.rate} | row for (of, at, _), row in zip(plan, rows, strict=True) if of == name]
            cells[name][stage] = mine
            cells[name].setdefault("seconds", {})[stage] = round(seconds, 1)
            cells[name] |= {"curvature": steepest, "environment": environment}
            if stage == "tuning":
                cells[name]["rate"] = chosen(mine)
            path = folder / problem.name / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, cells[name])
            print(
                f"{problem.name} {name}: {stage}, rate {cells[name]['rate']}, W2 {[row['w2'] for row in mine]}",
                flush=True,
            )


def chosen(rows: Sequence[dict[str, Any]]) -> float:
    """Returns the learning rate with the least mean W2; among equals, the smallest."""
    return min(RATES, key=lambda rate: np.mean([float(row["w2"]) for row in rows if row["rate"] == rate]))
