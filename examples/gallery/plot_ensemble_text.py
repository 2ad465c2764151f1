"""
An ensemble on text
===================

A small network guesses the next character of the English of Python's manual from the twelve before it. Members
of cycles are averaged. There is no noise but that of the minibatches: with so many characters it is larger than
any that one would add (`temperature=0`).
"""

import pydoc_data.topics

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import ctld

text = "".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics)[:30])[:60_000].lower()
letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
codes = torch.tensor([letters[letter] for letter in text])
windows = codes.unfold(0, 13, 1)
inputs, labels = windows[:, :12], windows[:, 12]
cut = int(0.9 * len(windows))
held_inputs, held_labels = inputs[cut:], labels[cut:]


def train(cycles):
    """Train in cycles; return the ensemble, and the held-out loss on the way."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(len(letters), 12), nn.Flatten(), nn.Linear(144, 96), nn.Tanh(), nn.Linear(96, len(letters))
    )
    options = {"exploration": 0.5, "weight_decay": 1e-4, "temperature": 0}
    ensemble = ctld.Ensemble(model, lr=0.2, num_data=cut, total_steps=2400, cycles=cycles, **options)
    curve = []
    while not ensemble.done:
        batch = torch.randint(cut, (128,))
        loss = cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        ensemble.step(loss)
        if ensemble.steps % 50 == 0:
            with torch.no_grad():
                curve.append((ensemble.steps, cross_entropy(model(held_inputs), held_labels).item()))
    return ensemble, curve


def nll(samples):
    return ctld.predict(ensemble.model, samples, held_inputs).metrics(held_labels)["nll"]


# %%
# One long cycle is SGD with momentum. Of four cycles the first starts from nothing, and its member is weaker:
# averages leave it out here.

(_, long), (ensemble, curve) = train(1), train(4)
members = list(ensemble.collector)[1:]
alone, together = [nll([member]) for member in members], nll(members)
print(f"nats per character: SGD {long[-1][1]:.3f}; members {', '.join(f'{value:.3f}' for value in alone)}")
print(f"together {together:.3f}")

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(*zip(*long, strict=True), color="grey", ls="--", label="SGD, one long run")
axis.plot(*zip(*curve, strict=True), color="tab:blue", label="cycles, on the way")
axis.plot([member.record.step for member in members], alone, "o", color="tab:green", label="members")
axis.axhline(together, color="tab:green", ls="--", label="averaged")
axis.set(xlabel="step", ylabel="nats per character, held out", ylim=(None, 3.0))
axis.legend(fontsize=8)
plt.show()
