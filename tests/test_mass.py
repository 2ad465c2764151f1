"""The diagonal mass matrix by hand: what it gives each element, within which limits, and what becomes of the momenta.

What it does to a run is in optimizers/test_preconditioner.py.
"""

from types import SimpleNamespace

import pytest
import torch

from ctld.mass import FEWEST, Mass, RMSPreconditioner


def adapted(squares, before, *, limit=10.0, seen=FEWEST):
    """Momenta of 3 after one adaptation from scales `before`, and the new scales; the mean of √V is 2."""
    mass = Mass(RMSPreconditioner(limit=limit), 1000)
    momentum = torch.full((len(squares),), 3.0, dtype=torch.float64)
    state = mass.initial_state(momentum)
    state["squares_seen"] = seen
    state["gradient_square"].copy_(torch.tensor(squares, dtype=torch.float64))
    state["scale"].copy_(torch.tensor(before, dtype=torch.float64))
    mass.adapt(SimpleNamespace(states=[state], momenta=[momentum]), 2.0)
    return momentum, state["scale"]


def test_momenta_keep_their_temperature():
    """Σp²/s is what they had: p ← p·√(s/s before)."""
    before = torch.tensor([1.0, 1.0, 5.0])
    momentum, scale = adapted([1.0, 16.0, 4.0], before.tolist())
    assert scale.tolist() == [2.0, 0.5, 1.0]
    torch.testing.assert_close(momentum.square() / scale, 9.0 / before.double())


@pytest.mark.parametrize("limit", [1.0, 1.5, 4.0])
def test_scales_are_within_the_limit(limit):
    _, scale = adapted([1e-4, 4.0, 1e4], [1.0, 1.0, 1.0], limit=limit)
    assert scale.tolist() == pytest.approx([limit, 1.0, 1 / limit])


def test_an_element_without_gradient_moves_as_lr_says():
    momentum, scale = adapted([0.0, 1.0], [1.0, 2.0])
    assert scale.tolist() == [1.0, 2.0]
    assert momentum.tolist() == [3.0, 3.0]


def test_too_few_gradients_change_nothing():
    momentum, scale = adapted([1.0], [1.0], seen=FEWEST - 1)
    assert (momentum.item(), scale.item()) == (3.0, 1.0)
