"""The paper's figures and tables, one function each: what the page shows of them, from stored tables alone."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ctld_lab.paper import drawing, printed
from ctld_lab.paper.drawing import GREY, Draw, curve, diamond, interval, picture, plain_log, strip
from ctld_lab.paper.items import (
    ABSENT,
    OTHER,
    SAME,
    Item,
    Verdict,
    agreement,
    chosen,
    order,
    percent,
    shown,
    signed,
    with_interval,
)
from ctld_lab.paper.printed import EPOCH, FIG_2, FIG_3, FIG_4, METHODS, STEPS, Value, ends
from ctld_lab.paper.stored import LAPTOP, Stored
from ctld_lab.report.plots import COLOURS
from ctld_lab.report.reading import TITLES

WHOLE, SMALL = "paper's size", "laptop size"
SETTINGS = {
    "paper": "", "laptop": ", laptop's lr", "paper-biases-0": ", biases 0", "laptop-biases-0": ", laptop's lr, biases 0",
}  # fmt: skip


def across(share: float) -> str:
    """Return what is written across a figure at laptop size."""
    return f"laptop size: {percent(share)} of the steps"


# ---- Fig. 1 ----


def fig_1(stored: Stored) -> Item:
    """g(α), and how much of exploration was spent below its plateau."""
    heats = chosen(stored.temperatures(), variant="paper")

    def draw(axes: Axes) -> Mapping[str, Any]:
        alphas = np.linspace(-2.0, 2.0, 401)
        (line,) = axes.plot(alphas, [printed.scaling(alpha) for alpha in alphas], color=COLOURS["ctld"], lw=2.2)
        marks = [
            diamond(axes, x, printed.scaling(x), GREY)
            for x in (0.0, printed.PLATEAU, -printed.PLATEAU, printed.EDGE, -printed.EDGE)
        ]
        axes.set(xlabel="α", ylabel="g(α)", xlim=(-2, 2), ylim=(0, 1.1), xticks=range(-2, 3))
        return {"ours": line, "paper": marks[0]}

    uniform, hot = 1.0 - printed.PLATEAU / printed.EDGE, [1.0 - float(share) for share in heats["cold_share"]]
    end = [str(int(heats["seeds"].max())), percent(1.0)]
    rows = [["lowest g", f"{1 - printed.DEPTH:.2f}", f"{1 / heats['highest_ratio'].max():.2f}", *end]]
    rows += [
        [f"exploration at g < 1, layer {n}", percent(uniform), percent(x), *end] for n, x in enumerate(hot, start=1)
    ]
    spent = f"{percent(min(hot))} to {percent(max(hot))}"
    reason = f"A uniform α would spend {percent(uniform)} of exploration at g < 1. Ours spends {spent}."
    verdict = Verdict(SAME, "same curve", reason)
    shape = picture("fig-1", "Temperature scaling", draw)
    return Item("fig-1", [shape], rows, WHOLE, 1.0, end[0], verdict)


# ---- Fig. 2 ----


def fig_2(stored: Stored) -> Item:
    """Errors of the autoencoder's layers on their own input, and beside it what comes back of the image."""
    finals, pulses = stored.finals("sda"), stored.ratios()
    layer, image = stored.curves("sda", "train", "mse"), stored.curves("sda", "test", "image_mse")
    ours: dict[str, float] = {}
    rows, shares = [], []
    for method, variant in itertools.product(METHODS, ("paper", "laptop")):
        own, begun = (chosen(frame, method=method, variant=variant) for frame in (finals, layer))
        done = 1.0 if len(own) else begun["step"].max() / STEPS["sda"] if len(begun) else 0.0
        cells = [ABSENT, ABSENT, "0"]
        if len(own):
            errors = [math.inf if own["diverged"].any() else _one(own, x) for x in ("train mse", "test image_mse")]
            cells = [f"{x:.{places}f}".replace("inf", "diverged") for x, places in zip(errors, (4, 2), strict=True)]
            cells.append(str(int(own["planned"].max())))
            ours |= {method: errors[0]} if variant == "paper" else {}
        paper = [shown(FIG_2[method])] if variant == "paper" else [ABSENT] * bool(len(begun))
        rows += [[TITLES[method] + SETTINGS[variant], *paper, *cells, percent(done)]] if paper else []
        shares += [done] if variant == "paper" else []
    rows.sort(key=lambda row: SETTINGS["laptop"] in row[0])

    def layers(frame: pd.DataFrame, bottom: float, paper: bool) -> Draw:
        def draw(axes: Axes) -> Mapping[str, Any]:
            axes.set(yscale="log", xlim=(0, 4), ylim=(bottom, 3), xticks=range(5))
            axes.set(xlabel="iteration, 10⁵", ylabel="mean square error")
            for (method, _), stage in chosen(frame, variant="paper").groupby(["method", "stage"]):
                curve(axes, str(method), stage["step"] / 1e5, stage["mean"])
            for switch in (1, 2, 3):
                axes.axvline(switch, color="#bbbbbb", lw=0.7, zorder=1)
            plain_log(axes.yaxis, [x for x in (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3) if x >= bottom])
            if paper:
                strip(axes, 4, FIG_2)
            return drawing.methods_named(METHODS)

        return draw

    def ratio(axes: Axes) -> Mapping[str, Any]:
        (line,) = axes.plot(pulses["step"] / 1e3, pulses["temperature_ratio"], color=COLOURS["ctld"], lw=0.8)
        axes.set(xlabel="iteration of layer 4, 10³", ylabel="1/g(α)", xlim=(0, 18), ylim=(0, 7.2))
        return {"CTLD": line, "paper's highest": diamond(axes, 18, 1 / (1 - printed.DEPTH), GREY)}

    pictures = [
        picture("fig-2-layers", "Error of the layer, training data", layers(layer, 0.003, True)),
        picture("fig-2-temperature", "Temperature while layer 4 explores", ratio),
    ]
    unseen = [picture("fig-2-image", "Error of the image, test data", layers(image, 0.03, False))]
    verdict = order(FIG_2, ours, "Last layer on training data")
    seeds = str(max(int(row[-2]) for row in rows))
    return Item("fig-2", pictures, rows, WHOLE, sum(shares) / len(shares), seeds, verdict, unseen=unseen)


def _one(frame: pd.DataFrame, metric: str) -> float:
    return float(chosen(frame, metric=metric)["mean"].iloc[0])


# ---- Tables 1 and 2 ----


def table_1(stored: Stored) -> Item:
    """Learning rates of the autoencoder."""
    return _rates(stored, "sda", "table-1", STEPS["sda"] // 4)


def table_2(stored: Stored) -> Item:
    """Learning rates of the LSTM."""
    return _rates(stored, "charrnn", "table-2", STEPS["charrnn"])


def _rates(stored: Stored, study: str, key: str, steps: int) -> Item:
    theirs, ours, share = printed.rates_of_sgd(study), stored.chosen_rates(study), stored.steps(study) / steps
    every = [*(ends(value)[0] for value in theirs.values()), *ours.values()]
    limits = 0.5 * min(every), 2 * max(every)

    def draw(axes: Axes) -> Mapping[str, Any]:
        axes.set(xscale="log", xlabel="lr in SGD's units", xlim=limits)
        lines = {method: (ends(theirs[method])[0], rate, rate) for method, rate in ours.items()}
        drawing.lying(axes, METHODS, lines, theirs)
        plain_log(axes.xaxis, [x for x in (10.0**power for power in range(-6, 2)) if limits[0] < x < limits[1]])
        return drawing.marks_named()

    rows = []
    for method in METHODS:
        rates = [printed.PRINTED["rates"][study][method], ends(theirs[method])[0], ours[method]]
        rows.append([TITLES[method], *(signed(rate, ".3g") for rate in rates), "1", percent(share)])
    shape = picture(key, "Learning rates", draw, share=across(share), height=2.6, rows=1)
    return Item(key, [shape], rows, SMALL, share, "1", order(theirs, ours, "Size of the learning rates"))


# ---- Fig. 3 ----


def fig_3(stored: Stored) -> Item:
    """The LSTM's loss on training and test text over twenty epochs, of which what is missing is empty paper."""
    curves = {split: stored.curves("charrnn", split, "nats") for split in ("train", "test")}

    def draw(split: str) -> Draw:
        def panel(axes: Axes) -> Mapping[str, Any]:
            axes.set(xlim=(0, 20), ylim=(1.2, 3.8), xlabel="epoch", ylabel="nats per character", xticks=range(0, 21, 5))
            for variant, method in itertools.product(("paper", "paper-biases-0"), METHODS):
                own = chosen(curves[split], method=method, variant=variant)
                curve(axes, method, own["step"] / EPOCH, own["mean"], dashed=variant != "paper")
            axes.axhline(3.5, color="#bbbbbb", lw=0.8, ls=":", zorder=1)
            axes.text(19.8, 3.52, "frequencies of single letters", ha="right", va="bottom", fontsize=9, color=GREY)
            strip(axes, 20, FIG_3[split])
            older = Line2D([], [], color=GREY, lw=1.3, ls=drawing.DASHES)
            return drawing.methods_named(METHODS) | {"biases at 0": older}

        return panel

    rows, shares = [], []
    ours: dict[str, float] = {}
    for variant, method in itertools.product(SETTINGS, METHODS):
        last = [_last(chosen(curves[split], method=method, variant=variant)) for split in ("train", "test")]
        done, paper = last[0]["step"] / STEPS["charrnn"], variant == "paper"
        if done or paper:
            values = " / ".join(f"{x['mean']:.3f}" for x in last) if done else ABSENT
            theirs = " / ".join(shown(FIG_3[split].get(method), ".2f") for split in FIG_3) if paper else ABSENT
            rows.append([TITLES[method] + SETTINGS[variant], theirs, values, f"{last[0]['seeds']:g}", percent(done)])
        shares += [done] if paper else []
        ours |= {method: last[0]["mean"]} if paper and done >= 1 else {}
    lasts = curves["train"].sort_values("step").groupby(["method", "variant"]).tail(1)
    low, lowest = lasts.loc[lasts["mean"].idxmin()], min(ends(value)[0] for value in FIG_3["train"].values())
    best = (
        f"The lowest training loss so far is {low['mean']:.2f} nats ({TITLES[low['method']]}{SETTINGS[low['variant']]}), "
        f"{percent(low['step'] / STEPS['charrnn'])} of the way. The paper's lowest is {lowest:.2f}."
    )
    titles = {"train": "Training text", "test": "Test text"}
    pictures = [picture(f"fig-3-{split}", title, draw(split), rows=3) for split, title in titles.items()]
    verdict = order(FIG_3["train"], ours, "Training text after 20 epochs")
    seeds = str(max(int(row[-2]) for row in rows))
    return Item("fig-3", pictures, rows, WHOLE, sum(shares) / len(shares), seeds, verdict, [best])


def _last(curve: pd.DataFrame) -> dict[str, float]:
    """The farthest evaluation; zeros where there is none."""
    names = ("step", "mean", "seeds")
    return {name: float(curve.loc[curve["step"].idxmax(), name]) if len(curve) else 0.0 for name in names}


# ---- Fig. 4 ----


def fig_4(stored: Stored) -> Item:
    """A map of w and σ, and the depth S beside the paper's band."""
    finals = chosen(stored.finals("sensitivity", LAPTOP), metric="test nats")
    share = stored.steps("sensitivity") / STEPS["sensitivity"]
    for name in ("w", "sigma", "S"):
        finals = finals.assign(**{name: finals["point"].str.extract(rf"\b{name}=([\d.]+)", expand=False).astype(float)})
    depth = chosen(finals, variant="depth").sort_values("S")
    cells = chosen(finals, variant="grid").pivot(index="sigma", columns="w", values="mean")

    def surface(axes: Axes) -> Mapping[str, Any]:
        drawing.heat(axes, cells.to_numpy(), list(cells.columns), list(cells.index))
        w, sigma = (list(x).index(printed.PRINTED["fig-4"][x.name]) for x in (cells.columns, cells.index))
        axes.set(xlabel="w", ylabel="σ")
        return {"the paper's w and σ": diamond(axes, w - 0.36, sigma + 0.32, GREY)}

    def band(axes: Axes) -> Mapping[str, Any]:
        axes.set(xlabel="S", ylabel="test nats per character", xlim=(0.25, 1.0), ylim=(1.35, 2.1))
        axes.fill_between([0.25, 1.0], min(FIG_4.values()), max(FIG_4.values()), color="#999999", lw=0)
        dots = [interval(axes, row["S"], row, COLOURS["ctld"]) for _, row in depth.iterrows()]
        marks = [diamond(axes, S, value, GREY) for S, value in FIG_4.items()]
        return {"ours, 95 %": dots[0], "paper": marks[0]}

    seeds = [str(int(chosen(finals, variant=variant)["seeds"].max())) for variant in ("depth", "grid")]
    spread = depth["mean"].max() - depth["mean"].min()
    rows = [
        [f"S = {row['S']:g}", shown(FIG_4.get(row["S"])), with_interval(row), seeds[0], percent(share)]
        for _, row in depth.iterrows()
    ]
    ours = f"{cells.min().min():.3f}–{cells.max().max():.3f}"
    rows.append(["w × σ, lowest to highest", ABSENT, ours, seeds[1], percent(share)])
    half, theirs = 0.5 * (depth["high"] - depth["low"]).max(), max(FIG_4.values()) - min(FIG_4.values())
    reason = f"Over S the test loss spans {spread:.3f} nats (intervals up to ± {half:.3f}), the paper's {theirs:.4f}."
    stable = bool(depth["mark"].isin(["best", "tie", "undecided"]).all())
    verdict = Verdict(SAME if stable else OTHER, "as stable" if stable else "less stable", reason)
    pictures = [
        picture("fig-4-map", "Test loss at S = 0.85", surface, share=across(share), rows=1),
        picture("fig-4-depth", "Test loss over S", band, share=across(share), rows=1),
    ]
    return Item("fig-4", pictures, rows, SMALL, share, " and ".join(seeds), verdict)


# ---- Table 3 ----


def table_3(stored: Stored) -> Item:
    """Ratios of times to SGD-M, which carry over to another machine, and the seconds beside."""
    finals, share = stored.finals("timing", LAPTOP), stored.steps("timing") / STEPS["timing"]
    ratios, seconds = (chosen(finals, metric=x).set_index("method") for x in ("ratio", "seconds per epoch"))
    theirs: dict[str, Value] = {method: value / printed.SECONDS["sgd"] for method, value in printed.SECONDS.items()}
    ours = {x: [float(ratios.loc[x, name]) for name in ("low", "mean", "high")] for x in theirs}

    def draw(axes: Axes) -> Mapping[str, Any]:
        drawing.lying(axes, list(theirs), ours, theirs)
        axes.set(xlabel="time of an epoch / SGD-M's")
        return drawing.marks_named("ours, 95 %")

    rows = [
        [TITLES[x], f"{ends(theirs[x])[0]:.3f}", f"{mean:.3f}" + f" ({low:.2f} to {high:.2f})" * (x != "sgd"),
         f"{printed.SECONDS[x]:.2f}", f"{seconds.loc[x, 'mean']:.0f}", "1", percent(share)]
        for x, (low, mean, high) in ours.items()
    ]  # fmt: skip
    (low, mean, high), paper = ours["ctld"], ends(theirs["ctld"])[0]
    reason = f"CTLD takes {mean:.3f} of SGD-M's time ({low:.2f} to {high:.2f}), the paper's {paper:.3f}."
    verdict = Verdict(SAME, "same ratio", reason) if low <= paper <= high else Verdict(OTHER, "other ratio", reason)
    rounds = int(ratios["seeds"].max())
    alike, both, _ = agreement(theirs, {method: mean for method, (_, mean, _) in ours.items()})
    more = [
        f"By the means of {rounds} rounds {alike} of {both} pairs are ordered as in the paper. Most intervals overlap."
    ]
    shape = picture("table-3", "Ratio to SGD-M", draw, share=across(share), height=2.5, rows=1)
    return Item("table-3", [shape], rows, SMALL, share, "1", verdict, more)
