"""The estimators pass scikit-learn's own checks, and do what estimators are for."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

import ctld

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a folder of scripts, not installed

from benchmarks.estimators import FOLDS, SETS, STORED, nll, table

from ctld.integrations.sklearn import CTLDClassifier, CTLDRegressor

ESTIMATORS = [CTLDClassifier(epochs=30, random_state=0), CTLDRegressor(epochs=30, random_state=0)]
CHECKS = [pair for estimator in ESTIMATORS for pair in estimator_checks_generator(estimator)]


@pytest.mark.parametrize(
    ("estimator", "check"),
    CHECKS,
    ids=[
        f"{type(estimator).__name__}-{check.func.__name__}-{number}" for number, (estimator, check) in enumerate(CHECKS)
    ],
)
def test_scikit_learns_own_check(estimator, check):
    check(estimator)


def digits():
    inputs, labels = load_digits(return_X_y=True)
    return train_test_split(inputs, labels, test_size=0.4, random_state=0, stratify=labels)


def test_classifies_digits_and_is_better_calibrated_than_chance():
    train, test, train_labels, test_labels = digits()
    model = CTLDClassifier((64,), epochs=40, random_state=0).fit(train, train_labels)
    assert model.score(test, test_labels) > 0.95
    assert len(model.members_) == 4
    probabilities = model.predict_proba(test)
    assert probabilities.sum(1) == pytest.approx(1.0)
    total, epistemic = model.predict_uncertainty(test)
    wrong = model.predict(test) != test_labels
    assert total[wrong].mean() > 2.0 * total[~wrong].mean()
    assert (epistemic >= 0).all()
    assert (epistemic <= total + 1e-9).all()


def test_regression_has_error_bars():
    inputs, values = load_diabetes(return_X_y=True)
    train, test, train_values, test_values = train_test_split(inputs, values, random_state=0)
    model = CTLDRegressor((16,), epochs=60, weight_decay=1e-2, lr=0.02, random_state=0).fit(train, train_values)
    mean, deviation = model.predict(test, return_std=True)
    assert model.score(test, test_values) > 0.3
    within = np.abs(test_values - mean) < 2.0 * deviation
    assert 0.8 < within.mean() < 0.99  # bars twice as long have all of them


def test_in_a_pipeline_and_a_search():
    train, test, train_labels, test_labels = digits()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), CTLDClassifier((32,), epochs=10, random_state=0)),
        {"ctldclassifier__lr": [0.001, 0.1]},
        cv=2,
    )
    search.fit(train[:300], train_labels[:300])
    assert search.best_params_ == {"ctldclassifier__lr": 0.1}
    assert search.score(test, test_labels) > 0.8


def test_an_own_network_and_the_users_random_numbers():
    train, _, labels, _ = digits()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = CTLDClassifier(module=lambda inputs, outputs: nn.Linear(inputs, outputs), epochs=5, random_state=1)
    model.fit(train, labels)
    assert torch.equal(torch.rand(3), expected)
    assert isinstance(model.network_, nn.Linear)


@pytest.mark.parametrize(("option", "value"), [("cycles", 0), ("exploration", 1.0), ("batch_size", 0), ("lr", -1.0)])
def test_a_wrong_option_is_named(option, value):
    with pytest.raises(ValueError, match=f"{option} = "):
        CTLDClassifier(**{option: value}).fit(np.eye(4), [0, 1, 0, 1])


def test_no_worse_than_scikit_learns_networks_by_the_stored_runs():
    rows = list(csv.DictReader(STORED.open(newline="", encoding="utf-8")))
    assert len(rows) == len(SETS) * FOLDS * 3
    text, worse = table(rows)
    assert worse == []
    assert len(text.splitlines()) == 2 + len(SETS)
    hurt = [row | {"nll": float(row["nll"]) + (row["method"] == "CTLD")} for row in rows]
    assert table(hurt)[1] == list(SETS)  # and would say so
    inputs, labels = load_iris(return_X_y=True)
    half = (inputs[::2], labels[::2]), (inputs[1::2], labels[1::2])
    assert 0 < nll(CTLDClassifier(epochs=10, random_state=0), *half, False) < 1


def test_more_cycles_than_the_epochs_have_room_for_are_refused():
    inputs = np.eye(4)
    with pytest.raises(
        ValueError, match=r"cycles must be at most 2 for the 5 steps of epochs=5, got 100. Give fewer cycles"
    ):
        CTLDClassifier(epochs=5, cycles=100).fit(inputs, [0, 1, 2, 1])


@pytest.mark.parametrize("outputs", [4, 1])
def test_a_network_of_ones_own_has_the_outputs_that_are_asked_for(outputs):
    model = CTLDClassifier(module=lambda inputs, classes: nn.Linear(inputs, outputs))
    with pytest.raises(ValueError, match=rf"gives shape \(2, 3\) for 2 rows, got \(2, {outputs}\)"):
        model.fit(np.eye(4), [0, 1, 2, 1])


def test_nothing_is_said_of_temperatures_of_a_posterior(recwarn):
    """Here a hot minibatch is no mistake of the user's."""
    train, _, labels, _ = digits()
    CTLDClassifier(epochs=40, lr=0.3, random_state=0).fit(train[:200], labels[:200])
    assert [str(said.message) for said in recwarn if said.category is ctld.TemperatureWarning] == []
