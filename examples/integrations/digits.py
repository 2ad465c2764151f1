"""Handwritten digits of scikit-learn's, 8 by 8 pixels: what every example here trains on."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import TensorDataset

BATCH, EPOCHS = 32, 20


def split() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs to train and to test on, and their labels."""
    inputs, labels = load_digits(return_X_y=True)
    parts = train_test_split(inputs.astype("float32") / 16.0, labels, test_size=0.3, random_state=0)
    return tuple(map(torch.tensor, parts))  # type: ignore[return-value]


def train_set() -> TensorDataset:
    inputs, _, labels, _ = split()
    return TensorDataset(inputs, labels)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def report(model: nn.Module) -> None:
    """Print the accuracy on digits that were not trained on."""
    _, inputs, _, labels = split()
    with torch.no_grad():
        print(f"accuracy {(model(inputs).argmax(1) == labels).float().mean():.3f}")
