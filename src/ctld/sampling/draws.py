"""Draws of a run of chains, with their convergence and their temperatures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctld.diagnostics.convergence import Convergence, convergence, to_arviz
from ctld.diagnostics.errors import Estimate
from ctld.sampling import files
from ctld.thermometers import GroupTemperatures

Array = NDArray[Any]
FORMAT = 1
R_HAT_LIMIT = 1.05
LEAST_ESS = 100.0
FAR = 0.1
SELDOM = 0.05
"""Share of the draws that were due below which a chain is called so."""
CERTAIN = 4.0
_PARAMETER = "parameters/"


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of draws and steps in each chain."""

    draws: tuple[int, ...]
    steps: int
    """Steps that each chain was asked to take, burn-in among them."""
    burn_in: int
    refused: tuple[int, ...]
    """Steps that were refused because a loss or a gradient was not finite."""
    lost: tuple[int, ...] = ()
    """Numbers of the chains that were given up; their draws are left out."""


@dataclass(frozen=True)
class Draws:
    """Draws of several chains; arrays have the shape (chains, draws, ...).

    Chains that were given up are left out, and the others are cut to the length of the shortest.
    """

    parameters: dict[str, Array]
    """By name; empty if they were not kept."""
    statistics: dict[str, Array]
    """One number for each draw: `loss`, of the last batch before the draw, and `kinetic_temperature` where it is known."""
    counts: Counts
    settings: dict[str, Any]
    """Options of the run, with the lr and the seed that were chosen."""
    predictions: Array | None = None
    """Outputs of the model for the inputs that were given as `predict`."""
    projections: Array | None = None
    """Inner products of all parameters with fixed directions."""
    thermometers: tuple[tuple[GroupTemperatures | None, ...], ...] = ()
    """For each chain, the temperatures of each group in units of the temperature asked for: 1 is right."""
    remarks: tuple[str, ...] = field(default=())
    """Warnings that were given during the run."""

    # ---- do the chains agree? ----

    @property
    def quantities(self) -> dict[str, Array]:
        """Quantities that `convergence` looks at: predictions where there are some, else parameters, else projections."""
        if self.predictions is not None:
            return {"predictions": self.predictions}
        if self.parameters:
            return dict(self.parameters)
        return {} if self.projections is None else {"projections": self.projections}

    def convergence(self, *, every: bool = False) -> dict[str, Convergence]:
        """Return R-hat and effective sample sizes by quantity.

        Parameters
        ----------
        every : bool
            True for all that was kept. By default predictions come first: hidden units of a network can change places,
            so that its parameters seldom agree between chains, whether or not what they compute does.
        """
        return convergence(self.groups["posterior"] if every else self.quantities)

    @property
    def r_hat(self) -> float:
        """The largest R-hat of the quantities; NaN if there are too few chains or draws."""
        return self._extreme("r_hat", np.max)

    @property
    def ess(self) -> float:
        """The smallest effective sample size of the quantities, bulk or tail; NaN if there are too few chains or draws."""
        return min(self._extreme("ess_bulk", np.min), self._extreme("ess_tail", np.min))

    def _extreme(self, what: str, of: Any) -> float:
        if len(self) < 2 or self.num_draws < 4 or not self.quantities:
            return float("nan")
        found = [np.asarray(getattr(each, what)) for each in self._agreement.values()]
        return float(of([of(values) for values in found if values.size]))

    @property
    def _agreement(self) -> dict[str, Convergence]:
        known: dict[str, Convergence] | None = self.__dict__.get("_known")
        if known is None:
            known = self.__dict__["_known"] = self.convergence()
        return known

    def __len__(self) -> int:
        """Return the number of chains."""
        return len(self.statistics["loss"])

    @property
    def num_draws(self) -> int:
        """The number of draws of each chain."""
        return int(self.statistics["loss"].shape[1])

    def __bool__(self) -> bool:
        return True

    # ---- advice ----

    def advice(self) -> list[str]:
        """Return sentences on why these draws should not be believed, each with one thing to do; empty if nothing is wrong."""
        said = []
        if self.counts.lost:
            said.append(
                f"chains {list(self.counts.lost)} were given up after refusing many steps in a row. Lower lr, or look at "
                "the model for a funnel"
            )
        if self.r_hat > R_HAT_LIMIT:
            said.append(
                f"R-hat is {self.r_hat:.2f}: the chains, which began at different places, do not agree. Raise num_steps; if "
                "that does not help, the chains sit in different modes or in a funnel (docs/sampling.md)"
            )
        elif self.ess < LEAST_ESS:
            said.append(
                f"the effective sample size is {self.ess:.0f}. Raise num_steps until it is {LEAST_ESS:.0f} at least"
            )
        elif len(self) == 1:
            said.append("one chain cannot tell whether it has converged. Give num_chains=4")
        due = (self.counts.steps - self.counts.burn_in) // int(self.settings.get("thin", 1))
        few = {
            chain: draws
            for chain, draws in enumerate(self.counts.draws)
            if chain not in self.counts.lost and draws < SELDOM * due
        }
        if few:
            said.append(
                f"chains {list(few)} were at their temperature at {min(few.values())} of {due} moments at which a draw was due"
                ". Lower lr, or the depth of the tempering, and look at how α moves"
            )
        hot = self.hottest
        if hot is not None and abs(hot.mean - 1.0) > FAR + CERTAIN * hot.standard_error:
            cause = "Lower lr or take larger batches" if hot.mean > 1.0 else "Lower lr"
            said.append(
                f"a chain has a temperature of {hot.mean:.2f} ± {hot.standard_error:.2f} times the right one. {cause}"
            )
        return said

    @property
    def hottest(self) -> Estimate | None:
        """The temperature of the parameters that is furthest from 1, of all chains and groups; None if none is known."""
        found = [group.effective for chain in self.thermometers for group in chain if group is not None]
        known = [temperature for temperature in found if temperature is not None]
        return max(known, key=lambda temperature: abs(temperature.mean - 1.0), default=None)

    def __repr__(self) -> str:
        words = [f"{len(self)} chains of {self.num_draws} draws", f"R-hat {self.r_hat:.3f}", f"ESS {self.ess:.0f}"]
        if self.hottest is not None:
            words.append(f"temperature {self.hottest.mean:.2f} ± {self.hottest.standard_error:.2f}")
        return f"<Draws: {', '.join(words)}; {len(self.advice())} remarks>"

    # ---- elsewhere ----

    @property
    def groups(self) -> dict[str, dict[str, Array]]:
        """The arrays under ArviZ's names: posterior, predictions, sample_stats."""
        posterior = dict(self.parameters)
        if self.projections is not None:
            posterior["projections"] = self.projections
        found = {"posterior": posterior, "sample_stats": dict(self.statistics)}
        if self.predictions is not None:
            found["predictions"] = {"predictions": self.predictions}
            if not posterior:
                found["posterior"] = {"predictions": self.predictions}
        return found

    def to_arviz(self) -> Any:
        """Return an `InferenceData` (ArviZ 0.x) or a `DataTree` (1.x) with posterior, sample_stats and predictions."""
        groups: dict[str, Any] = dict(self.groups)
        return to_arviz(groups.pop("posterior"), **groups)

    def plot(self, quantity: str | None = None, *, elements: int = 4) -> Any:
        """Return a matplotlib figure with traces, rank plots and the kinetic temperature.

        Parameters
        ----------
        quantity : str, optional
            A name of `groups["posterior"]`, or "predictions"; the first of `quantities` if left out.
        elements : int
            How many elements of it are shown.
        """
        from ctld.sampling.plot import figure

        return figure(self, quantity, elements)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one .npz file, without pickle; an older file is replaced at once or not at all."""
        arrays = {f"{_PARAMETER}{name}": values for name, values in self.parameters.items()}
        arrays |= {f"statistics/{name}": values for name, values in self.statistics.items()}
        for name in ("predictions", "projections"):
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        about = {
            "format": FORMAT,
            "counts": asdict(self.counts),
            "settings": self.settings,
            "thermometers": thermometers_to_plain(self.thermometers),
            "remarks": list(self.remarks),
        }
        files.write_arrays(Path(path), arrays, about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Draws:
        """Return the draws that `save` wrote, or those of a folder in which `ctld.sample` has finished."""
        place = Path(path)
        if place.is_dir():
            from ctld.sampling.store import draws_of_folder

            return draws_of_folder(place)
        arrays, about = files.read_arrays(place)
        if about.get("format") != FORMAT:
            raise ValueError(
                f"{place} must have format {FORMAT}, got {about.get('format')}. Read it by the ctld that wrote it"
            )
        return cls(
            parameters=below(arrays, _PARAMETER),
            statistics=below(arrays, "statistics/"),
            counts=counts_of(about["counts"]),
            settings=about["settings"],
            predictions=arrays.get("predictions"),
            projections=arrays.get("projections"),
            thermometers=thermometers_of(about["thermometers"]),
            remarks=tuple(about["remarks"]),
        )


def below(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def counts_of(plain: Mapping[str, Any]) -> Counts:
    """Return counts from what JSON keeps of them."""
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return Counts(**found)


def thermometers_to_plain(chains: tuple[tuple[GroupTemperatures | None, ...], ...]) -> list[Any]:
    """Return temperatures as JSON keeps them."""
    return [[None if group is None else asdict(group) for group in chain] for chain in chains]


def thermometers_of(plain: list[Any]) -> tuple[tuple[GroupTemperatures | None, ...], ...]:
    """Return temperatures from what JSON keeps of them."""
    return tuple(tuple(None if group is None else _group(group) for group in chain) for chain in plain)


def _group(plain: Mapping[str, Any]) -> GroupTemperatures:
    found: dict[str, Any] = {}
    for name, value in plain.items():
        found[name] = Estimate(**value) if isinstance(value, dict) else value
    return GroupTemperatures(**found)
