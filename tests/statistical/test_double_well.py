"""The paper's preset on the double well: exploration is real, the invariance claim is not. Documented, not hidden."""

import math

import numpy as np
import pytest

from ctld_lab.sampling.double_well import KINETIC_TARGET, measure
from ctld_lab.sampling.targets import DoubleWell

# Section 6 of the spec, first item: kinetic temperature, ⟨x²⟩, TV of α and share of time at g = 1, at 4e5 steps; one run
# scatters by 0.02 to 0.05 in the first, and a second implementation differed by up to 0.08.
MEASURED = {1: (1.50, 0.941, 0.17, 0.39), 10: (1.70, 0.919, 0.16, 0.42), 100: (1.76, 0.922, 0.39, 0.65)}


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", MEASURED)
def test_the_papers_preset_is_hot(dimensions):
    result = measure(dimensions, 100_000, seed=1)
    kinetic, mean_square, variation, cold = MEASURED[dimensions]
    # A quarter of the steps scatter by twice as much.
    assert result["kinetic_temperature"] == pytest.approx(kinetic, abs=0.08 + 2 * result["kinetic_error"])
    assert result["mean_square"] == pytest.approx(mean_square, abs=0.005 + 3 * result["mean_square_error"])
    assert result["total_variation"] == pytest.approx(variation, abs=0.04)
    assert result["cold_share"] == pytest.approx(cold, abs=0.04)
    # Far from what an exact sampler reads.
    assert result["kinetic_temperature"] > KINETIC_TARGET + 5 * result["kinetic_error"]
    assert result["mean_square"] < result["mean_square_exact"] - 3 * result["mean_square_error"]
    # And yet it explores: 3.2 ± 0.4 crossings in 4e5 steps without tempering.
    assert result["crossings"] > 15


@pytest.mark.slow
def test_without_tempering_the_same_code_is_right():
    """The twin: depth 0 and no hills leave plain Langevin dynamics, which has the right temperature and hardly crosses."""
    result = measure(100, 40_000, seed=1, tempered=False)
    assert result["kinetic_error"] < 0.01
    assert result["kinetic_temperature"] == pytest.approx(KINETIC_TARGET, abs=4 * result["kinetic_error"])
    assert result["crossings"] < 10


def test_quadrature():
    """⟨x²⟩ = 0.9645, against an independent sum over a Gaussian proposal."""
    assert DoubleWell(1).mean_square() == pytest.approx(0.9645, abs=1e-4)
    x = np.random.default_rng(0).normal(0.0, 1.0, 400_000)
    weight = np.exp(-8.0 * (x * x - 1.0) ** 2 + 0.5 * x * x)
    estimate = (x * x * weight).sum() / weight.sum()
    error = math.sqrt(np.sum((weight * (x * x - estimate)) ** 2)) / weight.sum()
    assert estimate == pytest.approx(DoubleWell(1).mean_square(), abs=4 * error)


def test_gradient_is_that_of_the_potential():
    theta = np.array([0.7, -0.3, 1.1])
    potential = DoubleWell(3)
    _, gradient = potential(theta)
    for index in range(3):
        step = np.zeros(3)
        step[index] = 1e-6
        assert gradient[index] == pytest.approx(
            (potential(theta + step)[0] - potential(theta - step)[0]) / 2e-6, abs=1e-6
        )
