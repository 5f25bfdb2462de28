"""Differentials of the tangent kernel at initialisation: correlations of the dNTK, means of the ddNTKs, to order 1/n.

``preactivation_dntk``  E[dH_{i0 i1 i2; 0 1 2} z_{i3; 3}] (11.45)
``observable_dntk``     E[O dH_{i0 i1 i2; 0 1 2}] for a function O of one or two neurons (11.42)
``ddntk_mean``          E[ddH_{i1 i2 i3 i4; 1 2 3 4}] of either kind (∞.11), (∞.12)

dH_{0 1 2} is the second derivative of z_0 along the gradients of z_1 and z_2, times the learning rates (11.8): its
own mean is zero at any width. Values include the 1/n, n the width n_{l-1} before the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.correlators import (
    NTKCorrelation,
    Quadruple,
    assembled,
    four_neurons,
    inputs_and_layer,
    inputs_asked,
    layer_asked,
    neurons_looked_at,
    tensor_entries,
    warn_of_error,
    whole_numbers,
    with_fan_in,
)
from foretrain.theory.flow import flow
from foretrain.theory.observable_derivatives import derivatives_of, directions
from foretrain.theory.one_neuron import is_accurate, one_neuron

Array = NDArray[np.float64]


def preactivation_dntk(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> NTKCorrelation:
    """E[dH_{i0 i1 i2; a0 a1 a2} z_{i3; a3}] for ``neurons`` (i0..i3) and ``inputs`` (a0..a3) (11.45).

    Neurons are only compared with each other, so any labels do; inputs are rows of X; default the output layer.

    Examples
    --------
    >>> preactivation_dntk(MLP("linear", depth=2, width=100), [[1.0]], (0, 0, 1, 1), (0, 0, 0, 0))
    NTKCorrelation(0.02 from Q_0123: 0.02; layer 2, fan-in 100)
    """
    i, a, place = four_neurons("neurons", neurons), *inputs_and_layer(mlp, X, inputs, layer)
    wanted: dict[str, tuple[str, Quadruple]] = {}
    if i[0] == i[3] and i[1] == i[2]:
        wanted["P_0123"] = ("P", a)
    if i[0] == i[1] and i[2] == i[3]:
        wanted["Q_0123"] = ("Q", a)
    if i[0] == i[2] and i[1] == i[3]:
        wanted["Q_0213"] = ("Q", (a[0], a[2], a[1], a[3]))
    return assembled(mlp, X, wanted, place)


def ddntk_mean(
    mlp: MLP,
    X: ArrayLike,
    neurons: Sequence[int],
    inputs: Sequence[int],
    kind: Literal["first", "second"],
    layer: int | None = None,
) -> NTKCorrelation:
    """The mean of a second differential; arguments as in :func:`preactivation_dntk`.

    ``first`` is the third derivative of z_0 along the gradients of z_1, z_2, z_3 (∞.5); ``second`` contracts the
    Hessian of z_1 along the gradient of z_3 with that of z_2 along the gradient of z_4 (∞.7).
    """
    i, (a, b, c, d), place = four_neurons("neurons", neurons), *inputs_and_layer(mlp, X, inputs, layer)
    if kind not in ("first", "second"):
        raise InputError(f"kind is {kind!r}: give 'first' or 'second'.")
    if kind == "first":
        pairings = {
            "R_0123": ("R", (a, b, c, d)),
            "R_0231": ("R", (a, c, d, b)),
            "R_0312": ("R", (a, d, b, c)),
        }
    else:
        pairings = {
            "S_1234": ("S", (a, b, c, d)),
            "T_1342": ("T", (a, c, d, b)),
            "U_1423": ("U", (a, d, b, c)),
        }
    pairs = (i[0] == i[1] and i[2] == i[3], i[0] == i[2] and i[1] == i[3], i[0] == i[3] and i[1] == i[2])
    wanted = {name: entry for (name, entry), equal in zip(pairings.items(), pairs, strict=True) if equal}
    return assembled(mlp, X, wanted, place)


def observable_dntk(
    observable: Any,
    mlp: MLP,
    X: ArrayLike,
    of: Sequence[int],
    neurons: Sequence[int],
    inputs: Sequence[int],
    layer: int | None = None,
    *,
    kinks: Sequence[Any] = (),
) -> NTKCorrelation:
    """E[O dH_{i0 i1 i2; a0 a1 a2}] for ``neurons`` (i0, i1, i2) and ``inputs`` (a0, a1, a2) (11.42).

    ``observable``, ``of`` and ``kinks`` are as in :func:`foretrain.theory.ntk_correlations.observable_ntk`.
    """
    place, data = layer_asked(mlp, layer), mlp.check_inputs(X)
    looked = neurons_looked_at(of)
    i0, i1, i2 = whole_numbers("neurons", neurons, 3)
    a0, a1, a2 = inputs_asked(inputs, 3, len(data))
    K = flow(mlp, data, ["K"])["K"].sel(layer=place).values
    slopes = _slopes(observable, K, len(looked), kinks)
    pairings = {
        "P_012": (i1 == i2, i0, "P", (a0, a1, a2)),
        "Q_012": (i0 == i1, i2, "Q", (a0, a1, a2)),
        "Q_021": (i0 == i2, i1, "Q", (a0, a2, a1)),
    }
    terms, error = {}, 0.0
    for name, (equal, moved, tensor, (a, b, c)) in pairings.items():
        if equal and moved in looked:
            entries = tensor_entries(mlp, data, tensor, [(a, b, c, d) for d in range(len(K))], place)
            terms[name], doubt = slopes.contracted(looked.index(moved), entries)
            error += doubt
    found = with_fan_in(mlp, data, terms, place, error)
    if found.error and not slopes.is_accurate:
        warn_of_error(found)
    return found


class _Slopes(NamedTuple):
    """<dO / du_{m; p}> of neurons m in coordinates u = back z, each to within ``error``."""

    backs: tuple[Array, ...]  # of each neuron (coordinates, inputs)
    values: tuple[Array, ...]
    error: float
    is_accurate: bool

    def contracted(self, neuron: int, vector: Array) -> tuple[float, float]:
        """The sum with a vector (inputs,), and its error."""
        own = self.backs[neuron] @ vector
        return float(self.values[neuron] @ own), self.error * float(np.abs(own).sum())


def _slopes(observable: Any, K: Array, neurons: int, kinks: Sequence[Any]) -> _Slopes:
    """Over independent neurons."""
    if neurons == 1:
        back, found = one_neuron(observable, K, kinks)
        return _Slopes((back,), (found.slope,), found.error, is_accurate(found))
    if isinstance(observable, tuple) and len(observable) == 2:
        first, second = (one_neuron(each, K, kinks) for each in observable)
        f, g = first.found, second.found
        error = f.error * g.size + g.error * f.size  # no moment of a function exceeds its size much
        values = f.slope * g.mean, g.slope * f.mean
        return _Slopes((first.back, second.back), values, error, is_accurate(f) and is_accurate(g))
    if not callable(observable):
        raise InputError("an observable of two neurons is a tuple of two functions, or a function of both.")
    back, found = directions(K).back, derivatives_of(observable, K, 2, kinks)
    return _Slopes(
        (back, back),
        (found.slope[: len(back)], found.slope[len(back) :]),
        found.error,
        is_accurate(found),
    )
