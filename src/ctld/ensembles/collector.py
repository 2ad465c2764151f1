"""SampleCollector: keeps end-of-cycle models and cold samples of a run, with the thermometer's reading beside each."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ctld.checks import integer, real, warn_user
from ctld.ensembles.folder import INDEX, File, Folder, needs_safetensors
from ctld.ensembles.inputs import Inputs, as_batches, called, moved
from ctld.ensembles.progress import RATIO_TOLERANCE, rank, reading_of, refuse_what_never_collects
from ctld.ensembles.samples import (
    Keep,
    Kind,
    Reading,
    Sample,
    SampleRecord,
    bare,
    bounded,
    check_fits,
    copied,
    from_plain,
    reading_from_plain,
    tensors_of,
    to_plain,
)
from ctld.optimizers import CTLD

# Of each kind, unless the user says otherwise.
AT_MOST = 20

# A sample's tensors, in memory; its file; or None on a rank that leaves the files to rank 0.
Held = dict[str, Tensor] | File | None
Entry = tuple[SampleRecord, Held]


class SampleCollector:
    """Keeps the model at the end of every cycle and, if asked, cold samples of the exploration.

    >>> collector = SampleCollector(model, optimizer, folder="samples", cold_every=100)       # doctest: +SKIP
    >>> optimizer.step(loss=loss); collector.update(loss=loss)                                # doctest: +SKIP
    >>> prediction = predict(model, collector, inputs)                                        # doctest: +SKIP

    It is an iterable of `Sample`, oldest first, which reads one at a time.

    Parameters
    ----------
    model : Module
        Parameters and persistent buffers are kept. Wrappers of DistributedDataParallel and torch.compile are taken off, sharded
        tensors are put together.
    optimizer : Optimizer
        A `CTLD` for `update`; for `collect`, any.
    folder : path, optional
        Where samples go as safetensors files (extra `ensembles`): an empty one, or none yet. Left out, they stay in memory,
        tensors that are not trained and stay the same once for all samples. Under `torch.distributed` rank 0 writes.
    at_most : int, optional
        How many samples of each kind are kept. Left out: 20, and a warning says when the first has to go.
    cold_every : int, optional
        Every so many steps a cold sample is taken, if that step of the exploration was at temperature ratio 1. Left out, none
        is.
    keep : "newest" or "best"
        Which of the cycles' models stay when there are more than `at_most`: the newest, or those with the lowest loss that was
        handed over. Of cold samples the newest stay: to choose among draws of a posterior would spoil it.
    overwrite : bool
        Whether samples that lie in `folder` already are replaced.
    """

    def __init__(
        self,
        model: nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        *,
        folder: str | os.PathLike[str] | None = None,
        at_most: int | None = None,
        cold_every: int | None = None,
        keep: Keep = "newest",
        overwrite: bool = False,
    ) -> None:
        if keep not in ("newest", "best"):
            raise ValueError(f'keep = {keep!r} is unknown; give "newest" or "best"')
        self.at_most = AT_MOST if at_most is None else integer("at_most", at_most, at_least=1)
        self.keep = keep
        self.dropped = 0
        self._by_default = at_most is None  # nobody chose how many: that some are dropped has to be said
        self._said = False
        self.cold_every = None if cold_every is None else integer("cold_every", cold_every, at_least=1)
        self._model, self._optimizer = model, optimizer
        self._folder = None if folder is None else Folder(folder)
        self._entries: list[Entry] = []
        self._reading: Reading | None = None  # at the last step of the last exploration
        self._serial = 0  # of the last file
        self._seen: int | None = None  # the step that the last update or collect saw
        if self._folder is not None:
            needs_safetensors()  # now, and not after the first cycle
        if self._folder is not None and rank() == 0:
            self._folder.create(overwrite=overwrite)
            self._commit()

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> SampleCollector:
        """Return the collection in `folder`: to read, or with model and optimizer to go on with.

        A run that goes on from a checkpoint may be behind the samples: the first `update` drops those that lie in its future.
        What these had pushed out does not come back; the folder fills up again.
        """
        place = Folder(folder)
        index = place.read_index()
        try:
            options = {name: index[name] for name in ("at_most", "cold_every")}
            # Indexes of version 0.1 have none of the next three.
            collector = cls(model, optimizer, keep=index.get("keep", "newest"), **options)
            collector._by_default = index.get("at_most_by_default", False) is True
            collector.dropped = bounded("dropped", index.get("dropped", 0))
            collector._serial = bounded("serial", index["serial"])
            collector._reading = reading_from_plain(index["reading"])
            collector._entries = [(from_plain(item["record"]), place.file(item["file"])) for item in index["samples"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{place.path / INDEX} is damaged or foreign: {error}") from None
        collector._folder = place
        return collector

    # ---- what is there ----

    @property
    def records(self) -> list[SampleRecord]:
        """Records of the samples, oldest first; no sample is read."""
        return [record for record, _ in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        """True, also while it is empty: `if collector` asks whether there is one."""
        return True

    def __repr__(self) -> str:
        kinds = [record.kind for record in self.records]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("cycle", "cold") if kind in kinds) or "empty"
        dropped = f", {self.dropped} dropped" if self.dropped else ""
        place = "in memory" if self._folder is None else f"in {str(self._folder.path)!r}"
        return f"<SampleCollector {place}: {counts}{dropped}, at most {self.at_most} of a kind>"

    def __iter__(self) -> Iterator[Sample]:
        for record, held in list(self._entries):
            yield Sample(record, self._load(held))

    def of_kind(self, kind: Kind) -> Iterator[Sample]:
        """Return the samples of one kind; the others are not read."""
        if kind not in ("cycle", "cold"):
            raise ValueError(f'kind = {kind!r} is unknown; give "cycle" or "cold"')
        for record, held in list(self._entries):
            if record.kind == kind:
                yield Sample(record, self._load(held))

    # ---- collecting ----

    def update(self, *, loss: float | Tensor | None = None) -> SampleRecord | None:
        """Keep the model if a cycle has ended or a cold sample is due, and return what was kept; call it after every step."""
        optimizer = self._optimizer
        if not isinstance(optimizer, CTLD):
            raise TypeError(
                f"update goes by the cycles of CTLD, not of {type(optimizer).__name__}; call collect(step=...)"
            )
        if self._seen is None:
            refuse_what_never_collects(optimizer, self.cold_every)
        step = optimizer.steps
        if optimizer.last is None or step == self._seen:
            return None  # no step was taken, or it was refused
        self._go_to(step)
        reading = reading_of(optimizer)
        if reading is not None and not optimizer.exploring:
            self._reading = reading
            self._commit()
        if optimizer.cycle_steps is not None and optimizer.cycle_step == 0:
            return self._keep("cycle", step, loss, self._reading)
        if reading is None or self.cold_every is None or reading.temperature_ratio > 1 + RATIO_TOLERANCE:
            return None
        # By the step alone: a resumed run takes the same ones, and none is favoured for being the first after a hot spell.
        return self._keep("cold", step, loss, reading) if step % self.cold_every == 0 else None

    def collect(self, *, step: int | None = None, loss: float | Tensor | None = None) -> SampleRecord:
        """Keep the model now, as that of a cycle: where `CTLD` has no cycles, or the optimizer is another.

        `step` is how many were done, for an optimizer that does not count them itself.
        """
        if step is None:
            step = getattr(self._optimizer, "steps", None)
        if step is None:
            raise ValueError(f"{type(self._optimizer).__name__} does not count its steps; give collect(step=...)")
        step = integer("step", step, at_least=0)
        if step != self._seen:
            self._go_to(step)
        return self._keep("cycle", step, loss, self._reading)

    def _go_to(self, step: int) -> None:
        """Drop samples of this step and later ones: they are of an interrupted run, and will be taken again."""
        self._seen = step
        kept = [entry for entry in self._entries if entry[0].step < step]
        if self._reading is not None and self._reading.step >= step:
            self._reading = None
        if len(kept) < len(self._entries):
            self._entries = kept
            self._commit()

    def _keep(self, kind: Kind, step: int, loss: float | Tensor | None, reading: Reading | None) -> SampleRecord:
        if self._model is None:
            raise ValueError("there is no model to keep; give one to SampleCollector.open(folder, model, optimizer)")
        cycle_steps = getattr(self._optimizer, "cycle_steps", None)
        record = SampleRecord(
            kind=kind,
            step=step,
            cycle=max(step - 1, 0) // cycle_steps if cycle_steps else 0,
            loss=None if loss is None else real("loss", loss.item() if isinstance(loss, Tensor) else loss),
            reading=reading,
        )
        if self.keep == "best" and kind == "cycle" and record.loss is None:
            raise ValueError('keep="best" goes by the loss; hand it over: update(loss=loss)')
        last = self._entries[-1][1] if self._entries else None
        held = self._hold(copied(self._model, last if isinstance(last, dict) else None))
        others = [entry for entry in self._entries if (entry[0].kind, entry[0].step) != (kind, step)]
        self._entries = self._chosen([*others, (record, held)])
        self._count_dropped(len(others) + 1 - len(self._entries), kind)
        self._commit()
        return record

    def _count_dropped(self, number: int, kind: Kind) -> None:
        self.dropped += number
        if number and self._by_default and not self._said:
            self._said = True
            warn_user(
                f"there are more than {self.at_most} {kind} samples, the default of at_most, and from now on one of them is "
                "dropped for each new one. Give the number of samples to average as SampleCollector(at_most=...)"
            )

    def _chosen(self, entries: list[Entry]) -> list[Entry]:
        """Return at most `at_most` of each kind, in the order in which they were taken."""
        kept: list[Entry] = []
        for kind in ("cycle", "cold"):
            of_kind = [entry for entry in entries if entry[0].kind == kind]
            if kind == "cycle" and self.keep == "best":
                of_kind.sort(key=_badness)
            kept += of_kind[-self.at_most :]
        return sorted(kept, key=lambda entry: entry[0].step)

    # ---- batch norm ----

    def refresh_batch_norm(
        self,
        inputs: Inputs,
        model: nn.Module | None = None,
        *,
        batch_size: int | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
    ) -> None:
        """Compute the running statistics of batch norm anew for each sample, by one pass over the inputs.

        Those that were collected average over the path that led to the sample, noise included. Dropout is active, as in
        training. It is done on a copy of `model`, the collector's own if left out, which stays as it is. Inputs, `batch_size`
        and `forward` are those of `predict`; a loader that shuffles is welcome.
        """
        model = self._model if model is None else model
        if model is None:
            raise ValueError("there is no model to compute statistics with; give refresh_batch_norm(loader, model)")
        if self._folder is not None and rank() != 0:
            return
        own = copy.deepcopy(bare(model)).train()
        norms = [module for module in own.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        if not norms:
            return
        shuffled = isinstance(inputs, DataLoader)
        batches = inputs if shuffled else as_batches(inputs, batch_size, own)
        device = next(own.parameters()).device
        for position, (record, held) in enumerate(self._entries):
            state = self._load(held)
            check_fits(own, state)
            with torch.no_grad():
                for name, tensor in tensors_of(own).items():
                    tensor.copy_(state[name])
                for norm in norms:
                    norm.reset_running_stats()
                    norm.momentum = None  # the mean over all batches
                for batch in batches:
                    called(own, moved(batch, device)) if forward is None else forward(own, moved(batch, device))
            self._entries[position] = replace(record, batch_norm_refreshed=True), self._hold(copied(own, state))
            self._commit()

    # ---- memory, disk, state ----

    def _hold(self, state: dict[str, Tensor]) -> Held:
        if self._folder is None:
            return state
        self._serial += 1
        return self._folder.write_sample(self._serial, state) if rank() == 0 else None

    def _load(self, held: Held) -> dict[str, Tensor]:
        if isinstance(held, dict):
            return dict(held)
        if self._folder is None or held is None:
            raise ValueError(
                "rank 0 has the files; after a barrier, SampleCollector.open(folder) reads them on every rank"
            )
        state = self._folder.read_sample(held)
        if self._model is not None:
            check_fits(bare(self._model), state, read=True)
        return state

    def _commit(self) -> None:
        """Make the index say what the entries are, by rank 0; in memory there is none."""
        if self._folder is None or rank() != 0:
            return
        files = [(record, held) for record, held in self._entries if isinstance(held, File)]
        index = {
            "at_most": self.at_most,
            "at_most_by_default": self._by_default,
            "cold_every": self.cold_every,
            "keep": self.keep,
            "dropped": self.dropped,
            "serial": self._serial,
            "reading": None if self._reading is None else asdict(self._reading),
            "samples": [{"record": to_plain(record), "file": asdict(file)} for record, file in files],
        }
        self._folder.write_index(index, [file.name for _, file in files])

    def contents(self) -> dict[str, Any]:
        """Return records and tensors, read from the disk if they are there."""
        samples = [{"record": to_plain(record), "state": self._load(held)} for record, held in self._entries]
        reading = None if self._reading is None else asdict(self._reading)
        return {"reading": reading, "dropped": self.dropped, "samples": samples}

    def state_dict(self) -> dict[str, Any]:
        """Return a collection in memory, with its tensors, fit for `torch.save` and `torch.load(weights_only=True)`."""
        if self._folder is not None:
            raise ValueError(f"the samples are in {self._folder.path}; SampleCollector.open goes on with them")
        return self.contents()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` made; one that is refused changes nothing."""
        if self._folder is not None:
            raise ValueError(f"the samples are in {self._folder.path}; SampleCollector.open goes on with them")
        self.accept(self.checked(state_dict))

    def checked(self, state_dict: Any) -> tuple[list[Entry], Reading | None, int]:
        """Return what a state holds, each part looked at."""
        if not isinstance(state_dict, dict):
            raise TypeError(
                f"state_dict must be a dict, got {type(state_dict).__name__}. Give what state_dict() has returned"
            )
        try:
            entries: list[Entry] = [(from_plain(item["record"]), dict(item["state"])) for item in state_dict["samples"]]
            reading = reading_from_plain(state_dict["reading"])
            dropped = bounded("dropped", state_dict.get("dropped", 0))
        except (KeyError, TypeError) as error:
            raise ValueError(f"state_dict must be one that a collector has made, got {error!r}") from None
        if self._model is not None:
            for item in state_dict["samples"]:
                check_fits(bare(self._model), item["state"], read=True)
        return entries, reading, dropped

    def accept(self, checked: tuple[list[Entry], Reading | None, int]) -> None:
        """Take over what `checked` has returned."""
        entries, self._reading, self.dropped = checked
        self._entries = [(record, self._hold(dict(held))) for record, held in self._chosen(entries)]  # type: ignore[arg-type]
        self._seen = None
        self._commit()


def _badness(entry: Entry) -> tuple[float, int]:
    """Return a key that sorts from the worst to the best; of two equally good samples the newer is better."""
    assert entry[0].loss is not None
    return -entry[0].loss, entry[0].step
