"""How long α rests: until what it watches has been seen for many of its own times, or for half of the exploration."""

import math
import re

import numpy as np
import pytest
from scipy.signal import lfilter

from ctld import Tempering
from ctld.tempering import Exploration
from ctld.tempering.warm_up import MANY, Seen, WarmUp


def process(correlation_time, count, seed, variance=1.0):
    """An autoregressive series of this variance; τ = 1/2 + Σρ^k = (1 + ρ)/(2(1 − ρ))."""
    rho = (2 * correlation_time - 1) / (2 * correlation_time + 1)
    kicks = np.random.default_rng(seed).standard_normal(count)
    kicks[0] /= math.sqrt(1 - rho**2)
    return math.sqrt(variance * (1 - rho**2)) * lfilter([1.0], [1.0, -rho], kicks)


def watch(series, steps=4000, at_most=None):
    warm_up = WarmUp(steps, at_most)
    for value in series.tolist():
        if warm_up.over:
            break
        warm_up.observe(value)
    return warm_up


def frictions(correlation_time, at_most, seeds=24):
    """Γ that was found, over what it is, for a process of variance 9, with and without noise of variance 4 on it."""
    found = []
    for seed in range(seeds):
        series = process(correlation_time, 130_000, seed, 9.0)
        series += (seed % 2) * 2.0 * np.random.default_rng(seed).standard_normal(len(series))
        seen = watch(series, at_most=at_most).result
        found.append(seen.variance * seen.correlation_time / (9.0 * correlation_time))
    return np.array(found)


@pytest.mark.parametrize("correlation_time", [3.0, 10.0])
def test_what_is_fast_takes_no_longer(correlation_time):
    """But for chance: two means are three standard errors apart now and then, by an error that is an estimate too."""
    warm_ups = [watch(process(correlation_time, 64_000, seed), at_most=64_000) for seed in range(24)]
    assert sum(warm_up.until > 4000 for warm_up in warm_ups) <= 3


def test_what_is_slow_takes_as_long_as_it_needs():
    """At τ = 500 a window of 50τ has 25,000 steps; Γ is then found within a factor of four, and by a first window it is not.

    By Sokal's window its standard error is sqrt(20τ/n) = 60 %, and a finite window leaves out some of it.
    """
    found = frictions(500.0, 128_000)
    assert np.median(found) > 0.4
    assert np.quantile(found, 0.1) > 0.2
    assert found.max() < 4.0
    twin = frictions(500.0, None)  # as version 0.1 had it
    assert np.median(twin) < 0.2
    assert np.quantile(twin, 0.1) < 0.05


def test_a_potential_that_still_falls_is_not_taken_for_settled():
    """It falls by as much as it varies within 5,000 steps: the window that counts begins after that."""
    steps = np.arange(64_000)
    series = process(5.0, len(steps), 3) + 100.0 * np.exp(-steps / 1000.0)
    seen = watch(series, at_most=64_000)
    assert seen.until >= 8000
    assert seen.result.variance == pytest.approx(1.0, rel=0.3)
    assert watch(series).result.variance > 3.0  # the twin: one window


def test_blocks_leave_variance_and_friction_what_they_are():
    """A first window that is not settled, then fast motion, in blocks of many steps: Var and Var·τ are those of the steps."""
    series = np.concatenate([np.arange(4000) * 1.0, 4000.0 + process(2.0, 60_000, 5, 9.0)])
    warm_up = watch(series, steps=200, at_most=60_000)
    assert warm_up.until > 8 * 200
    # Motion as fast as this is taken for noise in part: (1 − ρ)(3 − ρ)/3 of it, ρ = 0.6, is 0.32.
    assert warm_up.result.variance == pytest.approx(0.68 * 9.0, rel=0.1)
    assert warm_up.result.variance * warm_up.result.correlation_time == pytest.approx(18.0, rel=0.5)


def test_the_bound_holds_and_the_last_window_is_not_a_short_one():
    slow = process(1e5, 64_000, 1)
    assert watch(slow, at_most=15_000).until == 15_000
    assert watch(slow, at_most=9_000).until == 8_000  # 1,000 more would see less than the 4,000 before
    assert watch(slow, at_most=3_000).until == 4_000
    assert not watch(slow, at_most=15_000).result.enough


def test_an_answer_before_its_time_is_an_error():
    with pytest.raises(ValueError, match="over after 4000 steps, and 0 were seen"):
        _ = WarmUp(4000).result


@pytest.mark.parametrize("at", [50, 1999, 2500, 4000, 4001, 9000, 15_999])
def test_it_goes_on_from_its_numbers(at):
    series = process(800.0, 40_000, 2)
    straight, other = WarmUp(4000, 32_000), WarmUp(4000, 32_000)
    for step, value in enumerate(series[:32_000].tolist()):
        if step == at:
            numbers, window = other.numbers(), other.window()
            assert (len(numbers), len(window)) == (4008, WarmUp.NUMBERS)
            other = WarmUp.from_numbers(4000, numbers, window, 32_000)
        for warm_up in (straight, other):
            if not warm_up.over:
                warm_up.observe(value)
    assert straight.result == other.result


def test_friction_has_a_standard_error_more():
    seen = Seen(0.0, 4.0, 10.0, 25.0, 1000)
    assert seen.friction == pytest.approx(100.0 * (1 + math.sqrt(20 * 25 / 1000)) + 7.0)
    assert not seen.enough
    assert seen._replace(steps=MANY * 25).enough
    assert not seen._replace(steps=MANY * 25, settled=False).enough


def prepared(steps, **options):
    tempering = Tempering.calibrated(**options)
    tempering.prepare(Exploration(1.0, 0.0, steps, integrator="baoab", **({} if steps > 1000 else {"cycles": True})))
    return tempering


def test_a_warm_up_that_is_too_short_is_said():
    """τ = 2,000 in an exploration of 20,000 steps: what half of it holds does not tell."""
    tempering = prepared(20_000)
    for value in (50.0 + process(2000.0, 10_000, 4, 50.0)).tolist():
        tempering.begin(value, 0.1)
    assert re.search(r"which may take half of the exploration, hold .* correlation times", tempering.remark)
    assert tempering.warm_up_steps == 8000
    assert not tempering.warming_up


def test_in_cycles_the_warm_up_is_what_was_asked_for():
    with pytest.warns(UserWarning, match="the exploration of 2 cycles of 600"):
        tempering = prepared(600, warm_up=1000)
    for value in process(500.0, 1001, 4, 50.0).tolist():
        tempering.begin(value, 0.1)
    assert tempering.warm_up_steps == 1000
    assert not tempering.warming_up
