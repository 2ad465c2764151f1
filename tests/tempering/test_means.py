"""What calibrated tempering knows of U/T: noise by second differences, its statistics, and the mean at each α."""

import numpy as np
import pytest

from ctld.tempering.calibrated import CalibratedTempering
from ctld.tempering.means import BinnedMeans
from ctld.tempering.warm_up import Seen, WarmUp

STEPS = 20_000


def autoregressive(correlation, variance, count, seed=0):
    """A stationary series with autocorrelations ρ_k = correlation^k."""
    generator = np.random.default_rng(seed)
    kicks = np.sqrt(variance * (1 - correlation**2)) * generator.standard_normal(count)
    series = np.empty(count)
    series[0] = np.sqrt(variance) * generator.standard_normal()
    for step in range(1, count):
        series[step] = correlation * series[step - 1] + kicks[step]
    return series


def watched(series):
    warm_up = WarmUp(len(series))
    for value in series:
        warm_up.observe(float(value))
    return warm_up


def test_a_straight_line_has_no_noise_and_a_jagged_one_four_sixths():
    """(x_t − 2x_{t−1} + x_{t−2})²/6: 0 for a ramp, (±2)²/6 for 0, 1, 0, 1, …"""
    ramp, jagged = WarmUp(100), WarmUp(100)
    for step in range(50):
        assert ramp.observe_noise(7.0 * step) == pytest.approx(0.0, abs=1e-20)
        found = jagged.observe_noise(float(step % 2))
    assert found == pytest.approx(4.0 / 6.0)


def test_noise_is_told_from_what_moves_slowly():
    """White noise of variance 4 on a wave of amplitude 100: ν² = 4. The same from first differences would be off.

    The mean square of 10⁴ second differences, correlated over two steps, scatters by √(2·(1 + 2·(4/9 + 1/36)))/100 = 2.0 %.
    """
    generator = np.random.default_rng(3)
    wave = 100.0 * np.sin(np.arange(STEPS) / 20.0)
    series = wave + 2.0 * generator.standard_normal(STEPS)
    seen = watched(series).result
    assert seen.noise == pytest.approx(4.0, rel=4 * 0.020)
    second = series[STEPS // 2 :]
    # The twin: ½(x_t − x_{t−1})² takes the wave for noise.
    assert np.mean(np.diff(second) ** 2) / 2 > 4.0 * (1 + 4 * 0.020)
    # 5,000 is the variance of the wave.
    assert seen.variance == pytest.approx(5000.0, rel=0.02)
    assert seen.mean == pytest.approx(0.0, abs=3.0)


def test_statistics_of_a_known_series():
    """ρ_k = 0.9^k has τ = 1/2 + 0.9/0.1 = 9.5; noise on top is in neither variance nor τ.

    In 10⁴ steps there are 10⁴/(2·9.5) = 526 independent values: the variance scatters by √(2/526) = 6 %, τ, with Sokal's window
    of five, by √(2·(2·5 + 1)·9.5/10⁴) = 14 %. Noise is read too large by Var·(1 − ρ)(3 − ρ)/3 = 0.07·9, and the variance
    too small by as much.
    """
    noise = np.random.default_rng(5).standard_normal(STEPS)
    seen = watched(100.0 + autoregressive(0.9, 9.0, STEPS) + noise).result
    motion = 9.0 * 0.1 * 2.1 / 3
    assert seen.noise == pytest.approx(1.0 + motion, rel=0.08)
    assert seen.variance == pytest.approx(9.0 - motion, rel=4 * 0.06)
    assert seen.correlation_time == pytest.approx(9.5, rel=3 * 0.14)
    assert seen.mean == pytest.approx(100.0, abs=4 * 3 / np.sqrt(526))


def test_no_difference_spans_a_gap():
    warm_up = WarmUp(100)
    for value in (0.0, 0.0, 0.0):
        warm_up.observe_noise(value)
    warm_up.interrupt()
    for value in (1e6, 1e6, 1e6):
        assert warm_up.observe_noise(value) == 0.0


def by_hand(control, seen, visits):
    """A, B and residuals by a least-squares problem written out: bins' means, and a row that holds B to the warm-up's."""
    width = (control.edge - control.plateau) / (control.num_bins - 1)
    places = [0.0] + [control.plateau + (k + 0.5) * width for k in range(control.num_bins - 1)]
    grid = np.array([1 / control.scaling(place) for place in places])
    start = 50 * seen.correlation_time
    sums = {0: [start, start * seen.mean, start]}
    for place, value in visits:
        index = 0 if place <= control.plateau else 1 + int((place - control.plateau) / width)
        row = sums.setdefault(index, [0.0, 0.0, 0.0])
        for position, more in enumerate((1.0, value, 1 / control.scaling(place))):
            row[position] += more
    counts, totals, inverses = np.array(list(sums.values())).T
    means, inverses = totals / counts, inverses / counts
    ridge = 10 * seen.correlation_time * np.var(grid)
    rows = np.column_stack([np.ones_like(inverses), inverses]) * np.sqrt(counts)[:, None]
    rows = np.vstack([rows, [0.0, np.sqrt(ridge)]])
    aims = np.append(means * np.sqrt(counts), seen.variance * np.sqrt(ridge))
    (offset, gain), *_ = np.linalg.lstsq(rows, aims, rcond=None)
    shares = counts / (counts + 10 * seen.correlation_time)
    residuals = dict(zip(sums, (means - offset - gain * inverses) * shares, strict=True))
    return offset, gain, residuals, width


@pytest.mark.parametrize("correlation_time", [0.5, 2.0, 30.0])
def test_the_mean_is_a_fit_with_a_ridge_and_residuals_by_their_weight(correlation_time):
    """After 20 visits, where it is fitted, in bins and at places of all kinds; what it expects is that of the fit by hand."""
    control = CalibratedTempering(depth=0.85, num_bins=12)
    seen = Seen(mean=40.0, variance=6.0, noise=0.0, correlation_time=correlation_time, steps=2000)
    means = BinnedMeans(control, seen)
    generator = np.random.default_rng(2)
    places = [0.1, 0.45, 0.7, 0.7, 1.0, 1.3, 1.49, 1.2, 0.9, 0.3] * 2
    visits = [(place, float(60 + 30 * place + 5 * generator.standard_normal())) for place in places]
    for place, value in visits:
        means.deviation(place, 1.0 / control.scaling(place), value)
    offset, gain, residuals, width = by_hand(control, seen, visits)
    for place in (0.0, 0.7, 0.95, 1.3, 1.11):
        index = 0 if place <= control.plateau else 1 + int((place - control.plateau) / width)
        expected = offset + gain / control.scaling(place) + residuals.get(index, 0.0)
        # Every look is a visit too; fewer than 20 do not move the fit.
        assert means.deviation(place, 1.0 / control.scaling(place), 100.0) == pytest.approx(100.0 - expected, rel=1e-9)
    assert max(abs(left) for left in residuals.values()) > 0.1
    assert abs(gain - seen.variance) > 0.1


def test_before_any_visit_it_expects_what_the_warm_up_saw():
    """⟨U/T⟩ = mean + B(1/g − 1): for a quadratic U that is exact."""
    control = CalibratedTempering(depth=0.85)
    means = BinnedMeans(control, Seen(mean=40.0, variance=6.0, noise=0.0, correlation_time=3.0, steps=2000))
    for place in (0.2, 0.8, 1.4):
        expected = 40.0 + 6.0 * (1 / control.scaling(place) - 1.0)
        assert means.deviation(place, 1.0 / control.scaling(place), 50.0) == pytest.approx(50.0 - expected, rel=1e-9)


@pytest.mark.parametrize("depth", [1e-18, 1e-150])
def test_a_depth_that_is_nothing_has_a_mean_too(depth):
    """1/g is 1 in every bin, to the last bit, so that there is no line to fit."""
    control = CalibratedTempering(depth=depth)
    means = BinnedMeans(control, Seen(mean=40.0, variance=6.0, noise=0.0, correlation_time=3.0, steps=2000))
    assert [means.deviation(0.1 * step, 1.0, 41.0) for step in range(14)] == pytest.approx([1.0] * 14)
