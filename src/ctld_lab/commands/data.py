"""`ctld data list`, `fetch` and `verify`."""

from pathlib import Path
from typing import Annotated

import typer
from rich import progress
from rich.console import Console

from ctld_lab import data
from ctld_lab.commands import Refusal
from ctld_lab.commands.options import DataDir, examples, plain_table, say, unknown

data_app = typer.Typer(no_args_is_help=True, help="See, fetch and verify the data sets.")


@data_app.command("list", epilog=examples("ctld data list"))
def data_list(data_dir: DataDir = None) -> None:
    """Show every data set: kind, where it lies, size, origin and licence."""
    list_datasets(data_dir, Console())


@data_app.command(epilog=examples("ctld data fetch mnist", "ctld data fetch enwik8 --data-dir /data"))
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help='Which data set; "ctld data list" shows them.')],
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Download anew what is there.")] = False,
) -> None:
    """Download a data set from its public home; the one command that uses the network."""
    fetch_dataset(name, data_dir, force=force, console=Console())


@data_app.command(epilog=examples("ctld data verify", "ctld data verify mnist"))
def verify(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Which data set.", show_default="all that are there"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Read data sets to their end and compare them with their SHA-256."""
    raise typer.Exit(verify_datasets(name, data_dir, Console()))


def list_datasets(data_dir: Path | None, console: Console) -> None:
    table = plain_table("data set", "kind", "where", "MB", "what, and its licence", numeric=("MB",))
    for row in data.status(data_dir):
        if row.embedded:
            where = "installed" if row.available else f"needs {', '.join(row.missing)}"
        else:
            where = str(row.where) if row.available else f"not here: ctld data fetch {row.name}"
        size = "" if row.size is None else f"{row.size / 1e6:.1f}"
        table.add_row(row.name, row.kind, where, size, f"{row.origin}; {row.licence}")
    console.print(table)
    folders = ", ".join(map(str, data.search_path(data_dir)))
    say(console, f"looked for in {folders}")


def fetch_dataset(name: str, data_dir: Path | None, *, force: bool, console: Console) -> None:
    _check(name)
    if data.DATASETS[name].embedded:
        console.print(f"{name} comes with an installed package: nothing to fetch", highlight=False)
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, progress.TaskID] = {}

        def tell(file: str, so_far: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=so_far)

        paths = data.fetch(name, data_dir, tell, force=force)
    for path in paths:
        say(console, f"{path}")


def verify_datasets(name: str | None, data_dir: Path | None, console: Console) -> int:
    """1 if a file is not what it should be. Without a name: whatever is there."""
    if name is not None:
        _check(name)
    names = [name] if name is not None else [row.name for row in data.status(data_dir) if row.available]
    good = True
    for each in names:
        for file in data.verify(each, data_dir):
            good = good and file.ok
            where = f" ({file.path})" if file.path else ""
            line = f"{each}: {file.name} {'is right' if file.ok else f'is wrong: {file.problem}'}{where}"
            say(console, line)
    return 0 if good else 1


def _check(name: str) -> None:
    if name not in data.DATASETS:
        raise Refusal(unknown("data set", name, data.DATASETS))
