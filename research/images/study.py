"""The study of photographs: does noise on the positions of Gaussians keep a fit out of bad minima?

varied   the first 60 % of the gradients: Adam, Adam with relocations, Adam with noise, CTLD's exploration at three kinds of T,
         CTLD at a lower lr and with a mass
tuned    lr (three values, the same for all) and three levels of T, of relocation or of finer lr: nine trials for each
fixed    the number of gradients, momentum, Adam at a falling lr for the rest of them

A cell is a method at a number of Gaussians: tuning on five photographs, then final fits of six others.
"""

import statistics
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cells import Cell, Found, Study
from images import gaussians, pictures, tables
from images.methods import LATER, LEVELS, METHODS, fit, setting


@dataclass(frozen=True)
class Size:
    budget: int
    """Gradients of a fit."""
    seeds: int
    """Starts of each picture in the final runs; all methods share them."""
    tuning: tuple[str, ...] = pictures.TUNING
    final: tuple[str, ...] = pictures.FINAL


COUNTS = {"smoke": (9,), "laptop": (64, 128, 256), "paper": (64, 128, 256)}
"""Gaussians, in the order of computation."""
SIZES = {
    "smoke": Size(budget=40, seeds=1, tuning=("china",), final=("china", "flower")),
    "laptop": Size(budget=600, seeds=3),
    "paper": Size(budget=5000, seeds=10),
}


def seed_of(*words: int | str) -> int:
    """Return a seed that no other stage, picture or purpose has."""
    sequence = np.random.SeedSequence([zlib.crc32(str(word).encode()) for word in words])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def cell(count: int, method: str, size: Size) -> Cell:
    """Return the cell of a method at a number of Gaussians."""

    def work(found: Found) -> Iterator[str]:
        if "tuning" not in found:
            points = [(rate, level) for rate in range(len(METHODS[method].rates)) for level in range(LEVELS)]
            made, _ = _fits(count, method, points, size.tuning, "tuning", size.budget, 1)
            trials = [
                {"rate": rate, "level": level, "db": db} for (rate, level), *db in zip(points, *made, strict=True)
            ]
            best = max(trials, key=lambda trial: statistics.fmean(trial["db"]))
            chosen = {"rate": best["rate"], "level": best["level"]}
            found["tuning"] = {"trials": trials, "chosen": chosen | {"setting": asdict(setting(method, **chosen))}}
            yield "tuning"
        if "final" not in found:
            point = found["tuning"]["chosen"]["rate"], found["tuning"]["chosen"]["level"]
            made, theta = _fits(count, method, [point], size.final, "final", size.budget, size.seeds)
            found["final"] = {"db": dict(zip(size.final, made, strict=True))}
            if method in tables.SHOWN:
                found["final"]["theta"] = dict(zip(size.final, theta.tolist(), strict=True))
            yield "final"

    facts = {"count": count, "method": method, "size": asdict(size)}
    return Cell(f"k{count}/{method}", facts, work)


def _fits(
    count: int,
    method: str,
    points: Sequence[tuple[int, int]],
    names: Sequence[str],
    stage: str,
    budget: int,
    seeds: int,
) -> tuple[list[list[float]], torch.Tensor]:
    """Return dB for each picture, points × seeds in a row, and the Gaussians of the first fit of each picture."""
    rows = [(name, point, seed) for name in names for point in points for seed in range(seeds)]
    known = {name: gaussians.normalised(pictures.load(name)) for name in names}
    random = [torch.Generator().manual_seed(seed_of(stage, name, count, "start", seed)) for name, _, seed in rows]
    theta, losses = fit(
        METHODS[method],
        [setting(method, *point) for _, point, _ in rows],
        torch.stack([gaussians.start(known[row[0]][0], count, own) for row, own in zip(rows, random, strict=True)]),
        torch.stack([known[name][0] for name, _, _ in rows]),
        budget=budget,
        seeds=[seed_of(stage, name, count, method, "noise", seed) for name, _, seed in rows],
    )
    decibels = [gaussians.psnr(loss, count, known[name][1]) for loss, (name, _, _) in zip(losses, rows, strict=True)]
    each = len(points) * seeds
    return [decibels[first : first + each] for first in range(0, len(rows), each)], theta[::each]


def plan(scale: str) -> list[Cell]:
    """Return the cells of a scale; what was planned later was run with 64 and 128 Gaussians."""
    wanted = [(count, name) for count in COUNTS[scale] for name in METHODS if count != 256 or name not in LATER]
    return [cell(count, name, SIZES[scale]) for count, name in wanted]


def findings(results: Path) -> dict[str, Any]:
    return tables.findings(results)


STUDY = Study("images", {scale: lambda _, scale=scale: plan(scale) for scale in SIZES}, tables.pack, findings)
