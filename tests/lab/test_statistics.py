"""Intervals, verdicts, corrections and correlations of the report, against scipy, printed tables and simulated truth."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from ctld_lab.statistics import (
    Estimate,
    association,
    estimate,
    holm,
    marks,
    paired_difference,
    spread,
    unpaired_difference,
    verdicts,
    word,
)


def marked(columns):
    """`marks` of values by seed, without what diverged."""
    sound = {name: values for name, values in columns.items() if all(map(math.isfinite, values.values()))}
    return marks({name: estimate(list(values.values())) for name, values in sound.items()}, sound)


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_the_interval_is_that_of_scipy(count):
    values = np.random.default_rng(count).standard_normal(count)
    found = estimate(values.tolist())
    expected = stats.ttest_1samp(values, 0.0)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.probability == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.error == pytest.approx(stats.sem(values))


def test_unpaired_differences_are_welchs():
    generator = np.random.default_rng(0)
    one, other = generator.normal(1.0, 1.0, 5), generator.normal(0.0, 3.0, 8)
    found = unpaired_difference(estimate(one.tolist()), estimate(other.tolist()))
    expected = stats.ttest_ind(one, other, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.probability == pytest.approx(expected.pvalue, rel=1e-9)
    assert unpaired_difference(estimate([1.0]), estimate([1.0, 2.0])).half_width is None


def test_equal_values_are_certain():
    assert estimate([0.5, 0.5]).probability == 0.0
    assert estimate([0.0, 0.0]).probability == 1.0
    assert word(estimate([0.0, 0.0]), 1.0) == "tie"


def test_estimate_has_the_interval_of_a_known_example():
    # Values 1, 2, 3: mean 2, standard error 1/√3, t₂ = 4.303.
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.count) == (2.0, 3)
    assert found.half_width == pytest.approx(4.3026527 / math.sqrt(3.0))
    assert estimate([5.0]) == Estimate(5.0, None, None, 1)
    assert estimate([1.0, math.nan]).count == 1
    assert math.isnan(estimate([]).mean)


def test_verdicts_are_judged_by_paired_differences():
    """Seeds differ by far more than methods do, and b is worse in every one of them. c is within 5 % of a, d may be not."""
    a = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}
    b = {0: 1.10, 1: 2.11, 2: 3.09, 3: 4.10}
    c = {0: 1.02, 1: 1.99, 2: 3.03, 3: 3.98}
    d = {0: 1.5, 1: 1.9, 2: 3.3, 3: 4.1}
    assert marked({"a": a, "b": b, "c": c, "d": d}) == {"a": "best", "b": "", "c": "tie", "d": "undecided"}
    # Unpaired, the spread of the seeds would hide all of it.
    means = {name: estimate(list(values.values())) for name, values in {"a": a, "b": b}.items()}
    assert marks(means, {}) == {"a": "best", "b": "undecided"}


def test_comparisons_with_the_best_are_corrected_for_their_number():
    """p = 0.030 is worse than one other, and undecided among five such."""
    best = dict.fromkeys(range(3), 1.0)
    other = {0: 1.4, 1: 1.6, 2: 1.9}
    assert 0.02 < paired_difference(other, best).probability < 0.05
    assert marked({"best": best, "other": other})["other"] == ""
    crowd = {f"other{n}": other for n in range(5)}
    assert set(marked({"best": best} | crowd).values()) == {"best", "undecided"}


def test_holm_is_holms():
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_holm_keeps_its_promise():
    """Without any effect one of five is called worse in at most 5 % of cases; uncorrected, in far more (the wrong twin)."""
    generator = np.random.default_rng(5)
    corrected = plain = 0
    for _ in range(600):
        found = {str(n): estimate(row).probability for n, row in enumerate(generator.standard_normal((5, 6)).tolist())}
        corrected += min(holm(found).values()) < 0.05
        plain += min(found.values()) < 0.05
    assert corrected / 600 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)
    assert plain / 600 > 0.15


def test_no_claims_with_one_seed():
    assert set(marked({"a": {0: 1.0}, "b": {0: 2.0}}).values()) == {""}
    found = marked({"a": {0: 1.0, 1: 1.1}, "c": {0: 2.0, 1: 2.1}, "d": {0: 0.5}})
    assert found == {"a": "best", "c": "", "d": "too few seeds"}


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.3, -0.1, "lower"),
        (0.1, 0.3, "higher"),
        (-0.02, -0.01, "lower"),
        (-0.05, 0.04, "tie"),
        (-0.04, 0.06, "undecided"),
        (-0.4, 0.7, "undecided"),
        (None, None, ""),
    ],
)
def test_one_rule_for_all_differences(low, high, said):
    """A tie is what holds zero and lies within 5 % of what it is compared with, here 1."""
    mean = 0.2 if low is None else 0.5 * (low + high)
    assert word(Estimate(mean, low, high, 5), 1.0) == word(Estimate(mean, low, high, 5), -1.0) == said


def test_spread_tells_an_effect_from_chance():
    noise = [[0.3, -0.2, 0.1], [-0.1, 0.2, -0.3], [0.2, 0.1, 0.0], [-0.3, 0.0, 0.2]]
    seeds = [0.0, 5.0, 9.0]  # what the seeds add to every point must not matter

    def points(step):
        return [{s: seeds[s] + step * place + noise[place][s] for s in range(3)} for place in range(4)]

    assert not spread(points(0.0)).exceeds_chance
    found = spread(points(2.0))
    assert found.exceeds_chance
    assert found.range > found.chance
    assert found == spread(points(2.0))  # the same shuffles every time
    assert spread([{0: 1.0}, {0: 2.0}]) is None


def test_spread_is_right_as_often_as_it_says():
    """Without an effect, p < 0.05 in 5 % of cases: 400 trials, three standard errors are 3.3 %."""
    generator = np.random.default_rng(1)
    found = [
        spread([dict(enumerate(row)) for row in generator.standard_normal((5, 3))], shuffles=400).exceeds_chance
        for _ in range(400)
    ]
    assert abs(np.mean(found) - 0.05) < 0.033


def test_holm_counts_what_was_planned_and_is_missing():
    assert holm({"a": 0.01, "b": 0.02}, planned=5) == pytest.approx({"a": 0.05, "b": 0.08})


def test_verdicts_are_corrected_and_have_a_side():
    seen = {
        "clear": estimate([-1.0, -1.1, -0.9, -1.0]),
        "worse": estimate([1.0, 1.1, 0.9, 1.0]),
        "equal": estimate([0.01, -0.01, 0.0, 0.02]),
        "open": estimate([0.5, -0.4, 0.1, 0.3]),
        "one seed": estimate([1.0]),
    }
    assert verdicts(seen, 0.1) == {"clear": "ahead", "worse": "behind", "equal": "tie", "open": "undecided"}
    assert verdicts(seen, 0.1, lower_is_better=False)["clear"] == "behind"
    assert verdicts({"once": estimate([1.0, 1.3, 0.6])}, 0.0) == {"once": "behind"}
    assert verdicts({"once": estimate([1.0, 1.3, 0.6])}, 0.0, planned=5) == {"once": "undecided"}


# ---- rank correlation ----


def test_the_correlation_is_spearmans_and_its_chance_that_of_exchanged_methods():
    generator = np.random.default_rng(3)
    one = np.round(generator.standard_normal((5, 3)), 1)  # with ties
    other = one + generator.standard_normal((5, 3))
    found = association([(dict(enumerate(a)), dict(enumerate(b))) for a, b in zip(one, other, strict=True)])
    expected = stats.spearmanr(one.ravel(), other.ravel()).statistic
    assert found.rho == pytest.approx(expected, rel=1e-12)
    orders = [
        stats.spearmanr(one.ravel(), other[list(order)].ravel()).statistic for order in itertools.permutations(range(5))
    ]
    assert found.probability == np.mean([abs(rho) >= abs(expected) - 1e-12 for rho in orders])
    assert (found.methods, found.runs) == (5, 15)


def test_many_methods_are_shuffled_always_alike():
    generator = np.random.default_rng(4)
    pairs = [({0: x, 1: x + 1}, {0: x, 1: x + 1.1}) for x in generator.standard_normal(12)]
    found = association(pairs)
    assert found == association(pairs)
    assert 0 < found.probability < 1e-3


def test_alike_seeds_are_not_independent():
    """Three methods in a row are one order of six, however many seeds there are."""
    pairs = [({seed: place + 0.01 * seed for seed in range(20)},) * 2 for place in (1.0, 2.0, 3.0)]
    assert association(pairs).probability >= 1 / 6


@pytest.mark.parametrize(
    "pairs",
    [[], [({0: 1.0}, {0: 2.0})], [({0: 1.0}, {0: 2.0}), ({1: 1.0}, {1: 2.0})], [({0: 1.0}, {0: 2.0}), ({0: 1.0}, {0: 3.0})],
     [({0: float("nan")}, {0: 2.0}), ({0: 1.0}, {0: 3.0})]],
)  # fmt: skip
def test_where_nothing_can_be_correlated(pairs):
    assert association(pairs) is None
