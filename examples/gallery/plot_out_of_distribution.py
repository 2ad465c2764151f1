"""
Inputs of another kind
======================

An ensemble that has seen the digits 0 to 7 only is shown an 8 or a 9. Its uncertainty tells those from the
digits that it knows. On digits so simple the three kinds of uncertainty do it about equally well.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn.functional import cross_entropy

import ctld

inputs, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
inputs = inputs.float() / 16
known = labels < 8
torch.manual_seed(0)
order = torch.randperm(int(known.sum()))
known_inputs, known_labels = inputs[known][order], labels[known][order]
train_inputs, train_labels, test_inputs = known_inputs[:700], known_labels[:700], known_inputs[700:]
foreign = inputs[~known]

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))
ensemble = ctld.Ensemble(model, lr=0.1, num_data=700, total_steps=2400, weight_decay=5e-3, seed=0)
while not ensemble.done:
    batch = torch.randint(700, (64,))
    loss = cross_entropy(model(train_inputs[batch]), train_labels[batch])
    loss.backward()
    ensemble.step(loss)

# %%
# The area under the ROC curve: how often a foreign digit has the higher uncertainty of two.

inside, outside = ensemble.predict(test_inputs), ensemble.predict(foreign)
truth = np.r_[np.zeros(len(test_inputs)), np.ones(len(foreign))]
for name in ("total", "aleatoric", "epistemic"):
    values = torch.cat([getattr(inside, name), getattr(outside, name)]).numpy()
    print(f"{name}: AUROC {roc_auc_score(truth, values):.3f}")

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
bins = np.linspace(0, float(outside.epistemic.max()), 40)
axis.hist(inside.epistemic, bins, density=True, alpha=0.6, color="tab:blue", label="digits it knows")
axis.hist(outside.epistemic, bins, density=True, alpha=0.6, color="tab:orange", label="8 and 9")
axis.set(xlabel="what members disagree about, in nats", ylabel="density", yscale="log")
axis.legend()
plt.show()
