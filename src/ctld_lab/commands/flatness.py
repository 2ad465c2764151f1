"""`ctld flatness`: find the runs, measure each that was not, say what became of them. The report has the tables."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich import progress
from rich.console import Console
from rich.markup import escape

from ctld_lab.commands import Refusal
from ctld_lab.commands.display import bars, duration, first_line
from ctld_lab.commands.options import DataDir, examples, flag, option, say
from ctld_lab.commands.request import use_data_dir
from ctld_lab.executors import cores
from ctld_lab.records import RecordError, RunDirectory, find_studies

flatness_app = typer.Typer()


@flatness_app.command(
    epilog=examples(
        "ctld flatness runs/charrnn-laptop",
        "ctld flatness runs/sda-laptop/runs/ctld-tuned-seed0 runs/sda-laptop/runs/sgd-tuned-seed0",
    ),
    help="Measure how flat the minima are that runs ended in: the paper's hypothesis.\n\n"
    "Of the final parameters, on fixed training data in eval mode: largest eigenvalues and trace of the Hessian, Keskar's "
    "sharpness, the rise of the loss under random perturbations. Written to flatness.json beside each run, for the report. "
    "Runs that were measured with the same settings are not measured again. Exit code 1 if some could not be.",
)
def flatness(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of runs, of studies, or of several studies.")
    ],
    number: Annotated[
        int | None, option("N", "Training data.", "1000 images, 4000 characters", name="--examples")
    ] = None,
    again: Annotated[bool, flag("--again", "Measure what was measured, too.")] = False,
    data_dir: DataDir = None,
    threads: Annotated[int | None, option("N", "Threads of this process.", "one per core")] = None,
) -> None:
    for name, value in (("--examples", number), ("--threads", threads)):
        if value is not None and value < 1:
            raise Refusal(f"{name} {value}: at least 1 is needed")
    use_data_dir(data_dir)
    found = find_runs(paths)
    raise typer.Exit(measure_all(found, Console(), number=number, again=again, threads=threads or cores()))


def find_runs(paths: Iterable[Path]) -> list[tuple[RunDirectory, bool]]:
    """Each once, and whether it was named itself; of a study those that are final."""
    from ctld_lab.report.reading import read_run

    found: dict[Path, tuple[RunDirectory, bool]] = {}
    for path in paths:
        if (path / "config.json").exists():
            role = read_run(RunDirectory(path)).config.get("role", "final")
            if role != "final":
                raise Refusal(
                    f"{path} is a run of role {str(role)[:40]!r}, not a final one: it is no result, and is not measured"
                )
            found[path.resolve()] = RunDirectory(path), True
            continue
        studies = find_studies(path) if path.is_dir() else []
        if not studies:
            raise Refusal(
                f"{path} is neither a run (no config.json) nor a study (no study.json), and has no study below it"
            )
        for run in (run for study in studies for run in study.runs() if read_run(run).final):
            found.setdefault(run.path.resolve(), (run, False))
    return list(found.values())


def measure_all(
    found: list[tuple[RunDirectory, bool]], console: Console, *, number: int | None, again: bool, threads: int
) -> int:
    """The exit code. What of a study has nothing to measure is left out; of a run that was named, it is a failure."""
    import torch

    from ctld_lab import flatness

    torch.set_num_threads(threads)
    settings = flatness.settings(number)
    began = time.perf_counter()
    counts = dict.fromkeys(("measured", "measured before", "failed"), 0)
    lines: list[str] = []
    left_out: dict[str, list[str]] = {}
    with bars(console, progress.MofNCompleteColumn()) as shown:
        task = shown.add_task("", total=len(found))
        for place, (run, named) in enumerate(found):
            shown.update(task, description=escape(run.name), completed=place)
            try:
                if not again and flatness.measured(run, settings) is not None:
                    counts["measured before"] += 1
                    continue
                record = flatness.measure(run, settings, lambda: shown.advance(task, 1.0 / settings.parts))
                run.write("flatness.json", record)
            except Exception as error:  # whatever a stranger's records bring about; the other runs are as good as ever
                if isinstance(error, flatness.Unmeasured) and not named:
                    left_out.setdefault(str(error), []).append(run.name)
                    continue
                counts["failed"] += 1
                told = isinstance(error, RecordError | flatness.Unmeasured)
                words = str(error) if told else f"{type(error).__name__}: {error}"
                lines.append(f"failed  {run.name}: {first_line(words)}")
            else:
                counts["measured"] += 1
                if not console.is_terminal:
                    say(console, f"done    {run.name}: {duration(record['seconds'])}")
    for words, names in left_out.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"left out {names[0]}{others}: {words}")
    summary = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "nothing measured"
    for line in [*lines, f"{summary}; {duration(time.perf_counter() - began)}"]:
        say(console, line)
    return 1 if counts["failed"] or not counts["measured"] + counts["measured before"] else 0
