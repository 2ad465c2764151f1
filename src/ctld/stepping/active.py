"""Active parameters of an optimizer: those that have a gradient, ready to take a step together."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ctld.sharding import Block, LocalState, block, local, sharded
from ctld.stepping import native, triton
from ctld.stepping.foreach import Part
from ctld.stepping.same_kind import SameKind
from ctld.stepping.staging import STORED, Staged, in_place
from ctld.stepping.table import Table

Alike = tuple[torch.device, torch.dtype, float]
"""Common properties of tensors that one launch on a GPU takes: device, dtype, and weight in the sums."""


class ActiveGroup:
    """Active parameters of one group. Lists are in the order of its parameters."""

    def __init__(self, state: Mapping[Tensor, dict[str, Any]]) -> None:
        self.owners: list[Tensor] = []
        """The parameters themselves; they differ from `parameters`, what of them lies here, if they are sharded."""
        self.parameters: list[Tensor] = []
        self.blocks: list[Block] = []
        self.weights: list[float] = []
        """Weight of each parameter in sums that are added up over ranks."""
        self.streams: list[int] = []
        self.momenta: list[Tensor] | None = []
        self.numel = 0
        """Number of elements that move, on all ranks."""
        self.on_cpu: list[int] = []
        """Places, in the lists above, of those that the kernels of CPUs take; next, those of GPUs; the others go by torch."""
        self.on_gpu: dict[Alike, list[int]] = {}
        self.others: list[int] = []
        self.buffers: tuple[str, ...] = ()
        """Names of the states, besides momenta, that the kernels have the addresses of."""
        self.state = state

    @property
    def gradients(self) -> list[Tensor]:
        """Gradients, or the parts of them that this process holds."""
        return [local(owner.grad) for owner in self.owners]

    @property
    def states(self) -> list[Any]:
        """State of each parameter, or the part of it that this process holds."""
        return [LocalState(self.state[owner]) if sharded(owner) else self.state[owner] for owner in self.owners]

    def part(self, places: Iterable[int]) -> Part:
        """Return what foreach.py needs of the parameters at these places."""
        places, gradients, states, momenta = list(places), self.gradients, self.states, self.momenta
        return Part(
            [self.parameters[place] for place in places],
            [gradients[place] for place in places],
            None if momenta is None else [momenta[place] for place in places],
            [states[place] for place in places],
            [self.streams[place] for place in places],
            [self.blocks[place] for place in places],
            [self.weights[place] for place in places],
        )

    def add(self, owner: Tensor, stream: int, ranks: int) -> None:
        """Take in a parameter that has a gradient, and find out who can move it."""
        parameter, gradient = local(owner), local(owner.grad)
        if gradient.layout != torch.strided:
            raise ValueError(
                f"a gradient is sparse ({gradient.layout}): noise reaches every element of a parameter; give dense "
                "gradients (nn.Embedding(sparse=False))"
            )
        momentum, here, place = local(self.state[owner].get("momentum_buffer")), block(owner), len(self.owners)
        weight = here.shards / ranks if ranks > 1 else 1.0
        self.owners.append(owner)
        self.parameters.append(parameter)
        self.blocks.append(here)
        self.weights.append(weight)
        self.streams.append(stream)
        self.numel += owner.numel()
        if momentum is None:
            self.momenta = None
        elif self.momenta is not None:
            self.momenta.append(momentum)
        if len(here.runs) > 1 or not plain(parameter, gradient, momentum):
            self.others.append(place)
        elif parameter.is_cuda:
            self.on_gpu.setdefault((parameter.device, parameter.dtype, weight), []).append(place)
        else:
            self.on_cpu.append(place)


class Active:
    """Active parameters of all groups.

    Parameters
    ----------
    groups : sequence of lists of tensors
        The parameters of each group.
    state : mapping
        The state of each parameter: `momentum_buffer` is the momentum. Without it a step forgets the one before.
    first_stream : int
        The stream of the first parameter's noise; all parameters have consecutive ones.
    ranks : int
        Over how many processes the sums will be added up: of elements that several have, each counts its share.
    """

    def __init__(
        self,
        groups: Sequence[list[Tensor]],
        state: Mapping[Tensor, dict[str, Any]],
        first_stream: int,
        *,
        ranks: int = 1,
    ) -> None:
        self.groups: list[ActiveGroup] = []
        self._candidates = [list(candidates) for candidates in groups]
        self._sharded = any(sharded(candidate) for candidate in chain.from_iterable(groups))
        self._states = [*state.values()]
        for candidates in groups:
            self.groups.append(ActiveGroup(state))
            for stream, owner in enumerate(candidates, first_stream):
                if owner.grad is not None:
                    self.groups[-1].add(owner, stream, ranks)
            first_stream += len(candidates)
        self._fill_table()

    def follow(self, groups: Sequence[list[Tensor]], state: Mapping[Tensor, dict[str, Any]]) -> bool:
        """Take over this step's gradients, if nothing else has changed since the last; else return False.

        The constructor's checks cost more than a step of ten thousand parameters. These are the ones that can turn out
        otherwise for tensors that passed them.
        """
        if not self.native or len(groups) != len(self.groups):
            return False
        for group, candidates, known in zip(self.groups, groups, self._candidates, strict=True):
            if len(candidates) != len(known) or not all(map(is_, candidates, known)):
                return False
            group.state = state  # frameworks may put another mapping in its place
        if len(state) != len(self._states) or not all(map(is_, state.values(), self._states)):
            return False
        owners = self._owners
        gradients: list[Any] = [*map(_grad, owners)]
        buffers: list[Any] = [entries[name] for entries, name in self._buffers]
        if self._idle and any(owner.grad is not None for owner in self._idle):
            return False
        if self._sharded:
            owners = [local(owner) for owner in owners]
            gradients, buffers = [local(gradient) for gradient in gradients], [local(buffer) for buffer in buffers]
        if (
            not self._same_kind([*gradients, *owners])
            or [*map(_address, owners)] != self._addresses
            or [*map(_address, buffers)] != self._there
        ):
            return False
        there = [*map(_address, gradients)]
        self.table.set_gradients(there)
        for staged in self.staged.values():
            staged.point()
        return all(there) or all(address or not size for address, size in zip(there, self._sizes, strict=True))

    def use(self, group: ActiveGroup, buffers: tuple[str, ...]) -> None:
        """Give the kernels of CPUs the buffers that a plan needs; a group with one that does not fit goes by torch."""
        group.buffers = buffers
        states = group.states
        for place in group.on_cpu:
            for name in buffers:
                buffer = states[place][name]
                if not fits(buffer, group.parameters[place]):
                    group.others, group.on_cpu, group.on_gpu = list(range(len(group.parameters))), [], {}
                    self._fill_table()
                    return
                setattr(self.row(group, place), name, buffer.data_ptr())
        self._stage(group)
        self._list_buffers()

    def _stage(self, group: ActiveGroup) -> None:
        """Give the kernels copies of what they cannot read where it lies."""
        for place in group.on_cpu:
            owner, entries = group.owners[place], group.state[group.owners[place]]
            names = group.buffers if group.momenta is None else ("momentum_buffer", *group.buffers)
            buffers = [local(entries[name]) for name in names]
            self.staged.pop((id(group), place), None)
            if not in_place(group.parameters[place], local(owner.grad), *buffers):
                self.staged[id(group), place] = Staged(owner, entries, names, self.row(group, place))

    def row(self, group: ActiveGroup, place: int) -> Any:
        """Return the row of a parameter that a kernel of CPUs takes."""
        return self.table.rows[self._rows[id(group)][place]]

    def _fill_table(self) -> None:
        """Order what the kernels of CPUs take by group, dtype and weight, in the order in which these first appear."""
        self.table = Table(len(self.groups))
        self._rows: dict[int, dict[int, int]] = {}
        for number, group in enumerate(self.groups):
            group.buffers, places = (), self._rows.setdefault(id(group), {})
            accounts: dict[tuple[torch.dtype, float], list[int]] = {}
            for place in group.on_cpu:
                dtype = group.parameters[place].dtype
                dtype = torch.float32 if dtype is torch.float16 else dtype
                accounts.setdefault((dtype, group.weights[place]), []).append(place)
            for (dtype, weight), chosen in accounts.items():
                self.table.open_account(number, dtype, weight)
                for place in chosen:
                    runs = group.blocks[place].runs
                    places[place] = self.table.add_row(
                        parameter=group.parameters[place].data_ptr(),
                        gradient=local(group.owners[place].grad).data_ptr(),
                        momentum=0 if group.momenta is None else group.momenta[place].data_ptr(),
                        numel=group.parameters[place].numel(),
                        offset=runs[0][0] if runs else 0,
                        stream=group.streams[place],
                    )
        self.table.close()
        self.staged: dict[tuple[int, int], Staged] = {}
        """Copies for the kernels of CPUs, of what they cannot read where it lies; by group and place."""
        for group in self.groups:
            self._stage(group)
        self.native = not any(group.others or group.on_gpu for group in self.groups)
        """True if one call of kernels.c does a whole step."""
        self.refusable = not any(group.others or group.on_cpu for group in self.groups)
        """True if `engine.run` heeds `refused`: only GPUs do, where looking at it first would mean to wait."""
        self.counting: set[int] = set()
        """Numbers of the groups whose parameters have steps to be counted, and of those that rest."""
        self.resting: set[int] = set()
        order = [(group, place) for group in self.groups for place in self._rows[id(group)]]
        self.moved = [group.parameters[place] for group, place in order]
        """All that the kernels of CPUs write to, in the order of the rows."""
        self._owners = [group.owners[place] for group, place in order]
        self._sizes = [parameter.numel() for parameter in self.moved]
        # Of what does not go by one call nobody asks: it is looked at anew each time.
        self._same_kind = SameKind([*(local(x.grad) for x in self._owners), *self.moved] if self.native else [])
        self._addresses = [parameter.data_ptr() for parameter in self.moved]
        self._idle = [owner for owner in chain.from_iterable(self._candidates) if owner.grad is None]
        self._list_buffers()

    def _list_buffers(self) -> None:
        """Make the list of buffers that rows point to, of which parameter and by what name; and where they lie."""
        self._buffers: list[tuple[dict[str, Any], str]] = []
        self._there: list[int] = []
        for group in self.groups:
            for place in self._rows[id(group)]:
                entries = group.state[group.owners[place]]
                names = group.buffers if group.momenta is None else ("momentum_buffer", *group.buffers)
                self._buffers += [(entries, name) for name in names]
                self._there += [local(entries[name]).data_ptr() for name in names]


_address, _grad = Tensor.data_ptr, attrgetter("grad")


def plain(parameter: Tensor, gradient: Tensor, momentum: Tensor | None) -> bool:
    """True if a kernel can take a parameter: of a known dtype, no subclass of a tensor, on GPUs in one piece."""
    dtype = parameter.dtype
    return (
        (triton.available() if parameter.is_cuda else parameter.is_cpu and native.stepper() is not None)
        and dtype in STORED
        and gradient.dtype is dtype
        and (type(parameter) is Parameter or type(parameter) is Tensor)
        and type(gradient) is Tensor
        and gradient.shape == parameter.shape
        and (not parameter.is_cuda or in_place(parameter, gradient, momentum))
        and (momentum is None or fits(momentum, parameter))
    )


def fits(buffer: Tensor, parameter: Tensor) -> bool:
    """True if the kernels can take a buffer of an optimizer for a parameter that they can take."""
    return (
        buffer.device == parameter.device
        and buffer.dtype is STORED[parameter.dtype].momentum
        and buffer.shape == parameter.shape
        and (not parameter.is_cuda or buffer.is_contiguous())
    )
