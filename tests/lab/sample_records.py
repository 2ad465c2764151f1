"""Made-up records of every kind of run, in the format of `ctld_lab.records`: what the report is tested on.

No number here is a measurement. `write_all(root)` makes all five studies; each takes what should be missing or wrong.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from ctld_lab.records import Appender, RunDirectory, StudyDirectory, write_json

METHODS = ("sgd", "rmsprop", "adam", "anneal_sgd", "santa", "ctld")
LEVEL = {"sgd": 1.0, "rmsprop": 1.35, "adam": 1.2, "anneal_sgd": 1.08, "santa": 1.6, "ctld": 0.99}
TITLES = {
    "sgd": "SGD-M", "rmsprop": "RMSprop", "adam": "Adam", "anneal_sgd": "AnnealSGD", "santa": "Santa", "ctld": "CTLD",
    "adadelta": "AdaDelta",
}  # fmt: skip
ENVIRONMENT = {
    "versions": {"ctld": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.7"},
    "commit": "3a2b55e0c0ffee00000000000000000000000000",
    "dirty": False,
    "machine": "Linux x86_64, a processor",
    "cores": 2,
    "threads": 1,
    "started": "2026-01-02T03:04:05Z",
    "attempts": 1,
}
EVIL = "RuntimeError: <script>alert('evil')</script> & \"quoted\""


def write_all(root: Path) -> None:
    write_sda(root / "sda")
    write_charrnn(root / "charrnn", variants=("tuned",))
    write_sensitivity(root / "sensitivity", wrong=True)
    write_timing(root / "timing")
    write_double_well(root / "double-well")


def describe(path: Path, study: str, **more: Any) -> StudyDirectory:
    directory = StudyDirectory(path)
    description = {
        "study": study, "scale": "laptop", "title": study, "figure": "", "varied": "the method", "tuned": "nothing",
        "fixed": "the rest", "methods": [], "titles": TITLES, "seeds": [0, 1, 2],
        "data": {"name": "mnist", "sha256": "0123456789abcdef" * 4}, "settings": {}, "paper": {},
        "commands": [f"ctld run {study} --scale laptop"],
    }  # fmt: skip
    directory.prepare(description | more)
    return directory


def write_run(
    study: StudyDirectory,
    name: str,
    config: dict[str, Any],
    *,
    result: dict[str, Any] | None = None,
    metrics: list[dict[str, Any]] | None = None,
    trace: list[dict[str, Any]] | None = None,
    error: str | None = None,
) -> RunDirectory:
    run = study.run(name)
    run.prepare({"role": "final", **config})
    run.write("environment.json", ENVIRONMENT)
    for file, lines in (("metrics.jsonl", metrics), ("trace.jsonl", trace)):
        if lines:
            appender = Appender(run.path / file)
            for line in lines:
                appender.append(line)
            appender.close()
    if result is not None:
        run.write("result.json", result)
    if error is not None:
        run.write("failure.json", {"error": error, "traceback": error, "time": "2026-01-02T03:04:05Z"})
    return run


# ---- training ----


def write_sda(path: Path, *, seeds: int = 3, methods: tuple[str, ...] = METHODS, wrong: bool = True) -> StudyDirectory:
    """`wrong`: Santa diverges with the paper's rate, one seed of Adam failed, one of RMSprop is not done.

    RMSprop has dead codes: its last layer comes back well, and its image does not.
    """
    study = describe(
        path, "sda", title="Stacked denoising autoencoder", figure="Figure 2", methods=list(methods), seeds=list(range(seeds)),
        tuned="learning rate, and momentum where the method has one: equal trials",
        settings={"widths": [784, 250, 250, 1000, 10], "steps": 3000},
        paper={
            "metric": "mse", "split": "train", "steps": 400_000, "num_data": 60_000,
            "values": {"ctld": "0.006", "santa": "0.02", "anneal_sgd": "0.02", "rmsprop": "0.03–0.05", "sgd": "0.03–0.05",
                       "adam": "0.03–0.05"},
            "note": "read off the published figure, end of layer 4",
        },
    )  # fmt: skip
    for variant in ("tuned", "paper"):
        for method in methods:
            for seed in range(seeds):
                config = _train("sda", method, variant, seed, steps=[3000] * 4) | _temperature(method, variant)
                name = f"{method}-{variant}-seed{seed}"
                if wrong and variant == "paper" and method == "santa":
                    result = {"steps": 900, "diverged": True, "seconds": {"train": 20.0, "evaluate": 1.0, "log": 0.1}}
                    lines = _sda_lines(method, seed, variant)[:3]
                    write_run(study, name, config, result=result, metrics=lines)
                elif wrong and (method, variant, seed) == ("adam", "tuned", 2):
                    write_run(study, name, config, error=EVIL)
                elif wrong and (method, variant, seed) == ("rmsprop", "tuned", 2):
                    write_run(study, name, config, metrics=_sda_lines(method, seed, variant)[:20])
                else:
                    lines = _sda_lines(method, seed, variant)
                    ends = [line for line in lines if line["stage_step"] == 3000]
                    stages = [
                        {"train": line["train"], "test": line["test"]}
                        | _tempering(method, variant, seed, line["stage"])
                        for line in ends
                    ]
                    result = stages[-1] | {"stages": stages, "steps": 12000, "diverged": False, "parameters": 1_000_000}
                    result["num_data"] = 50_000
                    result["seconds"] = {"train": 60.0 + seed, "evaluate": 4.0, "log": 0.5}
                    trace = _trace(seed) if method == "ctld" else None
                    write_run(study, name, config, result=result, metrics=lines, trace=trace)
    for method in [method for method in methods if method in ("sgd", "adam", "ctld")]:
        write_tuning(study, method)
    return study


def _train(study: str, method: str, variant: str, seed: int, **more: Any) -> dict[str, Any]:
    config = {"kind": "train", "study": study, "scale": "laptop", "method": method, "variant": variant, "seed": seed}
    return config | {"optimizer": {"lr": 0.1}, "exploration_steps": 540, "evaluations": 15} | more


def _temperature(method: str, variant: str) -> dict[str, Any]:
    """What the configuration of CTLD says besides the learning rate."""
    if method != "ctld":
        return {}
    return {"optimizer": {"lr": 0.1, "temperature": "auto" if variant == "tuned" else 1.0}}


def _tempering(method: str, variant: str, seed: int, stage: int = 1) -> dict[str, Any]:
    """What the result of CTLD says of a stage. With the paper's T, α runs away in the second layer."""
    if method != "ctld":
        return {}
    away = variant == "paper" and stage == 2
    tempering = {"cold_share": 0.3 + 0.01 * seed, "share_outside": 0.34 if away else 0.01, "highest_ratio": 6.67}
    readings = {"kinetic": {"mean": 1.2 + 0.1 * seed, "error": 0.01}, "minibatch_heat": {"mean": 0.2, "error": 0.01}}
    return {
        "temperature": 0.003 + 0.0001 * seed if variant == "tuned" else 1.0,
        "tempering": tempering,
        "thermometers": {"0": readings},
    }


def _sda_lines(method: str, seed: int, variant: str) -> list[dict[str, Any]]:
    generator = np.random.default_rng([seed, METHODS.index(method)])
    level = LEVEL[method] * (1.0 if variant == "tuned" else 1.5) * math.exp(0.03 * generator.standard_normal())
    lines = []
    for stage, floor in enumerate((0.02, 0.05, 0.03, 0.012), start=1):
        dead = method == "rmsprop" and stage == 4
        for place in range(16):
            shared = np.random.default_rng([seed, stage, place]).standard_normal()
            value = (
                floor * level * (1.0 + 25.0 * math.exp(-place / (1.5 + 0.4 * LEVEL[method]))) * math.exp(0.02 * shared)
            )
            splits = {
                split: {"mse": (0.5 if dead else 1.0) * value * factor, "image_mse": 8 * value * factor**2}
                for split, factor in (("train", 0.97), ("test", 1.0))
            }
            step = 200 * place
            line = {
                "step": 3000 * (stage - 1) + step,
                "stage": stage,
                "stage_step": step,
                "epoch": step / 468,
                **splits,
            }
            lines.append(line | {"lr": 0.1, "seconds": {"train": 0.02 * step, "evaluate": 1.0, "log": 0.1}})
    return lines


def _trace(seed: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    lines = []
    for stage in (1, 2, 3, 4):
        height = 0.0
        for step in range(1, 541):
            if generator.random() < 0.02:
                height = float(generator.uniform(1.0, 5.67))
            height *= 0.75
            line = {"step": 3000 * (stage - 1) + step, "stage": stage, "alpha": 0.1, "temperature_ratio": 1.0 + height}
            lines.append(line | {"kinetic_temperature": 1.0, "potential": 2.0})
    return lines


def write_tuning(study: StudyDirectory, method: str, trials: int = 8) -> None:
    """Runs of the trials, and what was chosen among them."""
    generator = np.random.default_rng(len(method))
    low, high = (1e-8, 1e-5) if method == "santa" else (1e-5, 1e-2) if method in ("adam", "rmsprop") else (0.01, 10.0)
    made = []
    for trial in range(trials):
        place = generator.random()
        parameters = {"lr": float(f"{low * (high / low) ** place:.3g}")}
        if method in ("sgd", "ctld", "anneal_sgd"):
            parameters["friction"] = float(f"{generator.uniform(0.03, 1.0):.3g}")
        diverged = place > 0.9
        value = math.nan if diverged else 0.05 * LEVEL[method] * math.exp(3.0 * (place - 0.6) ** 2)
        name = f"tune-{method}-{trial:02d}"
        config = _train("sda", method, "trial", 1000, role="tuning", trial=trial, optimizer=parameters)
        seconds = {"train": 30.0 + trial, "evaluate": 1.0, "log": 0.1}
        result = {"valid": {"mse": value}, "steps": 12000, "diverged": diverged, "seconds": seconds}
        write_run(study, name, config, result=result)
        trial_record = {"run": name, "parameters": parameters, "value": value, "diverged": diverged, "failed": False}
        made.append(trial_record | {"seconds": sum(seconds.values())})
    finite = [trial for trial in made if math.isfinite(trial["value"])]
    best = min(finite, key=lambda trial: trial["value"])
    (study.path / "tuning").mkdir(exist_ok=True)
    record = {
        "method": method, "space": {"lr": [low, high]}, "search": "quasi-random (Sobol), the same number of trials for all",
        "criterion": "validation MSE of the whole stack at the end", "trials": made, "chosen": best["parameters"],
        "value": best["value"],
    }  # fmt: skip
    write_json(study.path / "tuning" / f"{method}.json", record)


def _text(nats: float) -> dict[str, float]:
    return {"nats": nats, "bits": nats / math.log(2.0), "perplexity": math.exp(nats)}


def write_charrnn(path: Path, *, seeds: int = 3, variants: tuple[str, ...] = ("tuned", "paper")) -> StudyDirectory:
    study = describe(
        path, "charrnn", title="Character-level LSTM", figure="Figure 3", methods=list(METHODS), seeds=list(range(seeds)),
        data={"name": "enwik8", "sha256": "fedcba9876543210" * 4},
        paper={
            "metric": "perplexity",
            "values": {"ctld": "1.99 / 1.91", "rmsprop": "2.05 / 1.97", "adam": "2.10 / 2.00", "santa": "2.13 / 2.03",
                       "anneal_sgd": "2.18 / 2.08", "sgd": "above 3.1 / –"},
            "steps": 360_000, "num_data": 90_000_000,
            "note": "train / test, read off the published figure. They cannot be exp(nats per character) of such a network",
        },
    )  # fmt: skip
    for variant in variants:
        for method in METHODS:
            for seed in range(seeds):
                shift = 0.01 * float(np.random.default_rng([seed, METHODS.index(method), 7]).standard_normal())
                shift += 0.02 * seed + 0.25 * (LEVEL[method] - 1.0) + (0.2 if variant == "paper" else 0.0)
                lines = []
                for place in range(13):
                    nats = 2.05 + shift + 2.9 * math.exp(-place / 1.6)
                    line = {
                        "step": 1000 * place // 12,
                        "stage": 1,
                        "stage_step": 1000 * place // 12,
                        "epoch": place / 12,
                    }
                    line |= {"train": _text(nats - 0.03), "test": _text(nats), "lr": 1.0}
                    lines.append(line | {"seconds": {"train": 9.0 * place, "evaluate": 1.0, "log": 0.1}})
                result = {"train": lines[-1]["train"], "test": lines[-1]["test"], "steps": 1000, "diverged": False}
                result |= {"seconds": {"train": 108.0, "evaluate": 12.0, "log": 0.3}, "num_data": 5_000_000}
                result |= _tempering(method, variant, seed)
                config = _train("charrnn", method, variant, seed, steps=[1000]) | _temperature(method, variant)
                write_run(study, f"{method}-{variant}-seed{seed}", config, result=result, metrics=lines)
    return study


def write_sensitivity(path: Path, *, seeds: int = 3, wrong: bool = False) -> StudyDirectory:
    """`wrong`: one seed of S = 0.95 diverged, one of a corner of the grid, and every one of T = 10."""
    study = describe(
        path, "sensitivity", title="Sensitivity to CTLD's constants", figure="Figure 4", varied="w × σ; S; T; L_s",
        seeds=list(range(seeds)), data={"name": "war-and-peace", "sha256": "00ff" * 16}, settings={"grid_seeds": 2},
        paper={"metric": "perplexity", "values": {"S": "1.4205–1.4230 over S = 0.30 … 0.95"}, "note": "test metric as printed",
               "defaults": {"w": 20.0, "sigma": 0.04, "S": 0.85, "T": 1.0, "share": 0.307},
               "steps": 29_300, "num_data": 2_932_400},
    )  # fmt: skip
    points: list[tuple[str, dict[str, Any], float]] = [
        *(
            ("grid", {"w": w, "sigma": sigma}, 0.0)
            for w in (1.0, 5.0, 20.0, 80.0)
            for sigma in (0.01, 0.02, 0.04, 0.08)
        ),
        *(("depth", {"S": depth}, 0.0) for depth in (0.3, 0.5, 0.7, 0.85, 0.95)),
        *(
            ("temperature", {"T": T}, shift)
            for T, shift in (("auto", 0.0), (0.01, 0.0), (0.1, 0.01), (1.0, 0.03), (10.0, 0.3))
        ),
        *(("exploration", {"share": share}, 0.02 * share) for share in (0.0, 0.1, 0.307, 0.6)),
    ]
    for place, (variant, point, shift) in enumerate(points):
        for seed in range(min(seeds, 2) if variant == "grid" else seeds):
            noise = 0.006 * float(np.random.default_rng([seed, place]).standard_normal())
            nats = 1.62 + 0.02 * seed + shift + noise
            config = _train("sensitivity", "ctld", variant, seed, point=point, steps=[500])
            config["optimizer"] = {"lr": 0.1, "temperature": point.get("T", 1.0)}
            result = {"train": _text(nats - 0.1), "test": _text(nats), "steps": 500, "diverged": False}
            lost = point in ({"S": 0.95}, {"w": 80.0, "sigma": 0.01}) and seed == 1
            if wrong and (lost or point == {"T": 10.0}):
                result = {"steps": 90, "diverged": True}
            result |= {"seconds": {"train": 40.0, "evaluate": 3.0, "log": 0.1}, "num_data": 2_932_400}
            write_run(study, f"{variant}-{place:02d}-seed{seed}", config, result=result)
    return study


# ---- the other kinds ----


def write_timing(path: Path) -> StudyDirectory:
    seconds = {"sgd": 3.8471, "rmsprop": 4.1195, "adam": 3.9437, "adadelta": 3.9327, "ctld": 3.8868}
    methods = list(seconds)
    study = describe(
        path, "timing", title="Time of an epoch", figure="Table 3", methods=methods, seeds=[0],
        paper={"seconds_per_epoch": seconds, "ratio": {name: value / 3.8471 for name, value in seconds.items()}},
    )  # fmt: skip
    ratios = {"adadelta": 1.043, "adam": 1.012, "ctld": 1.006, "ctld (exploration)": 1.021, "ctld (fine-tuning)": 1.003}
    ratios |= {"rmsprop": 1.018, "sgd": 1.0}
    measured = {
        name: {"seconds_per_epoch": 21.3 * ratio, "ratio": ratio, "low": ratio - 0.004, "high": ratio + 0.006}
        | {"rounds": 88}
        for name, ratio in ratios.items()
    }
    measured["sgd"] |= {"low": 1.0, "high": 1.0, "rounds": 100}
    blocks = {name: 0.2 * ratio for name, ratio in ratios.items() if name != "ctld"}
    lines = [{"round": place, "seconds": blocks, "waiting": dict.fromkeys(blocks, 0.0)} for place in range(100)]
    config = {
        "kind": "timing",
        "study": "timing",
        "scale": "laptop",
        "methods": methods,
        "rounds": 3,
        "batches": 4,
        "seed": 0,
    }
    result = {"methods": measured, "rounds": 100, "batches": 4, "undisturbed": 0.91}
    write_run(study, "timing", config, result=result, metrics=lines)
    return study


def write_double_well(path: Path, *, seeds: int = 3) -> StudyDirectory:
    study = describe(
        path, "double-well", title="Exploration against exactness on a double well", figure="Theorems 1 and 2", data={},
        seeds=list(range(seeds)), varied="dimension and tempering; number of steps and step size",
    )  # fmt: skip
    for dimensions, kinetic in ((1, 1.55), (10, 1.69), (100, 1.75), (1000, 1.25)):
        for variant in ("tempered", "untempered"):
            for seed in range(seeds):
                noise = np.random.default_rng([dimensions, seed]).standard_normal(3)
                tempered = variant == "tempered"
                result = {
                    "dimensions": dimensions, "steps": 400_000, "seed": seed, "tempered": tempered,
                    "kinetic_temperature": (kinetic if tempered else 1.01) + 0.02 * noise[0], "kinetic_error": 0.02,
                    "mean_square": (0.93 if tempered else 0.9645) + 0.003 * noise[1], "mean_square_error": 0.002,
                    "mean_square_exact": 0.964456, "total_variation": 0.17, "cold_share": 0.4 if tempered else 1.0,
                    "crossings": int(140 + 10 * noise[2]) if tempered else 3 + seed, "seconds": 16.0,
                    "kinetic_target": 2.0 / 1.98,
                }  # fmt: skip
                config = {"kind": "double_well", "study": "double-well", "scale": "laptop", "variant": variant}
                config |= {"dimensions": dimensions, "steps": 400_000, "seed": seed}
                write_run(study, f"{variant}-d{dimensions}-seed{seed}", config, result=result)
    for tempering, factor in (("none", 1.0), ("paper", 4.0), ("fixed", 3.0)):
        _write_theorem(study, tempering, factor)
    return study


def _write_theorem(study: StudyDirectory, tempering: str, factor: float) -> None:
    sizes = [0.04, 0.02, 0.01, 0.005]
    config = {
        "kind": "theorem",
        "study": "double-well",
        "scale": "laptop",
        "tempering": tempering,
        "seed": 0,
        "dimensions": 1,
    }
    slope = {"slope": -1.02, "error": 0.03, "bound": -1.0, "from": 8.0, "to": 32.0}
    lines = []
    for size in sizes:
        lengths = []
        for octave in range(10):
            duration = 0.5 * 2**octave
            line = {
                "steps": round(duration / size),
                "time": duration,
                "bias": 0.5 + factor / duration,
                "bias_error": 0.01,
            }
            line |= {"decaying_bias": factor / duration, "decaying_bias_error": 0.004}
            line |= {"decaying_mse": 2 * factor / duration, "decaying_mse_error": 0.1 / duration}
            lengths.append(line)
        limit = factor * (1.2 * size if tempering == "none" else 0.02 + 0.2 * size)
        line = {
            "step_size": size,
            "steps": lengths[-1]["steps"],
            "replicas": 1024,
            "limit": limit,
            "limit_error": 0.006,
        }
        slopes = {"decaying_bias": slope, "decaying_mse": slope | {"slope": -0.98}}
        lines.append(line | {"cold_limit": limit, "cold_limit_error": 0.006, "lengths": lengths, "slopes": slopes})
    against_size = {"limit": {"slope": 1.1, "error": 0.1, "bound": 1.0, "from": 0.005, "to": 0.04}}
    common = {"tempering": tempering, "minimum": 0.0, "exact_energy": 0.5, "seconds": 30.0}
    write_run(
        study, f"theorem-step-size-{tempering}", config | {"variant": "step_size", "step_sizes": sizes},
        result=common | {"variant": "step_size", "step_sizes": lines, "slopes": against_size},
    )  # fmt: skip
    if tempering != "fixed":
        write_run(
            study, f"theorem-steps-{tempering}", config | {"variant": "steps", "step_size": 0.02},
            result=common | {"variant": "steps", "step_sizes": lines[1:2], "slopes": {}},
        )  # fmt: skip
