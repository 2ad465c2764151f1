"""Keras 3 on torch: any method of `ctld.OPTIMIZERS` as the optimizer of `model.compile`.

    model.compile(optimizer=Optimizer("ctld", 0.1, num_data=len(x), exploration_steps=2000, weight_decay=1e-3), loss=...)

The trainer shows each loss to `scale_loss` before `backward`: that is where the optimizer hears of it. Saved models have the
whole state in them, and go on bit by bit.
"""

import io
from typing import Any

import keras
import numpy as np
import torch

import ctld
from ctld.integrations import advice
from ctld.observing import TakesLoss

if keras.backend.backend() != "torch":
    raise ImportError(
        f"Keras runs on {keras.backend.backend()} here; set the variable KERAS_BACKEND=torch before keras is imported"
    )

# What Keras's own base class does to gradients and averages; all else goes to the method.
OF_KERAS = {"clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum", "ema_overwrite_frequency"}
OF_KERAS |= {"loss_scale_factor", "gradient_accumulation_steps", "name"}


@keras.saving.register_keras_serializable("ctld")
class Optimizer(keras.optimizers.Optimizer):
    """A method of `ctld.OPTIMIZERS`.

    Parameters
    ----------
    method : str
        Its name there.
    learning_rate : float, schedule or callable
        As for any optimizer of Keras's; on the mean loss, as in SGD.
    **options
        Of the method (`num_data`, `exploration_steps`, `weight_decay`, ...), and of Keras's own: clipping, averages of
        weights, accumulation. They have to be plain values if the model is to be saved.
    """

    def __init__(self, method: str = "ctld", learning_rate: Any = 0.1, **options: Any) -> None:
        super().__init__(learning_rate, **{name: options.pop(name) for name in OF_KERAS if name in options})
        self.method, self.options = method, options
        self.inner: TakesLoss | None = None
        self._losses: Any = ()  # of the batches since the last step; a tuple, which Keras does not track

    def build(self, variables: list[Any]) -> None:
        """Make the method's own optimizer of the model's weights."""
        if self.built:
            return
        super().build(variables)
        self.inner = ctld.create(
            self.method, [variable.value for variable in variables], lr=self._rate(), **self.options
        )
        bounds = {name: getattr(self, name) for name in ("clipnorm", "global_clipnorm", "clipvalue")}
        advice.say(self.inner, [advice.about_clipping(name, bound, f"{name}=None") for name, bound in bounds.items()])

    def scale_loss(self, loss: Any) -> Any:
        """The loss as Keras scales it; the optimizer hears of it unscaled."""
        self._losses = (*self._losses, loss.detach())
        return super().scale_loss(loss)

    def _backend_update_step(self, grads: list[Any], trainable_variables: list[Any], learning_rate: Any) -> None:
        """One step with gradients that are unscaled, averaged over micro-batches and clipped by now."""
        assert self.inner is not None
        losses, self._losses = self._losses, ()
        for group in self.inner.param_groups:
            group["lr"] = self._rate()
        given = {id(variable.value): gradient for variable, gradient in zip(trainable_variables, grads, strict=True)}
        weights = [weight for group in self.inner.param_groups for weight in group["params"]]
        kept = [weight.grad for weight in weights]
        for weight in weights:
            weight.grad = given.get(id(weight))
        try:
            self.inner.step(loss=torch.stack(losses).mean() if losses else None)
        finally:
            for weight, gradient in zip(weights, kept, strict=True):
                weight.grad = gradient

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.learning_rate))

    def save_own_variables(self, store: Any) -> None:
        """Put Keras's counters and the method's state into a saved model."""
        super().save_own_variables(store)
        if self.inner is not None:
            buffer = io.BytesIO()
            torch.save(self.inner.state_dict(), buffer)
            store["ctld"] = np.frombuffer(buffer.getvalue(), dtype=np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Take over what `save_own_variables` has put there."""
        saved = {name: store[name] for name in store.keys() if name != "ctld"}  # noqa: SIM118
        super().load_own_variables(saved)
        if "ctld" in store.keys() and self.inner is not None:  # noqa: SIM118
            state = io.BytesIO(np.asarray(store["ctld"]).tobytes())
            self.inner.load_state_dict(torch.load(state, weights_only=True))

    def get_config(self) -> dict[str, Any]:
        """Return the configuration that builds this optimizer again."""
        config = super().get_config()
        config.pop("weight_decay")  # Keras's own, which is not used: the method has one
        return config | {"method": self.method} | self.options
