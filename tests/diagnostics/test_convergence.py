"""R-hat and effective sample sizes by ArviZ, where the answers are known."""

import math
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from ctld.diagnostics import convergence, effective_sample_size, to_arviz

CHAINS, QUANTITIES = 4, 50


def autoregressions(draws: int, correlation: float) -> NDArray[np.float64]:
    """Stationary, of variance 1, in the shape (chains, draws, quantities)."""
    series = np.random.default_rng(1).standard_normal((CHAINS, draws, QUANTITIES))
    series[:, 1:] *= math.sqrt(1 - correlation**2)
    for step in range(1, draws):
        series[:, step] += correlation * series[:, step - 1]
    return series


@pytest.mark.parametrize(("draws", "correlation"), [(2000, 0.0), (5000, 0.7)])
def test_an_autoregression(draws: int, correlation: float) -> None:
    """ESS = n(1 − ρ)/(1 + ρ).

    With a window of about 2τ lags, τ = (1 + ρ)/(1 − ρ) = 5.7, one estimate scatters by sqrt(2·(4τ + 1)/n) = 5 % (4 % at
    ρ = 0), the mean of fifty by 0.7 %; cutting the sum where it turns negative leaves out negative noise only, which makes
    it 2 % too low. 4 × 0.7 % + 2 % = 5 %.
    """
    series = autoregressions(draws, correlation)
    found = convergence({"x": series})["x"]
    law = CHAINS * draws * (1 - correlation) / (1 + correlation)
    assert found.r_hat.shape == found.ess_bulk.shape == found.ess_tail.shape == (QUANTITIES,)
    assert found.r_hat.max() < 1.01
    assert found.ess_bulk.mean() == pytest.approx(law, rel=0.05)
    # Indicators of the tails are correlated less than the series itself.
    assert 0.9 * law < found.ess_tail.mean() < CHAINS * draws
    # Twin: as if the draws were independent, or twice as correlated as they are.
    assert found.ess_bulk.mean() != pytest.approx(0.5 * law, rel=0.05)
    # The library's own estimate, Geyer's too but without ranks and halves.
    own = np.mean([effective_sample_size(series[:, :, quantity]) for quantity in range(QUANTITIES)])
    assert found.ess_bulk.mean() == pytest.approx(own, rel=0.02)


def test_chains_that_disagree() -> None:
    series = autoregressions(1000, 0.0)
    series[0, :, 0] += 1.0  # in the place: B/W = 1/4, R-hat = sqrt(1 + 1/4) = 1.12 without ranks
    series[0, :, 1] *= 5.0  # in the width, which the folded ranks see
    series[:, :, 2] += np.linspace(0, 3, 1000)[:, np.newaxis].T  # in time, which the halves see
    found = convergence({"x": series})["x"]
    assert (found.r_hat[:3] > 1.05).all()
    assert (found.r_hat[3:] < 1.01).all()
    assert (found.ess_bulk[[0, 2]] < 100).all()


def test_several_quantities_and_shapes() -> None:
    series = autoregressions(100, 0.0)
    found = convergence({"scalar": series[:, :, 0], "matrix": series.reshape(CHAINS, 100, 5, 10)})
    assert found["scalar"].r_hat.shape == ()
    assert found["matrix"].r_hat.shape == (5, 10)
    assert found["matrix"].r_hat[0, 0] == found["scalar"].r_hat


def test_draws_as_arviz_has_them() -> None:
    series = autoregressions(100, 0.0)
    made = to_arviz({"x": series, "y": series[:, :, 0]})
    assert np.array_equal(made.posterior["x"].values, series)
    assert made.posterior["y"].dims == ("chain", "draw")


@pytest.mark.parametrize("shape", [(100,), (1, 100), (4, 3)])
def test_too_little(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"x has shape .*; give \(chains, draws, ...\), with two chains and four draws"
    ):
        convergence({"x": np.zeros(shape)})


def test_a_chain_that_diverged_is_named() -> None:
    series = autoregressions(100, 0.0)
    series[2, 7, 1] = np.nan
    for call in (convergence, to_arviz):
        with pytest.raises(ValueError, match=r"x has 1 values that are not finite, the first nan at index \(2, 7, 1\)"):
            call({"x": series})


def test_without_arviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    assert convergence({"x": autoregressions(100, 0.0)})["x"].r_hat.shape == (QUANTITIES,)
    with pytest.raises(ImportError, match="python -m pip install arviz"):
        to_arviz({"x": autoregressions(100, 0.0)})


def test_the_numbers_are_those_of_arviz() -> None:
    """Draws that are correlated, alternate, repeat themselves or disagree; R-hat to rounding, ESS within 1 %.

    ArviZ makes the sequence of pairs monotone by the mean of the pair before, which differs by less.
    """
    arviz = pytest.importorskip("arviz")
    series = autoregressions(400, 0.8)[:, :, :6]
    series[:, :, 1] = autoregressions(400, -0.6)[:, :, 1]
    series[:, :, 2] = np.round(series[:, :, 2])
    series[0, :, 3] += 1.0
    series[1, :, 4] *= 4.0
    data = arviz.convert_to_dataset({"x": series[:, :, :5]})
    series[:, :, 5] = 3.0
    found = convergence({"x": series})["x"]
    np.testing.assert_allclose(found.r_hat[:5], arviz.rhat(data)["x"].values, rtol=1e-12)
    for method, own in (("bulk", found.ess_bulk), ("tail", found.ess_tail)):
        np.testing.assert_allclose(own[:5], arviz.ess(data, method=method)["x"].values, rtol=0.01)
    assert (found.r_hat[5], found.ess_bulk[5]) == (1.0, CHAINS * 400)
