"""
A tempering of your own
=======================

What moves the temperature is a small class. Here it falls exponentially, as simulated annealing has it:
`temperature_ratio` says by what T is multiplied in the next step, `end` hears that a step was taken, and two
more methods make it part of the checkpoint.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from ctld import CTLD
from ctld.tempering import TemperatureControl


class Cooling(TemperatureControl):
    """From `start`·T down to T, by a constant factor in each step."""

    def __init__(self, start, steps):
        self.start, self.length, self.steps = start, steps, 0

    @property
    def temperature_ratio(self):
        return self.start ** (1 - min(self.steps / self.length, 1.0))

    def end(self, hamiltonian, normal, hamiltonian_variance=0.0):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state_dict):
        self.steps = int(state_dict["steps"])


# %%
# 2,000 particles in a tilted double well, all in the worse one to begin with. Cooled slowly, most end in
# the better.


def potential(x):
    return 3 * (x**2 - 1) ** 2 + 0.8 * x


def run(tempering, steps=3000):
    x = nn.Parameter(torch.ones(2000, dtype=torch.float64))
    optimizer = CTLD(
        [x], lr=1e-3, momentum=0.95, num_data=1, exploration_steps=steps, temperature=0.1, tempering=tempering, seed=0
    )
    shares = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = potential(x).sum()
        loss.backward()
        optimizer.step(loss=loss)
        shares.append((x.detach() < 0).double().mean().item())
    return shares


cooled, cold = run(Cooling(20.0, 3000)), run(Cooling(1.0, 3000))
print(f"in the better well: {cooled[-1]:.0%} after cooling, {cold[-1]:.0%} at the low temperature all along")

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(cooled, color="tab:orange", label="cooled from 20 T to T")
axis.plot(cold, color="tab:blue", label="at T")
axis.set(xlabel="step", ylabel="share in the better well", ylim=(0, 1))
axis.legend()
plt.show()
