"""How hot each group of parameters is, measured while the run goes on, in units of T/g(α): 1 is right.

    kinetic           N‖(u_t + u_{t−1})/2‖²/d : the momenta. Exact on a Gaussian at any stable lr (UBU's is not)
    configurational   θᵀ∇U/d                  : the parameters. Sees the bias of a large step; settles as slowly as they do
    minibatch heat    N lr σ²/(2(1 − μ))      : what the noise of the gradients, of variance σ², adds to that of the parameters

The steps at the lowest temperature count, g = 1 where there is such a one: those are the ones that are samples. For the last
two, about LIMIT elements of a group are looked at, now and then, at moments drawn at random so that they do not keep step with
a temperature that moves by a timetable. σ² is from three gradients in a row, (∇_t − 2∇_{t−1} + ∇_{t−2})²/6, which a steady
change of the gradient does not enter; of their elements a few random projections are held, which have the same mean square.
The averages are in the state, with batch means for their bands.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctld.diagnostics.errors import Estimate
from ctld.diagnostics.streaming import BatchMeans
from ctld.dynamics import Noise, wide_dtype
from ctld.noise import scalar_normal
from ctld.sharding import block, local

LIMIT = 1024
PROJECTIONS = 4
RAREST, MOST_OFTEN = 512, 32  # steps from one look to the next; in between, LOOKS of them fit into the exploration
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
        self._begin()
        self.lowest_ratio = math.inf
        self.temperatures = GroupTemperatures()
        self.held: list[Tensor] = []
        """Projections of the gradients of the last steps, while a look is going on."""
        self.identity = 0
        """Of which elements."""

    def _begin(self) -> None:
        self.kinetic, self.configurational, self.heat = BatchMeans(10), BatchMeans(2), BatchMeans(1)

    def read(self, kinetic: float, ratio: float) -> bool:
        """Take in the momenta of a step at 1/g = `ratio`; whether there are new averages."""
        if ratio > self.lowest_ratio * SAME:
            return False
        if ratio * SAME < self.lowest_ratio:
            self._begin()  # all that was read before was at a higher temperature
            self.lowest_ratio = ratio
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

    def hold(self, seen: tuple[int, Tensor] | None) -> None:
        """Which elements were looked at, and their projections; None when a look is over."""
        if seen is None:
            self.held = []
            return
        self.held = [*(self.held if self.identity == seen[0] else []), seen[1]]
        self.identity = seen[0]

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
        return [self.lowest_ratio, float(self.identity), float(len(self.held)), *means, *held, *unused]

    @numbers.setter
    def numbers(self, values: Sequence[float]) -> None:
        self.lowest_ratio, self.identity = values[0], int(values[1])
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
        self._window, self._start = -1, 0
        self._elements: dict[int, _Elements] = {}
        self._known: tuple[GroupTemperatures | None, ...] = ()

    def of(self, number: int) -> GroupThermometer:
        found = self.groups.get(number)
        if found is None:
            found = self.groups[number] = GroupThermometer()
            self._known = ()
        return found

    def temperatures(self, num_groups: int) -> tuple[GroupTemperatures | None, ...]:
        """What is known by now; None for groups that have not explored."""
        if len(self._known) != num_groups:
            known = self.groups
            self._known = tuple(known[n].temperatures if n in known else None for n in range(num_groups))
        return self._known

    def read(self, number: int, kinetic: float, ratio: float) -> GroupThermometer | None:
        """Take in a group's momenta of a step at 1/g = `ratio`; its thermometer, if there are new averages."""
        found = self.of(number)
        if not found.read(kinetic, ratio):
            return None
        self._known = ()
        return found

    def phase(self, step: int, seed: int) -> int:
        """Of a look: 0 and 1, and 2, at which it measures; another number when there is none."""
        window, place = divmod(step, self.period)
        if window != self._window:
            draw = scalar_normal(seed ^ _LOOKS_NOISE, 0, window)
            self._window, self._start = window, int(0.5 * math.erfc(-draw / math.sqrt(2.0)) * (self.period - 2))
        return place - self._start

    @torch.no_grad()
    def look(
        self, number: int, group: dict[str, Any], source: Noise, scales: Any, *, version: int, ranks: int
    ) -> Tensor | None:
        """At a group's elements, before the step `source.step`; the sums of `_Elements.sums` when that completes it.

        `version` changes when the scales do, of which all steps of a look must have the same.
        """
        identity = zlib.crc32(repr((version, [parameter.grad is None for parameter in group["params"]])).encode())
        elements = self._elements.get(number)
        if elements is None or elements.identity != identity or not elements.fits(group["params"]):
            elements = self._elements[number] = _Elements(identity, group["params"], scales, ranks=ranks)
        theta, gradient = elements.read()
        directions = Noise("three_point", source.seed ^ _LOOKS_NOISE, source.step // self.period)
        seen = elements.projections(gradient, directions, number)
        if self.phase(source.step, source.seed) < 2:
            self._seen[number] = identity, seen
            return None
        known, change = self.groups.get(number), None
        if known is not None and len(known.held) == 2 and known.identity == identity:
            change = seen - 2.0 * known.held[1].to(seen) + known.held[0].to(seen)
        decay, sign = float(group["weight_decay"]), -1.0 if group["maximize"] else 1.0
        return elements.sums(theta, sign * gradient + decay * theta, change)

    def taken(self, looked: bool) -> None:
        """The step was taken: what was seen is held until the look is complete."""
        if looked:
            for number in self.groups.keys() | self._seen.keys():
                self.of(number).hold(self._seen.get(number))
        self._seen = {}

    def pause(self) -> None:
        """Exploration has ended, or a new one begins: what is held is not of the step before."""
        self._seen = {}
        for thermometer in self.groups.values():
            thermometer.hold(None)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_elements": {}}  # they belong to the original's parameters

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
        self.groups, self._seen, self._elements, self._known = {}, {}, {}, ()
        self._window = -1  # of another seed
        for number, row in enumerate(state.tolist()):
            if row[0]:
                self.of(number).numbers = row


class _Elements:
    """Some elements of a group, evenly spread, and how many each stands for."""

    def __init__(self, identity: int, parameters: Sequence[Tensor], scales: Any, *, ranks: int) -> None:
        self.identity = identity
        numel = sum(parameter.numel() for parameter in parameters)
        stride = 1 if numel <= LIMIT else numel // LIMIT | 1  # odd, so as not to be a multiple of a row's length
        self._places: list[tuple[Tensor, slice]] = []
        self._addresses = [local(parameter).data_ptr() for parameter in parameters]
        weights, chosen_scales = [], []
        for parameter in parameters:
            here, runs = local(parameter), block(parameter)
            # By the place in the whole parameter, so that the same elements are looked at on any number of ranks.
            first = -runs.runs[0][0] % stride if len(runs.runs) == 1 else 0
            count = len(range(first, here.numel(), stride))
            if parameter.grad is None or not count:
                continue
            places = slice(first, None, stride)
            self._places.append((parameter, places))
            seen = -(-parameter.numel() // stride)  # on all ranks, if blocks are in one piece
            weight = parameter.numel() / seen if len(runs.runs) == 1 else here.numel() / count
            weights += [weight * (runs.shards / ranks if ranks > 1 else 1.0)] * count
            if scales is not None:
                chosen_scales.append(local(scales[parameter]["scale"]).reshape(-1)[places])
        device = local(parameters[0]).device if parameters else torch.device("cpu")
        self.weights = torch.tensor(weights, dtype=wide_dtype(device)).to(device, non_blocking=True)
        self.total = float(sum(weights))
        self._roots = (self.weights * _joined(chosen_scales, device) if scales is not None else self.weights).sqrt()
        self._directions: tuple[Noise, Tensor] | None = None

    def fits(self, parameters: Sequence[Tensor]) -> bool:
        """Whether the parameters are where they were."""
        return self._addresses == [local(parameter).data_ptr() for parameter in parameters]

    def read(self) -> tuple[Tensor, Tensor]:
        """θ and the gradient of the loss."""
        theta = [local(parameter).reshape(-1)[places] for parameter, places in self._places]
        gradients = [local(parameter.grad).reshape(-1)[places] for parameter, places in self._places]
        return _joined(theta, self.weights.device), _joined(gradients, self.weights.device)

    def projections(self, gradient: Tensor, source: Noise, number: int) -> Tensor:
        """Of the gradient, each element multiplied by the root of what it counts; the same directions for one source."""
        if self._directions is None or self._directions[0] != source:
            made = source.numbers(number, PROJECTIONS * len(gradient), like=gradient)
            self._directions = source, made.view(PROJECTIONS, len(gradient)) * self._roots
        return self._directions[1] @ gradient

    def sums(self, theta: Tensor, slope: Tensor, change: Tensor | None) -> Tensor:
        """Σ w θ·∇U/N; Σ w s σ², NaN if the change is not known; Σ w; and a zero: as long as a step's sums."""
        virial = (self.weights * theta * slope).sum()
        noise = torch.full_like(virial, math.nan) if change is None else change.square().mean() / 6.0
        return torch.stack((virial, noise, torch.full_like(virial, self.total), torch.zeros_like(virial)))


def _joined(pieces: Sequence[Tensor], device: torch.device) -> Tensor:
    dtype = wide_dtype(device)
    if not pieces:
        return torch.zeros(0, dtype=dtype, device=device)
    return torch.cat([piece.to(device) for piece in pieces]).to(dtype)
