"""
Regression, and how sure it is
==============================

A Bayesian network on 40 points with a gap in the middle. Samples of the posterior at T = 1 agree where there
are data and spread where there are none.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from ctld import CTLD, SampleCollector, Tempering, predict

torch.manual_seed(0)
x = torch.cat([torch.rand(20) * 1.5 - 2.5, torch.rand(20) * 1.5 + 1.0])[:, None]
y = torch.sin(2 * x) + 0.3 * x + 0.1 * torch.randn_like(x)

model = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 1))
noise = 0.1  # of the data: the loss is the negative log likelihood of a Gaussian of this width

# %%
# Sampling is exploration that does not end. `weight_decay` is the prior: N·weight_decay/2 per squared
# weight, here a standard normal distribution.

steps = 10_000
optimizer = CTLD(
    model.parameters(),
    lr=2e-4,
    momentum=0.95,
    weight_decay=1 / 40,
    num_data=40,
    exploration_steps=steps,
    temperature=1.0,
    tempering=Tempering.constant(),
    integrator="baoab",
    seed=0,
)
collector = SampleCollector(model, optimizer, cold_every=100, at_most=60)
for _ in range(steps):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean() / (2 * noise**2)
    loss.backward()
    optimizer.step(loss=loss)
    collector.update()

# %%
# The band is two standard deviations of what the samples disagree about (epistemic).

grid = torch.linspace(-3.5, 3.5, 200)[:, None]
found = predict(model, collector.of_kind("cold"), grid, task="regression")
mean, spread = found.mean.squeeze(), found.epistemic.squeeze().sqrt()
gap = (grid.squeeze() > -0.8) & (grid.squeeze() < 0.8)
print(
    f"spread in the gap {spread[gap].mean():.2f}, at the data {spread[~gap & (grid.squeeze().abs() < 2.4)].mean():.2f}"
)

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.fill_between(grid.squeeze(), mean - 2 * spread, mean + 2 * spread, color="tab:blue", alpha=0.2, lw=0)
axis.plot(grid, mean, color="tab:blue")
axis.plot(x, y, ".", color="black")
axis.set(xlabel="x", ylabel="y", ylim=(-4, 4))
plt.show()
