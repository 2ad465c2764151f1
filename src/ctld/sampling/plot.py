"""A figure of draws: traces, ranks, temperature. matplotlib is imported when a figure is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ctld.sampling.draws import Draws

BINS = 20


def figure(draws: Draws, quantity: str | None, elements: int) -> Any:
    """Return a figure with a row of trace and rank plot for each element, and a row for the kinetic temperature."""
    try:
        pyplot = import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError("matplotlib is needed to plot; python -m pip install matplotlib") from error
    known = draws.groups["posterior"] | draws.quantities
    name = next(iter(draws.quantities)) if quantity is None else quantity
    if name not in known:
        raise ValueError(f"quantity must be one of {', '.join(known)}, got {quantity!r}. Give one that was kept")
    values = np.asarray(known[name], dtype=np.float64)
    flat = values.reshape(*values.shape[:2], -1)[:, :, :elements]
    temperature = draws.statistics.get("kinetic_temperature")
    rows = flat.shape[2] + (temperature is not None)
    made = pyplot.Figure(figsize=(9.0, 1.8 * rows), layout="constrained")
    axes = made.subplots(rows, 2, squeeze=False)
    chains, count = flat.shape[:2]
    for element in range(flat.shape[2]):
        series = flat[:, :, element]
        trace, ranks = axes[element]
        trace.plot(series.T, linewidth=0.6)
        trace.set_title(f"{name}[{element}]", fontsize=9)
        order = series.reshape(-1).argsort(kind="stable").argsort(kind="stable").reshape(series.shape)
        bins = np.linspace(0, chains * count, min(BINS, max(count // 10, 2)) + 1)
        for chain in range(chains):
            heights, _ = np.histogram(order[chain], bins)
            ranks.step(bins, np.append(heights, heights[-1]), where="post", linewidth=0.8)
        ranks.axhline(count / (len(bins) - 1), color="black", linewidth=0.6, linestyle=":")
        ranks.set_title("ranks over all chains; level is right", fontsize=9)
    if temperature is not None:
        trace, average = axes[-1]
        target = float(draws.settings.get("temperature", 1.0))
        trace.plot(temperature.T / target, linewidth=0.6)
        trace.set_title("kinetic temperature of each draw", fontsize=9)
        steps = np.arange(1, temperature.shape[1] + 1)
        average.plot((temperature / target).cumsum(axis=1).T / steps[:, None], linewidth=0.8)
        average.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
        average.set_title("its running mean; 1 is right", fontsize=9)
    return made
