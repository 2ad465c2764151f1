"""`ctld flatness`: how it is called; find the runs, measure each that was not, show the table. No torch until then."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ctld_lab.commands import Refusal
from ctld_lab.commands.options import DataDir, examples, plain_table, say
from ctld_lab.commands.request import use_data_dir
from ctld_lab.executors import cores
from ctld_lab.executors.progress import Left, duration, first_line
from ctld_lab.files import write_json
from ctld_lab.flatness_settings import Settings
from ctld_lab.records import RecordError, RunDirectory, find_studies

if TYPE_CHECKING:  # scipy and pandas take a second, in which nobody wants to wait for help
    from ctld_lab.report.flatness_records import Flatness, Group
    from ctld_lab.report.reading import StudyRecord

flatness_app = typer.Typer()
DEFAULT = Settings()
SETTINGS = "What is measured"


@flatness_app.command(
    epilog=examples(
        "ctld flatness runs/charrnn-laptop",
        "ctld flatness runs/sda-laptop/runs/ctld-tuned-seed0 runs/sda-laptop/runs/sgd-tuned-seed0",
        "ctld flatness runs/sda-laptop --examples 5000 --iterations 60 --again",
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
        int | None,
        typer.Option(
            "--examples",
            metavar="N",
            help="Training data: images, or characters of text.",
            show_default="1000 images, 4000 characters",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option(metavar="N", help="Of Lanczos, for the eigenvalues.", rich_help_panel=SETTINGS)
    ] = DEFAULT.iterations,
    probes: Annotated[
        int, typer.Option(metavar="N", help="Random vectors for the trace.", rich_help_panel=SETTINGS)
    ] = DEFAULT.probes,
    radius: Annotated[
        float, typer.Option(metavar="X", help="Of sharpness: |δ| ≤ radius·(|θ| + 1).", rich_help_panel=SETTINGS)
    ] = DEFAULT.radius,
    sizes: Annotated[
        str,
        typer.Option(metavar="X,Y,...", help="Of perturbations, relative to the parameters.", rich_help_panel=SETTINGS),
    ] = ",".join(f"{size:g}" for size in DEFAULT.sizes),
    again: Annotated[bool, typer.Option("--again", metavar="", help="Measure what was measured, too.")] = False,
    output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers here too.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads of this process.", show_default="one per core")
    ] = None,
) -> None:
    settings = Settings(examples=number, iterations=iterations, probes=probes, radius=radius, sizes=parse_sizes(sizes))
    code = measure_all(paths, settings, Console(), again=again, output=output, data_dir=data_dir, threads=threads)
    raise typer.Exit(code)


@dataclass
class Outcome:
    """What became of the runs."""

    measured: list[RunDirectory] = field(default_factory=list)
    before: list[RunDirectory] = field(default_factory=list)
    left_out: list[tuple[RunDirectory, str]] = field(default_factory=list)
    """Of a study: what has nothing to measure, and why."""
    failed: list[tuple[RunDirectory, str]] = field(default_factory=list)


def measure_all(
    paths: Sequence[Path],
    settings: Settings,
    console: Console,
    *,
    again: bool = False,
    output: Path | None = None,
    data_dir: Path | None = None,
    threads: int | None = None,
) -> int:
    """The exit code."""
    import torch

    from ctld_lab.report.flatness_records import read_flatness

    _refuse(settings, output=output, threads=threads)
    use_data_dir(data_dir)
    found = find_runs(paths)
    torch.set_num_threads(threads or cores())
    began = time.perf_counter()
    outcome = _measure(found, settings, console, again=again)
    done = [*outcome.measured, *outcome.before]
    parts = [read_flatness(study) for study in _studies(done)]
    for part in parts:
        _show(part, console, several=len(parts) > 1)
    for line in _told(outcome):
        say(console, line)
    counts = [
        (len(outcome.measured), "measured"),
        (len(outcome.before), "measured before"),
        (len(outcome.failed), "failed"),
    ]
    summary = ", ".join(f"{count} {word}" for count, word in counts if count) or "nothing measured"
    say(console, f"{summary}; {duration(time.perf_counter() - began)}")
    if output is not None:
        write_json(output, {"settings": settings.stored(), "runs": {str(run.path): run.flatness() for run in done}})
    return 1 if outcome.failed or not done else 0


def _refuse(settings: Settings, *, output: Path | None, threads: int | None) -> None:
    for option, value, least in (
        ("examples", settings.examples, 1),
        ("iterations", settings.iterations, settings.eigenvalues),
        ("probes", settings.probes, 2),
        ("threads", threads, 1),
    ):
        if value is not None and value < least:
            raise Refusal(f"--{option} {value}: at least {least} is needed")
    if not (math.isfinite(settings.radius) and settings.radius > 0):
        raise Refusal(f"--radius {settings.radius:g}: give a positive number, 0.001 for instance")
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise Refusal(f"--json {output}: give a file in a directory that exists")


def parse_sizes(text: str) -> tuple[float, ...]:
    try:
        sizes = tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        sizes = ()
    if not sizes or not all(math.isfinite(size) and size > 0 for size in sizes) or len(set(sizes)) < len(sizes):
        raise Refusal(f'--sizes {text}: give positive numbers, each once, such as "0.01,0.1"')
    return sizes


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
        for study in studies:
            for run in study.runs():
                if read_run(run).final:
                    found.setdefault(run.path.resolve(), (run, False))
    return list(found.values())


def _measure(
    found: Sequence[tuple[RunDirectory, bool]], settings: Settings, console: Console, *, again: bool
) -> Outcome:
    from ctld_lab.flatness import Unmeasured, measure, measured

    outcome = Outcome()
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        Left(),
    )
    with progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task("", total=len(found))
        for place, (run, named) in enumerate(found):
            bars.update(task, description=escape(run.name), completed=place)
            try:
                if not again and measured(run, settings) is not None:
                    outcome.before.append(run)
                    continue
                record = measure(run, settings, lambda: bars.advance(task, 1.0 / settings.parts))
                run.write("flatness.json", record)
            except Unmeasured as error:
                (outcome.failed if named else outcome.left_out).append((run, str(error)))
            except Exception as error:  # whatever a stranger's records bring about; the other runs are as good as ever
                words = str(error) if isinstance(error, RecordError) else f"{type(error).__name__}: {error}"
                outcome.failed.append((run, words))
            else:
                outcome.measured.append(run)
                if not console.is_terminal:
                    say(console, f"done    {run.name}: {duration(record['seconds'])}")
    return outcome


def _told(outcome: Outcome) -> list[str]:
    """A line for each failure, and one for each reason to leave runs of a study out."""
    lines = [f"failed  {run.name}: {first_line(words)}" for run, words in outcome.failed]
    reasons: dict[str, list[str]] = {}
    for run, words in outcome.left_out:
        reasons.setdefault(words, []).append(run.name)
    for words, names in reasons.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"left out {names[0]}{others}: {words}")
    return lines


# ---- the table ----


def _studies(runs: Sequence[RunDirectory]) -> list[StudyRecord]:
    """The studies of the runs, with these runs alone."""
    from ctld_lab.report.reading import StudyRecord, read_run, read_study

    by_study: dict[Path, list[RunDirectory]] = {}
    for run in runs:
        by_study.setdefault(run.path.resolve().parent.parent, []).append(run)
    found = []
    for path, own in by_study.items():
        study = read_study(path)  # runs may lie anywhere: then there is no study, and they are a table all the same
        names = {run.path.resolve() for run in own}
        kept = [run for run in study.runs if run.directory.path.resolve() in names] or [read_run(run) for run in own]
        found.append(StudyRecord(study.directory, study.description, kept))
    return found


def _show(part: Flatness, console: Console, *, several: bool) -> None:
    """Few enough columns for a terminal: of the perturbations, the middle one."""
    from ctld_lab.report.flatness_records import EIGENVALUE, SHARPNESS, TRACE

    rises = [name for name in part.measures if name not in (EIGENVALUE, TRACE, SHARPNESS)]
    columns = {EIGENVALUE: "largest\neigenvalue", TRACE: "\ntrace", SHARPNESS: "sharpness\n%"}
    columns |= {name: name.replace(" ", "\n", 1) for name in rises[len(rises) // 2 :][:1]}
    table = plain_table("method", "", *columns.values(), "n", numeric=[*columns.values(), "n"])
    table.columns[0].min_width, table.columns[1].min_width = 9, 5
    for group in part.groups:
        cells = [_cell(group, name) for name in columns]
        table.add_row(Text(group.title), Text(group.variant), *cells, str(len(group.runs)))
    table.caption = "mean ± 95 % over n seeds, in percent of it; lower is flatter"
    if several:
        say(console, str(part.study.directory.path))
    console.print(table)
    for words in dict.fromkeys(record.what for record in part.measured):
        say(console, f"loss: {words}")
    loose = [record.run.name for record in part.measured if not record.converged]
    if loose:
        others = f" and {len(loose) - 1} more" if len(loose) > 1 else ""
        say(console, f"note    {loose[0]}{others}: eigenvalue not found to 1 %; give more --iterations")
    for name, problem in part.problems:
        say(console, f"broken  {name}: {problem}")


def _cell(group: Group, name: str) -> str:
    """Short enough for four beside each other: the half width in percent of the mean."""
    found = group.estimate(name)
    half, mean = found.half_width, f"{found.mean:.3g}".replace("e+0", "e").replace("e-0", "e-")
    if half is None or not found.mean:
        return mean
    return f"{mean} ±{min(100.0 * half / abs(found.mean), 999.0):.0f}%"
