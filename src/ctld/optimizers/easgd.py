"""EASGD and EAMSGD: elastic averaging (Zhang, Choromanska and LeCun, NIPS 2015), on `torch.distributed`.

p workers, each with its own parameters x and data, are tied to a common centre x̃ by springs. Every τ steps, before the step,

    s = a (x − x̃),     x ← x − s,     x̃ ← x̃ + Σ_workers s,     a = elasticity/p

and in each step x ← x − lr ∇ (EASGD) or SGD with Nesterov's momentum (EAMSGD). It minimises. Every worker keeps a copy of the
centre; since all add the same sum, the copies stay equal, and the exchange is one all-reduce. A single process is
a worker alone. Do not wrap the model in DistributedDataParallel: the workers are meant to differ.
"""

from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ctld.checks import integer, real
from ctld.observation import Observation
from ctld.optimizers.sampler import Sampler
from ctld.ranks import Facts
from ctld.sharding import distributed, sharded
from ctld.stepping.active import Active
from ctld.stepping.foreach import drift, momentum_dtype, total_gradients, wide_dtype


class EASGD(Sampler):
    """Elastic averaging SGD.

    Parameters
    ----------
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD` with `nesterov=True`; EASGD has momentum 0.
    period : int
        τ, steps between exchanges.
    elasticity : float
        a·p; 0.9 in the paper. Each exchange multiplies the distance between the workers' mean and the centre by
        1 − elasticity·(1 + 1/p): from 2p/(p + 1) on that diverges, and is refused.
    process_group : ProcessGroup, optional
        The workers; the world, if left out and there is one.
    """

    _starts_frozen = True  # the centre has all parameters

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        *,
        period: int = 10,
        elasticity: float = 0.9,
        weight_decay: float = 0.0,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        self.period = integer("period", period, at_least=1)
        self.elasticity = real("elasticity", elasticity, at_least=0)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, seed=0, process_group=process_group)
        largest = 2.0 * self.workers / (self.workers + 1)
        if self.elasticity >= largest:
            raise ValueError(
                f"elasticity = {self.elasticity} is out of range; with {self.workers} workers the springs diverge from "
                f"{largest:.4g} on: give less"
            )
        self._start(self.param_groups)

    @property
    def workers(self) -> int:
        """Number p of workers."""
        return self.ranks.size

    def center(self) -> list[Tensor]:
        """x̃, one tensor for each parameter in the order of the groups: what to evaluate and to keep."""
        return [self.state[parameter]["center"].clone() for _, _, parameter in self._enumerate()]

    @torch.no_grad()
    def _move(self, active: Active, seen: Observation | None) -> None:
        if self.steps % self.period == 0:
            self._exchange()
        for group, members in zip(self.param_groups, active.groups, strict=True):
            if not members.parameters:
                continue
            parameters, momentum = members.parameters, float(group["momentum"])
            options: dict[str, Any] = {"decay": float(group["weight_decay"]), "ascend": group["maximize"]}
            gradients = total_gradients(parameters, members.gradients, **options)
            if momentum:
                buffers = [self.state[parameter]["momentum_buffer"] for parameter in members.owners]
                torch._foreach_mul_(buffers, momentum)
                torch._foreach_add_(buffers, gradients)
                gradients = list(torch._foreach_add(gradients, buffers, alpha=momentum))
            drift(parameters, gradients, step=-float(group["lr"]))

    def _exchange(self) -> None:
        """The springs: one all-reduce for all parameters."""
        parameters = [parameter for _, _, parameter in self._enumerate()]
        centers = [self.state[parameter]["center"] for parameter in parameters]
        pull = self.elasticity / self.workers
        # What is frozen rests, and is no reason for the centre to move.
        moves = [
            (p.to(c.dtype) - c).mul_(pull if p.requires_grad else 0.0) for p, c in zip(parameters, centers, strict=True)
        ]
        flat = torch.cat([move.reshape(-1).to(wide_dtype(self._device())) for move in moves])
        if distributed():
            torch.distributed.all_reduce(flat, group=self.ranks.group)  # may fail: nothing has moved yet
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.sub_(move)
        sizes = [move.numel() for move in moves]
        for center, total in zip(centers, torch.split(flat, sizes), strict=True):
            center.add_(total.view(center.shape))

    def _look_for_twins(self) -> None:
        """There is no noise to share."""

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"period": self.period, "elasticity": self.elasticity}

    def _facts(self, *, first: bool = False) -> Facts:
        return super()._facts()  # the workers' parameters are meant to differ

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        if sharded(parameter):
            raise ValueError(
                "a parameter is sharded over ranks: elastic averaging ties whole copies together; give every worker its own "
                "model, without fully_shard"
            )
        # Contiguous, since a broadcast sends memory as it lies, and ranks may have other layouts.
        layout = torch.contiguous_format
        center = parameter.detach().to(momentum_dtype(parameter), copy=True, memory_format=layout)
        if distributed():
            torch.distributed.broadcast(center, group_src=0, group=self.ranks.group)
        self.state[parameter] = {"momentum_buffer": torch.zeros_like(center), "center": center}


class EAMSGD(EASGD):
    """Elastic averaging SGD with Nesterov's momentum; the other parameters are EASGD's."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, **options: Any) -> None:
        super().__init__(params, lr, momentum, **options)
