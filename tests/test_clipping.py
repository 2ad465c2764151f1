"""Gradients that are clipped are noticed, in time, once, and only they."""

import logging
import warnings

import pytest
import torch
from torch import nn

import ctld
from ctld import clipping
from targets import Classification

OPTIONS = {"lr": 0.05, "num_data": 96, "weight_decay": 1e-2, "seed": 1}


def go(optimizer, problem, steps, clip=None, by=nn.utils.clip_grad_norm_):
    for step in range(steps):
        loss = problem.backward(step)
        if clip is not None:
            by(problem.model.parameters(), clip)
        optimizer.step(loss=loss)


def build(method="ctld", **options):
    problem = Classification()
    if method == "ctld":
        options = {"exploration_steps": 40, "temperature": 0.3} | options
    return ctld.create(method, problem.model.parameters(), **(OPTIONS | options)), problem


@pytest.mark.parametrize("method", ["ctld", "langevin", "sgld", "sghmc"])
def test_clipping_is_said_once(method):
    with pytest.warns(ctld.TemperatureWarning, match=r"norm of the gradient was 0\.05 in 5 steps in a row") as caught:
        go(*build(method), 200, clip=0.05)
    assert len([warning for warning in caught if "norm of the gradient" in str(warning.message)]) == 1


def test_where_the_temperature_was_left_to_us_it_is_logged(caplog):
    with caplog.at_level(logging.WARNING, "ctld"):
        go(*build(temperature="auto"), 30, clip=0.05)
    assert "gradients are clipped to it" in caplog.text


@pytest.mark.parametrize("method", ["ctld", "sgld"])
def test_a_bound_that_is_seldom_reached_is_not_said(method):
    go(*build(method), 40, clip=100.0)


def test_no_clipping_no_word():
    go(*build(exploration_steps=120), 120)


def test_methods_that_sample_nothing_are_left_in_peace():
    go(*build("anneal_sgd", momentum=0.9), 40, clip=0.05)
    go(*build(exploration_steps=0), 40, clip=0.05)


def test_the_same_gradient_again_is_not_clipping():
    """A plane: every gradient is the same, and so is its norm."""
    parameters = [nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(3))]
    optimizer = ctld.SGLD(parameters, lr=0.1, num_data=10, seed=1)
    for _ in range(40):
        optimizer.zero_grad()
        sum(parameter.sum() for parameter in parameters).backward()
        optimizer.step()


def test_norms_are_taken_seldom():
    norms = clipping.RepeatedNorms()
    generator = torch.Generator().manual_seed(0)
    looked = []
    for step in range(2000):
        if step >= norms.next_look:
            looked.append(step)
            assert (
                norms.repeated([torch.randn(5, generator=generator), torch.randn(3, generator=generator)], step) is None
            )
    assert looked == [*range(10, 15), *range(140, 145), *range(1440, 1445)]


def test_a_gradient_that_comes_and_goes():
    """Other parameters than at the last look: the row of norms begins anew."""
    norms = clipping.RepeatedNorms()
    for step in range(10, 14):
        norms.repeated([torch.ones(2), torch.full((2,), float(step))], step)
    assert norms.repeated([torch.ones(2)], 14) is None
    assert norms.next_look == clipping.FIRST_LOOK


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 0.3])
def test_what_clipping_does_and_thermometers_do_not_see(clip):
    """A Gaussian of curvature 1 and N = 100 has variance T/N, of which the Euler step makes 1.027 (docs/maths.md).

    The norm of its gradient is about sqrt(50/100) = 0.7. Energies of this underdamped oscillator decay by 1 − momentum a step,
    so 20 steps make one independent value: 9,000 steps of 50 directions have 22,500, and the variance an error of
    sqrt(2/22,500) = 0.9 %.
    """
    steps, parameters = 10_000, [nn.Parameter(torch.zeros(25, dtype=torch.float64)) for _ in range(2)]
    optimizer = ctld.CTLD(
        parameters,
        lr=0.1,
        num_data=100,
        temperature=1.0,
        tempering=ctld.Tempering.constant(),
        exploration_steps=steps + 1,
        seed=1,
    )
    squares = 0.0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(steps + 1):
            optimizer.zero_grad()
            loss = sum(0.5 * parameter.square().sum() for parameter in parameters)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step(loss=loss)
            if step > 1000:
                squares += 2.0 * loss.item() / 50 / (steps - 1000)
    temperatures = optimizer.last.groups[0]
    assert temperatures.kinetic.mean == pytest.approx(1.0, abs=0.05)
    assert temperatures.configurational.mean == pytest.approx(1.0, abs=0.15)
    assert (100 * squares > 4.0) if clip else (100 * squares == pytest.approx(1.027, rel=0.05))
    assert any("gradients are clipped" in str(warning.message) for warning in said) == bool(clip)
