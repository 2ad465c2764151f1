"""Walkers that share a bias fill it p times as fast, on the double well of spec section 6."""

import copy
import math
import statistics

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import ctld
import parallel_runs as jobs
from worlds import in_world

pytestmark = [pytest.mark.xdist_group("walkers"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

STEP_SIZE, LEVEL, LIMIT = 0.08, 4, 30_000
ALONE, TOGETHER = 16, 6  # replicates, whose times scatter by 40 %
SHORT = 100


def filled_after(seed, walkers=None, process_group=None, steps=LIMIT):
    """Steps until every place of the bias is as high as LEVEL hills, or `steps`; the bias; and α of each hill of this walker's.

    Double well 8(θ² − 1)², T = 1.
    """
    theta = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    tempering = ctld.Tempering.paper(STEP_SIZE, 20_000, mass=1, walkers=walkers)
    optimizer = ctld.CTLD(
        [theta], STEP_SIZE**2, 0.98, num_data=1, exploration_steps=LIMIT, temperature=1.0, tempering=tempering, seed=seed,
        process_group=process_group,
    )  # fmt: skip
    theta.grad = torch.zeros_like(theta)
    place, gradient = theta.detach().numpy(), theta.grad.numpy()
    alphas, deposit = [], tempering.bias.deposit
    tempering.bias.deposit = lambda alpha: (alphas.append(alpha), deposit(alpha))
    for step in range(1, steps + 1):
        x = float(place[0])
        gradient[0] = 32.0 * x * (x * x - 1.0)
        optimizer.step(loss=8.0 * (x * x - 1.0) ** 2)
        if step % 5 == 0 and tempering.bias.values.min() >= LEVEL * tempering.bias.height:
            break
    assert step < LIMIT, "the bias was not filled"
    return step, torch.from_numpy(tempering.bias.values), alphas


def together(rank, size):
    """Replicates on two ranks, one short run on four, where a step takes as long as ten alone; and what twins are told."""
    own = [dist.new_group([each]) for each in range(size)][rank]
    replicates, steps = (TOGETHER, LIMIT) if size == 2 else (1, SHORT)
    shared = [filled_after(1000 * r + rank, dist.group.WORLD, own, steps) for r in range(replicates)]
    try:
        filled_after(7, dist.group.WORLD, own)
        refusal = ""
    except ValueError as error:
        refusal = str(error)
    return {"shared": shared, "refusal": refusal, "resumed": resumed(rank, own)}


def resumed(rank, own):
    """What is said to walkers that load one state, and to walkers that load states of different steps."""
    said, states = [], []

    def advance(optimizer, theta, steps):
        for _ in range(steps):
            theta.grad = torch.ones_like(theta)
            optimizer.step(loss=1.0)

    def fresh(seed, walkers):
        theta = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        tempering = ctld.Tempering.paper(STEP_SIZE, 1000, mass=1, walkers=walkers)
        options = {"num_data": 1, "exploration_steps": 1000, "temperature": 1.0}
        return theta, ctld.CTLD([theta], STEP_SIZE**2, tempering=tempering, seed=seed, process_group=own, **options)

    theta, optimizer = fresh(5 + rank, dist.group.WORLD)
    for _ in range(2):
        advance(optimizer, theta, 4)
        states.append(copy.deepcopy(optimizer.state_dict()))
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, states[0])
    for state in (everyone[0], states[1] if rank else states[0]):
        theta, optimizer = fresh(5 + rank, dist.group.WORLD)
        optimizer.load_state_dict(state)
        try:
            advance(optimizer, theta, 1)
            said.append("")
        except (ValueError, ctld.DriftError) as error:
            said.append(str(error))
    return said


def teams(rank, size):
    """Two walkers of two ranks each."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("walker", "data"))
    walker, member = mesh.get_local_rank("walker"), mesh.get_local_rank("data")
    own = mesh["data"].get_group()
    model = torch.nn.parallel.DistributedDataParallel(jobs.network(), process_group=own)
    tempering = ctld.Tempering.paper(math.sqrt(0.05 / jobs.ROWS), jobs.EXPLORATION, walkers=mesh["walker"].get_group())
    optimizer = ctld.CTLD(
        model.parameters(), 0.05, num_data=jobs.ROWS, weight_decay=1e-2, exploration_steps=jobs.EXPLORATION,
        tempering=tempering, seed=10 + walker, process_group=own,
    )  # fmt: skip
    for step in range(jobs.STEPS):
        jobs.train(model, optimizer, [100 * walker + step], member, 2)
    return jobs.outcome(model, optimizer) | {"walker": walker}


@pytest.fixture(scope="module")
def alone():
    """Times of single walkers, each with a bias of its own."""
    return [filled_after(50_000 + seed)[0] for seed in range(ALONE)]


@pytest.fixture(scope="module", params=[2, 4])
def walkers(request):
    return request.param, in_world(together, request.param)


def log_ratio(times, reference):
    """ln of the ratio of two mean times, and its standard error (delta method; replicates are independent)."""
    parts = [(statistics.fmean(x), statistics.stdev(x) / math.sqrt(len(x))) for x in (times, reference)]
    return math.log(parts[0][0] / parts[1][0]), math.hypot(*(error / mean for mean, error in parts))


@pytest.mark.parametrize("walkers", [2], indirect=True)
def test_two_walkers_fill_the_bias_in_half_the_steps(walkers, alone):
    _, ranks = walkers
    ratio, error = log_ratio([steps for steps, _, _ in ranks[0]["shared"]], alone)
    assert error < 0.22, "too few replicates to tell 1/2 from 1"
    assert abs(ratio + math.log(2)) < 3 * error


def test_walkers_that_do_not_share_gain_nothing(alone):
    """The twin: each with a bias of its own."""
    ratio, error = log_ratio([filled_after(90_000 + seed)[0] for seed in range(2 * TOGETHER)], alone)
    assert abs(ratio + math.log(2)) > 3 * error
    assert abs(ratio) < 3 * error


def test_one_bias_many_alphas(walkers):
    """It is the sum of everybody's hills, to the bit: p walkers fill it in a p-th of the steps."""
    _, ranks = walkers
    for runs in zip(*(found["shared"] for found in ranks), strict=True):
        alone = ctld.Tempering.paper(STEP_SIZE, 20_000, mass=1).bias
        for of_all in zip(*(alphas for _, _, alphas in runs), strict=True):
            assert len(set(of_all)) in (1, len(ranks))  # all begin at 0
            for alpha in of_all:
                alone.deposit(alpha)
        for steps, bias, alphas in runs:
            assert steps == runs[0][0] == len(alphas)
            assert torch.equal(bias, torch.from_numpy(alone.values))


def test_walkers_with_one_seed_are_refused(walkers):
    size, ranks = walkers
    names = ", ".join(map(str, range(size)))
    assert all(f"walkers {names} have the same seed" in found["refusal"] for found in ranks)


def test_walkers_that_resume_as_one_or_at_different_steps_are_refused(walkers):
    _, ranks = walkers
    for found in ranks:
        one, apart = found["resumed"]
        assert "have the same seed" in one
        assert "the walkers do not have one bias: they have made 4, 8" in apart


def test_walkers_of_two_ranks():
    found = in_world(teams, 4)
    assert [each["walker"] for each in found] == [0, 0, 1, 1]
    for one, other in ((0, 1), (2, 3)):  # of one walker
        assert found[one]["alpha"] == found[other]["alpha"]
        assert torch.equal(found[one]["parameters"], found[other]["parameters"])
    assert found[0]["alpha"] != found[2]["alpha"]
    assert jobs.distance(found[0], found[2]) > 1e-3
    for each in found:
        assert torch.equal(each["bias"], found[0]["bias"])


def test_walkers_need_a_process_group():
    with pytest.raises(ValueError, match="init_process_group"):
        ctld.SharedMetadynamics(1.0)
