"""How hot each group of parameters is, measured while the run goes on, in units of T/g(α): 1 is right.

    kinetic           N‖(u_t + u_{t−1})/2‖²/d : the momenta. Exact on a Gaussian at any stable lr; sees minibatch noise at once
    configurational   θᵀ∇U/d                  : the parameters. Sees the bias of a large step; settles as slowly as they do
    minibatch heat    N lr σ²/(2(1 − μ))      : what the noise of the gradients, of variance σ², adds, by any integrator here

The steps at the lowest temperature count, g = 1 where there is such a one: those are the ones that are samples. For the last
two, no more than LIMIT elements of a group are looked at, now and then, so that they cost next to nothing. σ² is from three
gradients in a row, (∇_t − 2∇_{t−1} + ∇_{t−2})²/6, which a steady change of the gradient does not enter; of their elements a few
random projections are held, which have the same mean square. The averages are in the state, with batch means for their bands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctld.diagnostics.errors import Estimate
from ctld.diagnostics.streaming import BatchMeans
from ctld.dynamics import Noise, wide_dtype
from ctld.sharding import block, local

LIMIT = 1024
PROJECTIONS = 4
RAREST, MOST_OFTEN = 128, 16  # steps from one look to the next; in between, LOOKS of them fit into the exploration
LOOKS = 100
SAME = 1.0 + 1e-6  # within which ratios are one temperature
_LOOKS_NOISE = 1 << 60  # flips a bit of the seed


@dataclass(frozen=True, slots=True)
class GroupTemperatures:
    """Of one group, in units of T/g(α): averages with their standard errors; None while there is too little to tell."""

    kinetic: Estimate | None = None
    configurational: Estimate | None = None
    minibatch_heat: Estimate | None = None


class GroupThermometer:
    """Of one group."""

    NUMBERS = 3 + 3 * BatchMeans.NUMBERS + 2 * PROJECTIONS

    def __init__(self) -> None:
        self.kinetic, self.configurational, self.heat = BatchMeans(8), BatchMeans(2), BatchMeans(1)
        self.lowest_ratio = math.inf
        self.temperatures = GroupTemperatures()
        self.held: list[Tensor] = []
        """Projections of the gradients of the last steps, while a look is going on."""
        self.count = 0
        """Of how many elements."""

    def read(self, kinetic: float, ratio: float) -> bool:
        """Take in the momenta of a step at 1/g = `ratio`; whether there are new averages."""
        if ratio > self.lowest_ratio * SAME:
            return False
        self.lowest_ratio = min(ratio, self.lowest_ratio)
        if not self.kinetic.add(kinetic):
            return False
        self._average()
        return True

    def read_look(self, configurational: float, heat: float, ratio: float) -> None:
        """Take in what a look has found; a heat that is not known is NaN."""
        if ratio <= self.lowest_ratio * SAME:
            self.configurational.add(configurational)
            if not math.isnan(heat):
                self.heat.add(heat)

    def hold(self, seen: tuple[int, Tensor] | None, *, first: bool) -> None:
        """Elements looked at, and their projections; None when a look is over."""
        if seen is None:
            self.held = []
            return
        # Parameters may come to have no gradient while a look is going on.
        kept = [] if first or (self.held and self.count != seen[0]) else self.held
        self.count, self.held = seen[0], [*kept, seen[1]]

    def _average(self) -> None:
        parts = self.kinetic, self.configurational, self.heat
        self.temperatures = GroupTemperatures(*(part.estimate() for part in parts))

    @property
    def numbers(self) -> list[float]:
        """All that it holds."""
        parts = self.kinetic, self.configurational, self.heat
        held = [number for row in self.held for number in row.tolist()]
        unused = [0.0] * (2 * PROJECTIONS - len(held))
        means = [number for part in parts for number in part.numbers]
        return [self.lowest_ratio, float(self.count), float(len(self.held)), *means, *held, *unused]

    @numbers.setter
    def numbers(self, values: Sequence[float]) -> None:
        self.lowest_ratio, self.count = values[0], int(values[1])
        rest = values[3:]
        for part in (self.kinetic, self.configurational, self.heat):
            part.numbers, rest = rest[: BatchMeans.NUMBERS], rest[BatchMeans.NUMBERS :]
        rows = (rest[:PROJECTIONS], rest[PROJECTIONS:])[: int(values[2])]
        self.held = [torch.tensor(row, dtype=torch.float64) for row in rows]
        self._average()


class Thermometers:
    """Of all groups that explore, by number.

    A look takes three steps in a row: at two of them gradients are held, at the third everything is measured. `look` comes
    before the step; what it saw is held by `taken`, once the step is sure to be taken.
    """

    def __init__(self, exploration_steps: int) -> None:
        self.period = max(MOST_OFTEN, min(RAREST, exploration_steps // LOOKS))
        self.groups: dict[int, GroupThermometer] = {}
        self._seen: dict[int, tuple[int, Tensor]] = {}

    def of(self, number: int) -> GroupThermometer:
        found = self.groups.get(number)
        if found is None:
            found = self.groups[number] = GroupThermometer()
        return found

    def phases(self, step: int) -> tuple[bool, bool]:
        """Whether to look, and whether that completes a look."""
        phase = step % self.period
        return phase <= 2, phase == 2

    @torch.no_grad()
    def look(self, number: int, group: dict[str, Any], source: Noise, scales: Any, *, ranks: int) -> Tensor | None:
        """At a group's elements, before the step `source.step`; the sums of `_Elements.sums` when that completes it."""
        elements = _Elements(group["params"], scales, ranks=ranks)
        directions = Noise("three_point", source.seed ^ _LOOKS_NOISE, source.step // self.period)
        seen = elements.projections(directions, number)
        if not self.phases(source.step)[1]:
            self._seen[number] = len(elements.theta), seen
            return None
        held, change = self.groups[number].held if number in self.groups else [], None
        if len(held) == 2:
            change = seen - 2.0 * held[1].to(seen) + held[0].to(seen)
        return elements.sums(change, decay=float(group["weight_decay"]), sign=-1.0 if group["maximize"] else 1.0)

    def taken(self, step: int) -> None:
        """The step was taken: what was seen is held until the look is complete."""
        if self.phases(step)[0]:
            for number, thermometer in self.groups.items():
                thermometer.hold(self._seen.get(number), first=step % self.period == 0)
        self._seen = {}

    def restart(self) -> None:
        """With a new cycle, whose exploration does not start where the last one ended."""
        self.groups, self._seen = {}, {}

    def state(self, num_groups: int, *, sharded: bool) -> Tensor:
        """A row for each group, zeros where there is nothing. What was seen of shards is one rank's alone, and left out."""
        state = torch.zeros((num_groups, GroupThermometer.NUMBERS), dtype=torch.float64)
        for number, thermometer in self.groups.items():
            state[number] = torch.tensor(thermometer.numbers, dtype=torch.float64)
        if sharded:
            state[:, 2] = 0.0
            state[:, -2 * PROJECTIONS :] = 0.0
        return state

    def load(self, state: Tensor) -> None:
        self.restart()
        for number, row in enumerate(state.tolist()):
            if row[0]:
                self.of(number).numbers = row


class _Elements:
    """Some elements of a group, evenly spread, and how many each stands for."""

    def __init__(self, parameters: Sequence[Tensor], scales: Any, *, ranks: int) -> None:
        numel = sum(local(parameter).numel() for parameter in parameters)
        stride = 1 if numel <= LIMIT else numel // LIMIT | 1  # odd, so as not to be a multiple of a row's length
        theta, gradients, weights, chosen_scales = [], [], [], []
        for parameter in parameters:
            here, gradient = local(parameter), local(parameter.grad)
            if gradient is None or not here.numel():
                continue
            theta.append(here.reshape(-1)[::stride])
            gradients.append(gradient.reshape(-1)[::stride])
            share = block(parameter).shards / ranks if ranks > 1 else 1.0
            weights += [here.numel() / len(theta[-1]) * share] * len(theta[-1])
            if scales is not None:
                chosen_scales.append(local(scales[parameter]["scale"]).reshape(-1)[::stride])
        self.theta, self.gradient = _joined(theta), _joined(gradients)
        self.weights = torch.tensor(weights, dtype=self.theta.dtype, device=self.theta.device)
        self.scales = _joined(chosen_scales) if scales is not None else None

    def projections(self, source: Noise, number: int) -> Tensor:
        """Of the gradient, each element multiplied by the root of what it counts."""
        count = len(self.gradient)
        directions = source.numbers(number, PROJECTIONS * count, like=self.gradient).view(PROJECTIONS, count)
        counts = self.weights if self.scales is None else self.weights * self.scales
        return directions @ (counts.sqrt() * self.gradient)

    def sums(self, change: Tensor | None, *, decay: float, sign: float) -> Tensor:
        """Σ w θ·∇(±loss + prior); Σ w s σ², NaN if the change is not known; Σ w; and a zero: as long as a step's sums."""
        virial = (self.weights * self.theta * (sign * self.gradient + decay * self.theta)).sum()
        noise = torch.full_like(virial, math.nan) if change is None else change.square().mean() / 6.0
        return torch.stack((virial, noise, self.weights.sum(), torch.zeros_like(virial)))


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    if not pieces:
        return torch.zeros(0, dtype=torch.float64)
    device = pieces[0].device
    return torch.cat([piece.to(device) for piece in pieces]).to(wide_dtype(device))
