"""`ctld check`: how it is called."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ctld_lab.commands.options import examples

check_app = typer.Typer()
SETTINGS = "What is checked"


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
    lr: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="lr × curvature of the mean loss in the stiffest direction; stable below 2(1 + momentum).",
            rich_help_panel=SETTINGS,
        ),
    ] = 0.1,
    momentum: Annotated[float, typer.Option(metavar="X", help="As in SGD.", rich_help_panel=SETTINGS)] = 0.9,
    tempering: Annotated[
        str,
        typer.Option(
            metavar="calibrated|paper|driven|constant", help="What moves the temperature.", rich_help_panel=SETTINGS
        ),
    ] = "calibrated",
    integrator: Annotated[
        str, typer.Option(metavar="baoab|euler|ubu", help="Of the parameters.", rich_help_panel=SETTINGS)
    ] = "baoab",
    dtype: Annotated[
        str, typer.Option(metavar="float32|float64", help="Of the parameters.", rich_help_panel=SETTINGS)
    ] = "float64",
    device: Annotated[
        str, typer.Option(metavar="cpu|cuda|...", help="Of the parameters.", rich_help_panel=SETTINGS)
    ] = "cpu",
    period: Annotated[
        int, typer.Option(metavar="N", help="Steps of a period of driven tempering.", rich_help_panel=SETTINGS)
    ] = 20_000,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Rows of a minibatch of the regression, which has 64.",
            show_default="all",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    targets: Annotated[str | None, typer.Option(metavar="A,B,...", help="Which of them.", show_default="all")] = None,
    thorough: Annotated[bool, typer.Option("--thorough", metavar="", help="Twenty minutes, smaller errors.")] = False,
    tolerance: Annotated[
        float, typer.Option(metavar="X", help="A bias below this share of the quantity's scale passes.")
    ] = 0.02,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the noise.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the table here too.", show_default=False)
    ] = None,
    steps: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    from ctld_lab.check.run import Settings
    from ctld_lab.commands.checking import check_settings

    settings = Settings(
        lr=lr,
        momentum=momentum,
        tempering=tempering,
        integrator=integrator,
        dtype=dtype,
        device=device,
        seed=seed,
        period=period,
        batch=batch,
    )
    names = None if targets is None else [name.strip() for name in targets.split(",")]
    code = check_settings(
        settings, Console(), names=names, thorough=thorough, tolerance=tolerance, output=output, steps=steps
    )
    raise typer.Exit(code)
