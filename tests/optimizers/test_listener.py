"""A listener hears of every step that was taken, with its loss, whoever calls `step`."""

import copy

import pytest
import torch

from ctld import CTLD
from targets import Classification


def build(problem):
    return CTLD(
        problem.model.parameters(), 0.05, num_data=96, temperature=0.01, exploration_steps=2, cycle_steps=4, seed=1
    )


def test_it_hears_every_loss_in_both_phases():
    problem = Classification()
    optimizer, heard = build(problem), []
    optimizer.listener = lambda result, losses: heard.append((optimizer.steps, result, losses))
    for step in range(4):
        loss = problem.backward(step)
        if step % 2:
            optimizer.observe(loss / 2)
            optimizer.observe(loss / 2)
            optimizer.step()
        else:
            optimizer.step(loss=loss)
        assert heard[step][0] == step + 1
        assert sum(heard[step][2]) == pytest.approx(float(loss))
    assert [result is None for _, result, _ in heard] == [False, True, False, True]
    with pytest.raises(ValueError, match="refused"):
        optimizer.step(loss=float("nan"))
    assert len(heard) == 4


def test_it_changes_nothing_and_stays_with_the_original():
    one, two = Classification(), Classification()
    plain, heard = build(one), build(two)
    heard.listener = lambda result, losses: None
    for step in range(8):
        plain.step(loss=one.backward(step))
        heard.step(loss=two.backward(step))
    assert torch.equal(one.flat(), two.flat())
    assert copy.deepcopy(heard).listener is None
