"""A multilayer perceptron on handwritten digits, 784-256-256-10 with ReLU: mean cross-entropy over batches of 128.

Pixels in [0, 1], parameters initialised as torch does. With several stages the network begins anew in each, from initial
weights and with an order of the data that are the stage's own: the members of a deep ensemble.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from ctld.ensembles import Metrics
from ctld_lab.streams import stream_seed
from ctld_lab.workloads.workload import Probe, Shuffled, Workload, averaged, evenly_spaced, floating_point, in_percent

CHUNK = 2000  # rows at a time, where no gradient is needed
PROBE_IMAGES = 1000

Labelled = tuple[NDArray[np.uint8], NDArray[np.uint8]]


class MnistMLP(Workload):
    """`train` and `held_out`: pixels, one row an image, and labels; `held_out_name` is "test", or "valid" while tuning."""

    def __init__(
        self,
        train: Labelled,
        held_out: Labelled,
        *,
        held_out_name: str,
        seed: int,
        widths: Sequence[int] = (784, 256, 256, 10),
        batch_size: int = 128,
        stages: int = 1,
        curve_rows: int = 1000,
        dtype: str = "float32",
    ) -> None:
        self.num_data = len(train[0])
        self.stages, self.batch_size = stages, batch_size
        self.batches = Shuffled(seed, self.num_data, batch_size)
        self._held_out_name, self._seed, self._curve_rows = held_out_name, seed, curve_rows
        self._dtype = floating_point(dtype)
        # Pixels stay bytes, a quarter of the memory; a batch is widened when its turn comes.
        self._data = {
            split: (torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))
            for split, (images, labels) in (("train", train), (held_out_name, held_out))
        }
        layers = [
            layer for wide, narrow in itertools.pairwise(widths) for layer in (nn.Linear(wide, narrow), nn.ReLU())
        ]
        self.model: nn.Sequential = nn.Sequential(*layers[:-1]).to(self._dtype)
        self._start(0)

    def begin(self, stage: int) -> list[nn.Parameter]:
        if stage != self._stage:  # else it goes on
            self._start(stage)
        return list(self.model.parameters())

    def loss(self, step: int) -> Tensor:
        """Mean cross-entropy of a batch, in nats."""
        rows = self.batches.rows(self._stage, step)
        logits = self.model(self._images("train", rows))
        return nn.functional.cross_entropy(logits, self._data["train"][1][rows])

    @torch.no_grad()
    def evaluate(self, *, thorough: bool) -> dict[str, dict[str, float]]:
        """Score the model as it is; thorough is on all that is held out, and on as many images of the training set."""
        held_out = len(self._data[self._held_out_name][1])
        count = held_out if thorough else min(held_out, self._curve_rows)
        found = {split: self._judge(split, [{}], count) for split in self._data}
        return {split: {name: metrics[name] for name in ("nll", "error")} for split, metrics in found.items()}

    @torch.no_grad()
    def judge(self, members: Sequence[Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
        """Score what the members predict together, on all that is held out."""
        split = self._held_out_name
        return {split: self._judge(split, members, len(self._data[split][1]))}

    def state(self) -> dict[str, Any]:
        return {"model": dict(self.model.state_dict()), "stage": self._stage}

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._stage = int(state["stage"])

    def probe(self, size: int | None = None) -> Probe:
        """Mean cross-entropy of training images."""
        rows = torch.from_numpy(evenly_spaced(size or PROBE_IMAGES, self.num_data))
        images, labels = self._images("train", rows), self._data["train"][1][rows]
        self.model.eval()

        def loss() -> Tensor:
            return nn.functional.cross_entropy(self.model(images), labels)

        what = f"mean cross-entropy of {len(rows):,} training images"
        return Probe(loss, list(self.model.parameters()), len(rows), what, "nll")

    def _start(self, stage: int) -> None:
        """Initial weights of this stage; the global generator is left as it was."""
        self._stage = stage
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self._seed, "initialisation", stage))
            for layer in self.model:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()

    def _judge(self, split: str, members: Sequence[Mapping[str, Tensor]], count: int) -> dict[str, float]:
        judged = Metrics()
        for rows in torch.split(torch.arange(min(count, len(self._data[split][1]))), CHUNK):
            images = self._images(split, rows)
            logits = [functional_call(self.model, dict(member), (images,)) for member in members]
            judged.add(averaged(logits), self._data[split][1][rows])
        return in_percent(judged)

    def _images(self, split: str, rows: Tensor) -> Tensor:
        return self._data[split][0][rows].to(self._dtype).div_(255.0)
