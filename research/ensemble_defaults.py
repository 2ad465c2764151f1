"""Does the default temperature of `ctld.Ensemble` transfer? `python research/ensemble_defaults.py --scale smoke`.

varied   SGD-M, cycles at T = 0, cycles with the default T; seeds
fixed    nine problems: network, number of digits, learning rate, weight decay; batches of 64, momentum 0.9

ensemble_defaults/README.md has the protocol and the findings.
"""

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

from cells import Cell, Found, Study, main, packed, read_csv
from ctld import Ensemble, predict
from ctld_lab.data import load_images
from ctld_lab.statistics import estimate, verdicts
from render import finding, tabled

METHODS = ("sgd", "cycles, T = 0", "default")
TITLES = ("SGD-M", "cycles, T = 0", "default")
BATCH, TIE = 64, 0.05
FIELDS = ("failure", "nll", "error", "brier", "ece", "outliers", "most", "cpu_seconds")


class Problem(NamedTuple):
    network: str
    num_data: int
    lr: float
    weight_decay: float
    cycles: int = 4
    cycle_steps: int = 300
    standardized: bool = False

    @property
    def name(self) -> str:
        scale = " standardized" if self.standardized else ""
        return f"{self.network}{scale} N={self.num_data} lr={self.lr:g} decay={self.weight_decay:g}"


PROBLEMS = (
    # Few data, and a decay that forgets within a cycle: here the noise should pay.
    Problem("mlp", 500, 0.1, 1e-2),
    Problem("cnn", 500, 0.1, 1e-2),
    Problem("mlp", 500, 0.1, 1e-2, standardized=True),
    Problem("mlp", 5000, 0.1, 3e-3),
    # Here it should do no harm: low lr, high lr, little decay, many data, and the settings of a reported collapse.
    Problem("cnn", 5000, 0.02, 1e-3),
    Problem("mlp", 500, 0.02, 1e-2),
    Problem("mlp", 500, 0.5, 1e-3),
    Problem("mlp", 60000, 0.1, 1e-3),
    Problem("mlp", 4000, 0.2, 1e-3, cycle_steps=400, standardized=True),
)
SMOKE = [problem._replace(num_data=400, cycle_steps=10) for problem in PROBLEMS[:2]]


def build(name: str) -> nn.Module:
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    convolutions = nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), *convolutions, nn.Flatten(), nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 10)
    )


@lru_cache(maxsize=1)
def digits(source: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, test images and labels."""
    images = load_images(source)
    scaled = [torch.from_numpy(part).float() / 255 for part in (images.train, images.test)]
    labels = [torch.from_numpy(part.astype(np.int64)) for part in (images.train_labels, images.test_labels)]
    return scaled[0], labels[0], scaled[1], labels[1]


def run(problem: Problem, method: str, seed: int, source: str) -> dict[str, Any]:
    """Train once, with the batches that all methods of this seed see, and judge by test images."""
    torch.manual_seed(seed)
    model = build(problem.network)
    generator = torch.Generator().manual_seed(seed)
    train, train_labels, test, test_labels = digits(source)
    rows = torch.randperm(len(train), generator=generator)[: problem.num_data]
    scale: Callable[[Tensor], Tensor] = (lambda x: (x - 0.1307) / 0.3081) if problem.standardized else (lambda x: x)
    inputs, labels = scale(train[rows]), train_labels[rows]
    steps, started = problem.cycles * problem.cycle_steps, time.process_time()
    # SGD-M is one cycle without noise: lr falls along half a cosine after the same share of steps at full height.
    options: dict[str, Any] = {"cycles": 1 if method == "sgd" else problem.cycles}
    if method != "default":
        options["temperature"] = 0.0
    decay = problem.weight_decay
    ensemble = Ensemble(model, problem.lr, problem.num_data, steps, weight_decay=decay, seed=seed, **options)
    found: dict[str, Any] = {"failure": None, "losses": [], "temperatures": []}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            for step in range(steps):
                batch = torch.randint(len(labels), (BATCH,), generator=generator)
                loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
                loss.backward()
                record = ensemble.step(loss)
                if (step + 1) % ensemble.cycle_steps == 0:
                    found["temperatures"].append(ensemble.temperature)
                    found["losses"].append(None if record is None else record.loss)
        except (FloatingPointError, ValueError) as error:
            found["failure"] = str(error)
        if len(ensemble):
            prediction = ensemble.predict(scale(test))
            found |= prediction.metrics(test_labels) | {"outliers": len(prediction.outliers)}
            found["last"] = predict(model, list(ensemble.collector)[-1:], scale(test)).metrics(test_labels)
    found |= {"warnings": [str(warning.message) for warning in seen], "most": ensemble.optimizer.temperature}
    return found | {"cpu_seconds": round(time.process_time() - started, 1)}


def work(found: Found, problem: Problem, seeds: int, source: str) -> Iterator[str]:
    """Carry out the runs seed by seed."""
    runs = found.setdefault("runs", [])
    for seed, method in [(seed, method) for seed in range(seeds) for method in METHODS][len(runs) :]:
        commit, machine = (found["environments"][-1][name] for name in ("commit", "machine"))
        about = {"method": method, "seed": seed, "commit": commit, "machine": machine}
        runs.append(about | run(problem, method, seed, source))
        yield f"{method}, seed {seed}, nll {runs[-1].get('nll')}"


def cells(problems: Sequence[Problem], seeds: int, source: str) -> Sequence[Cell]:
    return [
        Cell(problem.name, problem._asdict(), lambda found, problem=problem: work(found, problem, seeds, source))
        for problem in problems
    ]


def pack(directory: Path, results: Path) -> None:
    """Write runs.csv, a row for each run."""
    rows = []
    for name, cell in packed(directory):
        for one in cell["runs"]:
            row = {"problem": name} | {key: one.get(key) for key in ("method", "seed", "commit", "machine", *FIELDS)}
            row |= {f"last {key}": value for key, value in one.get("last", {}).items()}
            rows.append(row | {key: json.dumps(one[key]) for key in ("temperatures", "losses", "warnings")})
    results.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(results / "runs.csv", index=False)


def findings(results: Path) -> dict[str, Any]:
    """Compare the default with cycles without noise on each problem, by the logarithm of the nll."""
    runs, rows, told = read_csv(results, "runs"), [], []
    for name in [name for name in (problem.name for problem in (*PROBLEMS, *SMOKE)) if name in set(runs.problem)]:
        nlls = [list(runs.nll[(runs.problem == name) & (runs.method == method)]) for method in METHODS]
        difference, verdict = compared(nlls[2], nlls[1])
        row = {"problem": name} | {title: mean(values) for title, values in zip(TITLES, nlls, strict=True)}
        rows.append(row | {"default against T = 0": difference, "default is": verdict})
        told.append(finding(name.replace(" ", "_"), name, verdict, f"nll {difference}"))
    tables = {"nll": tabled(rows)}
    return {"study": "ensemble_defaults", "title": "The default temperature", "findings": told, "tables": tables}


def compared(mine: Sequence[float], others: Sequence[float]) -> tuple[str, str]:
    """Return how much lower or higher the geometric mean is, with its 95 % interval, and the verdict."""
    if not all(map(math.isfinite, [*mine, *others])):
        return "not compared: a run failed", "undecided"
    found = estimate([math.log(one / other) for one, other in zip(mine, others, strict=True)])
    middle, low, high = (100 * math.expm1(value) for value in (found.mean, *found.ends))
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})".replace("-", "−"), verdicts({0: found}, TIE)[0]


def mean(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    failed = f"{len(values) - len(finite)} of {len(values)} failed" if len(finite) < len(values) else ""
    return ", ".join(filter(None, [f"{sum(finite) / len(finite):.3f}" if finite else "", failed]))


STUDY = Study(
    "ensemble_defaults",
    {"smoke": lambda where: cells(SMOKE, 2, "digits"), "laptop": lambda where: cells(PROBLEMS, 3, "mnist")},
    pack,
    findings,
)

if __name__ == "__main__":
    main(STUDY)
