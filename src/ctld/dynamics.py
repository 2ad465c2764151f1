"""Steps of lists of tensors: kick, thermostat, drift. They take numbers and know no algorithm.

    ∇ = ±∇loss + decay·θ,     p ← retain·p + impulse·s∇ + deviation·√s·ε,     θ ← θ + stride·p

`Movers.advance` does that, in one pass over memory where there is a kernel for the tensors (`ctld.kernels`), and by torch,
operation by operation, for the others. s is a scale for each element, if there are scales; without momenta p starts from
zero at each step. Tensors of one list may differ in shape, layout, dtype and device. Momenta are never of lower precision
than float32, whatever the parameters are; a kick converts gradients to the dtype of the momenta.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from ctld import noise
from ctld.compensation import MEMORY, compensated_deviation
from ctld.kernels import native


@dataclass(frozen=True, slots=True)
class Noise:
    """Which noise: of this kind, under this seed, at this step."""

    kind: str
    seed: int
    step: int

    def like(self, tensor: Tensor, stream: int) -> Tensor:
        """The numbers of a stream for the elements of a tensor, flat, in their row-major order."""
        return noise.numbers(
            self.kind, self.seed, self.step, stream, tensor.numel(), dtype=tensor.dtype, device=tensor.device
        )


@dataclass(frozen=True, slots=True)
class Compensation:
    """Inject sqrt(variance − lr·Var(∇)) in place of a common deviation; see `ctld.compensation`."""

    lr: float
    variance: float


Sums = tuple[float, float, float, float] | Tensor
"""Σθ², Σp² after the kick, Σ(p before + p after)², and how many noise variances were clamped; numbers, or on the device."""


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
    """

    def __init__(self, candidates: list[Tensor], state: Mapping[Tensor, dict[str, Any]], first_stream: int) -> None:
        self.parameters: list[Tensor] = []
        self.streams: list[int] = []
        self.momenta: list[Tensor] | None = []
        self.scales: list[Tensor] | None = None
        self.compensation: Compensation | None = None
        self._state, self._first_stream = state, first_stream
        self._candidates = list(candidates)
        self._followers: list[tuple[Tensor, Tensor | None, int]] = []
        """Of each candidate: itself, its momentum, and the place of its row, or −1 if it has no gradient."""
        self._others: list[int] = []
        """Places of the tensors for which there is no kernel."""
        self._rows: list[tuple[torch.dtype, int]] = []
        """In which table, and where in it, each of the others has its row."""
        tables: dict[torch.dtype, list[int]] = {}
        for stream, parameter in enumerate(candidates, first_stream):
            gradient = parameter.grad
            if gradient is None:
                self._followers.append((parameter, None, -1))
                continue
            if gradient.layout != torch.strided:
                raise ValueError(
                    f"a gradient is sparse ({gradient.layout}): noise reaches every element of a parameter; give dense "
                    "gradients (nn.Embedding(sparse=False))"
                )
            momentum = state[parameter].get("momentum_buffer")
            self.parameters.append(parameter)
            self.streams.append(stream)
            if momentum is None:
                self.momenta = None
            elif self.momenta is not None:
                self.momenta.append(momentum)
            if not _plain(parameter, gradient, momentum):
                self._others.append(len(self.parameters) - 1)
                continue
            table = tables.setdefault(parameter.dtype, [])
            self._rows.append((parameter.dtype, len(table)))
            self._followers.append((parameter, momentum, len(table)))
            own = 0 if momentum is None else momentum.data_ptr()
            table += [parameter.data_ptr(), gradient.data_ptr(), own, 0, 0, 0, parameter.numel(), 0, stream, 0, 0]
        self._tables = {dtype: array("q", rows) for dtype, rows in tables.items()}
        self.numel = sum(parameter.numel() for parameter in self.parameters)
        """How many elements move."""

    def follow(self, candidates: list[Tensor], state: Mapping[Tensor, dict[str, Any]]) -> bool:
        """Take over this step's gradients, if nothing else has changed since the last; else return False.

        The constructor's checks cost more than a step of ten thousand parameters. These are the ones that can turn out
        otherwise for tensors that passed them.
        """
        if (
            self._others
            or len(self._tables) != 1
            or self.scales
            or self.compensation
            or len(candidates) != len(self._followers)
        ):
            return False
        ((dtype, rows),) = self._tables.items()
        self._state = state  # a loaded one is a new object
        for candidate, (parameter, momentum, row) in zip(candidates, self._followers, strict=True):
            gradient: Any = candidate.grad
            if row < 0:
                if gradient is None and candidate is parameter:
                    continue
                return False
            if (
                gradient is None
                or candidate is not parameter
                or parameter.data_ptr() != rows[row]
                or parameter.numel() != rows[row + 6]
                or not parameter.is_contiguous()
                or (momentum is not None and state[parameter]["momentum_buffer"].data_ptr() != rows[row + 2])
                or gradient.dtype is not dtype
                or gradient.numel() != rows[row + 6]
                or type(gradient) is not Tensor
                or not gradient.is_contiguous()
                or gradient.is_neg()
            ):
                return False
            rows[row + 1] = gradient.data_ptr()
        return True

    def scale(self, scales: list[Tensor]) -> None:
        """Give each element its s, of the dtype of the momenta."""
        # Of the momenta's dtype and in one piece, as the kernels want them; a tensor that is so is left as it is.
        dtypes = [momentum_dtype(parameter) for parameter in self.parameters]
        self.scales = [scale.to(dtype).contiguous() for scale, dtype in zip(scales, dtypes, strict=True)]
        for tensor, (dtype, row) in self._with_kernel(self.scales):
            self._tables[dtype][row + 3] = tensor.data_ptr()

    def compensate(self, compensation: Compensation) -> None:
        """Inject less noise by what the minibatches bring in, in place of a common deviation."""
        self.compensation = compensation
        for parameter, (dtype, row) in self._with_kernel(self.parameters):
            state, rows = self._state[parameter], self._tables[dtype]
            buffers = [state["previous_gradient"], state["gradient_variance"]]
            if not all(_fits(buffer, parameter) for buffer in buffers):
                self._others, self._rows, self._tables = list(range(len(self.parameters))), [], {}
                return
            rows[row + 4], rows[row + 5] = (buffer.data_ptr() for buffer in buffers)
            seen = state["gradients_seen"]
            rows[row + 10] = native.bits(1.0 / min(seen, MEMORY) if seen else 0.0)

    def _with_kernel(self, tensors: list[Tensor]) -> Iterator[tuple[Tensor, tuple[torch.dtype, int]]]:
        others = set(self._others)
        return zip((tensor for place, tensor in enumerate(tensors) if place not in others), self._rows, strict=True)

    def rest(self) -> Sums:
        """The sums of a step that is not taken; none before it, so no mid-step momentum."""
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        prior, kinetic = square_norm(self.parameters, device), square_norm(self.momenta or [], device)
        return torch.stack((prior, kinetic, torch.zeros_like(prior), torch.zeros_like(prior)))

    def finite(self) -> Tensor | bool:
        """Whether no gradient has an element that is NaN or inf; left on the device if it was found there."""
        library: Any = native.stepper()
        for dtype, rows in self._tables.items():
            if not library.all_finite(dtype, rows):
                return False
        if not self._others:
            return True
        gradients: list[Any] = [self.parameters[place].grad for place in self._others]
        norms = torch._foreach_norm(gradients)
        return torch.stack([norm.to(norms[0].device) for norm in norms]).isfinite().all()

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
    ) -> Sums:
        """One step; `source` None is one without noise. Returns the sums that are wanted if `measure`."""
        sums: Sums = (0.0, 0.0, 0.0, 0.0)
        factors = [retain, impulse, deviation, stride, decay, -1.0 if ascend else 1.0, 0.0, 0.0]
        if self.compensation is not None:
            factors[6:] = self.compensation.variance, self.compensation.lr
        for dtype, rows in self._tables.items():
            library: Any = native.stepper()
            named = (None, 0, 0) if source is None else (source.kind, source.seed, source.step)
            made = library.step(dtype, rows, factors, *named, measure)
            increment_version(self.parameters)  # as torch's own writes do: autograd must know
            sums = made if len(self._tables) == 1 else _added(sums, made)
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
            sums = rest + torch.tensor(sums, dtype=rest.dtype, device=rest.device) if self._tables else rest
        if self.compensation is not None:
            for parameter in self.parameters:
                self._state[parameter]["gradients_seen"] += 1
        return sums

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
        device = parameters[0].device
        totals = total_gradients(parameters, decay=decay, ascend=ascend)
        if self.momenta is None:
            momenta = [torch.zeros_like(total) for total in totals]
        else:
            momenta = [self.momenta[place] for place in self._others]
        prior = square_norm(parameters if measure and decay else [], device)
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
                    self._state[parameters[number]],
                    parameters[number],
                    lr=self.compensation.lr,
                    variance=self.compensation.variance,
                )
                clamped += count.to(device)
            assert source is not None
            thermostat(momenta[number], source.like(momenta[number], self.streams[place]), deviation=spread)
        drift(parameters, momenta, step=stride)
        if not measure:
            return torch.stack((prior, prior, prior, clamped))
        kinetic = square_norm(momenta, device)
        torch._foreach_add_(before, momenta)
        return torch.stack((prior, kinetic, square_norm(before, device), clamped))


def _added(a: Any, b: Any) -> Any:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _plain(parameter: Tensor, gradient: Tensor, momentum: Tensor | None) -> bool:
    """Whether the kernels can take it: on a CPU, in one piece, of a dtype that they know, and no subclass of a tensor."""
    dtype = parameter.dtype
    return (
        native.stepper() is not None
        and parameter.is_cpu
        and dtype in native.TYPES
        and gradient.dtype is dtype
        and (type(parameter) is Parameter or type(parameter) is Tensor)
        and type(gradient) is Tensor
        and gradient.numel() == parameter.numel()
        and parameter.is_contiguous()
        and gradient.is_contiguous()
        and not gradient.is_neg()
        and (momentum is None or _fits(momentum, parameter))
    )


def _fits(buffer: Tensor, parameter: Tensor) -> bool:
    """Whether the kernels can take a buffer of an optimizer for a parameter that they can take."""
    return (
        buffer.is_cpu
        and buffer.dtype is native.TYPES[parameter.dtype].momentum
        and buffer.numel() == parameter.numel()
        and buffer.is_contiguous()
    )


def momentum_dtype(parameter: Tensor) -> torch.dtype:
    """float64 for float64 parameters, else float32: bfloat16 would lose a momentum's small changes."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def total_gradients(parameters: list[Tensor], *, decay: float, ascend: bool) -> list[Tensor]:
    """∇(±loss + decay·‖θ‖²/2) in the dtype of the momenta; `p.grad` itself is left alone."""
    gradients = [p.grad.to(momentum_dtype(p)) for p in parameters if p.grad is not None]
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


def square_norm(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Σ‖x‖² as one number of `wide_dtype` that stays on `device`."""
    dtype = wide_dtype(device)
    chosen = [tensor for tensor in tensors if tensor.numel()]
    if not chosen:
        return torch.zeros((), dtype=dtype, device=device)
    # In the tensors' own float32 the norm of 5e7 elements would be off by 1 %, hundreds of units of H.
    norms = torch._foreach_norm(chosen, 2, wide_dtype(chosen[0].device))
    return torch.stack([norm.to(device, dtype) for norm in norms]).square_().sum()


def rounding(parameter: Tensor) -> float:
    """Half the gap between neighbouring numbers at the parameter's typical size: smaller changes are lost."""
    size = math.sqrt(float(square_norm([parameter.detach()], parameter.device)) / max(parameter.numel(), 1))
    return 0.5 * torch.finfo(parameter.dtype).eps * size
