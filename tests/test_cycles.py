"""Cycles of exploration and fine-tuning, and the learning rate that goes with them."""

import copy
import cProfile
import gc
import io
import math
import warnings

import pytest
import torch

from ctld import CTLD, CycleLR, Tempering
from targets import Classification

EXPLORATION, CYCLE = 6, 10


def build(problem, **options):
    options = {"weight_decay": 1e-2, "num_data": 96, "exploration_steps": EXPLORATION, "seed": 5} | options
    return CTLD(problem.model.parameters(), 0.05, 0.8, **options)


def go_on(problem, optimizer, scheduler, steps):
    """What is in force at each step."""
    seen = []
    for step in steps:
        seen.append((optimizer.exploring, optimizer.param_groups[0]["lr"], getattr(optimizer.tempering, "alpha", None)))
        optimizer.zero_grad()
        loss = problem.backward(step)
        optimizer.step(loss=loss)
        if scheduler is not None:
            scheduler.step()
    return seen


def test_phases_and_learning_rates_repeat():
    problem = Classification()
    optimizer = build(problem, cycle_steps=CYCLE)
    seen = go_on(problem, optimizer, CycleLR(optimizer), range(3 * CYCLE))
    assert [exploring for exploring, _, _ in seen] == ([True] * EXPLORATION + [False] * (CYCLE - EXPLORATION)) * 3
    expected = [0.05] * EXPLORATION + [0.05 * 0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(4)]
    assert [lr for _, lr, _ in seen] == pytest.approx(expected * 3)


def test_alpha_returns_and_the_rest_is_kept():
    problem = Classification()
    optimizer = build(problem, cycle_steps=CYCLE)
    seen = go_on(problem, optimizer, None, range(CYCLE - 1))
    momentum, bias = optimizer.tempering.alpha_momentum, optimizer.tempering.bias.values
    assert seen[-1][2] != 0.0
    go_on(problem, optimizer, None, [CYCLE - 1])
    endless = Classification()
    twin = build(endless)
    go_on(endless, twin, None, range(CYCLE))
    for kept, expected in zip(optimizer.state.values(), twin.state.values(), strict=True):
        assert torch.equal(kept["momentum_buffer"], expected["momentum_buffer"])
        assert kept["momentum_buffer"].abs().max() > 0
    assert optimizer.tempering.alpha == 0.0
    assert optimizer.tempering.alpha_momentum == momentum
    assert (optimizer.tempering.bias.values == bias).all()
    go_on(problem, optimizer, None, range(CYCLE, CYCLE + EXPLORATION))
    assert (optimizer.tempering.bias.values >= bias).all()
    assert optimizer.tempering.bias.values.sum() > 1.5 * bias.sum()


def test_the_first_cycle_is_the_paper():
    runs = []
    for options in ({}, {"cycle_steps": CYCLE}):
        problem = Classification()
        go_on(problem, build(problem, **options), None, range(CYCLE))
        runs.append(problem.flat())
    assert torch.equal(*runs)


def test_without_noise_it_is_sgd_under_the_same_schedule():
    problem, twin = Classification(), Classification()
    optimizer = build(problem, cycle_steps=CYCLE, temperature=0.0)
    scheduler = CycleLR(optimizer)
    sgd = torch.optim.SGD(twin.model.parameters(), 0.05, 0.8, weight_decay=1e-2)
    for step in range(25):
        sgd.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"]
        sgd.zero_grad()
        twin.backward(step)
        sgd.step()
        go_on(problem, optimizer, scheduler, [step])
    assert torch.equal(problem.flat(), twin.flat())


def test_momenta_survive_the_ends_of_cycles():
    """With hardly any noise, and lr held, it is SGD too, though momenta change their units twice a cycle."""
    problem, twin = Classification(), Classification()
    go_on(problem, build(problem, cycle_steps=CYCLE, temperature=1e-14), None, range(25))
    sgd = torch.optim.SGD(twin.model.parameters(), 0.05, 0.8, weight_decay=1e-2)
    for step in range(25):
        sgd.zero_grad()
        twin.backward(step)
        sgd.step()
    torch.testing.assert_close(problem.flat(), twin.flat(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("interruption", [3, 8, 10, 14])
def test_resume_is_bit_for_bit(interruption):
    problem = Classification()
    optimizer = build(problem, cycle_steps=CYCLE)
    scheduler = CycleLR(optimizer)
    go_on(problem, optimizer, scheduler, range(interruption))
    buffer = io.BytesIO()
    torch.save([copy.deepcopy(problem.model.state_dict()), optimizer.state_dict(), scheduler.state_dict()], buffer)
    go_on(problem, optimizer, scheduler, range(interruption, 25))
    buffer.seek(0)
    model, state, schedule = torch.load(buffer, weights_only=True)
    other = Classification()
    other.model.load_state_dict(model)
    resumed = build(other, cycle_steps=CYCLE, seed=77)
    again = CycleLR(resumed)
    resumed.load_state_dict(state)
    again.load_state_dict(schedule)
    go_on(other, resumed, again, range(interruption, 25))
    assert torch.equal(other.flat(), problem.flat())


def test_a_refused_step_does_not_put_lr_out_of_step():
    problem = Classification()
    optimizer = build(problem, cycle_steps=CYCLE)
    scheduler = CycleLR(optimizer)
    problem.backward(0)
    with pytest.raises(ValueError, match="refused"):
        optimizer.step(loss=math.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch counts calls, and warns that the optimizer made none
        scheduler.step()
    assert [lr for _, lr, _ in go_on(problem, optimizer, scheduler, range(EXPLORATION + 1))] == [0.05] * (
        EXPLORATION + 1
    )
    assert optimizer.param_groups[0]["lr"] < 0.05


def test_bad_input():
    with pytest.raises(ValueError, match="cycle_steps = 6 leaves no fine-tuning after exploration_steps = 6"):
        build(Classification(), cycle_steps=6)
    with pytest.raises(ValueError, match="CTLD has no cycles"):
        CycleLR(build(Classification()))


def test_driven_temperature_is_a_triangle_wave():
    tempering = Tempering.driven(12)
    alphas = []
    for _ in range(24):
        alphas.append(tempering.alpha)
        tempering.end(1e9, 5.0)
    wave = [0.0, 0.5, 1.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -1.0, -0.5]
    assert alphas == pytest.approx(wave * 2)
    paper = Tempering.paper(0.1, 10)
    assert tempering.mean_temperature_ratio == pytest.approx(paper.mean_temperature_ratio, rel=1e-5)
    assert Tempering.driven(4).temperature_ratio == 1.0


@pytest.mark.parametrize("tempering", [lambda: Tempering.driven(7), lambda: Tempering.constant(2.5)])
@pytest.mark.parametrize("compensation", [False, True])
def test_schedules_and_controls_resume(tempering, compensation):
    def fresh(seed):
        problem = Classification()
        return problem, build(
            problem, cycle_steps=CYCLE, tempering=tempering(), seed=seed, noise_compensation=compensation
        )

    problem, optimizer = fresh(5)
    ratios = []
    for step in range(15):
        ratios.append(optimizer.temperature_ratio)
        go_on(problem, optimizer, None, [step])
        if step == 7:
            model, state = copy.deepcopy(problem.model.state_dict()), copy.deepcopy(optimizer.state_dict())
    if optimizer.tempering.temperature_ratio == 2.5:
        assert ratios == ([2.5] * EXPLORATION + [1.0] * (CYCLE - EXPLORATION) + [2.5] * 5)
    else:
        assert len(set(ratios)) > 3
        assert ratios[CYCLE : CYCLE + 5] == ratios[:5]  # each cycle from the start
    other, resumed = fresh(9)
    other.model.load_state_dict(model)
    resumed.load_state_dict(state)
    go_on(other, resumed, None, range(8, 15))
    assert torch.equal(other.flat(), problem.flat())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_step_costs_after_a_thousand_cycles_what_it_cost_after_ten():
    """Counted in calls of functions and in objects, which no other process disturbs."""
    parameter = torch.nn.Parameter(torch.ones(5))
    parameter.grad = torch.full((5,), 0.1)
    options = {"num_data": 100, "exploration_steps": 6, "cycle_steps": 10, "temperature": 0.1, "seed": 0}
    optimizer = CTLD([parameter], 0.001, **options)

    def counted(steps):
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(steps):
            optimizer.step(loss=0.5)
        profile.disable()
        gc.collect()
        return sum(entry.callcount for entry in profile.getstats()) / steps, len(gc.get_objects())

    for _ in range(100):
        optimizer.step(loss=0.5)
    calls, objects = counted(1000)
    for _ in range(8000):
        optimizer.step(loss=0.5)
    calls_later, objects_later = counted(1000)
    assert calls_later < 1.03 * calls
    assert objects_later < objects + 200
