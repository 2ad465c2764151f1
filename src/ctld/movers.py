"""Whole steps of lists of tensors.

    ∇ = ±∇loss + decay·θ,     p ← retain·p + impulse·s∇ + deviation·√s·ε,     θ ← θ + stride·p

`Movers.advance` does that, in one pass over memory where there is a kernel for the tensors (`ctld.kernels`), and by torch,
sub-step by sub-step (`ctld.dynamics`), for the others. s is a scale for each element, if there are scales: the inverse of its
mass, so that its share of the kinetic energy is p²/s. Without momenta p starts from zero at each step. Of parameters that are
spread over processes, the block that lies here takes the step (`ctld.sharding`).
"""

import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from ctld.compensation import MEMORY, compensated_deviation
from ctld.dynamics import (
    Compensation,
    Noise,
    Sums,
    drift,
    kick,
    momentum_dtype,
    square_norm,
    thermostat,
    total_gradients,
)
from ctld.kernels import cuda, native
from ctld.sharding import Block, LocalState, block, local, sharded

NONE = (0.0, 0.0, 0.0, 0.0)
_Table = tuple[torch.dtype, float]
"""Of which parameters a table has the rows: those of a dtype, and of a weight in the sums."""


class Movers:
    """Those of some parameters that have a gradient, ready to take a step together.

    Parameters
    ----------
    candidates : list of tensors
        The parameters.
    state : mapping
        The state of each: `momentum_buffer` is the momentum. Without it a step forgets the one before.
    first_stream : int
        Of the noise; the candidates have consecutive ones.
    ranks : int
        Over how many processes the sums will be added up: of elements that several have, each counts its share.
    """

    def __init__(
        self, candidates: list[Tensor], state: Mapping[Tensor, dict[str, Any]], first_stream: int, *, ranks: int = 1
    ) -> None:
        self.owners: list[Tensor] = []
        """The parameters themselves; they differ from `parameters`, what of them lies here, if they are sharded."""
        self.parameters: list[Tensor] = []
        self.blocks: list[Block] = []
        self.weights: list[float] = []
        self.streams: list[int] = []
        self.momenta: list[Tensor] | None = []
        self.scales: list[Tensor] | None = None
        self._scaled = False  # by the state's own scales
        self.compensation: Compensation | None = None
        self._state = state
        self._sharded = any(sharded(candidate) for candidate in candidates)
        self._followers: list[tuple[Tensor, int, int, int, int]] = []
        """Of each candidate: itself; the place of its row, or −1 if it has no gradient; size, address, and the momentum's."""
        self._others: list[int] = []
        """Places of the tensors for which there is no kernel."""
        self._on_gpu: dict[tuple[torch.device, torch.dtype, float], list[int]] = {}
        """Places of those that go by Triton."""
        self._rows: list[tuple[_Table, int]] = []
        """In which table, and where in it, each of the others has its row."""
        tables: dict[_Table, list[int]] = {}
        for stream, owner in enumerate(candidates, first_stream):
            if owner.grad is None:
                self._followers.append((owner, -1, 0, 0, 0))
                continue
            parameter, gradient = local(owner), local(owner.grad)
            if gradient.layout != torch.strided:
                raise ValueError(
                    f"a gradient is sparse ({gradient.layout}): noise reaches every element of a parameter; give dense "
                    "gradients (nn.Embedding(sparse=False))"
                )
            momentum = local(state[owner].get("momentum_buffer"))
            here = block(owner)
            weight = here.shards / ranks if ranks > 1 else 1.0
            self.owners.append(owner)
            self.parameters.append(parameter)
            self.blocks.append(here)
            self.weights.append(weight)
            self.streams.append(stream)
            if momentum is None:
                self.momenta = None
            elif self.momenta is not None:
                self.momenta.append(momentum)
            if len(here.runs) > 1 or not _plain(parameter, gradient, momentum):
                self._others.append(len(self.parameters) - 1)
                continue
            if _on_gpu(parameter):
                alike = parameter.device, parameter.dtype, weight
                self._on_gpu.setdefault(alike, []).append(len(self.parameters) - 1)
                continue
            table = tables.setdefault((parameter.dtype, weight), [])
            self._rows.append(((parameter.dtype, weight), len(table)))
            own = 0 if momentum is None else momentum.data_ptr()
            self._followers.append((owner, len(table), parameter.numel(), parameter.data_ptr(), own))
            table += [parameter.data_ptr(), gradient.data_ptr(), own, 0, 0, 0]
            table += [parameter.numel(), here.runs[0][0] if here.runs else 0, stream, 0, 0]
        self._tables = {key: array("q", rows) for key, rows in tables.items()}
        self.numel = sum(owner.numel() for owner in self.owners)
        """How many elements move, on all ranks."""

    def follow(self, candidates: list[Tensor], state: Mapping[Tensor, dict[str, Any]]) -> bool:
        """Take over this step's gradients, if nothing else has changed since the last; else return False.

        The constructor's checks cost more than a step of ten thousand parameters. These are the ones that can turn out
        otherwise for tensors that passed them.
        """
        if (
            self._others
            or self._on_gpu
            or len(self._tables) != 1
            or (self.scales and not self._scaled)
            or self.compensation
            or len(candidates) != len(self._followers)
        ):
            return False
        (((dtype, _), rows),) = self._tables.items()
        self._state = state  # a loaded one is a new object
        spread, scaled, moving = self._sharded, self._scaled, self.momenta is not None
        for candidate, (owner, row, numel, address, own_address) in zip(candidates, self._followers, strict=True):
            gradient: Any = candidate.grad
            if row < 0:
                if gradient is None and candidate is owner:
                    continue
                return False
            if gradient is None or candidate is not owner:
                return False
            parameter, own = owner, state[owner]["momentum_buffer"] if moving else None
            if spread:
                parameter, gradient, own = local(parameter), local(gradient), local(own)
            if (
                parameter.data_ptr() != address
                or parameter.numel() != numel
                or not parameter.is_contiguous()
                or (moving and own.data_ptr() != own_address)  # type: ignore[union-attr]
                or (scaled and local(state[owner]["scale"]).data_ptr() != rows[row + 3])
                or gradient.dtype is not dtype
                or gradient.numel() != numel
                or type(gradient) is not Tensor
                or not gradient.is_contiguous()
                or gradient.is_neg()
            ):
                return False
            rows[row + 1] = there = gradient.data_ptr()
            if not there and numel:
                return False
        return True

    def scale(self, scales: list[Tensor]) -> None:
        """Give each element its s, of the dtype of the momenta."""
        # Of the momenta's dtype and in one piece, as the kernels want them; a tensor that is so is left as it is.
        dtypes = [momentum_dtype(parameter) for parameter in self.parameters]
        self.scales = [scale.to(dtype).contiguous() for scale, dtype in zip(scales, dtypes, strict=True)]
        for place, key, row in self._with_kernel():
            self._tables[key][row + 3] = self.scales[place].data_ptr()

    def scale_by_state(self, scaled: bool) -> None:
        """Take the scales of the state, or none."""
        if scaled and not self._scaled:
            self.scale([state["scale"] for state in self.states])
        elif self._scaled and not scaled:
            self.scales = None
            for _, key, row in self._with_kernel():
                self._tables[key][row + 3] = 0
        self._scaled = scaled

    def compensate(self, compensation: Compensation) -> None:
        """Inject less noise by what the minibatches bring in, in place of a common deviation."""
        self.compensation = compensation
        states = self.states
        for place, key, row in self._with_kernel():
            state, rows = states[place], self._tables[key]
            buffers = [state["previous_gradient"], state["gradient_variance"]]
            if not all(_fits(buffer, self.parameters[place]) for buffer in buffers):
                self._others, self._rows, self._tables, self._on_gpu = list(range(len(self.parameters))), [], {}, {}
                return
            rows[row + 4], rows[row + 5] = (buffer.data_ptr() for buffer in buffers)
            seen = state["gradients_seen"]
            rows[row + 10] = native.bits(1.0 / min(seen, MEMORY) if seen else 0.0)

    def _with_kernel(self) -> Iterator[tuple[int, "_Table", int]]:
        """Place, table and row of each tensor that goes by the kernels of CPUs."""
        others = {*self._others, *(place for places in self._on_gpu.values() for place in places)}
        places = (place for place in range(len(self.parameters)) if place not in others)
        return ((place, key, row) for place, (key, row) in zip(places, self._rows, strict=True))

    @property
    def gradients(self) -> list[Tensor]:
        """What of the gradients lies here."""
        return [local(owner.grad) for owner in self.owners]

    @property
    def states(self) -> list[Any]:
        """Of each parameter, what of its state lies here."""
        return [LocalState(self._state[owner]) if sharded(owner) else self._state[owner] for owner in self.owners]

    def rest(self) -> Sums:
        """The sums of a step that is not taken; none before it, so no mid-step momentum."""
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        prior = square_norm(self.parameters, device, self.weights)
        momenta = self.momenta and _in_units_of(self.momenta, self.scales)
        kinetic = square_norm(momenta, device, self.weights) if momenta else torch.zeros_like(prior)
        return torch.stack((prior, kinetic, torch.zeros_like(prior), torch.zeros_like(prior)))

    def finite(self) -> Tensor | bool:
        """Whether no gradient has an element that is NaN or inf; left on the device if it was found there."""
        library: Any = native.stepper()
        for (dtype, _), rows in self._tables.items():
            if not library.all_finite(dtype, rows):
                return False
        places = [*self._others, *(place for places in self._on_gpu.values() for place in places)]
        gradients = [local(self.owners[place].grad) for place in places if self.parameters[place].numel()]
        if not gradients:
            return True
        norms = torch._foreach_norm(gradients, math.inf)  # the one norm that cannot overflow
        return torch.stack([norm.to(norms[0].device, torch.float32) for norm in norms]).isfinite().all()

    @property
    def checkable(self) -> bool:
        """Whether one call of a kernel does the step, which can then look at the gradients before it begins."""
        return len(self._tables) == 1 and not self._others and not self._on_gpu

    @property
    def refusable(self) -> bool:
        """Whether `refused` is heeded: by the kernels of GPUs only, where looking at it first would mean to wait."""
        return not self._tables and not self._others

    def advance(
        self,
        source: Noise | None,
        *,
        retain: float,
        impulse: float,
        stride: float,
        deviation: float = 0.0,
        decay: float = 0.0,
        ascend: bool = False,
        measure: bool = False,
        check: bool = False,
        refused: Tensor | None = None,
    ) -> Sums | None:
        """One step; `source` None is one without noise. Returns the sums that are wanted if `measure`.

        `check`, if `checkable`: whether to look at the gradients first; if they are not finite nothing changes, and None is
        returned. `refused`, on the device, if `refusable`: whether nothing is to change after all.
        """
        sums: Sums = NONE
        factors = [retain, impulse, deviation, stride, decay, -1.0 if ascend else 1.0, 0.0, 0.0]
        if self.compensation is not None:
            factors[6:] = self.compensation.variance, self.compensation.lr
        for (dtype, weight), rows in self._tables.items():
            library: Any = native.stepper()
            named = (None, 0, 0) if source is None else (source.kind, source.seed, source.step)
            made = library.step(dtype, rows, factors, *named, measure, check)
            if made is None:
                return None
            increment_version(self.parameters)  # as torch's own writes do: autograd must know
            if weight != 1.0:
                made = tuple(weight * total for total in made)
            sums = made if len(self._tables) == 1 else _added(sums, made)
        for places in self._on_gpu.values():
            rest = self._advance_on_gpu(places, source, factors, measure, refused)
            sums = rest if sums is NONE else rest + _on(rest, sums)
        if self._others:
            rest = self._advance_others(
                source,
                retain=retain,
                impulse=impulse,
                stride=stride,
                deviation=deviation,
                decay=decay,
                ascend=ascend,
                measure=measure,
            )
            sums = rest if sums is NONE else rest + _on(rest, sums)
        if self.compensation is not None:
            for owner in self.owners:
                self._state[owner]["gradients_seen"] += 1
        return sums

    def _advance_on_gpu(
        self, places: list[int], source: Noise | None, factors: list[float], measure: bool, refused: Tensor | None
    ) -> Tensor:
        """By Triton: tensors of one dtype on one device; those whose gradients have been seen equally often together."""
        retain, impulse, deviation, stride, decay, sign, variance, share = factors
        alike: dict[int, list[int]] = {}
        for place in places:
            seen = self._state[self.owners[place]]["gradients_seen"] if self.compensation is not None else 0
            alike.setdefault(seen, []).append(place)
        totals = []
        states = self.states
        for seen, chosen in alike.items():
            parameters = [self.parameters[place] for place in chosen]
            buffers: Any = [None, None]
            if self.compensation is not None:
                names = "previous_gradient", "gradient_variance"
                buffers = [[states[place][name] for place in chosen] for name in names]
            made = cuda.advance(
                parameters,
                [local(self.owners[place].grad) for place in chosen],
                None if self.momenta is None else [self.momenta[place] for place in chosen],
                [self.streams[place] for place in chosen],
                [self.blocks[place].runs[0][0] if self.blocks[place].runs else 0 for place in chosen],
                *((None, 0, 0) if source is None else (source.kind, source.seed, source.step)),
                retain=retain,
                impulse=impulse,
                deviation=deviation,
                stride=stride,
                decay=decay,
                ascend=sign < 0,
                scales=None if self.scales is None else [self.scales[place] for place in chosen],
                previous_gradients=buffers[0],
                gradient_variances=buffers[1],
                variance=variance,
                gradient_share=share,
                memory=1.0 / min(seen, MEMORY) if seen else 0.0,
                measure=measure,
                refused=refused,
            )
            increment_version(parameters)
            totals.append(made)
        total = totals[0] if len(totals) == 1 else torch.stack(totals).sum(0)
        weight = self.weights[places[0]]
        return total if weight == 1.0 else total * weight

    @torch.no_grad()
    def _advance_others(
        self,
        source: Noise | None,
        *,
        retain: float,
        impulse: float,
        stride: float,
        deviation: float,
        decay: float,
        ascend: bool,
        measure: bool,
    ) -> Tensor:
        """By torch, operation by operation."""
        parameters = [self.parameters[place] for place in self._others]
        gradients = [local(self.owners[place].grad) for place in self._others]
        weights = [self.weights[place] for place in self._others]
        device = parameters[0].device
        totals = total_gradients(parameters, gradients, decay=decay, ascend=ascend)
        if self.momenta is None:
            momenta = [torch.zeros_like(total) for total in totals]
        else:
            momenta = [self.momenta[place] for place in self._others]
        prior = square_norm(parameters, device, weights) if measure and decay else square_norm([], device)
        before = [p.clone() for p in momenta] if measure else []
        scales = None if self.scales is None else [self.scales[place] for place in self._others]
        if scales is not None:
            totals = list(torch._foreach_mul(totals, scales))
        kick(momenta, totals, retain=retain, impulse=impulse)
        clamped = torch.zeros_like(prior)
        for number, place in enumerate(self._others if source is not None else []):
            spread: float | Tensor = deviation
            if scales is not None:
                spread = scales[number].sqrt().mul_(deviation)
            if self.compensation is not None:
                spread, count = compensated_deviation(
                    self.states[place], gradients[number], lr=self.compensation.lr, variance=self.compensation.variance
                )
                clamped += count.to(device) * weights[number]
            assert source is not None
            noise = source.like(momenta[number], self.streams[place], self.blocks[place])
            thermostat(momenta[number], noise, deviation=spread)
        drift(parameters, momenta, step=stride)
        if not measure:
            return torch.stack((prior, prior, prior, clamped))
        torch._foreach_add_(before, momenta)
        kinetic = square_norm(_in_units_of(momenta, scales), device, weights)
        midpoint = square_norm(_in_units_of(before, scales), device, weights)
        return torch.stack((prior, kinetic, midpoint, clamped))


def _in_units_of(momenta: list[Tensor], scales: list[Tensor] | None) -> list[Tensor]:
    """p/√s, whose squares are energies."""
    return momenta if scales is None else list(torch._foreach_div(momenta, torch._foreach_sqrt(scales)))


def _on(like: Tensor, sums: Any) -> Tensor:
    """Sums as a tensor, where another one is."""
    return torch.as_tensor(sums, dtype=like.dtype).to(like.device, non_blocking=True)


def _added(a: Any, b: Any) -> Any:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _on_gpu(parameter: Tensor) -> bool:
    return parameter.is_cuda


def _plain(parameter: Tensor, gradient: Tensor, momentum: Tensor | None) -> bool:
    """Whether there is a kernel that can take it: in one piece, of a dtype that they know, and no subclass of a tensor."""
    dtype = parameter.dtype
    return (
        (cuda.available() if _on_gpu(parameter) else parameter.is_cpu and native.stepper() is not None)
        and dtype in native.TYPES
        and gradient.dtype is dtype
        and (type(parameter) is Parameter or type(parameter) is Tensor)
        and type(gradient) is Tensor
        and gradient.shape == parameter.shape
        and (gradient.data_ptr() != 0 or not gradient.numel())  # torch has tensors of zeros that are nowhere in memory
        and parameter.is_contiguous()
        and gradient.is_contiguous()
        and not gradient.is_neg()
        and (momentum is None or _fits(momentum, parameter))
    )


def _fits(buffer: Tensor, parameter: Tensor) -> bool:
    """Whether the kernels can take a buffer of an optimizer for a parameter that they can take."""
    return (
        buffer.device == parameter.device
        and buffer.dtype is native.TYPES[parameter.dtype].momentum
        and buffer.shape == parameter.shape
        and buffer.is_contiguous()
    )
