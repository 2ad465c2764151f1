"""How much of the batches' heat stays in reshuffled epochs, as the thermometers read it from the parameters."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from ctld import CTLD, TemperatureWarning, Tempering
from ctld.diagnostics import remaining_heat
from ctld.thermometers.epochs import KEPT, LOOKS, EpochShare, place_of
from ctld.thermometers.probe import PROJECTIONS
from targets import equal, saved

BATCHES, SIZE, DIMENSION, MOMENTUM = 10, 5, 200, 0.7
OPTIONS = {"num_data": BATCHES * SIZE, "temperature": 1.0, "integrator": "baoab", "seed": 3}


def test_the_share_of_an_autoregression():
    """1 − Var(mean of an epoch)/Var, of 32 epochs and 4 projections: within 12 %, at a sixth of the other rate's share."""
    for rate, count in ((0.2, 8), (0.02, 8)):
        generator = np.random.default_rng(0)
        row, found = generator.standard_normal(PROJECTIONS), []
        for _ in range(20):
            share = EpochShare()
            for _ in range(KEPT):
                for place in range(6 * count):  # of six epochs one is watched, as with ten batches in each
                    if place < count:
                        share.add(row, first=place == 0, looks=count)
                    row = (1 - rate) * row + np.sqrt(rate * (2 - rate)) * generator.standard_normal(PROJECTIONS)
            found.append(share.share)
        law = float(remaining_heat(rate, 1.0, count)) * (count - 1) / count
        assert np.mean(found) == pytest.approx(law, rel=0.12)
        assert np.mean(found) != pytest.approx(float(remaining_heat(0.05, 1.0, count)), rel=0.12)


@pytest.mark.parametrize("count", [2, 7, 8, 10, 61, 1000])
def test_looks_are_evenly_spaced_and_few(count):
    places = [(step, place_of(step, count)) for step in range(100 * count)]
    looked = [step for step, found in places if found is not None]
    assert 0 < len(looked) <= 100 * count / 8 + count
    first = [step for step in looked if step < count]
    assert len(first) == min(LOOKS, count)
    assert max(np.diff(first), default=0) - min(np.diff(first), default=0) <= 1
    assert first == [step for step in range(count) if place_of(step, count) is not None]
    assert [place_of(step, count)[0] for step in first] == list(range(len(first)))


def test_an_epoch_that_was_entered_in_its_middle_does_not_count():
    share = EpochShare()
    for _ in range(1, 8):
        share.add([1.0] * PROJECTIONS, first=False, looks=8)
    assert share.numbers[:2] == [0.0, 0.0]
    assert share.share is None
    share.add([2.0] * PROJECTIONS, first=True, looks=8)
    twin = EpochShare()
    twin.numbers = share.numbers
    assert twin.numbers == share.numbers
    assert twin.numbers[0] == 1.0


def trained(steps_per_epoch, steps, lr=0.015, state=None, start=0):
    """A Gaussian posterior with batches in reshuffled epochs, whose heat is a quarter of T, and mostly undone."""
    centers = torch.randn(BATCHES * SIZE, DIMENSION, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centers = centers - centers.mean(dim=0)
    theta = nn.Parameter(torch.zeros(DIMENSION, dtype=torch.float64))
    options = OPTIONS | {
        "tempering": Tempering.constant(),
        "exploration_steps": 10**6,
        "steps_per_epoch": steps_per_epoch,
    }
    optimizer = CTLD([theta], lr, MOMENTUM, **options)
    if state is not None:
        with torch.no_grad():
            theta.copy_(state[1])
        optimizer.load_state_dict(state[0])
    for step in range(start, steps):
        epoch, place = divmod(step, BATCHES)
        rows = torch.randperm(len(centers), generator=torch.Generator().manual_seed(epoch)).view(BATCHES, SIZE)[place]
        theta.grad = theta.detach() - centers[rows].mean(dim=0)
        optimizer.step(loss=0.0)
    return optimizer, theta


def test_reshuffled_epochs_give_no_false_alarm():
    """The momenta are hot, and a tenth of the heat stays in θ: nothing to warn of. Without being told of epochs it warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer, _ = trained(BATCHES, 6000)
    group = optimizer.last.groups[0]
    law = float(remaining_heat(0.015, 1.0, BATCHES, momentum=MOMENTUM))
    assert group.kinetic.mean > 1.12
    assert group.remaining_heat == pytest.approx(law, rel=0.5)
    assert abs(group.effective.mean - 1.0) < 0.08
    with pytest.warns(TemperatureWarning, match=r"give steps_per_epoch=len\(loader\)"):
        trained(None, 6000)


def test_heat_that_stays_is_told():
    """At ten times the rate an epoch is five relaxation times, and most heat stays."""
    with pytest.warns(
        TemperatureWarning, match=r"and the parameters have one of \d\.\d\d; the noise of the minibatches adds"
    ):
        trained(BATCHES, 6000, lr=0.15)


def test_a_resumed_run_reads_the_same():
    whole, _ = trained(BATCHES, 1500)
    first, theta = trained(BATCHES, 777)
    second, _ = trained(BATCHES, 1500, state=(saved(first.state_dict()), theta.detach().clone()), start=777)
    assert equal(saved(whole.state_dict()), saved(second.state_dict()))
    assert whole.last.groups == second.last.groups
    assert whole.last.groups[0].remaining_heat is not None


def test_a_state_from_before_has_no_epochs():
    optimizer, _ = trained(BATCHES, 400)
    state = optimizer.state_dict()
    del state["param_groups"][0]["ctld_epoch_shares"]
    fresh, _ = trained(BATCHES, 0)
    fresh.load_state_dict(state)
    assert fresh.steps == 400
