"""
Take the place of SGD
=====================

One line changes. `lr`, `momentum` and `weight_decay` keep their meaning; the step is given the loss. CTLD
explores for the first part of the training and is SGD with momentum afterwards. In one pass like this it ties
with SGD where it was measured, or is 2 % behind: what is worth having comes with cycles (the next example).
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from ctld import CTLD

inputs, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
inputs, labels = inputs[order].float() / 16, labels[order]
train, test = slice(0, 900), slice(900, None)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def run(model, optimizer, steps=2000):
    """Train, and return the test loss every 20 steps."""
    curve = []
    for step in range(steps):
        batch = torch.randint(900, (64,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs[train][batch]), labels[train][batch])
        loss.backward()
        optimizer.step(lambda loss=loss: loss)  # any optimizer of torch's takes a closure
        if step % 20 == 19:
            with torch.no_grad():
                curve.append(cross_entropy(model(inputs[test]), labels[test]).item())
    return curve


# %%
# The same loop, with either optimizer:

model = network()
sgd = run(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3))

model = network()
optimizer = CTLD(
    model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, num_data=900, exploration_steps=1000, seed=0
)
ctld = run(model, optimizer)
print(f"test nll: SGD {sgd[-1]:.3f}, CTLD {ctld[-1]:.3f}")

# %%
# How much noise was that? `temperature="auto"`, the default, is careful: what it injects is of the order of what
# the minibatches bring by themselves, which is why this is practically SGD. An ensemble's temperature is far higher.

heat = optimizer.last.groups[0].minibatch_heat
print(f"T = {optimizer.temperature:.3g}; the minibatches bring {heat.mean:.1f} T by themselves")

# %%
# The shaded part explores.

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
steps = range(20, 2001, 20)
axis.axvspan(0, 1000, color="tab:orange", alpha=0.12, lw=0)
axis.plot(steps, sgd, color="grey", label="SGD")
axis.plot(steps, ctld, color="tab:blue", label="CTLD")
axis.set(xlabel="step", ylabel="test nll", ylim=(0, 0.6))
axis.legend()
plt.show()
