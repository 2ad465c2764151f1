"""The paper's theorems on a double well, where the answer is known: a figure each, from stored tables alone."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ctld_lab.paper.drawing import BROWN, GREY, Draw, Picture, diamond, interval, picture, plain_log
from ctld_lab.paper.items import ABSENT, OTHER, SAME, Item, Verdict, chosen, signed, with_interval
from ctld_lab.paper.stored import Stored
from ctld_lab.report.plots import COLOURS

WELL = "double well"
SAMPLERS = {
    "tempered": ("CTLD, the paper's", COLOURS["ctld"], "o", 0.2),
    "untempered": ("no tempering", COLOURS["sgd"], "s", -0.2),
    "calibrated": ("CTLD, calibrated", BROWN, "^", 0.38),
}
AVERAGES = {"kinetic_temperature": "Kinetic temperature at g = 1", "mean_square": "⟨x²⟩ at g = 1"}


def theorem_1(stored: Stored) -> Item:
    """Two averages of the double well where α is on its plateau, as ratios to the exact ones."""
    laws = stored.laws()
    sizes = sorted(laws["dimensions"].unique())

    def draw(average: str) -> Draw:
        def panel(axes: Axes) -> Mapping[str, Any]:
            marks = [diamond(axes, place, 1.0, GREY) for place in range(len(sizes))]
            legend = {"the theorem": marks[0]}
            for sampler, (title, tint, marker, offset) in SAMPLERS.items():
                for _, row in chosen(laws, sampler=sampler, average=average).iterrows():
                    legend[title] = interval(axes, sizes.index(row["dimensions"]) + offset, row, tint, marker)
            axes.axhline(1, color="#bbbbbb", lw=0.8, zorder=1)
            axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
            axes.set(xlabel="dimensions d", ylabel="measured / exact", xlim=(-0.5, len(sizes) - 0.4))
            return legend

        return panel

    table, equals = laws.set_index(["sampler", "dimensions", "average"]), "d\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
    rows = []
    for (sampler, (title, *_)), size in itertools.product(SAMPLERS.items(), sizes):
        found = [table.loc[(sampler, size, average)] for average in AVERAGES]
        rows.append(
            [f"{title}, {equals}{size:,}", "1", *map(with_interval, found), str(int(found[0]["seeds"])), ABSENT]
        )
    tempered = chosen(laws, sampler="tempered")
    kinetic = chosen(tempered, average="kinetic_temperature")["mean"]
    reason = f"With the paper's constants the kinetic temperature is {kinetic.min():.2f} to {kinetic.max():.2f} of the exact."
    holds = bool(((tempered["low"] <= 1) & (tempered["high"] >= 1)).all())
    verdict = Verdict(SAME if holds else OTHER, "same law" if holds else "other law", reason)
    pictures = [picture(f"theorem-1-{name.replace('_', '-')}", title, draw(name)) for name, title in AVERAGES.items()]
    return Item("theorem-1", pictures, rows, WELL, math.nan, str(int(tempered["seeds"].max())), verdict)


TEMPERINGS = {
    "paper": ("CTLD, the paper's", COLOURS["ctld"], "o"),
    "none": ("no tempering", COLOURS["sgd"], "s"),
    "fixed": ("constants of one η", BROWN, "^"),
}
QUANTITIES = {
    "decaying_bias": ("Bias that decays", "number of steps L", "|bias|", "L", -1.0),
    "decaying_mse": ("MSE that decays", "number of steps L", "mean square error", "L", -1.0),
    "limit": ("Bias that stays", "step size η", "|bias|", "η", 1.0),
}
LARGEST_MISFIT = 4.0  # χ² per degree of freedom; above it the points follow no power


def theorem_2(stored: Stored) -> Item:
    """How bias and MSE fall with the number of steps, and with the step size, beside the bound's exponents."""
    points, rates = stored.rate_points(), stored.rates()

    def draw(quantity: str) -> Draw:
        _, xlabel, ylabel, variable, bound = QUANTITIES[quantity]
        own = chosen(points, quantity=quantity, variable=variable).dropna(subset=["at", "value"])
        value, half = own["value"].abs(), 1.96 * own["standard_error"]
        own = own.assign(mean=value, high=value + half, low=np.maximum(value - half, 0.3 * value))

        def panel(axes: Axes) -> Mapping[str, Any]:
            axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
            legend = {}
            for tempering, (title, tint, marker) in TEMPERINGS.items():
                for _, row in chosen(own, tempering=tempering).iterrows():
                    legend[title] = interval(axes, row["at"], row, tint, marker)
            x = np.array(sorted(own["at"].unique()))
            anchor = own if bound < 0 else chosen(own, at=x[-1])
            factor = 1.4 * float((anchor["mean"] / anchor["at"] ** bound).max())
            (line,) = axes.plot(x, factor * x**bound, color=GREY, lw=1.2, ls=(0, (4, 2)))
            plain_log(axes.yaxis, [10.0**power for power in range(-4, 3)])
            plain_log(axes.xaxis, [100, 1000, 10_000] if variable == "L" else [0.005, 0.01, 0.02, 0.04, 0.08])
            axes.set_ylim(0.5 * own["mean"].min(), None)
            return legend | {f"the bound, {variable}{'⁻¹' * (bound < 0)}": line}

        return panel

    rows, as_bounded = [], {}
    for _, row in rates[rates["quantity"].isin(list(QUANTITIES))].iterrows():
        (title, *_), bound, half = QUANTITIES[row["quantity"]], float(row["bound"]), 1.96 * row["standard_error"]
        power = math.isfinite(row["slope"]) and not row["misfit"] > LARGEST_MISFIT
        exponent = f"{signed(row['slope'], '.2f')} ± {half:.2f}" if power else "no power"
        name, chains = f"{title}, {TEMPERINGS[row['tempering']][0]}", f"{stored.chains(row['tempering']):,}"
        rows.append([name, signed(bound, "g"), exponent, chains, ABSENT])
        if row["tempering"] == "paper":
            as_bounded[title] = power and (row["slope"] + math.copysign(half, bound)) / bound >= 1.0
    lost = [title for title, fine in as_bounded.items() if not fine]
    kept = ", ".join(title for title, fine in as_bounded.items() if fine)
    reason = f"With the paper's constants these fall as bounded: {kept}. This does not: {', '.join(lost) or 'nothing'}."
    verdict = Verdict(OTHER if lost else SAME, "same in L, other in η" if lost else "same rates", reason)
    pictures = [picture(f"theorem-2-{x.replace('_', '-')}", QUANTITIES[x][0], draw(x)) for x in QUANTITIES]
    noise = stored.noise()
    for dimensions in sorted(noise["d"].unique()):
        pictures.append(_noise_picture(chosen(noise, d=dimensions), f"Bias by minibatch noise, d = {dimensions:g}"))
        rows += _noise_rows(chosen(noise, d=dimensions), stored.noise_chains(dimensions))
    return Item("theorem-2", pictures, rows, WELL, math.nan, f"{stored.chains('paper'):,}", verdict)


def _noise_picture(noise: pd.DataFrame, title: str) -> Picture:
    """Plot what the noise adds to the lasting bias, with and without compensation, below a line linear in the noise."""
    own = noise.assign(mean=noise["added"], low=noise["added"] - noise["half"], high=noise["added"] + noise["half"])

    def panel(axes: Axes) -> Mapping[str, Any]:
        legend: dict[str, Any] = {}
        for (tempering, compensated), part in own.groupby(["tempering", "compensated"], sort=False):
            name, tint, marker = TEMPERINGS[str(tempering)]
            for _, row in part.iterrows():
                at = row["s"] + 0.15 * (tempering == "paper") - 0.07
                mark = interval(axes, at, row, tint, "x" if compensated else marker)
                legend |= {} if compensated else {name: mark}
        largest = own["s"].max()
        (line,) = axes.plot([0, largest], [0, 1.1 * own["mean"].max()], color=GREY, lw=1.2, ls=(0, (4, 2)))
        axes.axhline(0, color="#bbbbbb", lw=0.8, zorder=1)
        axes.set(xlabel="minibatch noise s", ylabel="bias added", xlim=(0, largest + 0.5))
        cross = Line2D([], [], marker="x", ls="", color=GREY)
        return legend | {"compensated": cross, "the bound, s": line}

    return picture(f"theorem-2-noise-{noise['d'].iloc[0]:g}", title, panel)


def _noise_rows(noise: pd.DataFrame, chains: int) -> list[list[str]]:
    """Exponents of what the noise adds; with compensation, what is left at the largest noise."""
    rows = []
    for (tempering, compensated), part in noise.groupby(["tempering", "compensated"], sort=False):
        last, rate = (
            part.sort_values("s").iloc[-1],
            f"{part['slope'].iloc[0]:.2f} ± {1.96 * part['slope_error'].iloc[0]:.2f}",
        )
        words = f"Bias by noise, d = {last['d']:g}, {TEMPERINGS[str(tempering)][0]}"
        left = f"{signed(last['added'], '.3f')} ± {last['half']:.3f} at s = {last['s']:g}"
        rows.append(
            [words + ", compensated" * bool(compensated), "1", left if compensated else rate, f"{chains:,}", ABSENT]
        )
    return rows
