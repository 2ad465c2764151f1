"""Tuning on five photographs, then six others: a file for each method and number of Gaussians, written after each stage."""

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ctld_lab.files import MissingRecord, plain, read_json, write_bytes
from ctld_lab.images import gaussians, pictures
from ctld_lab.images.methods import LEVELS, LRS, METHODS, Method, fit, setting
from ctld_lab.traps.study import cell_path, generator, seed_of


@dataclass(frozen=True)
class Size:
    budget: int
    """Gradients of a fit."""
    seeds: int
    """Starts of each picture in the final runs; all methods share them."""
    tuning: tuple[str, ...] = pictures.TUNING
    final: tuple[str, ...] = pictures.FINAL


def fits(
    count: int,
    method: Method,
    points: Sequence[tuple[int, int]],
    names: Sequence[str],
    stage: str,
    budget: int,
    seeds: int,
) -> tuple[list[list[float]], torch.Tensor]:
    """Returns dB for each picture, points × seeds in a row, and the Gaussians of the first of each picture."""
    rows = [(name, point, seed) for name in names for point in points for seed in range(seeds)]
    known = {name: gaussians.normalised(pictures.load(name)) for name in names}
    start = [
        gaussians.start(known[name][0], count, generator(stage, name, count, "start", seed)) for name, _, seed in rows
    ]
    theta, losses = fit(
        method,
        [setting(method, *point) for _, point, _ in rows],
        torch.stack(start),
        torch.stack([known[name][0] for name, _, _ in rows]),
        budget=budget,
        seeds=[seed_of(stage, name, count, method.name, "noise", seed) for name, _, seed in rows],
    )
    decibels = [gaussians.psnr(loss, count, known[name][1]) for loss, (name, _, _) in zip(losses, rows, strict=True)]
    each = len(points) * seeds
    return [decibels[first : first + each] for first in range(0, len(rows), each)], theta[::each]


def carry_out(
    directory: Path,
    counts: Sequence[int],
    size: Size,
    *,
    methods: Sequence[str] = tuple(METHODS),
    environment: dict[str, Any],
    say: Callable[[str], None] = print,
) -> None:
    """Does what has not been done yet; what was done with another size is refused."""
    torch.set_flush_denormal(True)
    try:
        for count in counts:
            for name in methods:
                path = cell_path(directory, f"k{count}", name)
                for stage in ("tuning", "final"):
                    cell = read_cell(path, count, name, size)
                    if stage in cell:
                        continue
                    begun = time.process_time()
                    cell[stage] = _stage(stage, count, METHODS[name], size, cell)
                    cell.setdefault("cpu_seconds", {})[stage] = round(time.process_time() - begun, 1)
                    cell["environment"] = environment
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_bytes(path, (json.dumps(plain(cell), separators=(",", ":")) + "\n").encode())
                    say(f"k{count} {name}: {stage} in {cell['cpu_seconds'][stage]:.0f} s: {_brief(cell, stage)}")
    finally:
        torch.set_flush_denormal(False)


def _stage(stage: str, count: int, method: Method, size: Size, cell: dict[str, Any]) -> dict[str, Any]:
    if stage == "tuning":
        points = [(rate, level) for rate in range(len(LRS)) for level in range(LEVELS)]
        found, _ = fits(count, method, points, size.tuning, stage, size.budget, 1)
        means = [statistics.fmean(column) for column in zip(*found, strict=True)]
        rate, level = points[means.index(max(means))]
        chosen = {"rate": rate, "level": level, "setting": asdict(setting(method, rate, level))}
        trials = [{"rate": rate, "level": level, "db": db} for (rate, level), *db in zip(points, *found, strict=True)]
        return {"trials": trials, "chosen": chosen}
    point = cell["tuning"]["chosen"]["rate"], cell["tuning"]["chosen"]["level"]
    found, theta = fits(count, method, [point], size.final, stage, size.budget, size.seeds)
    shown = [[[float(f"{x:.4g}") if math.isfinite(x) else 0.0 for x in row] for row in each] for each in theta.tolist()]
    return {"db": dict(zip(size.final, found, strict=True)), "theta": dict(zip(size.final, shown, strict=True))}


def _brief(cell: dict[str, Any], stage: str) -> str:
    if stage == "tuning":
        return f"chose {cell[stage]['chosen']['setting']}"
    return ", ".join(f"{name} {statistics.fmean(db):.2f}" for name, db in cell[stage]["db"].items()) + " dB"


def read_cell(path: Path, count: int, method: str, size: Size) -> dict[str, Any]:
    """Returns what is known of this number of Gaussians and method, a bare beginning if nothing is."""
    bare: dict[str, Any] = plain({"count": count, "method": method, "size": asdict(size)})
    try:
        cell = read_json(path)
    except MissingRecord:
        return bare
    if any(cell.get(name) != value for name, value in bare.items()):
        raise ValueError(f"{path} is not of {bare}; give another directory, or remove it")
    return cell
