"""Time of whole training iterations, forward, backward and step, relative to fused SGD with momentum.

    python benchmarks/end_to_end.py

Four networks on random data of the right shapes. Everyone trains the same network, whose parameters are put back before
each block, in turns as timing.py says. The optimizer is a small part of an iteration, ratios are near 1 and the spread of a
single one is larger than what is to be seen; so there are many rounds, most of them of CTLD and SGD alone, and the
interval is that of the median: it contains the true one in 95 % of all cases.

Where that is too wide there is a second ratio, "by parts". Forward and backward are the same work whoever takes the step, so
their time is taken from everyone together, as one median F; the step is timed in its place in the loop, and the ratio is
(F + step)/(F + step of the reference), round by round. It leaves out what a step does to the speed of the forward pass
that follows, which the first ratio has in it.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

from benchmarks import choices, timing
from benchmarks.stored import Result, heading, main, table, where
from ctld_lab.workloads.mnist_cnn import keras_cnn

BUDGET = 100.0
"""Seconds for each network."""
BLOCK = 0.15
"""Seconds; no less than one iteration."""
OTHERS_EVERY = 6
TARGET = 1.010
"""The paper's ratio of CTLD to SGD-M on its network (Table 3)."""
MAIN = (choices.FUSED_SGD, choices.SGD, choices.GAUSSIAN, choices.THREE_POINT, choices.FINE_TUNING)
JUDGED = (choices.GAUSSIAN.name, choices.THREE_POINT.name, choices.FINE_TUNING.name)


@dataclass
class Network:
    """A network with its loss, and data to go with it."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor


class Recurrent(nn.Module):
    """char-RNN: 256 symbols as unit vectors, three layers of LSTM."""

    def __init__(self, symbols: int = 256, hidden: int = 64) -> None:
        super().__init__()
        self.symbols = symbols
        self.lstm = nn.LSTM(symbols, hidden, num_layers=3, batch_first=True)
        self.head = nn.Linear(hidden, symbols)

    def forward(self, text: Tensor) -> Tensor:
        hidden, _ = self.lstm(functional.one_hot(text, self.symbols).float())
        scores: Tensor = self.head(hidden)
        return scores.flatten(0, 1)


def perceptron(batch: int = 128) -> Network:
    """MLP 784-1000-800-50."""
    model = nn.Sequential(
        nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 800), nn.ReLU(), nn.Linear(800, 50)
    )  # fmt: skip
    return Network(model, functional.cross_entropy, torch.rand(batch, 784), torch.randint(50, (batch,)))


def convolutional(batch: int = 128) -> Network:
    """Keras' example for MNIST."""
    return Network(keras_cnn(), functional.cross_entropy, torch.rand(batch, 1, 28, 28), torch.randint(10, (batch,)))


def recurrent(batch: int = 100, length: int = 50) -> Network:
    """LSTM with 3 × 64 units on sequences of 50 characters."""
    text = torch.randint(256, (batch, length + 1))
    return Network(Recurrent(), functional.cross_entropy, text[:, :-1], text[:, 1:].flatten())


def autoencoder(batch: int = 128) -> Network:
    """First stack of a denoising autoencoder, 784-500-784."""
    model = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Dropout(0.2), nn.Linear(500, 784))
    images = torch.rand(batch, 784)
    return Network(model, lambda made, wanted: 0.5 * functional.mse_loss(made, wanted), images, images)


NETWORKS: dict[str, Callable[..., Network]] = {
    "MLP": perceptron,
    "CNN": convolutional,
    "LSTM": recurrent,
    "autoencoder": autoencoder,
}


@dataclass(kw_only=True)
class Trained(timing.Contender):
    """A network under one optimizer."""

    name: str
    network: Network
    start: list[Tensor]
    """The parameters before each block."""
    optimizer: torch.optim.Optimizer
    takes_loss: bool

    def run(self, steps: int) -> float:
        network, optimizer, step = self.network, self.optimizer, _step_of(self.optimizer, self.takes_loss)
        with torch.no_grad():
            torch._foreach_copy_(list(network.model.parameters()), self.start)
        stepping, start = 0.0, time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = network.loss(network.model(network.inputs), network.targets)
            loss.backward()  # type: ignore[no-untyped-call]
            before = time.perf_counter()
            step(loss)
            stepping += time.perf_counter() - before
        seconds = (time.perf_counter() - start) / steps
        self.part = stepping / steps
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"{self.name} has diverged: its time means nothing")
        return seconds


def _step_of(optimizer: torch.optim.Optimizer, takes_loss: bool) -> Callable[[Tensor], Any]:
    step: Callable[..., Any] = optimizer.step
    return (lambda loss: step(loss=loss)) if takes_loss else (lambda loss: step())


def contenders(network: Network) -> list[Trained]:
    """The reference first."""
    parameters = list(network.model.parameters())
    start = [parameter.detach().clone() for parameter in parameters]
    made = []
    for choice in (*MAIN, *choices.MINIMISERS, *choices.samplers()):
        made.append(
            Trained(
                name=choice.name,
                network=network,
                start=start,
                optimizer=choice.build(parameters),
                takes_loss=choice.takes_loss,
                every=1 if choice in MAIN else OTHERS_EVERY,
            )
        )
    return made


def measure(name: str, build: Callable[..., Network], **turns: Any) -> dict[str, Any]:
    """One network. `turns` go to `timing.interleave`."""
    torch.manual_seed(0)
    network = build()
    everyone = contenders(network)
    rounds = timing.interleave(everyone, label=f"end to end, {name}", **turns)
    rows = []
    common = statistics.median(
        one.seconds[each] - one.parts[each] for one in everyone for each in timing.calm_rounds(one, one)
    )
    for one in everyone:
        rounds_of_one = timing.calm_rounds(one, everyone[0])
        by_parts = [(common + one.parts[each]) / (common + everyone[0].parts[each]) for each in rounds_of_one]
        row = {"name": one.name} | timing.summary(one, everyone[0]) | {
            "step_microseconds": timing.quartiles([one.parts[each] for each in rounds_of_one], 1e6),
            "by_parts": timing.median_interval(by_parts),
        }  # fmt: skip
        if one.name in JUDGED:
            row |= {
                "target": TARGET,
                "verdict": timing.verdict(row["interval"], TARGET),
                "verdict_by_parts": timing.verdict(row["by_parts"], TARGET),
            }
        rows.append(row)
    return {
        "network": name,
        "what": (build.__doc__ or "").rstrip("."),
        "batch": len(network.inputs),
        "parameters": sum(parameter.numel() for parameter in network.model.parameters()),
        "forward_and_backward_microseconds": timing.rounded(1e6 * common),
        "rounds": rounds,
        "undisturbed_blocks": timing.undisturbed_share(everyone),
        "rows": rows,
    }


def run(*, effort: float = 1.0, command: str = "") -> Result:
    what = "time of forward, backward and step relative to the same with torch.optim.SGD(momentum=0.9, fused=True)"
    result = heading(what, command, effort=effort)
    networks = [
        measure(name, build, budget=effort * BUDGET, block_seconds=BLOCK) for name, build in NETWORKS.items()
    ]  # fmt: skip
    return result | {"networks": networks}


# ---- tables ----


def tables(result: Result) -> list[str]:
    """For README.md."""
    networks = result["networks"]
    columns = [{row["name"]: row for row in each["rows"]} for each in networks]
    names = list(columns[0])
    described = [
        f"* {each['network']}: {each['what']}; {each['parameters']:,} parameters, batch {each['batch']}, "
        f"{each['rounds']} rounds ({100 * each['undisturbed_blocks']:.0f} % of the blocks undisturbed)"
        for each in networks
    ]
    passes = (f"{1e-3 * each['forward_and_backward_microseconds']:.2f} ms" for each in networks)
    header = [each["network"] for each in networks]
    return [
        *where(result),
        "",
        *described,
        "",
        *table(
            ["time relative to fused SGD", *header],
            [[name, *(_cell(column[name], "interval", "verdict") for column in columns)] for name in names],
        ),
        "",
        "By parts, with one time of the passes for everyone:",
        "",
        *table(
            ["time relative to fused SGD, by parts", *header],
            [["forward and backward", *passes]]
            + [["step of fused SGD", *(_milliseconds(column[names[0]]) for column in columns)]]
            + [[name, *(_cell(column[name], "by_parts", "verdict_by_parts") for column in columns)] for name in names],
        ),
    ]


def _milliseconds(row: dict[str, Any]) -> str:
    return f"{1e-3 * row['step_microseconds']['median']:.2f} ms"


def _cell(row: dict[str, Any], interval: str, verdict: str) -> str:
    found = "{median:.3f} [{low:.3f}, {high:.3f}]".format(**row[interval])
    return found + (f" ≤ {row['target']:.3f}: {row[verdict]}" if "target" in row else "")


if __name__ == "__main__":
    main("end_to_end", "Time of training iterations relative to fused SGD.", run, tables)
