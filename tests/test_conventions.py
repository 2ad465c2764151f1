"""Each row of the table in docs/conventions.md, run beside CTLD with the same noise."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ctld import CTLD, Tempering, noise
from ctld.tempering import TemperatureScaling

DOCUMENT = Path(__file__).parents[1] / "docs" / "conventions.md"
LR, NUM_DATA, TEMPERATURE, STEPS, SEED, ALPHA = 0.04, 30.0, 0.7, 40, 9, 0.8
DECAY = 0.1
RATIO = 1.0 / TemperatureScaling().value(ALPHA)
START = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64)


def mean_gradient(theta):
    """Of the mean loss Σ(θ⁴/4 − θ²/2), without the prior."""
    return theta**3 - theta


def ctld_path(momentum, temperature=TEMPERATURE, num_data=NUM_DATA):
    """θ after each step, α being held, so that the noise has one known scale."""
    theta = nn.Parameter(START.clone())
    optimizer = CTLD(
        [theta],
        LR,
        momentum,
        num_data=num_data,
        exploration_steps=STEPS,
        weight_decay=DECAY,
        temperature=temperature,
        tempering=Tempering(alpha=ALPHA, alpha_momentum=0.0, mass=1e30),
        seed=SEED,
    )
    path = []
    for _ in range(STEPS):
        theta.grad = mean_gradient(theta.detach())
        optimizer.step(loss=1.0)
        path.append(theta.detach().numpy().copy())
    return np.array(path)


def epsilon(step):
    return noise.normal(SEED, step, noise.parameter_stream(0), 6, dtype=torch.float64).numpy()


def standard_start():
    return noise.normal(SEED, 0, noise.INITIAL_MOMENTA, 6, dtype=torch.float64).numpy()


def potential_gradient(theta, num_data=NUM_DATA):
    """∇U, U = N·(mean loss + prior)."""
    return num_data * (mean_gradient(theta) + DECAY * theta)


def torch_sgd():
    theta, buffer, path = START.numpy().copy(), np.zeros(6), []
    for _ in range(STEPS):
        buffer = 0.6 * buffer + mean_gradient(theta) + DECAY * theta
        theta = theta - LR * buffer
        path.append(theta)
    return ctld_path(0.6, temperature=0.0), np.array(path)


def this_paper():
    eta = math.sqrt(LR / NUM_DATA)
    gamma = (1 - 0.6) / eta
    theta, r, path = START.numpy().copy(), math.sqrt(TEMPERATURE) * standard_start(), []
    for step in range(STEPS):
        r = (1 - eta * gamma) * r - eta * potential_gradient(theta)
        r = r + math.sqrt(2 * eta * gamma * TEMPERATURE * RATIO) * epsilon(step)
        theta = theta + eta * r
        path.append(theta)
    return ctld_path(0.6), np.array(path)


def sghmc():
    friction, h, hot = 1 - 0.6, LR / NUM_DATA, TEMPERATURE * RATIO
    theta, v, path = START.numpy().copy(), math.sqrt(TEMPERATURE * h) * standard_start(), []
    for step in range(STEPS):
        v = (1 - friction) * v - h * potential_gradient(theta) + math.sqrt(2 * friction * h * hot) * epsilon(step)
        theta = theta + v
        path.append(theta)
    return ctld_path(0.6), np.array(path)


def sgld():
    step_epsilon, hot = 2 * LR / NUM_DATA, TEMPERATURE * RATIO
    theta, path = START.numpy().copy(), []
    for step in range(STEPS):
        theta = theta - step_epsilon / 2 * potential_gradient(theta) + math.sqrt(step_epsilon * hot) * epsilon(step)
        path.append(theta)
    return ctld_path(0.0), np.array(path)


def wenzel():
    h, gamma = math.sqrt(LR / NUM_DATA), (1 - 0.6) * math.sqrt(NUM_DATA / LR)
    theta, m, path = START.numpy().copy(), math.sqrt(TEMPERATURE) * standard_start(), []
    for step in range(STEPS):
        m = (1 - h * gamma) * m - h * potential_gradient(theta)
        m = m + math.sqrt(2 * gamma * h * TEMPERATURE * RATIO) * epsilon(step)
        theta = theta + h * m
        path.append(theta)
    return ctld_path(0.6), np.array(path)


def gaussian_prior():
    """The prior's term of U, from the recorded potential with and without weight decay."""
    potentials = []
    for decay in (DECAY, 0.0):
        theta = nn.Parameter(START.clone())
        theta.grad = torch.zeros_like(START)
        optimizer = CTLD(
            [theta], LR, num_data=NUM_DATA, exploration_steps=5, weight_decay=decay, temperature=1.0, seed=SEED
        )
        optimizer.step(loss=2.0)
        potentials.append(optimizer.last.potential)
    variance = 1 / (NUM_DATA * DECAY)
    minus_log_prior = (START.numpy() ** 2).sum() / (2 * variance)
    return np.array(potentials[0] - potentials[1]), np.array(minus_log_prior)


def tempered():
    """exp(−U/T) depends on T/N alone: half of both is the same path."""
    return ctld_path(0.6), ctld_path(0.6, temperature=TEMPERATURE / 2, num_data=NUM_DATA / 2)


ROWS = {
    "torch SGD": torch_sgd,
    "this paper (Ye et al. 2017)": this_paper,
    "SGHMC (Chen et al. 2014)": sghmc,
    "SGLD (Welling & Teh 2011)": sgld,
    "Wenzel et al. 2020": wenzel,
    "Gaussian prior": gaussian_prior,
    "tempered likelihood and prior": tempered,
}


@pytest.mark.parametrize("row", ROWS)
def test_row(row):
    ours, theirs = ROWS[row]()
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


def test_every_row_of_the_document_is_tested():
    section = DOCUMENT.read_text().split("## The same step in other letters")[1].split("\n## ")[0]
    names = [line.split("|")[1].strip() for line in section.splitlines() if re.match(r"\| (?!convention|-)", line)]
    assert names == list(ROWS)


def test_another_noise_scale_would_be_seen():
    """The twin: noise of sqrt(2 lr T) in place of sqrt(2(1 − momentum) lr T/N), a defect seen in public code."""
    ours, theirs = this_paper()
    wrong = theirs + 1e-6 * np.abs(theirs)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(ours, wrong, rtol=1e-12, atol=1e-13)
    h = LR
    theta, v = START.numpy().copy(), math.sqrt(TEMPERATURE * h / NUM_DATA) * standard_start()
    v = 0.6 * v - h * potential_gradient(theta) / NUM_DATA + math.sqrt(2 * h * TEMPERATURE * RATIO) * epsilon(0)
    assert np.abs(theta + v - ours[0]).max() > 0.01
