"""CTLDClassifier and CTLDRegressor at their defaults beside MLPClassifier and MLPRegressor at theirs, by nll on test data.

    python -m benchmarks.estimators            # minutes; writes results/estimators.csv beside this file
    python -m benchmarks.estimators --check    # reads it: exits with an error where ours is shown worse

Five data sets of scikit-learn's, five folds each. The MLPs are given standardised inputs, and raw ones: the better of the two
is the baseline, which favours them. A regression's law is a Gaussian: MLPRegressor's has the variance of its training
residuals, CTLDRegressor's the deviation that `predict(return_std=True)` gives. The prior of `weight_decay="auto"` was chosen
among 1, 2 and 3 on some of these folds: no data were kept back for a last look.
"""

import argparse
import csv
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ctld.integrations.sklearn import CTLDClassifier, CTLDRegressor

STORED = Path(__file__).with_name("results") / "estimators.csv"
SETS = {
    "breast cancer": load_breast_cancer,
    "wine": load_wine,
    "digits": load_digits,
    "iris": load_iris,
    "diabetes": load_diabetes,
}
FOLDS = 5
BETWEEN_FOLDS = 2.776  # 97.5 % of Student's t with four degrees of freedom


def methods(regression: bool, seed: int) -> dict[str, Any]:
    """Estimators by name, all at their defaults."""
    mlp = (MLPRegressor if regression else MLPClassifier)(random_state=seed)
    ours = (CTLDRegressor if regression else CTLDClassifier)(random_state=seed)
    return {"MLP, standardised": make_pipeline(StandardScaler(), clone(mlp)), "MLP, raw": mlp, "CTLD": ours}


def nll(model: Any, train: tuple[Any, Any], test: tuple[Any, Any], regression: bool) -> float:
    """Mean negative log-likelihood of the test data, in nats."""
    model.fit(*train)
    inputs, targets = test
    if not regression:
        chances = model.predict_proba(inputs)[np.arange(len(targets)), targets]
        return float(-np.log(np.clip(chances, 1e-15, 1.0)).mean())
    if isinstance(model, CTLDRegressor):
        mean, deviation = model.predict(inputs, return_std=True)
    else:
        mean, deviation = model.predict(inputs), np.sqrt(np.mean((train[1] - model.predict(train[0])) ** 2))
    return float(np.mean(0.5 * ((targets - mean) / deviation) ** 2 + np.log(deviation) + 0.5 * np.log(2 * np.pi)))


def runs() -> Iterator[dict[str, Any]]:
    """A row for every data set, fold and method."""
    for name, load in SETS.items():
        inputs, targets = load(return_X_y=True)
        regression = name == "diabetes"
        folds = (KFold if regression else StratifiedKFold)(FOLDS, shuffle=True, random_state=0)
        for fold, (train, test) in enumerate(folds.split(inputs, targets)):
            for method, model in methods(regression, fold).items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # at its defaults MLPClassifier says that it has not converged
                    found = nll(model, (inputs[train], targets[train]), (inputs[test], targets[test]), regression)
                yield {"data": name, "fold": fold, "method": method, "nll": f"{found:.6f}"}


def table(rows: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Markdown of means with half a 95 % interval of the paired difference, and where ours is shown worse."""
    lines, worse = ["| data | MLP | CTLD | CTLD − MLP |", "|---|---|---|---|"], []
    for name in SETS:
        by = {
            method: np.array([float(row["nll"]) for row in rows if (row["data"], row["method"]) == (name, method)])
            for method in methods(False, 0)
        }
        ours = by.pop("CTLD")
        best = min(by.values(), key=lambda column: float(column.mean()))
        difference = ours - best
        half = BETWEEN_FOLDS * difference.std(ddof=1) / len(difference) ** 0.5
        lines.append(f"| {name} | {best.mean():.4f} | {ours.mean():.4f} | {difference.mean():+.4f} ± {half:.4f} |")
        if difference.mean() > half:
            worse.append(name)
    return "\n".join(lines), worse


def main() -> int:
    parser = argparse.ArgumentParser(description="nll of the estimators beside scikit-learn's")
    parser.add_argument("--check", action="store_true", help="read the stored rows, train nothing")
    torch.set_num_threads(1)
    if not parser.parse_args().check:
        rows = []
        for row in runs():
            rows.append(row)
            sys.stderr.write(f"{row}\n")
        STORED.parent.mkdir(exist_ok=True)
        with STORED.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["data", "fold", "method", "nll"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with STORED.open(newline="", encoding="utf-8") as file:
        text, worse = table(list(csv.DictReader(file)))
    sys.stdout.write(text + "\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
