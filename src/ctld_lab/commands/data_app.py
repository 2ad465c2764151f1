"""`ctld data`: how it is called."""

from typing import Annotated

import typer
from rich.console import Console

from ctld_lab.commands.options import DataDir, examples

data_app = typer.Typer(no_args_is_help=True, help="See, fetch and verify the data sets.")


@data_app.command("list", epilog=examples("ctld data list"))
def data_list(data_dir: DataDir = None) -> None:
    """Show every data set: kind, where it lies, size, origin and licence."""
    from ctld_lab.commands.datasets import list_datasets

    list_datasets(data_dir, Console())


@data_app.command(epilog=examples("ctld data fetch mnist", "ctld data fetch enwik8 --data-dir /data"))
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help='Which data set; "ctld data list" shows them.')],
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Download anew what is there.")] = False,
) -> None:
    """Download a data set from its public home; the one command that uses the network."""
    from ctld_lab.commands import datasets

    datasets.fetch(name, data_dir, force=force, console=Console())


@data_app.command(epilog=examples("ctld data verify", "ctld data verify mnist"))
def verify(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Which data set.", show_default="all that are there"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Read data sets to their end and compare them with their SHA-256."""
    from ctld_lab.commands import datasets

    raise typer.Exit(datasets.verify(name, data_dir, Console()))
