"""CTLD under skorch: nothing but the optimizer's name and options.

python examples/integrations/skorch_digits.py
"""

from digits import BATCH, EPOCHS, network, report, split
from skorch import NeuralNetClassifier
from torch import nn

import ctld

if __name__ == "__main__":
    train, _, labels, _ = (part.numpy() for part in split())
    net = NeuralNetClassifier(
        network(),
        criterion=nn.CrossEntropyLoss,
        optimizer=ctld.CTLD,
        optimizer__weight_decay=1e-3,
        optimizer__num_data=len(train),
        optimizer__exploration_steps=100,
        lr=0.1,
        batch_size=BATCH,
        max_epochs=EPOCHS,
        train_split=None,
        verbose=0,
    )
    net.fit(train, labels)
    report(net.module_)
