"""An ensemble that a framework trains is the one that the plain loop trains: members, temperature, weights."""

import lightning.pytorch as pl
import pytest
import torch
from plain import BATCH, STEPS, data, dataset, flat, network
from test_transformers import Model, trainer_of
from torch import nn
from torch.utils.data import DataLoader

import ctld
from ctld.integrations import follow, watch
from ctld.integrations.lightning import WatchLoss

OPTIONS = {"lr": 0.05, "num_data": 96, "total_steps": STEPS, "cycles": 3, "weight_decay": 1e-2, "seed": 3}


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def plain(accumulation=1):
    model = network()
    ensemble = ctld.Ensemble(model, **OPTIONS)
    batches = zip(*(part.split(BATCH) for part in data(STEPS * accumulation)), strict=True)
    while not ensemble.done:
        total = 0.0
        for _ in range(accumulation):
            loss = loss_of(model, next(batches)) / accumulation
            loss.backward()
            total += loss.item()
        ensemble.step(total)
    return model, ensemble


def ensemble_around(model):
    return ctld.Ensemble.around(torch.optim.AdamW(model.parameters(), 0.01), model, STEPS, cycles=3)


def compare_around(model, ensemble, accumulation):
    """With the loop of one's own, to rounding: frameworks divide the loss elsewhere."""
    expected_model = network()
    expected = ensemble_around(expected_model)
    batches = zip(*(part.split(BATCH) for part in data(STEPS * accumulation)), strict=True)
    while not expected.done:
        for _ in range(accumulation):
            (expected.watch(loss_of(expected_model, next(batches))) / accumulation).backward()
        expected.step()
    torch.testing.assert_close(flat(model), flat(expected_model), rtol=1e-4, atol=1e-5)
    assert [r.step for r in ensemble.records] == [r.step for r in expected.records] == [8, 16, 24]
    assert [r.loss for r in ensemble.records] == pytest.approx([r.loss for r in expected.records], rel=1e-4)
    assert ensemble.predict(data()[0]).probabilities.shape == (STEPS * BATCH, 3)


def compare(model, ensemble, accumulation=1, *, exact=True):
    """Weights and members to the bit, or, where losses and gradients are summed in another order, to rounding."""
    expected_model, expected = plain(accumulation)
    bounds = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(flat(model), flat(expected_model), **bounds)
    assert len(ensemble) == len(expected) == 3
    for mine, theirs in zip(ensemble.collector, expected.collector, strict=True):
        for name, value in theirs.state.items():
            torch.testing.assert_close(mine.state[name.removeprefix("network.")], value, **bounds)
        assert mine.record.loss == pytest.approx(theirs.record.loss, rel=1e-6)
    assert ensemble.temperature == pytest.approx(expected.temperature, rel=1e-5)
    assert ensemble.optimizer.param_groups[0]["lr"] == expected.optimizer.param_groups[0]["lr"]


class Module(pl.LightningModule):
    def __init__(self, around=False):
        super().__init__()
        self.network = network()
        self.ensemble = ensemble_around(self.network) if around else ctld.Ensemble(self.network, **OPTIONS)

    def training_step(self, batch, index):
        return loss_of(self.network, batch)

    def configure_optimizers(self):
        return self.ensemble.optimizer


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_lightning(tmp_path, accumulation, around):
    module = Module(around)
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        max_epochs=1,
        accumulate_grad_batches=accumulation,
        callbacks=[WatchLoss(ensemble=module.ensemble) if accumulation == 1 else WatchLoss()],  # it is found, too
    )
    trainer.fit(module, DataLoader(dataset(STEPS * accumulation), BATCH))
    if around:
        compare_around(module.network, module.ensemble, accumulation)
        return
    compare(module.network, module.ensemble, accumulation, exact=accumulation == 1)


def test_lightning_with_another_optimizer_is_refused(tmp_path):
    module = Module()
    other = ctld.Ensemble(network(), **OPTIONS)
    options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = pl.Trainer(accelerator="cpu", callbacks=[WatchLoss(ensemble=other)], default_root_dir=tmp_path, **options)
    with pytest.raises(ValueError, match=r"return ensemble.optimizer"):
        trainer.fit(module, DataLoader(dataset(), BATCH))


@pytest.mark.parametrize("accumulation", [1, 4])
def test_transformers_around_adamw(tmp_path, accumulation):
    model = Model()
    ensemble = ensemble_around(model.network)
    trainer_of(tmp_path, model, None, accumulation=accumulation, ensemble=ensemble).train()
    compare_around(model.network, ensemble, accumulation)


@pytest.mark.parametrize("around", [False, True])
def test_accelerate(around):
    accelerate = pytest.importorskip("accelerate")
    accelerator, model = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4), network()
    ensemble = ensemble_around(model) if around else ctld.Ensemble(model, **OPTIONS)
    prepared, optimizer, loader = accelerator.prepare(model, ensemble.optimizer, DataLoader(dataset(STEPS * 4), BATCH))
    for batch in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(watch(optimizer, loss_of(prepared, batch)))
            optimizer.step()
            optimizer.zero_grad()
    compare_around(model, ensemble, 4) if around else compare(model, ensemble, 4, exact=False)


def test_a_lightning_module_that_nobody_watches_trains_its_ensemble_all_the_same(tmp_path):
    """Members, and lr by the cycle; of the losses Lightning's closure tells."""
    module = Module()
    options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = pl.Trainer(
        accelerator="cpu", default_root_dir=tmp_path, max_epochs=1, enable_model_summary=False, **options
    )
    trainer.fit(module, DataLoader(dataset(STEPS), BATCH))
    compare(module.network, module.ensemble)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_transformers(tmp_path, accumulation):
    model = Model()
    ensemble = ctld.Ensemble(model.network, **OPTIONS)
    trainer_of(tmp_path, model, None, accumulation=accumulation, ensemble=ensemble).train()
    compare(model.network, ensemble, accumulation, exact=accumulation == 1)


def test_any_loop_and_what_comes_after_its_end():
    """A loop that divides the loss itself, and goes on for longer."""
    model = network()
    ensemble = ctld.Ensemble(model, **OPTIONS)
    batches = list(zip(*(part.split(BATCH) for part in data()), strict=True))

    def step(batch):
        ensemble.optimizer.zero_grad()
        loss = follow(ensemble, loss_of(model, batch))
        (loss * 1.0).backward()
        ensemble.optimizer.step()

    for batch in batches:
        step(batch)
    compare(model, ensemble)
    members = [sample.record for sample in ensemble.collector]
    with pytest.warns(UserWarning, match=r"after the ensemble's 24 steps"):
        step(batches[0])
    assert [sample.record for sample in ensemble.collector] == members
