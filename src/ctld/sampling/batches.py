"""The batches of several chains: epoch after epoch of a loader, in an order of its own for each chain.

Where it stands is two numbers, epoch and place. All randomness of an epoch comes from the seed, the chain and the epoch's
number, so that a resumed run sees the batches that the first one would have seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, default_collate

from ctld.ensembles.prediction import moved


def seed_of(*words: object) -> int:
    """Return a seed that other words do not have."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:7], "big")


class Batches:
    """Endless batches for `num_chains` chains.

    Parameters
    ----------
    loader : DataLoader or any iterable that can be gone through again and again
    num_chains : int
    seed : int
    device : device
        Where batches are moved.
    """

    def __init__(self, loader: Iterable[Any], num_chains: int, *, seed: int, device: torch.device) -> None:
        if isinstance(loader, Iterator):
            raise TypeError(
                "loader must be gone through once for each epoch, got an iterator. Give a DataLoader or a list of batches"
            )
        if isinstance(loader, Sized) and len(loader) == 0:
            raise ValueError("loader must have batches, got an empty one. Do give it data")
        self._loader, self._seed, self._device = loader, seed, device
        self._orders = num_chains if _ordered_at_random(loader) and num_chains > 1 else 1
        self.shared = self._orders == 1
        """True if all chains see the same batch; else each tensor has one entry for each chain in its first dimension."""
        self.reshuffled = not getattr(getattr(loader, "sampler", None), "replacement", False)
        """True if an epoch has every example once; else its batches are independent."""
        self._tensors = _tensors_of(loader)
        self._streams = [_Stream(_generators(loader)) for _ in range(self._orders)]
        self._running: list[Iterator[Any]] = []
        self.epoch, self.place = 0, 0

    def seek(self, epoch: int, place: int) -> None:
        """Go to where `place` batches of `epoch` have been given."""
        self.epoch, self.place = epoch, 0
        self._begin()
        for _ in range(place):
            self.next()

    def next(self) -> Any:
        """Return the next batch of every chain."""
        if not self._running:
            self._begin()
        found = self._advance()
        if found is None:
            self.epoch, self.place = self.epoch + 1, 0
            self._begin()
            found = self._advance()
        if found is None:
            raise ValueError(
                "loader must have batches, got none in an epoch. Give a loader that can be gone through again"
            )
        self.place += 1
        return found

    def _begin(self) -> None:
        set_epoch = getattr(getattr(self._loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        self._running = []
        for order, stream in enumerate(self._streams):
            stream.start(seed_of(self._seed, "batches", order, self.epoch))
            with stream.playing():
                if self._tensors is None:
                    self._running.append(iter(self._loader))
                else:
                    sampler: Any = getattr(self._loader, "batch_sampler", None)
                    self._running.append(iter([torch.tensor(batch) for batch in sampler]))

    def _advance(self) -> Any:
        if self._tensors is not None:
            rows = [next(running, None) for running in self._running]
            chosen = [row for row in rows if row is not None]
            if len(chosen) < len(rows):
                return None
            index = chosen[0] if self.shared else torch.stack(chosen)
            return moved([tensor[index] for tensor in self._tensors], self._device)
        found = []
        for stream, running in zip(self._streams, self._running, strict=True):
            with stream.playing():
                try:
                    found.append(next(running))
                except StopIteration:
                    return None
        if self.shared:
            return moved(found[0], self._device)
        return moved(_stacked(found), self._device)


def _stacked(batches: list[Any]) -> Any:
    try:
        return tree_map(_stack, *batches)
    except RuntimeError as error:
        raise ValueError(
            "batches must have one shape in all chains, got different ones. Pad them to one length, or give the loader a "
            f"fixed order ({error})"
        ) from error


def _stack(*values: Any) -> Any:
    return torch.stack(values) if isinstance(values[0], Tensor) else values[0]


class _Stream:
    """The states of random generators that belong to one chain's order, put in force while that chain fetches a batch."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self._generators = generators
        self._states: list[Tensor] = []

    def start(self, seed: int) -> None:
        self._states = [
            torch.Generator().manual_seed(seed + number).get_state() for number in range(len(self._generators))
        ]

    @contextmanager
    def playing(self) -> Iterator[None]:
        before = [generator.get_state() for generator in self._generators]
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
        try:
            yield
        finally:
            self._states = [generator.get_state() for generator in self._generators]
            for generator, state in zip(self._generators, before, strict=True):
                generator.set_state(state)


def _generators(loader: Any) -> list[torch.Generator]:
    """Return the generators that a loader draws from: torch's own, and those that it was given."""
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    given = [getattr(each, "generator", None) for each in (loader, *samplers)]
    found = [torch.default_generator]
    for generator in given:
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found):
            found.append(generator)
    return found


def _ordered_at_random(loader: Any) -> bool:
    """True if going through the loader twice at the same time gives two random orders."""
    return (
        isinstance(loader, DataLoader)
        and loader.num_workers == 0  # workers of their own for each chain would be too many
        and isinstance(loader.sampler, RandomSampler)
    )


def _tensors_of(loader: Any) -> tuple[Tensor, ...] | None:
    """Return the tensors of a plain TensorDataset, whose batches are cut much faster by index than row by row."""
    plain = (
        type(loader) is DataLoader
        and type(loader.dataset) is TensorDataset
        and loader.num_workers == 0
        and loader.collate_fn is default_collate
        and loader.batch_sampler is not None
        and not loader.pin_memory
    )
    return tuple(loader.dataset.tensors) if plain else None
