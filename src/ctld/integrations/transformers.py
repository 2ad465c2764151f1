"""Hugging Face `Trainer`: it calls `step()` with nothing, so the loss is watched where it is computed.

    trainer = ctld.integrations.transformers.Trainer(model, args, train_dataset=..., optimizers=(optimizer, None))

With `ensemble=ensemble` in place of the optimizers, an ensemble is trained. A trainer of your own gets `WatchLoss` before it:
`class MyTrainer(WatchLoss, Seq2SeqTrainer): ...`.

Two defaults of `TrainingArguments` harm a sampler, and a third setting hides: `max_grad_norm=1.0` clips,
`lr_scheduler_type="linear"` lets the exploration's steps shrink to nothing, and the groups that the trainer makes have its own
`weight_decay`, 0 by default. `sampler_arguments()` has what to set.
"""

from typing import Any

import transformers
from torch import Tensor

from ctld import Ensemble
from ctld.integrations import advice, innermost, watch


def sampler_arguments() -> dict[str, Any]:
    """Arguments of `TrainingArguments` under which a sampler samples: no clipping, a constant learning rate."""
    return {"max_grad_norm": 0.0, "lr_scheduler_type": "constant"}


class WatchLoss:
    """Put before a `Trainer`: the optimizer observes each loss with the factor that the trainer puts before `backward`.

    An ensemble whose optimizer the trainer has, is found by it: give the trainer `ensemble.optimizer` and `ensemble.scheduler`.
    """

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        """The trainer's loss, watched while training."""
        trainer: Any = self
        result = super().compute_loss(model, inputs, return_outputs=return_outputs, **options)  # type: ignore[misc]
        loss: Tensor = result[0] if return_outputs else result
        # In evaluation there may be no optimizer, and there is no gradient.
        if loss.requires_grad and trainer.optimizer is not None:
            watch(trainer.optimizer, loss, scaler=trainer.accelerator.scaler)
        return result

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The trainer's scheduler; first a word on settings that change what is sampled."""
        trainer: Any = self
        found = innermost(trainer.optimizer if optimizer is None else optimizer)
        warn_of_settings(found, trainer.args, num_training_steps, scheduler=trainer.lr_scheduler)
        return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]


def warn_of_settings(optimizer: Any, args: Any, total_steps: int, scheduler: Any = None) -> None:
    """Warn of arguments of a `TrainingArguments` that change what is sampled."""
    decays = None
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    if scheduler is None and not str(kind).startswith("constant"):
        decays = (
            f"lr_scheduler_type = {kind!r} lowers lr from the first step on: steps of the exploration shrink with it. "
            'Give lr_scheduler_type="constant", or your own scheduler that waits for exploration_steps, such as CycleLR'
        )
    messages = [advice.about_clipping("max_grad_norm", args.max_grad_norm, "max_grad_norm=0"), decays]
    advice.say(optimizer, [*messages, advice.about_decay(optimizer), advice.about_length(optimizer, total_steps)])


class Trainer(WatchLoss, transformers.Trainer):
    """`transformers.Trainer` whose optimizer observes the loss.

    Parameters
    ----------
    ensemble : Ensemble, optional
        Is trained, by its own optimizer and schedule; `max_steps` should be its `total_steps`.
    others
        The trainer's.
    """

    def __init__(self, *arguments: Any, ensemble: Ensemble | None = None, **options: Any) -> None:
        if ensemble is not None:
            options.setdefault("optimizers", (ensemble.optimizer, ensemble.scheduler))
        super().__init__(*arguments, **options)
