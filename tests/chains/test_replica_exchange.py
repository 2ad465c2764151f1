"""Parallel tempering on two Gaussians with known odds; its ladder, its order of swaps, its state."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld import BAOAB, SGLD
from ctld.chains import Chains, ReplicaExchange
from ctld.diagnostics import estimate
from targets import equal, saved

ODDS, APART, WIDTH = 0.75, 4.0, 0.5
DATA = [(torch.zeros(1, dtype=torch.float64),)]


class Point(nn.Module):
    """A point on the line between two Gaussians, of which the right one has three quarters."""

    def __init__(self, place=-APART):
        super().__init__()
        self.place = nn.Parameter(torch.tensor([place], dtype=torch.float64))

    def forward(self, _):
        left = math.log(1 - ODDS) - 0.5 * ((self.place + APART) / WIDTH) ** 2
        right = math.log(ODDS) - 0.5 * ((self.place - APART) / WIDTH) ** 2
        return -torch.logaddexp(left, right).sum()


def built(rungs=6, *, hottest=40.0, seed=0, **options):
    models = [Point() for _ in range(rungs)]
    optimizers = [
        BAOAB(model.parameters(), 0.05, 0.5, num_data=1, seed=100 * seed + chain) for chain, model in enumerate(models)
    ]
    chains = Chains(models, optimizers, lambda model, data: model(data))
    return ReplicaExchange(chains, DATA, hottest=hottest, seed=seed, **options)


def exact(exchange, generator):
    """Put every chain where an independent draw at its own temperature is, by the inverse of the distribution on a grid."""
    grid = np.linspace(-60.0, 60.0, 24001)
    left = math.log(1 - ODDS) - 0.5 * ((grid + APART) / WIDTH) ** 2
    right = math.log(ODDS) - 0.5 * ((grid - APART) / WIDTH) ** 2
    logarithm = np.logaddexp(left, right)
    for chain, rung in enumerate(exchange.rung_of):
        density = np.exp((logarithm - logarithm.max()) / exchange.ladder[rung])
        with torch.no_grad():
            drawn = np.interp(generator.random(), np.cumsum(density) / density.sum(), grid)
            exchange.chains.models[chain].place.fill_(drawn)


# ---- the law ----


@pytest.mark.slow
def test_two_gaussians_with_known_odds():
    """The barrier is 32 T: no chain crosses it by itself. 4 standard errors of batch means; the twin has no swaps."""

    def share(exchange, steps):
        found = []
        for _ in range(steps):
            exchange.step(*DATA[0])
            if exchange.is_draw:
                found.append(exchange.cold_model.place.item() > 0)
        return estimate(np.array(found, dtype=np.float64))

    exchange = built(adapt_steps=1500, every=5)
    found = share(exchange, 9_000)
    assert found.standard_error < 0.08
    assert abs(found.mean - ODDS) < 4.0 * found.standard_error
    assert exchange.round_trips > 20
    twin = built(adapt_steps=500, every=10**6)
    found = share(twin, 2000)
    assert abs(found.mean - ODDS) > 4.0 * found.standard_error
    assert twin.round_trips == 0


def test_swaps_leave_the_law_of_every_rung():
    """Pairs of exact draws, swapped: the mean of U at each temperature is the same before and after.

    A swap that accepted always would move energies from rung to rung: the twin.
    """
    exchange = built(rungs=4, hottest=30.0)
    generator = np.random.default_rng(0)
    before, after, twin = [], [], []
    for _ in range(600):
        exact(exchange, generator)
        energies = exchange.energies().numpy()
        chain_at = [exchange.rung_of.index(rung) for rung in range(4)]
        before.append(energies[chain_at])
        pairs = [(rung, rung + 1) for rung in range(exchange.swaps % 2, 3, 2)]
        crossed = list(chain_at)
        for low, high in pairs:
            crossed[low], crossed[high] = crossed[high], crossed[low]
        twin.append(energies[crossed])
        exchange.swap()
        after.append(energies[[exchange.rung_of.index(rung) for rung in range(4)]])
    before, after, twin = map(np.array, (before, after, twin))

    def worst(left, right):
        change = left - right
        return float(np.max(np.abs(change.mean(axis=0)) / (change.std(axis=0) / math.sqrt(len(change)))))

    assert worst(after, before) < 4.0
    assert worst(twin, before) > 4.0
    assert 0.05 < exchange.rejection_rates.min() <= exchange.rejection_rates.max() < 0.95


def test_the_ladder_adapts_to_equal_rejection():
    """From a ladder whose first rungs are crowded: the rejection rates differ less by far after rounds of adaptation."""
    exchange = built(rungs=5, hottest=200.0, adapt_steps=1)
    exchange.ladder = np.array([1.0, 1.05, 1.1, 1.2, 200.0])
    generator = np.random.default_rng(0)

    def swapped(count):
        for _ in range(count):
            exact(exchange, generator)
            exchange.swap()

    swapped(19)
    uneven = exchange.rejection_rates.std()
    swapped(1 + 40 + 80 + 160)
    exchange.steps = 2  # the adaptation is over
    ladder = exchange.ladder.copy()
    swapped(400)
    assert (exchange.ladder == ladder).all()
    assert exchange.rejection_rates.std() < 0.3 * uneven
    assert (np.diff(ladder) > 0).all()
    assert (ladder[0], ladder[-1]) == pytest.approx((1.0, 200.0))
    assert exchange.barrier == pytest.approx(exchange.rejection_rates.sum())


# ---- how it goes ----


def test_a_temperature_keeps_its_direction_where_every_swap_is_taken():
    """Equal energies: even pairs, then odd pairs, carry each chain up the ladder and down again in 2K swaps."""
    exchange = built(rungs=4)
    seen = []
    for _ in range(16):
        exchange.swap()  # all points lie in the same place
        seen.append(exchange.rung_of[0])
    assert seen == [1, 2, 3, 3, 2, 1, 0, 0] * 2
    assert exchange.round_trips == 0  # nothing counts before the first step
    assert exchange.rejection_rates.max() == 0.0


def test_momenta_have_the_temperature_of_their_rung():
    exchange = built(rungs=2, hottest=9.0)
    optimizers = exchange.chains.optimizers
    before = [optimizer.state_dict()["state"][0]["momentum_buffer"].clone() for optimizer in optimizers]
    exchange.swap()
    assert [optimizer.temperature for optimizer in optimizers] == pytest.approx([9.0, 1.0])
    after = [optimizer.state_dict()["state"][0]["momentum_buffer"] for optimizer in optimizers]
    assert after[0].item() == pytest.approx(3.0 * before[0].item())
    assert after[1].item() == pytest.approx(before[1].item() / 3.0)


def test_energies_have_the_prior_and_all_batches():
    models = [nn.Linear(2, 1, bias=False).double() for _ in range(2)]
    optimizers = [
        SGLD(model.parameters(), 0.1, num_data=6, weight_decay=0.3, seed=seed) for seed, model in enumerate(models)
    ]
    inputs, targets = torch.randn(6, 2).double(), torch.randn(6, 1).double()
    chains = Chains(models, optimizers, lambda model, x, y: (model(x) - y).square().mean())
    data = [(inputs[:4], targets[:4]), (inputs[4:], targets[4:])]
    exchange = ReplicaExchange(chains, data, hottest=5.0)
    for model, energy in zip(models, exchange.energies(), strict=True):
        law = (model(inputs) - targets).square().sum() + 0.5 * 6 * 0.3 * model.weight.square().sum()
        assert float(energy) == pytest.approx(law.item())
    with pytest.raises(ValueError, match=r"data must have all 6 examples, got 4: swaps by energies of a part"):
        ReplicaExchange(chains, data[:1], hottest=5.0)


def test_a_state_goes_on_to_the_same_bits():
    def run(exchange, steps):
        for _ in range(steps):
            exchange.step(*DATA[0])
        return exchange

    whole = run(built(adapt_steps=60, every=2), 100)
    state = saved(run(built(adapt_steps=60, every=2), 50).state_dict())
    resumed = built(adapt_steps=60, every=2)
    resumed.load_state_dict(copy.deepcopy(state))
    assert equal(saved(run(resumed, 50).state_dict()), saved(whole.state_dict()))
    with pytest.raises(ValueError, match="the state must have 4 rungs, got 6"):
        built(rungs=4).load_state_dict(state)


def test_refusals():
    with pytest.raises(ValueError, match="chains must be two at least, got 1"):
        built(rungs=1)
    with pytest.raises(ValueError, match=r"hottest = 1\.0 is out of range"):
        built(hottest=1.0)
    models = [Point() for _ in range(2)]
    chains = Chains(models, [torch.optim.SGD(m.parameters(), 0.1) for m in models], lambda model, data: model(data))
    with pytest.raises(TypeError, match=r"optimizers must have set_temperature, got a SGD"):
        ReplicaExchange(chains, DATA, hottest=5.0)
