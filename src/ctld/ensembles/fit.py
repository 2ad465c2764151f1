"""fit_ensemble: an `Ensemble` for those without a training loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ctld.checks import integer
from ctld.ensembles.ensemble import Ensemble
from ctld.ensembles.inputs import called, moved
from ctld.ensembles.progress import rank

# Called after every step with the ensemble and the loss.
Report = Callable[[Ensemble, Tensor], None]


def fit_ensemble(
    model: nn.Module,
    loader: Iterable[Any],
    loss_fn: Callable[..., Tensor] | None = None,
    *,
    epochs: int,
    cycles: int | Literal["auto"] = "auto",
    lr: float = 0.1,
    num_data: float | None = None,
    validation: tuple[Any, Any] | None = None,
    progress: bool = True,
    **options: Any,
) -> Ensemble:
    """Train `model` for `epochs` passes over `loader`, in `cycles`, and return the ensemble.

    >>> ensemble = fit_ensemble(model, loader, nn.functional.cross_entropy, epochs=30)       # doctest: +SKIP
    >>> ensemble.predict(test_inputs).metrics(test_labels)                                   # doctest: +SKIP

    Parameters
    ----------
    model : Module
        On its device; batches are moved there.
    loader : DataLoader, or a list of batches
        Of pairs (inputs, targets), for which the loss is loss_fn(model(inputs), targets). For batches of another form it is
        loss_fn(model, batch).
    loss_fn : callable, optional
        A mean over the batch. Left out: the loss that fits `task=`, which is then needed.
    epochs, cycles
        Passes over the loader, and into how many cycles they are divided; "auto" chooses (`Ensemble`).
    num_data : float, optional
        The number of training examples; those that the loader's sampler can draw, if left out.
    validation : pair, optional
        Inputs and targets that were kept back: afterwards they weigh the members (`Ensemble.calibrate`).
    progress : bool
        Whether a bar, or without `rich` and outside terminals a line for each cycle, is written to the standard error.
    options
        Of `Ensemble`.
    """
    epochs = integer("epochs", epochs, at_least=1)
    if not isinstance(loader, Sized) or not len(loader):
        raise ValueError("the loader has no length, or is empty; write a loop of your own around ctld.Ensemble")
    if num_data is None:
        num_data = number_of_examples(loader)
    ensemble = Ensemble(
        model, lr, num_data, epochs * len(loader), cycles=cycles, steps_per_epoch=len(loader), **options
    )
    device = next(iter(model.parameters())).device
    model.train()
    criterion = ensemble.loss if loss_fn is None else loss_fn
    with _reporting(ensemble, progress and rank() == 0) as report, _without_leftovers(model):
        for epoch in range(epochs):
            set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
            for batch in loader:
                loss = _loss(model, moved(batch, device), criterion)
                loss.backward()  # type: ignore[no-untyped-call]
                ensemble.step(loss)
                report(ensemble, loss.detach())
    if validation is not None:
        ensemble.calibrate(*validation)
    return ensemble


def number_of_examples(loader: Any) -> int:
    """Return how many examples a loader can draw: a sampler may leave out most of a dataset."""
    dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "sampler", None)
    own = getattr(loader, "batch_sampler", None)
    if type(own) is not BatchSampler and own is not None:
        sampler = getattr(own, "sampler", own)
    if not isinstance(dataset, Sized):
        raise ValueError("the loader does not say how many examples it has; give num_data=")
    if isinstance(sampler, SubsetRandomSampler):
        return len(sampler)
    if isinstance(sampler, WeightedRandomSampler):
        return int((sampler.weights > 0).sum())
    if sampler is None or isinstance(sampler, SequentialSampler | RandomSampler | DistributedSampler):
        return len(dataset)
    if isinstance(sampler, Sized) and len(sampler) == len(dataset):
        return len(dataset)
    raise ValueError(
        f"num_data must be given for a {type(sampler).__name__}, which may leave out a part of the {len(dataset)} examples. "
        "Give the number of different examples that it draws"
    )


@contextmanager
def _without_leftovers(model: nn.Module) -> Iterator[None]:
    """Clear the gradients if training is interrupted between `backward` and `step`: another loop would take them in."""
    try:
        yield
    finally:
        for parameter in model.parameters():
            parameter.grad = None


def _loss(model: nn.Module, batch: Any, loss_fn: Callable[..., Tensor]) -> Tensor:
    if isinstance(batch, tuple | list) and len(batch) == 2 and not isinstance(batch[1], Mapping):
        return loss_fn(called(model, batch), batch[1])
    return loss_fn(model, batch)


@contextmanager
def _reporting(ensemble: Ensemble, wanted: bool) -> Iterator[Report]:
    if not wanted:
        yield lambda ensemble, loss: None
        return
    try:
        rich = import_module("rich.progress") if sys.stderr.isatty() else None
    except ImportError:
        rich = None
    if rich is None:
        written = [0]

        def line(ensemble: Ensemble, loss: Tensor) -> None:
            if ensemble.steps % ensemble.cycle_steps == 0 and ensemble.steps != written[0]:
                written[0] = ensemble.steps
                sys.stderr.write(f"step {ensemble.steps} of {ensemble.total_steps}: {_words(ensemble, loss)}\n")

        yield line
        return
    console = import_module("rich.console").Console(stderr=True)
    columns = [
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(),
    ]
    with rich.Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=ensemble.total_steps)

        def report(ensemble: Ensemble, loss: Tensor) -> None:
            # The loss is on a device: to read it at every step would stall it.
            if ensemble.steps % 20 == 0 or ensemble.done:
                bar.update(task, completed=ensemble.steps, description=_words(ensemble, loss))

        yield report


def _words(ensemble: Ensemble, loss: Tensor) -> str:
    members = len(ensemble)
    cycle = min(ensemble.steps // ensemble.cycle_steps + 1, ensemble.cycles)
    return f"cycle {cycle}/{ensemble.cycles}, {members} member{'s' * (members != 1)}, loss {float(loss):.3g}"
