"""Inputs of a prediction: tensors, arrays or batches, the same ones for every member."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from ctld.checks import integer

Inputs = Tensor | np.ndarray[Any, Any] | Iterable[Any]

# So many numbers of a tensor go into a fingerprint: microseconds for a batch.
_LOOKED_AT = 4096


def as_batches(inputs: Inputs, batch_size: int | None, model: nn.Module) -> Iterable[Any]:
    """Return the inputs as batches that can be gone through again for every member."""
    if isinstance(inputs, np.ndarray):
        inputs = as_tensor(inputs, model)
    if isinstance(inputs, Tensor):
        if inputs.ndim == 0 or len(inputs) == 0:
            raise ValueError("inputs must not be empty. Give at least one row")
        return torch.split(inputs, len(inputs) if batch_size is None else integer("batch_size", batch_size, at_least=1))
    if isinstance(inputs, DataLoader):
        if isinstance(inputs.sampler, RandomSampler) and inputs.batch_size is not None:
            raise _shuffled("shuffles")
    elif isinstance(inputs, Dataset):
        raise TypeError(
            f"inputs must be a tensor or batches, got the dataset {type(inputs).__name__}. Give "
            "DataLoader(dataset, batch_size=256)"
        )
    if batch_size is not None:
        raise ValueError(
            "batch_size must be left out for inputs that come in batches of their own. Give it to the loader"
        )
    if isinstance(inputs, Iterator):
        raise TypeError(
            "inputs must be batches that can be gone through once for each member, got an iterator. Give a list or a DataLoader"
        )
    if _is_pair(inputs):
        raise ValueError("inputs must be the inputs alone, got a pair of inputs and targets. Give the first of the two")
    if not isinstance(inputs, Iterable):
        raise TypeError(f"inputs must be a tensor, an array or batches, got {type(inputs).__name__}")
    return inputs


def as_tensor(values: Any, model: nn.Module | None = None) -> Tensor:
    """Return an array as a tensor; floats in the precision of the model."""
    tensor = torch.as_tensor(values)
    if model is not None and tensor.is_floating_point():
        own = next((p.dtype for p in model.parameters() if p.is_floating_point()), tensor.dtype)
        tensor = tensor.to(own)
    return tensor


class Passes:
    """Compares what each pass over the inputs hands over with the first one.

    A loader that shuffles or augments would average each input's prediction with those of others.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._first: list[int] | None = None

    def __iter__(self) -> Iterator[Any]:
        prints: list[int] = []
        for batch in self._batches:
            here = fingerprint(_of_inputs(batch))
            if self._first is not None and (len(prints) == len(self._first) or here != self._first[len(prints)]):
                raise _shuffled(f"hands over another batch {len(prints)} than before")
            prints.append(here)
            yield batch
        if self._first is not None and len(prints) != len(self._first):
            raise _shuffled(f"hands over {len(prints)} batches and {len(self._first)} before")
        self._first = prints

    def check_again(self) -> None:
        """Compare the first batch of one more pass: for a single member there is no second pass to compare."""
        if not isinstance(self._batches, DataLoader) or not self._first:
            return
        for batch in self._batches:
            if fingerprint(_of_inputs(batch)) != self._first[0]:
                raise _shuffled("hands over another batch 0 than before")
            return


def fingerprint(batch: Any, start: int = 0) -> int:
    """Return a checksum of the numbers in a batch, of some thousand where there are more."""
    if isinstance(batch, np.ndarray):
        batch = torch.as_tensor(batch)
    if isinstance(batch, Tensor):
        flat = batch.detach().reshape(-1)
        step = -(-flat.numel() // _LOOKED_AT) or 1
        content = flat[::step].to("cpu").contiguous()
        raw = content.view(torch.uint8).numpy().tobytes() if content.numel() else b""
        return zlib.crc32(raw, zlib.crc32(repr(tuple(batch.shape)).encode(), start))
    if isinstance(batch, Mapping):
        for name, value in batch.items():
            start = fingerprint(value, zlib.crc32(str(name).encode(), start))
    elif isinstance(batch, tuple | list):
        for value in batch:
            start = fingerprint(value, start)
    elif isinstance(batch, str | int | float | bool):
        start = zlib.crc32(repr(batch).encode(), start)
    return start


def moved(batch: Any, device: torch.device | None) -> Any:
    """Return a batch with its tensors on `device`."""
    if isinstance(batch, Tensor):
        return batch if device is None else batch.to(device)
    if isinstance(batch, Mapping):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def called(model: nn.Module, batch: Any) -> Any:
    """Return what the model gives for a batch's inputs; its logits, where it gives more."""
    inputs = _of_inputs(batch)
    output = model(**inputs) if isinstance(inputs, Mapping) else model(_fit(inputs, model))
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def _fit(inputs: Any, model: nn.Module) -> Any:
    if not isinstance(inputs, np.ndarray):
        return inputs
    first = next(iter(model.parameters()), None)
    return moved(as_tensor(inputs, model), None if first is None else first.device)


def _of_inputs(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name not in ("labels", "label")}
    return batch[0] if isinstance(batch, tuple | list) and batch else batch


def _is_pair(inputs: Any) -> bool:
    """True for (inputs, targets); two batches of one size would have the same type and the same rows."""
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        return False
    first, second = inputs
    arrays = all(isinstance(each, Tensor | np.ndarray) and isinstance(each, Sized) for each in inputs)
    if not arrays or first.ndim == 0 or second.ndim == 0 or len(first) != len(second):
        return False
    # Token sequences of two batches may be padded to two lengths.
    numbers = torch.as_tensor(first).is_floating_point() and first.shape[1:] != second.shape[1:]
    return bool(numbers or first.ndim != second.ndim or first.dtype != second.dtype)


def _shuffled(what: str) -> ValueError:
    return ValueError(
        f"inputs must be the same for every member, got a loader that {what}. Give a DataLoader with shuffle=False and without "
        "random augmentation"
    )
