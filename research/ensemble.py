"""Averaged cycles of exploration and fine-tuning: does the tempering deserve the credit? `ctld run research/ensemble.py`.

varied   how the temperature moves in the cycles, and the method; T, for the curve
tuned    learning rate, and T where there is noise, else the weight decay (Santa: λ)
fixed    gradients, network, batches, momentum 0.9, cycles of which 60 % explore

All methods have the same number of gradients. Those that keep several models share the gradients among them. The protocol and
the findings are in ensemble/README.md.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ctld import Tempering
from ctld_lab import data, tuning
from ctld_lab.records import StudyDirectory
from ctld_lab.statistics import AHEAD, BEHIND, HIGHER, LOWER, estimate, paired_difference, word
from ctld_lab.studies import Request, Run, Study

TUNING_SEED = 1000  # far from the seeds of the runs that count
HOT = 0.6  # share of a cycle that explores
DEEP = 3  # members of the deep ensemble
SWA_FROM = 0.75  # share of the steps before averaging
SWA_RATE = 0.2  # lr from there on, relative
SWA_MODELS = 20  # averaged
CSGHMC_SHARE, CSGHMC_SAMPLES = 0.8, 3  # of a cycle before sampling, as in its paper; samples of each cycle
SANTA_SHARE = 0.2  # of the steps that explore
MOMENTUM = 0.9
LEAST_WARM_UP = 100  # steps, of calibrated tempering


@dataclass(frozen=True)
class Budget:
    """Budget that all methods of a workload share."""

    steps: int
    """Gradients in all."""
    cycles: int
    kept: int
    """Of the cycles, the last ones, whose models are averaged: where training is short the first are hardly trained."""

    @property
    def cycle_steps(self) -> int:
        return self.steps // self.cycles

    def ends(self) -> list[int]:
        """Steps at which cycles that are kept end."""
        return [self.cycle_steps * place for place in range(self.cycles - self.kept + 1, self.cycles + 1)]


Configure = Callable[[Budget], dict[str, Any]]


@dataclass(frozen=True)
class Method:
    """A row of the study."""

    title: str
    second: str
    """What is tuned beside lr: the temperature where there is noise; else the weight decay, or Santa's λ."""
    configure: Configure
    """The part of a run's configuration that is the method's."""
    rates: str = "sgd"
    """Whose learning rates are of the same size."""


def _cosine(cycle_steps: int, hold_steps: int = 0) -> dict[str, Any]:
    return {"kind": "cycles", "cycle_steps": cycle_steps, "hold_steps": hold_steps}


def _cycles(tempering: Callable[[int], dict[str, Any]] | None) -> Configure:
    """Exploration, then fine-tuning with lr to zero, again and again; without a tempering T = 0, the same lr."""

    def configure(budget: Budget) -> dict[str, Any]:
        explored = round(HOT * budget.cycle_steps)
        heat = {"temperature": 0.0} if tempering is None else {"tempering": tempering(explored)}
        return {
            "algorithm": "ctld",
            "optimizer": {"momentum": MOMENTUM, "cycle_steps": budget.cycle_steps} | heat,
            "exploration_steps": explored,
            "schedule": _cosine(budget.cycle_steps, explored),
            "members": {"steps": budget.ends()},
        }

    return configure


def _driven(explored: int) -> dict[str, Any]:
    # |α| goes up and down twice in a period.
    return {"kind": "driven", "period": 2 * explored}


def _constant(explored: int) -> dict[str, Any]:
    """As hot, on average, as the driven one."""
    return {"kind": "constant", "ratio": round(Tempering.driven(2).mean_temperature_ratio, 6)}


def _calibrated(explored: int) -> dict[str, Any]:
    """Its warm-up is the exploration of the first cycle; the rest would not be enough for the usual 4,000 steps."""
    return {"kind": "calibrated", "warm_up": max(explored, LEAST_WARM_UP)}


def _single(algorithm: str, **options: Any) -> Configure:
    def configure(budget: Budget) -> dict[str, Any]:
        return {
            "algorithm": algorithm,
            "optimizer": dict(options),
            "exploration_steps": 0,
            "schedule": _cosine(budget.steps),
            "members": {"steps": [budget.steps]},
        }

    return configure


_sgd = _single("sgd", momentum=MOMENTUM)


def _santa(budget: Budget) -> dict[str, Any]:
    explored = round(SANTA_SHARE * budget.steps)
    return _single("santa")(budget) | {"exploration_steps": explored, "schedule": _cosine(budget.steps, explored)}


def _snapshot(budget: Budget) -> dict[str, Any]:
    """A cosine to zero in each cycle (Huang et al. 2017)."""
    return _sgd(budget) | {"schedule": _cosine(budget.cycle_steps), "members": {"steps": budget.ends()}}


def _csghmc(budget: Budget) -> dict[str, Any]:
    """Its own cosine cycles; samples are taken while it injects noise (Zhang et al. 2020)."""
    sampled = (1.0 - CSGHMC_SHARE) * budget.cycle_steps
    before = [round(sampled * place / CSGHMC_SAMPLES) for place in reversed(range(CSGHMC_SAMPLES))]
    return {
        "algorithm": "csghmc",
        "optimizer": {"momentum": MOMENTUM, "num_cycles": budget.cycles, "exploration_share": CSGHMC_SHARE},
        "exploration_steps": 0,
        "members": {"steps": sorted({end - steps for end in budget.ends() for steps in before})},
    }


def _swa(budget: Budget) -> dict[str, Any]:
    """A cosine down to a fifth of lr, then the mean of the weights along the rest (Izmailov et al. 2018)."""
    start = round(SWA_FROM * budget.steps)
    places = {start + round((budget.steps - start) * place / SWA_MODELS) for place in range(1, SWA_MODELS + 1)}
    return _sgd(budget) | {
        "schedule": {"kind": "settle", "settle_steps": start, "factor": SWA_RATE},
        "members": {"steps": sorted(places), "average": True},
    }


def _deep(budget: Budget) -> dict[str, Any]:
    """Networks with initial weights of their own, each with its share of the gradients (Lakshminarayanan et al. 2017)."""
    each = budget.steps // DEEP
    return _sgd(replace(budget, steps=each)) | {"steps": [each] * DEEP}


METHODS: dict[str, Method] = {
    "cycles_paper": Method("cycles (paper)", "temperature", _cycles(lambda explored: {"kind": "paper"})),
    "cycles_calibrated": Method("cycles (calibrated)", "temperature", _cycles(_calibrated)),
    "cycles_driven": Method("cycles (driven)", "temperature", _cycles(_driven)),
    "cycles_constant": Method("cycles (constant T)", "temperature", _cycles(_constant)),
    "cycles_cold": Method("cycles (T = 0)", "weight_decay", _cycles(None)),
    "sgd": Method("SGD-M", "weight_decay", _sgd),
    "adam": Method("Adam", "weight_decay", _single("adam"), rates="adam"),
    "santa": Method("Santa", "epsilon", _santa, rates="santa"),
    "snapshot": Method("snapshot ensemble", "weight_decay", _snapshot),
    "csghmc": Method("cyclical SGHMC", "temperature", _csghmc),
    "swa": Method("SWA", "weight_decay", _swa),
    "deep": Method("deep ensemble", "weight_decay", _deep),
}


# ---- the plan ----

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


# ---- findings ----

RESULTS = Path(__file__).resolve().parents[1] / "results" / "laptop" / "tables"
COLD, CONSTANT, DRIVEN = "cycles_cold", "cycles_constant", "cycles_driven"
PRIMARY = ((DRIVEN, CONSTANT), (DRIVEN, COLD), (CONSTANT, COLD))
SECONDARY = (("cycles_paper", CONSTANT), ("cycles_calibrated", CONSTANT), (CONSTANT, "sgd"), (COLD, "snapshot"))
WORKLOADS = TITLES | {"digits60k": "55,000 digits"}  # 5,000 of the 60,000 are held out
WORDS = {LOWER: AHEAD, HIGHER: BEHIND}
"""A lower nll is better. The protocol judges by 95 % intervals, not corrected."""


def findings(results: Path) -> dict[str, Any]:
    """Return the planned comparisons by test nll, the nll of every method, and the curve against T."""
    rows = pd.read_csv(results / "ensemble.csv", keep_default_na=False, na_values={"value": [""]})
    found = []
    for pairs, role in ((PRIMARY, "primary"), (SECONDARY, "secondary")):
        for one, other in pairs:
            words, numbers = [], []
            for workload, title in WORKLOADS.items():
                mine, theirs = (by_seed(rows, method, workload, "test nll") for method in (one, other))
                difference = paired_difference(mine, theirs)
                told = word(difference, estimate([*theirs.values()]).mean)
                words.append(f"{WORDS.get(told, told)} on {title}")
                numbers.append("{:+.4f} ({:+.4f} to {:+.4f})".format(difference.mean, *difference.ends))
            problem = f"{METHODS[one].title} against {METHODS[other].title} ({role})"
            verdict, shown = ", ".join(words), "; ".join(numbers).replace("-", "−")
            found.append({"id": f"{one}-{other}", "problem": problem, "verdict": verdict, "numbers": shown})
    body = []
    for name, method in METHODS.items():
        whole, last = (
            [estimate([*by_seed(rows, name, workload, metric).values()]) for workload in WORKLOADS]
            for metric in ("test nll", "test last_nll")
        )
        alone = [f"{each.mean:.4f}" for each in last] if last[0].mean != whole[0].mean else ["–"] * len(last)
        body.append([method.title, *(f"{each.mean:.4f} ± {each.half_width:.4f}" for each in whole), *alone])
    head = ["test nll", *WORKLOADS.values(), *(f"last member: {title}" for title in WORKLOADS.values())]
    tables = {"nll": {"head": head, "rows": body}, "curve": _curve_table(rows)}
    return {"study": "ensemble", "title": "Averaged cycles", "findings": found, "tables": tables}


def by_seed(rows: pd.DataFrame, method: str, variant: str, metric: str, point: str = "") -> dict[int, float]:
    """Return the values of a metric over the whole run, by seed."""
    chosen = (rows["method"] == method) & (rows["variant"] == variant) & (rows["metric"] == metric)
    own = rows[chosen & (rows["point"] == point) & (rows["at"] == "")]
    return {int(seed): float(value) for seed, value in zip(own["seed"], own["value"], strict=True)}


def _curve_table(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the change of test nll against T = 0 at each T, in per cent, paired by seed."""
    cold = by_seed(rows, COLD, CURVE, "test nll")
    base, body = estimate([*cold.values()]).mean, []
    for temperature in TEMPERATURES:
        line = [f"{temperature:g}"]
        for method in CURVE_METHODS:
            difference = paired_difference(by_seed(rows, method, CURVE, "test nll", f"T={temperature}"), cold)
            told = word(difference, base)
            line.append(f"{100 * difference.mean / base:+.0f} % {WORDS.get(told, told)}".replace("-", "−"))
        body.append(line)
    return {"head": ["T", *(METHODS[method].title for method in CURVE_METHODS)], "rows": body}
