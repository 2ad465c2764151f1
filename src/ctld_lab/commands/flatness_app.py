"""`ctld flatness`: how it is called."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ctld_lab.commands.options import DataDir, examples
from ctld_lab.flatness_settings import Settings

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
    from ctld_lab.commands.flatness import measure_all, parse_sizes

    settings = Settings(examples=number, iterations=iterations, probes=probes, radius=radius, sizes=parse_sizes(sizes))
    code = measure_all(paths, settings, Console(), again=again, output=output, data_dir=data_dir, threads=threads)
    raise typer.Exit(code)
