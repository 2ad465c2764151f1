"""Does the default temperature of `ctld.Ensemble` transfer? Digits, two networks, learning rates, sizes of data.

    python -m benchmarks.ensemble_defaults --mnist FOLDER --phase final          # one process; --share 0/2 and 1/2 make it two
    python -m benchmarks.ensemble_defaults --collect                             # stores results/ensemble-defaults/final.json

What is compared, and what counts, is in docs/protocols/ensemble-defaults.md. A run that is there is not made again.
"""

import argparse
import gzip
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.stored import ROOT, commit, machine, store
from benchmarks.stored import table as markdown
from ctld import Ensemble, predict

RESULTS = ROOT / "results" / "ensemble-defaults"
RUNS = ROOT / "runs" / "ensemble-defaults"
SEEDS = {"validation": [100], "final": [0, 1, 2]}
METHODS = ("sgd", "cycles, T = 0", "default")
BATCH = 64
T_QUANTILE = 4.303  # Student's, 97.5 %, two degrees of freedom: three seeds


class Cell(NamedTuple):
    """A problem: network, number of training images, learning rate, weight decay, cycles and their steps, inputs."""

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


CELLS = (
    # Few data, and a decay that forgets within a cycle: where the noise should pay.
    Cell("mlp", 500, 0.1, 1e-2),
    Cell("cnn", 500, 0.1, 1e-2),
    Cell("mlp", 500, 0.1, 1e-2, standardized=True),
    Cell("mlp", 5000, 0.1, 3e-3),
    # Where it should do no harm: low lr, high lr, little decay, many data, and the settings of the reported collapse.
    Cell("cnn", 5000, 0.02, 1e-3),
    Cell("mlp", 500, 0.02, 1e-2),
    Cell("mlp", 500, 0.5, 1e-3),
    Cell("mlp", 60000, 0.1, 1e-3),
    Cell("mlp", 4000, 0.2, 1e-3, cycle_steps=400, standardized=True),
)


def build(name: str) -> nn.Module:
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Digits(NamedTuple):
    """What a phase trains on, and what it is judged by."""

    inputs: Tensor
    labels: Tensor
    judged_inputs: Tensor
    judged_labels: Tensor


def load(folder: Path, phase: str) -> Digits:
    """Validation: the last 5,000 of the 60,000 judge the others. Final: the 10,000 test images judge all 60,000."""

    def read(name: str, skip: int) -> Tensor:
        content = gzip.decompress((folder / f"{name}-ubyte.gz").read_bytes())
        return torch.from_numpy(np.frombuffer(content, np.uint8)[skip:].copy())

    inputs = read("train-images-idx3", 16).reshape(-1, 784).float() / 255
    labels = read("train-labels-idx1", 8).long()
    if phase == "validation":
        return Digits(inputs[:55000], labels[:55000], inputs[55000:], labels[55000:])
    judged = read("t10k-images-idx3", 16).reshape(-1, 784).float() / 255
    return Digits(inputs, labels, judged, read("t10k-labels-idx1", 8).long())


def run(cell: Cell, method: str, seed: int, digits: Digits) -> dict[str, Any]:
    """Trains once, with the batches that all methods of this seed see, and judges."""
    torch.manual_seed(seed)
    model = build(cell.network)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(digits.inputs), generator=generator)[: cell.num_data]
    scale: Callable[[Tensor], Tensor] = (lambda x: (x - 0.1307) / 0.3081) if cell.standardized else (lambda x: x)
    inputs, labels = scale(digits.inputs[chosen]), digits.labels[chosen]
    steps, started = cell.cycles * cell.cycle_steps, time.process_time()
    # A single model without noise, whose lr falls along half a cosine after the same share of steps at full height.
    options: dict[str, Any] = {"cycles": 1 if method == "sgd" else cell.cycles}
    if method != "default":
        options["temperature"] = 0.0
    ensemble = Ensemble(model, cell.lr, cell.num_data, steps, weight_decay=cell.weight_decay, seed=seed, **options)
    temperatures, losses, failure = [], [], None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            for step in range(steps):
                batch = torch.randint(len(labels), (BATCH,), generator=generator)
                loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                record = ensemble.step(loss)
                if (step + 1) % ensemble.cycle_steps == 0:
                    temperatures.append(ensemble.temperature)
                    losses.append(None if record is None else record.loss)
        except (FloatingPointError, ValueError) as error:
            failure = str(error)
        found: dict[str, Any] = {"failure": failure, "losses": losses, "temperatures": temperatures}
        if len(ensemble):
            prediction = ensemble.predict(scale(digits.judged_inputs))
            found |= prediction.metrics(digits.judged_labels) | {"outliers": len(prediction.outliers)}
            last = predict(model, list(ensemble.collector)[-1:], scale(digits.judged_inputs))
            found["last"] = last.metrics(digits.judged_labels)
    found["warnings"] = [str(warning.message) for warning in seen]
    found["most"] = ensemble.optimizer.temperature
    return found | {"cpu_seconds": round(time.process_time() - started, 1)}


def jobs(phase: str) -> Iterator[tuple[Cell, str, int]]:
    """Seed by seed, so that what is interrupted has as many of each."""
    for seed in SEEDS[phase]:
        for cell in CELLS:
            for method in METHODS:
                yield cell, method, seed


def path_of(phase: str, cell: Cell, method: str, seed: int) -> Path:
    return RUNS / f"{phase}-{CELLS.index(cell)}-{METHODS.index(method)}-{seed}.json"


def carry_out(folder: Path, phase: str, share: str) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    digits = load(folder, phase)
    where = {"commit": commit(), "machine": machine()}
    first, number = map(int, share.split("/"))
    for cell, method, seed in list(jobs(phase))[first::number]:
        path = path_of(phase, cell, method, seed)
        if not path.exists():
            head = {"cell": cell.name, "method": method, "seed": seed}
            store(head | run(cell, method, seed, digits) | where, path)


def collect(phase: str) -> None:
    """Stores what is there of a phase, and how many are still missing."""
    paths = [path_of(phase, *job) for job in jobs(phase)]
    there = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    result = {
        "what": "the default temperature of ctld.Ensemble over learning rates, sizes of data and networks",
        "command": f"python -m benchmarks.ensemble_defaults --mnist FOLDER --phase {phase}",
        "cells": {cell.name: cell._asdict() for cell in CELLS},
        "missing": len(paths) - len(there),
        "runs": there,
    }
    store(result, RESULTS / f"{phase}.json")
    sys.stdout.write(f"{len(there)} runs, {result['missing']} missing\n")


def table(result: dict[str, Any]) -> list[str]:
    """Returns the table of docs/ensembles.md: nll of each method, and the default against cycles with T = 0."""
    rows = []
    for name in result["cells"]:
        runs = {
            method: [run for run in result["runs"] if (run["cell"], run["method"]) == (name, method)]
            for method in METHODS
        }
        nlls = {method: [run.get("nll", math.nan) for run in found] for method, found in runs.items()}
        cells = [_mean(values) for values in nlls.values()]
        rows.append([name, *cells, _verdict(nlls["default"], nlls["cycles, T = 0"])])
    return markdown(["problem", "SGD-M", "cycles, T = 0", "default", "default against T = 0"], rows)


def _mean(values: list[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    failed = len(values) - len(finite)
    mean = f"{statistics.fmean(finite):.3f}" if finite else ""
    return ", ".join(filter(None, [mean, f"{failed} of {len(values)} failed" if failed else ""]))


def _verdict(mine: list[float], others: list[float]) -> str:
    """Returns how much lower or higher the geometric mean is, with a 95 % t interval over three seeds, and its word."""
    if not all(map(math.isfinite, mine + others)):
        return "not compared"
    differences = [math.log(one / other) for one, other in zip(mine, others, strict=True)]
    mean, half = statistics.fmean(differences), T_QUANTILE * statistics.stdev(differences) / len(differences) ** 0.5
    word = (
        "gain" if mean + half < 0 else "harm" if mean - half > 0 else "tie" if abs(mean) + half <= 0.05 else "undecided"
    )
    middle, low, high = (100 * math.expm1(value) for value in (mean, mean - half, mean + half))
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f}), {word}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mnist", type=Path, help="the folder with MNIST's four .gz files")
    parser.add_argument("--phase", choices=SEEDS, default="final")
    parser.add_argument("--share", default="0/1", help="i/n: every n-th run, from the i-th")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--table", action="store_true", help="of what is stored, in Markdown")
    options = parser.parse_args()
    if options.mnist is not None:
        carry_out(options.mnist, options.phase, options.share)
    if options.collect:
        collect(options.phase)
    if options.table:
        stored = json.loads((RESULTS / f"{options.phase}.json").read_text(encoding="utf-8"))
        sys.stdout.write("\n".join(table(stored)) + "\n")


if __name__ == "__main__":
    main()
