"""Options that several commands of `ctld` share."""

from pathlib import Path
from typing import Annotated

import typer

from ctld_lab.executors import ENGINES

PANEL = "How it executes"

Engine = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(ENGINES),
        help="Where runs execute: in this process, one after the other; in a pool of processes; on Ray.",
        show_default="pool; local with one worker",
        rich_help_panel=PANEL,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Runs at a time.",
        show_default="one per core; 1 with --ranks",
        rich_help_panel=PANEL,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Threads of each run. A run that was begun keeps its number, since the last bits depend on it.",
        show_default="cores / workers / ranks",
        rich_help_panel=PANEL,
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Processes that train each run together, data-parallel. A run may go on on another number.",
        show_default="1",
        rich_help_panel=PANEL,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="A Ray cluster that is there, whose machines share the directory.",
        show_default="one on this machine",
        rich_help_panel=PANEL,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where data sets lie.",
        show_default="$CTLD_DATA, then the user's cache",
    ),
]
StudyPath = Annotated[Path, typer.Argument(metavar="DIR", help="A directory that ctld run has made.")]


def examples(*lines: str) -> str:
    """For the end of a help: one a line, none wrapped into another."""
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)])
