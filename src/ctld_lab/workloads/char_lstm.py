"""Character-level LSTM, as in karpathy/char-rnn (the paper, section 5.2 and Figs. 3 and 4).

Bytes in, one-hot; three LSTM layers of 64 units; the next byte out. All parameters start from U(−0.08, 0.08); with
`forget_bias` the input bias of every forget gate starts there instead, at 1 in char-rnn. The text is cut
into as many rows as a batch has; a step reads the next 50 characters of every row, and the state at their end is where the
next step begins (truncated back-propagation). Metrics per character: nats, bits and perplexity = exp(nats).
With several stages the network begins anew in each, from initial weights of its own and another place of the text.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from ctld.ensembles import Metrics
from ctld_lab.streams import torch_generator
from ctld_lab.workloads.workload import Probe, Workload, averaged, evenly_spaced, floating_point, in_percent

State = tuple[Tensor, Tensor]
PROBE_CHARACTERS = 4000


class Network(nn.Module):
    def __init__(
        self, symbols: int, hidden: int, layers: int, generator: torch.Generator, forget_bias: float | None = None
    ) -> None:
        super().__init__()
        self.symbols, self._forget_bias = symbols, forget_bias
        self.lstm = nn.LSTM(symbols, hidden, layers)
        self.head = nn.Linear(hidden, symbols)
        self.start(generator)

    def start(self, generator: torch.Generator) -> None:
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.08, 0.08, generator=generator)
        if self._forget_bias is not None:
            hidden = self.lstm.hidden_size
            with torch.no_grad():
                for layer in range(self.lstm.num_layers):  # torch's gates lie in the order input, forget, cell, output
                    getattr(self.lstm, f"bias_ih_l{layer}")[hidden : 2 * hidden] = self._forget_bias

    def forward(self, text: Tensor, state: State) -> tuple[Tensor, State]:
        """Characters (time, rows) to scores (time · rows, symbols), and the state after them."""
        hidden, state = self.lstm(nn.functional.one_hot(text, self.symbols).to(state[0].dtype), state)
        return self.head(hidden.flatten(0, 1)), state


class CharLSTM(Workload):
    """`train` and `held_out` are texts, one byte a symbol; `alphabet` holds the bytes that may occur in either."""

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
        forget_bias: float | None = None,
        stages: int = 1,
        curve_characters: int = 50_000,
        held_out_characters: int | None = None,
        dtype: str = "float32",
    ) -> None:
        self.stages, self.batch_size, self.length = stages, batch_size, length
        self._stage, self._seed, self._held_out_name = 0, seed, held_out_name
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
        generator = torch_generator(seed, "initialisation")
        self.model: Network = Network(len(alphabet), hidden, layers, generator, forget_bias).to(self._dtype)
        self._state = self._rest()

    def begin(self, stage: int) -> list[nn.Parameter]:
        if stage != self._stage:  # else it goes on
            self._stage = stage
            self.model.start(torch_generator(self._seed, "initialisation", stage))
            self._state = self._rest()
        return list(self.model.parameters())

    def loss(self, step: int) -> Tensor:
        """Mean nats per character of the next 50 characters of each row."""
        place = step + self._stage * (self._steps_per_epoch // self.stages)
        start = place % self._steps_per_epoch * self.length
        loss, state = self._nats("train", start, self._state)
        # Under autocast they come in bfloat16.
        self._state = (state[0].detach().to(self._dtype), state[1].detach().to(self._dtype))
        return loss

    @torch.no_grad()
    def evaluate(self, *, thorough: bool) -> dict[str, dict[str, float]]:
        """Nats, bits and perplexity. A thorough evaluation reads as much training text as is held out."""
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

    @torch.no_grad()
    def judge(self, members: Sequence[Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
        """Score what the members predict together, each with a state of its own; nll is in nats per character."""
        judged, text = Metrics(), self._texts[self._held_out_name]
        states = [self._rest() for _ in members]
        for start in range(0, max(text.shape[1] - self.length, 1), self.length):
            part = torch.from_numpy(text[:, start : start + self.length + 1].T.astype(np.int64))
            read = [(part[:-1], state) for state in states]
            made = [functional_call(self.model, dict(member), one) for member, one in zip(members, read, strict=True)]
            states = [state for _, state in made]
            judged.add(averaged([logits for logits, _ in made]), part[1:].flatten())
        return {self._held_out_name: in_percent(judged)}

    def epochs(self, step: int) -> float:
        return step / float(self._steps_per_epoch)

    def state(self) -> dict[str, Any]:
        return {"model": dict(self.model.state_dict()), "carried": self._state, "stage": self._stage}

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._state = state["carried"]
        self._stage = int(state.get("stage", 0))

    def probe(self, size: int | None = None) -> Probe:
        """Mean nats per character of passages from all over the text, as long as those of a step.

        Before each as much again is read, from rest, and not counted: in training the state is carried over. Derivatives go
        through both, so that it is one smooth function of the parameters.
        """
        text = self._texts["train"].ravel()
        span = min(2 * self.length + 1, text.size)
        skipped = span - 1 - self.length
        passages = max(1, (size or PROBE_CHARACTERS) // self.length)
        starts = evenly_spaced(passages, text.size - span + 1)
        read = torch.from_numpy(text[starts[:, None] + np.arange(span)].T.astype(np.int64))
        self.model.eval()

        def loss() -> Tensor:
            scores, _ = self.model(read[:-1], self._rest(len(starts)))
            return nn.functional.cross_entropy(scores[skipped * len(starts) :], read[skipped + 1 :].flatten())

        counted = self.length * len(starts)
        what = f"nats per character of {counted:,} characters of the training text"
        return Probe(loss, list(self.model.parameters()), counted, what, "nats")

    def _nats(self, split: str, start: int, state: State) -> tuple[Tensor, State]:
        # Widened a batch at a time: a text takes one byte a character in memory.
        part = torch.from_numpy(self._texts[split][:, start : start + self.length + 1].T.astype(np.int64))
        scores, state = self.model(part[:-1], state)
        return nn.functional.cross_entropy(scores, part[1:].flatten()), state

    def _rest(self, rows: int | None = None) -> State:
        shape = (self.model.lstm.num_layers, rows or self.batch_size, self.model.lstm.hidden_size)
        return torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype)

    def _rows(self, text: NDArray[np.uint8]) -> NDArray[np.uint8]:
        columns = len(text) // self.batch_size
        return self._codes[text[: columns * self.batch_size]].reshape(self.batch_size, columns)
