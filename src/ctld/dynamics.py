"""Sub-steps on lists of tensors: kick, thermostat, drift. They take numbers and know no algorithm.

Tensors of one list may differ in shape, layout, dtype and device. Momenta are never of lower precision than float32,
whatever the parameters are; a kick converts gradients to the dtype of the momenta. `ctld.movers` makes whole steps of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ctld import noise
from ctld.sharding import Block, local


class Noise(NamedTuple):
    """Which noise: of this kind, under this seed, at this step."""

    kind: str
    seed: int
    step: int

    def like(self, tensor: Tensor, stream: int, block: Block) -> Tensor:
        """The numbers of a stream for the elements of a tensor, flat, in their row-major order; `block` says which they are."""
        made = [self.numbers(stream, count, offset=first, like=tensor) for first, count in block.runs]
        if len(made) == 1:
            return made[0]
        return torch.cat(made) if made else torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    def numbers(self, stream: int, count: int, *, like: Tensor, offset: int = 0) -> Tensor:
        """So many numbers of a stream, of the dtype and on the device of a tensor."""
        options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        return noise.numbers(self.kind, self.seed, self.step, stream, count, offset=offset, **options)


@dataclass(frozen=True, slots=True)
class Compensation:
    """Inject sqrt(variance − lr·Var(∇)) in place of a common deviation; see `ctld.compensation`."""

    lr: float
    variance: float


Sums = tuple[float, float, float, float] | Tensor
"""Σθ², Σp² after the kick, Σ(p before + p after)², and how many noise variances were clamped; numbers, or on the device."""


def momentum_dtype(parameter: Tensor) -> torch.dtype:
    """float64 for float64 parameters, else float32: bfloat16 would lose a momentum's small changes."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def total_gradients(parameters: list[Tensor], gradients: list[Tensor], *, decay: float, ascend: bool) -> list[Tensor]:
    """∇(±loss + decay·‖θ‖²/2) in the dtype of the momenta; the gradients themselves are left alone."""
    gradients = [g.to(momentum_dtype(p)) for p, g in zip(parameters, gradients, strict=True)]
    if ascend:
        gradients = list(torch._foreach_neg(gradients))
    return list(torch._foreach_add(gradients, parameters, alpha=decay)) if decay else gradients


def kick(momenta: list[Tensor], gradients: list[Tensor], *, retain: float, impulse: float) -> None:
    """p ← retain·p + impulse·∇."""
    torch._foreach_mul_(momenta, retain)
    torch._foreach_add_(momenta, gradients, alpha=impulse)


def thermostat(momentum: Tensor, noise: Tensor, *, deviation: float | Tensor) -> None:
    """p ← p + deviation·ε; `noise` is flat, in the row-major order of the parameter's elements."""
    noise = noise.view(momentum.shape)
    if isinstance(deviation, Tensor):
        momentum.addcmul_(noise, deviation)
    else:
        momentum.add_(noise, alpha=deviation)


def drift(parameters: list[Tensor], momenta: list[Tensor], *, step: float) -> None:
    """θ ← θ + step·p."""
    if all(p.dtype == m.dtype for p, m in zip(parameters, momenta, strict=True)):
        torch._foreach_add_(parameters, momenta, alpha=step)
    else:
        for parameter, momentum in zip(parameters, momenta, strict=True):
            parameter.add_(momentum, alpha=step)


def wide_dtype(device: torch.device) -> torch.dtype:
    """float64, in which sums over millions of elements are exact enough for an energy; float32 where there is none."""
    return torch.float32 if device.type == "mps" else torch.float64


def square_norm(tensors: Sequence[Tensor], device: torch.device, weights: Sequence[float] | None = None) -> Tensor:
    """Σ w‖x‖² as one number of `wide_dtype` that stays on `device`; every w is 1, if they are left out."""
    dtype = wide_dtype(device)
    chosen = [(tensor, w) for tensor, w in zip(tensors, weights or [1.0] * len(tensors), strict=True) if tensor.numel()]
    if not chosen:
        return torch.zeros((), dtype=dtype, device=device)
    # In the tensors' own float32 the norm of 5e7 elements would be off by 1 %, hundreds of units of H.
    norms = torch._foreach_norm([tensor for tensor, _ in chosen], 2, wide_dtype(chosen[0][0].device))
    squares = torch.stack([norm.to(device, dtype) for norm in norms]).square_()
    if any(w != 1.0 for _, w in chosen):
        squares *= squares.new_tensor([w for _, w in chosen])
    return squares.sum()


def rounding(parameter: Tensor) -> float:
    """Half the gap between neighbouring numbers at the parameter's typical size: smaller changes are lost."""
    here = local(parameter).detach()
    size = math.sqrt(float(square_norm([here], here.device)) / max(here.numel(), 1))
    return 0.5 * torch.finfo(parameter.dtype).eps * size
