"""Tuning on five photographs, then six others: a file for each method and number of Gaussians, written after each stage."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ctld_lab.files import read_of, write_cell
from ctld_lab.images import gaussians, pictures
from ctld_lab.images.methods import EVERY_METHOD, LEVELS, fit, setting
from ctld_lab.traps.study import cell_path, generator, seed_of


@dataclass(frozen=True)
class Size:
    budget: int
    """Gradients of a fit."""
    seeds: int
    """Starts of each picture in the final runs; all methods share them."""
    tuning: tuple[str, ...] = pictures.TUNING
    final: tuple[str, ...] = pictures.FINAL


def carry_out(directory: Path, count: int, method: str, size: Size, environment: dict[str, Any]) -> None:
    """Does what has not been done yet; what was done with another size is refused."""
    path = cell_path(directory, f"k{count}", method)
    known = about(count, method, size)
    for stage, compute in (("tuning", _tune), ("final", _final)):
        cell = read_of(path, known)
        if stage not in cell:
            cell |= {stage: compute(count, method, size, cell), "environment": environment}
            write_cell(path, cell)
            print(f"k{count} {method}: {stage} is done, at {cell['tuning']['chosen']['setting']}", flush=True)


def about(count: int, method: str, size: Size) -> dict[str, Any]:
    """Returns what a file says first of all, as it has it."""
    said: dict[str, Any] = json.loads(json.dumps({"count": count, "method": method, "size": asdict(size)}))
    return said


def _tune(count: int, method: str, size: Size, cell: dict[str, Any]) -> dict[str, Any]:
    points = [(rate, level) for rate in range(len(EVERY_METHOD[method].rates)) for level in range(LEVELS)]
    found, _ = _fits(count, method, points, size.tuning, "tuning", size.budget, 1)
    trials = [{"rate": point[0], "level": point[1], "db": db} for point, *db in zip(points, *found, strict=True)]
    best = max(trials, key=lambda trial: statistics.fmean(trial["db"]))
    point = setting(EVERY_METHOD[method], best["rate"], best["level"])
    return {"trials": trials, "chosen": {"rate": best["rate"], "level": best["level"], "setting": asdict(point)}}


def _final(count: int, method: str, size: Size, cell: dict[str, Any]) -> dict[str, Any]:
    point = cell["tuning"]["chosen"]["rate"], cell["tuning"]["chosen"]["level"]
    found, theta = _fits(count, method, [point], size.final, "final", size.budget, size.seeds)
    shown = [[[float(f"{x:.4g}") if math.isfinite(x) else 0.0 for x in row] for row in each] for each in theta.tolist()]
    return {"db": dict(zip(size.final, found, strict=True)), "theta": dict(zip(size.final, shown, strict=True))}


def _fits(
    count: int,
    method: str,
    points: Sequence[tuple[int, int]],
    names: Sequence[str],
    stage: str,
    budget: int,
    seeds: int,
) -> tuple[list[list[float]], torch.Tensor]:
    """Returns dB for each picture, points × seeds in a row, and the Gaussians of the first of each picture."""
    rows = [(name, point, seed) for name in names for point in points for seed in range(seeds)]
    known = {name: gaussians.normalised(pictures.load(name)) for name in names}
    random = [generator(stage, name, count, "start", seed) for name, _, seed in rows]
    theta, losses = fit(
        EVERY_METHOD[method],
        [setting(EVERY_METHOD[method], *point) for _, point, _ in rows],
        torch.stack([gaussians.start(known[row[0]][0], count, own) for row, own in zip(rows, random, strict=True)]),
        torch.stack([known[name][0] for name, _, _ in rows]),
        budget=budget,
        seeds=[seed_of(stage, name, count, method, "noise", seed) for name, _, seed in rows],
    )
    decibels = [gaussians.psnr(loss, count, known[name][1]) for loss, (name, _, _) in zip(losses, rows, strict=True)]
    each = len(points) * seeds
    return [decibels[first : first + each] for first in range(0, len(rows), each)], theta[::each]
