"""How near samplers come to the reference, at equal numbers of gradients. The chains of a stage take their steps together."""

import contextlib
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cells import Found
from ctld import NonFiniteError
from ctld.chains import Chains

from .problems import PROBLEMS, Array, Problem, predictions
from .reference import LEVELS, STORED, read
from .samplers import RATES, SAMPLERS, Setting, told

DRAW_EVERY = 20
BURN_IN = 0.25
"""Share of a run that is dropped."""
FEWEST = 50
"""Draws; a chain with fewer has no predictive, and its distances are infinite."""
GRID = np.linspace(-6.0, 6.0, 121)


def score(problem: Problem, drawn: Array, reference: Array) -> dict[str, Any]:
    """Compare draws, (draws, points, outputs), with quantiles of the reference, (levels, points, outputs).

    w2               distance of outputs or probabilities in units of the reference's deviation, mean over inputs
    total_variation  of the predictive distribution of the target
    agreement        share of inputs with the same most probable class
    right            share of draws with the right one of two mirror images
    """
    if len(drawn) < FEWEST or not np.isfinite(drawn).all():
        return {"w2": np.inf, "total_variation": 1.0, "draws": len(drawn)}
    quantiles = np.quantile(drawn, LEVELS, axis=0)
    w2 = np.sqrt(((quantiles - reference) ** 2).mean(axis=0)) / reference.std(axis=0)
    found = {"w2": float(w2.mean())}
    if problem.noise is None:
        ours, theirs = drawn.mean(axis=0), reference.mean(axis=0)
        found["total_variation"] = float((0.5 * np.abs(ours - theirs).sum(axis=-1)).mean())
        found["agreement"] = float((ours.argmax(axis=-1) == theirs.argmax(axis=-1)).mean())
    else:
        difference = _density(problem, quantiles) - _density(problem, reference)
        found["total_variation"] = float((0.5 * np.abs(difference).sum(axis=0) * (GRID[1] - GRID[0])).mean())
    if problem.mirrored:
        tilt = (drawn * problem.test_inputs).mean(axis=(1, 2))
        found["right"] = float((tilt > 0).mean())
    return found | {"draws": len(drawn)}


def _density(problem: Problem, quantiles: Array) -> Array:
    """Return the density of the target on a grid, (grid, points): a Gaussian about every fourth quantile."""
    assert problem.noise is not None
    away = (GRID[:, None, None] - quantiles[None, 2::4, :, 0]) / problem.noise
    normal: Array = np.exp(-0.5 * away**2).mean(axis=1) / (problem.noise * np.sqrt(2 * np.pi))
    return normal


def floor(problem: Problem, reference: Array, draws: int, repeats: int = 20) -> tuple[float, float]:
    """Return W2 and total variation of independent draws of the reference: the mean score of a perfect sampler."""
    generator, scores = np.random.default_rng(0), []
    for _ in range(repeats):
        level = generator.integers(len(LEVELS), size=(draws, *reference.shape[1:]))
        scores.append(score(problem, np.take_along_axis(reference, level, axis=0), reference))
    return tuple(float(np.mean([one[of] for one in scores])) for of in ("w2", "total_variation"))  # type: ignore[return-value]


def model_of(problem: Problem, generator: torch.Generator) -> nn.Sequential:
    """Return a network with weights as torch's own rule draws them, from the generator given."""
    layers = nn.Linear(problem.inputs.shape[1], problem.hidden), nn.Linear(problem.hidden, problem.outputs)
    for layer in layers:
        for parameter in layer.parameters():
            bound = layer.in_features**-0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1]).double()


def mean_loss(problem: Problem) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Return the loss whose N-fold, with the prior, is −log posterior."""

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs: Tensor = model(inputs)
        if problem.noise is None:
            return nn.functional.cross_entropy(outputs, targets)
        return 0.5 * (outputs - targets).square().mean() / problem.noise**2

    return loss


def curvature(problem: Problem) -> float:
    """Return the largest curvature of mean loss and prior at the stored draws of the reference."""
    with np.load(STORED / f"{problem.reference or problem.name}.npz", allow_pickle=False) as stored:
        draws = torch.tensor(stored["theta"])
    inputs, targets = torch.tensor(problem.inputs), torch.tensor(problem.targets)
    model, loss = model_of(problem, torch.Generator()), mean_loss(problem)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}

    def of_vector(theta: Tensor) -> Tensor:
        parts = torch.split(theta, [shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
        return loss(lambda x: torch.func.functional_call(model, named, (x,)), inputs, targets)  # type: ignore[arg-type]

    hessian = torch.autograd.functional.hessian
    return max(float(torch.linalg.eigvalsh(hessian(of_vector, theta))[-1]) for theta in draws) + problem.weight_decay


def seed_of(*words: str | int) -> int:
    """Return a seed that other words do not have."""
    return zlib.crc32(" ".join(map(str, words)).encode())


def rows_of(problem: Problem, steps: int, seed: int) -> Iterator[Any]:
    """Yield the rows of each minibatch."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if problem.batch is None:
            yield slice(None)
        elif problem.epochs:
            if len(order) < problem.batch:
                order = torch.randperm(problem.num_data, generator=generator)
            yield order[: problem.batch]
            order = order[problem.batch :]
        else:
            yield torch.randint(problem.num_data, (problem.batch,), generator=generator)


def run(
    problem: Problem, chains: Sequence[tuple[str, Setting, int]], stage: str, reference: Array
) -> list[dict[str, Any]]:
    """Run chains, (sampler, setting, number), together; return the score of each, and how its tempering fared."""
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
    drawn: list[list[Array]] = [[] for _ in chains]
    for step, rows in enumerate(rows_of(problem, steps, seed_of(stage, problem.name, "batches")), start=1):
        together.backward(inputs[rows], targets[rows])
        with contextlib.suppress(NonFiniteError):  # a chain that diverged is scored as one
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
            row = score(problem, predictions(problem, theta), reference) | told(optimizer)
        found.append({key: float(f"{v:.5g}") if isinstance(v, float) else v for key, v in row.items()})
    return found


def work(found: Found, name: str, sampler: str, steps: int, tuning: int, final: int) -> Iterator[str]:
    """Tune lr at three levels, then run the final chains; `rate` and `curvature` say at which lr."""
    problem = PROBLEMS[name]()
    reference, _ = read(problem)
    steepest = found["curvature"] = found.get("curvature") or curvature(problem)

    def setting(rate: float) -> Setting:
        return Setting(problem.num_data, problem.weight_decay, steepest, rate, steps)

    for stage, count in (("tuning", tuning), ("final", final)):
        if stage in found:
            continue
        rates = RATES if stage == "tuning" else (found["rate"],)
        plan = [(sampler, setting(rate), number) for rate in rates for number in range(count)]
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # thermometers are measured; that tempering warned is stored
            rows = run(problem, plan, stage, reference)
        seconds = {"seconds": round(time.process_time() - began, 1)}
        found[stage] = [{"rate": at.rate} | row | seconds for (_, at, _), row in zip(plan, rows, strict=True)]
        if stage == "tuning":
            found["rate"] = chosen(found[stage])
        yield f"{stage}, rate {found['rate']}, W2 {[row['w2'] for row in rows]}"


def chosen(rows: Sequence[dict[str, Any]]) -> float:
    """Return the learning rate with the least mean W2; among equals, the smallest."""
    return min(RATES, key=lambda rate: np.mean([float(row["w2"]) for row in rows if row["rate"] == rate]))
