"""Options, sentences and tables that several commands of `ctld` share."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ctld_lab.commands import Refusal
from ctld_lab.files import printable
from ctld_lab.jobs import MOST_THREADS

PANEL = "How it executes"


def option(
    metavar: str,
    words: str,
    default: bool | str = True,
    *,
    name: str | None = None,
    panel: str | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """An option of a command: what it takes, what it is for, and how its default is shown."""
    names = () if name is None else (name,)
    shown: dict[str, Any] = {"metavar": metavar, "help": words, "show_default": default, "rich_help_panel": panel}
    return typer.Option(*names, **shown, min=least, max=most)


def flag(name: str, words: str) -> Any:
    return option("", words, name=name)


Engine = Annotated[
    Literal["local", "pool", "ray"] | None,
    option("local|pool|ray", "In this process, in a pool of processes, or on Ray.", "pool", panel=PANEL),
]
Workers = Annotated[int | None, option("N", "Runs at a time.", "one per core", panel=PANEL, least=1, most=MOST_THREADS)]
THREADS = "Threads of each run; one that was begun keeps its number, since the last bits depend on it."
Threads = Annotated[int | None, option("N", THREADS, "cores / workers", panel=PANEL, least=1, most=MOST_THREADS)]
CLUSTER = "A Ray cluster whose machines share the directory; implies --engine ray."
RayAddress = Annotated[str | None, option("ADDRESS", CLUSTER, "one on this machine", panel=PANEL)]


def _gone(ranks: int | None) -> None:
    if ranks is not None:
        raise Refusal(
            "--ranks is gone: a run of the laboratory is one process. To train on several, see examples/digits_on_ranks.py "
            "and docs/distributed.md"
        )


Ranks = Annotated[int | None, typer.Option(hidden=True, callback=_gone)]
"""An option of version 0.2; until 0.4 it says where it went."""
DataDir = Annotated[Path | None, option("DIR", "Where data sets lie.", "$CTLD_DATA, then the user's cache")]


def examples(*lines: str) -> str:
    """Examples for the end of a help, one a line."""
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)])


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A sentence with the near ones and all of them."""
    names: Sequence[str] = list(known)
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? Known" if near else "known"
    return f"there is no {what} {name!r}; {hint}: {', '.join(names)}"


def say(console: Console, line: object) -> None:
    """A line as it is: nothing in it is markup, and what a terminal would obey is shown instead."""
    console.print(Text(printable(str(line))), soft_wrap=True)


class PlainTable(Table):
    """A table whose cells are shown as they are; see `printable`."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(
            *(Text(printable(cell)) if isinstance(cell, str) else _checked(cell) for cell in cells), **options
        )


def _checked(cell: Any) -> Any:
    if isinstance(cell, Text):
        cell.plain = printable(cell.plain)
    return cell


def plain_table(*columns: str, numeric: Sequence[str] = ()) -> Table:
    table = PlainTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", no_wrap=column in numeric)
    return table
