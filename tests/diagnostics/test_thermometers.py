"""Both thermometers on the exact discrete law of the Euler step on a Gaussian (spec, section 8)."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ctld.diagnostics import Estimate, configurational_temperature, kinetic_temperature

TEMPERATURE = 0.3
MOMENTUM = 0.5
NUM_DATA = 50
CURVATURE = 2.0  # of the mean loss
LR = 0.3
STEP_BIAS = 1 / (1 - LR * CURVATURE / (2 * (1 + MOMENTUM)))  # Var θ · N k/T = 1.25: the step is long on purpose


class Run(NamedTuple):
    readings: NDArray[np.float64]
    parameters: NDArray[np.float64]
    gradients: NDArray[np.float64]


def gaussian_run(*, noise: float = 1.0, steps: int = 5_000, dimension: int = 100, seed: int = 0) -> Run:
    """SGD with momentum and thermal noise on U = N k θ²/2, its noise variance multiplied by `noise`."""
    generator = np.random.default_rng(seed)
    scale = math.sqrt(noise * 2 * (1 - MOMENTUM) * LR * TEMPERATURE / NUM_DATA)
    spread = math.sqrt(TEMPERATURE / (NUM_DATA * CURVATURE))
    theta = spread * generator.standard_normal(dimension)
    velocity = math.sqrt(LR * TEMPERATURE / NUM_DATA) * generator.standard_normal(dimension)
    run = Run(np.empty(steps), np.empty((steps, dimension)), np.empty((steps, dimension)))
    for step in range(-100, steps):  # 100 steps, over 30 decay times, to forget the start
        previous, gradient = velocity, CURVATURE * theta
        velocity = MOMENTUM * velocity - LR * gradient + scale * generator.standard_normal(dimension)
        if step >= 0:
            middle = (velocity + previous) / 2
            run.readings[step] = middle @ middle * NUM_DATA / (LR * dimension)
            run.parameters[step], run.gradients[step] = theta, NUM_DATA * gradient
        theta = theta + velocity
    return run


@pytest.fixture(scope="module")
def right() -> Run:
    return gaussian_run()


@pytest.fixture(scope="module")
def hot() -> Run:
    return gaussian_run(noise=1.1)


def kinetic(run: Run) -> Estimate:
    return kinetic_temperature(run.readings, np.ones(len(run.readings)), temperature=TEMPERATURE)


def agrees(result: Estimate, truth: float) -> bool:
    """Within 4 standard errors, the error being 1 % or better: a t variable of 16 degrees exceeds 4 once in 1,000."""
    return result.standard_error < 0.01 * truth and abs(result.mean - truth) < 4 * result.standard_error


# 5,000 steps × 100 dimensions; a squared Gaussian has variance 2 and a step or two of memory: sqrt(2 × 3/5e5) = 0.35 %.


def test_kinetic_temperature_is_one(right: Run) -> None:
    assert agrees(kinetic(right), 1.0)


def test_twin_hot_noise_fails_the_kinetic_check(hot: Run) -> None:
    assert not agrees(kinetic(hot), 1.0)
    assert agrees(kinetic(hot), 1.1)


def test_configurational_temperature_sees_the_step_bias(right: Run) -> None:
    assert agrees(configurational_temperature(right.parameters, right.gradients), TEMPERATURE * STEP_BIAS)


def test_twin_hot_noise_fails_the_configurational_check(hot: Run) -> None:
    result = configurational_temperature(hot.parameters, hot.gradients)
    assert not agrees(result, TEMPERATURE * STEP_BIAS)
    assert agrees(result, 1.1 * TEMPERATURE * STEP_BIAS)


def test_configurational_temperature_does_not_depend_on_the_center() -> None:
    """U = (θ − μ)ᵀA(θ − μ)/2 in three dimensions, independent draws of exp(−U/T)."""
    mean, stiffness = np.array([4.0, -1.0, 0.5]), np.array([1.0, 3.0, 10.0])
    noise = np.random.default_rng(1).standard_normal((40_000, 3))
    parameters = mean + noise * np.sqrt(TEMPERATURE / stiffness)
    gradients = stiffness * (parameters - mean)
    centered = configurational_temperature(parameters, gradients, center=mean)
    # A mean of 3 squared Gaussians, independent: relative error sqrt(2/3/40000) = 0.4 %, known to 12 % by 34 batches.
    assert agrees(centered, TEMPERATURE)
    assert centered.standard_error == pytest.approx(TEMPERATURE * math.sqrt(2 / 3 / 40_000), rel=0.5)
    plain = configurational_temperature(parameters, gradients)
    assert abs(plain.mean - TEMPERATURE) < 4 * plain.standard_error
    assert plain.standard_error > centered.standard_error
    shifted = configurational_temperature(parameters, gradients, center=4.0)
    assert abs(shifted.mean - TEMPERATURE) < 4 * shifted.standard_error
    # Twin: the gradient of the mean loss instead of the sum, N = 2.
    assert not agrees(configurational_temperature(parameters, gradients / 2, center=mean), TEMPERATURE)


# Tempered runs: a temperature ratio that changes, and a selection of steps


def tempered_ratio(steps: int, period: int = 200) -> NDArray[np.float64]:
    """Cold for a quarter of each period, up to 4 in between."""
    phase = np.arange(steps) % period / period
    return np.asarray(np.where(phase < 0.25, 1.0, 1 + 3 * np.sin(np.pi * (phase - 0.25) / 0.75) ** 2))


def synthetic_readings(ratio: NDArray[np.float64], *, noise: float = 1.0, seed: int = 2) -> NDArray[np.float64]:
    """T · ratio · χ²/d with d = 20, independent steps."""
    chi = np.random.default_rng(seed).chisquare(20, ratio.shape) / 20
    return np.asarray(noise * TEMPERATURE * ratio * chi, dtype=np.float64)


@pytest.mark.parametrize("cold", [True, False])
def test_kinetic_temperature_of_a_tempered_run(cold: bool) -> None:
    ratio = tempered_ratio(40_000)
    # sqrt(2/20/10000) = 0.32 % from the cold quarter.
    result = kinetic_temperature(synthetic_readings(ratio), ratio, temperature=TEMPERATURE, cold=cold)
    assert agrees(result, 1.0)
    hot = kinetic_temperature(synthetic_readings(ratio, noise=1.1), ratio, temperature=TEMPERATURE, cold=cold)
    assert not agrees(hot, 1.0)


def test_cold_means_ratio_one() -> None:
    ratio = tempered_ratio(40_000)
    readings = np.where(ratio == 1, 2.0, 77.0)
    assert kinetic_temperature(readings, ratio, temperature=4.0) == Estimate(0.5, 0.0)
    # Single precision may leave a hair's breadth.
    single = torch.tensor(ratio, dtype=torch.float32) * (1 + 2e-7)
    assert kinetic_temperature(readings, single, temperature=4.0).mean == pytest.approx(0.5)


def test_no_tempering_is_the_plain_estimate() -> None:
    readings = synthetic_readings(np.ones(1_000))
    everything = kinetic_temperature(readings, np.ones(1_000), temperature=TEMPERATURE, cold=False)
    assert kinetic_temperature(readings, np.ones(1_000), temperature=TEMPERATURE) == everything


def test_configurational_temperature_of_cold_draws() -> None:
    ratio = tempered_ratio(40_000)
    parameters = np.random.default_rng(3).standard_normal((40_000, 20)) * np.sqrt(TEMPERATURE * ratio)[:, None]
    # As above 0.32 %. Twin: all draws together are hotter.
    assert agrees(configurational_temperature(parameters, parameters, temperature_ratio=ratio), TEMPERATURE)
    assert not agrees(configurational_temperature(parameters, parameters), TEMPERATURE)


def slow_readings(chains: int, steps: int) -> NDArray[np.float64]:
    """1 plus an autoregression with ρ = 0.98: correlated over 50 steps, as long as one cold visit."""
    noise = np.random.default_rng(4).standard_normal((steps, chains))
    noise[1:] *= math.sqrt(1 - 0.98**2)
    for step in range(1, steps):
        noise[step] += 0.98 * noise[step - 1]
    return 1 + 0.1 * noise.T


def test_error_of_selected_steps_is_their_scatter() -> None:
    chains = slow_readings(200, 8_000)
    ratio = tempered_ratio(8_000)
    results = [kinetic_temperature(chain, ratio, temperature=1.0) for chain in chains]
    scatter = np.std([result.mean for result in results], ddof=1)
    claim = math.sqrt(np.mean([result.standard_error**2 for result in results]))
    # The scatter of 200 is known to 5 %, the claim to 1.6 %. Batches of 400 steps are 8 correlation times long and,
    # with gaps of 150 steps between cold visits, understate the error by less than 5 %: 4 × 5.3 % + 5 % = 26 %.
    assert abs(scatter / claim - 1) < 0.26
    # Twin: 2,000 cold steps taken for independent.
    independent = np.mean([chain[ratio == 1].std(ddof=1) for chain in chains]) / math.sqrt(2_000)
    assert abs(scatter / independent - 1) > 0.26


def test_chains_are_pooled() -> None:
    chains = slow_readings(10, 1_000)
    ratio = np.tile(tempered_ratio(1_000), (10, 1))
    result = kinetic_temperature(chains, ratio, temperature=1.0)
    assert result.mean == pytest.approx(chains[ratio == 1].mean())
    stacked = configurational_temperature(np.ones((10, 1_000, 1)), chains[:, :, None], temperature_ratio=ratio)
    assert stacked == result


def test_tensors_and_lists_are_arrays(right: Run) -> None:
    readings, ratio = right.readings[:200], np.ones(200)
    reference = kinetic_temperature(readings, ratio, temperature=1.0)
    assert kinetic_temperature(torch.from_numpy(readings), ratio.tolist(), temperature=1.0) == reference
    parameters, gradients = right.parameters[:200], right.gradients[:200]
    reference = configurational_temperature(parameters, gradients)
    assert configurational_temperature(torch.from_numpy(parameters), gradients.tolist()) == reference


# Refusals

GOOD = np.ones(100)
ONE_VISIT = np.where(np.arange(10_000) < 100, 1.0, 2.0)


@pytest.mark.parametrize(
    ("readings", "ratio", "temperature", "message"),
    [
        ([], [], 1.0, "readings is empty"),
        (GOOD * math.nan, GOOD, 1.0, "readings has 100 values that are not finite"),
        (GOOD, GOOD * math.inf, 1.0, "temperature_ratio has 100 values"),
        (GOOD, GOOD[:99], 1.0, r"\(1, 99\) and \(1, 100\)"),
        (GOOD, 0.15 * GOOD, 1.0, r"never below 1; got 0\.15"),
        (GOOD, 2 * GOOD, 1.0, r"none of 100 steps.*lowest is 2\.0.*cold=False"),
        (GOOD, GOOD, 0.0, r"temperature must be positive and finite; got 0\.0"),
        (GOOD, GOOD, math.nan, "got nan"),
        (GOOD[:20], GOOD[:20], 1.0, "20 draws are too few"),
        (ONE_VISIT, ONE_VISIT, 1.0, "100 selected draws lie in about 1.0 of 22 batches"),
    ],
)
def test_bad_readings_are_refused(readings: Any, ratio: Any, temperature: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kinetic_temperature(readings, ratio, temperature=temperature)


DRAWS = np.ones((100, 3))


@pytest.mark.parametrize(
    ("parameters", "gradients", "options", "message"),
    [
        (DRAWS[:0], DRAWS[:0], {}, "parameters is empty"),
        (DRAWS[:, 0], DRAWS[:, 0], {}, r"shape \(draws, d\)"),
        (DRAWS, DRAWS[:, :2], {}, r"\(100, 3\) and \(100, 2\)"),
        (DRAWS, DRAWS * math.nan, {}, "gradients has 300 values"),
        (DRAWS, DRAWS, {"center": [0.0, 1.0]}, "d = 3 entries; got 2"),
        (DRAWS, DRAWS, {"center": math.nan}, "center has 1 values"),
        (DRAWS, DRAWS, {"temperature_ratio": GOOD[:50]}, "same"),
        (DRAWS, DRAWS, {"temperature_ratio": 3 * GOOD}, "none of 100"),
    ],
)
def test_bad_parameters_are_refused(parameters: Any, gradients: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configurational_temperature(parameters, gradients, **options)
