"""Store of draws during a run: arrays in memory, or files of a folder from which a killed run goes on.

    settings.json     what was asked for; a run that asks for something else is refused
    NAME.npy          one array for each quantity, (chains, draws, ...), written in place
    state.pt          chains, batches, random numbers, and how many rows of the arrays count
    finished.json     counts, temperatures and remarks, once the run is complete

Rows beyond those that the state counts are of a run that was killed, and are written again with the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctld.sampling import files
from ctld.sampling.draws import Counts, Draws, below, counts_of, thermometers_of, thermometers_to_plain
from ctld.thermometers import GroupTemperatures

Array = NDArray[Any]
SETTINGS, STATE, FINISHED, NAMES = "settings.json", "state.pt", "finished.json", "arrays.json"
IN_MEMORY = 2**31
"""Bytes of draws that are kept without a folder."""


class Store:
    """Arrays of draws, allocated by the first draw.

    Parameters
    ----------
    num_chains, at_most : int
        Chains, and draws of each.
    folder : Path, optional
        Where they are written; in memory if left out.
    """

    def __init__(self, num_chains: int, at_most: int, folder: Path | None) -> None:
        self.num_chains, self.at_most, self.folder = num_chains, at_most, folder
        self.counts = [0] * num_chains
        self.arrays: dict[str, Array] = {}

    def check(self, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        """Refuse arrays that memory would not hold, before any work is done."""
        total = sum(
            self.num_chains * self.at_most * int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            for shape, kind in shapes.values()
        )
        if self.folder is None and total > IN_MEMORY:
            raise ValueError(
                f"the draws must fit into {IN_MEMORY / 2**30:.0f} GiB of memory, got {total / 2**30:.1f} GiB. Give folder=, a "
                "larger thin=, or keep_parameters=False"
            )

    def add(self, chain: int, values: Mapping[str, Array]) -> None:
        """Keep one draw of a chain."""
        if not self.arrays:
            self._allocate(values)
        row = self.counts[chain]
        for name, value in values.items():
            self.arrays[name][chain, row] = value
        self.counts[chain] += 1

    def _allocate(self, values: Mapping[str, Array]) -> None:
        for number, (name, value) in enumerate(values.items()):
            shape = (self.num_chains, self.at_most, *value.shape)
            if self.folder is None:
                self.arrays[name] = np.empty(shape, value.dtype)
            else:
                file = self.folder / f"{number:03d}.npy"
                self.arrays[name] = np.lib.format.open_memmap(file, mode="w+", dtype=value.dtype, shape=shape)
        if self.folder is not None:
            files.write_json(self.folder / NAMES, {name: f"{number:03d}.npy" for number, name in enumerate(values)})

    def flush(self) -> None:
        """Bring what was added to the disk."""
        for array in self.arrays.values():
            if isinstance(array, np.memmap):
                array.flush()

    def resume(self, counts: list[int]) -> None:
        """Go on where `counts` rows of each chain count."""
        assert self.folder is not None
        self.counts = list(counts)
        self.arrays = open_arrays(self.folder, "r+") if any(counts) else {}

    def kept(self, chains: list[int]) -> dict[str, Array]:
        """Return the rows that all of these chains have."""
        least = min((self.counts[chain] for chain in chains), default=0)
        whole = chains == list(range(self.num_chains))
        return {name: (array if whole else array[chains])[:, :least] for name, array in self.arrays.items()}


def open_arrays(folder: Path, mode: Any) -> dict[str, Array]:
    """Return the arrays of a folder as memory maps."""
    names = files.read_json(folder / NAMES)
    known = {file.name for file in folder.glob("[0-9][0-9][0-9].npy")}
    odd = [name for name in names.values() if name not in known]
    if odd:
        raise ValueError(
            f"{folder / NAMES} must name arrays of this folder, got {odd[0]!r}. Restore it, or sample anew"
        )
    return {name: np.load(folder / file, mmap_mode=mode, allow_pickle=False) for name, file in names.items()}


def begin(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the state to go on from, None for a new run; refuse a folder of another run before anything is touched."""
    place = folder / SETTINGS
    if not place.exists():
        if folder.exists() and any(not entry.name.endswith(".unfinished") for entry in folder.iterdir()):
            raise FileExistsError(
                f"folder must be empty or one of ctld.sample, got {folder} with other files. Give another"
            )
        files.write_json(place, settings)
        return None
    before = files.read_json(place)
    now = json.loads(json.dumps(settings))
    odd = [name for name in now if before.get(name) != now[name]]
    if odd:
        raise ValueError(
            f"{odd[0]} must be {before.get(odd[0])!r} as in the run that {folder} holds, got {now[odd[0]]!r}. Ask for the "
            "same, or give another folder"
        )
    return files.read_state(folder / STATE) if (folder / STATE).exists() else None


def made(
    store: Store,
    counts: Counts,
    settings: dict[str, Any],
    thermometers: tuple[tuple[GroupTemperatures | None, ...], ...],
    remarks: tuple[str, ...],
) -> Draws:
    """Return the draws of a run that is complete."""
    chains = [chain for chain in range(store.num_chains) if chain not in counts.lost]
    arrays = store.kept(chains)
    return Draws(
        parameters=below(arrays, "parameters/"),
        statistics=below(arrays, "statistics/"),
        counts=counts,
        settings=settings,
        predictions=arrays.get("predictions"),
        projections=arrays.get("projections"),
        thermometers=tuple(thermometers[chain] for chain in chains) if thermometers else (),
        remarks=remarks,
    )


def finish(folder: Path, draws: Draws, all_thermometers: tuple[tuple[GroupTemperatures | None, ...], ...]) -> None:
    """Write that a run is complete."""
    about = {
        "counts": asdict(draws.counts),
        "settings": draws.settings,
        "thermometers": thermometers_to_plain(all_thermometers),
        "remarks": list(draws.remarks),
    }
    files.write_json(folder / FINISHED, about)


def draws_of_folder(folder: Path) -> Draws:
    """Return the draws of a run that has finished in a folder; arrays stay on the disk and are read as they are used."""
    if not (folder / FINISHED).exists():
        raise ValueError(
            f"{folder} must hold a finished run, got none. Call ctld.sample with this folder to go on with it"
        )
    about = files.read_json(folder / FINISHED)
    counts = counts_of(about["counts"])
    store = Store(len(counts.draws), max(counts.draws), folder)
    store.counts, store.arrays = list(counts.draws), open_arrays(folder, "r")
    return made(store, counts, about["settings"], thermometers_of(about["thermometers"]), tuple(about["remarks"]))
