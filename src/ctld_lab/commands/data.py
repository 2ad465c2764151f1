"""`ctld data list`, `fetch` and `verify`."""

import textwrap
from typing import Annotated

import typer
from rich import progress
from rich.console import Console

from ctld_lab import data
from ctld_lab.commands import Refusal
from ctld_lab.commands.display import bars
from ctld_lab.commands.options import DataDir, examples, flag, say, unknown

data_app = typer.Typer(no_args_is_help=True, help="See, fetch and verify the data sets.")


@data_app.command("list", epilog=examples("ctld data list"))
def data_list(data_dir: DataDir = None) -> None:
    """Show every data set: kind, where it lies, size, origin and licence."""
    console = Console()
    for row in data.status(data_dir):
        known = row.dataset
        if known.embedded:
            where = "installed" if row.available else f"needs {', '.join(row.missing)}"
        else:
            where = f"{row.size / 1e6:.1f} MB in {row.where}" if row.size else f"not here: ctld data fetch {known.name}"
        say(console, f"{known.name:15}{known.kind:8}{where}")
        about = f"{known.origin}; {known.licence}"
        say(console, textwrap.fill(about, console.width, initial_indent=" " * 15, subsequent_indent=" " * 15))
    say(console, f"looked for in {', '.join(map(str, data.search_path(data_dir)))}")


@data_app.command(
    epilog=examples("ctld data fetch mnist", "ctld data fetch enwik8 --data-dir /data", "ctld data fetch uci/energy")
)
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help='Which data set; "ctld data list" shows them. Or uci/NAME.')
    ],
    data_dir: DataDir = None,
    force: Annotated[bool, flag("--force", "Download anew what is there.")] = False,
) -> None:
    """Download a data set from its public home; the one command that uses the network."""
    console = Console()
    of_uci = name.startswith("uci/")
    if not of_uci:
        _check(name)
    if not of_uci and data.DATASETS[name].embedded:
        say(console, f"{name} comes with an installed package: nothing to fetch")
        return
    with bars(console, progress.DownloadColumn(), progress.TransferSpeedColumn()) as shown:
        tasks: dict[str, progress.TaskID] = {}

        def tell(file: str, so_far: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(file, total=total)
            shown.update(tasks[file], completed=so_far)

        if of_uci:
            from ctld_lab.data import uci  # which takes numpy along

            paths = [uci.fetch(name.removeprefix("uci/"), data_dir, tell, force=force)]
        else:
            paths = data.fetch(name, data_dir, tell, force=force)
    for path in paths:
        say(console, path)


@data_app.command(epilog=examples("ctld data verify", "ctld data verify mnist"))
def verify(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which data set.", show_default="all that are there")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Read data sets to their end and compare them with their SHA-256."""
    if name is not None:
        _check(name)
    there = [row.dataset.name for row in data.status(data_dir) if row.available]
    checks = [(each, file) for each in ([name] if name else there) for file in data.verify(each, data_dir)]
    for each, file in checks:
        where = f" ({file.path})" if file.path else ""
        say(Console(), f"{each}: {file.name} {'is right' if file.ok else f'is wrong: {file.problem}'}{where}")
    raise typer.Exit(0 if all(file.ok for _, file in checks) else 1)


def _check(name: str) -> None:
    if name not in data.DATASETS:
        raise Refusal(unknown("data set", name, data.DATASETS))
