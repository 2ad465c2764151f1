"""Cycles of exploration and fine-tuning, averaged: does the tempering deserve the credit, or the cycles, or the noise?

Cycles with the paper's tempering, calibrated, driven and constant, and with T = 0, beside single models and other ensembles;
all with the same number of gradients and of trials. And test nll against T, for tempered cycles and for constant ones. What
is compared, by what, and when test data are read is fixed in docs/protocols/ensemble.md.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ctld_lab import data, tuning
from ctld_lab.records import StudyDirectory
from ctld_lab.studies.comparison import TUNING_SEED
from ctld_lab.studies.ensemble_methods import METHODS, Budget
from ctld_lab.studies.study import Request, Run, Study

CURVE = "curve"
CURVE_METHODS = ("cycles_paper", "cycles_driven", "cycles_constant")
CURVE_REFERENCES = ("cycles_cold", "sgd")  # have no T


def plan(request: Request, directory: StudyDirectory) -> Iterator[list[Run]]:
    """Trials of all workloads; then what they chose; last the curve, whose settings are fixed."""
    settings = request.settings
    of = {
        f"{workload}-{method}": (workload, method) for workload in settings["workloads"] for method in request.methods
    }
    spaces = {name: _space(method, settings["workloads"][workload]) for name, (workload, method) in of.items()}
    searches = tuning.Searches(directory, spaces, settings["trials"], metric="nll", stored=request.stored_trials)
    yield [
        _run(request, *of[name], run, TUNING_SEED, "trial", tried, role="tuning")
        for name, run, _, tried in searches.trials()
    ]
    chosen = searches.chosen()
    yield [
        _run(request, *of[name], f"{name}-seed{seed}", seed, of[name][0], best, keep_parameters=True)
        for seed in request.seeds
        for name, best in chosen.items()
    ]
    yield list(_curve(request))


def _curve(request: Request) -> Iterator[Run]:
    """Nothing of it is tuned: lr and weight decay are those that the protocol names."""
    curve = request.settings["curve"]
    fixed = {"lr": curve["lr"]}
    for seed in request.seeds:
        for method in request.methods:
            if method in CURVE_METHODS:
                for temperature in curve["T"]:
                    point = {"T": temperature}
                    name = f"curve-{method}-T{temperature:.3g}-seed{seed}"
                    options = fixed | {"temperature": temperature}
                    yield _run(request, curve["workload"], method, name, seed, CURVE, options, point=point)
            elif method in CURVE_REFERENCES:
                name = f"curve-{method}-seed{seed}"
                yield _run(request, curve["workload"], method, name, seed, CURVE, fixed)


def _space(method: str, workload: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """lr and one thing more, so that all are searched in two dimensions, at the same points of the unit square."""
    row = METHODS[method]
    spaces = workload["spaces"]
    (low, high), (least, most) = spaces[f"lr of {row.rates}"], spaces[row.second]
    return {"lr": (low, high), row.second: (least, most)}


def _run(
    request: Request,
    workload: str,
    method: str,
    name: str,
    seed: int,
    variant: str,
    options: Mapping[str, Any],
    role: str = "final",
    **more: Any,
) -> Run:
    settings = request.settings
    size = settings["workloads"][workload]
    configured = METHODS[method].configure(Budget(size["steps"], size["cycles"], size["kept"]))
    steps = configured.get("steps", [size["steps"]])
    network = size["network"] | ({"stages": len(steps)} if len(steps) > 1 else {})
    config: dict[str, Any] = {
        "kind": "train",
        "study": "ensemble",
        "scale": request.scale,
        "role": role,
        "method": method,
        "variant": variant,
        "seed": seed,
        "data": _data(request, size),
        "workload": network,
        "evaluations": settings["evaluations"],
        "checkpoint_seconds": settings["checkpoint_seconds"],
        "steps": steps,
        "flush_denormals": True,
    }
    config |= configured | {"clip": size["clip"]} if "clip" in size else configured
    config["optimizer"] = {"weight_decay": size["weight_decay"]} | config["optimizer"] | options
    return Run(name, config | more)


def _refuses(request: Request) -> str | None:
    """The scale's own images are known to be enough."""
    name, settings = request.data["name"], request.settings
    if name == settings["data"]:
        return None
    there = len(data.load_images(name).train)
    networks = [size["network"] for size in settings["workloads"].values() if "text" not in size]
    needed = max(
        int(network["valid_images"] + network.get("train_images", network.get("batch_size", 128)))
        for network in networks
    )
    if needed <= there:
        return None
    return (
        f"the data set {name} has {there:,} images to train on, and the scale {request.scale} of the study ensemble takes "
        f"{needed:,}; leave --data out ({settings['data']}), or give --scale smoke"
    )


def _data(request: Request, size: Mapping[str, Any]) -> dict[str, Any]:
    """Images are what the command names; the text is the scale's."""
    if "text" not in size:
        return request.data
    return {"name": size["text"], "sha256": data.identify(str(size["text"]))}


# What is searched, over the logarithm: a decade of learning rates for every method, around where a short look at validation
# data found it to work, and two decades of its second option.
DIGITS_SPACES = {
    "lr of sgd": [0.03, 0.3], "lr of adam": [2e-4, 2e-3], "lr of santa": [3e-7, 3e-6],
    "temperature": [1e-3, 1e-1], "weight_decay": [1e-4, 1e-2], "epsilon": [1e-3, 1e-1],
}  # fmt: skip
DIGITS = {
    "cycles": 6, "kept": 6, "weight_decay": 1e-3, "spaces": DIGITS_SPACES,
    "network": {"name": "mnist_mlp", "train_images": 5000, "valid_images": 5000},
}  # fmt: skip
ALL_DIGITS = DIGITS | {
    "weight_decay": 1e-4, "spaces": DIGITS_SPACES | {"temperature": [3e-3, 3e-1], "weight_decay": [1e-5, 1e-3]},
    "network": {"name": "mnist_mlp", "valid_images": 5000},
}  # fmt: skip
SMALL = {"name": "mnist_mlp", "widths": [784, 16, 10], "batch_size": 32, "curve_rows": 100}
TEXT_SPACES = {
    "lr of sgd": [0.6, 6.0], "lr of adam": [4e-3, 4e-2], "lr of santa": [1e-4, 1e-3],
    "temperature": [1e-2, 1.0], "weight_decay": [1e-7, 1e-5], "epsilon": [1e-4, 1e-2],
}  # fmt: skip
TEXT = {"text": "enwik8", "cycles": 12, "kept": 3, "weight_decay": 1e-6, "clip": 5.0, "spaces": TEXT_SPACES}
TEMPERATURES = [0.001, 0.00316, 0.01, 0.0316, 0.1, 0.316, 1.0]

TITLES = {"digits5k": "5,000 digits", "digits60k": "60,000 digits", "text": "char-LSTM"}

STUDY = Study(
    name="ensemble",
    title="Cycles, averaged: is it the tempering?",
    figure="beyond the paper",
    varied="how the temperature moves in the cycles, and the method; T, for the curve",
    tuned="learning rate, and T where there is noise, else the weight decay (Santa: λ): equal trials, judged by validation nll "
    "of the averaged prediction",
    fixed="gradients in all, network, batches, momentum 0.9, cycles of which 60 % explore, a deep ensemble of 3, weight "
    "decay of methods with noise; for the curve all but T",
    methods=tuple(METHODS),
    takes="images",
    also_reads=lambda settings: [size["text"] for size in settings["workloads"].values() if "text" in size],
    refuses=_refuses,
    titles=TITLES
    | {name: method.title for name, method in METHODS.items()}
    | {
        f"{workload}-{name}": f"{method.title}, {title}"
        for workload, title in TITLES.items()
        for name, method in METHODS.items()
    },
    scales={
        "smoke": {
            "data": "digits", "seeds": 2, "trials": 2, "evaluations": 2, "checkpoint_seconds": 1.0,
            "workloads": {
                "digits5k": DIGITS | {
                    "steps": 30, "cycles": 5, "kept": 5,
                    "network": SMALL | {"train_images": 500, "valid_images": 200},
                },
                "digits60k": ALL_DIGITS | {"steps": 36, "network": SMALL | {"valid_images": 500}},
                "text": TEXT | {
                    "text": "pydoc", "steps": 24, "cycles": 4,
                    "network": {"name": "char_lstm", "hidden": 8, "layers": 2, "batch_size": 10, "length": 10,
                                "curve_characters": 1000, "train_characters": 20_000, "held_out_characters": 2000},
                },
            },
            "curve": {"workload": "digits5k", "lr": 0.1, "T": [0.01, 1.0]},
        },
        "laptop": {
            "data": "mnist", "seeds": 5, "trials": 8, "evaluations": 6, "checkpoint_seconds": 20.0,
            "workloads": {
                "digits5k": DIGITS | {"steps": 6000},
                "digits60k": ALL_DIGITS | {"steps": 9000},
                "text": TEXT | {
                    "steps": 960,
                    "network": {"name": "char_lstm", "layers": 2, "batch_size": 50, "train_characters": 2_502_500,
                                "held_out_characters": 100_000, "curve_characters": 10_000},
                },
            },
            "curve": {"workload": "digits5k", "lr": 0.1, "T": TEMPERATURES},
        },
        "paper": {
            "data": "mnist", "seeds": 5, "trials": 16, "evaluations": 6, "checkpoint_seconds": 60.0,
            "workloads": {
                "digits5k": DIGITS | {"steps": 12_000},
                "digits60k": ALL_DIGITS | {"steps": 54_000},
                "text": TEXT | {"steps": 36_000, "network": {"name": "char_lstm", "held_out_characters": 1_000_000}},
            },
            "curve": {"workload": "digits5k", "lr": 0.1, "T": TEMPERATURES},
        },
    },
    plan=plan,
)  # fmt: skip
