"""
A posterior in five lines
=========================

Draws for a logistic regression, a small network and an LSTM, and what they say of themselves.
"""

import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ctld

torch.manual_seed(0)
loss_fn = nn.functional.binary_cross_entropy_with_logits

# %%
# A logistic regression: the chains agree, and their temperature is right.

x = torch.randn(200, 3)
y = (torch.rand(200, 1) < torch.sigmoid(x @ torch.tensor([[2.0], [-1.0], [0.0]]))).float()
loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
draws = ctld.sample(nn.Linear(3, 1), loss_fn, loader, weight_decay=1 / 200, num_steps=3000, seed=0)
print(draws)
print("weights", draws.parameters["weight"].mean((0, 1)).round(2), "±", draws.parameters["weight"].std((0, 1)).round(2))
draws.plot("weight", elements=2)

# %%
# A network: its hidden units can change places, so predictions are kept and not weights.

network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
draws = ctld.sample(
    network, loss_fn, loader, weight_decay=1 / 200, num_steps=8000, predict=x[:5], keep_parameters=False, seed=0
)
print(draws)
print("logits", draws.predictions.mean((0, 1)).ravel().round(2), "±", draws.predictions.std((0, 1)).ravel().round(2))

# %%
# An LSTM, which runs in a loop. So short a run is not enough, and it says so.


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, words):
        return self.head(self.cell(words)[0][:, -1])


words = torch.randn(100, 5, 2)
signs = (words.sum((1, 2)) > 0).float()[:, None]
loader = DataLoader(TensorDataset(words, signs), batch_size=50, shuffle=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the same sentences as below
    draws = ctld.sample(Reader(), loss_fn, loader, weight_decay=1 / 100, num_steps=200, predict=words[:5], seed=0)
print(draws.advice())
