"""Kernel, vertex, next-to-leading metric, three-point function and NTK of an ensemble, with their batch values.

Every estimate is a function of means over networks, and its batch values are the pseudo-values of the jackknife.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.initial.preactivation_statistics import Statistics
from foretrain.compare.initial.tangent_statistics import TangentReaders, TangentStatistics
from foretrain.compare.judging.entries import BatchValues, Entry
from foretrain.theory.architecture import MLP
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.preactivation import PairExpectations, Response

Array = NDArray[np.float64]


def batch_values(mlp: MLP, K: Array, statistics: Statistics, entries: list[Entry]) -> BatchValues:
    """Of the entries of one ensemble; K (layers, inputs, inputs) is the theory's kernel."""
    readers = _readers(mlp, K, {entry.observable for entry in entries})
    return _pseudo_values(statistics, readers, entries, first_layer=1)


def tangent_batch_values(
    mlp: MLP, K: Array, Theta: Array, statistics: TangentStatistics, entries: list[Entry]
) -> BatchValues:
    """Of entries of the NTK's statistics; K and Theta are the theory's."""
    named = TangentReaders(mlp, K, Theta).named
    readers = {name: named(name) for name in {entry.observable for entry in entries}}
    return _pseudo_values(statistics, readers, entries, first_layer=2)


Means = TypeVar("Means", Statistics, TangentStatistics)


def _pseudo_values(
    statistics: Means, readers: Mapping[str, Callable[[Means], Array]], entries: list[Entry], first_layer: int
) -> BatchValues:
    def function(columns: dict[str, Array]) -> Array:
        means = type(statistics)(**columns)
        return _columns({name: reader(means) for name, reader in readers.items()}, entries, first_layer)

    return BatchValues.jackknife(function, vars(statistics))


def _columns(tensors: Mapping[str, Array], entries: list[Entry], first_layer: int) -> Array:
    """(…, entries) from tensors (…, layers, inputs, …)."""
    places: list[tuple[Any, ...]] = [(slice(None), e.layer - first_layer, *e.inputs) for e in entries]
    return np.stack([tensors[e.observable][place] for e, place in zip(entries, places)], axis=1)


def _readers(mlp: MLP, K: Array, wanted: set[str]) -> dict[str, Callable[[Statistics], Array]]:
    """For each observable the function of means (any leading axis) that gives it at all layers and inputs."""
    pairs = Pairs(K.shape[-1])
    fan_in = np.array(mlp.widths[:-1], dtype=float)
    number = pairs.number

    def mean(means: Statistics) -> Array:
        return np.asarray(K + means.mean[..., number])

    def vertex(means: Statistics) -> Array:
        covariance = means.product - means.mean[..., :, None] * means.mean[..., None, :]
        scaled = fan_in[:, None, None] * covariance
        return np.asarray(scaled[..., number[:, :, None, None], number[None, None]])

    def three_point(means: Statistics) -> Array:
        return np.asarray(fan_in[:, None, None, None] * means.triple[..., number])

    def kurtosis(means: Statistics) -> Array:
        variance = np.diagonal(mean(means), axis1=-2, axis2=-1)
        return np.asarray(fan_in[:, None] * (means.fourth - 3 * variance**2))

    found: dict[str, Callable[[Statistics], Array]] = {
        "K": mean,
        "V": vertex,
        "three_point": three_point,
        "kurtosis": kurtosis,
    }
    if "G1" in wanted:
        shift = _MetricShift(mlp, K)
        found["G1"] = lambda means: fan_in[:, None, None] * shift(means.remainder)[..., number]
    return {name: reader for name, reader in found.items() if name in wanted}


class _MetricShift:
    """E[Ĝ] − K by the exact rearrangement C_W E[F(Ĝ) − F(K) − M (Ĝ − K)] + C_W M (E[Ĝ] − K) of the layer before.

    It holds for any M; with M = dF/dK the noise of first order in Ĝ − K is gone, and that of n E[Ĝ − K] does not
    grow with n.
    """

    def __init__(self, mlp: MLP, K: Array) -> None:
        self._C_W = mlp.C_W
        self._responses: list[Response] = [
            PairExpectations(mlp.activation, kernel).response for kernel in K[:-1]
        ]

    def __call__(self, remainder: Array) -> Array:
        """(…, layers, pairs) from remainders of the same shape; layer 1 does not fluctuate."""
        shift = np.zeros_like(remainder)
        for layer, response in enumerate(self._responses, start=1):
            carried = (response @ shift[..., layer - 1, :].T).T
            shift[..., layer, :] = self._C_W[layer] * (remainder[..., layer, :] + carried)
        return shift
