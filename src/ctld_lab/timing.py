"""Run kind "timing": the time of an epoch under each method, on a machine that has other things to do as well (Table 3).

Every method has its own network and optimizer and trains on. They take turns: in each round every one trains a block of
batches, in an order that is drawn anew, so whatever else the machine does, it does to all of them, and ratios are taken within
rounds. A block whose threads had to wait for a core (Linux counts that) is timed again, a few times. The two phases of
CTLD are timed as two contenders; "ctld" is the two together, by the share of the steps that explore.

A line of metrics.jsonl is a round, and a run that was stopped goes on with the next. The networks then start afresh: the
time of a step does not depend on what has been learnt.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import ctld
from ctld_lab.control import Control, Interrupted
from ctld_lab.records import RunDirectory
from ctld_lab.stopwatch import median_interval, nanoseconds_waited
from ctld_lab.streams import numpy_generator, stream_seed
from ctld_lab.workloads import load_images
from ctld_lab.workloads.mnist_cnn import MnistCNN

REFERENCE = "sgd"
PHASES = ("ctld (exploration)", "ctld (fine-tuning)")
ATTEMPTS = 3
PATIENCE = 2.0
"""Seconds after which a block is not timed again: where everything waits, waiting does not help."""
UNDISTURBED = 0.02
"""Share of a block's time that its threads may spend waiting for a core."""
FEWEST_ROUNDS = 6
"""Undisturbed ones, without which the disturbed ones count too."""


class Contender:
    """A network under one optimizer."""

    def __init__(self, name: str, workload: MnistCNN, method: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.workload = workload
        self.model = workload.build_model()
        self.batches = workload.batches()
        needed = {"num_data": workload.num_data} if "num_data" in ctld.OPTIMIZERS[method].needs else {}
        self.optimizer: Any = ctld.create(method, self.model.parameters(), **(needed | dict(options)))

    def train(self, count: int) -> float:
        """Seconds that so many batches took."""
        workload, model, optimizer, batches = self.workload, self.model, self.optimizer, self.batches
        start = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            loss = workload.loss(model, next(batches))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step(loss=loss)
        seconds = time.perf_counter() - start
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"{self.name} has diverged and its time means nothing; give it a smaller lr")
        return seconds

    def time_block(self, count: int) -> tuple[float, float]:
        """Seconds, and the share of them spent waiting; of a few attempts the one that waited least."""
        made: list[tuple[float, float]] = []
        while len(made) < ATTEMPTS and sum(seconds for _, seconds in made) < PATIENCE:
            before = nanoseconds_waited()
            seconds = self.train(count)
            share = 1e-9 * (nanoseconds_waited() - before) / seconds
            made.append((share, seconds))
            if share < UNDISTURBED:
                break
        share, seconds = min(made)
        return seconds, share


def run(directory: RunDirectory, config: dict[str, Any], control: Control) -> dict[str, Any]:
    """Time the rounds that are still to be timed; the result is over all."""
    rounds, batches, seed = int(config["rounds"]), int(config["batches"]), int(config["seed"])
    images = load_images(config["data"]["name"], config["data"]["sha256"])
    workload = MnistCNN(images.train, images.train_labels, seed=seed)
    lines, appender = directory.reopen()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "dropout"))
            everyone = [
                Contender(name, workload, chosen["method"], chosen["options"])
                for name, chosen in config["optimizers"].items()
            ]
            for contender in everyone if len(lines) < rounds else ():
                contender.train(1)  # allocates what the first step allocates
            for number in range(len(lines), rounds):
                seconds, waiting = {}, {}
                for place in numpy_generator(seed, "data", number).permutation(len(everyone)):
                    if control.stopping:
                        raise Interrupted
                    control.tell(directory, number, rounds)
                    contender = everyone[place]
                    seconds[contender.name], waiting[contender.name] = contender.time_block(batches)
                lines.append({"round": number, "seconds": seconds, "waiting": waiting})
                appender.append(lines[-1])
                appender.flush(to_disk=True)
    finally:
        appender.close()
    return {
        "methods": summary(
            lines,
            epochs=batches / workload.batches_per_epoch,
            exploration_share=float(config["exploration_share"]),
        ),
        "rounds": rounds,
        "batches": batches,
        "batches_per_epoch": workload.batches_per_epoch,
        "exploration_share": config["exploration_share"],
        "undisturbed": statistics.fmean(share < UNDISTURBED for line in lines for share in line["waiting"].values()),
        "parameters": sum(parameter.numel() for parameter in everyone[0].model.parameters()),
        "threads": torch.get_num_threads(),
    }


# ---- numbers ----


def summary(
    lines: Sequence[Mapping[str, Any]], *, epochs: float, exploration_share: float
) -> dict[str, dict[str, float]]:
    """Median time of an epoch of each method, and the ratio to SGD-M within rounds with its 95 % interval.

    `lines` are those of metrics.jsonl, for blocks of so many `epochs` (a fraction, mostly). Rounds in which the method or
    SGD-M had to wait for a core are left out if enough others remain.
    """
    complete = [_with_both_phases(line, exploration_share) for line in lines]
    made: dict[str, dict[str, float]] = {}
    for name in sorted(complete[0][0]):
        pairs = [(seconds[name], seconds[REFERENCE]) for seconds, _ in complete]
        calm = [max(waiting[name], waiting[REFERENCE]) < UNDISTURBED for _, waiting in complete]
        if sum(calm) >= FEWEST_ROUNDS:
            pairs = [pair for pair, undisturbed in zip(pairs, calm, strict=True) if undisturbed]
        low, ratio, high = median_interval([mine / reference for mine, reference in pairs])
        made[name] = {
            "seconds_per_epoch": statistics.median(mine for mine, _ in pairs) / epochs,
            "ratio": ratio,
            "low": low,
            "high": high,
            "rounds": len(pairs),
        }
    return made


def _with_both_phases(line: Mapping[str, Any], exploration_share: float) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and waiting of a round, with "ctld" besides its phases."""
    seconds, waiting = dict(line["seconds"]), dict(line["waiting"])
    if all(phase in seconds for phase in PHASES):
        exploring, fine_tuning = (seconds[phase] for phase in PHASES)
        seconds["ctld"] = exploration_share * exploring + (1.0 - exploration_share) * fine_tuning
        waiting["ctld"] = max(waiting[phase] for phase in PHASES)
    return seconds, waiting
