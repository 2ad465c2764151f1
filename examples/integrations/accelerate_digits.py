"""CTLD under Accelerate: one more line, which watches the loss.

python examples/integrations/accelerate_digits.py        # or: accelerate launch ...
"""

from accelerate import Accelerator
from digits import BATCH, EPOCHS, network, report, train_set
from torch import nn
from torch.utils.data import DataLoader

import ctld
from ctld.integrations import watch

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data, model = train_set(), network()
    optimizer = ctld.CTLD(model.parameters(), lr=0.1, weight_decay=1e-3, num_data=len(data), exploration_steps=100)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, BATCH // 2, shuffle=True))
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                watch(optimizer, loss)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    report(accelerator.unwrap_model(model))
