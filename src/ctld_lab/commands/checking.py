"""`ctld check`: refuse what cannot be, sample target by target, show the table."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich import progress
from rich.console import Console

from ctld_lab.check.run import DTYPES, INTEGRATORS, TEMPERINGS, Settings, sample
from ctld_lab.check.targets import TARGETS, build
from ctld_lab.check.verdicts import Row, exit_code, judge, remedies
from ctld_lab.commands import Refusal
from ctld_lab.commands.overview import plain_table
from ctld_lab.commands.request import unknown
from ctld_lab.executors.progress import Left, Rate, duration
from ctld_lab.files import write_json

STEPS = {"gaussian": 80_000, "anisotropic": 120_000, "double-well": 320_000, "funnel": 160_000, "regression": 120_000}
"""Two minutes in all at 150 microseconds a step, three on a slower machine. Steps and no clock: a seed has one result."""
THOROUGH = 7
"""Times as many."""
FEWEST = 2000
STYLES = {"pass": "green", "fail": "bold red", "unconverged": "yellow"}


def check_settings(
    settings: Settings,
    console: Console,
    *,
    names: Sequence[str] | None = None,
    thorough: bool = False,
    tolerance: float = 0.02,
    output: Path | None = None,
    steps: int | None = None,
) -> int:
    """The exit code. `steps` are those of each target, in place of what is written above."""
    chosen = list(TARGETS) if names is None else list(dict.fromkeys(names))
    _refuse(settings, chosen, tolerance=tolerance, output=output, steps=steps)
    lengths = {name: steps or STEPS[name] * (THOROUGH if thorough else 1) for name in chosen}
    rows: list[Row] = []
    notes: list[str] = []
    began = time.perf_counter()
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.TaskProgressColumn(),
        Rate(),
        progress.TimeElapsedColumn(),
        Left(),
    )
    with progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task("", total=sum(lengths.values()))
        for name, length in lengths.items():
            bars.update(task, description=name)
            run = sample(name, settings, length, tell=lambda steps: bars.advance(task, steps))
            rows += judge(run, tolerance=tolerance)
            notes += [f"{name}: {warning}" for warning in dict.fromkeys(run.warnings)]
            if not console.is_terminal:
                _say(console, f"done    {name}: {length:,} steps")
    seconds = time.perf_counter() - began
    _show(rows, console)
    for line in [*notes, *remedies(rows, settings)]:
        _say(console, line)
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in STYLES}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    _say(console, f"{summary}; {sum(lengths.values()):,} steps, {duration(seconds)}")
    if output is not None:
        write_json(
            output,
            {
                "settings": asdict(settings),
                "steps": lengths,
                "tolerance": tolerance,
                "torch": str(torch.__version__),
                "seconds": round(seconds, 1),
                "rows": [asdict(row) for row in rows],
                "exit_code": exit_code(rows),
            },
        )
    return exit_code(rows)


def _refuse(
    settings: Settings, names: Sequence[str], *, tolerance: float, output: Path | None, steps: int | None
) -> None:
    choices: tuple[tuple[str, str, Any], ...] = (
        ("tempering", settings.tempering, TEMPERINGS),
        ("integrator", settings.integrator, INTEGRATORS),
        ("dtype", settings.dtype, DTYPES),
        *(("target", name, TARGETS) for name in names),
    )
    for what, name, known in choices:
        if name not in known:
            raise Refusal(unknown(what, name, known))
    if not (math.isfinite(settings.lr) and settings.lr > 0):
        raise Refusal(f"--lr {settings.lr:g} is lr × curvature: give a positive number, 0.1 for instance")
    if not 0 <= settings.momentum < 1:
        raise Refusal(f"--momentum {settings.momentum:g}: give a number from 0 to below 1")
    if settings.integrator == "ubu" and not settings.momentum:
        raise Refusal("--integrator ubu needs a --momentum above 0")
    if not 0 < tolerance < 1:
        raise Refusal(f"--tolerance {tolerance:g}: give a share between 0 and 1")
    if settings.seed < 0:
        raise Refusal(f"--seed {settings.seed}: give 0 or more")
    if settings.period < 1:
        raise Refusal(f"--period {settings.period}: give a number of steps, 1 or more")
    if steps is not None and steps < FEWEST:
        raise Refusal(f"--steps {steps}: give {FEWEST} or more")
    if settings.batch is not None:
        _refuse_batch(settings.batch, names)
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise Refusal(f"--json {output}: give a file in a directory that exists")
    try:
        torch.zeros(1, dtype=DTYPES[settings.dtype], device=settings.device).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise Refusal(
            f"--device {settings.device} with --dtype {settings.dtype} cannot be used here: {first}"
        ) from error


def _refuse_batch(batch: int, names: Sequence[str]) -> None:
    if "regression" not in names:
        raise Refusal("--batch is for the regression: name it in --targets, or leave --batch out")
    rows = build("regression").rows
    if not 1 <= batch <= rows:
        raise Refusal(f"--batch {batch}: the regression has {rows} rows; give 1 to {rows}")


def _show(rows: Sequence[Row], console: Console) -> None:
    numeric = ("expected", "measured", "error", "z", "half-trips")
    table = plain_table("", *numeric, "verdict", numeric=("", *numeric))
    table.columns[0].justify = "left"
    before = None
    for row in rows:
        if row.target != before:
            table.add_row(f"[bold]{row.target}[/]")
        before = row.target
        numbers = (row.expected, row.measured, row.standard_error)
        told = f" {row.note}" if row.note and row.verdict != "unconverged" else ""
        table.add_row(
            row.quantity,
            *("–" if number is None else f"{number:.4f}" for number in numbers),
            "–" if row.z is None else f"{row.z:+.1f}",
            "–" if row.half_trips is None else str(row.half_trips),
            f"[{STYLES[row.verdict]}]{row.verdict}[/]{told}",
        )
    console.print(table)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
