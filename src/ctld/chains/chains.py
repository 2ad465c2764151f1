"""Chains that take their steps together.

The models stay what they are: their parameters and buffers move into slices of one tensor for each name, which
`torch.func.vmap` reads as a whole. The optimizers are those of M separate runs, and so are α, noise, momenta and refusals;
what differs is the rounding of the gradients.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map_only

from ctld.chains.compiled import CompiledPass, can_compile
from ctld.chains.evaluation import checked_outputs, evaluating
from ctld.chains.refusals import check_batch, check_modes, check_optimizers, failing_module, refusal
from ctld.chains.stack import stacks_of
from ctld.checks import NonFiniteError

STATE_FORMAT = 1
_log = logging.getLogger("ctld")


class NonFiniteChainsError(NonFiniteError):
    """Some chains met a NaN or inf and refused their step, which changed nothing in them; all others took theirs.

    Catch it to go on: the refused chains have skipped this batch.
    """

    def __init__(self, refused: Mapping[int, Exception], num_chains: int) -> None:
        self.chains = tuple(refused)
        """Which refused."""
        reasons = "; ".join(f"chain {chain}: {error}" for chain, error in refused.items())
        super().__init__(f"{len(refused)} of {num_chains} chains refused this step, the others took it. {reasons}")


class Chains:
    """Models that take their steps together, each by its own optimizer.

    >>> models = [build() for _ in range(8)]                                       # doctest: +SKIP
    >>> optimizers = [CTLD(model.parameters(), lr=0.1, num_data=60_000, exploration_steps=2000, seed=chain)
    ...               for chain, model in enumerate(models)]                       # doctest: +SKIP
    >>> chains = Chains(models, optimizers, lambda model, x, y: cross_entropy(model(x), y))  # doctest: +SKIP
    >>> chains.backward(inputs, labels); chains.step()                             # doctest: +SKIP

    Parameters
    ----------
    models : sequence of modules
        Of one architecture, dtype and device, each with its own start. Their parameters and buffers move into common
        memory; the modules, and optimizers built from them, remain good for everything else.
    optimizers : sequence of optimizers
        One for each model, of `ctld.OPTIMIZERS` or torch's. Give each its own seed.
    loss : callable
        `loss(model, *batch)`, the mean loss of a batch. It is called once for all chains, with a model in which one
        tensor stands for those of every chain.
    compile : bool
        Whether the pass is compiled by `torch.compile`: the same numbers up to rounding, several times faster for small models,
        after some ten seconds to a minute for each shape of batches. Where that fails a line is logged, and chains go on
        without.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        loss: Callable[..., Tensor],
        *,
        compile: bool = False,
    ) -> None:
        self._compiled: CompiledPass | None = None
        self._wanted = bool(compile)
        self.models, self.optimizers, self.loss = list(models), list(optimizers), loss
        self.losses: Tensor | None = None
        """Losses of the last `backward`, one for each chain."""
        self._stepped = True
        check_optimizers(self.models, self.optimizers)
        self._takes_loss = ["loss" in inspect.signature(each.step).parameters for each in self.optimizers]
        self._gather()

    def _gather(self) -> None:
        """Move the models' tensors into common memory."""
        self._parameters, self._buffers = stacks_of(self.models)
        self._program = _Program(self.models[0], self.loss)
        if self._wanted and can_compile(self.models[0]):
            self._compiled = CompiledPass(self._program)

    @property
    def compiled(self) -> bool:
        """True if passes are compiled."""
        return self._compiled is not None

    def __len__(self) -> int:
        return len(self.models)

    @property
    def stacked(self) -> dict[str, Tensor]:
        """The parameters of all chains by name, chains first. They are live: clone what is to be kept as a draw."""
        return {name: stack.whole.detach() for name, stack in self._parameters.items()}

    @torch.no_grad()
    def outputs(self, inputs: Any) -> Tensor:
        """Return model(inputs) for every chain, chains first, computed in evaluation mode and without gradients."""
        model = self.models[0]
        parameters, buffers = self.stacked, {name: stack.whole.clone() for name, stack in self._buffers.items()}

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Any:
            return functional_call(model, parameters | buffers, (inputs,))

        with evaluating([model]):
            found: Any = vmap(one, randomness="different")(parameters, buffers)
        return checked_outputs(found)

    @torch.no_grad()
    def evaluate(self, *batch: Any) -> Tensor:
        """Return the loss of every chain on one batch, in evaluation mode and without gradients."""
        parameters = _named(self.stacked)
        buffers = _named({name: stack.whole.clone() for name, stack in self._buffers.items()})

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Any:
            return functional_call(self._program, parameters | buffers, batch)

        with evaluating([self.models[0]]):
            losses: Tensor = vmap(one, randomness="different")(parameters, buffers)
        return losses.reshape(-1)

    # ---- gradients ----

    def backward(self, *batch: Any, shared: bool = True) -> Tensor:
        """Compute losses and gradients of all chains in one pass; gradients replace those that were there.

        Parameters
        ----------
        *batch
            What `loss` takes after the model.
        shared : bool
            Whether all chains see the same batch. If not, each tensor in it has one entry for each chain in its first
            dimension.

        Returns
        -------
        Tensor of shape (chains,), also kept as `losses`.
        """
        check_modes(self.models)
        if not shared:
            check_batch(batch, len(self))
        for stack in (*self._parameters.values(), *self._buffers.values()):
            stack.check_memory()
        trained = {
            name: stack.whole.detach().requires_grad_() for name, stack in self._parameters.items() if stack.trained
        }
        if self._compiled is not None and self._by_compiled(trained, batch, shared):
            assert self.losses is not None
            return self.losses
        try:
            with torch.enable_grad():
                losses = self._vmapped(trained, batch, shared)
        except torch.OutOfMemoryError:
            raise  # all chains' activations at once are M times one's
        except Exception as error:
            raise self._refusal(error, trained, batch, shared) from error
        if losses.numel() != len(self):
            raise ValueError(
                f"the loss has shape {tuple(losses.shape[1:])} in each chain; return the mean loss of the batch, one number"
            )
        losses = losses.reshape(-1)
        # Each loss depends on its own slice only: the gradient of the sum is that of each.
        found = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
        gradients = dict(zip(trained, found, strict=True))
        for name, stack in self._parameters.items():
            stack.hand_out(gradients.get(name))
        self.losses, self._stepped = losses.detach(), False
        return self.losses

    def _by_compiled(self, trained: dict[str, Tensor], batch: tuple[Any, ...], shared: bool) -> bool:
        """True if the compiled pass gave gradients; after one failure it is not tried again."""
        assert self._compiled is not None
        resting = {name: tensor for name, tensor in self.stacked.items() if name not in trained}
        buffers = {name: stack.whole for name, stack in self._buffers.items()}
        given = (_named({name: tensor.detach() for name, tensor in trained.items()}), _named(resting), _named(buffers))
        try:
            gradients, losses, after = self._compiled(*given, batch, shared=shared)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            words = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            _log.warning("torch.compile failed, and the chains go on without it: %s", words)
            self._compiled = None
            return False
        for stack, value in zip(self._buffers.values(), after, strict=True):
            stack.whole.copy_(value.detach())
        for name, stack in self._parameters.items():
            stack.hand_out(gradients.get(f"model.{name}"))
        self.losses, self._stepped = losses.detach(), False
        return True

    def _vmapped(self, trained: dict[str, Tensor], batch: tuple[Any, ...], shared: bool) -> Tensor:
        """Return the losses, through one call of the model; buffers have changed if it succeeds."""

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], *batch: Any) -> tuple[Tensor, list[Tensor]]:
            everything = parameters | buffers
            # Puts into `everything` what the model has put in place of a buffer.
            loss = functional_call(self._program, everything, batch)
            return loss, [everything[name] for name in buffers]

        # Randomness of the model, dropout say, differs between chains.
        in_dims = (0, 0, *[None if shared else 0] * len(batch))
        together: Callable[..., tuple[Tensor, list[Tensor]]] = vmap(one, in_dims=in_dims, randomness="different")
        # On copies of the buffers, for a pass that fails to leave no traces.
        buffers = _named({name: stack.whole.clone() for name, stack in self._buffers.items()})
        losses, after = together(_named(self.stacked | trained), buffers, *batch)
        for stack, value in zip(self._buffers.values(), after, strict=True):
            stack.whole.copy_(value.detach())
        return losses

    def _refusal(self, error: Exception, trained: dict[str, Tensor], batch: tuple[Any, ...], shared: bool) -> Exception:
        """Return where and why `vmap` cannot take the model; an error that one chain alone raises too is the caller's own."""
        first = {name: stack.whole[0].clone() for name, stack in (self._parameters | self._buffers).items()}
        own = batch if shared else tree_map_only(Tensor, lambda tensor: tensor[0], batch)
        functional_call(self._program, _named(first), own)
        return refusal(failing_module(self.models[0], lambda: self._vmapped(trained, batch, shared)), error)

    # ---- steps ----

    def step(self) -> None:
        """Take one step of every chain, by its own optimizer.

        A chain that refuses its step or fails does not stop the others: all take theirs, then `NonFiniteChainsError`
        names those that met a NaN, or an `ExceptionGroup` holds what else was raised.
        """
        if self.losses is None or self._stepped:
            raise RuntimeError("there are no new gradients; call backward(*batch) before each step()")
        self._stepped = True
        # On a CPU they are read at once; on a GPU it is for each optimizer to read what it needs.
        losses: Sequence[Any] = self.losses.tolist() if self.losses.is_cpu else self.losses.unbind()
        failed: dict[int, Exception] = {}
        for chain, (optimizer, loss) in enumerate(zip(self.optimizers, losses, strict=True)):
            try:
                if self._takes_loss[chain]:
                    optimizer.step(loss=loss)  # type: ignore[call-overload]
                else:
                    optimizer.step()
            except Exception as error:
                error.add_note(f"in chain {chain}")
                failed[chain] = error
        if not failed:
            return
        if all(isinstance(error, NonFiniteError) for error in failed.values()):
            raise NonFiniteChainsError(failed, len(self))
        raise ExceptionGroup(f"chains {[*failed]} failed, the others took their step", [*failed.values()])

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """Return all that changes, chain by chain; each entry also loads into the model or the optimizer of a single run."""
        # Without the copies, saving one chain would save the memory of all.
        models = [tree_map_only(Tensor, torch.clone, dict(model.state_dict())) for model in self.models]
        return {"format": STATE_FORMAT, "models": models, "optimizers": [each.state_dict() for each in self.optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; one that does not fit is refused, and nothing has changed."""
        if state_dict.get("format") != STATE_FORMAT:
            raise ValueError(
                f"the state has format {state_dict.get('format')}, this version of ctld reads {STATE_FORMAT}; give what "
                "Chains.state_dict() made"
            )
        saved = len(state_dict["models"]), len(state_dict["optimizers"])
        if saved != (len(self), len(self)):
            raise ValueError(
                f"the state has {saved[0]} models and {saved[1]} optimizers, here are {len(self)} chains; build as many"
            )
        before = tree_map_only(Tensor, torch.clone, self.state_dict())  # optimizers hand out what they use
        try:
            self._load(state_dict)
        except Exception:
            self._load(before)
            raise
        self.losses, self._stepped = None, True

    def _load(self, state: Mapping[str, Any]) -> None:
        for model, own in zip(self.models, state["models"], strict=True):
            model.load_state_dict(own)
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)


class _Program(nn.Module):
    """Model and loss as one module, so that `functional_call` serves whatever the loss does with the model."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, *batch: Any) -> Tensor:
        return self._loss(self.model, *batch)


def _named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names that a program has for them."""
    return {f"model.{name}": tensor for name, tensor in tensors.items()}
