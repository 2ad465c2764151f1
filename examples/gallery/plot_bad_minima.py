"""
Out of bad minima
=================

A network of 24 ReLU units is to become another one, its teacher, whose units are orthogonal. There are spurious minima
(Safran and Shamir 2018), and descent ends in one of them nearly always: to try again is of little use. Exploration at a
constant temperature in a few cycles, each of which goes on from where the last one ended, finds the teacher.

Both methods get 3,000 gradients of the exact loss from each of 20 starts. Their settings are those that the laboratory's
study of traps chose on other starts. With minibatches of 128 inputs, in as many gradients, neither finds more than 4 %.
"""

import math

import matplotlib.pyplot as plt
import torch

import ctld

STARTS, UNITS, GRADIENTS, FOUND = 20, 24, 3000, 1e-3
TEACHER = torch.eye(UNITS, dtype=torch.float64)
generator = torch.Generator().manual_seed(0)


def draw():
    """New weights for every start. All starts are trained side by side: they do not know of each other."""
    weights = torch.randn(STARTS, UNITS, UNITS, generator=generator, dtype=torch.float64) / math.sqrt(UNITS)
    return weights.requires_grad_()


def overlap(one, other):
    """E f(x) f*(x) for standard normal inputs, f and f* the sums of max(0, w·x) over the units of two networks."""
    lengths = one.norm(dim=-1)[..., :, None] * other.norm(dim=-1)[..., None, :]
    cosine = (one @ other.mT / lengths).clamp(-1 + 1e-9, 1 - 1e-9)
    angle = cosine.arccos()
    return (lengths * (angle.sin() + (math.pi - angle) * cosine)).sum((-2, -1)) / (2 * math.pi)


def losses_of(students):
    """½E(student(x) − teacher(x))², of each."""
    return 0.5 * (overlap(students, students) + overlap(TEACHER, TEACHER)) - overlap(students, TEACHER)


def train(students, optimizer, gradients):
    """Returns the losses of all steps and starts."""
    seen = []
    for _ in range(gradients):
        optimizer.zero_grad()
        losses = losses_of(students)
        loss = losses.sum()
        loss.backward()
        optimizer.step(lambda: loss)  # noqa: B023
        seen.append(losses.detach())
    return torch.stack(seen)


# %%
# SGD with momentum, fifteen times from new weights; and four cycles of 450 gradients at a temperature and 300 without.

seen, ends = [], []
for _ in range(15):
    students = draw()
    seen.append(train(students, torch.optim.SGD([students], lr=0.4, momentum=0.95), GRADIENTS // 15))
    ends.append(students.detach())
restarts = torch.cat(seen)

students = draw()
optimizer = ctld.CTLD(
    [students],
    lr=0.4,
    momentum=0.95,
    num_data=1,  # the temperature is then in units of the loss
    temperature=5.6e-4,
    tempering=ctld.Tempering.constant(),
    exploration_steps=450,
    cycle_steps=750,
    seed=0,
)
cycles = train(students, optimizer, GRADIENTS)

for name, losses in (("restarts of SGD", restarts), ("cycles of exploration", cycles)):
    print(f"{name}: the teacher is found from {int((losses < FOUND).any(0).sum())} of {STARTS} starts")

# %%
# How many have found it by then.

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name, losses, colour in (("cycles of exploration", cycles, "tab:blue"), ("restarts of SGD", restarts, "grey")):
    share = (losses.cummin(0).values < FOUND).double().mean(1)
    axis.plot(100 * share, color=colour, label=name)
for start in range(0, GRADIENTS, 750):
    axis.axvspan(start, start + 450, color="tab:orange", alpha=0.12, lw=0, label=None if start else "cycles explore")
axis.set(xlabel="gradients", ylabel="teacher found, %", xlim=(0, GRADIENTS), ylim=(0, 100))
axis.legend(loc="upper left")
plt.show()

# %%
# What they found, from one start: the weights of each unit (a row) along the units of the teacher. A clean red diagonal is the
# teacher. In the best of fifteen restarts some units point the wrong way, and all others make up for it a little.

start = int((cycles[-1] < FOUND).nonzero()[0])
best = min((end[start] for end in ends), key=losses_of)
figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.2), layout="constrained")
for axis, title, weights in zip(
    axes, ("best of 15 restarts", "cycles of exploration"), (best, students.detach()[start]), strict=True
):
    order = weights.abs().argmax(1).argsort()
    picture = axis.imshow(weights[order], vmin=-1, vmax=1, cmap="RdBu_r")
    axis.set(title=f"{title}\nloss {abs(losses_of(weights)):.4f}", xlabel="unit of the teacher", xticks=[], yticks=[])
axes[0].set_ylabel("unit of the student")
figure.colorbar(picture, ax=axes, label="weight")
plt.show()
