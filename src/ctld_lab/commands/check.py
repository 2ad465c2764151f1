"""`ctld check`: how it is called; refuse what cannot be, sample target by target, show the table. No torch until then."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import progress
from rich.console import Console
from rich.text import Text

from ctld_lab.commands import Refusal
from ctld_lab.commands.display import Rate, bars, duration
from ctld_lab.commands.options import examples, flag, option, plain_table, say, unknown
from ctld_lab.files import write_json

if TYPE_CHECKING:
    from ctld_lab.check import Row, Settings

check_app = typer.Typer()
STEPS = {"gaussian": 80_000, "anisotropic": 120_000, "double-well": 320_000, "funnel": 160_000, "regression": 120_000}
"""Two minutes in all at 150 microseconds a step, three on a slower machine. Steps and no clock: a seed has one result."""
THOROUGH = 7
"""Times as many."""
FEWEST = 2000
TINY = 1e-12
STYLES = {"pass": "green", "biased": "green", "fail": "bold red", "unconverged": "yellow"}


@check_app.command(
    epilog=examples(
        "ctld check",
        "ctld check --lr 0.5 --integrator euler",
        "ctld check --tempering paper --targets double-well",
        "ctld check --thorough --dtype float32 --json check.json",
    ),
    help="Sample what is known exactly with your settings, and compare: three minutes.\n\n"
    "A Gaussian, an anisotropic one, a double well, a funnel and a Bayesian regression, with averages at g = 1. Exit code 0 if "
    "all pass, 1 if one fails, 3 if none fails and some are unconverged, with fewer than 20 half-trips of α.",
)
def check(
    lr: Annotated[float, option("X", "lr × stiffest curvature, below 2(1 + momentum).", least=TINY, most=1e6)] = 0.1,
    momentum: Annotated[float, option("X", "As in SGD.", least=0, most=1 - TINY)] = 0.9,
    tempering: Annotated[
        Literal["calibrated", "paper", "driven", "constant"],
        option("calibrated|paper|driven|constant", "What moves the temperature."),
    ] = "calibrated",
    integrator: Annotated[Literal["baoab", "euler", "ubu"], option("baoab|euler|ubu", "Of the parameters.")] = "baoab",
    dtype: Annotated[Literal["float32", "float64"], option("float32|float64", "Of the parameters.")] = "float64",
    device: Annotated[str, option("cpu|cuda|...", "Of the parameters.")] = "cpu",
    targets: Annotated[str | None, option("A,B,...", "Which of them.", "all")] = None,
    thorough: Annotated[bool, flag("--thorough", "Twenty minutes, smaller errors.")] = False,
    seed: Annotated[int, option("N", "Of the noise.", least=0)] = 0,
    output: Annotated[Path | None, option("FILE", "Write the table here too.", False, name="--json")] = None,
    steps: Annotated[int | None, typer.Option(hidden=True, min=FEWEST)] = None,
) -> None:
    import torch

    from ctld_lab.check import Settings, exit_code, judge, remedies, sample
    from ctld_lab.sampling.targets import CHECKED

    settings = Settings(lr, momentum, tempering, integrator, dtype, device, seed)
    chosen = list(CHECKED) if targets is None else list(dict.fromkeys(name.strip() for name in targets.split(",")))
    _refuse(settings, chosen, output)
    lengths = {name: steps or STEPS[name] * (THOROUGH if thorough else 1) for name in chosen}
    console = Console()
    rows: list[Row] = []
    notes: list[str] = []
    began = time.perf_counter()
    with bars(console, progress.TaskProgressColumn(), Rate()) as shown:
        task, done = shown.add_task("", total=sum(lengths.values())), 0
        for name, length in lengths.items():

            def tell(step: int, before: int = done, name: str = name) -> None:
                shown.update(task, description=name, completed=before + step)

            run = sample(name, settings, length, tell=tell)
            done += length
            rows += judge(run)
            notes += [f"{name}: {warning}" for warning in dict.fromkeys(run.warnings)]
            if not console.is_terminal:
                say(console, f"done    {name}: {length:,} steps")
    seconds, code = time.perf_counter() - began, exit_code(rows)
    _show(rows, console)
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in STYLES}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    ended = f"{summary}; {sum(lengths.values()):,} steps, {duration(seconds)}"
    for line in [*notes, *remedies(rows, settings), ended]:
        say(console, line)
    if output is not None:
        made = {"settings": asdict(settings), "steps": lengths, "torch": str(torch.__version__)}
        told = {"seconds": round(seconds, 1), "rows": [asdict(row) for row in rows], "exit_code": code}
        write_json(output, made | told)
    raise typer.Exit(code)


def _refuse(settings: "Settings", names: Sequence[str], output: Path | None) -> None:
    import torch

    from ctld_lab.check import DTYPES
    from ctld_lab.sampling.targets import CHECKED

    for name in names:
        if name not in CHECKED:
            raise Refusal(unknown("target", name, CHECKED))
    if settings.integrator == "ubu" and not settings.momentum:
        raise Refusal("--integrator ubu needs a --momentum above 0")
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise Refusal(f"--json {output}: give a file in a directory that exists")
    try:
        torch.zeros(1, dtype=DTYPES[settings.dtype], device=settings.device).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise Refusal(
            f"--device {settings.device} with --dtype {settings.dtype} cannot be used here: {first}"
        ) from error


def _show(rows: "Sequence[Row]", console: Console) -> None:
    numeric = ("expected", "measured", "error", "z", "trips")
    table = plain_table("", *numeric, "verdict", numeric=("", *numeric))
    table.columns[0].justify, table.columns[-1].no_wrap = "left", True
    before = None
    for row in rows:
        if row.target != before:
            table.add_row(Text(row.target, style="bold"))
        before = row.target
        numbers = (row.expected, row.measured, row.standard_error)
        told = f" {row.note}" if row.note and row.verdict != "unconverged" else ""
        table.add_row(
            row.quantity,
            *("–" if number is None else f"{number:.4f}" for number in numbers),
            "–" if row.z is None else f"{row.z:+.1f}",
            "–" if row.half_trips is None else str(row.half_trips),
            Text.assemble((row.verdict, STYLES[row.verdict]), told),
        )
    console.print(table)
