"""CTLD under Fabric: one more line, which watches the loss.

python examples/integrations/fabric_digits.py
"""

from digits import BATCH, EPOCHS, network, report, train_set
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

import ctld

if __name__ == "__main__":
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    data, model = train_set(), network()
    optimizer = ctld.CTLD(model.parameters(), lr=0.1, weight_decay=1e-3, num_data=len(data), exploration_steps=100)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data, BATCH // 2, shuffle=True, drop_last=True))
    for _ in range(EPOCHS):
        for index, (inputs, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.watch(loss)
            fabric.backward(loss / 2)
            if index % 2:
                optimizer.step()
                optimizer.zero_grad()
    report(model.module)
