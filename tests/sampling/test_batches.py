"""Epochs in an order of each chain's own, which can be sought out again."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from ctld.sampling.batches import Batches

CPU = torch.device("cpu")


class Rows(Dataset):
    """As TensorDataset, but one that is fetched row by row, with random numbers of its own."""

    def __init__(self, jitter=0.0):
        self.jitter = jitter

    def __len__(self):
        return 12

    def __getitem__(self, row):
        return torch.tensor(float(row)) + self.jitter * torch.rand(()), row


def loaders():
    plain = TensorDataset(torch.arange(12.0), torch.arange(12))
    yield DataLoader(plain, batch_size=5, shuffle=True)
    yield DataLoader(plain, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(9))
    yield DataLoader(Rows(), batch_size=5, shuffle=True)
    yield DataLoader(Rows(0.5), batch_size=5, shuffle=True, generator=torch.Generator())
    yield DataLoader(Rows(), batch_size=5, sampler=RandomSampler(Rows(), generator=torch.Generator()))


@pytest.mark.parametrize("loader", list(loaders()))
def test_each_chain_goes_through_all_data_in_an_order_of_its_own(loader):
    batches = Batches(loader, 3, seed=4, device=CPU)
    assert not batches.shared
    for _ in range(2):
        rows = torch.cat([batches.next()[1] for _ in range(3)], dim=1)
        assert (rows.sort(dim=1).values == torch.arange(12)).all()
        assert len({tuple(row.tolist()) for row in rows}) == 3
    assert (batches.epoch, batches.place) == (1, 3)


@pytest.mark.parametrize("loader", list(loaders()))
def test_a_place_is_found_again(loader):
    first = Batches(loader, 2, seed=4, device=CPU)
    for _ in range(4):
        first.next()
    second = Batches(loader, 2, seed=4, device=CPU)
    second.seek(first.epoch, first.place)
    for _ in range(5):
        for here, there in zip(first.next(), second.next(), strict=True):
            assert torch.equal(here, there)
    other = Batches(loader, 2, seed=5, device=CPU)
    assert any(not torch.equal(first.next()[1], other.next()[1]) for _ in range(3))


@pytest.mark.parametrize("loader", list(loaders()))
def test_nobody_elses_random_numbers_are_used(loader):
    generators = [torch.default_generator, *(g for g in (loader.generator, loader.sampler.generator) if g is not None)]
    before = [generator.get_state() for generator in generators]
    batches = Batches(loader, 2, seed=4, device=CPU)
    for _ in range(4):
        batches.next()
    assert all(torch.equal(g.get_state(), state) for g, state in zip(generators, before, strict=True))


def test_a_fixed_order_is_shared():
    for loader in (DataLoader(Rows(), batch_size=4), [(torch.ones(2), torch.ones(2))] * 3):
        batches = Batches(loader, 3, seed=0, device=CPU)
        assert batches.shared
        assert batches.next()[0].ndim == 1


def test_a_set_epoch_is_told():
    class Told(RandomSampler):
        epochs = []

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    loader = DataLoader(Rows(), batch_size=12, sampler=Told(Rows()))
    batches = Batches(loader, 1, seed=0, device=CPU)
    for _ in range(3):
        batches.next()
    assert Told.epochs == [0, 1, 2]


def test_batches_of_different_shapes_are_named():
    def pad(rows):
        return torch.zeros(max(row for _, row in rows) + 1)

    loader = DataLoader(Rows(), batch_size=3, shuffle=True, collate_fn=pad)
    batches = Batches(loader, 4, seed=0, device=CPU)
    with pytest.raises(ValueError, match="batches must have one shape in all chains"):
        for _ in range(12):
            batches.next()


def test_a_loader_that_runs_dry_is_named():
    class Once:
        def __iter__(self):
            return iter(())

    with pytest.raises(ValueError, match="loader must have batches, got none in an epoch"):
        Batches(Once(), 1, seed=0, device=CPU).next()
