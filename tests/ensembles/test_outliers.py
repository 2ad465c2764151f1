"""Samples that spoil an average are named, and none that belongs to it."""

import math

import pytest
import torch
from torch import nn

from ctld import predict
from ctld.ensembles.outliers import HELD_BACK, Sketch, outlying_classifiers, outlying_regressors


def classifiers(number, *, scale=6.0, noise=1.0, seed=0):
    """Logarithms of probabilities of 200 inputs: mostly agreed, each with a view of its own."""
    generator = torch.Generator().manual_seed(seed)
    shared = scale * torch.nn.functional.one_hot(torch.randint(10, (200,), generator=generator), 10).double()
    return [
        (shared + noise * torch.randn(200, 10, generator=generator, dtype=torch.float64)).log_softmax(-1)
        for _ in range(number)
    ]


DEAD = torch.zeros(200, 10, dtype=torch.float64).log_softmax(-1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("scale", "noise"), [(6.0, 1.0), (3.0, 2.0), (12.0, 0.1), (1.0, 1.0)])
def test_nobody_is_accused_without_reason(seed, scale, noise):
    assert outlying_classifiers(classifiers(6, scale=scale, noise=noise, seed=seed)) == {}


@pytest.mark.parametrize("dead", [1, 3])
def test_the_dead_are_found_also_where_they_are_the_majority(dead):
    """Of the report's four members three were dead."""
    constant = torch.randn(10, dtype=torch.float64).log_softmax(-1).expand(200, 10)
    samples = classifiers(1) + [DEAD, constant, DEAD][:dead]
    found = outlying_classifiers(samples)
    assert set(found) == set(range(1, dead + 1))
    assert set(found.values()) == {"predicts the same for every input"}


@pytest.mark.parametrize("number", [3, 4, 6])
def test_one_that_learned_something_else(number):
    samples = classifiers(number - 1)
    samples.insert(1, samples[0].roll(1, -1))
    assert outlying_classifiers(samples) == {1: "is far from the others"}


def test_what_is_not_finite():
    assert outlying_classifiers([*classifiers(2), torch.full((200, 10), math.nan, dtype=torch.float64)]) == {
        2: "predicts what is not finite"
    }


def test_few_inputs_accuse_nobody():
    assert outlying_classifiers([sample[:5] for sample in (*classifiers(3), DEAD)]) == {}


def test_regression():
    generator = torch.Generator().manual_seed(0)
    signal = torch.linspace(-1, 1, 50, dtype=torch.float64)
    good = [signal + 0.05 * torch.randn(50, generator=generator, dtype=torch.float64) for _ in range(5)]
    assert outlying_regressors(good) == {}
    assert outlying_regressors([*good, torch.full((50,), 0.3).double()]) == {5: "predicts the same for every input"}
    assert outlying_regressors([*good, -signal]) == {5: "is far from the others"}


def test_predict_says_it_and_averages_all_the_same():
    model = nn.Linear(10, 10, bias=False)
    inputs = torch.eye(10).repeat(3, 1)
    alive, dead = {"weight": 8 * torch.eye(10)}, {"weight": torch.zeros(10, 10)}
    with pytest.warns(
        UserWarning, match=r"of 3 samples some spoil the average: sample 2 predicts the same for every input"
    ):
        found = predict(model, [alive, alive, dead], inputs)
    assert found.outliers == {2: "predicts the same for every input"}
    assert found.num_samples == 3
    assert float(found.probabilities[0, 0]) == pytest.approx((2 * math.exp(8) / (math.exp(8) + 9) + 0.1) / 3)
    assert predict(model, [alive, alive], inputs).outliers == {}


def test_the_sketch_holds_a_bounded_copy():
    sketch = Sketch()
    sketch.begin()
    batch = torch.zeros(300, 100)
    for _ in range(10):
        sketch.add(batch)
    held = sketch.samples()[0]
    assert held.numel() == HELD_BACK
    batch.add_(1.0)
    assert held.sum() == 0
    wide = Sketch()
    wide.begin()
    wide.add(torch.zeros(2, 2 * HELD_BACK))  # one row at least
    assert wide.samples()[0].shape == (1, 2 * HELD_BACK)
