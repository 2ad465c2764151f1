"""
An ensemble on images
=====================

Six cycles of exploration and fine-tuning in one run, their members averaged, beside SGD with the same number
of gradients. One seed, and a temperature that was chosen on these digits: a demonstration, not a comparison.
With a network half as wide the two are nearly equal.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from ctld import CTLD, CycleLR, SampleCollector, Tempering, predict

inputs, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
inputs, labels = inputs[order].float() / 16, labels[order]
test_inputs, test_labels = inputs[500:], labels[500:]


def network():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def train(model, optimizer, scheduler, members=None, steps=3000):
    for _ in range(steps):
        batch = torch.randint(500, (64,))
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step(lambda loss=loss: loss)
        scheduler.step()
        if members is not None:
            members.update()


# %%
# SGD with momentum, and a learning rate that falls to zero:

torch.manual_seed(0)
model = network()
sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
train(model, sgd, torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 3000))
with torch.no_grad():
    single = cross_entropy(model(test_inputs), test_labels).item()

# %%
# Cycles of 500 steps, of which 300 explore. The temperature is held: with so few data noise helps, and a
# temperature that moves was not seen to help more.

torch.manual_seed(0)
model = network()
optimizer = CTLD(
    model.parameters(),
    lr=0.1,
    momentum=0.9,
    weight_decay=1e-3,
    num_data=500,
    exploration_steps=300,
    cycle_steps=500,
    temperature=0.03,
    tempering=Tempering.constant(),
    seed=0,
)
members = SampleCollector(model, optimizer)
train(model, optimizer, CycleLR(optimizer), members)

# %%
# What the first k members say together:

samples = list(members)
values = [predict(model, samples[: k + 1], test_inputs).metrics(test_labels)["nll"] for k in range(len(samples))]
alone = [predict(model, [sample], test_inputs).metrics(test_labels)["nll"] for sample in samples]
print(f"test nll: SGD {single:.3f}, ensemble of {len(samples)} {values[-1]:.3f}")

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.axhline(single, color="grey", ls="--", label="SGD, one model")
axis.plot(range(1, 7), alone, "o", color="tab:orange", label="each member alone")
axis.plot(range(1, 7), values, "o-", color="tab:blue", label="averaged so far")
axis.set(xlabel="members", ylabel="test nll")
axis.legend()
plt.show()
