"""CTLD under Keras 3 on torch: one line of `compile`.

KERAS_BACKEND=torch python examples/integrations/keras_digits.py
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from digits import BATCH, EPOCHS, split

from ctld.integrations.keras import Optimizer

if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    train, test, train_labels, test_labels = (part.numpy() for part in split())
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.compile(
        optimizer=Optimizer("ctld", 0.1, weight_decay=1e-3, num_data=len(train), exploration_steps=100),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(train, train_labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    print(f"accuracy {model.evaluate(test, test_labels, verbose=0)[1]:.3f}")
