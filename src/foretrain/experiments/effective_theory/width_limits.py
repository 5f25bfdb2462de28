"""Measurements at several widths, carried to infinite width with a quadratic in 1/n."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import decorrelated
from foretrain.compare.judging.ladder import extrapolation_weights
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import FloatArray


@dataclass(frozen=True)
class WidthPlan:
    """How many networks of which widths are drawn."""

    draws: dict[int, int]  # networks by width


@dataclass(frozen=True)
class MethodPlan(WidthPlan):
    """The same, and how: with all weights drawn, or by metrics alone, which is exact at any width."""

    method: str


def infinite_width(
    widths: Sequence[int], value: FloatArray, error: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Measurements (widths, entries) extrapolated to 1/n = 0, and their standard errors."""
    weights = extrapolation_weights(min(widths) / np.array(widths, dtype=float), error)
    return (weights * value).sum(axis=0), np.sqrt(((weights * error) ** 2).sum(axis=0))


def limits(
    widths: Sequence[int], values: Any, errors: Any, theory: FloatArray, dim: str, labels: Any
) -> xr.Dataset:
    """Measurements (widths, entries) with standard errors, their limit, the theory, and z-scores."""
    measured, error = np.stack(values), np.stack(errors)
    limit, limit_error = infinite_width(widths, measured, error)
    return _labelled(widths, (measured, error, limit, limit_error, theory), dim, labels)


def limits_of_batches(
    draws: dict[int, int],
    seed: Seed,
    measure: Callable[[int, int, np.random.SeedSequence], FloatArray],
    theory: FloatArray,
    dim: str,
    labels: Any,
) -> xr.Dataset:
    """The same of values in batches of networks: ``measure`` takes width, count and seed, gives (batches, entries).

    With the z-scores of independent combinations of the entries, from the covariance over batches.
    """
    tasks = track(with_seeds(draws.items(), seed), "widths")
    batches = [measure(width, count, own) for (width, count), own in tasks]
    measured = np.stack([each.mean(axis=0) for each in batches])
    covariances = [np.cov(each.T) / len(each) for each in batches]
    error = np.sqrt([np.diagonal(each) for each in covariances])
    weights = extrapolation_weights(min(draws) / np.array(list(draws), dtype=float), error)
    covariance = sum(w[:, None] * w * each for w, each in zip(weights, covariances, strict=True))
    limit, limit_error = (weights * measured).sum(axis=0), np.sqrt(np.diagonal(covariance))
    data = _labelled(list(draws), (measured, error, limit, limit_error, theory), dim, labels)
    independent = decorrelated(data.z.values, np.asarray(covariance), len(batches[0]) - 1)
    return data.assign(independent=("direction", independent)).assign_coords(
        direction=np.arange(len(independent))
    )


def _labelled(widths: Sequence[int], columns: tuple[FloatArray, ...], dim: str, labels: Any) -> xr.Dataset:
    names = ("measured", "measured_error", "limit", "standard_error", "theory")
    dims: tuple[Any, ...] = (("width", dim), ("width", dim), dim, dim, dim)
    data = xr.Dataset(
        {name: (along, values) for name, along, values in zip(names, dims, columns, strict=True)},
        coords={"width": list(widths), dim: labels},
    )
    return data.assign(z=(data.limit - data.theory) / data.standard_error)
