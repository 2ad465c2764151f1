"""Convergence of several chains to one distribution: R-hat and effective sample sizes (Vehtari et al. 2021).

    split     each chain is cut in two, so that a chain which still moves disagrees with itself
    R-hat     sqrt((B/W + n − 1)/n), of rank-normalised draws and of their distances from the median; the larger one
    ESS bulk  of rank-normalised draws; ESS tail: of the indicators of the 5 % and the 95 % quantile, the smaller one

The numbers are those of ArviZ. numpy suffices for them; ArviZ is imported for `to_arviz` alone (extra `lab`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ctld.diagnostics.errors import finite_array

Array = NDArray[np.float64]
BLOCK = 2**22
"""Numbers that are worked on at once."""


@dataclass(frozen=True, slots=True)
class Convergence:
    """R-hat and effective sample sizes of one quantity; arrays have its shape, without chains and draws."""

    r_hat: Array
    """Rank-normalised split R-hat: above 1.01, the chains have not mixed."""
    ess_bulk: Array
    """Number of independent draws that would know the centre as well."""
    ess_tail: Array
    """The same for the 5 % and 95 % quantiles, the smaller of the two."""


def convergence(draws: Mapping[str, ArrayLike]) -> dict[str, Convergence]:
    """Return R-hat and effective sample sizes of every element of every quantity.

    Parameters
    ----------
    draws
        By name, arrays of shape ``(chains, draws, ...)``: at least two chains and four draws. An element that never
        changes has R-hat 1 and counts every draw.

    Returns
    -------
    dict
        By name.
    """
    return {name: _of_quantity(_checked(name, values)) for name, values in draws.items()}


def to_arviz(draws: Mapping[str, ArrayLike], **groups: Mapping[str, ArrayLike]) -> Any:
    """Return the draws as ArviZ has them, for its plots and tables: an `InferenceData` in 0.x, a `DataTree` in 1.x.

    Further `groups`, as sample_stats, are mappings of arrays of shape ``(chains, draws, ...)`` too.
    """
    arrays = {
        group: {name: _checked(name, values) for name, values in members.items()}
        for group, members in ({"posterior": draws} | groups).items()
    }
    arviz = _arviz()
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_dict(**arrays)
    return arviz.from_dict(arrays)


def _of_quantity(array: Array) -> Convergence:
    shape = array.shape[2:]
    flat = array.reshape(*array.shape[:2], -1)
    width = max(1, BLOCK // (array.shape[0] * array.shape[1]))
    parts = [_of_columns(_split(flat[:, :, at : at + width])) for at in range(0, flat.shape[2], width)]
    joined = np.concatenate(parts, axis=1) if parts else np.ones((3, 0))
    return Convergence(*(row.reshape(shape) for row in joined))


def _of_columns(draws: Array) -> Array:
    """Return R-hat, ESS bulk and ESS tail as three rows, of draws of shape (chains, draws, columns)."""
    flat = draws.reshape(-1, draws.shape[2])
    normal = _rank_normalised(draws)
    folded = _rank_normalised(np.abs(draws - np.median(flat, axis=0)))
    r_hat = np.maximum(_r_hat(normal), _r_hat(folded))
    tails = [_ess((draws <= np.quantile(flat, level, axis=0)).astype(np.float64)) for level in (0.05, 0.95)]
    return np.stack([r_hat, _ess(normal), np.minimum(*tails)])


def _split(draws: Array) -> Array:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _rank_normalised(draws: Array) -> Array:
    """Return normal scores of the ranks over all chains; equal draws share their mean rank."""
    flat = draws.reshape(-1, draws.shape[2])
    order = np.argsort(flat, axis=0, kind="stable")
    ranks = np.empty_like(flat)
    np.put_along_axis(ranks, order, np.arange(1.0, len(flat) + 1.0)[:, None], axis=0)
    ordered = np.take_along_axis(flat, order, axis=0)
    for column in np.flatnonzero((ordered[1:] == ordered[:-1]).any(axis=0)):
        _, inverse, counts = np.unique(flat[:, column], return_inverse=True, return_counts=True)
        ranks[:, column] = (np.cumsum(counts) - 0.5 * (counts - 1.0))[inverse]
    scores = torch.special.ndtri(torch.from_numpy((ranks - 0.375) / (len(flat) + 0.25)))
    return np.asarray(scores.numpy(), dtype=np.float64).reshape(draws.shape)


def _r_hat(draws: Array) -> Array:
    length = draws.shape[1]
    between = length * draws.mean(axis=1).var(axis=0, ddof=1)
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.sqrt((between / within + length - 1.0) / length)
    return np.where((between == 0.0) & (within == 0.0), 1.0, found)


def _ess(draws: Array) -> Array:
    """Return effective sample sizes by Geyer's initial monotone sequence; at most n log₁₀ n, Stan's cap."""
    chains, length, columns = draws.shape
    deviations = draws - draws.mean(axis=1, keepdims=True)
    transform = np.fft.rfft(deviations, n=2 * length, axis=1)
    covariance = np.fft.irfft(np.abs(transform) ** 2, n=2 * length, axis=1)[:, :length].mean(axis=0) / length
    within = covariance[0] * length / (length - 1.0)
    total = covariance[0] + (draws.mean(axis=1).var(axis=0, ddof=1) if chains > 1 else 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1.0 - (within - covariance) / total
    correlation[0] = 1.0
    even = max(length // 2 * 2 - 2, 2)
    pairs = correlation[:even:2] + correlation[1:even:2]
    positive = np.logical_and.accumulate(pairs > 0.0, axis=0)
    kept = np.where(positive, np.minimum.accumulate(pairs, axis=0), 0.0)
    # The first term of the pair that ends the sequence still belongs to it, where it is positive.
    last = np.minimum(2 * positive.sum(axis=0), length - 1)
    rest = np.maximum(correlation[last, np.arange(columns)], 0.0)
    time = np.maximum(-1.0 + 2.0 * kept.sum(axis=0) + rest, 1.0 / np.log10(chains * length))
    return np.where(total > 0.0, chains * length / time, float(chains * length))


def _checked(name: str, values: ArrayLike) -> Array:
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
        raise ImportError("ArviZ is needed for this; python -m pip install arviz") from error
