"""Differentials of the tangent kernel at initialisation: correlations of the dNTK, means of the ddNTKs, to order 1/n.

``preactivation_dntk``  E[dH_{i0 i1 i2; 0 1 2} z_{i3; 3}] (11.45)
``observable_dntk``     E[O dH_{i0 i1 i2; 0 1 2}] for a function O of one or two neurons (11.42)
``ddntk_mean``          E[ddH_{i1 i2 i3 i4; 1 2 3 4}] of either kind (∞.11), (∞.12)

dH_{0 1 2} is the second derivative of z_0 along the gradients of z_1 and z_2, times the learning rates (11.8): its
own mean is zero at any width. Values include the 1/n, n the width n_{l-1} before the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from numpy.typing import ArrayLike

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.correlations.ntk_correlations import (
    NTKCorrelation,
    Quadruple,
    assembled,
    four_neurons,
    inputs_and_layer,
    inputs_asked,
    neurons_looked_at,
    tensor_entries,
    whole_numbers,
    with_fan_in,
)
from foretrain.theory.correlations.observable_derivatives import observable_means
from foretrain.theory.flow import flow


def preactivation_dntk(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> NTKCorrelation:
    """E[dH_{i0 i1 i2; a0 a1 a2} z_{i3; a3}] for ``neurons`` (i0..i3) and ``inputs`` (a0..a3) (11.45).

    Neurons are only compared with each other, so any labels do; inputs are rows of X; default the output layer.

    Examples
    --------
    >>> found = preactivation_dntk(MLP("linear", depth=2, width=100), [[1.0]], (0, 0, 1, 1), (0, 0, 0, 0))
    >>> round(found.value, 9), list(found.terms)
    (0.02, ['Q_0123'])
    """
    i, a, place = four_neurons(neurons), *inputs_and_layer(mlp, X, inputs, layer)
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
    i, (a, b, c, d), where = four_neurons(neurons), *inputs_and_layer(mlp, X, inputs, layer)
    if kind not in ("first", "second"):
        raise InputError(f"kind is {kind!r}: give 'first' or 'second'.")
    names = ("R_0123", "R_0231", "R_0312") if kind == "first" else ("S_1234", "T_1342", "U_1423")
    places = ((a, b, c, d), (a, c, d, b), (a, d, b, c))
    pairs = (i[0] == i[1] and i[2] == i[3], i[0] == i[2] and i[1] == i[3], i[0] == i[3] and i[1] == i[2])
    wanted = {
        name: (name[0], place) for name, place, equal in zip(names, places, pairs, strict=True) if equal
    }
    return assembled(mlp, X, wanted, where)


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

    ``observable``, ``of`` and ``kinks`` are as in ``ntk_correlations.observable_ntk``.
    """
    check_network(mlp)
    place, data = mlp.check_layer(layer), mlp.check_inputs(X)
    looked = neurons_looked_at(of)
    i0, i1, i2 = whole_numbers("neurons", neurons, 3)
    a0, a1, a2 = inputs_asked(inputs, 3, len(data))
    K = flow(mlp, data, ["K"])["K"].sel(layer=place).values
    means = observable_means(observable, K, len(looked), kinks)
    pairings = {
        "P_012": (i1 == i2, i0, "P", (a0, a1, a2)),
        "Q_012": (i0 == i1, i2, "Q", (a0, a1, a2)),
        "Q_021": (i0 == i2, i1, "Q", (a0, a2, a1)),
    }
    terms, error = {}, 0.0
    for name, (equal, moved, tensor, (a, b, c)) in pairings.items():
        if equal and moved in looked:
            entries = tensor_entries(mlp, data, tensor, [(a, b, c, d) for d in range(len(K))], place)
            terms[name], doubt = means.slope_along(looked.index(moved), entries)
            error += doubt
    return with_fan_in(mlp, data, terms, place, error, accurate=means.is_accurate)
