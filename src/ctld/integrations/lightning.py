"""Lightning: return the optimizer from `configure_optimizers`, and give the trainer `WatchLoss()`.

    trainer = Trainer(callbacks=[ctld.integrations.lightning.WatchLoss()], accumulate_grad_batches=4)

For an ensemble, also one around another optimizer, return `ensemble.optimizer`: the callback finds the ensemble by it.

Without the callback Lightning hands over the loss of the last micro-batch, divided by their number; and with a scaler for half
precision, nothing at all. It works in automatic and in manual optimisation, under DDP, and needs no state of its own to resume.
"""

from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from ctld import Ensemble
from ctld.checks import integer
from ctld.integrations import advice, ensemble_of, innermost
from ctld.observing import TakesLoss
from ctld.optimizers import CTLD


class WatchLoss(pl.Callback):
    """Hands every loss to the optimizer as it goes into `backward`, says what harms a sampler, and logs the temperature.

    Parameters
    ----------
    log_every : int
        Every so many steps `ctld/temperature_ratio`, `ctld/alpha` and `ctld/kinetic_temperature` are logged; 0 for never.
    ensemble : Ensemble, optional
        Whose optimizer it is. It need not be given: an ensemble is found from its optimizer.
    """

    def __init__(self, log_every: int = 50, *, ensemble: Ensemble | None = None) -> None:
        self.log_every = integer("log_every", log_every, at_least=0)
        self.ensemble = ensemble
        self._optimizer: Any = None
        self._following: Ensemble | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the optimizer; warn of settings that change what is sampled."""
        self._optimizer = optimizer = _only_one(trainer.optimizers)
        found = ensemble_of(optimizer)
        if self.ensemble is not None and found is not self.ensemble:
            raise ValueError("the trainer has another optimizer than the ensemble: return ensemble.optimizer")
        self._following = found
        messages = [advice.about_clipping("gradient_clip_val", trainer.gradient_clip_val, "gradient_clip_val=None")]
        if pl_module.automatic_optimization:
            messages.append(advice.about_length(optimizer, float(trainer.estimated_stepping_batches)))
        advice.say(optimizer, messages)  # of a sampler

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Watch what goes into `backward`: by now it is divided by the micro-batches, and scaled."""
        assert self._optimizer is not None
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if self._following is not None:
            self._following.watch(loss, scaler=scaler)
        else:
            self._optimizer.watch(loss, scaler=scaler)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the temperature."""
        optimizer = self._optimizer
        if not self.log_every or trainer.global_step % self.log_every or not isinstance(optimizer, CTLD):
            return
        if optimizer.last is None:
            return
        names = ("temperature_ratio", "alpha", "kinetic_temperature")
        found = {f"ctld/{name}": getattr(optimizer.last, name) for name in names}
        pl_module.log_dict({name: float(value) for name, value in found.items() if value is not None})


def _only_one(optimizers: list[Any]) -> Any:
    found = [innermost(optimizer) for optimizer in optimizers]
    ours = [optimizer for optimizer in found if isinstance(optimizer, TakesLoss) or ensemble_of(optimizer) is not None]
    if len(ours) != 1:
        raise ValueError(
            f"there are {len(ours)} optimizers of ctld's among {len(optimizers)}, so that it is not known whose a loss is; "
            "return one from configure_optimizers, or leave WatchLoss out and call optimizer.watch(loss) before manual_backward"
        )
    return ours[0]
