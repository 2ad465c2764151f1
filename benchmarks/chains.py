"""Chains side by side in one pass, beside the same chains one after the other.

    python benchmarks/chains.py

M models, each with a CTLD of its own that explores. Together, `ctld.chains.Chains` takes one forward and one backward pass
for all of them, then M steps; one by one, each model has its passes and its step in the usual five lines. Both see the same
batch. A ratio below 1 says that together is faster.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.stored import Result, heading, main, table, where
from benchmarks.timing import Contender, interleave, quartiles, summary, undisturbed_share
from ctld import CTLD
from ctld.chains import Chains

COUNTS = (1, 4, 8, 16, 32)
THREADS = (1, 2)
SECONDS = 4.0
"""For each cell of the table."""


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn() -> nn.Module:
    features = (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(16 * 25, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 2-32-32-10, batch 64": (tiny, (64, 2)),
    "MLP 784-256-256-10, batch 64": (mlp, (64, 784)),
    "CNN 8-16 channels 3 × 3, batch 32": (cnn, (32, 1, 28, 28)),
}


def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(inputs), labels)


class Setting(Contender):
    """Models, optimizers and a batch; `part` is the time of the optimizers."""

    def __init__(self, build: Callable[[], nn.Module], shape: tuple[int, ...], count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.batch = torch.randn(shape), torch.randint(10, shape[:1])
        self.models = [build() for _ in range(count)]
        options: dict[str, Any] = {"num_data": 60_000, "exploration_steps": 10**9, "temperature": 1e-3}
        self.optimizers = [
            CTLD(model.parameters(), 0.01, weight_decay=1e-3, seed=seed, **options)
            for seed, model in enumerate(self.models)
        ]


class Together(Setting):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.chains = Chains(self.models, self.optimizers, loss)

    def run(self, steps: int) -> float:
        start, stepping = time.perf_counter(), 0.0
        for _ in range(steps):
            self.chains.backward(*self.batch)
            before = time.perf_counter()
            self.chains.step()
            stepping += time.perf_counter() - before
        self.part = stepping / steps
        return (time.perf_counter() - start) / steps


class OneByOne(Setting):
    def run(self, steps: int) -> float:
        start, stepping = time.perf_counter(), 0.0
        for _ in range(steps):
            for model, optimizer in zip(self.models, self.optimizers, strict=True):
                optimizer.zero_grad()
                value = loss(model, *self.batch)
                value.backward()  # type: ignore[no-untyped-call]
                before = time.perf_counter()
                optimizer.step(loss=value)
                stepping += time.perf_counter() - before
        self.part = stepping / steps
        return (time.perf_counter() - start) / steps


def measure(name: str, count: int, threads: int, **turns: Any) -> dict[str, Any]:
    """One cell. `turns` go to `timing.interleave`."""
    torch.set_num_threads(threads)
    together, one_by_one = (kind(*NETWORKS[name], count) for kind in (Together, OneByOne))
    rounds = interleave([together, one_by_one], label=f"chains, {name}, {count} on {threads}", **turns)
    return {
        "network": name,
        "parameters": sum(parameter.numel() for parameter in together.models[0].parameters()),
        "chains": count,
        "threads": threads,
        "rounds": rounds,
        "undisturbed": undisturbed_share([together, one_by_one]),
        **summary(together, one_by_one),
        "one_by_one_microseconds": quartiles(list(one_by_one.seconds.values()), 1e6),
        "steps_microseconds": quartiles(list(together.parts.values()), 1e6),
        "one_by_one_steps_microseconds": quartiles(list(one_by_one.parts.values()), 1e6),
    }


def run(*, effort: float, command: str) -> Result:
    result = heading("chains side by side, beside the same chains one after the other", command, effort=effort)
    threads = torch.get_num_threads()
    result["machine"]["torch_threads"] = " and ".join(map(str, THREADS))
    turns = {"block_seconds": 0.02, "budget": SECONDS * effort}
    result["cells"] = [
        measure(name, count, number, **turns) for number in THREADS for name in NETWORKS for count in COUNTS
    ]
    torch.set_num_threads(threads)
    return result


def tables(result: Result) -> list[str]:
    cells = result["cells"]
    rows = dict.fromkeys((cell["network"], cell["threads"]) for cell in cells)
    ratios, times = [], []
    for network, threads in rows:
        own = [cell for cell in cells if (cell["network"], cell["threads"]) == (network, threads)]
        name = f"{network}; {threads} thread{'s' if threads > 1 else ''}"
        ratios.append((name, *(_interval(cell["interval"]) for cell in own)))
        for cell in own:
            if cell["chains"] in (8, 32):
                together, alone = cell["microseconds"]["median"], cell["one_by_one_microseconds"]["median"]
                steps, own_steps = (cell[f"{kind}steps_microseconds"]["median"] for kind in ("", "one_by_one_"))
                parts = together - steps, steps, alone - own_steps, own_steps
                times.append((f"{name}; {cell['chains']} chains", *(f"{part / 1000:.2f}" for part in parts)))
    counts = list(dict.fromkeys(cell["chains"] for cell in cells))
    calm = sum(cell["undisturbed"] for cell in cells) / len(cells)
    return [
        *where(result),
        f"{100 * calm:.0f} % of the blocks undisturbed. Median [95 % interval of the median] over rounds.",
        "",
        *table(("time together / one by one", *(f"M = {count}" for count in counts)), ratios),
        "",
        "Milliseconds for a step of all chains, by parts:",
        "",
        *table(("", "together: passes", "together: optimizers", "one by one: passes", "one by one: optimizers"), times),
    ]


def _interval(interval: dict[str, float]) -> str:
    return f"{interval['median']:.2f} [{interval['low']:.2f}, {interval['high']:.2f}]"


if __name__ == "__main__":
    main("chains", "Chains side by side, beside the same chains one after the other.", run, tables)
