"""A diagonal mass matrix: the same law while it rests, learning rates of elements, slow adaptation, part of the state."""

import math

import pytest
import torch
from torch import nn

from ctld import CTLD, RMSPreconditioner, Tempering
from ctld.diagnostics import estimate
from ctld.kernels import native
from targets import Classification, equal, saved, train

OPTIONS = {"lr": 0.05, "momentum": 0.8, "num_data": 96, "exploration_steps": 300, "temperature": 0.1, "seed": 1}
N, LR, MOMENTUM = 1000.0, 0.1, 0.9
CURVATURES = torch.tensor([1.0, 4.0, 16.0], dtype=torch.float64)
SCALES = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)


def frozen(parameter, scales, **options):
    optimizer = CTLD([parameter], LR, MOMENTUM, num_data=N, temperature=1.0, preconditioner=RMSPreconditioner(),
                     seed=3, **options)  # fmt: skip
    optimizer.state[parameter]["scale"].copy_(scales)
    optimizer.state[parameter]["momentum_buffer"].mul_(scales.sqrt())
    optimizer.freeze_preconditioner()
    return optimizer


@pytest.mark.filterwarnings("ignore:.*half-trips")
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("integrator", ["euler", "baoab", "ubu"])
@pytest.mark.parametrize("tempering", ["paper", "calibrated"])
def test_scales_are_learning_rates_of_elements(monkeypatch, kernel, integrator, tempering):
    """Groups with their own lr are a diagonal mass matrix (section 2 of the spec): each element a group, with lr·s."""
    if not kernel:
        monkeypatch.setattr(native, "stepper", lambda: None)
    steps = 160
    scaled = [nn.Parameter(torch.full((1,), 0.3, dtype=torch.float64)) for _ in SCALES]
    grouped = [nn.Parameter(torch.full((1,), 0.3, dtype=torch.float64)) for _ in SCALES]
    common = {"num_data": N, "temperature": 1.0, "seed": 3, "exploration_steps": steps, "integrator": integrator}

    def control():
        return Tempering.calibrated(0.5, warm_up=100) if tempering == "calibrated" else Tempering.paper(0.01, steps)

    first = CTLD(scaled, LR, MOMENTUM, preconditioner=RMSPreconditioner(every=1), tempering=control(), **common)
    first.freeze_preconditioner()
    for parameter, scale in zip(scaled, SCALES, strict=True):
        first.state[parameter]["scale"].fill_(scale)
        first.state[parameter]["momentum_buffer"].mul_(scale.sqrt())
    groups = [{"params": [p], "lr": LR * float(s)} for p, s in zip(grouped, SCALES, strict=True)]
    second = CTLD(groups, LR, MOMENTUM, tempering=control(), **common)
    for _ in range(steps):
        for parameters, optimizer in ((scaled, first), (grouped, second)):
            loss = 0.0
            for parameter, curvature in zip(parameters, CURVATURES, strict=True):
                parameter.grad = curvature * parameter.detach()
                loss += float(0.5 * curvature * parameter.detach() ** 2)
            optimizer.step(loss=loss)
        assert first.last.hamiltonian == pytest.approx(second.last.hamiltonian, rel=1e-9)
        assert first.last.kinetic_temperature == pytest.approx(second.last.kinetic_temperature, rel=1e-9)
    torch.testing.assert_close(torch.cat(scaled), torch.cat(grouped), rtol=1e-9, atol=1e-12)


def variances(scales, *, steps=10_000, noise=1.0, **options):
    """Of each direction, with its standard error, in units of the exact one in continuous time."""
    copies = 150
    parameter = nn.Parameter(torch.zeros(copies, 3, dtype=torch.float64))
    optimizer = frozen(parameter, scales.expand(copies, 3), exploration_steps=steps,
                       tempering=Tempering.constant(noise), **options)  # fmt: skip
    rows = torch.empty(steps, 3, dtype=torch.float64)
    kinetic = torch.empty(steps, dtype=torch.float64)
    parameter.grad = torch.zeros_like(parameter)
    for step in range(steps):
        place = parameter.detach()
        parameter.grad.copy_(CURVATURES * place)
        rows[step] = place.square().mean(0)
        optimizer.step(loss=0.0)
        kinetic[step] = optimizer.last.kinetic_temperature
    exact = 1.0 / (N * CURVATURES)
    found = [estimate((rows[steps // 10 :, k] / exact[k]).numpy()) for k in range(3)]
    return found, estimate(kinetic[steps // 10 :].numpy())


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1.0, 1.1])
@pytest.mark.parametrize("integrator", ["euler", "baoab"])
def test_law_while_it_rests(integrator, noise):
    """Section 8 of the spec, each direction with x = lr·s·k; the twin with 1.1 times the noise must fail."""
    found, kinetic = variances(SCALES, integrator=integrator, noise=noise)
    x = LR * SCALES * CURVATURES
    exact = 1.0 / (1.0 - x / (2.0 * (1.0 + MOMENTUM))) if integrator == "euler" else torch.ones(3)
    for each, expected in zip(found, exact.tolist(), strict=True):
        assert each.standard_error < 0.01
        assert (abs(each.mean - expected) < 4.0 * each.standard_error) == (noise == 1.0)
    assert kinetic.standard_error < 0.01
    assert (abs(kinetic.mean - 1.0) < 4.0 * kinetic.standard_error) == (noise == 1.0)


def test_it_adapts_to_the_gradients_and_keeps_the_temperature():
    """Two kinds of elements whose gradients differ by 8: so come their learning rates, and lr is their mean's."""
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.zeros(2, 2000, dtype=torch.float64))
    optimizer = CTLD([parameter], LR, MOMENTUM, num_data=N, temperature=1.0, exploration_steps=3000, seed=0,
                     tempering=Tempering.constant(), preconditioner=RMSPreconditioner(adapt_steps=2000))  # fmt: skip
    sizes = torch.tensor([[1.0], [8.0]], dtype=torch.float64) * 1e-3
    readings = []
    for step in range(3000):
        noise = torch.randn(2, 2000, generator=generator, dtype=torch.float64)
        parameter.grad = sizes * noise
        optimizer.step(loss=0.0)
        readings.append(optimizer.last.kinetic_temperature)
        if step == 1999:
            before = optimizer.state[parameter]["scale"].clone()
    scale = optimizer.state[parameter]["scale"]
    assert torch.equal(scale, before)  # frozen after 2,000 steps
    quiet, loud = scale.mean(1).tolist()
    assert quiet == pytest.approx(4.5, rel=0.05)
    assert loud == pytest.approx(4.5 / 8, rel=0.05)
    # Heat of the gradients: N lr s σ²/(2(1 − μ)), of the two kinds.
    heat = N * LR * (quiet * 1e-6 + loud * 64e-6) / 2 / (2 * (1 - MOMENTUM))
    assert sum(readings[500:]) / 2500 == pytest.approx(1.0 + heat, rel=0.01)
    assert optimizer.last.groups[0].minibatch_heat.mean == pytest.approx(heat, rel=0.25)


def test_results_do_not_depend_on_the_scale_of_gradients():
    def scales(factor):
        problem = Classification()
        optimizer = CTLD(problem.model.parameters(), preconditioner=RMSPreconditioner(), **(OPTIONS | {"lr": 1e-12}))
        for step in range(250):
            loss = problem.backward(step)
            for parameter in problem.model.parameters():
                parameter.grad *= factor
            optimizer.step(loss=loss)
        return torch.cat([optimizer.state[p]["scale"].reshape(-1) for p in problem.model.parameters()])

    once, tenfold = scales(1.0), scales(10.0)
    assert once.std() > 0.1
    torch.testing.assert_close(once, tenfold, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("interruption", [7, 215, 250])
def test_resumes_to_the_same_bits(interruption):
    def build(problem):
        rms = RMSPreconditioner(adapt_steps=230)
        return CTLD(problem.model.parameters(), preconditioner=rms, cycle_steps=350, **OPTIONS)

    whole = Classification()
    optimizer = build(whole)
    train(whole, optimizer, range(360))
    part = Classification()
    first = build(part)
    train(part, first, range(interruption))
    second = build(part)
    second.load_state_dict(saved(first.state_dict()))
    train(part, second, range(interruption, 360))
    assert torch.equal(part.flat(), whole.flat())
    assert equal(second.state_dict(), optimizer.state_dict())
    assert optimizer.state[next(whole.model.parameters())]["scale"].std() > 0


def test_fine_tuning_is_sgd_without_it():
    problem, other = Classification(), Classification()
    optimizer = CTLD(problem.model.parameters(), preconditioner=RMSPreconditioner(), **OPTIONS)
    train(problem, optimizer, range(300))
    sgd = torch.optim.SGD(other.model.parameters(), lr=0.05, momentum=0.8)
    for mine, its in zip(other.model.parameters(), problem.model.parameters(), strict=True):
        mine.data.copy_(its.data)
        # v = √lr p, torch's buffer −v/lr.
        sgd.state[mine]["momentum_buffer"] = -optimizer.state[its]["momentum_buffer"] / math.sqrt(0.05)
    train(problem, optimizer, range(300, 320))
    train(other, sgd, range(300, 320))
    torch.testing.assert_close(problem.flat(), other.flat(), rtol=1e-12, atol=1e-14)


def test_a_refused_step_changes_nothing():
    problem = Classification()
    optimizer = CTLD(problem.model.parameters(), preconditioner=RMSPreconditioner(every=1), **OPTIONS)
    train(problem, optimizer, range(30))
    before = saved(optimizer.state_dict())
    loss = problem.backward(30)
    next(problem.model.parameters()).grad[0] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        optimizer.step(loss=loss)
    assert equal(saved(optimizer.state_dict()), before)


def scales_after(steps, gradient, sizes=((500,), (500,)), **options):
    """Of each parameter, when `gradient(step, place, shape)` are its gradients; None has none."""
    parameters = [nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in sizes]
    optimizer = CTLD(parameters, 1e-9, MOMENTUM, num_data=N, temperature=1e-9, exploration_steps=10_000, seed=0,
                     tempering=Tempering.constant(), preconditioner=RMSPreconditioner(every=1, **options))  # fmt: skip
    for step in range(steps):
        for place, parameter in enumerate(parameters):
            parameter.grad = gradient(step, place, parameter.shape)
        optimizer.step(loss=0.0)
    return [optimizer.state[parameter]["scale"] for parameter in parameters]


def test_a_parameter_that_thaws_is_not_taken_for_a_quiet_one():
    generator = torch.Generator().manual_seed(0)

    def gradient(step, place, shape):
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        return None if place == 1 and step < 100 else noise

    first, second = scales_after(110, gradient)
    assert torch.equal(second, torch.ones_like(second))  # ten gradients say nothing
    first, second = scales_after(125, gradient)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.05)
    assert float(second.median()) == pytest.approx(1.0, abs=0.1)


def test_elements_without_gradient_are_left_alone():
    """As of an embedding, most of whose rows are not used."""
    generator = torch.Generator().manual_seed(0)

    def gradient(step, place, shape):
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        noise[50:] = 0.0
        return noise

    (scale,) = scales_after(100, gradient, sizes=((1000,),))
    assert torch.equal(scale[50:], torch.ones(950, dtype=torch.float64))
    assert float(scale[:50].mean()) == pytest.approx(1.0, abs=0.05)


def test_a_nan_that_was_let_in_does_not_end_it():
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.zeros(2, 50, dtype=torch.float64))
    rms = RMSPreconditioner(every=1)
    optimizer = CTLD([parameter], LR, MOMENTUM, num_data=N, temperature=1.0, exploration_steps=100, seed=0,
                     tempering=Tempering.constant(), preconditioner=rms)  # fmt: skip
    for step in range(60):
        parameter.grad = torch.randn(2, 50, generator=generator, dtype=torch.float64)
        if step == 5:
            parameter.grad[0, 0] = math.nan
        (members,) = optimizer._active().groups
        total, count = optimizer.mass.observe(members, decay=0.0, ascend=False).tolist()
        assert math.isfinite(total)
    assert count == 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"smoothing": 1.0}, "smoothing"),
        ({"every": 0}, "every"),
        ({"limit": 0.5}, "limit"),
        ({"adapt_steps": -1}, "adapt_steps"),
        ({"adapt_steps": 190}, "adapt_steps = 190 ends before"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        RMSPreconditioner(**options)


def test_what_it_does_not_go_with():
    parameter = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="noise_compensation"):
        CTLD([parameter], preconditioner=RMSPreconditioner(), noise_compensation=True, **OPTIONS)
    with pytest.raises(TypeError, match="RMSPreconditioner"):
        CTLD([parameter], preconditioner="rms", **OPTIONS)
    with pytest.raises(ValueError, match="exploration_steps = 100 end before"):
        CTLD([parameter], preconditioner=RMSPreconditioner(), **(OPTIONS | {"exploration_steps": 100}))
    with pytest.raises(ValueError, match="no preconditioner to freeze"):
        CTLD([parameter], **OPTIONS).freeze_preconditioner()
