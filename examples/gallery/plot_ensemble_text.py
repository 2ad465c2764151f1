"""
An ensemble on text
===================

A small network guesses the next character of the English of Python's manual from the twelve before it.
Members of cycles are averaged. There is no noise but that of the minibatches: with 54,000 characters and this
learning rate it is far larger than any that one would add, which `optimizer.last` and a warning would say.
"""

import pydoc_data.topics

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ctld import CTLD, CycleLR, SampleCollector, predict

text = "".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics)[:30])[:60_000].lower()
letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
codes = torch.tensor([letters[letter] for letter in text])
windows = codes.unfold(0, 13, 1)
inputs, labels = windows[:, :12], windows[:, 12]
cut = int(0.9 * len(windows))
held_inputs, held_labels = inputs[cut:], labels[cut:]

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(len(letters), 12), nn.Flatten(), nn.Linear(144, 96), nn.Tanh(), nn.Linear(96, len(letters))
)
optimizer = CTLD(
    model.parameters(),
    lr=0.5,
    momentum=0.9,
    weight_decay=1e-5,
    num_data=cut,
    exploration_steps=300,
    cycle_steps=600,
    temperature=0,
)
scheduler = CycleLR(optimizer)
members = SampleCollector(model, optimizer)
curve = []
for step in range(4 * 600):
    batch = torch.randint(cut, (128,))
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs[batch]), labels[batch])
    loss.backward()
    optimizer.step(loss=loss)
    scheduler.step()
    members.update()
    if step % 50 == 49:
        with torch.no_grad():
            curve.append((step + 1, cross_entropy(model(held_inputs), held_labels).item()))

# %%
# The first cycle starts from nothing; averages leave it out here.

samples = list(members)[1:]
alone = [predict(model, [sample], held_inputs).metrics(held_labels)["nll"] for sample in samples]
together = predict(model, samples, held_inputs).metrics(held_labels)["nll"]
print(f"nats per character: members {', '.join(f'{value:.3f}' for value in alone)}; together {together:.3f}")

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(*zip(*curve, strict=True), color="tab:blue", label="the model on its way")
axis.plot([1200, 1800, 2400], alone, "o", color="tab:green", label="members")
axis.axhline(together, color="tab:green", ls="--", label="averaged")
axis.set(xlabel="step", ylabel="nats per character, held out", ylim=(None, 2.8))
axis.legend()
plt.show()
