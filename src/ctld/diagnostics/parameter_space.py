"""Parameters as one vector, for what is measured about a point: moved and put back, gradients, Hessian-vector products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Loss = Callable[[], Tensor]


class ParameterSpace:
    """The parameters as one vector, of their own precision but single at least, on the first one's device."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self._parameters:
            raise ValueError("there are no parameters that require a gradient; was the iterator of parameters used up?")
        if any(hasattr(parameter, "full_tensor") for parameter in self._parameters):
            raise TypeError("the parameters are sharded; load their state into a model on one device, and measure that")
        self.size = sum(parameter.numel() for parameter in self._parameters)
        self._device = self._parameters[0].device
        self._dtype = torch.float32
        for parameter in self._parameters:
            self._dtype = torch.promote_types(self._dtype, parameter.dtype)

    def _joined(self, tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([tensor.detach().reshape(-1).to(self._device, self._dtype) for tensor in tensors])

    def _parted(self, vector: Tensor) -> list[Tensor]:
        pieces = vector.split([parameter.numel() for parameter in self._parameters])  # type: ignore[no-untyped-call]
        return [piece.view_as(own).to(own) for piece, own in zip(pieces, self._parameters, strict=True)]

    def put(self, vector: Tensor) -> None:
        with torch.no_grad():
            for own, piece in zip(self._parameters, self._parted(vector), strict=True):
                own.copy_(piece)

    @contextmanager
    def kept(self) -> Iterator[Tensor]:
        """The parameters as they are, and put back to the bit whatever happens."""
        saved = [parameter.detach().clone() for parameter in self._parameters]
        try:
            yield self._joined(saved)
        finally:
            with torch.no_grad():
                for own, value in zip(self._parameters, saved, strict=True):
                    own.copy_(value)

    def root_mean_squares(self) -> Tensor:
        means = [own.detach().square().mean().sqrt() if own.numel() else own.detach() for own in self._parameters]
        return self._joined(mean.expand_as(own) for mean, own in zip(means, self._parameters, strict=True))

    # ---- random vectors, drawn on the CPU: the same on every device ----

    def normal(self, generator: torch.Generator) -> Tensor:
        return torch.randn(self.size, generator=generator).to(self._device, self._dtype)

    def uniform(self, generator: torch.Generator) -> Tensor:
        return torch.rand(self.size, generator=generator).to(self._device, self._dtype)

    def signs(self, generator: torch.Generator) -> Tensor:
        return torch.randint(2, (self.size,), generator=generator).to(self._device, self._dtype) * 2.0 - 1.0

    # ---- derivatives ----

    def gradient(self, loss: Loss) -> tuple[float, Tensor]:
        with torch.enable_grad():
            value = loss()
            found = loss_number(value)
            gradients = torch.autograd.grad(value, self._parameters, materialize_grads=True)
        return found, self._joined(gradients)

    def hessian(self, loss: Loss) -> Callable[[Tensor], Tensor]:
        """v ↦ Hv. The graph of the gradient is built once and kept."""
        with torch.enable_grad():
            value = loss()
            loss_number(value)
            # Not a constant: else torch leaves no mark where a function can be differentiated once only.
            unit = torch.ones_like(value, requires_grad=True)
            try:
                gradients = torch.autograd.grad(
                    value, self._parameters, unit, create_graph=True, materialize_grads=True
                )
            except (RuntimeError, NotImplementedError) as error:
                raise _once(error) from error
        _check_twice(gradients)
        used = [place for place, gradient in enumerate(gradients) if gradient.requires_grad]

        def product(vector: Tensor) -> Tensor:
            pieces = self._parted(vector)
            try:
                images = torch.autograd.grad(
                    [gradients[place] for place in used],
                    self._parameters,
                    [pieces[place] for place in used],
                    retain_graph=True,
                    materialize_grads=True,
                )
            except (RuntimeError, NotImplementedError) as error:
                raise _once(error) from error
            return self._joined(images)

        return product

    def differences(self, loss: Loss) -> Callable[[Tensor], Tensor]:
        """Return v ↦ Hv by central differences of the gradient, for a loss that can be differentiated once only."""
        step = torch.finfo(self._dtype).eps ** (1.0 / 3.0)

        def product(vector: Tensor) -> Tensor:
            with self.kept() as center:
                reach = step * max(float(center.norm()), 1.0) / max(float(vector.norm()), 1e-30)
                slopes = []
                for moved in (center + reach * vector, center - reach * vector):
                    self.put(moved)
                    slopes.append(self.gradient(loss)[1])
            image: Tensor = (slopes[0] - slopes[1]) / (2.0 * reach)
            return image

        return product


def _check_twice(gradients: Iterable[Tensor]) -> None:
    """Look for the marks of `once_differentiable`: on the way to the parameters torch passes them by, as if they were flat."""
    waiting = [gradient.grad_fn for gradient in gradients]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::Error":
            raise _once("a function of it is marked once_differentiable")
        waiting += [following for following, _ in node.next_functions]


def _once(reason: object) -> ValueError:
    return ValueError(
        f"the loss cannot be differentiated twice ({str(reason).splitlines()[0][:200]}); exchange the operation, as "
        "by torch.backends.cudnn.flags(enabled=False) for recurrent layers on a GPU, or SDPBackend.MATH for attention"
    )


def loss_number(value: Tensor) -> float:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError("loss() must give a tensor of one element, the mean loss")
    number = float(value.detach())
    if not math.isfinite(number):
        raise ValueError(f"the loss is {number}; flatness is asked of a finite one: take a smaller radius or size")
    return number
