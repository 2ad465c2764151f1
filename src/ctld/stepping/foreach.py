"""Plans carried out by torch, operation by operation: the definition of what the kernels compute.

Tensors of one list may differ in shape, layout, dtype and device. Momenta are never of lower precision than float32,
whatever the parameters are; a kick converts gradients to the dtype of the momenta.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ctld import noise
from ctld.compensation import compensated_deviation
from ctld.sharding import Block, local
from ctld.stepping.native import CONSTANTS
from ctld.stepping.sweep import SECOND_NOISE, AnyPlan, Plan, PsgldPlan, SantaPlan, Sweep


class Noise(NamedTuple):
    """Noise of one kind, under one seed, at one step."""

    kind: str
    seed: int
    step: int

    def like(self, tensor: Tensor, stream: int, block: Block) -> Tensor:
        """Return the numbers of a stream for the elements of a tensor, flat, row-major; `block` says which they are."""
        made = [self.numbers(stream, count, offset=first, like=tensor) for first, count in block.runs]
        if len(made) == 1:
            return made[0]
        return torch.cat(made) if made else torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    def numbers(self, stream: int, count: int, *, like: Tensor, offset: int = 0) -> Tensor:
        """Return a count of numbers of a stream, of the dtype and on the device of a tensor."""
        options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        return noise.numbers(self.kind, self.seed, self.step, stream, count, offset=offset, **options)


@dataclass(slots=True)
class Part:
    """Some parameters of a group, with all that belongs to them, in the same order."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    momenta: list[Tensor] | None
    states: list[Any]
    streams: list[int]
    blocks: list[Block]
    weights: list[float]


@torch.no_grad()
def advance(part: Part, plan: AnyPlan, noise: Noise | None) -> list[Tensor]:
    """Carry a plan out; return the sums of each sweep, those of one row of zeros where there is nothing to measure."""
    if isinstance(plan, PsgldPlan):
        return [_psgld(part, plan, noise)]
    if isinstance(plan, SantaPlan):
        return [_santa(part, plan, noise)]
    return [_sweep(part, plan, sweep, noise) for sweep in plan.sweeps] or [_rest(part, plan)]


def momentum_dtype(parameter: Tensor) -> torch.dtype:
    """Return float64 for float64 parameters, else float32: bfloat16 would lose a momentum's small changes."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def zero_momentum(parameter: Tensor) -> Tensor:
    """Return zeros for a parameter's momentum; row-major on a CPU, where the kernels then need no copy of it."""
    layout = torch.contiguous_format if parameter.is_cpu else torch.preserve_format
    return torch.zeros_like(parameter, dtype=momentum_dtype(parameter), requires_grad=False, memory_format=layout)


def total_gradients(parameters: list[Tensor], gradients: list[Tensor], *, decay: float, ascend: bool) -> list[Tensor]:
    """Return ∇(±loss + decay·‖θ‖²/2) in the dtype of the momenta; the gradients themselves are left alone."""
    gradients = [g.to(momentum_dtype(p)) for p, g in zip(parameters, gradients, strict=True)]
    if ascend:
        gradients = list(torch._foreach_neg(gradients))
    return list(torch._foreach_add(gradients, parameters, alpha=decay)) if decay else gradients


def thermostat(momentum: Tensor, noise: Tensor, *, deviation: float | Tensor) -> None:
    """Do p ← p + deviation·ε; `noise` is flat, in the row-major order of the parameter's elements."""
    noise = noise.view(momentum.shape)
    if isinstance(deviation, Tensor):
        momentum.addcmul_(noise, deviation)
    else:
        momentum.add_(noise, alpha=deviation)


def drift(parameters: list[Tensor], momenta: list[Tensor], *, step: float) -> None:
    """Do θ ← θ + step·p."""
    if all(p.dtype == m.dtype for p, m in zip(parameters, momenta, strict=True)):
        torch._foreach_add_(parameters, momenta, alpha=step)
    else:
        for parameter, momentum in zip(parameters, momenta, strict=True):
            parameter.add_(momentum, alpha=step)


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return float64, in which sums over millions of elements are exact enough for an energy; float32 where there is none."""
    return torch.float64 if device.type in ("cpu", "cuda", "meta") or _has_float64(device) else torch.float32


@cache
def _has_float64(device: torch.device) -> bool:
    """True if a device can add in float64, by trying: Apple's cannot, and some of Intel's."""
    try:
        return float(torch.ones(2, dtype=torch.float64, device=device).sum()) == 2.0
    except (RuntimeError, TypeError, AssertionError):
        return False


def square_norm(tensors: Sequence[Tensor], device: torch.device, weights: Sequence[float] | None = None) -> Tensor:
    """Return Σ w‖x‖² as one number of `wide_dtype` that stays on `device`; every w is 1, if they are left out."""
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
    """Return half the gap between neighbouring numbers at the parameter's typical size: smaller changes are lost."""
    here = local(parameter).detach()
    size = math.sqrt(float(square_norm([here], here.device)) / max(here.numel(), 1))
    return 0.5 * torch.finfo(parameter.dtype).eps * size


def finite(gradients: list[Tensor]) -> Tensor | bool:
    """Return True if no element is NaN, inf, or has an infinite square; the answer stays on the device where it was found."""
    gradients = [gradient for gradient in gradients if gradient.numel()]
    if not gradients:
        return True
    norms = torch._foreach_norm(gradients, math.inf)  # the one norm that cannot overflow
    fit = [(norm < largest(norm.dtype)).to(norms[0].device) for norm in norms]
    return torch.stack(fit).all()


def largest(dtype: torch.dtype) -> float:
    """Return the bound on elements of gradients below which sums of their squares do not overflow."""
    return 2.0 ** int(CONSTANTS["LARGEST_FLOAT64" if dtype == torch.float64 else "LARGEST_FLOAT32"])


def _sweep(part: Part, plan: Plan, sweep: Sweep, noise: Noise | None) -> Tensor:
    parameters, states, weights = part.parameters, part.states, part.weights
    device = parameters[0].device
    momenta = part.momenta
    if momenta is None:
        momenta = [torch.zeros_like(p, dtype=momentum_dtype(p)) for p in parameters]
    prior = square_norm(parameters, device, weights) if plan.measure and plan.decay else square_norm([], device)
    before = [p.clone() for p in momenta] if plan.measure else []
    scales = _scales(part) if plan.scaled else None
    torch._foreach_mul_(momenta, sweep.retain)
    if sweep.impulse:
        totals = total_gradients(parameters, part.gradients, decay=plan.decay, ascend=plan.ascend)
        if scales is not None:
            totals = list(torch._foreach_mul(totals, scales))
        torch._foreach_add_(momenta, totals, alpha=sweep.impulse)
    clamped = torch.zeros_like(prior)
    if noise is not None and (sweep.deviation or plan.compensation is not None):
        source = noise._replace(seed=noise.seed ^ SECOND_NOISE) if sweep.second_noise else noise
        for place, momentum in enumerate(momenta):
            spread: float | Tensor = sweep.deviation
            if scales is not None:
                spread = scales[place].sqrt().mul_(sweep.deviation)
            if plan.compensation is not None:
                lr, variance = plan.compensation
                spread, count = compensated_deviation(states[place], part.gradients[place], lr=lr, variance=variance)
                clamped += count.to(device) * weights[place]
            thermostat(momentum, source.like(momentum, part.streams[place], part.blocks[place]), deviation=spread)
    drift(parameters, momenta, step=sweep.stride)
    if not plan.measure:
        return torch.stack((prior, prior, prior, clamped))
    torch._foreach_add_(before, momenta)
    kinetic = square_norm(_in_units_of(momenta, scales), device, weights)
    midpoint = square_norm(_in_units_of(before, scales), device, weights)
    return torch.stack((prior, kinetic, midpoint, clamped))


def _rest(part: Part, plan: Plan) -> Tensor:
    """Return the sums of a step that is not taken; there is none before it, so no mid-step momentum."""
    device = part.parameters[0].device
    prior = square_norm(part.parameters, device, part.weights)
    scales = _scales(part) if plan.scaled else None
    kinetic = square_norm(_in_units_of(part.momenta or [], scales), device, part.weights if part.momenta else None)
    return torch.stack((prior, kinetic, torch.zeros_like(prior), torch.zeros_like(prior)))


def _psgld(part: Part, plan: PsgldPlan, noise: Noise | None) -> Tensor:
    totals = total_gradients(part.parameters, part.gradients, decay=plan.decay, ascend=plan.ascend)
    squares = [state["square_average"] for state in part.states]
    if plan.adapt:
        torch._foreach_mul_(squares, plan.smoothing)
        torch._foreach_addcmul_(squares, totals, totals, 1.0 - plan.smoothing)
    scales = torch._foreach_sqrt(squares)
    torch._foreach_add_(scales, plan.epsilon)
    torch._foreach_reciprocal_(scales)
    moves = list(torch._foreach_mul(totals, scales))
    torch._foreach_mul_(moves, -plan.lr)
    if noise is not None and plan.deviation:
        for move, scale, stream, block in zip(moves, scales, part.streams, part.blocks, strict=True):
            thermostat(move, noise.like(move, stream, block), deviation=scale.sqrt_().mul_(plan.deviation))
    drift(part.parameters, moves, step=1.0)
    return _nothing(part)


def _santa(part: Part, plan: SantaPlan, noise: Noise | None) -> Tensor:
    totals = total_gradients(part.parameters, part.gradients, decay=plan.decay, ascend=plan.ascend)
    rows = zip(part.parameters, part.states, part.streams, part.blocks, totals, strict=True)
    for parameter, state, stream, block, gradient in rows:
        square, u, xi = state["square_average"], state["momentum_buffer"], state["thermostat"]
        before = None if state["steps"] == 0 else _root_scale(square, plan.epsilon)
        if plan.adapt:
            square.lerp_(gradient.square(), 1.0 - plan.smoothing)
        scale = _root_scale(square, plan.epsilon)
        impulse = gradient.mul(scale).mul_(-plan.lr)
        if plan.exploring and noise is not None:
            variance = (scale.clone() if before is None else before).mul_(plan.variance)
            thermostat(impulse, noise.like(impulse, stream, block), deviation=variance.sqrt_())
        if plan.symmetric:
            if plan.exploring:
                xi.add_(u.square(), alpha=0.5).sub_(0.5 * plan.target)
            decay = torch.exp(-0.5 * xi)
            u.mul_(decay).add_(impulse).mul_(decay)
            if plan.exploring:
                xi.add_(u.square(), alpha=0.5).sub_(0.5 * plan.target)
        else:
            if plan.exploring:
                xi.add_(u.square()).sub_(plan.target)
            u.mul_(1.0 - xi).add_(impulse)
        if parameter.dtype == u.dtype:
            parameter.addcmul_(scale, u)
        else:  # rounded once
            parameter.add_(scale.mul_(u))
    return _nothing(part)


def _scales(part: Part) -> list[Tensor]:
    """Return s of each parameter, in the dtype of the momenta."""
    return [state["scale"].to(momentum_dtype(p)) for p, state in zip(part.parameters, part.states, strict=True)]


def _in_units_of(momenta: list[Tensor], scales: list[Tensor] | None) -> list[Tensor]:
    """Return p/√s, whose squares are energies."""
    return momenta if scales is None else list(torch._foreach_div(momenta, torch._foreach_sqrt(scales)))


def _root_scale(square: Tensor, epsilon: float) -> Tensor:
    return square.sqrt().add_(epsilon).rsqrt_()


def _nothing(part: Part) -> Tensor:
    device = part.parameters[0].device
    return torch.zeros(4, dtype=wide_dtype(device), device=device)
