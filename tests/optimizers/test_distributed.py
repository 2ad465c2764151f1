"""Two processes with their own seeds and batches: one seed, one noise, one α, one decision to refuse."""

import math

import pytest
import torch
import torch.distributed as dist

from ctld import CTLD, NonFiniteError
from targets import Classification
from worlds import in_world


def _train(rank, size):
    torch.manual_seed(rank)  # the default seeds differ; rank 0's must win
    problem = Classification()
    optimizer = CTLD(problem.model.parameters(), 0.05, 0.8, weight_decay=1e-2, num_data=96, exploration_steps=10)
    refusals = 0
    for step in range(15):
        loss = problem.backward(2 * step + rank)
        for p in problem.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        if step == 4 and not refusals and rank == 1:
            loss = loss * math.nan
        try:
            optimizer.step(loss=loss)
        except NonFiniteError:
            refusals += 1
    # Built before the replicas were made equal, as is legal with torch's SGD: rank 0's choice of T is everyone's.
    weights = torch.nn.Parameter(torch.full((3, 3), 0.1 * (1 + rank)))
    early = CTLD([weights], 0.05, weight_decay=1e-2, num_data=96, exploration_steps=10)
    return [problem.flat(), optimizer.state_dict(), refusals, early.temperature]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_ranks_are_one_run():
    found = in_world(_train, 2)
    (first, first_state, first_refusals, first_early), (second, second_state, second_refusals, second_early) = found
    assert torch.equal(first, second)
    left, right = first_state["param_groups"][0], second_state["param_groups"][0]
    for key in ("ctld_seed", "ctld_tempering_alpha", "ctld_step"):
        assert left[key] == right[key]
    assert torch.equal(left["ctld_tempering_bias_values"], right["ctld_tempering_bias_values"])
    # The NaN of rank 1 is refused by both, and counted by neither.
    assert first_refusals == second_refusals == 1
    assert left["ctld_step"] == 14
    assert first_early == second_early > 0
