"""Character-level LSTM, as in karpathy/char-rnn (the paper, section 5.2 and Figs. 3 and 4).

Bytes in, one-hot; three LSTM layers of 64 units; the next byte out. All parameters start from U(−0.08, 0.08). The text is cut
into as many rows as a batch has; a step reads the next 50 characters of every row, and the state at their end is where the
next step begins (truncated back-propagation). Metrics per character: nats, bits and perplexity = exp(nats).
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctld_lab.ranks import ALONE, Ranks
from ctld_lab.streams import torch_generator
from ctld_lab.workloads.precision import floating_point

State = tuple[Tensor, Tensor]
ALL = slice(None)  # rows


class Network(nn.Module):
    def __init__(self, symbols: int, hidden: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.symbols = symbols
        self.lstm = nn.LSTM(symbols, hidden, layers)
        self.head = nn.Linear(hidden, symbols)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.08, 0.08, generator=generator)

    def forward(self, text: Tensor, state: State) -> tuple[Tensor, State]:
        """Characters (time, rows) to scores (time · rows, symbols), and the state after them."""
        hidden, state = self.lstm(nn.functional.one_hot(text, self.symbols).to(state[0].dtype), state)
        return self.head(hidden.flatten(0, 1)), state


class CharLSTM:
    """`train` and `held_out` are texts, one byte a symbol; `alphabet` holds the bytes that may occur in either."""

    stages = 1

    def __init__(
        self,
        train: NDArray[np.uint8],
        held_out: NDArray[np.uint8],
        *,
        alphabet: NDArray[np.uint8],
        held_out_name: str,
        seed: int,
        hidden: int = 64,
        layers: int = 3,
        batch_size: int = 100,
        length: int = 50,
        curve_characters: int = 50_000,
        held_out_characters: int | None = None,
        dtype: str = "float32",
    ) -> None:
        self.batch_size, self.length = batch_size, length
        self._curve_characters = curve_characters
        self._codes = np.zeros(256, dtype=np.uint8)
        self._codes[alphabet] = np.arange(len(alphabet), dtype=np.uint8)
        self._texts = {"train": self._rows(train), held_out_name: self._rows(held_out[:held_out_characters])}
        for split, rows in self._texts.items():
            if rows.shape[1] <= length:
                raise ValueError(
                    f"the {split} text has {rows.size} characters, too few for a batch of {batch_size} × {length}; "
                    "give a longer text or a smaller batch"
                )
        self.num_data = self._texts["train"].size
        self._steps_per_epoch = (self._texts["train"].shape[1] - 1) // length
        self._dtype = floating_point(dtype)
        self.model = Network(len(alphabet), hidden, layers, torch_generator(seed, "initialisation")).to(self._dtype)
        self._ranks, self._share, self._weight = ALONE, ALL, 1.0
        self._state = self._rest()

    def divide(self, ranks: Ranks) -> None:
        self._ranks, self._share, self._weight = ranks, ranks.share(self.batch_size), ranks.weight(self.batch_size)
        self._state = self._shared(self._rest())

    def begin(self, stage: int) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def loss(self, step: int) -> Tensor:
        """Mean nats per character of the next 50 characters of each row."""
        start = step % self._steps_per_epoch * self.length
        loss, state = self._nats("train", start, self._state, self._share)
        self._state = (state[0].detach(), state[1].detach())
        return loss if self._weight == 1.0 else loss * self._weight

    @torch.no_grad()
    def evaluate(self, *, thorough: bool) -> dict[str, dict[str, float]]:
        """Of a thorough evaluation, training text is read as far as the text held out is long."""
        metrics = {}
        held_out = min(rows.shape[1] for rows in self._texts.values())
        columns = held_out if thorough else min(held_out, self._curve_characters // self.batch_size + 1)
        for split in self._texts:
            state, total, count = self._rest(), 0.0, 0
            for start in range(0, max(columns - self.length, 1), self.length):
                loss, state = self._nats(split, start, state)
                total, count = total + float(loss), count + 1
            nats = total / count
            perplexity = math.exp(nats) if nats < 700 else math.inf
            metrics[split] = {"nats": nats, "bits": nats / math.log(2.0), "perplexity": perplexity}
        return metrics

    def epochs(self, step: int) -> float:
        return step / float(self._steps_per_epoch)

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def state(self) -> dict[str, Any]:
        """With the rows of all ranks, so that a run can go on on another number of them."""
        carried = self._state
        if self._ranks.size > 1:
            hidden, cell = (self._ranks.gather(part, self.batch_size, 1) for part in carried)
            carried = hidden, cell
        return {"model": dict(self.model.state_dict()), "carried": carried}

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._state = self._shared(state["carried"])

    def _nats(self, split: str, start: int, state: State, rows: slice = ALL) -> tuple[Tensor, State]:
        # Widened a batch at a time: a text takes one byte a character in memory.
        part = torch.from_numpy(self._texts[split][rows, start : start + self.length + 1].T.astype(np.int64))
        scores, state = self.model(part[:-1], state)
        return nn.functional.cross_entropy(scores, part[1:].flatten()), state

    def _rest(self) -> State:
        shape = (self.model.lstm.num_layers, self.batch_size, self.model.lstm.hidden_size)
        return torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype)

    def _shared(self, state: State) -> State:
        """This rank's rows of it."""
        return state if self._ranks.size == 1 else (state[0][:, self._share].clone(), state[1][:, self._share].clone())

    def _rows(self, text: NDArray[np.uint8]) -> NDArray[np.uint8]:
        columns = len(text) // self.batch_size
        return self._codes[text[: columns * self.batch_size]].reshape(self.batch_size, columns)
