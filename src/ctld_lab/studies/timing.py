"""Table 3: what does an epoch cost under each method?

Keras' CNN on MNIST. The paper: SGD-M 3.8471 s, RMSprop 4.1195, Adam 3.9437, AdaDelta 3.9327, CTLD 3.8868, on a GPU, 10 epochs
each. What carries over to another machine is the ratio to SGD-M.
"""

from collections.abc import Iterator
from typing import Any

import ctld
from ctld_lab.records import StudyDirectory
from ctld_lab.studies.study import Request, Run, Study
from ctld_lab.timing import ATTEMPTS, PHASES, REFERENCE

# Learning rates are Keras' defaults, where it has the method; they do not change the time. torch's fastest forms.
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.01, "momentum": 0.9, "fused": True},
    "rmsprop": {"lr": 0.001},
    "adam": {"lr": 0.001, "fused": True},
    "adadelta": {"lr": 1.0},
    "ctld": {"lr": 0.01, "momentum": 0.9, "temperature": 1.0},
    "psgld": {"lr": 1e-5},  # preconditioned, as Santa is, whose lr/N is the paper's 4e-11
    "santa": {"lr": 2.4e-6},
    "csghmc": {"lr": 0.001, "exploration_share": 0.0},  # noise throughout
}
OTHERS = {"lr": 0.001}
PAPER = {"sgd": 3.8471, "rmsprop": 4.1195, "adam": 3.9437, "adadelta": 3.9327, "ctld": 3.8868}


def plan(request: Request, _: StudyDirectory) -> Iterator[list[Run]]:
    """One run: it is within a run that times can be compared."""
    settings = request.settings
    methods = list(dict.fromkeys((REFERENCE, *request.methods)))  # ratios are to SGD-M
    longest = settings["rounds"] * settings["batches"] * ATTEMPTS + 1  # steps that anyone may take
    config = {
        "methods": methods,
        "seed": request.seeds[0],
        "data": request.data,
        "optimizers": {name: chosen for method in methods for name, chosen in _contenders(method, longest).items()},
        "rounds": settings["rounds"],
        "batches": settings["batches"],
        "exploration_share": settings["exploration_share"],
    }
    name = "timing" if request.seeds[0] == 0 else f"timing-seed{request.seeds[0]}"
    yield [request.final("timing", name, "timing", **config)]


def _contenders(method: str, longest: int) -> dict[str, dict[str, Any]]:
    """One, or one for each phase of CTLD; methods with noise are held in the phase that has it."""
    row = ctld.OPTIMIZERS[method]
    options = OPTIONS.get(method, OTHERS) | ({"seed": 0} if row.noisy else {})
    options |= {name: longest for name in ("exploration_steps", "num_steps") if name in row.needs}
    if method != "ctld":
        return {method: {"method": method, "options": options}}
    exploration, fine_tuning = PHASES
    return {
        exploration: {"method": method, "options": options},
        fine_tuning: {"method": method, "options": options | {"exploration_steps": 0}},
    }


STUDY = Study(
    name="timing",
    title="Time of an epoch",
    figure="Table 3",
    varied="the method; of CTLD, the phase",
    tuned="nothing",
    fixed="Keras' CNN for MNIST, batches of 128, the number of threads; SGD-M and Adam fused; methods take turns within rounds",
    methods=("sgd", "rmsprop", "adam", "adadelta", "ctld"),
    scales={
        "smoke": {"data": "digits", "seeds": 1, "rounds": 2, "batches": 1, "exploration_share": 0.18},
        "laptop": {"data": "mnist", "seeds": 1, "rounds": 60, "batches": 4, "exploration_share": 0.18},
        "paper": {"data": "mnist", "seeds": 1, "rounds": 10, "batches": 469, "exploration_share": 0.18},
    },
    plan=plan,
    takes="images",
    paper={"seconds_per_epoch": PAPER, "ratio": {name: value / PAPER["sgd"] for name, value in PAPER.items()}},
    optional_methods=tuple(
        name
        for name, method in ctld.OPTIMIZERS.items()
        if not method.needs_process_group and name not in ("sgd", "rmsprop", "adam", "adadelta", "ctld")
    ),
)
