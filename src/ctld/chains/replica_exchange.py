"""Non-reversible parallel tempering (Syed, Bouchard-Côté, Deligiannidis and Doucet 2022) of chains that step together.

    rungs   temperatures T = T_1 < … < T_K, one chain at each; what moves are the temperatures, the parameters stay
    swap    of the chains i, j at T_a < T_b, with probability min(1, exp((1/T_a − 1/T_b)(U_i − U_j))); momenta are rescaled
    order   even pairs, then odd pairs, in turns: a temperature keeps its direction until a swap is refused
    ladder  while it adapts, rungs are moved to where all pairs refuse equally often

The sum of the rejection rates, Λ, is the communication barrier: about 2Λ + 1 rungs are best, and round trips come at a rate of
1/(2 + 2Σ r/(1 − r)) a swap. Energies are those of all data, for a swap by a minibatch's energy has another law.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ctld.chains.chains import Chains
from ctld.checks import integer, real

FIRST_ROUND = 20
"""Swaps of the first round of adaptation; each round is twice as long as the one before."""


class ReplicaExchange:
    """A ladder of temperatures over the chains of a `Chains`.

    >>> exchange = ReplicaExchange(chains, data, hottest=30.0, adapt_steps=5000)         # doctest: +SKIP
    >>> exchange.step(inputs, targets); draw = exchange.cold_model                       # doctest: +SKIP

    Parameters
    ----------
    chains : Chains
        One for each rung, with samplers whose temperature can be set (`set_temperature`), all at the same T.
    data : iterable of batches
        All data, batch by batch, as what `chains.loss` takes after the model: a tuple for several.
    hottest : float
        The highest temperature, in units of T.
    every : int
        Steps from one swap to the next.
    adapt_steps : int
        Steps in which the ladder adapts. What is drawn before they are over is no draw.
    seed : int
        Of the swaps.
    """

    def __init__(
        self,
        chains: Chains,
        data: Iterable[Any],
        *,
        hottest: float,
        every: int = 20,
        adapt_steps: int = 0,
        seed: int = 0,
    ) -> None:
        self.chains, self.data = chains, list(data)
        self.every = integer("every", every, at_least=1)
        self.adapt_steps = integer("adapt_steps", adapt_steps, at_least=0)
        self.seed = integer("seed", seed, at_least=0)
        count = len(chains)
        if count < 2:
            raise ValueError(f"chains must be two at least, got {count}. Build one for each temperature")
        odd = next((each for each in chains.optimizers if not hasattr(each, "set_temperature")), None)
        if odd is not None:
            raise TypeError(
                f"optimizers must have set_temperature, got a {type(odd).__name__}. Take BAOAB, Langevin or SGLD"
            )
        self._optimizers: list[Any] = list(chains.optimizers)
        self.temperature = real("temperature", self._optimizers[0].temperature, above=0)
        self._num_data = real("num_data", self._optimizers[0].num_data, above=0)
        rows = sum(_rows(batch) for batch in self.data)
        if rows != self._num_data:
            raise ValueError(
                f"data must have all {self._num_data:g} examples, got {rows}: swaps by energies of a part have another law. "
                "Give every batch of one epoch"
            )
        self.ladder = np.geomspace(1.0, real("hottest", hottest, above=1.0), count)
        """Temperatures of the rungs, in units of T."""
        self.rung_of = list(range(count))
        """The rung of each chain."""
        self.steps, self.swaps = 0, 0
        self.round_trips = 0
        """Number of round trips of chains, from T to the hottest rung and back to T, since the ladder rests."""
        self._heading = [0] * count  # 1: has been at T, −1: at the hottest since
        self._round = FIRST_ROUND
        self._forget()
        self._apply()

    # ---- what it knows ----

    @property
    def cold(self) -> int:
        """The number of the chain at T."""
        return self.rung_of.index(0)

    @property
    def cold_model(self) -> torch.nn.Module:
        """The model of the chain at T."""
        return self.chains.models[self.cold]

    @property
    def is_draw(self) -> bool:
        """True if the ladder rests, so that the chain at T has the law of the posterior."""
        return self.steps > self.adapt_steps

    @property
    def rejection_rates(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Mean probability of a refusal for each pair of neighbours, since the ladder last moved."""
        return self._refused / np.maximum(self._tried, 1)

    @property
    def barrier(self) -> float:
        """Λ, the communication barrier: about 2Λ + 1 rungs are best."""
        return float(self.rejection_rates.sum())

    # ---- steps ----

    def step(self, *batch: Any, shared: bool = True) -> None:
        """Take one step of every chain, and swap when it is time. Arguments are those of `Chains.backward`."""
        self.chains.backward(*batch, shared=shared)
        self.chains.step()
        self.steps += 1
        if self.steps % self.every == 0:
            self.swap()

    def energies(self) -> Tensor:
        """Return U, of all data and the prior, for each chain."""
        total = torch.zeros(len(self.chains), dtype=torch.float64)
        for batch in self.data:
            parts = batch if isinstance(batch, tuple | list) else (batch,)
            total += _rows(batch) * self.chains.evaluate(*parts).detach().cpu().double()
        for chain, optimizer in enumerate(self._optimizers):
            for group in optimizer.param_groups:
                decay = float(group["weight_decay"])
                squares = sum(float(parameter.detach().double().square().sum()) for parameter in group["params"])
                total[chain] += 0.5 * self._num_data * decay * squares
        return total

    def swap(self) -> None:
        """Try to swap the temperatures of the even pairs of neighbours, or of the odd ones, in turns."""
        energies = (self.energies() / self.temperature).tolist()
        generator = np.random.default_rng((self.seed, self.swaps))
        chain_at = [self.rung_of.index(rung) for rung in range(len(self.rung_of))]
        for rung in range(self.swaps % 2, len(chain_at) - 1, 2):
            low, high = chain_at[rung], chain_at[rung + 1]
            gain = (1.0 / self.ladder[rung] - 1.0 / self.ladder[rung + 1]) * (energies[low] - energies[high])
            chance = math.exp(min(0.0, gain)) if not math.isnan(gain) else 0.0
            self._tried[rung] += 1
            self._refused[rung] += 1.0 - chance
            if generator.random() < chance:
                self.rung_of[low], self.rung_of[high] = rung + 1, rung
        self.swaps += 1
        if self.steps <= self.adapt_steps and self.swaps == self._round:
            self._adapt()
        self._apply()
        self._count_trips()

    def _adapt(self) -> None:
        """Move the rungs to where the rejection rates, as interpolated, are equal (Syed et al., algorithm 4)."""
        barrier = np.concatenate([[0.0], np.cumsum(np.maximum(self.rejection_rates, 1e-6))])
        inverse = 1.0 / self.ladder
        wanted = np.interp(np.linspace(0.0, barrier[-1], len(inverse)), barrier, inverse)
        wanted[0], wanted[-1] = inverse[0], inverse[-1]
        self.ladder = 1.0 / wanted
        self._round += 2 * (self._round - self._since)
        self._forget()

    def _forget(self) -> None:
        self._since = self.swaps
        self._tried = np.zeros(len(self.ladder) - 1)
        self._refused = np.zeros(len(self.ladder) - 1)

    def _apply(self) -> None:
        for optimizer, rung in zip(self._optimizers, self.rung_of, strict=True):
            temperature = self.temperature * float(self.ladder[rung])
            if optimizer.temperature != temperature:
                optimizer.set_temperature(temperature, rescale=True)

    def _count_trips(self) -> None:
        for chain, rung in enumerate(self.rung_of):
            if rung == 0:
                self.round_trips += self._heading[chain] == -1 and self.is_draw
                self._heading[chain] = 1
            elif rung == len(self.ladder) - 1 and self._heading[chain] == 1:
                self._heading[chain] = -1

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """Return all that changes, the chains' own state among it."""
        return {
            "chains": self.chains.state_dict(),
            "ladder": self.ladder.tolist(),
            "rung_of": list(self.rung_of),
            "heading": list(self._heading),
            "tried": self._tried.tolist(),
            "refused": self._refused.tolist(),
            "numbers": [self.steps, self.swaps, self.round_trips, self._round, self._since],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state."""
        count = len(self.chains)
        if sorted(state_dict["rung_of"]) != list(range(count)) or len(state_dict["ladder"]) != count:
            raise ValueError(
                f"the state must have {count} rungs, got {len(state_dict['ladder'])}. Build as many chains"
            )
        self.chains.load_state_dict(state_dict["chains"])
        self.ladder = np.asarray(state_dict["ladder"], dtype=np.float64)
        self.rung_of, self._heading = list(state_dict["rung_of"]), list(state_dict["heading"])
        self._tried, self._refused = np.asarray(state_dict["tried"]), np.asarray(state_dict["refused"])
        self.steps, self.swaps, self.round_trips, self._round, self._since = state_dict["numbers"]


def _rows(batch: Any) -> int:
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim), 1)
