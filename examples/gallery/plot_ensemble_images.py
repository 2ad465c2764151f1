"""
An ensemble on images
=====================

Four cycles of exploration and fine-tuning in one run, their members averaged, beside SGD with the same number
of gradients. `ctld.Ensemble` is all that is new in the loop. The weight decay is one at which members forget each
other's noise within a cycle. One seed on small pictures: a demonstration, not a comparison. In a study over nine
problems the same defaults gained in three over cycles without noise, tied in two, and were not shown to do harm in
any; three are undecided.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import ctld

inputs, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
inputs, labels = inputs[order].float() / 16, labels[order]
test_inputs, test_labels = inputs[300:], labels[300:]


def train(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    ensemble = ctld.Ensemble(model, lr=0.1, num_data=300, total_steps=2400, weight_decay=3e-3, seed=0, **options)
    while not ensemble.done:
        batch = torch.randint(300, (64,))
        loss = cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        ensemble.step(loss)
    return ensemble


# %%
# One cycle without noise is SGD with momentum, with a learning rate that is held and then lowered to zero:

single = train(cycles=1, temperature=0).predict(test_inputs).metrics(test_labels)

# %%
# Four cycles. The temperature is chosen by itself, and adapted to what the network bears:

ensemble = train(cycles=4)
together = ensemble.predict(test_inputs).metrics(test_labels)
print(ensemble)
for name, found in (("SGD", single), ("ensemble", together)):
    print(f"{name}: nll {found['nll']:.3f}, error {found['error']:.1%}, calibration error {found['ece']:.3f}")

# %%
# What the first k members say together, and each of them alone:

members = list(ensemble.collector)
counts = range(1, len(members) + 1)


def nll(samples):
    return ctld.predict(ensemble.model, samples, test_inputs).metrics(test_labels)["nll"]


figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.axhline(single["nll"], color="grey", ls="--", label="SGD, one model")
axis.plot(counts, [nll([member]) for member in members], "o", color="tab:orange", label="each member alone")
axis.plot(counts, [nll(members[:count]) for count in counts], "o-", color="tab:blue", label="averaged so far")
axis.set(xlabel="members", ylabel="test nll", xticks=counts)
axis.legend()
plt.show()

# %%
# The pictures on which they disagree most, and what they say:

prediction = ensemble.predict(test_inputs)
hardest = prediction.epistemic.argsort(descending=True)[:8]
figure, axes = plt.subplots(1, 8, figsize=(6, 1.3), layout="constrained")
for axis, place in zip(axes, hardest.tolist(), strict=True):
    axis.imshow(test_inputs[place].reshape(8, 8), cmap="gray_r")
    probability, digit = prediction.probabilities[place].max(0)
    axis.set(xticks=[], yticks=[])
    axis.set_title(f"{digit}: {probability:.0%}", fontsize=8)
plt.show()
