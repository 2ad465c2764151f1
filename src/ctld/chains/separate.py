"""Chains that take their passes one after the other, for models that `torch.func.vmap` cannot run together."""

import operator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ctld.chains.chains import Chains
from ctld.chains.evaluation import checked_outputs, evaluating
from ctld.chains.refusals import check_batch


class SeparateChains(Chains):
    """`Chains` in a loop: the same interface and the same law, with one forward and one backward pass for each chain.

    LSTMs, models with hooks and models with data-dependent control flow run here. Parameters are the same as in a run of
    each chain on its own, to the bit.
    """

    def _gather(self) -> None:
        """Leave the models' tensors where they are."""

    @property
    def stacked(self) -> dict[str, Tensor]:
        """The parameters of all chains by name, chains first. They are copies."""
        everyone = [dict(model.named_parameters()) for model in self.models]
        return {name: torch.stack([own[name].detach() for own in everyone]) for name in everyone[0]}

    @torch.no_grad()
    def outputs(self, inputs: Any) -> Tensor:
        """Return model(inputs) for every chain, chains first, computed in evaluation mode and without gradients."""
        with evaluating(self.models):
            return torch.stack([checked_outputs(model(inputs)) for model in self.models])

    @torch.no_grad()
    def evaluate(self, *batch: Any) -> Tensor:
        """Return the loss of every chain on one batch, in evaluation mode and without gradients."""
        with evaluating(self.models):
            return torch.stack([self.loss(model, *batch).reshape(()) for model in self.models])

    def backward(self, *batch: Any, shared: bool = True) -> Tensor:
        """Compute losses and gradients of all chains; gradients replace those that were there. As in `Chains`."""
        if not shared:
            check_batch(batch, len(self))
        losses = []
        for chain, model in enumerate(self.models):
            model.zero_grad()
            own = batch if shared else tree_map_only(Tensor, operator.itemgetter(chain), batch)
            with torch.enable_grad():
                loss = self.loss(model, *own)
            if loss.numel() != 1:
                raise ValueError(
                    f"the loss must be one number, got shape {tuple(loss.shape)}. Return the mean of the batch"
                )
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach().reshape(()))
        self.losses, self._stepped = torch.stack(losses), False
        return self.losses
