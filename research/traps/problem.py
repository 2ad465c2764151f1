"""The interface of a problem: many replicas are one tensor computation, a row for each."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

Instance = tuple[Tensor, ...]
"""Teachers or data, by which replicas differ; the first dimension of each tensor counts replicas."""


class Problem(ABC):
    """A loss with its global minimum at zero.

    Attributes
    ----------
    name : str
    threshold : float
        A replica is solved when its exact loss is below this.
    rates : three floats
        The learning rates that every method which moves like SGD is tried with.
    coldest : float
        The lowest of the thirteen temperatures, in units of the loss.
    adam : float
        The lowest of Adam's thirteen learning rates.
    exact : bool
        Whether the loss of `gradient` is the exact one, not a minibatch's.
    """

    name: str
    title: str
    threshold: float
    rates: tuple[float, float, float]
    coldest: float
    adam: float
    exact = True

    @abstractmethod
    def draw(self, replicas: int, generator: torch.Generator) -> Instance:
        """Return as many instances."""

    @abstractmethod
    def start(self, replicas: int, generator: torch.Generator) -> Tensor:
        """Return initial parameters, of shape (replicas, dimensions)."""

    @abstractmethod
    def gradient(self, instance: Instance, theta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the loss of each replica, a minibatch's if not `exact`, and its gradient."""

    def loss(self, instance: Instance, theta: Tensor) -> Tensor:
        """Return the exact loss of each replica."""
        return self.gradient(instance, theta, torch.Generator())[0]


def chosen(instance: Instance, rows: Tensor) -> Instance:
    """Return the instances of these rows."""
    return tuple(tensor[rows] for tensor in instance)
