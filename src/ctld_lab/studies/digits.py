"""Is the default any worse, or better, than SGD with momentum where both are trained in earnest?

Within a seed, which is a replicate of its own (split, initial weights, batches, noise), the methods share all but the noise,
so they are compared pair by pair. lr is constant while CTLD explores, then a cosine down to zero, the same for every method.
The length was chosen on other seeds, 100 to 109 (results/digits_pilot.json).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ctld_lab.records import StudyDirectory
from ctld_lab.studies.study import Request, Run, Study


@dataclass(frozen=True)
class Method:
    title: str
    weight_decay: float
    temperature: Any = None
    """None is torch's SGD."""


METHODS = {
    "sgd": Method("SGD-M", 1e-3),
    "ctld": Method("CTLD, T auto", 1e-3, "auto"),
    "ctld_hot": Method("CTLD, T = 1", 1e-3, 1.0),
    "sgd_free": Method("SGD-M, no weight decay", 0.0),
    # What the paper's temperature does without a prior.
    "ctld_hot_free": Method("CTLD, T = 1, no weight decay", 0.0, 1.0),
}


def plan(request: Request, _: StudyDirectory) -> Iterator[list[Run]]:
    yield [_run(request, name, seed) for seed in request.seeds for name in request.methods]


def _run(request: Request, name: str, seed: int) -> Run:
    settings, method = request.settings, METHODS[name]
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": method.weight_decay}
    explored = settings["exploration_steps"]
    config = {
        "method": name,
        "algorithm": "sgd" if method.temperature is None else "ctld",
        "variant": "",
        "seed": seed,
        "data": request.data,
        "workload": {"name": "mnist_mlp", "split_by_seed": True} | settings["network"],
        "steps": [settings["steps"]],
        "exploration_steps": explored,
        "schedule": {"kind": "cycles", "cycle_steps": settings["steps"], "hold_steps": explored},
        "evaluations": settings["evaluations"],
        "checkpoint_seconds": 20.0,
        "optimizer": options if method.temperature is None else options | {"temperature": method.temperature},
    }
    return request.final("digits", f"{name}-seed{seed}", "train", **config)


STUDY = Study(
    name="digits",
    title="The default beside SGD with momentum",
    figure="beyond the paper",
    varied="the method (SGD-M; CTLD at the automatic temperature; CTLD at the paper's T = 1, with and without weight decay)",
    tuned="nothing",
    fixed="perceptron 784-256-256-10, lr 0.1, momentum 0.9, weight decay 1e-3 unless said otherwise, batches of 128; half of "
    "the steps with lr constant (exploration, in CTLD), then a cosine to zero",
    methods=tuple(METHODS),
    titles={name: method.title for name, method in METHODS.items()},
    takes="images",
    scales={
        "smoke": {
            "data": "digits", "seeds": 2, "steps": 40, "exploration_steps": 20, "evaluations": 2,
            "network": {"widths": [784, 16, 10], "curve_rows": 100},
        },
        "laptop": {
            "data": "digits", "seeds": 5, "steps": 4000, "exploration_steps": 2000, "evaluations": 10, "network": {},
        },
        "paper": {
            "data": "mnist", "seeds": 5, "steps": 40_000, "exploration_steps": 20_000, "evaluations": 20, "network": {},
        },
    },
    plan=plan,
)  # fmt: skip
