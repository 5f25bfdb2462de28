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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Result
from foretrain.support.errors import InputError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.correlations.observable_derivatives import observable_means
from foretrain.theory.flow import flow

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

Quadruple = tuple[int, int, int, int]


@dataclass(frozen=True, repr=False)
class NTKCorrelation(Result):
    """A correlator at order 1/n: ``value`` is the sum of ``terms``, each with its 1/n.

    ``error`` is that of the integrals of a function given to :func:`observable_ntk`, else 0.
    """

    value: float
    terms: dict[str, float]
    layer: int
    fan_in: int
    error: float = 0.0

    def __float__(self) -> float:
        return self.value


def assembled(mlp: MLP, X: ArrayLike, wanted: dict[str, tuple[str, Quadruple]], layer: int) -> NTKCorrelation:
    """The sum of named entries of tensors, at a layer."""
    terms = {
        name: float(tensor_entries(mlp, X, tensor, [places], layer)[0])
        for name, (tensor, places) in wanted.items()
    }
    return with_fan_in(mlp, X, terms, layer)


def with_fan_in(
    mlp: MLP, X: ArrayLike, terms: dict[str, float], layer: int, error: float = 0.0, *, accurate: bool = True
) -> NTKCorrelation:
    """With the 1/n of the width before the layer; layer 1, whose tensors are zero, has the data before it.

    Warns of the ``error`` where the integrals of an observable are not as accurate as they should be.
    """
    fan_in = mlp.with_inputs(mlp.check_inputs(X)).widths[layer - 1]
    parts = {name: value / fan_in for name, value in terms.items()}
    found = NTKCorrelation(sum(parts.values(), 0.0), parts, layer, fan_in, error / fan_in)
    if found.error and not accurate:
        warn_user(
            f"the correlator {found.value:.6g} is known to within {found.error:.1g} only: give factors or a tuple of "
            "two functions if the observable is a product, declare its `kinks=`, or leave out inputs it does not "
            "look at."
        )
    return found


def tensor_entries(mlp: MLP, X: ArrayLike, tensor: str, places: Sequence[Quadruple], layer: int) -> Array:
    """Entries of one tensor of the flow."""
    found = flow(mlp, X, [tensor], quadruples=np.array(places))
    return np.asarray(found[tensor].sel(layer=layer).values)


def neurons_looked_at(of: Sequence[int]) -> tuple[int, ...]:
    """One or two different neurons."""
    found = np.asarray(of)
    if (
        found.ndim != 1
        or found.dtype.kind not in "iu"
        or len(found) not in (1, 2)
        or len(set(found)) < len(found)
    ):
        raise InputError(
            f"of is {of!r}: name one neuron, (0,), or two different ones, (0, 1), that the observable looks at."
        )
    return tuple(int(number) for number in found)


def inputs_and_layer(
    mlp: MLP, X: ArrayLike, inputs: Sequence[int], layer: int | None
) -> tuple[Quadruple, int]:
    """Four inputs, and the layer."""
    check_network(mlp)
    place = mlp.check_layer(layer)
    a, b, c, d = inputs_asked(inputs, 4, len(mlp.check_inputs(X)))
    return (a, b, c, d), place


def four_neurons(values: Sequence[int]) -> Quadruple:
    """Four labels of neurons."""
    a, b, c, d = whole_numbers("neurons", values, 4)
    return a, b, c, d


def inputs_asked(values: Sequence[int], count: int, size: int) -> tuple[int, ...]:
    """So many rows of X."""
    found = whole_numbers("inputs", values, count)
    if min(found) < 0 or max(found) >= size:
        raise InputError(f"inputs {found} are not all rows of X, which has {size}.")
    return found


def whole_numbers(name: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    """So many of them."""
    found = np.asarray(values)
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise InputError(f"`{name}` is {values!r}: give {count} whole numbers.")
    return tuple(int(value) for value in found)


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
    i, a, place = four_neurons(neurons), *inputs_and_layer(mlp, X, inputs, layer)
    wanted = _paired(i, a, "A", "B")
    return assembled(mlp, X, wanted, place)


def preactivation_ntk(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> NTKCorrelation:
    """E[z_{i1; a1} z_{i2; a2} dH_{i3 i4; a3 a4}] (8.67); arguments as in :func:`ntk_covariance`."""
    i, a, place = four_neurons(neurons), *inputs_and_layer(mlp, X, inputs, layer)
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
    check_network(mlp)
    place, data = mlp.check_layer(layer), mlp.check_inputs(X)
    looked = neurons_looked_at(of)
    i3, i4 = whole_numbers("neurons", neurons, 2)
    a3, a4 = inputs_asked(inputs, 2, len(data))
    K = flow(mlp, data, ["K"])["K"].sel(layer=place).values
    means = observable_means(observable, K, len(looked), kinks)
    pairs = list(np.ndindex(K.shape))
    terms: dict[str, list[tuple[float, float]]] = {}
    if i3 == i4:
        D = tensor_entries(mlp, data, "D", [(i, j, a3, a4) for i, j in pairs], place).reshape(K.shape)
        terms["D"] = [means.bend_along(m, m, D / 2) for m in range(len(looked))]
    if i3 in looked and i4 in looked:
        F = tensor_entries(mlp, data, "F", [(i, a3, j, a4) for i, j in pairs], place).reshape(K.shape)
        terms["F"] = [means.bend_along(looked.index(i3), looked.index(i4), F)]
    error = sum(each[1] for parts in terms.values() for each in parts)
    values = {name: sum(value for value, _ in parts) for name, parts in terms.items()}
    return with_fan_in(mlp, data, values, place, error, accurate=means.is_accurate)


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
