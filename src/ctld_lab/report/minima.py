"""Measurements of `ctld flatness` for a study's runs, as rows of the tidy table, and how they were made."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ctld_lab.files import RecordError, printable
from ctld_lab.report import shapes, tidy
from ctld_lab.report.wording import shortened, show_setting

TEST, LOSS, GAP, GRADIENT = "test loss", "training loss", "gap", "gradient norm"
EIGENVALUE, TRACE, SHARPNESS = "largest eigenvalue", "trace", "sharpness"
TEMPERED, DECAY = "tempered", "weight decay"
NEEDED = {
    "eigenvalues",
    "residuals",
    "trace",
    "sharpness",
    "rises",
    "loss",
    "gradient_norm",
    "metric",
    "what",
    "settings",
}
ALTERED = "was measured with other settings than most; measure all alike, with --again"


def of_runs(runs: Sequence[Any]) -> tuple[list[tidy.Line], dict[str, Any], list[tuple[str, str]]]:
    """Return the rows, how it was measured, and the records that are left out: broken, or made with other settings."""
    records, problems = {}, []
    for run in runs:
        try:
            record = _read(run) if run.state == "done" and not run.diverged else {}
        except (RecordError, OSError) as error:
            problems.append((run.name, shortened(printable(str(error)))))
            continue
        if record:
            records[run.name] = run, record
    keys = {name: json.dumps([x["settings"], x["what"]], sort_keys=True) for name, (_, x) in records.items()}
    for variant in {run.variant for run, _ in records.values()}:  # each with a workload of its own, perhaps
        own = [name for name, (run, _) in records.items() if run.variant == variant]
        usual = Counter(keys[name] for name in own).most_common(1)[0][0]
        problems += [(name, ALTERED) for name in own if keys[name] != usual]
    kept = [records[name] for name in records if name not in dict(problems)]
    lines: list[tidy.Line] = []
    for run, record in kept:
        key = [run.method, run.variant, tidy.point_text(run.point), tidy.MINIMUM]
        lines += [[*key, metric, str(run.seed), value] for metric, value in _measured(run, record).items()]
    return lines, _facts(kept) if kept else {}, problems


def _read(run: Any) -> dict[str, Any]:
    """flatness.json; empty until it was measured."""
    path, remedy = run.directory.path / "flatness.json", "measure it with --again"
    record = shapes.fitted(run.directory.flatness(), shapes.FLATNESS, path, remedy)
    missing = sorted(name for name in NEEDED if name not in record or record[name] == [])
    if record and missing:
        raise RecordError(f"{path} is not as it should be (without {', '.join(missing)}); {remedy}")
    return record


def _measured(run: Any, record: dict[str, Any]) -> dict[str, float]:
    """By name: the loss, its gradient, the measures, and the gap."""
    test = run.result.get("test", {})
    # Of the model that was kept: where a run judged several together, it is the last of them.
    names = (f"last_{record['metric']}", "last_nll", record["metric"])
    found = {TEST: next((float(test[key]) for key in names if key in test), math.nan), LOSS: record["loss"]}
    found |= {GRADIENT: record["gradient_norm"], EIGENVALUE: record["eigenvalues"][0]}
    found |= {TRACE: record["trace"].get("mean", math.nan), SHARPNESS: record["sharpness"]}
    for part in record["rises"]:
        found[f"rise at {show_setting(part.get('size', math.nan))}"] = part.get("mean", math.nan)
    decay = run.config.get("optimizer", {}).get("weight_decay", 0.0)
    found |= {GAP: found[TEST] - found[LOSS], TEMPERED: float(_tempered(run))}
    return found | {DECAY: float(decay) if isinstance(decay, int | float) else math.nan}


def _tempered(run: Any) -> bool:
    """True for the paper's algorithm, whatever a study calls it; at T = 0 it would be SGD-M, at a constant T plain noise."""
    options = run.config.get("optimizer", {})
    tempering = options.get("tempering")
    constant = isinstance(tempering, dict) and tempering.get("kind") == "constant"
    return bool(run.config.get("algorithm", run.method) == "ctld" and options.get("temperature") != 0 and not constant)


def _facts(kept: Sequence[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    kinds = set()
    for run, record in kept:
        workload = run.config.get("workload")
        # Stages are models after one another, not another network.
        network = {name: x for name, x in workload.items() if name != "stages"} if isinstance(workload, dict) else {}
        kinds.add((record["what"], json.dumps(network, sort_keys=True)))
    return {
        "runs": len(kept),
        "what": list(dict.fromkeys(shortened(x["what"]) for _, x in kept)),
        "settings": list(dict.fromkeys(json.dumps(x["settings"]) for _, x in kept)),
        "made": list(dict.fromkeys(f"torch {x.get('torch')}, threads: {x.get('threads')}" for _, x in kept)),
        "loose": [run.name for run, x in kept if x["residuals"][0] > 0.01 * abs(x["eigenvalues"][0])],
        "several": any(run.result.get("members", 1) > 1 for run, _ in kept),
        "alike": len(kinds) == 1,
    }
