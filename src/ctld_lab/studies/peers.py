"""Peers: cycles beside what else turns one budget of gradients into a prediction with an uncertainty.

varied   the method: `ctld.Ensemble` with three kinds of T, cyclical SGHMC, TACT-HMC, replica exchange, SGD-M, AdamW, SAM,
         MC dropout, SWAG, IVON, two of Laplace's approximations, a deep ensemble, SGHMC without N; beside them temperatures
         that move, SWA, snapshot ensembles, Adam and Santa, and SGHMC as torch-uncertainty has it
tuned    lr, weight decay, and a third option where a method has one: eight trials each, by validation nll
fixed    the number of gradients, networks, batches, momentum 0.9

The protocol is docs/protocols/peers.md, what came out docs/peers.md. Tables are made anew, without running anything, by
`python -m ctld_lab.studies.peers results/peers docs/peers.md`. Other people's packages come by `make peers`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ctld_lab.files import write_bytes
from ctld_lab.peers import study, tables
from ctld_lab.peers.methods import EVERY, check_packages
from ctld_lab.peers.problems import Size
from ctld_lab.peers.study import REFERENCE, TUNING_SEED, Plan, load_for, share_out
from ctld_lab.report.markdown import document
from ctld_lab.studies.asking import NotKnown, refuse_unknown

SHARED = {"dropout": (0.02, 0.5), "rho": (0.01, 0.3), "hess_init": (0.05, 1.0), "prior_precision": (10.0, 1e5)}
DIGITS = SHARED | {
    "lr of sgd": (0.03, 0.3), "lr of adamw": (2e-4, 2e-3), "lr of ivon": (0.1, 1.0),
    "weight_decay of sgd": (1e-4, 1e-2), "weight_decay of adamw": (0.05, 5.0), "weight_decay of ivon": (1e-4, 1e-2),
    "temperature": (1e-3, 1e-1),
    "lr of adam": (2e-4, 2e-3), "weight_decay of adam": (1e-4, 1e-2),
    "lr of santa": (3e-7, 3e-6), "weight_decay of santa": (1e-4, 1e-2), "epsilon": (1e-3, 1e-1),
    "lr of tu_sghmc": (1e-3, 1e-2), "weight_decay of tu_sghmc": (1e-4, 1e-2),
}  # fmt: skip
ALL_DIGITS = DIGITS | {
    "weight_decay of sgd": (1e-5, 1e-3), "weight_decay of adamw": (0.02, 2.0), "weight_decay of ivon": (1e-5, 1e-3),
    "temperature": (3e-3, 3e-1), "weight_decay of adam": (1e-5, 1e-3), "weight_decay of santa": (1e-5, 1e-3),
}  # fmt: skip
WINE = SHARED | {
    "lr of sgd": (0.01, 0.1), "lr of adamw": (3e-4, 3e-3), "lr of ivon": (0.03, 0.3),
    "weight_decay of sgd": (1e-3, 1e-1), "weight_decay of adamw": (0.03, 3.0), "weight_decay of ivon": (1e-3, 1e-1),
    "temperature": (1e-2, 1.0),
    "lr of adam": (3e-4, 3e-3), "weight_decay of adam": (1e-3, 1e-1),
    "lr of santa": (1e-4, 1e-3), "weight_decay of santa": (1e-3, 1e-1), "epsilon": (1e-2, 1.0),
    "lr of tu_sghmc": (5e-4, 5e-3), "weight_decay of tu_sghmc": (1e-3, 1e-1),
}  # fmt: skip
TEXT = SHARED | {
    "lr of sgd": (0.6, 6.0), "lr of adamw": (2e-3, 2e-2), "lr of ivon": (0.6, 6.0),
    "weight_decay of sgd": (1e-7, 1e-5), "weight_decay of adamw": (1e-3, 0.1), "weight_decay of ivon": (1e-7, 1e-5),
    "temperature": (1e-2, 1.0),
    "lr of adam": (2e-3, 2e-2), "weight_decay of adam": (1e-7, 1e-5),
    "lr of santa": (1e-4, 1e-3), "weight_decay of santa": (1e-7, 1e-5), "epsilon": (1e-4, 1e-2),
}  # fmt: skip

SMALL = {"trials": 2, "seeds": 2, "reference": 2, "small": True}
LAPTOP = {"trials": 8, "seeds": 5, "reference": 5}
PLANS: dict[str, dict[str, Plan]] = {
    "smoke": {
        "digits5k": Plan(Size(12, 200, 100, 200, 32, cycles=2, width=8), DIGITS, **SMALL),  # type: ignore[arg-type]
        "wine": Plan(Size(12, 100, 30, 40, 16, cycles=2, width=8), WINE, **SMALL),  # type: ignore[arg-type]
        "text": Plan(Size(6, 40, 8, 8, 4, cycles=2, width=8, clip=5.0), TEXT, **SMALL),  # type: ignore[arg-type]
    },
    "laptop": {
        "wine": Plan(Size(3000, 849, 170, 340, 64, width=50), WINE, **LAPTOP),  # type: ignore[arg-type]
        "digits5k": Plan(Size(6000, 5000, 5000, 10_000, 128), DIGITS, **LAPTOP),  # type: ignore[arg-type]
        "digits60k": Plan(Size(9000, 55_000, 5000, 10_000, 128), ALL_DIGITS, **LAPTOP),  # type: ignore[arg-type]
        "text": Plan(Size(960, 50_000, 2000, 2000, 50, width=64, clip=5.0), TEXT, **LAPTOP),  # type: ignore[arg-type]
    },
}  # fmt: skip


def progress(directory: Path) -> list[study.Progress]:
    """How far the files of the laptop's plans are, problem by problem."""
    return study.progress(directory, PLANS["laptop"])


def execute(scale: str, directory: Path, methods: Sequence[str] = (), problems: Sequence[str] = ()) -> None:
    """Computes what is missing in `directory`; all methods and problems unless some are named.

    Commands that are given the same directory at the same time share the work.
    """
    import torch

    from ctld_lab.jobs import environment

    refuse_unknown({"scale": ([scale], PLANS)})
    plans = PLANS[scale]
    refuse_unknown({"method": (methods, EVERY), "problem": (problems, plans)})
    for problem in problems or plans:  # what is missing is told now, and not after an hour
        load_for(problem, plans[problem], TUNING_SEED, tuning=True)
        try:
            check_packages([name for name in methods or EVERY if problem not in EVERY[name].not_for])
        except ModuleNotFoundError as error:
            raise NotKnown(str(error)) from error
    torch.set_num_threads(1)  # so that seconds of the processor can be compared
    about = environment(1) | {"command": " ".join(["ctld", *sys.argv[1:]])}
    for problem in problems or plans:
        asked = [method for method in methods or EVERY if problem not in EVERY[method].not_for]
        asked += [REFERENCE] if not methods or "sgd" in methods else []
        share_out(directory, problem, asked, plans[problem], about)
    tables.write(directory, plans)


if __name__ == "__main__":
    texts = tables.write(Path(sys.argv[1]), PLANS["laptop"])
    for page in map(Path, sys.argv[2:]):
        write_bytes(page, document(page.read_text(encoding="utf-8"), texts).encode())
