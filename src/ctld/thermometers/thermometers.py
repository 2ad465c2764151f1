"""Temperatures of the groups of parameters, measured during the run in units of T/g(α): 1 is right.

    kinetic           N‖(u_t + u_{t−1})/2‖²/d : the momenta. Exact on a Gaussian at any stable lr (UBU's is not)
    configurational   θᵀ∇U/d                  : the parameters. Sees the bias of a large step; settles as slowly as they do
    minibatch heat    N lr σ²/(2(1 − μ))      : what the noise of the gradients, of variance σ², adds to that of the parameters

The steps at the lowest temperature count, g = 1 where there is such a one: those are the ones that are samples. For the last
two, some elements of a group are probed (`probe.py`), now and then, at moments drawn at random so that they do not keep step
with a temperature that moves by a timetable. The averages are in the state, with batch means for their bands.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ctld.checks import flag, integer
from ctld.noise import scalar_normal
from ctld.stepping.foreach import Noise
from ctld.thermometers.advice import advice
from ctld.thermometers.epochs import EpochShare, place_of
from ctld.thermometers.group import SAME, ExploringGroup, GroupTemperatures, GroupThermometer
from ctld.thermometers.probe import PROJECTIONS, Elements

RAREST, MOST_OFTEN = 512, 32  # steps from one probe to the next; in between, PROBES of them fit into the exploration
PROBES = 100
ADVICE_PERIOD = 32
"""Steps from one look at the averages to the next, by whoever gives advice; readings are not many by then."""
_PROBE_NOISE = 1 << 60  # flips a bit of the seed


class Thermometers:
    """The thermometers of all groups that explore, by number.

    A probe takes three steps in a row: at two of them gradients are held, at the third everything is measured. `probe` comes
    before the step; what it saw is held by `taken`, once the step is sure to be taken.
    """

    def __init__(self, exploration_steps: int, steps_per_epoch: int | None = None) -> None:
        self.steps_per_epoch = None
        if steps_per_epoch is not None and integer("steps_per_epoch", steps_per_epoch, at_least=1) > 1:
            self.steps_per_epoch = steps_per_epoch
        """Number of batches in an epoch, if they are reshuffled; None if they are drawn with replacement, or all data."""
        self._shares: dict[int, EpochShare] = {}
        self.period = max(MOST_OFTEN, min(RAREST, exploration_steps // PROBES))
        self.num_groups = 1
        self.sharded = False
        """True if what is held of a probe is one rank's alone."""
        self.warned = False
        """True if its advice has been given."""
        self.last_cold_step = -1
        """Number of the last step that explored at T itself, g = 1; −1 if none did."""
        self._groups: dict[int, GroupThermometer] = {}
        self._readings: list[tuple[int, float, float]] = []
        self._seen: dict[int, tuple[int, Tensor]] = {}
        self._window, self._start = -1, 0
        self._elements: dict[int, Elements] = {}
        self._watched: dict[int, Elements] = {}

    def of(self, number: int) -> GroupThermometer:
        """Return the thermometer of a group."""
        self._take_in()
        return self._of(number)

    @property
    def groups(self) -> dict[int, GroupThermometer]:
        self._take_in()
        return self._groups

    @property
    def temperatures(self) -> tuple[GroupTemperatures | None, ...]:
        """Temperatures of the groups as known by now; None for groups that have not explored."""
        known = self.groups
        return tuple(
            replace(known[n].temperatures, remaining_heat=self._remaining_heat(n)) if n in known else None
            for n in range(self.num_groups)
        )

    def _remaining_heat(self, number: int) -> float | None:
        share = self._shares.get(number)
        return None if share is None else share.share

    def read_step(
        self,
        groups: Sequence[ExploringGroup],
        sums: Sequence[Sequence[float]],
        probed: Sequence[Sequence[float]],
        *,
        unit: float,
        ratio: float,
        step: int,
    ) -> None:
        """Take in what a step has found, at 1/g = `ratio`: the sums of each group, and those of a probe that is complete.

        `unit` is N/T·g.
        """
        if ratio <= SAME:
            self.last_cold_step = step
        for group, row in zip(groups, sums, strict=True):
            if group.elements:
                # Averaged when somebody looks.
                self._readings.append((group.number, unit * 0.25 * row[2] / group.elements, ratio))
        for group, row in zip(groups, probed, strict=False) if probed else ():
            if group.elements and row[2]:
                heat = unit * group.lr / (2.0 * (1.0 - group.momentum))
                self.of(group.number).read_probe(unit * row[0] / row[2], heat * row[1] / row[2], ratio)

    def advise(self, momenta: Sequence[float], **situation: Any) -> str | None:
        """Return once what the readings find wrong, and what helps; `momenta` is the momentum of each group."""
        for number, thermometer in self.groups.items():
            if self.warned or number >= len(momenta):
                return None
            order: dict[str, Any] = {
                "in_epochs": self.steps_per_epoch is not None,
                "remaining": self._remaining_heat(number),
            }
            text = advice(number, thermometer, momentum=momenta[number], **situation, **order)
            if text is not None:
                self.warned = True
                return text
        return None

    def read(self, number: int, kinetic: float, ratio: float) -> None:
        """Note a group's momenta of a step at 1/g = `ratio`; they are taken in when somebody looks."""
        self._readings.append((number, kinetic, ratio))

    def _take_in(self) -> None:
        readings, self._readings = self._readings, []
        for number, kinetic, ratio in readings:
            self._of(number).read(kinetic, ratio)

    def _of(self, number: int) -> GroupThermometer:
        found = self._groups.get(number)
        if found is None:
            found = self._groups[number] = GroupThermometer()
        return found

    # ---- probes ----

    def phase(self, step: int, seed: int) -> int:
        """Return the position of a step in a probe: 0, 1, or 2, at which it measures; another number without a probe."""
        window, place = divmod(step, self.period)
        if window != self._window:
            draw = scalar_normal(seed ^ _PROBE_NOISE, 0, window)
            self._window, self._start = window, int(0.5 * math.erfc(-draw / math.sqrt(2.0)) * (self.period - 2))
        return place - self._start

    @torch.no_grad()
    def probe(
        self, number: int, group: dict[str, Any], noise: Noise, scales: Any, *, version: int, ranks: int
    ) -> Tensor | None:
        """Look at a group's elements before the step `noise.step`; return the sums of `Elements` when that completes it.

        `version` changes when the scales do, of which all steps of a probe must have the same.
        """
        identity = zlib.crc32(repr((version, [parameter.grad is None for parameter in group["params"]])).encode())
        elements = self._elements.get(number)
        if elements is None or elements.identity != identity or not elements.fits(group["params"]):
            elements = self._elements[number] = Elements(identity, group["params"], scales, ranks=ranks)
        theta, gradient = elements.read()
        directions = Noise("three_point", noise.seed ^ _PROBE_NOISE, noise.step // self.period)
        seen = elements.projections(gradient, directions, number)
        if self.phase(noise.step, noise.seed) < 2:
            self._seen[number] = identity, seen
            return None
        known, change = self.groups.get(number), None
        if known is not None and len(known.held) == 2 and known.identity == identity:
            change = seen - 2.0 * known.held[1].to(seen) + known.held[0].to(seen)
        decay, sign = float(group["weight_decay"]), -1.0 if group["maximize"] else 1.0
        return elements.sums(theta, sign * gradient + decay * theta, change)

    @torch.no_grad()
    def look(self, groups: Sequence[dict[str, Any]], step: int, seed: int, ratio: float) -> None:
        """Look at θ after a step, for the share of its variance that lies within an epoch."""
        found = None if self.steps_per_epoch is None or self.sharded else place_of(step, self.steps_per_epoch)
        if found is None or ratio > SAME:
            return
        for number, group in enumerate(groups):
            if not group["explore"]:
                continue
            elements = self._watched.get(number)
            if elements is None or not elements.fits(group["params"]):
                elements = self._watched[number] = Elements(0, group["params"], None, ranks=1)
            source = Noise("three_point", seed ^ _PROBE_NOISE, 0)
            row = elements.projections(elements.theta(), source, number).tolist()
            self._shares.setdefault(number, EpochShare()).add(row, first=found[0] == 0, looks=found[1])

    def taken(self, probed: bool) -> None:
        """Take note that the step was taken: what was seen is held until the probe is complete."""
        if probed:
            for number in self.groups.keys() | self._seen.keys():
                self._of(number).hold(self._seen.get(number))
        self._seen = {}

    def pause(self) -> None:
        """Drop what is held, as exploration has ended or a new one begins: it is not of the step before."""
        self._seen = {}
        for thermometer in self.groups.values():
            thermometer.hold(None)

    def restart(self) -> None:
        """Forget what was read, as when burn-in is over."""
        self.groups.clear()
        self._readings, self._seen, self._shares, self.last_cold_step = [], {}, {}, -1

    # ---- state ----

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_elements": {}, "_watched": {}}  # they belong to the original's parameters

    def state_dict(self) -> dict[str, Any]:
        """Return a row for each group, zeros where there is nothing. Readings of shards belong to one rank and are left out."""
        rows = torch.zeros((self.num_groups, GroupThermometer.NUMBERS), dtype=torch.float64)
        for number, thermometer in self.groups.items():
            if number < self.num_groups:  # else the group was taken out
                rows[number] = torch.tensor(thermometer.numbers, dtype=torch.float64)
        if self.sharded:
            rows[:, 2] = 0.0
            rows[:, -2 * PROJECTIONS :] = 0.0
        shares = torch.zeros((self.num_groups, EpochShare.NUMBERS), dtype=torch.float64)
        for number, share in self._shares.items():
            if number < self.num_groups:
                shares[number] = torch.tensor(share.numbers, dtype=torch.float64)
        return {
            "thermometers": rows,
            "epoch_shares": shares,
            "warned_of_temperature": self.warned,
            "last_cold_step": self.last_cold_step,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rows = state_dict["thermometers"]
        if not isinstance(rows, Tensor) or rows.dtype != torch.float64 or rows.is_meta:
            raise ValueError(
                "the thermometers of the state are no tensor of numbers; load a state that a run has saved"
            )
        rows = rows.to("cpu", torch.float64)
        if rows.shape != (self.num_groups, GroupThermometer.NUMBERS):
            raise ValueError(
                f"the thermometers of the state are of shape {tuple(rows.shape)}, expected "
                f"{(self.num_groups, GroupThermometer.NUMBERS)}: it has other groups"
            )
        last_cold_step = integer("last_cold_step", state_dict.get("last_cold_step", -1), at_least=-1)
        groups = {number: GroupThermometer() for number, row in enumerate(rows.tolist()) if row[0]}
        for number, thermometer in groups.items():
            thermometer.numbers = rows[number].tolist()
        warned = flag("warned_of_temperature", state_dict["warned_of_temperature"])
        saved = state_dict.get("epoch_shares")
        shares = {}
        if saved is not None:
            shape = self.num_groups, EpochShare.NUMBERS
            if not isinstance(saved, Tensor) or saved.dtype != torch.float64 or saved.shape != shape or saved.is_meta:
                raise ValueError(
                    f"the epochs of the state are no numbers of shape {shape}; load one that this run has saved"
                )
            for number, row in enumerate(saved.tolist()):
                if any(row):
                    shares[number] = EpochShare()
                    shares[number].numbers = row
                    if shares[number].numbers != row:
                        raise ValueError(
                            f"the epochs of the state are {row}, which no run has; load one that was saved"
                        )
        self.warned, self._shares = warned, shares
        self._groups, self._readings, self._seen, self._elements, self._watched = groups, [], {}, {}, {}
        self.last_cold_step = last_cold_step
        self._window = -1  # of another seed
