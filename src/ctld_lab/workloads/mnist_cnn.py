"""Keras' example for MNIST, as it was in 2017: two convolutions 3 × 3, one dense layer, dropout. 1,199,882 parameters.

Mean cross-entropy over batches of 128, pixels in [0, 1]. Initialised as torch does.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctld_lab.streams import stream_seed, torch_generator

BATCH_SIZE = 128


def keras_cnn() -> nn.Sequential:
    """Keras' example for MNIST, as it was in 2017: two convolutions 3 × 3, one dense layer, dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


class MnistCNN:
    """`images` are pixels, one row an image of 28 × 28; `labels` are 0 to 9."""

    def __init__(
        self, images: NDArray[np.uint8], labels: NDArray[np.uint8], *, seed: int, batch_size: int = BATCH_SIZE
    ) -> None:
        if not 0 < batch_size <= len(images):
            raise ValueError(f"batch_size = {batch_size} does not fit {len(images)} images; give 1 to {len(images)}")
        self.images = torch.tensor(images, dtype=torch.float32).div_(255.0).view(-1, 1, 28, 28)
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self.seed = seed
        self.batch_size = batch_size

    @property
    def num_data(self) -> int:
        return len(self.labels)

    @property
    def batches_per_epoch(self) -> int:
        """The last, smaller one is counted, as Keras does: 469 of 60,000 images."""
        return -(-self.num_data // self.batch_size)

    def build_model(self) -> nn.Sequential:
        """The same at every call; the global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self.seed, "initialisation"))
            return keras_cnn()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One after another, without end: images and labels. Each epoch is a new order; the last batch may be smaller."""
        generator = torch_generator(self.seed, "data")
        while True:
            order = torch.randperm(self.num_data, generator=generator)
            for start in range(0, self.num_data, self.batch_size):
                rows = order[start : start + self.batch_size]
                yield self.images[rows], self.labels[rows]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean cross-entropy of a batch, in nats."""
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)
