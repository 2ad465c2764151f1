"""The heat that is left by the order of the batches, against chains that take them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld import CTLD, SGLD, Langevin, Tempering
from ctld.diagnostics import remaining_heat

CHAINS, BATCHES, SIZE, STEPS, BURN_IN = 2000, 8, 2, 480, 240
MOMENTUM = 0.8
# Loss of an example: (θ − c)²/2, so that the noise of a gradient is that of c.
CENTERS = torch.randn(BATCHES * SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
OPTIONS = {"num_data": 1.0, "temperature": 1e-12, "seed": 2}
SAMPLERS = {
    "sgld": lambda theta, lr: SGLD([theta], lr, **OPTIONS),
    "langevin": lambda theta, lr: Langevin([theta], lr, MOMENTUM, **OPTIONS),
    "baoab": lambda theta, lr: CTLD(
        [theta],
        lr,
        MOMENTUM,
        tempering=Tempering.constant(),
        integrator="baoab",
        exploration_steps=BURN_IN + STEPS,
        **OPTIONS,
    ),
}


def heat(sampler, lr, order):
    """Variance of θ of each chain; at a temperature of nothing, all of it is from the batches."""
    generator = torch.Generator().manual_seed(3)
    theta = nn.Parameter(torch.full((CHAINS,), float(CENTERS.mean()), dtype=torch.float64))
    optimizer = SAMPLERS[sampler](theta, lr)
    square = torch.zeros(CHAINS, dtype=torch.float64)
    for step in range(BURN_IN + STEPS):
        if step % BATCHES == 0:
            if order == "epochs":
                rows = torch.rand(CHAINS, BATCHES * SIZE, generator=generator).argsort(dim=1)
            else:
                rows = torch.randint(BATCHES * SIZE, (CHAINS, BATCHES * SIZE), generator=generator)
            means = CENTERS[rows].view(CHAINS, BATCHES, SIZE).mean(dim=2)
        theta.grad = theta.detach() - means[:, step % BATCHES]
        optimizer.step(loss=0.0)
        if step >= BURN_IN:
            square += (theta.detach() - CENTERS.mean()).square() / STEPS
    return square.numpy()


def law(sampler, lr, order):
    """That of a second-order autoregression driven by the noise of the gradients, times what the order leaves."""
    momentum = 0.0 if sampler == "sgld" else MOMENTUM
    noise = float(CENTERS.var(unbiased=False)) / SIZE
    replaced = lr * (1 + momentum) / (1 - momentum) / (2 * (1 + momentum) - lr) * noise
    if order == "replaced":
        return replaced
    return replaced * float(remaining_heat(lr, 1.0, BATCHES, momentum=momentum, batch_size=SIZE))


@pytest.mark.filterwarnings("ignore::ctld.TemperatureWarning")  # nothing is here but heat
@pytest.mark.parametrize("order", ["epochs", "replaced"])
@pytest.mark.parametrize("lr", [0.03, 0.1, 0.5])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_law(sampler, lr, order):
    """18 comparisons at 4 standard errors over independent chains; the twin takes the other order's law."""
    found = heat(sampler, lr, order)
    error = found.std() / math.sqrt(CHAINS)
    assert error < 0.03 * law(sampler, lr, order)
    assert abs(found.mean() - law(sampler, lr, order)) < 4.0 * error
    other = "replaced" if order == "epochs" else "epochs"
    assert abs(found.mean() - law(sampler, lr, other)) > 4.0 * error


def test_the_rule_of_x():
    """With replacement the heat is x/2, in epochs about x²/6: a tenth at x = .2 and at x = .85."""
    for momentum in (0.0, 0.9):
        x, batches = 0.85, 1000
        lr = x * (1 - momentum) / batches
        assert 0.5 * x * float(remaining_heat(lr, 1.0, batches, momentum=momentum)) == pytest.approx(0.1, rel=0.05)
        lr *= 0.1
        assert float(remaining_heat(lr, 1.0, batches, momentum=momentum)) == pytest.approx(0.085 / 3, rel=0.1)


def test_it_is_the_variance_within_an_epoch():
    """M/(M − 1)·(1 − Var(mean of an epoch)/Var θ), from the autocorrelation of SGLD."""
    rate, count = 0.05, 12
    lags = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    of_mean = ((1 - rate) ** lags).mean()
    assert float(remaining_heat(rate, 1.0, count)) == pytest.approx(count / (count - 1) * (1 - of_mean))


def test_shapes_and_refusals():
    assert remaining_heat(0.1, [[0.5, 1.0]], 10).shape == (1, 2)
    with pytest.raises(ValueError, match=r"lr·curvature must lie between 0 and 2"):
        remaining_heat(1.0, 2.5, 10)
    with pytest.raises(ValueError, match="batches_per_epoch = 1 is out of range"):
        remaining_heat(0.1, 1.0, 1)
