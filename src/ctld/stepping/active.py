"""Those of an optimizer's parameters that have a gradient, ready to take a step together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ctld.sharding import Block, LocalState, block, local, sharded
from ctld.stepping import native, triton
from ctld.stepping.foreach import Part
from ctld.stepping.table import Table

Alike = tuple[torch.device, torch.dtype, float]
"""What tensors have in common that one launch on a GPU takes: device, dtype, and weight in the sums."""


class ActiveGroup:
    """Those of one group. Lists are in the order of its parameters."""

    def __init__(self, state: Mapping[Tensor, dict[str, Any]]) -> None:
        self.owners: list[Tensor] = []
        """The parameters themselves; they differ from `parameters`, what of them lies here, if they are sharded."""
        self.parameters: list[Tensor] = []
        self.blocks: list[Block] = []
        self.weights: list[float] = []
        """What each counts in sums that are added up over ranks."""
        self.streams: list[int] = []
        self.momenta: list[Tensor] | None = []
        self.numel = 0
        """How many elements move, on all ranks."""
        self.on_cpu: list[int] = []
        """Places, in the lists above, of those that the kernels of CPUs take; next, those of GPUs; the others go by torch."""
        self.on_gpu: dict[Alike, list[int]] = {}
        self.others: list[int] = []
        self.buffers: tuple[str, ...] = ()
        """Names of the states, besides momenta, that the kernels have the addresses of."""
        self.state = state

    @property
    def gradients(self) -> list[Tensor]:
        """What of the gradients lies here."""
        return [local(owner.grad) for owner in self.owners]

    @property
    def states(self) -> list[Any]:
        """What of each parameter's state lies here."""
        return [LocalState(self.state[owner]) if sharded(owner) else self.state[owner] for owner in self.owners]

    def part(self, places: Iterable[int]) -> Part:
        """Returns what foreach.py needs of some of them."""
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
        """Takes in a parameter that has a gradient, and finds out who can move it."""
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
    """All groups.

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
        for candidates in groups:
            self.groups.append(ActiveGroup(state))
            for stream, owner in enumerate(candidates, first_stream):
                if owner.grad is not None:
                    self.groups[-1].add(owner, stream, ranks)
            first_stream += len(candidates)
        self._fill_table()

    @property
    def native(self) -> bool:
        """Whether one call of kernels.c does a whole step."""
        return not any(group.others or group.on_gpu for group in self.groups)

    @property
    def refusable(self) -> bool:
        """Whether `engine.run` heeds `refused`: only GPUs do, where looking at it first would mean to wait."""
        return not any(group.others or group.on_cpu for group in self.groups)

    def follow(self, groups: Sequence[list[Tensor]], state: Mapping[Tensor, dict[str, Any]]) -> bool:
        """Takes over this step's gradients, if nothing else has changed since the last; else returns False.

        The constructor's checks cost more than a step of ten thousand parameters. These are the ones that can turn out
        otherwise for tensors that passed them.
        """
        if not self._followable or len(groups) != len(self._followers):
            return False
        rows, spread = self.table.rows, self._sharded
        for candidates, followers, group in zip(groups, self._followers, self.groups, strict=True):
            if len(candidates) != len(followers):
                return False
            group.state = state  # a loaded one is a new object
            buffers, moving = self._columns(group.buffers), group.momenta is not None
            for candidate, (owner, row, dtype, numel, address, own_address) in zip(candidates, followers, strict=True):
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
                    or gradient.dtype is not dtype
                    or gradient.numel() != numel
                    or type(gradient) is not Tensor
                    or not gradient.is_contiguous()
                    or gradient.is_neg()
                ):
                    return False
                rows[row + _GRADIENT] = there = gradient.data_ptr()
                if not there and numel:
                    return False
                for name, column in buffers:
                    if local(state[owner][name]).data_ptr() != rows[row + column]:
                        return False
        return True

    def use(self, group: ActiveGroup, buffers: tuple[str, ...]) -> None:
        """Gives the kernels of CPUs the buffers that a plan needs; a group with one that does not fit goes by torch."""
        group.buffers = buffers
        states = group.states
        for place in group.on_cpu:
            for name, column in self._columns(buffers):
                buffer = states[place][name]
                if not fits(buffer, group.parameters[place]):
                    group.others, group.on_cpu, group.on_gpu = list(range(len(group.parameters))), [], {}
                    self._fill_table()
                    return
                self.table.rows[self.row(group, place) + column] = buffer.data_ptr()

    def row(self, group: ActiveGroup, place: int) -> int:
        """Returns where the row of a parameter that a kernel of CPUs takes begins."""
        return self._rows[id(group)][place]

    @staticmethod
    def _columns(buffers: tuple[str, ...]) -> list[tuple[str, int]]:
        return [(name, native.LAYOUTS["ROW"].place[name]) for name in buffers]

    def _fill_table(self) -> None:
        """Orders what the kernels of CPUs take by group, dtype and weight, in the order in which these first appear."""
        self.table = Table(len(self.groups))
        self._rows: dict[int, dict[int, int]] = {}
        for number, group in enumerate(self.groups):
            group.buffers, places = (), self._rows.setdefault(id(group), {})
            accounts: dict[tuple[torch.dtype, float], list[int]] = {}
            for place in group.on_cpu:
                accounts.setdefault((group.parameters[place].dtype, group.weights[place]), []).append(place)
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
        self.moved = [group.parameters[place] for group in self.groups for place in group.on_cpu]
        """All that the kernels of CPUs write to."""
        self._followable = self.native
        self._followers: list[list[_Follower]] = []
        for group, candidates in zip(self.groups, self._candidates, strict=True) if self._followable else ():
            order = iter(range(len(group.owners)))
            self._followers.append([self._follower(group, candidate, order) for candidate in candidates])

    def _follower(self, group: ActiveGroup, owner: Tensor, places: Iterator[int]) -> "_Follower":
        if owner.grad is None:
            return owner, -1, owner.dtype, 0, 0, 0
        place = next(places)
        parameter = group.parameters[place]
        own = 0 if group.momenta is None else group.momenta[place].data_ptr()
        return owner, self.row(group, place), parameter.dtype, parameter.numel(), parameter.data_ptr(), own


_GRADIENT = native.LAYOUTS["ROW"].place["gradient"]
_Follower = tuple[Tensor, int, torch.dtype, int, int, int]
"""What `follow` compares: the parameter, its row (−1 if it has no gradient), dtype, size, its address and the momentum's."""


def plain(parameter: Tensor, gradient: Tensor, momentum: Tensor | None) -> bool:
    """Returns whether a kernel can take it: in one piece, of a dtype that they know, and no subclass of a tensor."""
    dtype = parameter.dtype
    return (
        (triton.available() if parameter.is_cuda else parameter.is_cpu and native.stepper() is not None)
        and dtype in native.TYPES
        and gradient.dtype is dtype
        and (type(parameter) is Parameter or type(parameter) is Tensor)
        and type(gradient) is Tensor
        and gradient.shape == parameter.shape
        and (gradient.data_ptr() != 0 or not gradient.numel())  # torch has tensors of zeros that are nowhere in memory
        and parameter.is_contiguous()
        and gradient.is_contiguous()
        and not gradient.is_neg()
        and (momentum is None or fits(momentum, parameter))
    )


def fits(buffer: Tensor, parameter: Tensor) -> bool:
    """Returns whether the kernels can take a buffer of an optimizer for a parameter that they can take."""
    return (
        buffer.device == parameter.device
        and buffer.dtype is native.TYPES[parameter.dtype].momentum
        and buffer.shape == parameter.shape
        and buffer.is_contiguous()
    )
