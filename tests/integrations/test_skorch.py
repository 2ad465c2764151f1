"""skorch needs no integration: it passes the optimizer a closure that returns the loss."""

import torch
from plain import BATCH, OPTIONS, STEPS, data, flat, network, plain_loop
from skorch import NeuralNetClassifier
from torch import nn

from ctld import CTLD


def test_same_path():
    net = NeuralNetClassifier(
        network(),
        criterion=nn.CrossEntropyLoss,
        optimizer=CTLD,
        optimizer__exploration_steps=16,
        **{("lr" if name == "lr" else f"optimizer__{name}"): value for name, value in OPTIONS.items()},
        batch_size=BATCH,
        max_epochs=1,
        train_split=None,
        iterator_train__shuffle=False,
        verbose=0,
    )
    net.fit(*(part.numpy() for part in data(STEPS)))
    torch.testing.assert_close(flat(net.module_), plain_loop()[0], rtol=1e-6, atol=1e-7)
