"""Those of an optimizer's parameters that have a gradient, ready to take a step together."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ctld.movers import Movers
from ctld.sharding import Block


class ActiveGroup:
    """Those of one group. Lists are in the order of its parameters."""

    def __init__(self, movers: Movers) -> None:
        self.movers = movers
        self.owners: list[Tensor] = movers.owners
        """The parameters themselves; they differ from `parameters`, what of them lies here, if they are sharded."""
        self.parameters: list[Tensor] = movers.parameters
        self.blocks: list[Block] = movers.blocks
        self.weights: list[float] = movers.weights
        """What each counts in sums that are added up over ranks."""
        self.streams: list[int] = movers.streams
        self.momenta: list[Tensor] | None = movers.momenta
        self.numel = movers.numel
        """How many elements move, on all ranks."""

    @property
    def gradients(self) -> list[Tensor]:
        """What of the gradients lies here."""
        return self.movers.gradients

    @property
    def states(self) -> list[Any]:
        """What of each parameter's state lies here."""
        return self.movers.states


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
        for candidates in groups:
            self.groups.append(ActiveGroup(Movers(candidates, state, first_stream, ranks=ranks)))
            first_stream += len(candidates)

    def follow(self, groups: Sequence[list[Tensor]], state: Mapping[Tensor, dict[str, Any]]) -> bool:
        """Takes over this step's gradients, if nothing else has changed since the last; else returns False."""
        return len(groups) == len(self.groups) and all(
            known.movers.follow(candidates, state) for known, candidates in zip(self.groups, groups, strict=True)
        )

    @property
    def refusable(self) -> bool:
        """Whether `engine.run` heeds `refused`: only GPUs do, where looking at it first would mean to wait."""
        return all(group.movers.refusable for group in self.groups)
