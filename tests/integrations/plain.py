"""One small problem, and the plain loop on it: what every framework has to repeat."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ctld

BATCH, STEPS, EXPLORATION = 8, 24, 16
OPTIONS = {"lr": 0.05, "weight_decay": 1e-3, "num_data": 96, "temperature": 0.1, "seed": 3}


def data(batches=STEPS):
    """Inputs and labels of so many batches, in the order in which they are used."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batches * BATCH, 4, generator=generator), torch.randint(
        3, (batches * BATCH,), generator=generator
    )


def dataset(batches=STEPS):
    return TensorDataset(*data(batches))


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def build(model, method="ctld", **options):
    if method == "ctld":
        options = {"exploration_steps": EXPLORATION} | options
    given = OPTIONS | options
    if not ctld.OPTIMIZERS[method].samples:
        given.pop("temperature")
    return ctld.create(method, model.parameters(), **given)


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def plain_loop(*, accumulation=1, steps=STEPS, clip=None, **options):
    """Parameters, optimizer and the potential of each exploring step."""
    model = network()
    optimizer = build(model, **options)
    potentials = []
    batches = zip(*(part.split(BATCH) for part in data(steps * accumulation)), strict=True)
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(accumulation):
            inputs, labels = next(batches)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            (loss / accumulation).backward()
            total += loss.item() / accumulation
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step(loss=total)
        potentials.append(optimizer.last.potential)
    return flat(model), optimizer, potentials
