"""The `ctld` command: how it is called. What its parts do is in `commands`, imported when they are asked for."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
except ImportError as missing:
    sys.exit(f'the command "ctld" needs {missing.name}, which is not installed: pip install "ctld[lab]"')

from ctld_lab.commands import Refusal
from ctld_lab.commands.check import check_app
from ctld_lab.commands.checkpoints import checkpoints_app
from ctld_lab.commands.data import data_app
from ctld_lab.commands.flatness import flatness_app
from ctld_lab.commands.options import DataDir, Engine, Ranks, RayAddress, Threads, Workers, examples, flag, option
from ctld_lab.commands.status import status_app
from ctld_lab.files import printable

app = typer.Typer(
    name="ctld",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (check_app, checkpoints_app, flatness_app, status_app):
    app.add_typer(part)
app.add_typer(data_app, name="data")


# ---- commands ----

SCALES = "smoke takes a minute, demo a few, laptop up to an hour; paper is the paper's size."
BY_SCALE = "as the scale says"
PUBLISHED = 'Go on from what "ctld checkpoints" has published there.'


@app.callback(
    invoke_without_command=True,
    epilog=examples(
        "ctld demo                          two small studies and their report, in minutes",
        "ctld run sda --scale smoke         a study, small, to see that all works",
        "ctld run sda --seeds 5             the same at laptop scale, with five seeds",
        "ctld list                          what there is and how far it is",
    ),
)
def _top(version: Annotated[bool, flag("--version", "Show the version and leave.")] = False) -> None:
    """Langevin dynamics with continuous tempering: rebuild the paper's experiments.

    A study is a directory of runs. Whatever stops it, the same command goes on where it was.
    """
    if version:
        from importlib.metadata import version as installed

        print(f"ctld {installed('ctld')}")
        raise typer.Exit


@app.command(
    epilog=examples(
        "ctld run sda --scale smoke",
        "ctld run charrnn --methods sgd,ctld --seeds 3 --workers 2",
        "ctld run charrnn --text mybook.txt --dir runs/mybook",
        "ctld run charrnn --scale paper --from results/paper/checkpoints",
        "ctld run sda --scale paper --engine ray --ray-address auto",
        "ctld run my_study.py",
    ),
    help="Execute a study: each method and seed, tuning first, then the report.\n\n"
    "Ctrl-C saves a checkpoint and stops; the same command goes on. Runs that are done are not done again, so more "
    "seeds or methods can be added later. One run that fails does not stop the others.",
)
def run(
    study: Annotated[str, typer.Argument(metavar="STUDY", help='One of "ctld list", or a file of your own, FILE.py.')],
    scale: Annotated[str | None, option("smoke|demo|laptop|paper", SCALES, "laptop")] = None,
    directory: Annotated[Path | None, option("DIR", "Where it all goes.", "runs/STUDY-SCALE", name="--dir")] = None,
    methods: Annotated[str | None, option("A,B,...", "Which methods.", "those of the paper")] = None,
    seeds: Annotated[
        str | None, option("N|I,J,...", 'How many seeds, or which ones; "4," is 4 alone.', BY_SCALE)
    ] = None,
    trials: Annotated[int | None, option("N", "Trials that tune each method; 0 for none.", BY_SCALE, least=0)] = None,
    tuned: Annotated[Path | None, option("DIR", "A published report whose trials are taken over.", False)] = None,
    data: Annotated[str | None, option("NAME", 'Another data set of the same kind ("ctld data list").', False)] = None,
    text: Annotated[Path | None, option("FILE", "A text of your own, for studies of text.", False)] = None,
    data_dir: DataDir = None,
    autocast: Annotated[bool, flag("--autocast", "Train in bfloat16 where torch.autocast does.")] = False,
    checkpoints: Annotated[Path | None, option("DIR", PUBLISHED, False, name="--from")] = None,
    report: Annotated[bool, flag("--report/--no-report", "Build the report when the runs are done.")] = True,
    tensorboard: Annotated[bool, flag("--tensorboard", "Write curves for TensorBoard too.")] = False,
    engine: Engine = None,
    workers: Workers = None,
    threads: Threads = None,
    ranks: Ranks = None,
    ray_address: RayAddress = None,
) -> None:
    from ctld_lab.commands.carry_out import Machinery, run_study
    from ctld_lab.commands.request import Order, default_scale

    scale = scale or default_scale(study)
    asked = (methods, seeds, trials, tuned, data, text, data_dir, autocast, report, tensorboard)
    order = Order(study, scale, *asked)
    directory = directory or Path("runs") / f"{Path(study).stem}-{scale}"
    machinery = Machinery(engine, workers, threads, ray_address)
    code = run_study(order, directory, machinery, Console(), again=_again(), checkpoints=checkpoints)
    raise typer.Exit(code)


@app.command(epilog=examples("ctld resume runs/sda-laptop", "ctld resume runs/sda-laptop/runs/ctld-tuned-seed0"))
def resume(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a study, or of one of its runs.")],
    data_dir: DataDir = None,
    engine: Engine = None,
    workers: Workers = None,
    threads: Threads = None,
    ranks: Ranks = None,
    ray_address: RayAddress = None,
) -> None:
    """Go on where a study or a run was when it stopped."""
    from ctld_lab.commands.carry_out import Machinery, resume_path

    machinery = Machinery(engine, workers, threads, ray_address)
    raise typer.Exit(resume_path(path, machinery, Console(), data_dir=data_dir, again=_again()))


@app.command(
    epilog=examples(
        "ctld report runs/sda-laptop",
        "ctld report runs --output report",
        "ctld report runs/paper --output results/paper --add",
    )
)
def report(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a study, or of several.")],
    output: Annotated[Path | None, option("DIR", "Where it goes.", "DIR")] = None,
    add: Annotated[
        bool, flag("--add", "Keep what the published report in --output has of methods and settings that DIR has not.")
    ] = False,
) -> None:
    """Build tables and figures from the records, of a live study too."""
    from ctld_lab.commands.overview import write_report

    if add and (output is None or output.resolve() == path.resolve()):
        raise Refusal("--add needs --output, the published report that DIR is added to")
    write_report(path, Console(), output, add=add)


@app.command(epilog=examples("ctld paper", "ctld paper --results results --output page"))
def paper(
    results: Annotated[Path, option("DIR", "Where the published tables are.")] = Path("results"),
    output: Annotated[Path, option("DIR", "Where the page and its figures go.")] = Path("paper"),
) -> None:
    """Write the paper beside what was run: figures.html, and each figure as SVG, from stored tables."""
    from ctld_lab.paper import write

    print(write(results, output))


@app.command(epilog=examples("ctld compare runs/sda-laptop runs/sda-laptop-new"))
def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR DIR...", help="Two or more directories of studies.")],
) -> None:
    """Set the results of several directories side by side."""
    from ctld_lab.commands.overview import print_comparison

    print_comparison(paths, Console())


@app.command(epilog=examples("ctld demo", "ctld demo --dir /tmp/demo --workers 4"))
def demo(
    directory: Annotated[Path, option("DIR", "Where the records and the report go.", name="--dir")] = Path("demo"),
    workers: Workers = None,
) -> None:
    """See it work: two small studies and their report, in a few minutes, offline.

    A stacked autoencoder on 5,000 digits and a character-level LSTM on English, CTLD against SGD-M, Adam and Santa.
    """
    from ctld_lab.commands.carry_out import Machinery, demonstrate

    raise typer.Exit(demonstrate(directory, Machinery(workers=workers), Console(), again=_again()))


# ---- the command ----


def _again() -> str:
    return shlex.join(["ctld", *_typed])


_typed: list[str] = []


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 all is well, 1 something failed, 2 wrong usage, 3 unconverged, 130 interrupted."""
    _typed[:] = sys.argv[1:] if arguments is None else arguments
    sys.exit(_main(_typed))


def _main(arguments: list[str]) -> int:
    from ctld_lab.records import RecordError

    try:
        code: Any = app(arguments, prog_name="ctld", standalone_mode=False)
    except Refusal as error:
        return _fail(str(error), 2)
    except RecordError as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        usage: Any = error
        if hasattr(error, "format_message"):  # typer's own, whichever version it is
            if type(error).__name__ == "NoArgsIsHelpError":
                print(usage.format_message(), end="")  # the help; empty where typer has shown it already
                return int(usage.exit_code)
            context = getattr(error, "ctx", None)
            hint = f". See: {context.command_path} --help" if context is not None else ""
            return _fail(usage.format_message().rstrip(".") + hint, usage.exit_code)
        if isinstance(error, OSError) or type(error).__name__ in ("DataError", "EngineError"):
            return _fail(str(error), 1)
        raise
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"ctld: {printable(message)}", file=sys.stderr)
    return code
