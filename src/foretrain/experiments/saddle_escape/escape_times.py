"""Escape times of whole networks, and power laws fitted to escape times: straight lines in log time against log ε."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrain.experiments.judgements import sampled
from foretrain.experiments.registry import Row
from foretrain.gaussian.nodes import gauss_hermite
from foretrain.theory.architecture import FloatArray


def network_times(activation: str, scales: FloatArray, width: int, threshold: float) -> FloatArray:
    """When whole networks on the manifold, with scales (network, layer), reach X_1 = threshold.

    Their function depends on one input alone, so one is enough.
    """
    from foretrain.training import gradient_flow as flows

    problem = flows.Problem(activation, depth=scales.shape[1], width=width, inputs=1)
    escaped = flows.escape(
        problem,
        flows.ansatz(problem, scales),
        thresholds=(threshold,),
        observable="amplitude",
        metric="normalized",
        sample=flows.product_sample(problem, gauss_hermite(64)),
        integration=flows.Integration(rtol=1e-6),
    )
    return np.asarray(escaped["time"].values[:, 0])


class Fit(NamedTuple):
    """A line through log time against log ε: its slope with the standard error of the regression."""

    slope: float
    error: float
    intercept: float

    def times(self, epsilon: FloatArray) -> FloatArray:
        """The times on the line."""
        return np.asarray(np.exp(self.intercept + self.slope * np.log(epsilon)))


def fit(epsilon: FloatArray, time: FloatArray) -> Fit:
    """Least squares; points without a time are left out. A bend counts as scatter in the error."""
    known = np.isfinite(time)
    x, y = np.log(epsilon[known]), np.log(time[known])
    if len(x) < 3:
        return Fit(np.nan, np.nan, np.nan)
    slope, intercept = np.polyfit(x, y, 1)
    scatter = ((y - intercept - slope * x) ** 2).sum() / (len(x) - 2)
    return Fit(float(slope), float(np.sqrt(scatter / ((x - x.mean()) ** 2).sum())), float(intercept))


def over_seeds(times: FloatArray) -> FloatArray:
    """The geometric mean over the last axis; seeds without a time are left out."""
    return np.asarray(np.exp(np.nanmean(np.log(times), axis=-1)))


def seed_slopes(epsilon: FloatArray, times: FloatArray) -> FloatArray:
    """The slope of every seed; times are (epsilon, seed)."""
    return np.array([fit(epsilon, column).slope for column in times.T])


def fit_over_seeds(epsilon: FloatArray, times: FloatArray) -> Fit:
    """The line through the mean over seeds of log time; its error is that of the regression or of the seeds."""
    found = fit(epsilon, over_seeds(times))
    return found._replace(error=max(found.error, sampled(seed_slopes(epsilon, times)).error))


def descent_row(title: str, exact: float, times: FloatArray, note: str) -> Row:
    """Mean time of descent over seeds, within three standard errors of the flow and 2 % for rate and noise."""
    mean, error = sampled(times)
    return Row(title, exact, mean, error, bool(abs(mean - exact) <= 3 * error + 0.02 * exact), note)


def local_slopes(epsilon: FloatArray, time: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slopes between neighbours, and the ε in their geometric middle."""
    middle = np.sqrt(epsilon[1:] * epsilon[:-1])
    return middle, np.asarray(np.diff(np.log(time)) / np.diff(np.log(epsilon)))
