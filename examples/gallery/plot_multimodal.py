"""
Many modes, with and without tempering
======================================

Sixteen chains start in one corner of a mixture of nine Gaussians. At a constant temperature they stay about
there; with a temperature that goes up and down they find the others. One number, the temperature, is all that
differs.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.animation import FuncAnimation
from torch import nn

from ctld import CTLD, Tempering

CENTRES = torch.tensor([[i, j] for i in (-1.0, 0.0, 1.0) for j in (-1.0, 0.0, 1.0)], dtype=torch.float64) * 2.2
WIDTH = 0.25


def potential(points):
    """−log of the density, up to a constant."""
    squares = (points[:, None, :] - CENTRES).square().sum(-1)
    return -torch.logsumexp(-squares / (2 * WIDTH**2), dim=1)


def sample(tempering, steps=6000, keep=100):
    """Positions of all chains, every `keep` steps. The chains share one temperature, on a timetable."""
    points = nn.Parameter(torch.full((16, 2), -2.2, dtype=torch.float64))
    optimizer = CTLD(
        [points],
        lr=1.5e-3,
        momentum=0.95,
        num_data=1,
        exploration_steps=steps,
        temperature=1.0,
        tempering=tempering,
        seed=1,
    )
    frames = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = potential(points).sum()
        loss.backward()
        optimizer.step(loss=loss)
        if step % keep == 0:
            frames.append((points.detach().numpy().copy(), optimizer.last.temperature_ratio))
    return frames


still = sample(Tempering.constant())
moving = sample(Tempering.driven(3000))


def modes(frames):
    places = np.concatenate([points for points, ratio in frames if ratio < 1.2])
    nearest = np.linalg.norm(places[:, None] - CENTRES.numpy(), axis=-1).argmin(1)
    return len(np.unique(nearest))


print(f"modes visited while cold: {modes(still)} at a constant temperature, {modes(moving)} with one that moves")

# %%
# Where they were while cold, all steps together:

grid = torch.linspace(-3.6, 3.6, 90, dtype=torch.float64)
density = torch.exp(-potential(torch.cartesian_prod(grid, grid))).reshape(90, 90).T


def panels():
    """Two panels with the density's contours."""
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.3), layout="constrained")
    for axis, title in zip(axes, ("constant temperature", "temperature that moves"), strict=True):
        axis.contour(grid, grid, density, colors="lightgrey", levels=6, linewidths=0.8)
        axis.set(title=title, xticks=[], yticks=[], aspect="equal")
    return figure, axes


figure, axes = panels()
for axis, frames in zip(axes, (still, moving), strict=True):
    places = np.concatenate([points for points, ratio in frames if ratio < 1.2])
    axis.scatter(*places.T, s=5, alpha=0.4, color="tab:blue")
plt.show()

# %%
# How they get there; colour is the temperature.

figure, axes = panels()
dots = [axis.scatter([], [], s=14, cmap="coolwarm", c=[], vmin=1, vmax=6.67) for axis in axes]


def draw(frame):
    for scatter, frames in zip(dots, (still, moving), strict=True):
        points, ratio = frames[frame]
        scatter.set_offsets(points)
        scatter.set_array(np.full(len(points), ratio))
    return dots


animation = FuncAnimation(figure, draw, frames=len(still), interval=150)
draw(len(still) - 1)
plt.show()
