"""Collecting on two ranks: replicated and sharded models, one folder that rank 0 writes."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from ctld import CTLD, Ensemble, SampleCollector, predict
from worlds import in_world

pytestmark = [pytest.mark.xdist_group("worlds"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def collected(rank, size, folder, sharded):
    plain = network()
    inputs, labels = torch.randn(32, 5), torch.randint(3, (32,))
    if sharded:
        model = copy.deepcopy(plain)
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
    optimizer = CTLD(
        model.parameters(),
        0.05,
        num_data=32,
        weight_decay=1e-2,
        exploration_steps=4,
        cycle_steps=6,
        temperature=0.01,
        seed=3,
    )
    on_disk = SampleCollector(model, optimizer, folder=folder)
    in_memory = SampleCollector(model, optimizer)
    for _ in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step(loss=loss.detach())
        on_disk.update(loss=loss)
        in_memory.update(loss=loss)
    dist.barrier()
    held = list(in_memory)
    read = list(SampleCollector.open(folder))
    assert [sample.record for sample in read] == [sample.record for sample in held] == on_disk.records
    assert [record.step for record in on_disk.records] == [6, 12]
    assert all(type(tensor) is torch.Tensor for sample in held for tensor in sample.state.values())
    for one, two in zip(held, read, strict=True):
        assert one.state.keys() == dict(plain.named_parameters()).keys()
        assert all(torch.equal(one.state[name], two.state[name]) for name in one.state)
    return predict(plain, read, inputs).log_probabilities


def an_ensemble(rank, size, folder):
    """Ranks see other batches, and so other losses: what they decide by them must be one decision."""
    model = nn.parallel.DistributedDataParallel(network())
    torch.manual_seed(rank)
    inputs = torch.randn(64, 5)
    labels = inputs[:, :3].argmax(-1)
    ensemble = Ensemble(model, 0.1, 128, 90, cycles=3, weight_decay=1e-2, members=2, keep="best", seed=rank)
    for step in range(90):
        batch = torch.arange(16 * step, 16 * step + 16) % 64
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        ensemble.step(loss)
        if step == 70:
            ensemble.save(folder)
    dist.barrier()
    resumed = Ensemble.load(folder, network())
    return [
        [record.loss for record in ensemble.records],
        ensemble.temperature,
        [sample.state for sample in ensemble.collector],
        resumed.steps,
    ]


def test_an_ensemble_is_one_on_all_ranks(tmp_path):
    one, two = in_world(an_ensemble, 2, str(tmp_path / "saved"))
    assert one[:2] == two[:2]
    assert len(one[0]) == 2
    assert one[3] == two[3] == 71
    for mine, theirs in zip(one[2], two[2], strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("sharded", [False, True])
def test_every_rank_collects_the_whole_model(tmp_path, sharded):
    one, two = in_world(collected, 2, str(tmp_path / "samples"), sharded)
    assert torch.equal(one, two)
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == [
        "000001.safetensors",
        "000002.safetensors",
        "index.json",
    ]
