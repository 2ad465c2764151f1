"""What many processes cost: CTLD under DDP and FSDP2, beside SGD with momentum under the same wrapper.

    python benchmarks/ranks.py

Two processes of one thread each, gloo between them, a whole training step: forward, backward with its reduction of the
gradients, optimizer. An exploration step has one small all-reduce under DDP and two under FSDP2; fine-tuning has none.
SGD is torch's, with `foreach`, since the fused one takes no sharded parameters. All take turns; ranks wait for each other
before each block, and rank 0 holds the watch.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.steps import SIZES
from benchmarks.stored import Result, heading, main, table, where
from benchmarks.timing import Contender, quartiles, summary
from ctld import CTLD

RANKS = 2
NETWORKS = {"MLP 250k, batch 128": SIZES["250k"], "MLP 1.6M, batch 128": SIZES["1.6M"]}
WRAPPERS: dict[str, Callable[..., Any]] = {"DDP": DistributedDataParallel, "FSDP2": fully_shard}
METHODS = ("SGD-M", "CTLD exploration", "CTLD fine-tuning")
ROUNDS, STEPS = 60, 10


class Training(Contender):
    """One method under one wrapper; `part` is the time of the optimizer."""

    def __init__(self, method: str, wrapper: str, widths: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.model = WRAPPERS[wrapper](nn.Sequential(*layers[:-1]))
        parameters = self.model.parameters()
        if method == "SGD-M":
            self.optimizer: Any = torch.optim.SGD(parameters, 0.01, momentum=0.9, foreach=True)
        else:
            steps = 10**9 if method == "CTLD exploration" else 0
            options: dict[str, Any] = {"num_data": 60_000, "exploration_steps": steps, "temperature": 1e-3}
            self.optimizer = CTLD(parameters, 0.01, weight_decay=1e-3, seed=1, **options)
        self.takes_loss = method != "SGD-M"
        self.batch = torch.randn(128 // RANKS, widths[0]), torch.randint(widths[-1], (128 // RANKS,))

    def run(self, steps: int) -> float:
        dist.barrier()
        start, stepping = time.perf_counter(), 0.0
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.batch[0]), self.batch[1])
            loss.backward()  # type: ignore[no-untyped-call]
            before = time.perf_counter()
            self.optimizer.step(**({"loss": loss} if self.takes_loss else {}))
            stepping += time.perf_counter() - before
        self.part = stepping / steps
        return (time.perf_counter() - start) / steps


def measure(rank: int, folder: str, rounds: int, steps: int) -> None:
    """On one rank. How often and in which order is the same on all: else they would wait for each other in vain."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    rows = []
    for network, widths in NETWORKS.items():
        for wrapper in WRAPPERS:
            everyone = {method: Training(method, wrapper, widths) for method in METHODS}
            order = random.Random(0)
            for done in range(-1, rounds):  # the first is for warming up
                for contender in order.sample(list(everyone.values()), len(everyone)):
                    seconds = contender.run(steps)
                    if done >= 0:
                        contender.seconds[done], contender.parts[done] = seconds, contender.part
                        contender.waiting[done] = 0.0
            for method, contender in everyone.items():
                found = summary(contender, everyone["SGD-M"])
                part = quartiles(list(contender.parts.values()), 1e6)
                rows.append({"network": network, "wrapper": wrapper, "method": method, "step": part, **found})
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def run(*, effort: float, command: str) -> Result:
    result = heading("CTLD on two processes, beside SGD with momentum on two", command, effort=effort)
    result["machine"]["torch_threads"] = f"{RANKS} × 1"
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(  # type: ignore[no-untyped-call]
            measure, args=(folder, max(2, round(ROUNDS * effort)), STEPS), nprocs=RANKS, start_method="spawn"
        )
        return result | {"rows": json.loads(Path(folder, "rows.json").read_text(encoding="utf-8"))}


def tables(result: Result) -> list[str]:
    rows = []
    for row in result["rows"]:
        interval = row["interval"]
        relative = f"{interval['median']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})"
        times = f"{row['microseconds']['median'] / 1000:.2f}", f"{row['step']['median'] / 1000:.2f}"
        rows.append((f"{row['network']}; {row['wrapper']}; {row['method']}", *times, relative))
    return [
        *where(result),
        "",
        *table(("", "ms a step, all of it", "of it the optimizer", "relative to SGD-M, 95 % interval"), rows),
    ]


if __name__ == "__main__":
    main("ranks", "CTLD on two processes, beside SGD with momentum on two.", run, tables)
