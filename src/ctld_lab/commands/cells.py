"""`ctld run` of the studies that keep a file for each problem and method, and tune themselves: there is less to be chosen."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctld_lab.commands import Refusal
from ctld_lab.studies.asking import NotKnown

CELLS = ("traps", "images")


def run_cells(
    study: str,
    scale: str,
    directory: Path | None,
    *,
    methods: str | None,
    data: str | None,
    data_dir: Path | None,
    unused: Mapping[str, Any],
) -> None:
    """Computes what is missing; an option that would change nothing is refused, since who gives it expects something."""
    unused = {**unused, "data-dir": data_dir}  # their data come with them
    if given := [f"--{name}" for name, value in unused.items() if value is not None]:
        raise Refusal(
            f"the study {study} has no use for {', '.join(given)}: docs/protocols/{study}.md fixes how it is run; choose with "
            "--scale, --methods and --data"
        )
    execute = importlib.import_module(f"ctld_lab.studies.{study}").execute
    names, problems = ([] if chosen is None else chosen.split(",") for chosen in (methods, data))
    try:
        execute(scale, directory or Path("runs") / f"{study}-{scale}", methods=names, problems=problems)
    except NotKnown as error:
        raise Refusal(str(error)) from error
