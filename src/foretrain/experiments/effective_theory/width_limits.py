"""Measurements at several widths, carried to infinite width with a quadratic in 1/n, and how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import decorrelated
from foretrain.compare.judging.ladder import extrapolation_weights
from foretrain.support.answers import Panel
from foretrain.theory.architecture import FloatArray


def infinite_width(
    widths: Sequence[int], value: FloatArray, error: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Measurements (widths, entries) extrapolated to 1/n = 0, and their standard errors."""
    weights = extrapolation_weights(min(widths) / np.array(widths, dtype=float), error)
    return (weights * value).sum(axis=0), np.sqrt(((weights * error) ** 2).sum(axis=0))


def limits_of_batches(
    widths: Sequence[int], batches: Sequence[FloatArray], theory: FloatArray, dim: str, labels: Any
) -> xr.Dataset:
    """The same from the values in batches of networks (batches, entries) at every width, beside theory.

    With z-scores of all entries, and those of independent combinations of them, from the covariance over batches.
    """
    measured = np.stack([each.mean(axis=0) for each in batches])
    covariances = [np.cov(each.T) / len(each) for each in batches]
    error = np.sqrt([np.diagonal(each) for each in covariances])
    weights = extrapolation_weights(min(widths) / np.array(widths, dtype=float), error)
    covariance = sum(w[:, None] * w * each for w, each in zip(weights, covariances, strict=True))
    limit, limit_error = (weights * measured).sum(axis=0), np.sqrt(np.diagonal(covariance))
    score = (limit - theory) / limit_error
    independent = decorrelated(score, np.asarray(covariance), len(batches[0]) - 1)
    return xr.Dataset(
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


def draw_limit(
    panel: Panel, at: xr.Dataset, label: str, color: str, *, unit: float = 1.0, shift: float = 0.0
) -> None:
    """Draw one measured number against 1/n, and where the widths lead as a diamond at 1/n = 0.

    ``at`` holds it under the names of :func:`limits_of_batches`; ``unit`` divides it. ``shift`` moves it aside by so
    many times the largest 1/n, so that numbers that are nearly equal can be told apart.
    """
    inverse = 1 / at.width.values
    aside = shift * inverse.max()
    panel.curve(
        inverse + aside,
        at.measured / unit,
        "o",
        label,
        color,
        error=at.measured_error / abs(unit),
        hollow=True,
    )
    panel.curve([aside], at.limit / unit, "D", "", color, error=at.standard_error / abs(unit))
