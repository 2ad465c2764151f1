"""Whether several chains have drawn from one distribution: R-hat and effective sample sizes, by ArviZ (extra `lab`).

ArviZ is imported when it is asked for; versions 0.x and 1.x will do.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctld.diagnostics.errors import finite_array


@dataclass(frozen=True, slots=True)
class Convergence:
    """Of one quantity; arrays have its shape, without chains and draws."""

    r_hat: NDArray[np.float64]
    """Rank-normalised split R-hat (Vehtari et al. 2021): above 1.01, the chains have not mixed."""
    ess_bulk: NDArray[np.float64]
    """How many independent draws would know the centre as well."""
    ess_tail: NDArray[np.float64]
    """The same for the 5 % and 95 % quantiles, the smaller of the two."""


def convergence(draws: Mapping[str, ArrayLike]) -> dict[str, Convergence]:
    """R-hat and effective sample sizes of every element of every quantity.

    Parameters
    ----------
    draws
        By name, arrays of shape ``(chains, draws, ...)``: at least two chains and four draws.

    Returns
    -------
    dict
        By name.
    """
    arrays = {name: _checked(name, values) for name, values in draws.items()}
    arviz = _arviz()
    data = arviz.convert_to_dataset(arrays)
    r_hat, bulk, tail = arviz.rhat(data), arviz.ess(data, method="bulk"), arviz.ess(data, method="tail")
    return {
        name: Convergence(*(np.asarray(found[name].values, dtype=np.float64) for found in (r_hat, bulk, tail)))
        for name in arrays
    }


def to_arviz(draws: Mapping[str, ArrayLike]) -> Any:
    """The draws as ArviZ has them, for its plots and tables: an `InferenceData` in 0.x, a `DataTree` in 1.x."""
    arrays = {name: _checked(name, values) for name, values in draws.items()}
    arviz = _arviz()
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_dict(posterior=arrays)
    return arviz.from_dict({"posterior": arrays})


def _checked(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < 2 or array.shape[0] < 2 or array.shape[1] < 4:
        raise ValueError(
            f"{name} has shape {array.shape}; give (chains, draws, ...), with two chains and four draws at least"
        )
    return finite_array(array, name, dimensions=(array.ndim,), shapes="(chains, draws, ...)")


def _arviz() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # 0.x announces 1.x
            return import_module("arviz")
    except ImportError as error:
        raise ImportError('ArviZ is needed for this; pip install "ctld[lab]", or arviz') from error
