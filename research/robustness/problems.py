"""Small problems on which an ensemble's default is designed and, on others, judged: data, network, loss.

Every problem deals its rows out anew for each seed: rows to train on, and rows to judge by that no method sees.
"""

import gzip
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

DATA = Path("data")
"""Where MNIST, UCI's sets and the texts lie; `--data` changes it."""


@dataclass(frozen=True)
class Problem:
    """A network, its data and the learning rates at which people would train it."""

    name: str
    load: Callable[[], tuple[Tensor, Tensor]]
    """All inputs and targets."""
    network: Callable[[float], nn.Module]
    """From a rate of dropout."""
    rows: int
    """How many train; the others judge, `judged` of them at most."""
    rates: tuple[float, float]
    budgets: tuple[int, int]
    """Epochs: a short and a long training."""
    batch: int = 32
    judged: int = 2000
    task: str = "classes"
    wrong_labels: float = 0.0

    def draw(self, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows to train on and rows to judge by, standardized by the first for tables."""
        inputs, targets = self.load()
        order = torch.from_numpy(np.random.default_rng([seed, 1]).permutation(len(inputs)))
        train, judged = order[: self.rows], order[self.rows : self.rows + self.judged]
        x, y = inputs[train], targets[train].clone()
        a, b = inputs[judged], targets[judged]
        if x.dim() == 2 and x.is_floating_point() and x.shape[1] < 100:
            mean, scale = x.mean(0), x.std(0).clamp(min=1e-6)
            x, a = (x - mean) / scale, (a - mean) / scale
        if self.task == "number":
            mean, scale = y.mean(), y.std()
            y, b = (y - mean) / scale, (b - mean) / scale
        if self.wrong_labels:
            wrong = torch.from_numpy(np.random.default_rng([seed, 2]).random(len(y)) < self.wrong_labels)
            other = torch.from_numpy(np.random.default_rng([seed, 3]).integers(0, int(targets.max()) + 1, len(y)))
            y = torch.where(wrong, other, y)
        return x, y, a, b

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.task == "number":
            return -log_density(outputs, targets).mean()
        return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def judge(self, outputs: list[Tensor], targets: Tensor) -> float:
        """Negative log-likelihood of the average of what several models predict, each as likely as any other."""
        if self.task == "number":
            each = torch.stack([log_density(output, targets) for output in outputs])
        else:
            logs = torch.stack([output.flatten(0, -2).double().log_softmax(-1) for output in outputs])
            each = logs.gather(-1, targets.flatten().expand(len(outputs), -1)[..., None])[..., 0]
        return float(-(each.logsumexp(0) - math.log(len(outputs))).mean())


def log_density(outputs: Tensor, targets: Tensor) -> Tensor:
    mean, scale = outputs[:, 0].double(), nn.functional.softplus(outputs[:, 1].double()) + 1e-3
    return -0.5 * ((targets - mean) / scale) ** 2 - scale.log() - 0.5 * math.log(2 * math.pi)


# ---- data ----


@cache
def mnist() -> tuple[Tensor, Tensor]:
    def read(name: str, skip: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((DATA / "mnist" / f"{name}-ubyte.gz").read_bytes()), np.uint8)[skip:]

    images = read("train-images-idx3", 16).reshape(-1, 784).astype(np.float32) / 255
    return torch.from_numpy(images), torch.from_numpy(read("train-labels-idx1", 8).astype(np.int64))


def mnist_part(part: slice) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: tuple(array[part] for array in mnist())  # type: ignore[return-value]


def bundled(name: str, scale: float = 1.0) -> Callable[[], tuple[Tensor, Tensor]]:
    """A data set that scikit-learn brings."""

    @cache
    def load() -> tuple[Tensor, Tensor]:
        from sklearn import datasets

        found: Any = getattr(datasets, f"load_{name}")()
        targets = torch.as_tensor(found.target)
        return torch.tensor(found.data * scale, dtype=torch.float32), (
            targets.float() if name == "diabetes" else targets.long()
        )

    return load


def uci(name: str, *, classes: bool = False) -> Callable[[], tuple[Tensor, Tensor]]:
    @cache
    def load() -> tuple[Tensor, Tensor]:
        folder = DATA / "uci" / name
        table = np.loadtxt(folder / "data.txt")
        columns = np.loadtxt(folder / "index_features.txt").astype(int)
        target = table[:, int(np.loadtxt(folder / "index_target.txt"))]
        y = torch.tensor(target.astype(np.int64) - int(target.min()) if classes else target.astype(np.float32))
        return torch.tensor(table[:, columns], dtype=torch.float32), y

    return load


def text(path: str | None, characters: int, length: int, skip: int = 0) -> Callable[[], tuple[Tensor, Tensor]]:
    """Passages of `length` characters and, for each character, the one after it."""

    @cache
    def load() -> tuple[Tensor, Tensor]:
        if path is None:
            from pydoc_data.topics import topics

            raw = "\n".join(topics[name] for name in sorted(topics)).encode()
        else:
            raw = (DATA / path).read_bytes()
        codes = np.frombuffer(raw, np.uint8)[skip : skip + characters]
        known, numbers = np.unique(codes, return_inverse=True)
        del known
        count = (len(numbers) - 1) // length
        return (
            torch.from_numpy(numbers[: count * length].reshape(count, length)),
            torch.from_numpy(numbers[1 : count * length + 1].reshape(count, length)),
        )

    return load


@cache
def moons() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import make_moons

    x, y = make_moons(3000, noise=0.3, random_state=0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


# ---- networks ----


def mlp(*widths: int) -> Callable[[float], nn.Module]:
    def build(dropout: float) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths[:-1]):
            layers += [nn.Linear(before, after), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))

    return build


def cnn(side: int, *, norm: bool, channels: int = 8) -> Callable[[float], nn.Module]:
    def build(dropout: float) -> nn.Module:
        layers: list[nn.Module] = [nn.Unflatten(1, (1, side, side))]
        stride, left = (2, ((side - 3) // 2 + 1 - 3) // 2 + 1) if side > 16 else (1, side - 4)
        for before, after in ((1, channels), (channels, 2 * channels)):
            layers += [nn.Conv2d(before, after, 3, stride=stride, bias=not norm)]
            layers += [*([nn.BatchNorm2d(after)] if norm else []), nn.ReLU()]
        layers += [nn.Flatten(), *([nn.Dropout(dropout)] if dropout else [])]
        return nn.Sequential(*layers, nn.Linear(2 * channels * left**2, 10))

    return build


class CharLSTM(nn.Module):
    def __init__(self, symbols: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.symbols = symbols
        self.lstm = nn.LSTM(symbols, hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, symbols)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.dropout(self.lstm(nn.functional.one_hot(text, self.symbols).float())[0]))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """One or two layers with layer norm before attention; causal over characters, or over the rows of a picture."""

    def __init__(self, inputs: int, length: int, outputs: int, dropout: float, *, characters: bool) -> None:
        super().__init__()
        width = 32
        self.characters = characters
        self.embed = nn.Embedding(inputs, width) if characters else nn.Linear(inputs, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        mask = torch.triu(torch.full((length, length), -math.inf), 1) if characters else None
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        if not self.characters:
            x = x.unflatten(1, (len(self.place), -1))
        hidden = self.norm(self.body(self.embed(x) + self.place, mask=self.mask))
        return self.head(hidden if self.characters else hidden.mean(1))  # type: ignore[no-any-return]


def symbols(load: Callable[[], tuple[Tensor, Tensor]]) -> int:
    return int(load()[0].max()) + 1


def char_lstm(load: Callable[[], tuple[Tensor, Tensor]], hidden: int = 48) -> Callable[[float], nn.Module]:
    return lambda dropout: CharLSTM(symbols(load) + 1, hidden, dropout)


def char_transformer(load: Callable[[], tuple[Tensor, Tensor]], length: int) -> Callable[[float], nn.Module]:
    return lambda dropout: Transformer(symbols(load) + 1, length, symbols(load) + 1, dropout, characters=True)


# ---- the problems ----

_PYDOC = text(None, 60_000, 32)
_NOVEL, _NOVEL_2 = (
    text("text/warpeace_input.txt", 60_000, 32, 1000),
    text("text/warpeace_input.txt", 60_000, 32, 500_000),
)
_UPPER = slice(30_000, None)

DESIGN = (
    Problem("digits-mlp", bundled("digits", 1 / 16), mlp(64, 64, 64, 10), 500, (0.03, 0.1), (8, 80)),
    Problem("cancer-mlp", bundled("breast_cancer"), mlp(30, 32, 32, 2), 300, (0.03, 0.1), (8, 80)),
    Problem("mnist1000-mlp", mnist_part(slice(30_000)), mlp(784, 100, 10), 1000, (0.03, 0.1), (6, 40)),
    Problem("mnist1000-cnn", mnist_part(slice(30_000)), cnn(28, norm=False), 1000, (0.03, 0.1), (6, 30)),
    Problem("mnist1000-bn", mnist_part(slice(30_000)), cnn(28, norm=True), 1000, (0.03, 0.1), (6, 30)),
    Problem("concrete", uci("concrete"), mlp(8, 50, 50, 2), 700, (0.003, 0.01), (10, 80), task="number"),
    Problem("pydoc-lstm", _PYDOC, char_lstm(_PYDOC), 1500, (0.3, 1.0), (3, 12), judged=300),
)

FINAL = (
    Problem("wine-mlp", bundled("wine"), mlp(13, 32, 3), 100, (0.03, 0.1), (10, 100), batch=16),
    Problem("redwine-mlp", uci("wine-quality-red", classes=True), mlp(11, 50, 50, 6), 800, (0.03, 0.1), (10, 60)),
    Problem("moons-mlp", lambda: moons(), mlp(2, 50, 50, 2), 200, (0.03, 0.1), (10, 100)),
    Problem("mnist300-mlp", mnist_part(_UPPER), mlp(784, 100, 100, 10), 300, (0.03, 0.1), (10, 100)),
    Problem("mnist2000-cnn", mnist_part(_UPPER), cnn(28, norm=False), 2000, (0.03, 0.1), (5, 20), batch=64),
    Problem("mnist500-bn", mnist_part(_UPPER), cnn(28, norm=True), 500, (0.03, 0.1), (10, 50)),
    Problem("digits-bn", bundled("digits", 1 / 16), cnn(8, norm=True), 400, (0.03, 0.1), (10, 60)),
    Problem("digits-cnn", bundled("digits", 1 / 16), cnn(8, norm=False), 400, (0.03, 0.1), (10, 60)),
    Problem("digits-wrong", bundled("digits", 1 / 16), mlp(64, 64, 64, 10), 800, (0.03, 0.1), (8, 60), wrong_labels=0.2),
    Problem(
        "digits-transformer", bundled("digits", 1 / 16),
        lambda dropout: Transformer(8, 8, 10, dropout, characters=False), 800, (0.03, 0.1), (10, 50),
    ),
    Problem("boston", uci("bostonHousing"), mlp(13, 50, 2), 350, (0.003, 0.01), (10, 100), task="number"),
    Problem("energy", uci("energy"), mlp(8, 50, 50, 2), 500, (0.003, 0.01), (10, 80), task="number"),
    Problem("kin8nm", uci("kin8nm"), mlp(8, 50, 50, 2), 2000, (0.003, 0.01), (5, 30), task="number"),
    Problem("power-plant", uci("power-plant"), mlp(4, 50, 2), 2000, (0.003, 0.01), (5, 30), task="number"),
    Problem("diabetes", bundled("diabetes"), mlp(10, 32, 2), 300, (0.003, 0.01), (10, 80), task="number"),
    Problem("novel-lstm", _NOVEL, char_lstm(_NOVEL), 1500, (0.3, 1.0), (3, 10), judged=300),
    Problem("novel-transformer", _NOVEL_2, char_transformer(_NOVEL_2, 32), 1500, (0.1, 0.3), (3, 10), judged=300),
)  # fmt: skip
PROBLEMS = {problem.name: problem for problem in (*DESIGN, *FINAL)}
