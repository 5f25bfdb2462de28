"""Kernel, vertex, next-to-leading metric, three-point function and NTK of an ensemble, with their batch values.

Every estimate is a function of means over networks. Leaving out one batch at a time (the jackknife) turns it into
one pseudo-value per batch: their mean is the estimate, freed of its bias of order 1 / draws, and their covariance
over the number of batches is the covariance of the estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import combinations_with_replacement, product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.statistics import Statistics
from foretrain.compare.tangent_statistics import TangentReaders, TangentStatistics
from foretrain.theory.architecture import MLP
from foretrain.theory.pairs import Pairs
from foretrain.theory.recursions.preactivation import PairExpectations, Response

Array = NDArray[np.float64]

OBSERVABLES = {
    "K": "mean of z_a z_b of one neuron",
    "V": "fan-in times the covariance of z_a z_b of one neuron and z_c z_d of another",
    "G1": "fan-in times the shift of the mean of z_a z_b from the kernel",
    "three_point": "fan-in times the mean of z_a of one neuron and z_b z_c of another",
    "kurtosis": "fan-in times the mean of z_a⁴ less 3 times the squared mean of z_a², of one neuron",
    "Theta": "mean of the NTK H_ab of one neuron",
    "H1": "fan-in times the shift of the mean of H_ab of one neuron from Theta",
    "D": "fan-in times the covariance of z_1 z_2 of one neuron and H_34 of another",
    "F": "fan-in times the mean of z_1 of one neuron, z_2 of another and H_34 between them, as 1324",
    "A": "fan-in times the covariance of H_12 of one neuron and H_34 of another",
    "B": "fan-in times the mean of H_12 times H_34 between two neurons, as 1324",
    "P": "fan-in times the mean of dH_ijj;012 z_i;3 of two neurons",
    "Q": "fan-in times the mean of dH_iij;012 z_j;3 of two neurons",
    "R": "fan-in times the mean of ddI_iijj;0123 of two neurons",
    "S": "fan-in times the mean of ddII_iijj;1234 of two neurons",
    "T": "fan-in times the mean of ddII_ijij;1234 of two neurons, as 1342",
    "U": "fan-in times the mean of ddII_ijji;1234 of two neurons, as 1423",
}
TANGENT = ("Theta", "H1", "D", "F", "A", "B")
DIFFERENTIAL = ("P", "Q", "R", "S", "T", "U")


@dataclass(frozen=True, order=True)
class Entry:
    """One number that theory and measurement share: an observable, a layer and indices of inputs."""

    observable: str
    layer: int
    inputs: tuple[int, ...]

    @property
    def label(self) -> str:
        """For example ``V_(00)(01)``."""
        numbers = [str(i) for i in self.inputs]
        if self.observable in ("V", "A"):
            return f"{self.observable}_({''.join(numbers[:2])})({''.join(numbers[2:])})"
        return f"{self.observable}_{''.join(numbers)}"


def entries_of(observable: str, mlp: MLP, inputs: int) -> list[Entry]:
    """Each independent component once, in the layers where it fluctuates.

    All from layer 2 on but G1 and H1, from layer 3 on (4.37), and the three-point function, in layers with a skip
    connection; pairs a ≤ b, and pairs of pairs once in V and A; F_1324 = F_2413 and B_1324 = B_2413 = B_3142 once;
    P to U by their symmetries likewise.
    """
    pairs = list(combinations_with_replacement(range(inputs), 2))
    indices: list[tuple[int, ...]]
    if observable in ("V", "A"):
        indices = [(*first, *second) for first, second in combinations_with_replacement(pairs, 2)]
    elif observable == "kurtosis":
        indices = [(a,) for a in range(inputs)]
    elif observable == "three_point":
        indices = [(a, *pair) for a in range(inputs) for pair in pairs]
    elif observable == "D":
        indices = [(*first, *second) for first, second in product(pairs, repeat=2)]
    elif observable in _SAME_COMPONENT:
        indices = list(_smallest(product(range(inputs), repeat=4), _SAME_COMPONENT[observable]))
    else:
        indices = list(pairs)
    layers = [layer.number for layer in mlp.layers[2 if observable in ("G1", "H1") else 1 :]]
    if observable == "three_point":
        layers = [layer.number for layer in mlp.layers if layer.gamma]
    return [Entry(observable, layer, index) for layer in layers for index in indices]


# Orders of the stored indices in which the same component is found.
_SAME_COMPONENT: dict[str, tuple[tuple[int, ...], ...]] = {
    "F": ((2, 3, 0, 1),),
    "B": ((2, 3, 0, 1), (1, 0, 3, 2), (3, 2, 1, 0)),
    "P": ((0, 2, 1, 3),),
    "Q": (),
    "R": ((0, 1, 3, 2),),
    "S": ((1, 0, 3, 2),),
    "T": ((3, 2, 1, 0),),
    "U": ((2, 3, 0, 1),),
}


def _smallest(
    indices: Iterable[tuple[int, ...]], orders: tuple[tuple[int, ...], ...]
) -> Iterator[tuple[int, ...]]:
    for index in indices:
        if all(index <= tuple(index[place] for place in order) for order in orders):
            yield index


@dataclass(frozen=True)
class BatchValues:
    """One pseudo-value per batch and entry."""

    values: Array  # (batches, entries)

    @property
    def estimate(self) -> Array:
        """(entries,)."""
        return np.asarray(self.values.mean(axis=0))

    @property
    def covariance(self) -> Array:
        """(entries, entries), of the estimates."""
        return np.atleast_2d(np.cov(self.values, rowvar=False)) / len(self.values)

    @property
    def freedom(self) -> Array:
        """(entries,): of how many normal samples a variance would be as well known as that of these batches.

        The variance of a sample variance is (2 + excess kurtosis) / samples, relatively.
        """
        batches = len(self.values)
        centred = self.values - self.values.mean(axis=0)
        deviation = centred.std(axis=0)
        unit = centred / np.where(deviation > 0, deviation, 1.0)
        excess = np.maximum((unit**4).mean(axis=0) - 3, 0.0)
        return np.asarray((batches - 1) / (1 + excess / 2))

    @property
    def standard_error(self) -> Array:
        """(entries,)."""
        return np.asarray(self.values.std(axis=0, ddof=1) / np.sqrt(len(self.values)))


def batch_values(mlp: MLP, K: Array, statistics: Statistics, entries: list[Entry]) -> BatchValues:
    """Jackknife pseudo-values of the entries of one ensemble; K (layers, inputs, inputs) is the theory's kernel."""
    readers = _readers(mlp, K, {entry.observable for entry in entries})
    return _pseudo_values(statistics, readers, entries, first_layer=1)


def tangent_batch_values(
    mlp: MLP, K: Array, Theta: Array, statistics: TangentStatistics, entries: list[Entry]
) -> BatchValues:
    """Jackknife pseudo-values of entries of the NTK's statistics; K and Theta are the theory's."""
    named = TangentReaders(mlp, K, Theta).named
    readers = {name: named(name) for name in {entry.observable for entry in entries}}
    return _pseudo_values(statistics, readers, entries, first_layer=2)


Means = TypeVar("Means", Statistics, TangentStatistics)


def _pseudo_values(
    statistics: Means, readers: Mapping[str, Callable[[Means], Array]], entries: list[Entry], first_layer: int
) -> BatchValues:
    def function(means: Means) -> Array:
        return _columns({name: reader(means) for name, reader in readers.items()}, entries, first_layer)

    batches, kind = len(statistics.mean), type(statistics)
    columns = {item.name: getattr(statistics, item.name) for item in fields(statistics)}
    everything = kind(**{name: column.mean(axis=0)[None] for name, column in columns.items()})
    without_one = kind(
        **{name: (column.sum(axis=0) - column) / (batches - 1) for name, column in columns.items()}
    )
    return BatchValues(batches * function(everything) - (batches - 1) * function(without_one))


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
