"""Is the default any worse, or better, than SGD with momentum where both are trained in earnest?

Varied: the method (SGD-M; CTLD at the automatic temperature; CTLD at the paper's T = 1, with and without weight decay) and the
seed, which is a replicate of its own: split, initial weights, batches and noise. Tuned: nothing. Fixed: 5,000 digits,
784-256-256-10, lr 0.1, momentum 0.9, weight decay 1e-3 unless said otherwise, batches of 128, 2,000 steps with lr constant
(exploration, in CTLD), then 2,000 with a cosine to zero.

Within a seed the methods share all but the noise, so they are compared pair by pair. The length was chosen on seeds 100 to
109, the stored run has others. `python -m ctld_lab.studies.digits` prints the table and stores it as JSON.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ctld import CTLD, __version__
from ctld_lab.workloads import digits

EXPLORATION_STEPS = 2000
STEPS = 4000


@dataclass(frozen=True)
class Job:
    """One run."""

    seed: int
    weight_decay: float
    temperature: Any
    """None is `torch.optim.SGD`."""


@dataclass(frozen=True)
class Outcome:
    """What came out of it, on the 1,000 digits that were not trained on."""

    nll: float
    error: float
    """In percent."""
    alpha: list[float]
    """After each step of exploration."""


def relative_rate(step: int) -> float:
    """Constant while CTLD explores, then a cosine down to zero; the same for every method."""
    return 0.5 * (1 + math.cos(math.pi * max(step - EXPLORATION_STEPS, 0) / (STEPS - EXPLORATION_STEPS)))


def train(job: Job) -> Outcome:
    """Run a job; on one thread, since sums, hence results, depend on their number."""
    torch.set_num_threads(1)
    data, model = digits.load(job.seed), digits.build_model(job.seed)
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": job.weight_decay}
    optimizer: torch.optim.Optimizer
    if job.temperature is None:
        optimizer = torch.optim.SGD(model.parameters(), **options)
    else:
        optimizer = CTLD(
            model.parameters(),
            **options,
            num_data=data.num_data,
            exploration_steps=EXPLORATION_STEPS,
            temperature=job.temperature,
            seed=job.seed,
        )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, relative_rate)
    alpha: list[float] = []
    for step, rows in enumerate(itertools.islice(digits.batch_indices(data.num_data, job.seed), STEPS)):
        optimizer.zero_grad()
        loss = digits.mean_loss(model, data.train_images[rows], data.train_labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        if isinstance(optimizer, CTLD):
            optimizer.step(loss=loss)
            if step < EXPLORATION_STEPS and optimizer.last is not None and optimizer.last.alpha is not None:
                alpha.append(optimizer.last.alpha)
        else:
            optimizer.step()
        scheduler.step()
    return Outcome(*digits.evaluate(model, data.test_images, data.test_labels), alpha)


def train_all(jobs: list[Job], processes: int = 2) -> dict[Job, Outcome]:
    """In processes of one thread each. Spawned: a forked child hangs once its parent has used OpenMP."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return dict(zip(jobs, pool.map(train, jobs, chunksize=1), strict=True))


# Temperature (None is SGD) and weight decay; the last two show what the paper's temperature does without a prior.
METHODS: dict[str, tuple[Any, float]] = {
    "SGD-M": (None, 1e-3),
    "CTLD, T auto": ("auto", 1e-3),
    "CTLD, T = 1": (1.0, 1e-3),
    "SGD-M, no weight decay": (None, 0.0),
    "CTLD, T = 1, no weight decay": (1.0, 0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("digits.json"))
    options = parser.parse_args()
    jobs = {
        (name, seed): Job(seed, decay, temperature)
        for name, (temperature, decay) in METHODS.items()
        for seed in options.seeds
    }
    outcomes = train_all(list(jobs.values()), options.processes)
    rows = []
    print(f"{'method':<28} {'test nll':>18} {'test error %':>16} {'nll − SGD-M':>20} {'error − SGD-M':>18}")
    for name in METHODS:
        mine = [outcomes[jobs[name, seed]] for seed in options.seeds]
        plain = [outcomes[jobs["SGD-M", seed]] for seed in options.seeds]
        rows += [
            {"method": name, **asdict(jobs[name, seed]), "nll": outcome.nll, "error": outcome.error}
            for seed, outcome in zip(options.seeds, mine, strict=True)
        ]
        columns = [
            [outcome.nll for outcome in mine],
            [outcome.error for outcome in mine],
            [outcome.nll - other.nll for outcome, other in zip(mine, plain, strict=True)],
            [outcome.error - other.error for outcome, other in zip(mine, plain, strict=True)],
        ]
        print(f"{name:<28}", *(f"{_mean(column):>18}" for column in columns))
    record = {
        "study": "digits",
        "version": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "steps": STEPS,
        "exploration_steps": EXPLORATION_STEPS,
        "runs": rows,
    }
    temporary = options.output.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(temporary, options.output)
    print(f"stored in {options.output}")


def _mean(values: list[float]) -> str:
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values) / math.sqrt(len(values)):.4f}"


if __name__ == "__main__":
    main()
