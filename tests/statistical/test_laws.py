"""The exact discrete laws of the Langevin step on a Gaussian (spec of the method, section 8).

Mean loss k θ²/2 per element, x = lr·k, μ = momentum, at fixed α (T → T/g(α)). The recursion

    v ← μ v − x θ + sqrt(2(1 − μ) lr T/(N g)) ε,   θ ← θ + v

is linear, and its stationary covariance follows from one step:
    Var θ = (T/(g N k))/(1 − x/(2(1 + μ))),    N Var v/lr = (T/g)(2/(1 + μ))/(1 − x/(2(1 + μ))),
    N Var((v_t + v_{t−1})/2)/lr = T/g exactly, the thermometer.

Elements are independent chains. Each test compares a mean over elements and steps with its law, in units of the
batch-means standard error, which must be below 1 %; the twin has 1.1 times the noise variance and must fail.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld import CTLD, Tempering, diagnostics
from ctld.tempering import TemperatureScaling

NUM_DATA, LR, ELEMENTS, BURN_IN, STEPS = 50.0, 0.04, 4000, 150, 800
# Some 60 comparisons below: at 4.2 standard errors (batch means of 10 to 50 batches have wider tails than a normal; t with
# 12 degrees of freedom gives p = 0.001) and fixed seeds, a sound sampler would fail one with a chance of about 5 %.
THRESHOLD = 4.2


def sample(curvature, momentum, temperature, alpha, seed, noise_factor=1.0):
    """Series over steps of θ², N v²/lr and the thermometer, each a mean over elements, and θᵀ∇U/d."""
    ratio = 1.0 / TemperatureScaling().value(alpha)
    generator = torch.Generator().manual_seed(seed)
    deviation = math.sqrt(temperature * ratio / (NUM_DATA * curvature))
    theta = nn.Parameter(deviation * torch.randn(ELEMENTS, generator=generator, dtype=torch.float64))
    optimizer = CTLD(
        [theta],
        LR,
        momentum,
        num_data=NUM_DATA,
        exploration_steps=BURN_IN + STEPS,
        temperature=noise_factor * temperature,
        tempering=Tempering(alpha=alpha, alpha_momentum=0.0, mass=1e30),  # too heavy to move
        seed=seed,
    )
    rows = []
    for _ in range(BURN_IN + STEPS):
        theta.grad = curvature * theta.detach()
        loss = 0.5 * curvature * theta.detach().square().sum()
        configurational = NUM_DATA * curvature * theta.detach().square().mean().item()
        optimizer.step(loss=loss)
        momentum_square = NUM_DATA * optimizer.state[theta]["momentum_buffer"].square().mean().item()
        rows.append(
            (
                theta.detach().square().mean().item(),
                momentum_square,
                optimizer.last.kinetic_temperature,
                configurational,
            )
        )
    assert optimizer.last.temperature_ratio == pytest.approx(ratio)
    return np.array(rows[BURN_IN:]).T


def scores(series, laws):
    """Distance of each mean from its law in standard errors."""
    result = []
    for values, law in zip(series, laws, strict=True):
        estimate = diagnostics.estimate(values)
        assert estimate.standard_error < 0.01 * law
        result.append(abs(estimate.mean - law) / estimate.standard_error)
    return result


def laws(curvature, momentum, temperature, alpha):
    hot = temperature / TemperatureScaling().value(alpha)
    swelling = 1.0 / (1.0 - LR * curvature / (2.0 * (1.0 + momentum)))
    return [hot / (NUM_DATA * curvature) * swelling, hot * 2.0 / (1.0 + momentum) * swelling, hot, hot * swelling]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("momentum", [0.0, 0.8, 0.9])
@pytest.mark.parametrize("alpha", [0.0, -0.95, 1.4])
def test_discrete_law(alpha, momentum, temperature):
    curvature = 20.0  # x = 0.8: far from the limit of small steps, where the laws would be indistinguishable
    arguments = (curvature, momentum, temperature, alpha)
    assert max(scores(sample(*arguments, seed=1), laws(*arguments))) < THRESHOLD


@pytest.mark.parametrize("momentum", [0.0, 0.8, 0.9])
def test_discrete_law_twin(momentum):
    """1.1 times the noise variance fails every one of the four."""
    arguments = (20.0, momentum, 1.0, 0.0)
    assert min(scores(sample(*arguments, seed=1, noise_factor=1.1), laws(*arguments))) > THRESHOLD


def test_the_limit_of_small_steps_is_not_the_law():
    """What a test against T/(N k) would miss: the step-size bias is real and known."""
    arguments = (20.0, 0.8, 1.0, 0.0)
    theta_square = sample(*arguments, seed=1)[0]
    assert scores([theta_square], [1.0 / (NUM_DATA * 20.0)])[0] > 10 * THRESHOLD


@pytest.mark.filterwarnings("ignore::ctld.TemperatureWarning")  # the twins are hot, and the thermometers say so
class TestNoiseCompensation:
    """Gradients k θ + s ξ: the kick brings variance lr·s² into v/√lr; compensation takes as much from the noise."""

    CURVATURE, MOMENTUM = 0.25, 0.8

    def temperatures(self, *, gradient_noise, compensate):
        injected = 2.0 * (1.0 - self.MOMENTUM) / NUM_DATA
        deviation = math.sqrt(gradient_noise * injected / LR)
        generator = torch.Generator().manual_seed(6)
        spread = math.sqrt(1.0 / (NUM_DATA * self.CURVATURE))
        theta = nn.Parameter(spread * torch.randn(ELEMENTS, generator=generator, dtype=torch.float64))
        optimizer = CTLD(
            [theta],
            LR,
            self.MOMENTUM,
            num_data=NUM_DATA,
            exploration_steps=2000,
            temperature=1.0,
            tempering=Tempering(alpha_momentum=0.0, mass=1e30),
            noise_compensation=compensate,
            seed=2,
        )
        readings = []
        for _ in range(300 + 1200):
            noise = torch.randn(ELEMENTS, generator=generator, dtype=torch.float64)
            theta.grad = self.CURVATURE * theta.detach() + deviation * noise
            optimizer.step(loss=1.0)
            readings.append(optimizer.last.kinetic_temperature)
        return diagnostics.estimate(readings[300:]), optimizer

    def test_heat_of_the_minibatches_is_taken_out(self):
        estimate, optimizer = self.temperatures(gradient_noise=0.5, compensate=True)
        # The estimate is (1 + x) times too large: the kick by the noise of one step moves θ, and so the next gradient, by
        # k·lr times that noise. Half of the heat comes from gradients, so the run is cooler by x/2 = 0.5 %; x²/(4(1 − μ²))
        # for the rest of the motion is negligible, and so is the heat from clamping 1 % of the elements.
        assert estimate.mean == pytest.approx(1.0 - 0.005, abs=THRESHOLD * estimate.standard_error)
        assert estimate.standard_error < 0.005
        assert optimizer.clamped_share < 0.01

    def test_twin_without_compensation_is_hot(self):
        estimate, optimizer = self.temperatures(gradient_noise=0.5, compensate=False)
        assert estimate.mean == pytest.approx(1.5, abs=0.03)
        assert optimizer.clamped_share == 0.0

    def test_the_samplers_own_motion_is_not_mistaken_for_noise(self):
        """A running variance of the gradient cooled a full-batch Gaussian to 0.68 of its variance and less."""
        estimate, _ = self.temperatures(gradient_noise=0.0, compensate=True)
        assert estimate.mean == pytest.approx(1.0, abs=THRESHOLD * estimate.standard_error)

    def test_more_heat_than_noise_is_clamped_and_counted(self):
        estimate, optimizer = self.temperatures(gradient_noise=3.0, compensate=True)
        assert optimizer.clamped_share > 0.95
        assert estimate.mean == pytest.approx(3.0, rel=0.05)


def test_without_depth_and_hills_it_is_sghmc():
    """v ← μ v − lr ∇ + N(0, 2(1 − μ) lr T/N), θ ← θ + v (Chen et al. 2014), element by element with the same noise."""
    from ctld import noise

    theta = nn.Parameter(torch.linspace(-1, 1, 7, dtype=torch.float64))
    optimizer = CTLD(
        [theta],
        0.1,
        0.7,
        num_data=20.0,
        exploration_steps=50,
        temperature=0.5,
        tempering=Tempering.paper(0.07, 50, depth=0.0, height_factor=0.0),
        seed=5,
    )
    position = theta.detach().clone()
    velocity = noise.normal(5, 0, noise.INITIAL_MOMENTA, 7, dtype=torch.float64) * math.sqrt(0.5 * 0.1 / 20)
    for step in range(50):
        theta.grad = theta.detach() ** 3
        optimizer.step(loss=float(step))
        epsilon = noise.normal(5, step, noise.parameter_stream(0), 7, dtype=torch.float64)
        velocity = 0.7 * velocity - 0.1 * position**3 + math.sqrt(2 * 0.3 * 0.1 * 0.5 / 20) * epsilon
        position = position + velocity
        torch.testing.assert_close(theta.detach(), position, rtol=1e-12, atol=1e-14)
    assert optimizer.last.temperature_ratio == 1.0
