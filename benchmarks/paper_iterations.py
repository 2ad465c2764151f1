"""How long an iteration takes at the paper's own size, part by part, on one thread; and so how long a run takes.

    python benchmarks/paper_iterations.py            writes results/paper/iterations.json

CPU time of this process, so that other programs take away caches and no more; the median over blocks of steps. CTLD is timed
while it explores, which is 18 % of the autoencoder's steps and 2.5 % of the LSTM's; afterwards its step is SGD's.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

import torch
from torch import nn

from ctld_lab import methods, studies, workloads
from ctld_lab.data import identify
from ctld_lab.jobs import environment
from ctld_lab.records import StudyDirectory, write_json

FOLDER = Path(__file__).parents[1] / "results" / "paper"
METHODS = ("ctld", "sgd", "rmsprop", "adam")
PARTS = ("loss", "backward", "optimizer")


def configurations(study: str, scale: str) -> dict[str, dict[str, Any]]:
    """Of the runs at the paper's settings, by method."""
    found = studies.get(study)
    settings = dict(found.scales[scale]) | {"trials": 0}
    data = {"name": settings["data"], "sha256": identify(settings["data"])}
    request = studies.Request(scale, METHODS, [0], data, settings)
    runs = next(found.plan(request, StudyDirectory(Path("nowhere"))))
    return {run.config["method"]: run.config for run in runs if run.config["variant"] == "paper"}


def time_stage(config: dict[str, Any], workload: Any, stage: int, *, blocks: int, steps: int) -> dict[str, float]:
    """Milliseconds of each part of an iteration."""
    parameters = workload.begin(stage)
    optimizer = methods.build_optimizer(config, parameters, num_data=workload.num_data, stage=stage)
    taken: dict[str, list[float]] = {part: [] for part in PARTS}
    for block in range(blocks + 1):  # the first warms up
        sums = dict.fromkeys(PARTS, 0.0)
        for step in range(steps):
            start = time.process_time()
            loss = workload.loss(block * steps + step)
            forward = time.process_time()
            optimizer.zero_grad()
            loss.backward()
            backward = time.process_time()
            if config.get("clip") is not None:
                nn.utils.clip_grad_value_(parameters, config["clip"])
            optimizer.step(loss=loss)  # type: ignore[call-overload]
            ends = forward - start, backward - forward, time.process_time() - backward
            sums = {part: sums[part] + seconds for part, seconds in zip(PARTS, ends, strict=True)}
        if block:
            for part in PARTS:
                taken[part].append(1000 * sums[part] / steps)
    return {part: round(statistics.median(values), 3) for part, values in taken.items()}


def measure(study: str, scale: str, *, blocks: int, steps: int) -> list[dict[str, Any]]:
    rows = []
    for method, config in configurations(study, scale).items():
        workload = workloads.build(config)
        for stage in range(workload.stages):
            parts = time_stage(config, workload, stage, blocks=blocks, steps=steps)
            total = round(sum(parts.values()), 3)
            hours = total * config["steps"][stage] / 3.6e6
            row = {"study": study, "method": method, "stage": stage + 1, "steps": config["steps"][stage]}
            rows.append(row | {"milliseconds": parts | {"all": total}, "hours": round(hours, 3)})
    return rows


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="paper", help="another scale's settings, to try it")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", type=Path, default=FOLDER / "iterations.json")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = [
        row
        for study in ("sda", "charrnn")
        for row in measure(study, given.scale, blocks=given.blocks, steps=given.steps)
    ]
    record = {
        "scale": given.scale,
        "blocks": given.blocks,
        "steps": given.steps,
        "environment": environment(1),
        "rows": rows,
    }
    given.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.output, record)
    return record


if __name__ == "__main__":
    main()
