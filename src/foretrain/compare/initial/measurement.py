"""Both sides of a comparison: the numbers of the theory, and the same from an ensemble."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.ensembles import Ensemble
from foretrain.compare.initial.differential_kernels import bytes_per_network as differential_bytes
from foretrain.compare.initial.differential_statistics import differential_batch_values
from foretrain.compare.initial.estimators import batch_values, tangent_batch_values
from foretrain.compare.initial.observables import DIFFERENTIAL, TANGENT
from foretrain.compare.initial.preactivation_statistics import collect
from foretrain.compare.initial.tangent_kernels import bytes_per_network as tangent_bytes
from foretrain.compare.initial.tangent_statistics import collect_tangents
from foretrain.compare.judging.entries import BatchValues, Entry
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.flow import flow

Array = NDArray[np.float64]


def measure(
    ensemble: Ensemble, predicted: dict[str, Array], estimator: str, entries: list[Entry]
) -> BatchValues:
    """All entries from the same networks; those of the NTK come last, and its differentials after them."""
    K, carried = predicted["K"], (*TANGENT, *DIFFERENTIAL)
    others, tangent, differential = (
        [e for e in entries if e.observable in chosen]
        for chosen in ({e.observable for e in entries} - {*carried}, TANGENT, DIFFERENTIAL)
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
    differential = differential_bytes(mlp, inputs) if {*names} & {*DIFFERENTIAL} else 0
    return max(tangent, differential)


def theory(mlp: MLP, inputs: FloatArray, names: Sequence[str]) -> dict[str, Array]:
    """By name; the excess of one neuron's fourth moment is 3 V_(aa)(aa) (4.77)."""
    base = ("K", "Theta") if set(names) & {*TANGENT, *DIFFERENTIAL} else ("K",)
    wanted = list(
        dict.fromkeys("norm_covariance" if name == "kurtosis" else name for name in (*base, *names))
    )
    # Networks are differentiated automatically, which sees no second derivative at a kink.
    tensors = flow(mlp, inputs, wanted, kinks="almost_everywhere")
    found = {name: np.asarray(tensors[name].values, dtype=np.float64) for name in wanted}
    if "kurtosis" in names:
        found["kurtosis"] = 3 * np.diagonal(found["norm_covariance"], axis1=1, axis2=2)
    return found


def unit_of(predicted: dict[str, Array], entry: Entry) -> float:
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
    **dict.fromkeys(DIFFERENTIAL, ("Theta",) * 4),
}
_PER_KERNEL = ("R", "S", "T", "U")
