"""Data and networks: digits, wines, characters. The loss is the mean cross-entropy everywhere."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from ctld_lab.data import load_images, load_text, uci
from ctld_lab.streams import numpy_generator, stream_seed
from images import pictures

Labelled = tuple[Tensor, Tensor]
DIGITS_SIDE = 28
WINDOW = 50  # characters


@dataclass(frozen=True)
class Size:
    """Gradients that a method may spend, rows of data, and the shape of the network."""

    steps: int
    train: int
    valid: int
    test: int
    batch: int
    cycles: int = 6
    width: int = 256
    clip: float = 0.0
    """Gradient elements are cut here; 0 means nowhere."""


@dataclass(frozen=True)
class Problem:
    """`held_out` is validation data in trials and test data in final runs."""

    name: str
    size: Size
    build: Callable[[float], nn.Module]
    """Return a network, given the share of units that drop out."""
    train: Labelled
    held_out: Labelled
    valid: Labelled
    strange: Mapping[str, Tensor] = field(default_factory=dict)
    """Inputs of kinds that training has not seen."""

    @property
    def num_data(self) -> int:
        """Number of training labels: N, the factor between the mean loss and the energy."""
        return self.train[1].numel()

    def model(self, seed: int, member: int = 0, dropout: float = 0.0) -> nn.Module:
        """Return a network with initial weights of its own; the global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "initialisation", member))
            return self.build(dropout)

    def loss(self, model: nn.Module, batch: Labelled) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())

    def batches(self, seed: int, steps: int, member: int = 0) -> Iterator[Labelled]:
        """Yield batches, shuffled anew in each epoch; rows that do not fill a batch are left out of the epoch."""
        each, count = self.size.batch, len(self.train[0])
        for step in range(steps):
            epoch, place = divmod(step, count // each)
            if place == 0:
                order = torch.from_numpy(numpy_generator(seed, "data", member, epoch).permutation(count))
            rows = order[place * each : (place + 1) * each]
            yield self.train[0][rows], self.train[1][rows]


def load(name: str, size: Size, seed: int, *, tuning: bool, small: bool = False) -> Problem:
    """Return a problem. `small` takes data that come with packages. Test data are not even read in trials."""
    loader = {"digits5k": digits, "digits60k": digits, "wine": wine, "text": text}[name]
    return loader(name, size, seed, tuning, small)


def perceptron(*widths: int) -> Callable[[float], nn.Module]:
    def build(dropout: float) -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        return nn.Sequential(*layers[: -2 if dropout else -1])

    return build


def digits(name: str, size: Size, seed: int, tuning: bool, small: bool) -> Problem:
    """Each seed draws its own training images; the last images of MNIST's training set validate."""
    images = load_images("digits" if small else "mnist")
    pixels = torch.from_numpy(images.train).float().div_(255.0)
    labels = torch.from_numpy(images.train_labels.astype(np.int64))
    cut = len(pixels) - size.valid
    rows = torch.from_numpy(numpy_generator(seed, "subset").permutation(cut)[: size.train])
    train, valid = (pixels[rows], labels[rows]), (pixels[cut:], labels[cut:])
    build = perceptron(DIGITS_SIDE**2, size.width, size.width, 10)
    if tuning:
        return Problem(name, size, build, train, valid, valid)
    test = torch.from_numpy(images.test[: size.test]).float().div_(255.0)
    answers = torch.from_numpy(images.test_labels[: size.test].astype(np.int64))
    strange = {"halves of two digits": halves(test, answers), "photographs": photographs()}
    return Problem(name, size, build, train, (test, answers), valid, strange)


def halves(images: Tensor, labels: Tensor) -> Tensor:
    """Return the upper half of each image above the lower half of the next image of another digit."""
    near = torch.arange(1, 1 + min(100, len(labels) - 1))
    others = (torch.arange(len(labels))[:, None] + near) % len(labels)
    first = (labels[others] != labels[:, None]).int().argmax(dim=1)
    lower = images[others[torch.arange(len(labels)), first]]
    half = images.shape[1] // 2
    return torch.cat([images[:, :half], lower[:, half:]], dim=1)


def photographs() -> Tensor:
    """Return squares of the size of a digit, cut from photographs that packages bring, in shades of grey."""
    squares = []
    for name in (*pictures.TUNING, *pictures.FINAL):
        grey = pictures.load(name).mean(dim=0).reshape(pictures.SIDE, pictures.SIDE)
        patches = grey.unfold(0, DIGITS_SIDE, 12).unfold(1, DIGITS_SIDE, 12)
        squares.append(patches.reshape(-1, DIGITS_SIDE**2))
    return torch.cat(squares)


def wine(name: str, size: Size, seed: int, tuning: bool, small: bool) -> Problem:
    """Grades of red wines. Duplicates count once; test rows are the same for every seed, validation rows are not."""
    if small:
        from sklearn.datasets import load_wine

        table, grades = load_wine(return_X_y=True)
    else:
        table, targets, _ = uci.load("wine-quality-red")
        grades = targets[:, 0].round().astype(np.int64)
    table, first = np.unique(table, axis=0, return_index=True)
    labels = torch.from_numpy(np.unique(grades, return_inverse=True)[1][first])
    tested, others = np.split(numpy_generator(0, "subset").permutation(len(labels)), [size.test])
    others = others[numpy_generator(seed, "subset", 1).permutation(len(others))]
    parts = tested, others[: size.valid], others[size.valid :]
    train = table[parts[2]]
    inputs = torch.from_numpy((table - train.mean(axis=0)) / train.std(axis=0)).float()
    test, valid, known = ((inputs[rows], labels[rows]) for rows in parts)
    build = perceptron(inputs.shape[1], size.width, size.width, int(labels.max()) + 1)
    return Problem(name, size, build, known, valid if tuning else test, valid)


class Reader(nn.Module):
    """Embedding, two LSTM layers with dropout, output; each window is read from an empty memory."""

    def __init__(self, symbols: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, symbols)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.dropout(self.lstm(self.embedding(inputs))[0]))


@lru_cache(maxsize=1)
def windows(source: str, train: int, held_out: int) -> tuple[int, list[Labelled]]:
    """Return the number of symbols, and windows of fifty characters with the characters that follow as labels."""
    read = load_text(source)
    parts = [read.train[: train * WINDOW + 1], read.valid[: held_out * WINDOW + 1], read.test[: held_out * WINDOW + 1]]
    found = []
    for part in parts:
        characters = torch.from_numpy(part.astype(np.int64))
        found.append((characters[:-1].reshape(-1, WINDOW), characters[1:].reshape(-1, WINDOW)))
    return int(read.train.max()) + 1, found


def text(name: str, size: Size, seed: int, tuning: bool, small: bool) -> Problem:
    symbols, (train, valid, test) = windows("pydoc" if small else "enwik8", size.train, size.valid)
    return Problem(
        name, size, lambda dropout: Reader(symbols, size.width, dropout), train, valid if tuning else test, valid
    )
