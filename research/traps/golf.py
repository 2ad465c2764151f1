"""Few parameters and narrow holes: three sines, a recurrent network for running parity; and sparse parity, the control."""

import itertools
import math

import torch
from torch import Tensor

from traps.problem import Instance, Problem


class ThreeSines(Problem):
    """y(x) = Σ a_i sin(ω_i x + φ_i), three terms, amplitudes, frequencies and phases unknown; 64 points in ±2."""

    name = "sines"
    title = "Three sines"
    threshold = 0.01
    rates = (0.03, 0.1, 0.3)
    coldest = 1e-3
    adam = 0.001

    def __init__(self) -> None:
        self._points = torch.linspace(-2.0, 2.0, 64)

    def draw(self, replicas: int, generator: torch.Generator) -> Instance:
        # frequencies at least one apart, or two sines could pass for one
        frequencies = torch.tensor([2.0, 5.0, 8.0]) + 2.0 * torch.rand((replicas, 3), generator=generator)
        phases = 2.0 * math.pi * torch.rand((replicas, 3), generator=generator)
        waves = torch.sin(frequencies[:, :, None] * self._points + phases[:, :, None])
        return (waves.sum(1),)

    def start(self, replicas: int, generator: torch.Generator) -> Tensor:
        frequencies = 2.0 + 8.0 * torch.rand((replicas, 3), generator=generator)
        phases = 2.0 * math.pi * torch.rand((replicas, 3), generator=generator)
        return torch.cat([torch.ones(replicas, 3), frequencies, phases], 1)

    def gradient(self, instance: Instance, theta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        amplitudes, frequencies, phases = theta.view(-1, 3, 3, 1).unbind(1)
        arguments = frequencies * self._points + phases
        sines, cosines = torch.sin(arguments), torch.cos(arguments)
        error = (amplitudes * sines).sum(1) - instance[0]
        scaled = (error * (2.0 / len(self._points)))[:, None, :]
        bent = scaled * cosines * amplitudes
        parts = [(scaled * sines).sum(2), (bent * self._points).sum(2), bent.sum(2)]
        return error.square().mean(1), torch.cat(parts, 1)


class RunningParity(Problem):
    """A recurrent network of two tanh units says after each of four bits whether an odd number of them was 1.

    All 16 sequences; logistic loss, averaged. Eleven parameters.
    """

    name = "running-parity"
    title = "Running parity, two units"
    threshold = 0.1
    rates = (0.1, 0.3, 1.0)
    coldest = 3e-4
    adam = 0.003
    length = 4

    def __init__(self) -> None:
        bits = torch.tensor(list(itertools.product((0, 1), repeat=self.length)))
        self._inputs = 2.0 * bits.T[:, None, :, None] - 1.0  # time, any replica, sequence, any unit
        self._signs = 2.0 * (bits.cumsum(1) % 2).T[:, None, :] - 1.0

    def draw(self, replicas: int, generator: torch.Generator) -> Instance:
        return (torch.zeros(replicas, 0),)

    def start(self, replicas: int, generator: torch.Generator) -> Tensor:
        return torch.randn((replicas, 11), generator=generator)

    def gradient(self, instance: Instance, theta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            loss = self._loss(theta)
            (gradient,) = torch.autograd.grad(loss.sum(), theta)
        return loss.detach(), gradient

    def _loss(self, theta: Tensor) -> Tensor:
        recurrent = theta[:, 0:4].reshape(-1, 2, 2)
        into, shift, readout = (theta[:, None, first : first + 2] for first in (4, 6, 8))
        state = theta.new_zeros(len(theta), 2**self.length, 2)
        losses = []
        for bits, signs in zip(self._inputs, self._signs, strict=True):
            state = torch.tanh(torch.bmm(state, recurrent) + into * bits + shift)
            output = (state * readout).sum(2) + theta[:, 10:11]
            losses.append(torch.nn.functional.softplus(-signs * output).mean(1))
        return torch.stack(losses).mean(0)


class SparseParity(Problem):
    """The product of four of ten signs, by sixteen tanh units; minibatches of 32, squared error.

    A plateau, no trap: what is hard is that the gradient says nothing until it is nearly solved. A control.
    """

    name = "sparse-parity"
    title = "Sparse parity (control)"
    threshold = 0.1
    rates = (0.02, 0.05, 0.12)
    coldest = 1e-5
    adam = 0.001
    exact = False
    bits, relevant, units, batch = 10, 4, 16, 32

    def __init__(self) -> None:
        self._all = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=self.bits)))

    def draw(self, replicas: int, generator: torch.Generator) -> Instance:
        # Weights start isotropic: which bits count does not matter.
        return (torch.zeros(replicas, 0),)

    def start(self, replicas: int, generator: torch.Generator) -> Tensor:
        inner = torch.randn((replicas, self.units * self.bits), generator=generator) / math.sqrt(self.bits)
        shift = torch.zeros(replicas, self.units)
        outer = torch.randn((replicas, self.units), generator=generator) / math.sqrt(self.units)
        return torch.cat([inner, shift, outer], 1)

    def gradient(self, instance: Instance, theta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        signs = self._all[torch.randint(len(self._all), (len(theta), self.batch), generator=generator)]
        outer = self._parts(theta)[2]
        hidden, error = self._errors(theta, signs)
        scaled = error * (2.0 / self.batch)
        back = scaled[:, :, None] * outer[:, None, :] * (1.0 - hidden.square())
        inner = torch.bmm(back.transpose(1, 2), signs).reshape(len(theta), -1)
        return error.square().mean(1), torch.cat([inner, back.sum(1), torch.bmm(scaled[:, None, :], hidden)[:, 0]], 1)

    def loss(self, instance: Instance, theta: Tensor) -> Tensor:
        # a few replicas at a time: all of them would not fit into the cache
        parts = [self._errors(rows, self._all.expand(len(rows), -1, -1))[1] for rows in torch.split(theta, 16)]
        return torch.cat(parts).square().mean(1)

    def _parts(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inner, shift, outer = torch.split(theta, [self.units * self.bits, self.units, self.units], 1)
        return inner.reshape(-1, self.units, self.bits), shift, outer

    def _errors(self, theta: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden units and the errors."""
        inner, shift, outer = self._parts(theta)
        hidden = torch.tanh(torch.bmm(signs, inner.transpose(1, 2)) + shift[:, None, :])
        return hidden, torch.bmm(hidden, outer[:, :, None])[:, :, 0] - signs[:, :, : self.relevant].prod(2)
