"""Potentials with known answers, and the small networks that the tests train."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class Gaussian:
    """Mean loss k‖θ‖²/2: at temperature T the posterior is N(0, T/(N k))."""

    def __init__(self, curvature: float) -> None:
        self.curvature = curvature

    def loss(self, theta: Tensor) -> Tensor:
        return 0.5 * self.curvature * theta.square().sum()


class DoubleWell:
    """U = 8(x² − 1)² + ½Σy², x the first coordinate; at T = 1, N = 1."""

    def potential(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        gradient = theta.copy()
        x = theta[0]
        gradient[0] = 32.0 * x * (x * x - 1.0)
        rest = theta[1:]
        return 8.0 * (x * x - 1.0) ** 2 + 0.5 * float(rest @ rest), gradient

    def mean_square(self) -> float:
        """⟨x²⟩ by quadrature."""
        x = np.linspace(-3.0, 3.0, 200_001)
        density = np.exp(-8.0 * (x * x - 1.0) ** 2)
        return float((x * x * density).sum() / density.sum())


class Classification:
    """A small two-layer network on made-up data; the loss is the mean over all of it."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64, num_data: int = 96) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(num_data, 12, generator=generator, dtype=torch.float64).to(dtype)
        self.labels = torch.randint(3, (num_data,), generator=generator)
        self.num_data = num_data
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3)).to(dtype)

    def backward(self, step: int | None = None) -> Tensor:
        self.model.zero_grad()
        loss = functional.cross_entropy(self.model(self._chosen(self.inputs, step)), self._chosen(self.labels, step))
        loss.backward()
        return loss.detach()

    def _chosen(self, data: Tensor, step: int | None) -> Tensor:
        return data if step is None else data[torch.arange(16 * step, 16 * step + 16) % self.num_data]

    def flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


def train(problem: Classification, optimizer: torch.optim.Optimizer, steps: range, scheduler: object = None) -> None:
    """The loop of every test that trains; steps are named, so that a resumed run sees the same batches."""
    for step in steps:
        loss = problem.backward(step)
        if isinstance(optimizer, torch.optim.SGD):
            optimizer.step()
        else:
            optimizer.step(loss=loss)
        if scheduler is not None:
            scheduler.step()
