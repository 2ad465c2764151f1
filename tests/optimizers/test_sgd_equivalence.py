"""Without noise, CTLD is torch's SGD with momentum: same arithmetic, same bits, under any scheduler."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from ctld import CTLD
from targets import Classification, train

STEPS = 200

NOISELESS = {
    "no exploration": {"exploration_steps": 0},
    "zero temperature": {"exploration_steps": 120, "temperature": 0.0},
    "no group explores": {"exploration_steps": 120, "temperature": 1.0, "explore": False},
}


def groups(problem, **options):
    first, second = list(problem.model[0].parameters()), list(problem.model[2].parameters())
    return [
        {"params": first, **options},
        {"params": second, "lr": 0.03, "weight_decay": 0.05, "momentum": 0.5, **options},
    ]


def build(dtype, noiseless, maximize=False):
    problem, twin = Classification(dtype=dtype), Classification(dtype=dtype)
    options = dict(NOISELESS[noiseless])
    group_options = {"explore": options.pop("explore")} if "explore" in options else {}
    ours = CTLD(
        groups(problem, **group_options), 0.1, 0.9, weight_decay=1e-2, num_data=96, maximize=maximize, **options
    )
    theirs = torch.optim.SGD(groups(twin), 0.1, 0.9, weight_decay=1e-2, maximize=maximize)
    return problem, ours, twin, theirs


@pytest.mark.parametrize("noiseless", NOISELESS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_cosine_schedule_weight_decay_two_groups(dtype, tolerance, noiseless):
    problem, ours, twin, theirs = build(dtype, noiseless)
    train(problem, ours, range(STEPS), CosineAnnealingLR(ours, STEPS))
    train(twin, theirs, range(STEPS), CosineAnnealingLR(theirs, STEPS))
    torch.testing.assert_close(problem.flat(), twin.flat(), rtol=tolerance, atol=0)
    assert torch.equal(problem.flat(), twin.flat())


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_to_the_last_bit_of_either_implementation(dtype, foreach):
    problem, ours, twin, _ = build(dtype, "no exploration")
    theirs = torch.optim.SGD(groups(twin), 0.1, 0.9, weight_decay=1e-2, foreach=foreach)
    train(problem, ours, range(50))
    train(twin, theirs, range(50))
    assert torch.equal(problem.flat(), twin.flat())


def test_schedules_that_stop_and_cycle():
    """lr = 0 for a while (torch's buffer goes on accumulating), and OneCycleLR, which moves the momentum too."""
    problem, ours, twin, theirs = build(torch.float64, "zero temperature")
    for model, optimizer in ((problem, ours), (twin, theirs)):
        train(model, optimizer, range(60), LambdaLR(optimizer, lambda t: 0.0 if 5 <= t < 15 else 1.0 / (1 + t)))
        train(model, optimizer, range(60, 120), OneCycleLR(optimizer, 0.2, total_steps=60))
    assert torch.equal(problem.flat(), twin.flat())


def test_maximize():
    problem, ours, twin, theirs = build(torch.float64, "no exploration", maximize=True)
    train(problem, ours, range(40))
    train(twin, theirs, range(40))
    assert torch.equal(problem.flat(), twin.flat())


def test_fine_tuning_is_sgd_from_the_momentum_of_the_exploration():
    """At the switch the velocity goes on; torch's SGD, started with it, takes the same path."""
    problem = Classification()
    ours = CTLD(problem.model.parameters(), 0.1, 0.9, weight_decay=1e-2, num_data=96, exploration_steps=30, seed=1)
    train(problem, ours, range(30))
    twin = Classification()
    twin.model.load_state_dict(problem.model.state_dict())
    theirs = torch.optim.SGD(twin.model.parameters(), 0.1, 0.9, weight_decay=1e-2)
    for mine, other in zip(problem.model.parameters(), twin.model.parameters(), strict=True):
        velocity = ours.state[mine]["momentum_buffer"] * 0.1**0.5
        theirs.state[other]["momentum_buffer"] = -velocity / 0.1
    train(problem, ours, range(30, 80), CosineAnnealingLR(ours, 50))
    train(twin, theirs, range(30, 80), CosineAnnealingLR(theirs, 50))
    torch.testing.assert_close(problem.flat(), twin.flat(), rtol=1e-12, atol=1e-14)


def test_exploration_is_not_sgd():
    """The twin that must differ: with noise the paths part."""
    problem, twin = Classification(), Classification()
    ours = CTLD(problem.model.parameters(), 0.1, 0.9, weight_decay=1e-2, num_data=96, exploration_steps=30, seed=1)
    train(problem, ours, range(30))
    train(twin, torch.optim.SGD(twin.model.parameters(), 0.1, 0.9, weight_decay=1e-2), range(30))
    assert (problem.flat() - twin.flat()).norm() > 0.01 * twin.flat().norm()


@pytest.mark.parametrize("options", [{"exploration_steps": 0}, {"exploration_steps": 5, "temperature": 0.0}])
def test_without_noise_the_users_random_numbers_are_left_alone(options):
    """Else swapping the optimizer would change the batches."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    CTLD([torch.nn.Parameter(torch.ones(3))], 0.1, num_data=10, **options)
    assert torch.equal(torch.get_rng_state(), before)
    CTLD([torch.nn.Parameter(torch.ones(3))], 0.1, num_data=10, exploration_steps=5, temperature=0.1)
    assert not torch.equal(torch.get_rng_state(), before)
