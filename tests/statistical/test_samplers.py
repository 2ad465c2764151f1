"""The law of every sampler on a Gaussian in five dimensions (spec, section 8), and what upsets it.

Mean loss (θ − m)ᵀK(θ − m)/2, so U/T has the covariance T(NK)⁻¹. On a Gaussian a method with a constant step is a linear
recursion s ← A s + noise of covariance Q, s = θ − m or (θ − m, v). Its stationary covariance solves C = A C Aᵀ + Q exactly,
at any stable step, and that is what is tested: x = lr·k reaches 0.8, where the limit of small steps is wrong by up to 67 %.

Rows of one parameter are independent chains that start in their law. They are read in 50 blocks; the mean of a block over
all steps is one batch, so batches are independent whatever the autocorrelation. Every standard error is below 1 % of its
scale (the standard deviation for a mean, the variances for a covariance, T for a temperature) and known to 1/√98 = 10 %.
Each law has a twin at 1.1 times the noise variance, which the same check must find wrong.
"""

import functools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import brentq
from torch import nn

from ctld import CSGHMC, PSGLD, SGHMC, SGLD, SGNHT, AnnealSGD, Langevin, SimulatedAnnealing, diagnostics, schedules

# Some 500 comparisons with errors of 49 degrees of freedom: a sound sampler fails one of them with a chance of 2 %.
THRESHOLD = 4.5
BLOCKS = 50
NUM_DATA, LR = 5.0, 0.1
MEAN = np.array([1.0, -2.0, 0.5, 3.0, -1.0])
_AXIS = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
_MIRROR = np.eye(5) - 2.0 * np.outer(_AXIS, _AXIS) / _AXIS.dot(_AXIS)
CURVATURE = _MIRROR @ np.diag([1.0, 2.0, 3.0, 5.0, 8.0]) @ _MIRROR  # K: anisotropic, correlations up to 0.34
PRECONDITIONER = np.array([0.5, 0.7, 0.9, 1.1, 0.8])  # G of pSGLD


# ---- laws ----


def first_order(temperature, lr=LR, preconditioner=None):
    """A and Q of θ ← θ − lr G K (θ − m) + N(0, 2 lr G T/N)."""
    scale = np.eye(5) if preconditioner is None else np.diag(preconditioner)
    return np.eye(5) - lr * scale @ CURVATURE, 2.0 * lr * temperature / NUM_DATA * scale


def second_order(momentum, variance, lr=LR):
    """A and Q of v ← momentum·v − lr K (θ − m) + N(0, variance), θ ← θ + v, for the state (θ − m, v)."""
    below = np.hstack((-lr * CURVATURE, momentum * np.eye(5)))
    return np.vstack((below + np.eye(5, 10), below)), variance * np.kron(np.ones((2, 2)), np.eye(5))


def injected(momentum, temperature, lr=LR):
    return 2.0 * (1.0 - momentum) * lr * temperature / NUM_DATA


def thermostatted(momentum, temperature, heat):
    """ξ and the covariance of SGNHT.

    ξ is one number for all chains and hardly fluctuates: with d = 5·chains = 15,000 elements its relative variance, and what
    that does to the law, are O(1/d). At rest ⟨vᵀv⟩/d = lr T/N, which determines ξ; with it the recursion is linear.
    """

    def law(friction):
        variance = injected(momentum, temperature) * (1.0 + heat)
        return solve_discrete_lyapunov(*second_order(1.0 - friction, variance))

    def excess(friction):
        return np.trace(law(friction)[5:, 5:]) / 5.0 - LR * temperature / NUM_DATA

    friction = brentq(excess, 1e-3, 0.95)
    return friction, law(friction)


# ---- methods ----


@dataclass(frozen=True)
class Method:
    """A sampler and its covariance at a temperature; `heat` is what noisy gradients bring, in units of what is injected."""

    create: Callable  # of theta, the common options, heat
    law: Callable  # of temperature, heat
    momentum: float | None = None
    velocity_unit: float = 1.0  # what multiplies the buffer to give v


def options(temperature, seed, lr=LR):
    return {"lr": lr, "num_data": NUM_DATA, "temperature": temperature, "seed": seed}


def psgld_at_rest(theta, common, heat):
    optimizer = PSGLD([theta], adapt=False, **common)
    square = (1.0 / torch.from_numpy(PRECONDITIONER) - optimizer.defaults["epsilon"]).square()
    optimizer.state[theta]["square_average"].copy_(square.expand(theta.shape))
    return optimizer


def annealing_at_rest(theta, common, heat):
    """With a callable, `temperature` is not used."""
    return SimulatedAnnealing([theta], cooling=lambda step: common["temperature"], **(common | {"temperature": 77.0}))


def brownian(create, preconditioner=None):
    return Method(
        create, lambda temperature, heat: solve_discrete_lyapunov(*first_order(temperature, LR, preconditioner))
    )


def langevin(optimizer, momentum, velocity_unit=1.0, **more):
    """SGHMC and what equals it at constant lr."""
    return Method(
        lambda theta, common, heat: optimizer([theta], momentum=momentum, **common, **more),
        lambda temperature, heat: solve_discrete_lyapunov(
            *second_order(momentum, injected(momentum, temperature) * (1.0 + heat))
        ),
        momentum,
        velocity_unit,
    )


def sghmc_told(momentum):
    """SGHMC that knows the gradient noise: b̂ = lr N s²/2 takes its variance, lr² s² = 2 b̂ lr/N, off what is injected."""

    def create(theta, common, heat):
        estimate = heat * (1.0 - momentum) * common["temperature"]
        return SGHMC([theta], momentum=momentum, noise_estimate=estimate, **common)

    return Method(create, lambda temperature, heat: langevin(SGHMC, momentum).law(temperature, 0.0), momentum)


def nose_hoover(momentum):
    def create(theta, common, heat):
        optimizer = SGNHT([theta], momentum=momentum, **common)
        optimizer.param_groups[0]["thermostat"].fill_(thermostatted(momentum, common["temperature"], heat)[0])
        return optimizer

    return Method(create, lambda temperature, heat: thermostatted(momentum, temperature, heat)[1], momentum)


METHODS = {
    "SGLD": brownian(lambda theta, common, heat: SGLD([theta], **common)),
    "pSGLD": brownian(psgld_at_rest, PRECONDITIONER),
    "simulated annealing": brownian(annealing_at_rest),
    "SGHMC": langevin(SGHMC, 0.8),
    "Langevin": langevin(Langevin, 0.8, math.sqrt(LR)),
    # One cycle of 10⁸ steps, all of it sampling: in 500 steps lr falls by 6·10⁻¹¹ of itself.
    "cSGHMC": langevin(CSGHMC, 0.8, num_steps=10**8, num_cycles=1, exploration_share=0.0),
    "SGNHT": nose_hoover(0.9),
}
NOISY = {"SGHMC": langevin(SGHMC, 0.95), "SGHMC, told": sghmc_told(0.95), "SGNHT": nose_hoover(0.95)}
SECOND_ORDER = [name for name, method in METHODS.items() if method.momentum is not None]


# ---- sampling and checks ----


class Moments:
    """Series over steps, per block, of the mean of θ − m, of its products, and of the kinetic temperature."""

    def __init__(self):
        self.rows = {"mean": [], "product": [], "kinetic": []}

    def add(self, deviation, kinetic=None):
        blocks = deviation.view(BLOCKS, -1, deviation.shape[1])
        self.rows["mean"].append(blocks.mean(1))
        self.rows["product"].append(blocks.mT @ blocks / blocks.shape[1])
        if kinetic is not None:
            self.rows["kinetic"].append(kinetic.view(BLOCKS, -1).mean(1))

    def estimate(self, name, *place):
        """Mean and error of one component; one batch per block."""
        series = np.array([row[(slice(None), *place)].numpy() for row in self.rows[name]]).T
        return diagnostics.estimate(series, num_batches=BLOCKS)


def score(estimate, law, scale):
    assert estimate.standard_error < 0.01 * scale
    return (estimate.mean - law) / estimate.standard_error


def scores(moments, covariance):
    """Distances from the law in standard errors: five means, ten covariances, five variances."""
    deviation = np.sqrt(np.diag(covariance))
    means = [score(moments.estimate("mean", i), 0.0, deviation[i]) for i in range(5)]
    products = [
        score(moments.estimate("product", i, j), covariance[i, j], deviation[i] * deviation[j])
        for i in range(5)
        for j in range(i)
    ]
    variances = [score(moments.estimate("product", i, i), covariance[i, i], covariance[i, i]) for i in range(5)]
    return np.abs(means + products), np.array(variances)


def kinetic_law(covariance):
    """⟨N vᵀv/(lr d)⟩."""
    return NUM_DATA / LR * np.trace(covariance[5:, 5:]) / 5.0


def gradient_deviation(momentum, temperature, heat):
    """s of gradients ∇ + s ξ: the kick brings the variance lr² s², which is to be `heat` times what is injected."""
    return math.sqrt(heat * injected(momentum, temperature)) / LR


@functools.cache
def sample(method, temperature, noise_factor=1.0, heat=0.0, *, seed, chains=3000, burn_in=100, steps=400):
    """Run a method. At `noise_factor` 1 it starts in its law; otherwise the burn-in takes it to the other one."""
    generator = torch.Generator().manual_seed(seed)
    covariance = method.law(temperature, heat)
    root = torch.from_numpy(np.linalg.cholesky(covariance))
    start = torch.randn(chains, len(root), generator=generator, dtype=torch.float64) @ root.mT
    mean, curvature = torch.from_numpy(MEAN), torch.from_numpy(CURVATURE)
    theta = nn.Parameter(mean + start[:, :5])
    optimizer = method.create(theta, options(noise_factor * temperature, seed), heat / noise_factor)
    buffer = optimizer.state[theta].get("momentum_buffer")
    if buffer is not None:
        buffer.copy_(start[:, 5:] / method.velocity_unit)
    spread = gradient_deviation(method.momentum, temperature, heat) if heat else 0.0
    moments = Moments()
    for step in range(burn_in + steps):
        theta.grad = (theta.detach() - mean) @ curvature
        if heat:
            theta.grad += spread * torch.randn(theta.shape, generator=generator, dtype=torch.float64)
        optimizer.step()
        if step >= burn_in:
            kinetic = None if buffer is None else buffer.square() * (NUM_DATA / LR * method.velocity_unit**2)
            moments.add(theta.detach() - mean, kinetic)
    return moments


TEMPERATURES = pytest.mark.parametrize("temperature", [1.0, 0.5])


def gaussian(name, temperature, noise_factor=1.0):
    # A seed for each: with the same numbers a linear method has the same scores at every temperature.
    seed = zlib.crc32(f"{name} {temperature}".encode())
    return sample(METHODS[name], temperature, noise_factor, seed=seed)


class TestGaussian:
    """Constant steps. SGNHT's blocks are not quite independent: its one ξ holds their sum, so that their scatter overstates
    the error of the kinetic temperature and, little, of the rest; the twin is found out all the same.

    Burn-in of the twins: the slowest mode, x = 0.05 of pSGLD, forgets by exp(−2·0.05·100) = 5·10⁻⁵.
    """

    @TEMPERATURES
    @pytest.mark.parametrize("name", METHODS)
    def test_mean_and_covariance(self, name, temperature):
        others, variances = scores(gaussian(name, temperature), METHODS[name].law(temperature, 0.0)[:5, :5])
        assert max(others.max(), np.abs(variances).max()) < THRESHOLD

    @TEMPERATURES
    @pytest.mark.parametrize("name", METHODS)
    def test_twin_with_more_noise_fails(self, name, temperature):
        """Every variance by itself. SGNHT's twin has the temperature × 1.1: it would take out the noise alone, see below."""
        moments = gaussian(name, temperature, noise_factor=1.1)
        _, variances = scores(moments, METHODS[name].law(temperature, 0.0)[:5, :5])
        assert variances.min() > THRESHOLD

    @TEMPERATURES
    @pytest.mark.parametrize("name", SECOND_ORDER)
    def test_kinetic_temperature(self, name, temperature):
        law = kinetic_law(METHODS[name].law(temperature, 0.0))
        assert abs(score(gaussian(name, temperature).estimate("kinetic"), law, law)) < THRESHOLD
        twin = gaussian(name, temperature, noise_factor=1.1)
        assert score(twin.estimate("kinetic"), law, law) > THRESHOLD

    @pytest.mark.parametrize("name", ["SGLD", "SGHMC", "SGNHT"])
    def test_the_limit_of_small_steps_would_be_missed(self, name):
        _, variances = scores(gaussian(name, 1.0), np.linalg.inv(NUM_DATA * CURVATURE))
        assert np.abs(variances).max() > THRESHOLD


class TestClosedForms:
    """The recursions above, solved numerically, against what the docstrings of the methods say."""

    STIFF = LR * np.linalg.eigvalsh(CURVATURE)  # x of each mode

    def spectrum(self, matrix):
        _, axes = np.linalg.eigh(CURVATURE)
        return np.diag(axes.T @ matrix @ axes)

    def test_first_order(self):
        expected = 0.5 * LR / NUM_DATA / self.STIFF / (1.0 - self.STIFF / 2.0)
        np.testing.assert_allclose(self.spectrum(solve_discrete_lyapunov(*first_order(0.5))), expected)

    def test_second_order(self):
        covariance = METHODS["SGHMC"].law(0.5, 0.0)
        swelling = 1.0 / (1.0 - self.STIFF / (2.0 * 1.8))
        np.testing.assert_allclose(self.spectrum(covariance[:5, :5]), 0.5 * LR / NUM_DATA / self.STIFF * swelling)
        assert kinetic_law(covariance) == pytest.approx(0.5 * 2.0 / 1.8 * swelling.mean())

    def test_thermostat(self):
        """In each mode Var v = (2x/(2 − ξ)) Var θ; ⟨vᵀv⟩ is held, so to first order in ξ the variances of θ are 1 − ξ/2."""
        friction, covariance = thermostatted(0.9, 1.0, 0.0)
        ratio = self.spectrum(covariance[5:, 5:]) / self.spectrum(covariance[:5, :5])
        np.testing.assert_allclose(ratio, 2.0 * self.STIFF / (2.0 - friction))
        assert kinetic_law(covariance) == pytest.approx(1.0)
        configurational = np.trace(NUM_DATA * CURVATURE @ covariance[:5, :5]) / 5.0
        assert configurational == pytest.approx(1.0 - friction / 2.0)


# ---- gradient noise ----


def configurational(moments):
    """(θ − m)ᵀ∇U/d, whose law is T for small steps: what the temperature is where it matters."""
    series = np.array(
        [np.einsum("bij,ij->b", row.numpy(), NUM_DATA * CURVATURE) / 5.0 for row in moments.rows["product"]]
    )
    return diagnostics.estimate(series.T, num_batches=BLOCKS)


class TestGradientNoise:
    """Gradients K(θ − m) + s ξ of which the sampler is not told; they bring HEAT times the variance that it injects.

    momentum = 0.95, so that SGNHT's bias −ξ/2 stays small: ξ = 0.103, 0.05·(1 + HEAT) and some swelling, hence −5.2 %.
    """

    HEAT = 0.75

    def temperature(self, name, noise_factor=1.0):
        moments = sample(NOISY[name], 1.0, noise_factor, self.HEAT, seed=21, burn_in=200)
        covariance = NOISY[name].law(1.0, self.HEAT)
        others, variances = scores(moments, covariance[:5, :5])
        kinetic = score(moments.estimate("kinetic"), kinetic_law(covariance), kinetic_law(covariance))
        return configurational(moments).mean, np.array([*others, *np.abs(variances), abs(kinetic)]), variances

    def test_sghmc_drifts_by_the_heat_it_is_not_told_of(self):
        """Noise is noise: the law is that of T·(1 + HEAT), to the last covariance."""
        hot, distances, _ = self.temperature("SGHMC")
        assert distances.max() < THRESHOLD
        # x/(2(1 + 0.95)) of the five modes swells the mean by 11 % more.
        assert hot == pytest.approx(1.75 * np.mean(1.0 / (1.0 - TestClosedForms.STIFF / 3.9)), rel=0.01)

    def test_sghmc_told_is_right(self):
        right, distances, _ = self.temperature("SGHMC, told")
        assert distances.max() < THRESHOLD
        assert right == pytest.approx(np.mean(1.0 / (1.0 - TestClosedForms.STIFF / 3.9)), rel=0.01)

    def test_sgnht_holds_the_temperature(self):
        held, distances, _ = self.temperature("SGNHT")
        assert distances.max() < THRESHOLD
        assert held == pytest.approx(1.0 - thermostatted(0.95, 1.0, self.HEAT)[0] / 2.0, rel=0.01)
        assert held == pytest.approx(1.0, abs=0.06)

    @pytest.mark.parametrize("name", NOISY)
    def test_twins_fail(self, name):
        """The temperature × 1.1 and the gradients as they were: SGHMC, not told, is hotter by 0.1 in 1.75 only."""
        *_, variances = self.temperature(name, noise_factor=1.1)
        assert variances.min() > THRESHOLD


# ---- steps and temperatures that change ----


def cyclical(temperature):
    """Two cycles of 40 steps; the first half of each has no noise."""
    for step in range(80):
        position = step % 40 / 40
        lr = LR * 0.5 * (math.cos(math.pi * position) + 1.0)
        yield second_order(0.8, injected(0.8, temperature, lr) * (position >= 0.5), lr)


SCHEDULED = {
    "cSGHMC": (
        lambda theta, temperature: CSGHMC(
            [theta], momentum=0.8, num_steps=80, num_cycles=2, exploration_share=0.5, **options(temperature, 31)
        ),
        cyclical,
    ),
    "SGLD, Welling and Teh": (
        lambda theta, temperature: SGLD([theta], schedule=schedules.welling_teh(5.0, 0.8), **options(temperature, 31)),
        lambda temperature: [first_order(temperature, LR * (1.0 + t / 5.0) ** -0.8) for t in range(60)],
    ),
    "annealing, logarithmic": (
        lambda theta, temperature: SimulatedAnnealing([theta], cooling="logarithmic", **options(temperature, 31)),
        lambda temperature: [first_order(temperature / math.log(2.0 + t)) for t in range(30)],
    ),
    "annealing, polynomial": (
        lambda theta, temperature: SimulatedAnnealing([theta], cooling="polynomial", **options(temperature, 31)),
        lambda temperature: [first_order(temperature / (1.0 + t) ** 0.55) for t in range(30)],
    ),
}


class TestSchedules:
    """No stationary law, but an exact one at every step: mean ← A mean, C ← A C Aᵀ + Q. Chains start in one point, at rest.

    Chains are independent draws at the last step; 40,000 of them have a standard error of √(2/40,000) = 0.7 %.
    """

    CHAINS, OFFSET = 40_000, 0.5

    def law(self, recursions):
        mean, covariance = np.full(5, self.OFFSET), np.zeros((5, 5))
        for transition, noise in recursions:
            if len(transition) > len(mean):
                mean, covariance = np.pad(mean, (0, 5)), np.pad(covariance, (0, 5))
            mean, covariance = transition @ mean, transition @ covariance @ transition.T + noise
        return mean[:5], covariance[:5, :5]

    def scores(self, name, noise_factor):
        create, recursions = SCHEDULED[name]
        center, curvature = torch.from_numpy(MEAN), torch.from_numpy(CURVATURE)
        theta = nn.Parameter((center + self.OFFSET).expand(self.CHAINS, 5).clone())
        optimizer = create(theta, noise_factor)
        for value in optimizer.state[theta].values():
            value.zero_()
        steps = list(recursions(1.0))
        for _ in steps:
            theta.grad = (theta.detach() - center) @ curvature
            optimizer.step()
        mean, covariance = self.law(steps)
        moments = Moments()
        moments.add(theta.detach() - center - torch.from_numpy(mean))
        return scores(moments, covariance)

    @pytest.mark.parametrize("name", SCHEDULED)
    def test_law_at_the_end(self, name):
        others, variances = self.scores(name, 1.0)
        assert max(others.max(), np.abs(variances).max()) < THRESHOLD

    @pytest.mark.parametrize("name", SCHEDULED)
    def test_twin_fails(self, name):
        assert self.scores(name, 1.1)[1].min() > THRESHOLD


# ---- pSGLD's preconditioner ----


class TestAdaptingPreconditioner:
    """Without Γ the small-step law of dθ = −G∇U dt + sqrt(2GT) dW is exp(−U/T)/G while V follows θ, G = 1/|∇|: on a Gaussian
    |θ| exp(−U/T), twice the variance. Small steps do not help; the faster V is beside θ, the nearer it comes.

    Elements are uncoupled, N k Var θ should be T = 1. Once V rests, each element has a G of its own, and the exact law
    1/(1 − lr·G·k/2).
    """

    CURVATURES = torch.tensor([1.0, 2.0, 3.0, 5.0, 8.0], dtype=torch.float64)

    def readings(self, smoothing, lr, chains=2000):
        """N k θ² per block while V adapts, then at rest, and the law at rest; 600 steps to relax before each."""
        generator = torch.Generator().manual_seed(5)
        spread = (NUM_DATA * self.CURVATURES).rsqrt()
        theta = nn.Parameter(spread * torch.randn(chains, 5, generator=generator, dtype=torch.float64))
        optimizer = PSGLD([theta], smoothing=smoothing, **options(1.0, 41, lr))
        square = optimizer.state[theta]["square_average"]
        square.copy_((self.CURVATURES / NUM_DATA).expand(chains, 5))
        estimates = []
        for adapt in (True, False):
            optimizer.param_groups[0]["adapt"] = adapt
            moments = Moments()
            for step in range(1500):
                theta.grad = self.CURVATURES * theta.detach()
                optimizer.step()
                if step >= 600:
                    moments.add(theta.detach() / spread)
            estimates.append([moments.estimate("product", i, i) for i in range(5)])
        stiff = lr * self.CURVATURES / (square.sqrt() + 1e-5)
        return *estimates, (1.0 / (1.0 - stiff / 2.0)).mean(0).tolist()

    def test_the_law_is_wrong_while_it_moves_and_right_when_it_rests(self):
        """With the default smoothing: 1.10 to 1.13 while it moves, of which the step explains 0.02 to 0.07."""
        moving, resting, law = self.readings(smoothing=0.99, lr=0.02)
        assert all(
            score(estimate, expected, 1.0) > 2.0 * THRESHOLD for estimate, expected in zip(moving, law, strict=True)
        )
        assert all(
            abs(score(estimate, expected, 1.0)) < THRESHOLD for estimate, expected in zip(resting, law, strict=True)
        )

    def test_towards_twice_the_variance(self):
        """1.91 to 1.95: V still has half of its weight on gradients before the last."""
        moving, *_ = self.readings(smoothing=0.5, lr=0.01)
        assert all(1.8 < estimate.mean < 2.05 for estimate in moving)


# ---- AnnealSGD ----


class TestAnnealSGD:
    """Gradient ∇ + N(0, s_t²), s_t² = noise_scale/(1 + t)^0.55: −Δθ/lr − ∇ is the noise itself, without momentum."""

    def scores(self, noise_factor):
        theta = nn.Parameter(torch.ones(20_000, dtype=torch.float64))
        optimizer = AnnealSGD([theta], 0.01, noise_scale=0.3 * noise_factor, seed=9)
        readings = []
        for step in range(200):
            before = theta.detach().clone()
            theta.grad = 2.0 * before
            optimizer.step()
            noise = (before - theta.detach()) / 0.01 - 2.0 * before
            readings.append(noise.square().mean().item() / (0.3 / (1.0 + step) ** 0.55))
        # Independent draws: √(2/(20,000·50)) = 0.14 % for a quarter of the steps, each of which has to be right.
        return [score(diagnostics.estimate(readings[i : i + 50], num_batches=50), 1.0, 1.0) for i in range(0, 200, 50)]

    def test_variance_of_the_noise(self):
        assert max(map(abs, self.scores(1.0))) < THRESHOLD

    def test_twin_fails(self):
        assert min(self.scores(1.1)) > THRESHOLD

    def test_momentum_sums_noisy_gradients(self):
        """The buffer after t steps without a gradient is Σ μ^(t − i) ξ_i, of variance Σ μ^(2(t − i)) s_i²."""
        theta = nn.Parameter(torch.zeros(100_000, dtype=torch.float64))
        optimizer = AnnealSGD([theta], 0.01, 0.9, noise_scale=1.0, seed=9)
        for _ in range(30):
            theta.grad = torch.zeros_like(theta)
            optimizer.step()
        law = sum(0.9 ** (2 * (29 - i)) / (1.0 + i) ** 0.55 for i in range(30))
        squares = optimizer.state[theta]["momentum_buffer"].square().numpy()
        assert abs(score(diagnostics.estimate(squares, num_batches=BLOCKS), law, law)) < THRESHOLD
