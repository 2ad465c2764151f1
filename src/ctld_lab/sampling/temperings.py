"""Run kind "tempering": what each tempering samples where the answer is known, with the library's own optimizer.

A run is one of three, by its `variant`:

    chain       one chain of `CTLD`, tempered or not: `tempered_chain`
    rate        how often the double well is crossed without tempering, by many chains
    reference   the answer for the network, by replica exchange

T = 1 throughout. A run is a function of its seed and takes minutes; one that was killed starts again.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ctld_lab.control import Control, Interrupted
from ctld_lab.records import RunDirectory
from ctld_lab.sampling.many import Array, Chains, coldest
from ctld_lab.sampling.targets_tempered import Network, build
from ctld_lab.sampling.tempered_chain import CHUNK, PER, Tell, chain
from ctld_lab.workloads.double_well import DoubleWell


def run(directory: RunDirectory, config: dict[str, Any], control: Control) -> dict[str, Any]:
    torch.set_num_threads(1)  # a thousand numbers are summed three times slower by two
    steps = int(config["steps"])

    def tell(step: int) -> None:
        if control.stopping:
            raise Interrupted
        control.tell(directory, step, steps)

    began = time.perf_counter()
    found = {"chain": chain, "rate": rate, "reference": reference}[config["variant"]](config, tell)
    return found | {"seconds": time.perf_counter() - began}


def rate(config: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Crossings of the double well at T = 1. Without tempering its dimensions do not see each other: one is enough.

    Chains start in one well, and are counted after a tenth of their steps. Both wells are left alike, so it does not matter
    that the chains have not been shared out between them by then.
    """
    steps, count = int(config["steps"]), int(config["chains"])
    known = build("double-well", 1)
    chains = Chains(
        DoubleWell(1).of_many,
        np.ones((count, 1)),
        np.ones(count),
        lr=known.lr,
        momentum=known.momentum,
        seed=int(config["seed"]),
    )
    dropped = steps // 10
    side, crossings, squares = np.ones(count), np.zeros(count), np.zeros(count)
    for step in range(steps):
        if step % CHUNK == 0:
            tell(step)
        chains.step()
        x = chains.theta[:, 0]
        arrived = x * side < -0.5
        side[arrived] *= -1.0
        if step >= dropped:
            crossings += arrived
            squares += x * x
    counted = steps - dropped
    return {
        "steps": counted * count,
        "crossings": int(crossings.sum()),
        "crossing_rate": _over_chains(crossings * (PER / counted)),
        "means": {"x²": _over_chains(squares / counted) | {"expected": known.expected["x²"]}},
    }


def reference(config: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Averages for the network, each ladder of temperatures an independent chain; a quarter is dropped."""
    network, known = Network(), build("network", 0)
    steps, ladders, rungs = (int(config[name]) for name in ("steps", "ladders", "rungs"))
    generator = np.random.default_rng([int(config["seed"]), 1])
    chains = Chains(
        network.of_many,
        generator.standard_normal((ladders * rungs, network.dimensions)),  # the prior's
        np.repeat(np.geomspace(1.0, config["hottest"], rungs), ladders),
        lr=known.lr,
        momentum=known.momentum,
        seed=int(config["seed"]),
    )
    every = int(config["every"])
    draws: dict[str, list[Array]] = {}
    for place, (theta, energy) in enumerate(coldest(chains, ladders=ladders, steps=steps, every=every), start=1):
        tell(place * every)
        if place * every > steps // 4:
            for name, values in {"U": energy, **network.quantities(theta)}.items():
                draws.setdefault(name, []).append(values)
    means = {}
    for name, rows in draws.items():
        series = np.array(rows)
        means[name] = _over_chains(series.mean(axis=0))
        if name != "U":
            means[f"var {name}"] = _over_chains(np.square(series - series.mean()).mean(axis=0))
    return {"steps": steps * ladders * rungs, "means": means}


def _over_chains(values: Array) -> dict[str, float]:
    return {"mean": float(values.mean()), "error": float(values.std(ddof=1)) / math.sqrt(values.size)}
