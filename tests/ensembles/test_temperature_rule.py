"""The temperature of an ensemble: its spread is that of the dynamics, and the rule does what its sentences say."""

import pytest
import torch
from torch import nn

from ctld import CTLD, Ensemble, Tempering
from ctld.ensembles.temperature import SPREAD, ensemble_temperature, forgetting, noise_spread, spread_per_temperature


def test_spread_per_temperature_is_that_of_the_dynamics():
    """20,000 free parameters, N·variance/T after n steps: the law is exact but for the time that momentum takes to build up."""
    lr, momentum, decay, steps = 0.1, 0.8, 0.05, 200
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.zeros(20_000, dtype=torch.float64))
    optimizer = CTLD(
        [parameter],
        lr,
        momentum,
        num_data=10,
        weight_decay=decay,
        exploration_steps=1000,
        temperature=0.3,
        tempering=Tempering.constant(),
        seed=3,
    )
    for _ in range(steps):
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step(loss=0.0)
    found = 10 * float(parameter.detach().square().mean()) / 0.3
    # The standard error of a variance over 20,000 is 1 %; the start-up of the momentum takes 1/(1 − momentum) of 200 steps.
    assert found == pytest.approx(spread_per_temperature(lr, momentum, decay, steps), rel=0.05)
    assert spread_per_temperature(lr, momentum, 0.0, steps) == pytest.approx(2 * lr * steps / (1 - momentum))
    bound = noise_spread(optimizer)
    assert bound**2 == pytest.approx(0.3 / 10 * spread_per_temperature(lr, momentum, decay, 1000))
    assert found != pytest.approx(spread_per_temperature(lr, momentum, 0.0, steps), rel=0.2)


def group(**options):
    weight = nn.Parameter(torch.full((30, 20), 0.05))
    bias = nn.Parameter(torch.zeros(30))
    return {"params": [("weight", weight), ("bias", bias)], "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3} | options


def chosen(*groups, **options):
    options = {
        "num_data": 5000,
        "exploration_steps": 3600,
        "cycle_steps": 1000,
        "mean_temperature_ratio": 1.0,
    } | options
    return ensemble_temperature(list(groups), **options)


def test_the_rule():
    """Where decay forgets within a cycle the spread is SPREAD times the initial RMS; a tenth of that forgetting, SPREAD/100."""
    assert forgetting(0.1, 0.9, 1e-3, 1000) == pytest.approx(1.0)
    found = chosen(group())
    spread = (found / 5000 * spread_per_temperature(0.1, 0.9, 1e-3, 3600)) ** 0.5
    assert spread == pytest.approx(SPREAD * 0.05)
    slow = chosen(group(), cycle_steps=100)
    assert slow == pytest.approx(found * 1e-4)
    assert chosen(group(weight_decay=0.0)) == 0.0  # what nothing forgets does not average out
    assert chosen(group(), mean_temperature_ratio=2.0) == pytest.approx(found / 2)
    assert chosen(group(), num_data=1e9) == 1.0
    assert chosen(group(explore=False)) == 0.0
    assert chosen(group(), group(weight_decay=5e-4)) == chosen(group(weight_decay=5e-4)) < found


def test_nothing_advises_more_weight_decay(caplog):
    """It does harm: on a network with batch norm it doubled the nll."""
    caplog.set_level("INFO")
    assert chosen(group(weight_decay=1e-6)) < 1e-6
    assert "weight_decay" not in caplog.text


def test_frozen_weights_do_not_count():
    """A large frozen backbone would make T as many times too hot."""
    large = nn.Parameter(torch.full((300, 200), 0.4), requires_grad=False)
    alone = group()
    both = group()
    both["params"] = [*both["params"], ("backbone", large)]
    assert chosen(both) == chosen(alone)
    large.requires_grad_(True)
    assert chosen(both) > 2 * chosen(alone)  # at most 1


def test_parameters_in_place_of_a_model_are_refused_with_a_sentence():
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"give the model itself; .* goes into params="):
        Ensemble(model.parameters(), 0.1, 100, 600)
