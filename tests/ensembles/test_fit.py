"""fit_ensemble: a loop for those without one, its progress, and loaders of every form."""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ctld import fit_ensemble


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 6, generator=generator)
    return inputs, (inputs @ torch.randn(6, 3, generator=generator)).argmax(-1)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def test_pairs_and_a_line_for_each_cycle(data, capsys):
    loader = DataLoader(TensorDataset(*data), 32, shuffle=True, generator=torch.Generator().manual_seed(1))
    model = network().eval()
    ensemble = fit_ensemble(model, loader, functional.cross_entropy, epochs=12, cycles=4, seed=1)
    assert ensemble.done
    assert (len(ensemble), ensemble.total_steps, ensemble.optimizer.num_data) == (4, 84, 200)
    assert model.training
    assert ensemble.predict(data[0]).metrics(data[1])["error"] < 0.1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("step 21 of 84: cycle 2/4, 1 member, loss ")
    assert lines[3].startswith("step 84 of 84: cycle 4/4, 4 members, loss ")


def test_dicts_and_a_loss_of_ones_own(data, capsys):
    batches = [{"x": x, "y": y} for x, y in zip(data[0].split(50), data[1].split(50), strict=True)]

    def loss(model, batch):
        return functional.cross_entropy(model(batch["x"]), batch["y"])

    with pytest.raises(ValueError, match=r"does not say how many examples it has; give num_data="):
        fit_ensemble(network(), batches, loss, epochs=2)
    ensemble = fit_ensemble(network(), batches, loss, epochs=15, cycles=2, num_data=200, progress=False)
    assert len(ensemble) == 2
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="has no length, or is empty; write a loop of your own"):
        fit_ensemble(network(), iter(batches), loss, epochs=2, num_data=200)


@pytest.mark.parametrize("installed", [True, False])
def test_a_bar_in_a_terminal(data, capsys, monkeypatch, installed):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if not installed:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    loader = DataLoader(TensorDataset(*data), 50)
    fit_ensemble(network(), loader, functional.cross_entropy, epochs=10, cycles=2)
    written = capsys.readouterr().err
    assert ("40/40" in written) == installed
    assert "cycle 2/2, 2 members, loss" in written
