"""Correlations of the tangent kernel and of its differentials at initialisation, to order 1/n.

``ntk_mean``            E[H] = Theta + H1 / n
``ntk_covariance``      Cov[H_{i1 i2; 1 2}, H_{i3 i4; 3 4}] (8.82)
``preactivation_ntk``   E[z_{i1; 1} z_{i2; 2} dH_{i3 i4; 3 4}] (8.67)
``observable_ntk``      E[O dH_{i3 i4; 3 4}] for a function O of one or two neurons (8.71)
``preactivation_dntk``  E[dH_{i0 i1 i2; 0 1 2} z_{i3; 3}] (11.45)
``observable_dntk``     E[O dH_{i0 i1 i2; 0 1 2}] for a function O of one or two neurons (11.42)
``ddntk_mean``          E[ddH_{i1 i2 i3 i4; 1 2 3 4}] of either kind (∞.11), (∞.12)

With two indices dH is the tangent kernel H minus its mean; with three it is its differential, the second derivative
of z_0 along the gradients of z_1 and z_2, times the learning rates (11.8), whose own mean is zero at any width. n is
the width n_{l-1} before the layer. Values include the 1/n. At infinite width all of them but the mean vanish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.finite_width.observable_derivatives import ObservableMeans, observable_means
from foretrain.theory.flow import flow

if TYPE_CHECKING:
    import xarray as xr


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


def _assembled(
    mlp: MLP, X: ArrayLike, wanted: dict[str, tuple[str, Quadruple]], layer: int
) -> NTKCorrelation:
    """The sum of named entries of tensors, at a layer."""
    terms = {
        name: float(_entries(mlp, X, tensor, [places], layer)[0]) for name, (tensor, places) in wanted.items()
    }
    return _with_fan_in(mlp, X, terms, layer)


def _with_fan_in(
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


def _entries(mlp: MLP, X: ArrayLike, tensor: str, places: Sequence[Quadruple], layer: int) -> Array:
    """Entries of one tensor of the flow."""
    found = flow(mlp, X, [tensor], quadruples=np.array(places))
    return np.asarray(found[tensor].sel(layer=layer).values)


def _neurons_looked_at(of: Sequence[int]) -> tuple[int, ...]:
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


def _asked(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None
) -> tuple[Quadruple, Quadruple, int]:
    """Four labels of neurons, four inputs, and the layer."""
    i, j, k, m = _whole_numbers("neurons", neurons, 4)
    check_network(mlp)
    place = mlp.check_layer(layer)
    a, b, c, d = _rows(inputs, 4, len(mlp.check_inputs(X)))
    return (i, j, k, m), (a, b, c, d), place


class _Observed(NamedTuple):
    """What a correlation with an observable needs: checked inputs, layer and neurons, and mean derivatives."""

    X: Array
    layer: int
    looked: tuple[int, ...]
    means: ObservableMeans


def _observe(
    observable: Any, mlp: MLP, X: ArrayLike, of: Sequence[int], layer: int | None, kinks: Sequence[Any]
) -> _Observed:
    check_network(mlp)
    place, data, looked = mlp.check_layer(layer), mlp.check_inputs(X), _neurons_looked_at(of)
    K = flow(mlp, data, ["K"])["K"].sel(layer=place).values
    return _Observed(data, place, looked, observable_means(observable, K, len(looked), kinks))


def _rows(values: Sequence[int], count: int, size: int) -> tuple[int, ...]:
    """So many rows of X."""
    found = _whole_numbers("inputs", values, count)
    if min(found) < 0 or max(found) >= size:
        raise InputError(f"inputs {found} are not all rows of X, which has {size}.")
    return found


def _whole_numbers(name: str, values: Sequence[int], count: int) -> tuple[int, ...]:
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
    i, a, place = _asked(mlp, X, neurons, inputs, layer)
    return _assembled(mlp, X, _paired(i, a, "A", "B"), place)


def preactivation_ntk(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> NTKCorrelation:
    """E[z_{i1; a1} z_{i2; a2} dH_{i3 i4; a3 a4}] (8.67); arguments as in :func:`ntk_covariance`."""
    i, a, place = _asked(mlp, X, neurons, inputs, layer)
    return _assembled(mlp, X, _paired(i, a, "D", "F"), place)


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
    data, place, looked, means = _observe(observable, mlp, X, of, layer, kinks)
    i3, i4 = _whole_numbers("neurons", neurons, 2)
    a3, a4 = _rows(inputs, 2, len(data))
    shape = (len(data), len(data))
    pairs = list(np.ndindex(shape))
    terms: dict[str, list[tuple[float, float]]] = {}
    if i3 == i4:
        D = _entries(mlp, data, "D", [(i, j, a3, a4) for i, j in pairs], place).reshape(shape)
        terms["D"] = [means.bend_along(m, m, D / 2) for m in range(len(looked))]
    if i3 in looked and i4 in looked:
        F = _entries(mlp, data, "F", [(i, a3, j, a4) for i, j in pairs], place).reshape(shape)
        terms["F"] = [means.bend_along(looked.index(i3), looked.index(i4), F)]
    error = sum(each[1] for parts in terms.values() for each in parts)
    values = {name: sum(value for value, _ in parts) for name, parts in terms.items()}
    return _with_fan_in(mlp, data, values, place, error, accurate=means.is_accurate)


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
    i, a, place = _asked(mlp, X, neurons, inputs, layer)
    wanted: dict[str, tuple[str, Quadruple]] = {}
    if i[0] == i[3] and i[1] == i[2]:
        wanted["P_0123"] = ("P", a)
    if i[0] == i[1] and i[2] == i[3]:
        wanted["Q_0123"] = ("Q", a)
    if i[0] == i[2] and i[1] == i[3]:
        wanted["Q_0213"] = ("Q", (a[0], a[2], a[1], a[3]))
    return _assembled(mlp, X, wanted, place)


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
    i, (a, b, c, d), where = _asked(mlp, X, neurons, inputs, layer)
    if kind not in ("first", "second"):
        raise InputError(f"kind is {kind!r}: give 'first' or 'second'.")
    names = ("R_0123", "R_0231", "R_0312") if kind == "first" else ("S_1234", "T_1342", "U_1423")
    places = ((a, b, c, d), (a, c, d, b), (a, d, b, c))
    pairs = (i[0] == i[1] and i[2] == i[3], i[0] == i[2] and i[1] == i[3], i[0] == i[3] and i[1] == i[2])
    wanted = {
        name: (name[0], place) for name, place, equal in zip(names, places, pairs, strict=True) if equal
    }
    return _assembled(mlp, X, wanted, where)


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

    ``observable``, ``of`` and ``kinks`` are as in :func:`observable_ntk`.
    """
    data, place, looked, means = _observe(observable, mlp, X, of, layer, kinks)
    i0, i1, i2 = _whole_numbers("neurons", neurons, 3)
    a0, a1, a2 = _rows(inputs, 3, len(data))
    pairings = {
        "P_012": (i1 == i2, i0, "P", (a0, a1, a2)),
        "Q_012": (i0 == i1, i2, "Q", (a0, a1, a2)),
        "Q_021": (i0 == i2, i1, "Q", (a0, a2, a1)),
    }
    terms, error = {}, 0.0
    for name, (equal, moved, tensor, (a, b, c)) in pairings.items():
        if equal and moved in looked:
            entries = _entries(mlp, data, tensor, [(a, b, c, d) for d in range(len(data))], place)
            terms[name], doubt = means.slope_along(looked.index(moved), entries)
            error += doubt
    return _with_fan_in(mlp, data, terms, place, error, accurate=means.is_accurate)
