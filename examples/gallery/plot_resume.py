"""
Stop, and go on
===============

Everything that changes is in `state_dict()`, noise included: a run that is resumed equals one that was not
interrupted, bit for bit.
"""

import io

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import mse_loss

from ctld import CTLD

torch.manual_seed(0)
inputs = torch.randn(256, 5)
targets = inputs.square().sum(1, keepdim=True)


def build():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
    return model, CTLD(model.parameters(), lr=0.01, weight_decay=1e-3, num_data=256, exploration_steps=200, seed=7)


def train(model, optimizer, steps):
    losses = []
    for _ in steps:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step(loss=loss)
        losses.append(loss.item())
    return losses


# %%
# A run of 300 steps, and one that is saved after 120, in the middle of its exploration:

model, optimizer = build()
whole = train(model, optimizer, range(300))

first, first_optimizer = build()
before = train(first, first_optimizer, range(120))
file = io.BytesIO()  # a file on disk will do as well
torch.save({"model": first.state_dict(), "optimizer": first_optimizer.state_dict()}, file)

# %%
# A new process would begin here:

file.seek(0)
state = torch.load(file, weights_only=True)
second, second_optimizer = build()
second.load_state_dict(state["model"])
second_optimizer.load_state_dict(state["optimizer"])
after = train(second, second_optimizer, range(120, 300))

same = all(torch.equal(a, b) for a, b in zip(model.parameters(), second.parameters(), strict=True))
print(f"equal to the last bit: {same and before + after == whole}")

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(whole, color="lightgrey", lw=5, label="uninterrupted")
axis.plot(range(120), before, color="tab:blue", label="before")
axis.plot(range(120, 300), after, color="tab:orange", label="after")
axis.set(xlabel="step", ylabel="loss", yscale="log")
axis.legend()
plt.show()
