"""`ctld demo`: the paper's two comparisons in miniature, CTLD against SGD-M, Adam and Santa, and the report on them.

5,000 MNIST digits and the English of Python's own manual: nothing is downloaded. A few minutes on two cores.
"""

from pathlib import Path

from rich.console import Console

from ctld_lab.commands.carry_out import Machinery, run_study
from ctld_lab.commands.overview import write_report
from ctld_lab.commands.request import Order

STUDIES = ("sda", "charrnn")
METHODS = "sgd,adam,santa,ctld"


def run(directory: Path, machinery: Machinery, console: Console, *, again: str, scale: str = "demo") -> int:
    """The exit code. Interrupted, the same command goes on where it was."""
    for study in STUDIES:
        order = Order(study, scale, METHODS)
        code = run_study(order, directory / study, machinery, console, again=again, report=False)
        if code:
            return code
    write_report(directory, console)
    return 0
