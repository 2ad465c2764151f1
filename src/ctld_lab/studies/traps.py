"""Traps: does sampling first keep training out of bad minima? Where the global minimum is known, by who reaches it.

varied   the method: SGD-M, restarts, Adam, exploration in one pass at five kinds of temperature, cycles of six kinds
tuned    lr and momentum (six pairs, the same for all), and thirteen levels of T, of restarts or of decay: 78 points for each
fixed    the budget of gradients, the share of exploration, the number of cycles

The protocol is docs/protocols/traps.md, what came out docs/traps.md. Tables and figures are made anew, without running
anything, by `python -m ctld_lab.studies.traps results/traps docs/traps.md`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ctld_lab.files import MissingRecord, write_bytes
from ctld_lab.report.markdown import document
from ctld_lab.studies.asking import refuse_unknown
from ctld_lab.traps import show, tables
from ctld_lab.traps.golf import RunningParity, SparseParity, ThreeSines
from ctld_lab.traps.methods import METHODS
from ctld_lab.traps.networks import RBF, Convolution, SampledRBF, SampledTeacherStudent, TeacherStudent
from ctld_lab.traps.problem import Problem
from ctld_lab.traps.study import Size, carry_out

PROBLEMS: Mapping[str, Callable[[], Problem]] = {
    "rbf8": lambda: RBF(8),
    "rbf16": lambda: RBF(16),
    "rbf32": lambda: RBF(32),
    "sines": ThreeSines,
    "convolution": Convolution,
    "relu12": lambda: TeacherStudent(12),
    "rbf16-batch": lambda: SampledRBF(16),
    "relu16": lambda: TeacherStudent(16),
    "running-parity": RunningParity,
    "sparse-parity": SparseParity,
    "relu12-batch": lambda: SampledTeacherStudent(12),
    "rbf48": lambda: RBF(48),
    "relu24": lambda: TeacherStudent(24),
    "rbf32-batch": lambda: SampledRBF(32, coldest=1e-3),
    "relu16-batch": lambda: SampledTeacherStudent(16, batch=64, rates=(0.025, 0.05, 0.1), coldest=1e-5),
    "relu24-batch": lambda: SampledTeacherStudent(24, batch=128, rates=(0.025, 0.05, 0.1), coldest=1e-5),
}
"""In the order in which they are computed."""

SIZES = {
    "smoke": Size(budget=240, tuning=1, scan=1, final=4),
    "laptop": Size(budget=3000, tuning=6, scan=24, final=300),
    "paper": Size(budget=10_000, tuning=20, scan=100, final=300),
}


def execute(scale: str, directory: Path, methods: Sequence[str] = (), problems: Sequence[str] = ()) -> None:
    """Computes what is missing in `directory`; all problems and methods unless some are named."""
    import torch

    from ctld_lab.jobs import environment

    refuse_unknown({"scale": ([scale], SIZES), "problem": (problems, PROBLEMS), "method": (methods, METHODS)})
    wanted = problems or (("rbf8",) if scale == "smoke" else tuple(PROBLEMS))
    torch.set_num_threads(1)  # rows are many and small: threads would wait for each other
    carry_out(
        directory,
        [PROBLEMS[name]() for name in wanted],
        SIZES[scale],
        methods=methods or tuple(METHODS),
        environment=environment(1) | {"command": " ".join(["ctld", *sys.argv[1:]])},
        say=lambda line: print(line, flush=True),
    )
    try:
        show.write(directory, tuple(PROBLEMS))
    except MissingRecord as error:  # some of the methods were asked for, and that is what was done
        print(error)


if __name__ == "__main__":
    found = show.write(Path(sys.argv[1]), tuple(PROBLEMS))
    for page in map(Path, sys.argv[2:]):
        write_bytes(page, document(page.read_text(), tables.texts(found)).encode())
