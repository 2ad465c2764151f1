"""How many cycles an ensemble takes by itself, and when it takes none."""

import copy

import pytest
import torch
from torch import nn

from ctld import Ensemble
from ctld.ensembles.temperature import cycles_that_fit


@pytest.mark.parametrize(
    ("steps", "per_epoch", "cycles"),
    [
        (72, 9, 1),
        (225, 9, 3),
        (720, 9, 6),
        (403, 31, 2),
        (186, 31, 1),
        (10_000, 1000, 2),
        (9000, 9000, 1),
        (500, None, 6),
    ],
)
def test_few_steps_or_few_epochs_make_few_cycles(steps, per_epoch, cycles):
    assert cycles_that_fit(steps, per_epoch) == cycles


def train(model, step, steps=100):
    generator = torch.Generator().manual_seed(0)
    for number in range(steps):
        inputs, labels = torch.randn(16, 5, generator=generator), torch.randint(3, (16,), generator=generator)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        step(loss, number)


def test_a_short_run_is_sgd_along_a_cosine():
    model = nn.Linear(5, 3)
    twin = copy.deepcopy(model)
    ensemble = Ensemble(model, 0.1, 160, 100, steps_per_epoch=10, weight_decay=1e-3, seed=0)
    assert (ensemble.cycles, ensemble.exploration_steps, ensemble.temperature) == (1, 0, 0.0)
    train(model, lambda loss, number: ensemble.step(loss))

    sgd = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    factors = torch.optim.lr_scheduler.LambdaLR(
        sgd, lambda step: 0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / 100)).item())
    )

    def step(loss, number):
        sgd.step()
        factors.step()
        sgd.zero_grad()

    train(twin, step)
    torch.testing.assert_close(model.weight, twin.weight, rtol=0, atol=1e-6)
    assert len(ensemble) == 1


@pytest.mark.parametrize(
    ("norm", "noise"), [(nn.Identity(), True), (nn.BatchNorm1d(8), False), (nn.LayerNorm(8), False)]
)
def test_networks_with_norm_layers_get_no_noise(norm, noise):
    model = nn.Sequential(nn.Linear(5, 8), norm, nn.ReLU(), nn.Linear(8, 3))
    options = {"steps_per_epoch": 10, "weight_decay": 1e-2, "temperature": "auto", "seed": 0}
    ensemble = Ensemble(model, 0.1, 160, 3000, **options)
    assert ensemble.cycles == 6
    assert (ensemble.optimizer.temperature > 0) == noise


def test_a_wrong_length_of_an_epoch_is_refused():
    with pytest.raises(ValueError, match="steps_per_epoch"):
        Ensemble(nn.Linear(5, 3), 0.1, 160, 100, steps_per_epoch=0)
