"""Measurements at several widths, carried to infinite width with a quadratic in 1/n."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import decorrelated
from foretrain.compare.judging.widths import extrapolation_weights

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]


def infinite_width(widths: Sequence[int], value: Array, error: Array) -> tuple[Array, Array]:
    """Measurements (widths, entries) extrapolated to 1/n = 0, and their standard errors."""
    weights = extrapolation_weights(min(widths) / np.array(widths, dtype=float), error)
    return (weights * value).sum(axis=0), np.sqrt(((weights * error) ** 2).sum(axis=0))


def limits_of_batches(
    widths: Sequence[int], batches: Sequence[Array], theory: Array, dim: str, labels: Any
) -> xarray.Dataset:
    """The same from the values in batches of networks (batches, entries) at every width, beside theory.

    With z-scores of all entries, and those of independent combinations of them, from the covariance over batches.
    """
    import xarray

    measured = np.stack([each.mean(axis=0) for each in batches])
    covariances = [np.cov(each.T) / len(each) for each in batches]
    error = np.sqrt([np.diagonal(each) for each in covariances])
    weights = extrapolation_weights(min(widths) / np.array(widths, dtype=float), error)
    covariance = sum(w[:, None] * w * each for w, each in zip(weights, covariances, strict=True))
    limit, limit_error = (weights * measured).sum(axis=0), np.sqrt(np.diagonal(covariance))
    score = (limit - theory) / limit_error
    independent = decorrelated(score, np.asarray(covariance), len(batches[0]) - 1)
    return xarray.Dataset(
        {
            "measured": (("width", dim), measured),
            "measured_error": (("width", dim), error),
            "limit": (dim, limit),
            "standard_error": (dim, limit_error),
            "theory": (dim, theory),
            "z": (dim, score),
            "independent": ("direction", independent),
        },
        coords={"width": list(widths), dim: labels, "direction": np.arange(len(independent))},
    )
