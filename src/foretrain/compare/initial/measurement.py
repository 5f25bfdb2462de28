"""Both sides of a comparison: the numbers of the theory, and the same from an ensemble.

Every estimate is a function of means over networks, and its batch values are the pseudo-values of the jackknife.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from foretrain.compare.ensembles import Ensemble
from foretrain.compare.initial.differentials import bytes_per_network as differential_bytes
from foretrain.compare.initial.differentials import differential_batch_values
from foretrain.compare.initial.preactivation_statistics import Statistics, collect
from foretrain.compare.initial.tangent_kernels import bytes_per_network as tangent_bytes
from foretrain.compare.initial.tangent_statistics import TangentStatistics, collect_tangents, tangent_readers
from foretrain.compare.judging.entries import BatchValues, Entry
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.flow import flow
from foretrain.theory.recursions.expectations import PairExpectations
from foretrain.theory.recursions.pairs import Pairs, Response
from foretrain.theory.tensors import DIFFERENTIALS, TANGENT


def measure(
    ensemble: Ensemble, predicted: dict[str, FloatArray], estimator: str, entries: list[Entry]
) -> BatchValues:
    """All entries from the same networks; those of the NTK come last, and its differentials after them."""
    K, carried = predicted["K"], (*TANGENT, *DIFFERENTIALS)
    others, tangent, differential = (
        [e for e in entries if e.observable in chosen]
        for chosen in ({e.observable for e in entries} - {*carried}, TANGENT, DIFFERENTIALS)
    )
    columns = []
    if others:
        statistics = collect(ensemble, K, estimator, any(e.observable == "G1" for e in others))
        columns.append(batch_values(ensemble.mlp, K, statistics, others).values)
    if tangent:
        kernels = collect_tangents(ensemble, K, predicted["Theta"])
        found = tangent_batch_values(ensemble.mlp, K, predicted["Theta"], kernels, tangent)
        columns.append(found.values)
    if differential:
        columns.append(differential_batch_values(ensemble, differential).values)
    return BatchValues(np.concatenate(columns, axis=1))


def reader_bytes(mlp: MLP, inputs: int, names: Sequence[str]) -> int:
    """What is held for each network while its observables are read."""
    tangent = tangent_bytes(mlp, inputs) if {*names} & {*TANGENT} else 0
    differential = differential_bytes(mlp, inputs) if {*names} & {*DIFFERENTIALS} else 0
    return max(tangent, differential)


def theory(mlp: MLP, inputs: FloatArray, names: Sequence[str]) -> dict[str, FloatArray]:
    """By name; the excess of one neuron's fourth moment is 3 V_(aa)(aa) (4.77)."""
    base = ("K", "Theta") if set(names) & {*TANGENT, *DIFFERENTIALS} else ("K",)
    wanted = list(
        dict.fromkeys("norm_covariance" if name == "kurtosis" else name for name in (*base, *names))
    )
    # Networks are differentiated automatically, which sees no second derivative at a kink.
    tensors = flow(mlp, inputs, wanted, kinks="almost_everywhere")
    found = {name: np.asarray(tensors[name].values, dtype=np.float64) for name in wanted}
    if "kurtosis" in names:
        found["kurtosis"] = 3 * np.diagonal(found["norm_covariance"], axis1=1, axis2=2)
    return found


def unit_of(predicted: dict[str, FloatArray], entry: Entry) -> float:
    """√K_aa for each index of z and √Θ_aa for each of the NTK: the size of the entry without any cancellation.

    P and Q have the dimension of Θ², R, S, T and U that of Θ³/K (11.63), (∞.22).
    """
    legs = 4 * entry.inputs if entry.observable == "kurtosis" else entry.inputs
    kinds = _LEGS.get(entry.observable, ("K",) * len(legs))
    size = float(np.prod([np.sqrt(predicted[kind][entry.layer - 1, i, i]) for kind, i in zip(kinds, legs)]))
    if entry.observable not in _PER_KERNEL:
        return size
    Theta, K = (np.diagonal(predicted[kind][entry.layer - 1]).max() for kind in ("Theta", "K"))
    return size * float(Theta / K) if K > 0 else size


_LEGS = {
    "Theta": ("Theta",) * 2,
    "H1": ("Theta",) * 2,
    "D": ("K", "K", "Theta", "Theta"),
    "F": ("K", "Theta", "K", "Theta"),
    "A": ("Theta",) * 4,
    "B": ("Theta",) * 4,
    **dict.fromkeys(DIFFERENTIALS, ("Theta",) * 4),
}
_PER_KERNEL = ("R", "S", "T", "U")


def batch_values(mlp: MLP, K: FloatArray, statistics: Statistics, entries: list[Entry]) -> BatchValues:
    """Of the entries of one ensemble; K (layers, inputs, inputs) is the theory's kernel."""
    readers = _readers(mlp, K, {entry.observable for entry in entries})
    return _pseudo_values(statistics, readers, entries, first_layer=1)


def tangent_batch_values(
    mlp: MLP, K: FloatArray, Theta: FloatArray, statistics: TangentStatistics, entries: list[Entry]
) -> BatchValues:
    """Of entries of the NTK's statistics; K and Theta are the theory's."""
    return _pseudo_values(statistics, tangent_readers(mlp, K, Theta), entries, first_layer=2)


Means = TypeVar("Means", Statistics, TangentStatistics)


def _pseudo_values(
    statistics: Means,
    readers: Mapping[str, Callable[[Means], FloatArray]],
    entries: list[Entry],
    first_layer: int,
) -> BatchValues:
    names = {entry.observable for entry in entries}

    def function(columns: dict[str, FloatArray]) -> FloatArray:
        means = type(statistics)(**columns)
        return _columns({name: readers[name](means) for name in names}, entries, first_layer)

    return BatchValues.jackknife(function, vars(statistics))


def _columns(tensors: Mapping[str, FloatArray], entries: list[Entry], first_layer: int) -> FloatArray:
    """(…, entries) from tensors (…, layers, inputs, …)."""
    places: list[tuple[Any, ...]] = [(slice(None), e.layer - first_layer, *e.inputs) for e in entries]
    return np.stack([tensors[e.observable][place] for e, place in zip(entries, places)], axis=1)


def _readers(mlp: MLP, K: FloatArray, wanted: set[str]) -> dict[str, Callable[[Statistics], FloatArray]]:
    """For each observable the function of means (any leading axis) that gives it at all layers and inputs."""
    pairs = Pairs(K.shape[-1])
    fan_in = np.array(mlp.widths[:-1], dtype=float)
    number = pairs.number

    def mean(means: Statistics) -> FloatArray:
        return np.asarray(K + means.mean[..., number])

    def vertex(means: Statistics) -> FloatArray:
        covariance = means.product - means.mean[..., :, None] * means.mean[..., None, :]
        scaled = fan_in[:, None, None] * covariance
        return np.asarray(scaled[..., number[:, :, None, None], number[None, None]])

    def three_point(means: Statistics) -> FloatArray:
        return np.asarray(fan_in[:, None, None, None] * means.triple[..., number])

    def kurtosis(means: Statistics) -> FloatArray:
        variance = np.diagonal(mean(means), axis1=-2, axis2=-1)
        return np.asarray(fan_in[:, None] * (means.fourth - 3 * variance**2))

    found: dict[str, Callable[[Statistics], FloatArray]] = {
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

    def __init__(self, mlp: MLP, K: FloatArray) -> None:
        self._C_W = mlp.C_W
        self._responses: list[Response] = [
            PairExpectations(mlp.activation, kernel).response for kernel in K[:-1]
        ]

    def __call__(self, remainder: FloatArray) -> FloatArray:
        """(…, layers, pairs) from remainders of the same shape; layer 1 does not fluctuate."""
        shift = np.zeros_like(remainder)
        for layer, response in enumerate(self._responses, start=1):
            carried = (response @ shift[..., layer - 1, :].T).T
            shift[..., layer, :] = self._C_W[layer] * (remainder[..., layer, :] + carried)
        return shift
