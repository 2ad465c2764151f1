"""A look at some elements of a group: their virial θᵀ∇U, and how much the minibatches make their gradients differ.

About `LIMIT` elements are looked at, at three steps in a row. σ² is from three gradients, (∇_t − 2∇_{t−1} + ∇_{t−2})²/6, which
a steady change of the gradient does not enter; of their elements a few random projections are held, which have the same mean
square.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ctld.sharding import block, local
from ctld.stepping.foreach import Noise, wide_dtype

LIMIT = 1024
PROJECTIONS = 4


class Elements:
    """Some elements of a group, evenly spread, and how many each stands for."""

    def __init__(self, identity: int, parameters: Sequence[Tensor], scales: Any, *, ranks: int) -> None:
        self.identity = identity
        numel = sum(parameter.numel() for parameter in parameters)
        stride = 1 if numel <= LIMIT else numel // LIMIT | 1  # odd, so as not to be a multiple of a row's length
        self._places: list[tuple[Tensor, slice]] = []
        self._addresses = [local(parameter).data_ptr() for parameter in parameters]
        weights, chosen_scales = [], []
        for parameter in parameters:
            here, runs = local(parameter), block(parameter)
            # By the place in the whole parameter, so that the same elements are looked at on any number of ranks.
            first = -runs.runs[0][0] % stride if len(runs.runs) == 1 else 0
            count = len(range(first, here.numel(), stride))
            if parameter.grad is None or not count:
                continue
            places = slice(first, None, stride)
            self._places.append((parameter, places))
            seen = -(-parameter.numel() // stride)  # on all ranks, if blocks are in one piece
            weight = parameter.numel() / seen if len(runs.runs) == 1 else here.numel() / count
            weights += [weight * (runs.shards / ranks if ranks > 1 else 1.0)] * count
            if scales is not None:
                chosen_scales.append(local(scales[parameter]["scale"]).reshape(-1)[places])
        device = local(parameters[0]).device if parameters else torch.device("cpu")
        self.weights = torch.tensor(weights, dtype=wide_dtype(device)).to(device, non_blocking=True)
        self.total = float(sum(weights))
        self._roots = (self.weights * _joined(chosen_scales, device) if scales is not None else self.weights).sqrt()
        self._directions: tuple[Noise, Tensor] | None = None

    def fits(self, parameters: Sequence[Tensor]) -> bool:
        """True if the parameters are still at their old addresses."""
        return self._addresses == [local(parameter).data_ptr() for parameter in parameters]

    def read(self) -> tuple[Tensor, Tensor]:
        """Return θ and the gradient of the loss."""
        theta = [local(parameter).reshape(-1)[places] for parameter, places in self._places]
        gradients = [local(parameter.grad).reshape(-1)[places] for parameter, places in self._places]
        return _joined(theta, self.weights.device), _joined(gradients, self.weights.device)

    def theta(self) -> Tensor:
        """Return θ."""
        return _joined(
            [local(parameter).reshape(-1)[places] for parameter, places in self._places], self.weights.device
        )

    def projections(self, gradient: Tensor, source: Noise, number: int) -> Tensor:
        """Return projections of the gradient, elements times the root of their weights; directions depend on `source` alone."""
        if self._directions is None or self._directions[0] != source:
            made = source.numbers(number, PROJECTIONS * len(gradient), like=gradient)
            self._directions = source, made.view(PROJECTIONS, len(gradient)) * self._roots
        return self._directions[1] @ gradient

    def sums(self, theta: Tensor, slope: Tensor, change: Tensor | None) -> Tensor:
        """Σ w θ·∇U/N; Σ w s σ², NaN if the change is not known; Σ w; and a zero: as long as a step's sums."""
        virial = (self.weights * theta * slope).sum()
        noise = torch.full_like(virial, math.nan) if change is None else change.square().mean() / 6.0
        return torch.stack((virial, noise, torch.full_like(virial, self.total), torch.zeros_like(virial)))


def _joined(pieces: Sequence[Tensor], device: torch.device) -> Tensor:
    dtype = wide_dtype(device)
    if not pieces:
        return torch.zeros(0, dtype=dtype, device=device)
    return torch.cat([piece.to(device) for piece in pieces]).to(dtype)
