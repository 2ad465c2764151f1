"""Small problems whose posterior is known, and what the tests of `ctld.sample` share."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression:
    """Linear regression with unit noise and a Gaussian prior: the posterior is Gaussian."""

    def __init__(self, num_data=40, dimension=3, weight_decay=0.05):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(num_data, dimension, generator=generator, dtype=torch.float64)
        self.inputs[:, 0] *= 2.0
        truth = torch.arange(1.0, dimension + 1.0, dtype=torch.float64)
        self.targets = self.inputs @ truth + torch.randn(num_data, generator=generator, dtype=torch.float64)
        self.weight_decay, self.num_data = weight_decay, num_data
        precision = self.inputs.T @ self.inputs + num_data * weight_decay * torch.eye(dimension, dtype=torch.float64)
        self.covariance = torch.linalg.inv(precision)
        self.mean = self.covariance @ self.inputs.T @ self.targets
        self.top = float(torch.linalg.eigvalsh(precision)[-1]) / num_data

    def model(self, seed=0):
        torch.manual_seed(seed)
        return nn.Linear(len(self.mean), 1, bias=False).double()

    def loader(self, batch_size=None, **options):
        data = TensorDataset(self.inputs, self.targets[:, None])
        if batch_size is None:
            return DataLoader(data, batch_size=self.num_data)
        return DataLoader(data, batch_size=batch_size, shuffle=True, **options)


def half_square(outputs, targets):
    return 0.5 * (outputs - targets).square().mean()


class Recurrent(nn.Module):
    """An LSTM, which torch.func.vmap cannot run."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(2, 3, batch_first=True)
        self.out = nn.Linear(3, 1)

    def forward(self, inputs):
        return self.out(self.cell(inputs)[0][:, -1])


def dropout_network():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 1)).double()


def same(left, right):
    """True if two Draws hold the same bits."""
    return left.counts == right.counts and all(
        here.keys() == there.keys() and all((here[name] == there[name]).all() for name in here)
        for here, there in ((left.groups[group], right.groups[group]) for group in left.groups)
    )
