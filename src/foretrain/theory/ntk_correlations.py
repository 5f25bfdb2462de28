"""Correlations of the tangent kernel with itself, with preactivations and with any observable, to order 1/n.

``ntk_mean``           E[H] = Theta + H1 / n
``ntk_covariance``     Cov[H_{i1 i2; 1 2}, H_{i3 i4; 3 4}] (8.82)
``preactivation_ntk``  E[z_{i1; 1} z_{i2; 2} dH_{i3 i4; 3 4}] (8.67)
``observable_ntk``     E[O dH_{i3 i4; 3 4}] for a function O of one or two neurons (8.71)

dH is H minus its mean, and n the width n_{l-1} before the layer. Values include the 1/n. At infinite width all
of them but the mean vanish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
from foretrain.theory.one_neuron import OneNeuron, is_accurate, one_neuron

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


def ntk_mean(mlp: MLP, X: ArrayLike) -> xr.Dataset:
    """E[H_{ii; a b}] = Theta + H1 / n_{l-1} of every layer, entry by entry; off-diagonal neurons have mean zero.

    Examples
    --------
    >>> found = ntk_mean(MLP("tanh", depth=3, width=20), [[1.0]])
    >>> found["correction"].values.ravel().round(6)
    array([0.      , 0.      , 0.000189])
    """
    import xarray as xr

    found = flow(mlp, X, ["Theta", "H1"])
    fan_ins = np.array([np.inf, *mlp.hidden_widths]).reshape(-1, 1, 1)
    correction = found["H1"] / fan_ins
    mean = found["Theta"] + correction
    mean.attrs["meaning"] = "mean of the tangent kernel to order 1/n"
    correction.attrs["meaning"] = "H1 / n_{l-1}"
    return xr.Dataset({"mean": mean, "Theta": found["Theta"], "correction": correction})


def ntk_covariance(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> NTKCorrelation:
    """Cov[H_{i1 i2; a1 a2}, H_{i3 i4; a3 a4}] for ``neurons`` (i1..i4) and ``inputs`` (a1..a4) (8.82).

    Neurons are only compared with each other, so any labels do; inputs are rows of X; default the output layer.
    """
    i, a, place = four_neurons("neurons", neurons), *inputs_and_layer(mlp, X, inputs, layer)
    wanted = _paired(i, a, "A", "B")
    return assembled(mlp, X, wanted, place)


def preactivation_ntk(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> NTKCorrelation:
    """E[z_{i1; a1} z_{i2; a2} dH_{i3 i4; a3 a4}] (8.67); arguments as in :func:`ntk_covariance`."""
    i, a, place = four_neurons("neurons", neurons), *inputs_and_layer(mlp, X, inputs, layer)
    return assembled(mlp, X, _paired(i, a, "D", "F"), place)


def observable_ntk(
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
    """E[O dH_{i3 i4; a3 a4}] for ``neurons`` (i3, i4) and ``inputs`` (a3, a4) (8.71).

    Parameters
    ----------
    observable
        Of one neuron: factors, one for each row of X (1.0 for none), or a function of an array (points, inputs).
        Of two: a tuple of two such, multiplied, or one function of an array (points, 2, inputs).
    of
        The one or two neurons that the observable looks at.
    kinks
        Where functions (not factors, which know) are not smooth: see :func:`foretrain.gaussian.expectation_of`.
    """
    place, data = layer_asked(mlp, layer), mlp.check_inputs(X)
    looked = neurons_looked_at(of)
    i3, i4 = whole_numbers("neurons", neurons, 2)
    a3, a4 = inputs_asked(inputs, 2, len(data))
    K = flow(mlp, data, ["K"])["K"].sel(layer=place).values
    bends = _curvature(observable, K, len(looked), kinks)
    pairs = list(np.ndindex(K.shape))
    terms: dict[str, list[tuple[float, float]]] = {}
    if i3 == i4:
        D = tensor_entries(mlp, data, "D", [(i, j, a3, a4) for i, j in pairs], place).reshape(K.shape)
        terms["D"] = [bends.contracted(m, m, D / 2) for m in range(len(looked))]
    if i3 in looked and i4 in looked:
        F = tensor_entries(mlp, data, "F", [(i, a3, j, a4) for i, j in pairs], place).reshape(K.shape)
        terms["F"] = [bends.contracted(looked.index(i3), looked.index(i4), F)]
    error = sum(each[1] for parts in terms.values() for each in parts)
    found = with_fan_in(
        mlp, data, {name: sum(v for v, _ in parts) for name, parts in terms.items()}, place, error
    )
    if found.error and not bends.is_accurate:
        warn_of_error(found)
    return found


def _paired(i: Quadruple, a: Quadruple, straight: str, crossed: str) -> dict[str, tuple[str, Quadruple]]:
    """The tensors that the equalities of neural indices leave, with their input indices in stored order."""
    wanted = {}
    if i[0] == i[1] and i[2] == i[3]:
        wanted[f"{straight}_1234"] = (straight, a)
    if i[0] == i[2] and i[1] == i[3]:
        wanted[f"{crossed}_1324"] = (crossed, (a[0], a[2], a[1], a[3]))
    if i[0] == i[3] and i[1] == i[2]:
        wanted[f"{crossed}_1423"] = (crossed, (a[0], a[3], a[1], a[2]))
    return wanted


class _Curvature(NamedTuple):
    """<d^2 O / du_{m; p} du_{n; q}> of neurons m, n in coordinates u = back z, each to within ``error``."""

    backs: tuple[Array, ...]  # of each neuron (coordinates, inputs)
    blocks: dict[tuple[int, int], Array]
    error: float
    is_accurate: bool

    def contracted(self, m: int, n: int, tensor: Array) -> tuple[float, float]:
        """The sum with a tensor (inputs, inputs), and its error."""
        own = self.backs[m] @ tensor @ self.backs[n].T
        return float(np.sum(self.blocks[m, n] * own)), self.error * float(np.abs(own).sum())


def _curvature(observable: Any, K: Array, neurons: int, kinks: Sequence[Any]) -> _Curvature:
    """Over independent neurons."""
    if neurons == 1:
        back, found = one_neuron(observable, K, kinks)
        return _Curvature((back,), {(0, 0): found.bend}, found.error, is_accurate(found))
    if isinstance(observable, tuple) and len(observable) == 2:
        return _product_curvature(*(one_neuron(each, K, kinks) for each in observable))
    if not callable(observable):
        raise InputError("an observable of two neurons is a tuple of two functions, or a function of both.")
    back, found = directions(K).back, derivatives_of(observable, K, 2, kinks)
    own = len(back)
    blocks = {
        (m, n): found.bend[m * own : (m + 1) * own, n * own : (n + 1) * own] for m, n in np.ndindex(2, 2)
    }
    return _Curvature((back, back), blocks, found.error, is_accurate(found))


def _product_curvature(first: OneNeuron, second: OneNeuron) -> _Curvature:
    """Of a product of functions of one neuron each."""
    f, g = first.found, second.found
    crossed = np.outer(f.slope, g.slope)
    blocks = {(0, 0): f.bend * g.mean, (1, 1): g.bend * f.mean, (0, 1): crossed, (1, 0): crossed.T}
    error = f.error * g.size + g.error * f.size  # no moment of a function exceeds its size much
    return _Curvature((first.back, second.back), blocks, error, is_accurate(f) and is_accurate(g))
