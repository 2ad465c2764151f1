"""Traces of what samples say, for R-hat and ArviZ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctld.ensembles.samples import Sample


def traces(
    chains: Sequence[Iterable[Sample]], functionals: Mapping[str, Callable[[Sample], ArrayLike]]
) -> dict[str, NDArray[np.float64]]:
    """Arrays of shape (chains, draws, ...) by name, as `diagnostics.convergence` and `diagnostics.to_arviz` take them.

    >>> found = traces([one, other], {"norm": lambda sample: sample.state["0.weight"].norm()})     # doctest: +SKIP
    >>> diagnostics.to_arviz(found)                                                                # doctest: +SKIP

    Parameters
    ----------
    chains
        The samples of independent runs, a collector for each, equally many in each. One sample is in memory at a time.
    functionals
        By name, what to take of a sample: a number or an array of one shape. Of single weights R-hat says little, since hidden
        units can change places; take losses, norms or predictions.
    """
    drawn = [
        [{name: np.asarray(take(sample), dtype=np.float64) for name, take in functionals.items()} for sample in chain]
        for chain in chains
    ]
    lengths = [len(chain) for chain in drawn]
    if len(set(lengths)) > 1:
        raise ValueError(f"the chains have {lengths} samples; give equally many of each, as by list(chain)[-n:]")
    return {name: np.stack([np.stack([draw[name] for draw in chain]) for chain in drawn]) for name in functionals}
