"""Keras on torch takes the plain loop's path, also accumulating and after a model was saved and loaded."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import pytest
import torch
from plain import BATCH, EXPLORATION, OPTIONS, STEPS, data, network
from torch import nn

import ctld
from ctld.integrations.advice import SettingsWarning
from ctld.integrations.keras import Optimizer

METHOD = {name: value for name, value in OPTIONS.items() if name != "lr"} | {"exploration_steps": EXPLORATION}


@pytest.fixture(autouse=True)
def _on_the_cpu():
    keras.utils.set_random_seed(0)


def same_model():
    """The plain loop's network, and one of Keras's with the same weights."""
    plain = network()
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)]
    )
    weights = [plain[0].weight.T, plain[0].bias, plain[2].weight.T, plain[2].bias]
    model.set_weights([weight.detach().numpy() for weight in weights])
    return plain, model


def compile_and_fit(model, optimizer, batches=STEPS, first=0, epochs=1):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if not model.compiled:
        model.compile(optimizer=optimizer, loss=loss)
    inputs, labels = (part.numpy()[first * BATCH :] for part in data(batches))
    model.fit(inputs, labels, batch_size=BATCH, shuffle=False, verbose=0, epochs=epochs)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def plain_path(accumulation=1):
    """The plain loop on Keras's own weights: their order is another, and so is the noise of each element."""
    _, model = same_model()
    weights = [variable.value for variable in model.trainable_variables]
    optimizer = ctld.create("ctld", weights, lr=0.05, **METHOD)
    batches = zip(*(part.split(BATCH) for part in data(STEPS * accumulation)), strict=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(accumulation):
            inputs, labels = next(batches)
            loss = nn.functional.cross_entropy(model(inputs), labels) / accumulation
            loss.backward()
            total += loss.item()
        optimizer.step(loss=total)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


@pytest.mark.parametrize("accumulation", [None, 4])
def test_same_path(accumulation):
    _, model = same_model()
    optimizer = Optimizer("ctld", 0.05, gradient_accumulation_steps=accumulation, **METHOD)
    found = compile_and_fit(model, optimizer, STEPS * (accumulation or 1))
    # Keras's loss of logits is another formula than torch's, in float32.
    np.testing.assert_allclose(found, plain_path(accumulation or 1), rtol=2e-4, atol=2e-5)
    assert optimizer.inner.exploring is False


def test_a_saved_model_goes_on_bit_by_bit(tmp_path):
    _, model = same_model()
    compile_and_fit(model, Optimizer("ctld", 0.05, **METHOD), 10)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again.optimizer, Optimizer)
    ends = [compile_and_fit(which, None, STEPS, first=10) for which in (model, again)]
    assert np.array_equal(*ends)
    assert again.optimizer.inner.state_dict()["param_groups"][0]["ctld_step"] == STEPS


@pytest.mark.parametrize("name", ["sgld", "adam", "santa"])
def test_other_methods(name):
    _, model = same_model()
    options = {"num_data": 96} | ({"exploration_steps": 4} if name == "santa" else {})
    before = np.concatenate([weight.ravel() for weight in model.get_weights()])
    found = compile_and_fit(model, Optimizer(name, 1e-3, **options))
    assert np.isfinite(found).all()
    assert (found != before).mean() > 0.9


def test_a_schedule_of_keras():
    _, model = same_model()
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, decay_steps=1, decay_rate=0.5)
    optimizer = Optimizer("ctld", schedule, **METHOD)
    compile_and_fit(model, optimizer, 4)
    assert optimizer.inner.param_groups[0]["lr"] == pytest.approx(0.05 * 0.5**3)


def test_clipping_is_said():
    _, model = same_model()
    with pytest.warns(SettingsWarning, match="global_clipnorm = 1 clips"):
        compile_and_fit(model, Optimizer("ctld", 0.05, global_clipnorm=1.0, **METHOD), 2)


def test_gradients_are_left_as_they_were():
    _, model = same_model()
    optimizer = Optimizer("ctld", 0.05, **METHOD)
    compile_and_fit(model, optimizer, 2)
    variables = model.trainable_variables
    kept = [torch.full_like(variable.value, 7.0) for variable in variables]
    for variable, gradient in zip(variables, kept, strict=True):
        variable.value.grad = gradient
    optimizer.scale_loss(torch.tensor(1.0))
    optimizer._backend_update_step([torch.zeros_like(gradient) for gradient in kept], variables, 0.05)
    assert all(variable.value.grad is gradient for variable, gradient in zip(variables, kept, strict=True))
    assert all((gradient == 7.0).all() for gradient in kept)
