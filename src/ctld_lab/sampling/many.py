"""Many chains at once at fixed temperatures, in numpy: what tempered chains are measured against.

The step is BAOAB, as in `ctld.stepping.integrators`, with lr and momentum in the same meaning; there is no α. Chains alone
give the rate at which a barrier is crossed without tempering. With replica exchange (Geyer 1991) between neighbouring
temperatures they sample a posterior of several modes, by another algorithm and other code than the one to be judged.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
OfMany = Callable[[Array], tuple[Array, Array]]
"""U, of shape (n,), and ∇U, of shape (n, d), of many θ, of shape (n, d)."""


class Chains:
    """n chains of θ, each at a temperature of its own.

    Parameters
    ----------
    theta : array of shape (n, d)
    temperature : array of shape (n,)
    lr, momentum
        η² (N = 1) and 1 − ηγ.
    """

    def __init__(
        self, potential: OfMany, theta: Array, temperature: Array, *, lr: float, momentum: float, seed: int
    ) -> None:
        self.potential, self.momentum = potential, momentum
        self.kick = math.sqrt(2.0 * lr / (1.0 + momentum))
        self.generator = np.random.default_rng(seed)
        self.theta, self.temperature = theta.copy(), temperature[:, None]
        self.r = self.generator.standard_normal(theta.shape) * np.sqrt(self.temperature)
        self._deviation = np.sqrt((1.0 - momentum**2) * self.temperature)
        self.energy, self._slope = potential(self.theta)

    def step(self) -> None:
        self.r -= self.kick * self._slope
        self.theta += 0.5 * self.kick * self.r
        self.r *= self.momentum
        self.r += self._deviation * self.generator.standard_normal(self.r.shape)
        self.theta += 0.5 * self.kick * self.r
        self.energy, self._slope = self.potential(self.theta)

    def exchange(self, ladders: int, first: int) -> None:
        """Offer neighbours of every ladder to change places, beginning at rung `first`; momenta go along, rescaled."""
        rungs = len(self.theta) // ladders
        lower = (np.arange(first, rungs - 1, 2)[:, None] * ladders + np.arange(ladders)).ravel()
        upper = lower + ladders
        cold, hot = self.temperature[lower, 0], self.temperature[upper, 0]
        gain = (1.0 / cold - 1.0 / hot) * (self.energy[lower] - self.energy[upper])
        accepted = np.log(self.generator.random(len(lower))) < gain
        lower, upper = lower[accepted], upper[accepted]
        scale = np.sqrt(hot[accepted] / cold[accepted])[:, None]
        self.r[lower], self.r[upper] = self.r[upper] / scale, self.r[lower] * scale
        for series in (self.theta, self._slope, self.energy):
            series[lower], series[upper] = series[upper].copy(), series[lower].copy()


def coldest(chains: Chains, *, ladders: int, steps: int, every: int) -> Iterator[tuple[Array, Array]]:
    """θ and U of the first rung, once for each of the `steps` that `every` divides; exchanges happen as often."""
    for step in range(1, steps + 1):
        chains.step()
        if step % every == 0:
            chains.exchange(ladders, step // every % 2)
            yield chains.theta[:ladders].copy(), chains.energy[:ladders].copy()
