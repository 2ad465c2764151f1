"""EASGD and EAMSGD as two processes on one machine, beside a simulation of both workers in numpy."""

import io

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from ctld import EAMSGD, EASGD
from worlds import in_world

METHODS = {"easgd": (EASGD, 0.0), "eamsgd": (EAMSGD, 0.7)}
LR, DECAY, PERIOD, STEPS, INTERRUPTION = 0.05, 0.1, 4, 25, 14
SHAPES = [(3, 2), (4,)]
PARTS = [slice(0, 6), slice(6, 10)]
STARTS = [np.linspace(-1.0, 1.5, 10), np.linspace(2.0, -0.5, 10)]  # rank 0's is the first centre


def mean_gradient(x, rank):
    """Of the worker's own data: their minima differ."""
    return x**3 - x - 0.5 * rank


def without_gradient(rank, step):
    """Now and then the second tensor of one worker has none; it takes part in the exchange all the same."""
    return rank == 1 and step in (6, 8)


def simulate(ranks, momentum):
    """x of each worker, and the centre, after each step. Zhang et al. 2015, Algorithms 1 and 2, with y = x + δv for x."""
    pull = 0.9 / len(ranks)
    x = {rank: STARTS[rank].copy() for rank in ranks}
    v = {rank: np.zeros(10) for rank in ranks}
    center = STARTS[ranks[0]].copy()
    paths, centers = {rank: [] for rank in ranks}, []
    for step in range(STEPS):
        gradients = {rank: mean_gradient(x[rank], rank) for rank in ranks}
        if step % PERIOD == 0:
            suggestions = {rank: pull * (x[rank] - center) for rank in ranks}
            center = center + sum(suggestions.values())
            for rank in ranks:
                x[rank] = x[rank] - suggestions[rank]
        for rank in ranks:
            moved = slice(0, 6) if without_gradient(rank, step) else slice(0, 10)
            before = v[rank][moved]
            after = momentum * before - LR * (gradients[rank] + DECAY * x[rank])[moved]
            x[rank][moved] += (1 + momentum) * after - momentum * before
            v[rank][moved] = after
            paths[rank].append(x[rank].copy())
        centers.append(center)
    return {rank: np.array(seen) for rank, seen in paths.items()}, np.array(centers)


def start(name, values, dtype=torch.float64, process_group=None):
    cls, momentum = METHODS[name]
    parameters = [
        nn.Parameter(torch.tensor(values[part], dtype=dtype).reshape(shape))
        for part, shape in zip(PARTS, SHAPES, strict=True)
    ]
    options = {"period": PERIOD, "weight_decay": DECAY, "process_group": process_group}
    return parameters, cls(parameters, LR, momentum, **options)


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def go_on(rank, parameters, optimizer, steps):
    """What the worker and its copy of the centre are after each step."""
    path, centers = [], []
    for step in steps:
        for p in parameters:
            p.grad = mean_gradient(p.detach(), rank)
        if without_gradient(rank, step):
            parameters[1].grad = None
        optimizer.step(loss=1.0)
        path.append(flat(parameters))
        centers.append(flat(optimizer.center()))
    return torch.stack(path), torch.stack(centers)


def resume(name, rank, dtype):
    """Interrupted between two exchanges, and taken up by an optimizer and parameters that began elsewhere."""
    parameters, optimizer = start(name, STARTS[rank], dtype)
    go_on(rank, parameters, optimizer, range(INTERRUPTION))
    buffer = io.BytesIO()
    torch.save([parameters, optimizer.state_dict()], buffer)
    buffer.seek(0)
    values, state = torch.load(buffer, weights_only=True)
    parameters, optimizer = start(name, np.full(10, 7.0 + rank), dtype)
    with torch.no_grad():
        for p, value in zip(parameters, values, strict=True):
            p.copy_(value)
    optimizer.load_state_dict(state)
    return go_on(rank, parameters, optimizer, range(INTERRUPTION, STEPS))


def worker(rank, size):
    alone = [dist.new_group([each]) for each in range(2)][rank]
    results = {}
    for name in METHODS:
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            parameters, optimizer = start(name, STARTS[rank], dtype)
            assert optimizer.workers == 2
            results[f"{name} {dtype}"] = go_on(rank, parameters, optimizer, range(STEPS))
            results[f"{name} {dtype} resumed"] = resume(name, rank, dtype)
        parameters, optimizer = start(name, STARTS[rank], process_group=alone)
        assert optimizer.workers == 1
        results[f"{name} alone"] = go_on(rank, parameters, optimizer, range(STEPS))
    return results


@pytest.fixture(scope="module")
def results():
    """Of both ranks, by rank; all runs in one pair of processes, since starting them takes the time."""
    return in_world(worker, 2)


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
every_method = pytest.mark.parametrize("name", METHODS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])


@every_method
def test_two_workers_are_the_simulation(results, name):
    paths, centers = simulate([0, 1], METHODS[name][1])
    for rank in range(2):
        path, copies = results[rank][f"{name} {torch.float64}"]
        np.testing.assert_allclose(path.numpy(), paths[rank], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(copies.numpy(), centers, rtol=1e-12, atol=1e-12)


@every_method
def test_another_pull_would_be_seen(results, name):
    """The twin: a in place of a/p, as if each worker were alone."""
    paths, _ = simulate([0], METHODS[name][1])
    path, _ = results[0][f"{name} {torch.float64}"]
    assert np.abs(path.numpy()[PERIOD] - paths[0][PERIOD]).max() > 0.01


@every_method
@every_dtype
def test_the_copies_of_the_centre_are_one(results, name, dtype):
    """To the last bit, after every step; and it moves at exchanges only."""
    first, second = (results[rank][f"{name} {dtype}"][1] for rank in range(2))
    assert torch.equal(first, second)
    moves = (first[1:] != first[:-1]).any(1).tolist()
    assert moves == [(step + 1) % PERIOD == 0 for step in range(STEPS - 1)]


@every_method
@every_dtype
def test_workers_differ(results, name, dtype):
    first, second = (results[rank][f"{name} {dtype}"][0] for rank in range(2))
    assert (first != second).any(1).all()


@every_method
def test_springs_pull_the_workers_together(results, name):
    """They start 3 apart, their minima are not the same, and without springs they would not meet."""
    distances = {}
    for run in (str(torch.float64), "alone"):
        first, second = (results[rank][f"{name} {run}"][0] for rank in range(2))
        distances[run] = (first[-1] - second[-1]).norm()
    assert distances[str(torch.float64)] < 0.7 * distances["alone"]


@every_method
@every_dtype
def test_resume_is_bit_for_bit(results, name, dtype):
    for rank in range(2):
        path, centers = results[rank][f"{name} {dtype}"]
        resumed_path, resumed_centers = results[rank][f"{name} {dtype} resumed"]
        assert torch.equal(resumed_path, path[INTERRUPTION:])
        assert torch.equal(resumed_centers, centers[INTERRUPTION:])


@every_method
def test_a_group_of_ones_own(results, name):
    """Any process group will do: with one worker in it there is no one to talk to."""
    for rank in range(2):
        paths, centers = simulate([rank], METHODS[name][1])
        path, copies = results[rank][f"{name} alone"]
        np.testing.assert_allclose(path.numpy(), paths[rank], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(copies.numpy(), centers, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("elasticity", [1.0, 1.2])
def test_springs_that_diverge_are_refused(elasticity):
    with pytest.raises(ValueError, match=rf"elasticity = {elasticity} .* from 1 on"):
        EASGD([torch.nn.Parameter(torch.ones(2))], 0.1, elasticity=elasticity)


def test_an_exchange_that_fails_moves_nothing(monkeypatch):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = EASGD([parameter], 0.1, period=1)
    with torch.no_grad():
        parameter.add_(1.0)
    parameter.grad = torch.zeros(2)

    def fail(*_, **__):
        raise RuntimeError("connection lost")

    monkeypatch.setattr("ctld.optimizers.easgd.distributed", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: 1)
    monkeypatch.setattr(torch.distributed, "all_reduce", fail)
    with pytest.raises(RuntimeError, match="connection lost"):
        optimizer.step()
    assert torch.equal(parameter, torch.full((2,), 2.0))
    assert torch.equal(optimizer.center()[0], torch.ones(2))
