"""The law of the metric of one input: given the metric, the neurons of a layer are independent and Gaussian (4.69).

Only its shape matters for information, so that laws are kept as points of log G with weights: a quadrature where the
law is known, or draws of networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from foretrain.support.answers import Result
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.linear.law import log_chi_square_moment

Array = NDArray[np.float64]

_TINY = 1e-18  # what the transform of a density may leave out
_TILTS = (0.0, 3.0)
_REACH = 12.0  # standard deviations of log G that are kept on either side
_LARGEST_SPREAD = 60.0  # beyond it the mean is carried by draws that no quadrature in double precision sees


@dataclass(frozen=True, eq=False, repr=False)
class MetricLaw(Result):
    """Points of log G with weights that add up to one; ``draws`` is 0 where the law is known and not sampled."""

    also = ("mean", "relative_variance")
    log_metric: Array
    weights: Array
    draws: int
    name: str

    @property
    def mean(self) -> float:
        """E[G]."""
        return float(self.weights @ np.exp(self.log_metric))

    @property
    def relative_variance(self) -> float:
        """X = Var[G] / E[G]^2, of which the series are made."""
        G = np.exp(self.log_metric)
        mean = self.weights @ G
        return float(self.weights @ (G / mean - 1) ** 2)


def log_normal_law(log_variance: float) -> MetricLaw:
    """log G ~ N(-y/2, y): deep scale-invariant networks as n and L grow, where y = nu L / n; X = e^y - 1.

    A product of many independent factors near one, whatever the slopes; skip connections change nu only.
    """
    if not (math.isfinite(log_variance) and 0 <= log_variance <= _LARGEST_SPREAD):
        raise InputError(
            f"the variance of log G is {log_variance!r}: give nu L / n, from 0 to {_LARGEST_SPREAD:g}."
        )
    name = f"log-normal, variance {log_variance:g}"
    if log_variance == 0:
        return MetricLaw(np.zeros(1), np.ones(1), 0, name)
    deviation = math.sqrt(log_variance)
    # The mean is carried by points at log G = +y/2, so the grid must reach beyond them.
    half = _REACH + deviation
    points = np.linspace(-half, half, 2 * math.ceil(half / min(0.25, 0.1 / deviation)) + 1)
    weights = np.exp(-(points**2) / 2)
    return MetricLaw(deviation * points - log_variance / 2, weights / weights.sum(), 0, name)


def linear_law(widths: Sequence[int]) -> MetricLaw:
    """The product of chi^2_n / n over hidden layers: linear networks, exact at any width (one layer: X = 2/n).

    The density of log G from its characteristic function, a product of Gamma functions.
    """
    hidden = list(widths)
    if not hidden or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in hidden):
        raise InputError(f"the widths are {widths!r}: give positive whole numbers, one per hidden layer.")
    half = np.array(hidden) / 2
    mean = float((special.digamma(half) - np.log(half)).sum())
    deviation = math.sqrt(float(special.polygamma(1, half).sum()))
    # Small G are as rare as G^(n/2) for the narrowest layer, a tail that is longer than that of a normal law.
    low = mean - max(_REACH * deviation, 40 / half.min())
    high = mean + (_REACH + deviation) * deviation
    cut = max(_cut(hidden, tilt, deviation) for tilt in _TILTS)
    frequencies = math.pi / (high - low) * np.arange(math.ceil(cut * (high - low) / math.pi))
    points = np.linspace(low, high, 2 * len(frequencies) + 1)
    # Rounding errors of a transform are of one size everywhere; weighed with G^3 they fall. Switch where both agree.
    switch = math.log(abs(_transform(hidden, _TILTS[1], np.zeros(1))[0])) / _TILTS[1]
    sides = (points < switch, points >= switch)
    density = np.concatenate(
        [_density(hidden, tilt, points[side], frequencies) for tilt, side in zip(_TILTS, sides)]
    )
    return MetricLaw(points, density / density.sum(), 0, f"linear, {len(hidden)} hidden layers")


def _transform(widths: Sequence[int], tilt: float, frequencies: Array) -> NDArray[np.complex128]:
    """E[G^(tilt + i s)]."""
    return np.asarray(np.exp(sum(log_chi_square_moment(n, tilt + 1j * frequencies) for n in widths)))


def _density(widths: Sequence[int], tilt: float, points: Array, frequencies: Array) -> Array:
    """The density of log G, up to a constant: e^(-tilt y) int ds e^(-i s y) E[G^(tilt + i s)]."""
    values = _transform(widths, tilt, frequencies) * np.where(frequencies == 0, 0.5, 1.0)
    waves = np.exp(-1j * points[:, None] * frequencies)
    return np.asarray(np.clip((waves @ values).real, 0.0, None) * np.exp(-tilt * points))


def _cut(widths: Sequence[int], tilt: float, deviation: float) -> float:
    """The frequency from which on the transform is nothing."""
    cut = 1 / deviation
    size = abs(_transform(widths, tilt, np.zeros(1))[0])
    while abs(_transform(widths, tilt, np.array([cut]))[0]) > _TINY * size:
        cut *= 1.25
    return cut


def sampled_law(
    mlp: MLP, x: ArrayLike, draws: int = 20_000, *, layer: int | None = None, seed: Seed = 0
) -> MetricLaw:
    """The metric of a layer (the output by default) of random networks, for one input x.

    In a layer with a skip connection neurons are not Gaussian given the metric, so that only those without one, such
    as the output, are taken.
    """
    vector, number = one_input(x), mlp.check_layer(layer)
    if mlp.gamma[number - 1]:
        raise InputError(
            f"layer {number} has a skip connection, by which neurons know their past: take the output, {mlp.depth}."
        )
    G = sample_metric(mlp, vector[None], draws, layers=[number], seed=seed).values.ravel()
    dead = int((G <= 0).sum())
    if dead:
        raise InputError(
            f"{dead} of {draws} networks give no signal at all at layer {number}, so that outputs have no density: "
            "widen the network, make it shallower, or give biases a variance."
        )
    return MetricLaw(
        np.log(G), np.full(len(G), 1 / len(G)), len(G), f"{mlp.activation.label}, layer {number}"
    )
