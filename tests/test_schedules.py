"""Each schedule against its formula, and what it refuses."""

import math

import pytest

from ctld import schedules

STEPS = [0, 1, 2, 10, 999]


@pytest.mark.parametrize("step", STEPS)
def test_formulas(step):
    assert schedules.constant()(step) == 1.0
    assert schedules.constant(0.3)(step) == 0.3
    assert schedules.logarithmic_cooling(0.7)(step) == pytest.approx(0.7 / math.log(2 + step), rel=1e-15)
    assert schedules.polynomial_cooling(0.7)(step) == pytest.approx(0.7 / (1 + step) ** 0.55, rel=1e-15)
    assert schedules.polynomial_cooling(0.7, 20, 0.9)(step) == pytest.approx(0.7 / (20 + step) ** 0.9, rel=1e-15)
    assert schedules.polynomial_growth(2.0, 0.5)(step) == pytest.approx(2 * math.sqrt(step + 1), rel=1e-15)
    assert schedules.polynomial_growth(2.0, 0)(step) == 2.0


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("b", "gamma"), [(1.0, 0.55), (10.0, 0.51), (1e4, 1.0)])
def test_welling_teh_is_theirs_over_its_first_value(step, b, gamma):
    """ε_t = a(b + t)^−γ."""
    assert schedules.welling_teh(b, gamma)(step) == pytest.approx((b + step) ** -gamma / b**-gamma, rel=1e-12)


def test_welling_teh_in_numbers():
    schedule = schedules.welling_teh(9.0, 0.5 + 1e-9)
    assert schedule(0) == 1.0
    assert schedule(27) == pytest.approx(0.5, rel=1e-8)  # (36/9)^−½


@pytest.mark.parametrize(
    ("num_steps", "num_cycles", "length"), [(40, 2, 20), (39, 2, 20), (41, 2, 21), (5, 1, 5), (2, 4, 1)]
)
def test_cycles(num_steps, num_cycles, length):
    """⌈num_steps/num_cycles⌉ steps to a cycle, and on after the last."""
    position = schedules.cycle_position(num_steps, num_cycles)
    cosine = schedules.cosine_cycles(num_steps, num_cycles)
    for step in range(3 * length):
        k = step + 1  # Zhang et al. count from one
        share = ((k - 1) % length) / length
        assert position(step) == pytest.approx(share, abs=1e-15)
        assert cosine(step) == pytest.approx((math.cos(math.pi * share) + 1) / 2, abs=1e-15)
    assert position(0) == position(length) == 0.0
    assert cosine(0) == cosine(length) == 1.0


def test_a_cycle_falls_and_starts_again():
    cosine = schedules.cosine_cycles(20, 2)
    values = [cosine(step) for step in range(20)]
    assert values[:10] == values[10:] == sorted(values[:10], reverse=True)
    assert values[5] == pytest.approx(0.5)
    assert 0 < values[9] < 0.03


@pytest.mark.parametrize("schedule", [schedules.logarithmic_cooling(1.0), schedules.polynomial_cooling(1.0)])
def test_cooling_falls_for_ever(schedule):
    values = [schedule(step) for step in (0, 1, 10, 10**3, 10**6, 10**9)]
    assert values == sorted(values, reverse=True)
    assert all(value > 0 for value in values)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: schedules.constant(-1.0), r"value = -1\.0"),
        (lambda: schedules.constant(math.nan), "value = nan"),
        (lambda: schedules.welling_teh(0.0), r"offset = 0\.0 .* > 0"),
        (lambda: schedules.welling_teh(math.inf), "offset = inf"),
        (lambda: schedules.welling_teh(1.0, 0.5), r"exponent = 0\.5 .* > 0\.5"),
        (lambda: schedules.welling_teh(1.0, 1.1), r"exponent = 1\.1 .* 0\.5 < exponent <= 1"),
        (lambda: schedules.logarithmic_cooling(-0.1), r"scale = -0\.1"),
        (lambda: schedules.logarithmic_cooling(math.nan), "scale = nan"),
        (lambda: schedules.polynomial_cooling(-0.1), r"scale = -0\.1"),
        (lambda: schedules.polynomial_cooling(1.0, 0.0), r"offset = 0\.0"),
        (lambda: schedules.polynomial_cooling(1.0, 1.0, 0.5), r"exponent = 0\.5 .* > 0\.5 and < 1"),
        (lambda: schedules.polynomial_cooling(1.0, 1.0, 1.0), r"exponent = 1\.0 .* > 0\.5 and < 1"),
        (lambda: schedules.polynomial_growth(0.0, 0.5), r"scale = 0\.0"),
        (lambda: schedules.polynomial_growth(1.0, -0.5), r"exponent = -0\.5"),
        (lambda: schedules.cycle_position(0, 1), "num_steps = 0 .* >= 1"),
        (lambda: schedules.cosine_cycles(10, 0), "num_cycles = 0 .* >= 1"),
    ],
)
def test_out_of_range(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: schedules.welling_teh("far"), "offset = 'far' is not a number"),
        (lambda: schedules.cosine_cycles(10.5, 2), r"num_steps = 10\.5 is not a whole number"),
        (lambda: schedules.cosine_cycles(10, True), "num_cycles = True is not a whole number"),
    ],
)
def test_not_a_number(build, message):
    with pytest.raises(TypeError, match=message):
        build()
