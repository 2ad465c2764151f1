"""Each method beside its paper's rule (spec section 7), written out in numpy with the paper's letters and the same noise.

N data, U = N·(mean loss + prior), f = ∇U, ḡ the gradient of the mean loss, z standard normal numbers. Two tensors in one
vector, so that each must have the noise of its own stream; an anharmonic loss, so that no two rules agree by chance.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld import (
    CSGHMC,
    CTLD,
    EAMSGD,
    EASGD,
    PSGLD,
    SGHMC,
    SGLD,
    SGNHT,
    AnnealSGD,
    Langevin,
    Santa,
    SimulatedAnnealing,
    Tempering,
    noise,
    schedules,
)
from targets import Classification, train

LR, MOMENTUM, N, T, DECAY, SEED, STEPS = 0.04, 0.6, 30.0, 0.7, 0.1, 9, 40
SHAPES = [(3, 2), (4,)]
START = np.linspace(-1.0, 1.5, 10)
PARTS = [slice(0, 6), slice(6, 10)]
COMMON = {"num_data": N, "weight_decay": DECAY, "seed": SEED}


def mean_gradient(theta):
    """ḡ of the mean loss Σ(θ⁴/4 − θ²/2), without the prior."""
    return theta**3 - theta


def potential_gradient(theta):
    """f."""
    return N * (mean_gradient(theta) + DECAY * theta)


def normal(step, stream_of):
    numbers = [
        noise.normal(SEED, *stream_of(step, index), math.prod(shape), dtype=torch.float64)
        for index, shape in enumerate(SHAPES)
    ]
    return torch.cat(numbers).numpy()


def z(step):
    return normal(step, lambda step, index: (step, noise.parameter_stream(index)))


def z_start():
    return normal(0, lambda _, index: (index, noise.INITIAL_MOMENTA))


def parameters():
    return [nn.Parameter(torch.tensor(START[part]).reshape(shape)) for part, shape in zip(PARTS, SHAPES, strict=True)]


def path(cls, *, groups=None, lrs=None, **options):
    """θ after each step of ours, with an lr for each step if need be, and the optimizer."""
    tensors = parameters()
    params = tensors if groups is None else [{"params": [p]} | group for p, group in zip(tensors, groups, strict=True)]
    optimizer = cls(params, LR, **options)
    seen = []
    for step in range(STEPS):
        if lrs is not None:
            optimizer.param_groups[0]["lr"] = lrs[step]
        for p in tensors:
            p.grad = mean_gradient(p.detach())
        optimizer.step(loss=1.0)
        seen.append(torch.cat([p.detach().reshape(-1) for p in tensors]).numpy())
    return np.array(seen), optimizer


# Each reference takes the factor on its noise, which is 1 but in the twins that must fail.


def sgld(tilt):
    """ε_t = a(b + t)^−γ."""
    b, gamma = 7.0, 0.6
    a = 2 * LR / N * b**gamma
    theta, seen = START, []
    for t in range(STEPS):
        epsilon = a * (b + t) ** -gamma
        theta = theta - epsilon / 2 * potential_gradient(theta) + tilt * math.sqrt(epsilon * T) * z(t)
        seen.append(theta)
    return path(SGLD, schedule=schedules.welling_teh(b, gamma), temperature=T, **COMMON)[0], np.array(seen)


def psgld(tilt):
    """V of the gradient with its decay, as in the authors' code (and in torch's RMSprop); the print has the loss alone."""
    alpha, lam, epsilon = 0.9, 0.1, 2 * LR / N
    theta, v, seen = START, np.zeros(10), []
    for t in range(STEPS):
        f = potential_gradient(theta)
        v = alpha * v + (1 - alpha) * (f / N) ** 2
        g = 1 / (lam + np.sqrt(v))
        theta = theta - epsilon / 2 * g * f + tilt * np.sqrt(epsilon * g * T) * z(t)
        seen.append(theta)
    return path(PSGLD, smoothing=alpha, epsilon=lam, temperature=T, **COMMON)[0], np.array(seen)


def sghmc(tilt):
    """With an estimate b̂ of the gradients' own noise."""
    a, eta, b_hat = 1 - MOMENTUM, LR / N, 0.1
    theta, v, seen = START, math.sqrt(T * eta) * z_start(), []
    for t in range(STEPS):
        v = (1 - a) * v - eta * potential_gradient(theta) + tilt * math.sqrt(2 * (a * T - b_hat) * eta) * z(t)
        theta = theta + v
        seen.append(theta)
    return path(SGHMC, momentum=MOMENTUM, noise_estimate=b_hat, temperature=T, **COMMON)[0], np.array(seen)


def sgnht(tilt):
    """Two groups, each with a thermostat over its own elements."""
    groups = [{}, {"lr": 0.5 * LR, "momentum": 0.8}]
    theta, v = START.copy(), np.zeros(10)
    eta, a = np.array([LR, 0.5 * LR]) / N, 1 - np.array([MOMENTUM, 0.8])
    xi, seen = a.copy(), []
    for i, part in enumerate(PARTS):
        v[part] = math.sqrt(T * eta[i]) * z_start()[part]
    for t in range(STEPS):
        for i, part in enumerate(PARTS):
            v[part] = (1 - xi[i]) * v[part] - eta[i] * potential_gradient(theta[part])
            v[part] += tilt * math.sqrt(2 * a[i] * T * eta[i]) * z(t)[part]
            theta[part] += v[part]
            xi[i] += (v[part] ** 2).mean() - eta[i] * T
        seen.append(theta.copy())
    ours, optimizer = path(SGNHT, groups=groups, momentum=MOMENTUM, temperature=T, **COMMON)
    frictions = [float(group["thermostat"]) for group in optimizer.param_groups]
    return np.column_stack([ours, np.tile(frictions, (STEPS, 1))]), np.column_stack([seen, np.tile(xi, (STEPS, 1))])


def langevin(tilt):
    """Under an lr that changes at every step, and is zero at some: r goes on."""
    lrs = [0.0 if step % 9 == 4 else LR * (1.2 + math.sin(step)) for step in range(STEPS)]
    theta, r, seen = START, math.sqrt(T) * z_start(), []
    for t in range(STEPS):
        eta = math.sqrt(lrs[t] / N)
        if eta:
            gamma = (1 - MOMENTUM) / eta
            r = (1 - eta * gamma) * r - eta * potential_gradient(theta) + tilt * math.sqrt(2 * eta * gamma * T) * z(t)
            theta = theta + eta * r
        seen.append(theta)
    return path(Langevin, lrs=lrs, momentum=MOMENTUM, temperature=T, **COMMON)[0], np.array(seen)


def brownian(temperature, tilt):
    theta, seen = START, []
    for t in range(STEPS):
        epsilon = 2 * LR / N
        theta = theta - epsilon / 2 * potential_gradient(theta) + tilt * math.sqrt(epsilon * temperature(t)) * z(t)
        seen.append(theta)
    return np.array(seen)


def logarithmic_annealing(tilt):
    ours, _ = path(SimulatedAnnealing, cooling="logarithmic", temperature=T, **COMMON)
    return ours, brownian(lambda t: T / math.log(2 + t), tilt)


def polynomial_annealing(tilt):
    ours, _ = path(SimulatedAnnealing, cooling="polynomial", temperature=T, **COMMON)
    return ours, brownian(lambda t: T / (1 + t) ** 0.55, tilt)


def annealing_by_a_function(tilt):
    """With a factor on the step size beside it, as for SGLD."""
    ours, _ = path(SimulatedAnnealing, cooling=lambda t: 1 / (3 + t), schedule=schedules.constant(1.0), **COMMON)
    return ours, brownian(lambda t: 1 / (3 + t), tilt)


def anneal_sgd(tilt):
    theta, buffer, seen = START, np.zeros(10), []
    for t in range(STEPS):
        deviation = math.sqrt(0.3 / (1 + t) ** 0.55)
        g_bar = mean_gradient(theta) + tilt * deviation * z(t)
        buffer = MOMENTUM * buffer + g_bar + DECAY * theta
        theta = theta - LR * buffer
        seen.append(theta)
    options = {key: value for key, value in COMMON.items() if key != "num_data"}
    return path(AnnealSGD, momentum=MOMENTUM, noise_scale=0.3, **options)[0], np.array(seen)


def santa(tilt, integrator, noise_variance="sde", exploration=25):
    """Exploration, then refinement. The first half drift of SSS is left out, and the one after the step is taken with the
    one before the next: the gradient is due between them, where the next g is not yet known."""
    sigma, lam, eta, c = 0.95, 1e-8, LR / N, 5.0
    theta, v, u, xi = START, np.zeros(10), math.sqrt(eta) * z_start(), math.sqrt(eta) * c * np.ones(10)
    g_before, seen = None, []
    for t in range(1, STEPS + 1):
        exploring = t <= exploration
        beta = 1.0 * t**0.5
        f = potential_gradient(theta)
        v = sigma * v + (1 - sigma) / N**2 * f**2
        g = 1 / np.sqrt(lam + np.sqrt(v))
        g_before = g if g_before is None else g_before
        variance = 2 * eta ** (1.5 if noise_variance == "sde" else 1.0) * g_before / beta
        kick = -eta * g * f + (tilt * np.sqrt(variance) * z(t - 1) if exploring else 0.0)
        if integrator == "euler":
            xi = xi + (u**2 - eta / beta if exploring else 0.0)
            u = (1 - xi) * u + kick
            theta = theta + g * u
        else:
            xi = xi + ((u**2 - eta / beta) / 2 if exploring else 0.0)
            u = np.exp(-xi / 2) * u
            u = u + kick
            u = np.exp(-xi / 2) * u
            xi = xi + ((u**2 - eta / beta) / 2 if exploring else 0.0)
            theta = theta + g * u / 2
            theta = theta + g * u / 2
        g_before = g
        seen.append(theta)
    options = {"integrator": integrator, "noise_variance": noise_variance, "exploration_steps": exploration}
    return path(Santa, **options, **COMMON)[0], np.array(seen)


def csghmc(tilt):
    """Two cycles of ⌈39/2⌉ = 20 steps, noise in the last two fifths of each."""
    steps, cycles, share = 39, 2, 0.6
    theta, v, seen = START, math.sqrt(T * LR / N) * z_start(), []
    for k in range(1, STEPS + 1):
        length = math.ceil(steps / cycles)
        place = (k - 1) % length / length
        lr = LR / 2 * (math.cos(math.pi * place) + 1)
        eta, a = lr / N, 1 - MOMENTUM
        v = (1 - a) * v - eta * potential_gradient(theta)
        if place >= share:
            v = v + tilt * math.sqrt(2 * a * T * eta) * z(k - 1)
        theta = theta + v
        seen.append(theta)
    options = {"num_steps": steps, "num_cycles": cycles, "exploration_share": share, "momentum": MOMENTUM}
    return path(CSGHMC, **options, temperature=T, **COMMON)[0], np.array(seen)


NOISY = {
    "sgld": sgld,
    "psgld": psgld,
    "sghmc": sghmc,
    "sgnht": sgnht,
    "langevin": langevin,
    "logarithmic_annealing": logarithmic_annealing,
    "polynomial_annealing": polynomial_annealing,
    "annealing_by_a_function": annealing_by_a_function,
    "anneal_sgd": anneal_sgd,
    "santa_euler": lambda tilt: santa(tilt, "euler"),
    "santa_sss": lambda tilt: santa(tilt, "sss"),
    # As printed, Euler has no equilibrium: a few steps, before it diverges.
    "santa_euler_print": lambda tilt: santa(tilt, "euler", "print", exploration=6),
    "santa_sss_print": lambda tilt: santa(tilt, "sss", "print"),
    "csghmc": csghmc,
}


@pytest.mark.parametrize("method", NOISY)
def test_rule(method):
    ours, theirs = NOISY[method](1.0)
    assert np.isfinite(theirs).all()
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", NOISY)
def test_rule_with_other_noise_would_be_seen(method):
    """The twin: a variance larger by 0.2 %."""
    ours, theirs = NOISY[method](1.001)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_defaults_are_those_of_the_papers():
    one = [nn.Parameter(torch.ones(2))]
    group = PSGLD(one, 0.1, num_data=N).param_groups[0]
    assert (group["smoothing"], group["epsilon"]) == (0.99, 1e-5)
    assert AnnealSGD(one, 0.1).noise_variance(9) == pytest.approx(0.01 / 10**0.55)
    assert EASGD(one, 0.1).elasticity == EAMSGD(one, 0.1).elasticity == 0.9
    assert (EASGD(one, 0.1).defaults["momentum"], EAMSGD(one, 0.1).defaults["momentum"]) == (0.0, 0.9)
    santa = Santa(one, 0.1, num_data=N, exploration_steps=1)
    assert (santa.integrator, santa.noise_variance) == ("sss", "sde")
    for cls in (SGLD, PSGLD, SGHMC, SGNHT, Langevin):
        assert cls(one, 0.1, num_data=N).temperature == 1.0


@pytest.mark.parametrize(("cls", "momentum"), [(EASGD, 0.0), (EAMSGD, MOMENTUM)])
def test_elastic_averaging_of_one_worker(cls, momentum):
    """Nesterov's step in his own form, y = x + δv being where the gradient is taken; the springs pull y."""
    tau, a = 4, 0.9
    y, v, center, seen = START, np.zeros(10), START, []
    for t in range(STEPS):
        gradient = mean_gradient(y)
        if t % tau == 0:
            suggestion = a * (y - center)
            y, center = y - suggestion, center + suggestion
        x = y - momentum * v
        v = momentum * v - LR * (gradient + DECAY * y)
        y = x + v + momentum * v
        seen.append(y)
    options = {"momentum": momentum} if momentum else {}
    ours, optimizer = path(cls, period=tau, weight_decay=DECAY, **options)
    np.testing.assert_allclose(ours, np.array(seen), rtol=1e-11, atol=1e-13)
    flat = torch.cat([part.reshape(-1) for part in optimizer.center()]).numpy()
    np.testing.assert_allclose(flat, center, rtol=1e-11, atol=1e-13)
    assert [part.shape for part in optimizer.center()] == SHAPES
    assert optimizer.workers == 1


class TestNoiseless:
    """At temperature 0, and without springs, what is left is torch's SGD."""

    @staticmethod
    def paths(build, **options):
        problem, twin = Classification(), Classification()
        ours = build([{"params": problem.model[0].parameters()}, {"params": problem.model[2].parameters(), "lr": 0.03}])
        groups = [{"params": twin.model[0].parameters()}, {"params": twin.model[2].parameters(), "lr": 0.03}]
        theirs = torch.optim.SGD(groups, 0.1, weight_decay=0.01, **options)
        train(problem, ours, range(60))
        train(twin, theirs, range(60))
        return problem.flat(), twin.flat()

    @pytest.mark.parametrize("cls", [SGHMC, Langevin])
    @pytest.mark.parametrize("maximize", [False, True])
    def test_with_momentum(self, cls, maximize):
        options = {"num_data": 96, "temperature": 0.0, "weight_decay": 0.01, "maximize": maximize}
        ours, theirs = self.paths(lambda groups: cls(groups, 0.1, 0.9, **options), momentum=0.9, maximize=maximize)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("cls", [SGHMC, Langevin, SGNHT])
    def test_momenta_start_at_zero(self, cls):
        optimizer = cls(parameters(), 0.1, num_data=96, temperature=0.0)
        assert not any(state["momentum_buffer"].any() for state in optimizer.state.values())

    @pytest.mark.parametrize("cls", [SGLD, SimulatedAnnealing])
    def test_without_momentum(self, cls):
        options = {"num_data": 96, "temperature": 0.0, "weight_decay": 0.01}
        ours, theirs = self.paths(lambda groups: cls(groups, 0.1, **options))
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_anneal_sgd_to_the_last_bit(self, momentum):
        options = {"noise_scale": 0.0, "weight_decay": 0.01}
        ours, theirs = self.paths(lambda groups: AnnealSGD(groups, 0.1, momentum, **options), momentum=momentum)
        assert torch.equal(ours, theirs)

    @pytest.mark.parametrize(("cls", "options"), [(EASGD, {}), (EAMSGD, {"momentum": 0.9, "nesterov": True})])
    def test_elastic_averaging_to_the_last_bit(self, cls, options):
        ours, theirs = self.paths(lambda groups: cls(groups, 0.1, elasticity=0.0, weight_decay=0.01), **options)
        assert torch.equal(ours, theirs)

    def test_csghmc_is_sgd_under_its_cosine(self):
        """In velocities: v ← momentum·v − lr_k ∇, as its authors have it; torch's buffer would carry lr_k along."""
        options = {"num_steps": STEPS, "num_cycles": 1, "temperature": 0.0, "num_data": N, "weight_decay": DECAY}
        ours, _ = path(CSGHMC, momentum=MOMENTUM, **options)
        theta, v = START, np.zeros(10)
        for t in range(STEPS):
            lr = LR / 2 * (math.cos(math.pi * t / STEPS) + 1)
            v = MOMENTUM * v - lr * potential_gradient(theta) / N
            theta = theta + v
            np.testing.assert_allclose(ours[t], theta, rtol=1e-11, atol=1e-13)


def test_langevin_is_ctld_with_alpha_held_at_zero():
    """To the last bit, under an lr that changes."""
    lrs = [LR * (1.2 + math.sin(step)) for step in range(STEPS)]
    options = COMMON | {"momentum": MOMENTUM, "temperature": T, "lrs": lrs}
    tempering = Tempering(alpha=0.0, alpha_momentum=0.0, mass=1e30)
    theirs, _ = path(CTLD, exploration_steps=STEPS, tempering=tempering, **options)
    assert (path(Langevin, **options)[0] == theirs).all()


def test_langevin_is_sghmc_at_constant_lr():
    options = COMMON | {"momentum": MOMENTUM, "temperature": T}
    np.testing.assert_allclose(path(Langevin, **options)[0], path(SGHMC, **options)[0], rtol=1e-10, atol=1e-12)


class TestPhases:
    def test_csghmc_says_when_to_collect(self):
        optimizer = CSGHMC(parameters(), LR, num_data=N, num_steps=20, num_cycles=2, exploration_share=0.7)
        said = []
        for _ in range(25):
            said.append(optimizer.sampling)
            optimizer.step()
        # Cycles of ten steps, of which three sample; and they go on after num_steps.
        assert said == ([False] * 7 + [True] * 3) * 2 + [False] * 5

    def test_santa_says_whether_it_explores(self):
        """Counted in steps, not in tensors, of which there are two: a burn-in counter per tensor is a known defect."""
        optimizer = Santa(parameters(), LR, num_data=N, exploration_steps=3)
        said = []
        for _ in range(5):
            said.append(optimizer.exploring)
            optimizer.step()
        assert said == [True] * 3 + [False] * 2

    def test_santa_without_noise_draws_none(self):
        """exploration_steps=0 refines from the start: two seeds part only by their first momenta."""
        ends = []
        for seed in (1, 2):
            tensors = parameters()
            optimizer = Santa(tensors, LR, num_data=N, exploration_steps=0, seed=seed)
            for state in optimizer.state.values():
                state["momentum_buffer"].zero_()
            for _ in range(5):
                for p in tensors:
                    p.grad = mean_gradient(p.detach())
                optimizer.step()
            ends.append(tensors[0].detach().clone())
        assert torch.equal(*ends)


@pytest.mark.parametrize(("cls", "options"), [(PSGLD, {}), (Santa, {"exploration_steps": 10})])
def test_a_preconditioner_can_be_held(cls, options):
    """While `adapt` is off in a group, the law is that of a constant preconditioner; elsewhere V goes on."""
    tensors = parameters()
    optimizer = cls([{"params": [tensors[0]], "adapt": False}, {"params": [tensors[1]]}], LR, num_data=N, **options)
    squares = [optimizer.state[p]["square_average"].fill_(0.5).clone() for p in tensors]
    for _ in range(3):
        for p in tensors:
            p.grad = mean_gradient(p.detach())
        optimizer.step()
    assert torch.equal(optimizer.state[tensors[0]]["square_average"], squares[0])
    assert not torch.equal(optimizer.state[tensors[1]]["square_average"], squares[1])
