"""Hugging Face's Trainer takes the plain loop's path, says which of its defaults harm a sampler, and resumes bit by bit."""

import pytest
import torch
from plain import BATCH, EXPLORATION, STEPS, build, data, flat, network, plain_loop
from torch import nn
from transformers import TrainingArguments

import ctld
from ctld.integrations.advice import SettingsWarning
from ctld.integrations.transformers import Trainer, sampler_arguments


class Model(nn.Module):
    """A model as transformers has them: it returns its own loss."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, inputs, labels):
        logits = self.network(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Rows(torch.utils.data.Dataset):
    def __init__(self, batches):
        self.inputs, self.labels = data(batches)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


def trainer_of(tmp_path, model, optimizer, *, accumulation=1, evaluated=None, ensemble=None, **options):
    arguments = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": accumulation,
        "max_steps": STEPS,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 1,
    }
    args = TrainingArguments(**(arguments | sampler_arguments() | options))
    rows = {"train_dataset": Rows(STEPS * accumulation), "eval_dataset": evaluated}
    given = {"optimizers": (optimizer, None)} if ensemble is None else {"ensemble": ensemble}
    return Trainer(model=model, args=args, **given, **rows)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_same_path(tmp_path, accumulation):
    model = Model()
    trainer_of(tmp_path, model, build(model), accumulation=accumulation).train()
    expected, *_ = plain_loop(accumulation=accumulation)
    torch.testing.assert_close(flat(model), expected, rtol=1e-6, atol=1e-7)
    if accumulation == 1:
        assert torch.equal(flat(model), expected)


def test_a_plain_trainer_is_told_what_is_missing(tmp_path):
    import transformers

    model = Model()
    trainer = trainer_of(tmp_path, model, build(model))
    plain = transformers.Trainer(
        model=model, args=trainer.args, train_dataset=trainer.train_dataset, optimizers=(build(model), None)
    )
    with pytest.raises(ValueError, match="needs the loss"):
        plain.train()


def test_evaluation_is_not_observed(tmp_path):
    model = Model()
    trainer = trainer_of(tmp_path, model, build(model), evaluated=Rows(2), eval_strategy="steps", eval_steps=5)
    trainer.train()
    assert any("eval_loss" in entry for entry in trainer.state.log_history)
    assert torch.equal(flat(model), plain_loop()[0])


def test_resume_goes_on_bit_by_bit(tmp_path):
    model = Model()
    trainer = trainer_of(tmp_path / "a", model, build(model), save_strategy="steps", save_steps=10)
    trainer.train()
    expected = flat(model)
    assert torch.equal(expected, plain_loop()[0])
    model = Model()
    trainer = trainer_of(tmp_path / "b", model, build(model))
    trainer.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-10"))
    assert torch.equal(flat(model), expected)


def test_defaults_that_harm_are_said(tmp_path):
    model = Model()
    harmful = {"max_grad_norm": 1.0, "lr_scheduler_type": "linear"}
    with pytest.warns(SettingsWarning) as caught:
        trainer_of(tmp_path, model, build(model, temperature="auto"), **harmful).train()
    said = [str(warning.message) for warning in caught if warning.category is SettingsWarning]
    assert any("max_grad_norm = 1 clips" in text for text in said)
    assert any("lr_scheduler_type = 'linear' lowers lr" in text for text in said)


def test_weight_decay_that_the_trainer_overwrites_is_said(tmp_path):
    model = Model()
    args = trainer_of(tmp_path, model, None).args
    options = {"lr": 0.05, "weight_decay": 1e-3, "num_data": 96, "exploration_steps": EXPLORATION, "temperature": 0.1}
    trainer = Trainer(
        model=model, args=args, train_dataset=Rows(STEPS), optimizer_cls_and_kwargs=(ctld.CTLD, options | {"seed": 3})
    )
    with pytest.warns(SettingsWarning, match=r"weight_decay = 0.001 was given to the optimizer, but its groups have 0"):
        trainer.train()


def test_a_minimizer_is_left_in_peace(tmp_path):
    """Clipping and a schedule are its own affair: no warning, which here would be an error."""
    model = Model()
    trainer_of(tmp_path, model, build(model, "adam"), max_grad_norm=1.0, lr_scheduler_type="linear").train()
