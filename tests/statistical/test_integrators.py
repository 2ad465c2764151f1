"""BAOAB and UBU beside Euler: SGD where there is no noise; the exact law on a Gaussian; the same state and refusals."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld import CTLD, NonFiniteError, Tempering, diagnostics
from targets import Classification, equal, saved, train

# Steps are large here, to see what they do, and the thermometers say so.
pytestmark = pytest.mark.filterwarnings("ignore::ctld.TemperatureWarning")

COLD = 1e-40  # no noise that a float64 could show
NUM_DATA, CURVATURE, ELEMENTS, BURN_IN, STEPS = 50.0, 25.0, 4000, 300, 1000


def build(problem, **options):
    options = {"temperature": COLD, "seed": 5, "exploration_steps": 12, "integrator": "baoab"} | options
    return CTLD(problem.model.parameters(), 0.05, 0.8, weight_decay=1e-2, num_data=96, **options)


@pytest.mark.parametrize(
    ("integrator", "momentum"), [("baoab", 0.0), ("baoab", 0.5), ("baoab", 0.9), ("ubu", 0.5), ("ubu", 0.9)]
)
def test_without_noise_it_is_sgd_through_the_change_of_phase(integrator, momentum):
    problem, twin = Classification(), Classification()
    optimizer = build(problem, integrator=integrator)
    sgd = torch.optim.SGD(twin.model.parameters(), 0.05, momentum, weight_decay=1e-2)
    optimizer.param_groups[0]["momentum"] = momentum
    with torch.no_grad():
        for state in optimizer.state.values():
            state["momentum_buffer"].zero_()
    for step in range(24):
        train(problem, optimizer, range(step, step + 1))
        train(twin, sgd, range(step, step + 1))
        torch.testing.assert_close(problem.flat(), twin.flat(), rtol=1e-12, atol=1e-12)


def test_with_another_stride_it_would_not_be():
    """The twin: Euler's lr in place of k²(1 + μ)/2, as the print of BAOAB with h² = lr/N has it."""
    problem, twin = Classification(), Classification()
    train(problem, build(problem, tempering=Tempering.constant()), range(12))
    optimizer = build(twin)
    optimizer.param_groups[0]["lr"] *= (1 + 0.8) / 2
    train(twin, optimizer, range(12))
    assert (problem.flat() - twin.flat()).abs().max() > 1e-3


def sample(integrator, momentum, lr, *, ratio=1.0, noise_factor=1.0):
    """Series over steps of N k θ² and of the thermometer, both of which should be T·ratio."""
    generator = torch.Generator().manual_seed(3)
    deviation = math.sqrt(ratio / (NUM_DATA * CURVATURE))
    theta = nn.Parameter(deviation * torch.randn(ELEMENTS, generator=generator, dtype=torch.float64))
    optimizer = CTLD(
        [theta], lr, momentum, num_data=NUM_DATA, exploration_steps=BURN_IN + STEPS, temperature=noise_factor,
        tempering=Tempering.constant(ratio), integrator=integrator, seed=8,
    )  # fmt: skip
    rows = []
    for _ in range(BURN_IN + STEPS):
        theta.grad = CURVATURE * theta.detach()
        configurational = NUM_DATA * CURVATURE * theta.detach().square().mean().item()
        optimizer.step(loss=0.5 * CURVATURE * theta.detach().square().sum())
        rows.append((configurational, optimizer.last.kinetic_temperature))
    return np.array(rows[BURN_IN:]).T


@pytest.mark.parametrize(("momentum", "lr"), [(0.9, 0.01), (0.9, 0.08), (0.0, 0.04), (0.5, 0.1)])
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_baoab_is_exact_on_a_gaussian(momentum, lr, ratio):
    """lr·k from 0.25 to 2.5, where Euler is off by up to 1/(1 − 2.5/3) = 6."""
    for series in sample("baoab", momentum, lr, ratio=ratio):
        found = diagnostics.estimate(series)
        assert found.standard_error < 0.01 * ratio
        assert abs(found.mean - ratio) < 4.2 * found.standard_error


def ubu_law(momentum, step):
    """N k Var θ/T of UBU where the gradient is taken, by its linear recursion; `step` = lr·k."""
    length = -math.log(momentum)
    kick = math.sqrt(length / (1 - momentum))
    reach = kick * (1 - momentum) / length
    wander = kick**2 * (2 * length - 3 + 4 * momentum - momentum**2) / length**2
    together = kick * (1 - momentum) ** 2 / length
    move = np.array([[1 - reach * kick * step, reach], [-momentum * kick * step, momentum]])
    noise = np.array([[wander, together], [together, 1 - momentum**2]])
    covariance = np.linalg.solve(np.eye(4) - np.kron(move, move), noise.reshape(-1)).reshape(2, 2)
    return covariance[0, 0] * step, covariance[1, 1]


@pytest.mark.parametrize(("momentum", "lr"), [(0.9, 0.01), (0.9, 0.04), (0.5, 0.04)])
def test_ubu_has_the_law_of_its_recursion(momentum, lr):
    assert ubu_law(0.95, 0.01)[0] == pytest.approx(1 + 0.01 / 12, abs=1e-4)  # what the docstring says
    for series, law in zip(sample("ubu", momentum, lr), ubu_law(momentum, lr * CURVATURE), strict=True):
        found = diagnostics.estimate(series)
        assert found.standard_error < 0.01
        assert abs(found.mean - law) < 4.2 * found.standard_error


def test_the_law_would_notice_a_tenth_more_noise_and_euler():
    for series in sample("baoab", 0.9, 0.08, noise_factor=1.1):
        found = diagnostics.estimate(series)
        assert abs(found.mean - 1.0) > 4.2 * found.standard_error
    found = diagnostics.estimate(sample("euler", 0.9, 0.08)[0])
    law = 1.0 / (1.0 - 0.08 * CURVATURE / (2 * 1.9))
    assert abs(found.mean - law) < 4.2 * found.standard_error
    assert found.mean > 1.5


def anharmonic_bias(integrator, step_size, duration):
    """Of ⟨θ²⟩ in the well θ²/2 + cos 2θ at γ = 1: 40,000 chains, as elements; and its standard error."""
    places = np.linspace(-9.0, 9.0, 20_001)
    weights = np.exp(-0.5 * places**2 - np.cos(2.0 * places))
    exact = (places**2 * weights).sum() / weights.sum()
    momentum = math.exp(-step_size)
    lr = {
        "euler": step_size**2,
        "baoab": step_size**2 * (1 + momentum) / 2,
        "ubu": step_size * (1 - momentum),
    }[integrator]
    generator = torch.Generator().manual_seed(1)
    theta = nn.Parameter(0.8 * torch.randn(40_000, generator=generator, dtype=torch.float64))
    steps, burn_in = round(duration / step_size), round(10 / step_size)
    optimizer = CTLD(
        [theta], lr, momentum, num_data=1.0, exploration_steps=steps, temperature=1.0, tempering=Tempering.constant(),
        integrator=integrator, seed=1, check_gradients=False,
    )  # fmt: skip
    series = []
    for _ in range(steps):
        x = theta.detach()
        theta.grad = x - 2.0 * torch.sin(2.0 * x)
        series.append(float(x.square().mean()))
        optimizer.step(loss=0.0)
    found = diagnostics.estimate(np.array(series[burn_in:]))
    return found.mean - exact, found.standard_error


@pytest.mark.slow
def test_order_on_an_anharmonic_well():
    """The bias of positions falls as η²: halving the step takes it to a quarter, or less where η⁴ has a part.

    On a Gaussian the laws above say the same: lr·k/(2(1 + μ)) for Euler, none for BAOAB, lr·k/12 for UBU, where lr ∝ η².
    """
    found = {}
    for integrator in ("euler", "baoab", "ubu"):
        (coarse, coarse_error), (fine, fine_error) = (anharmonic_bias(integrator, h, 1200.0) for h in (0.4, 0.2))
        found[integrator] = coarse, fine
        assert coarse_error < 4e-4
        assert abs(fine) < 0.25 * abs(coarse) + 3 * math.hypot(fine_error, 0.25 * coarse_error)
    # The twin: a bias of first order would be halved, and it would be seen for the two whose bias is large enough.
    for integrator in ("euler", "baoab"):
        coarse, fine = found[integrator]
        assert abs(fine) < 0.5 * abs(coarse) - 3 * 4e-4 * (integrator == "euler")
    assert abs(found["ubu"][0]) < abs(found["baoab"][0]) < abs(found["euler"][0])


@pytest.mark.parametrize("integrator", ["baoab", "ubu"])
@pytest.mark.parametrize("interruption", [5, 15])
def test_resume_is_bit_for_bit(integrator, interruption):
    problem = Classification()
    optimizer = build(problem, temperature=0.3, integrator=integrator)
    train(problem, optimizer, range(interruption))
    model, state = saved([problem.model.state_dict(), optimizer.state_dict()])
    train(problem, optimizer, range(interruption, 24))
    other = Classification()
    other.model.load_state_dict(model)
    resumed = build(other, temperature=0.3, seed=6, integrator=integrator)
    resumed.load_state_dict(state)
    train(other, resumed, range(interruption, 24))
    assert torch.equal(other.flat(), problem.flat())
    assert equal(resumed.state_dict(), optimizer.state_dict())


def test_refused_steps_change_nothing():
    problem = Classification()
    optimizer = build(problem, temperature=0.3)
    train(problem, optimizer, range(3))
    loss = problem.backward(3)
    before = saved([problem.model.state_dict(), optimizer.state_dict()])
    next(iter(problem.model.parameters())).grad[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="refused"):
        optimizer.step(loss=loss)
    assert equal([problem.model.state_dict(), optimizer.state_dict()], before)


def test_bad_input():
    with pytest.raises(ValueError, match="integrator = 'verlet' is unknown"):
        build(Classification(), integrator="verlet")
    problem = Classification()
    options = {"num_data": 96, "exploration_steps": 5, "temperature": 0.1, "integrator": "ubu"}
    with pytest.raises(ValueError, match="needs momentum > 0"):
        CTLD(problem.model.parameters(), 0.05, 0.0, **options)
    optimizer = CTLD(problem.model.parameters(), 0.05, 0.5, **options)
    optimizer.param_groups[0]["momentum"] = 0.0  # a scheduler
    before = saved(optimizer.state_dict())
    with pytest.raises(ValueError, match="needs momentum > 0"):
        train(problem, optimizer, range(1))
    before["param_groups"][0]["momentum"] = 0.0
    assert equal(saved(optimizer.state_dict()), before)
    with pytest.raises(ValueError, match="noise_compensation goes with"):
        build(Classification(), noise_compensation=True)
