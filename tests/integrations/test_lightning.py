"""Lightning takes the plain loop's path: automatic, manual, accumulating, in half precision, on ranks, after a restart."""

import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from plain import BATCH, EXPLORATION, STEPS, build, data, dataset, flat, network, plain_loop
from torch import nn
from torch.utils.data import DataLoader

from ctld.integrations.advice import SettingsWarning
from ctld.integrations.lightning import WatchLoss


class Module(pl.LightningModule):
    def __init__(self, manual=False, **options):
        super().__init__()
        self.network, self.options, self.potentials = network(), options, []
        self.automatic_optimization = not manual
        self.wrapper_said = []
        self.steps_seen = 0

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        if not self.automatic_optimization:
            wrapper = self.optimizers()
            wrapper.zero_grad()
            self.manual_backward(loss)
            wrapper.step()
            self.wrapper_said.append((wrapper.exploring, wrapper.state_dict()["param_groups"][0]["ctld_step"]))
        return loss

    def on_train_batch_end(self, *_):
        last = getattr(self.trainer.optimizers[0], "last", None)
        if last is not None and self.trainer.global_step > self.steps_seen:
            self.steps_seen = self.trainer.global_step
            self.potentials.append(last.potential)

    def configure_optimizers(self):
        return build(self.network, **self.options)


def fit(module, tmp_path, *, batches=STEPS, callbacks=None, checkpoint=None, **options):
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[WatchLoss()] if callbacks is None else callbacks,
        default_root_dir=tmp_path,
        **({"enable_checkpointing": False, "max_epochs": 1} | options),
    )
    trainer.fit(module, DataLoader(dataset(batches), BATCH), ckpt_path=checkpoint)
    return trainer


def test_automatic(tmp_path):
    module = Module()
    fit(module, tmp_path)
    assert torch.equal(flat(module.network), plain_loop()[0])


@pytest.mark.parametrize("method", ["sgld", "adam"])
def test_other_methods(tmp_path, method):
    module = Module(method=method)
    fit(module, tmp_path)
    model = network()
    optimizer = build(model, method)
    for inputs, labels in zip(*(part.split(BATCH) for part in data()), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    assert torch.equal(flat(module.network), flat(model))


def test_accumulation(tmp_path):
    """The potential is that of the whole batch; without the callback it is a quarter of it, and the path another."""
    expected, _, potentials = plain_loop(accumulation=4)
    module, bare = Module(), Module()
    fit(module, tmp_path, batches=4 * STEPS, accumulate_grad_batches=4)
    torch.testing.assert_close(flat(module.network), expected, rtol=1e-6, atol=1e-7)
    assert module.potentials[:EXPLORATION] == pytest.approx(potentials[:EXPLORATION], rel=1e-6)
    fit(bare, tmp_path, batches=4 * STEPS, accumulate_grad_batches=4, callbacks=[])
    assert bare.potentials[0] < 0.5 * potentials[0]


def test_manual_and_its_wrapper(tmp_path):
    """`self.optimizers()` imitates our class; it must say what we would."""
    module = Module(manual=True)
    fit(module, tmp_path)
    assert torch.equal(flat(module.network), plain_loop()[0])
    assert module.wrapper_said == [(step < EXPLORATION, step) for step in range(1, STEPS + 1)]


def test_clipping_is_said_and_done(tmp_path):
    module = Module()
    with pytest.warns(SettingsWarning, match="gradient_clip_val = 10"):
        fit(module, tmp_path, gradient_clip_val=10.0)
    assert torch.equal(flat(module.network), plain_loop(clip=10.0)[0])


def test_training_that_ends_in_exploration_is_said(tmp_path):
    with pytest.warns(SettingsWarning, match="exploration_steps = 24"):
        fit(Module(exploration_steps=24), tmp_path)


def test_half_precision(tmp_path):
    """Lightning's scaler: the scale is divided out, though Lightning hands nothing over."""
    from lightning.pytorch.plugins import MixedPrecision

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled = MixedPrecision("16-mixed", "cpu", scaler)
    scaled.autocast_context_manager = lambda: torch.autocast("cpu", enabled=False)
    module = Module()
    fit(module, tmp_path, plugins=[scaled])
    torch.testing.assert_close(flat(module.network), plain_loop()[0], rtol=1e-6, atol=1e-7)


def test_resume_goes_on_bit_by_bit(tmp_path):
    """From a checkpoint within the exploration, at the end of an epoch: a plain DataLoader begins at its first batch."""
    whole, resumed = Module(), Module()
    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1)
    options = {"batches": STEPS // 2, "max_epochs": 2}
    fit(whole, tmp_path, callbacks=[WatchLoss(), saving], enable_checkpointing=True, **options)
    trainer = fit(resumed, tmp_path, checkpoint=tmp_path / f"step={STEPS // 2}.ckpt", **options)
    assert len(resumed.potentials) == STEPS // 2
    assert trainer.optimizers[0].state_dict()["param_groups"][0]["ctld_step"] == STEPS
    assert torch.equal(flat(resumed.network), flat(whole.network))


def test_two_optimizers_are_asked_about(tmp_path):
    class Two(Module):
        def configure_optimizers(self):
            return [build(self.network[0]), build(self.network[2])]

    with pytest.raises(ValueError, match="2 optimizers of ctld's among 2"):
        fit(Two(manual=True), tmp_path)


def test_logs_the_temperature(tmp_path):
    module = Module()
    trainer = fit(module, tmp_path, callbacks=[WatchLoss(log_every=1)])
    assert {"ctld/temperature_ratio", "ctld/alpha"} <= trainer.callback_metrics.keys()


def test_two_ranks_are_the_plain_loop(tmp_path):
    """DDP: each rank has half of every batch, and the loss is the mean over both."""
    script = tmp_path / "ranks.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from test_lightning import DataLoader, Module, WatchLoss, dataset, flat, pl

torch.set_num_threads(1)
if __name__ == "__main__":
    module = Module()
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, callbacks=[WatchLoss()], logger=False,
                         enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    sampler = torch.utils.data.DistributedSampler(dataset(), 2, trainer.global_rank, shuffle=False)
    trainer.fit(module, DataLoader(dataset(), {BATCH // 2}, sampler=sampler))
    if trainer.global_rank == 0:
        torch.save(flat(module.network), "end.pt")
"""
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    torch.testing.assert_close(end, plain_loop()[0], rtol=1e-5, atol=1e-6)
