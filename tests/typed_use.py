"""What a user's type checker has to accept; mypy reads this file, nobody runs it."""

import torch
from torch import Tensor, nn

import ctld
from ctld.integrations import unwrap, watch


def trains(model: nn.Module, loss: Tensor) -> None:
    optimizer = ctld.create("adam", model.parameters(), lr=1e-3, num_data=60_000)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    optimizer.watch(loss)
    optimizer.observe(loss)
    optimizer.step(loss=loss)
    optimizer.step(loss)
    optimizer.step(lambda: loss)
    optimizer.zero_grad()
    scheduler.step()


def explores(model: nn.Module, loss: Tensor) -> float:
    optimizer = ctld.CTLD(model.parameters(), lr=0.1, num_data=60_000, exploration_steps=100)
    watch(optimizer, loss)
    optimizer.step(loss=loss.item())
    unwrap(optimizer).zero_grad()
    return optimizer.temperature_ratio
