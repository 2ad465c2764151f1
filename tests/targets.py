"""The small network that the tests train, the loop that trains it, and states saved and compared."""

import io

import torch
from torch import Tensor, nn
from torch.nn import functional


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


def saved(state):
    """Through a file and back, as a checkpoint goes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def equal(left, right):
    """Whether two state dicts are the same to the bit, NaN being equal to itself."""
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right or (left != left and right != right)
