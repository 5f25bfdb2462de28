"""Correlations of the tangent kernel with itself, with preactivations and with any observable, to order 1/n.

``ntk_mean``           E[H] = Theta + H1 / n
``ntk_covariance``     Cov[H_{i1 i2; 1 2}, H_{i3 i4; 3 4}] (8.82)
``preactivation_ntk``  E[z_{i1; 1} z_{i2; 2} dH_{i3 i4; 3 4}] (8.67)
``observable_ntk``     E[O dH_{i3 i4; 3 4}] for a function O of one or two neurons (8.71)

dH is H minus its mean, and n the width n_{l-1} before the layer. Values include the 1/n. At infinite width all
of them but the mean vanish.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.gaussian import Factor, covariance_gradient, expectation
from foretrain.gaussian.factors import as_factor
from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.flow.entry import check_network
from foretrain.theory.observable_derivatives import GOAL, Derivatives, derivatives_of, directions

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
Quadruple = tuple[int, int, int, int]


@dataclass(frozen=True)
class NTKCorrelation:
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

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {value:.6g}" for name, value in self.terms.items()) or "no term"
        about = f" ± {self.error:.1g}" if self.error else ""
        return (
            f"NTKCorrelation({self.value:.10g}{about} from {parts}; layer {self.layer}, fan-in {self.fan_in})"
        )


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
    i, a, place = _four("neurons", neurons), *_at(mlp, X, inputs, layer)
    wanted = _paired(i, a, "A", "B")
    return _assembled(mlp, X, wanted, place)


def preactivation_ntk(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> NTKCorrelation:
    """E[z_{i1; a1} z_{i2; a2} dH_{i3 i4; a3 a4}] (8.67); arguments as in :func:`ntk_covariance`."""
    i, a, place = _four("neurons", neurons), *_at(mlp, X, inputs, layer)
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
    place, data = _layer(mlp, layer), mlp.check_inputs(X)
    looked = _looked(of)
    i3, i4 = _numbers("neurons", neurons, 2)
    a3, a4 = _inputs(inputs, 2, len(data))
    K = flow(mlp, data, ["K"])["K"].sel(layer=place).values
    bends = _curvature(observable, K, len(looked), kinks)
    pairs = list(np.ndindex(K.shape))
    terms: dict[str, list[tuple[float, float]]] = {}
    if i3 == i4:
        D = _entries(mlp, data, "D", [(i, j, a3, a4) for i, j in pairs], place).reshape(K.shape)
        terms["D"] = [bends.contracted(m, m, D / 2) for m in range(len(looked))]
    if i3 in looked and i4 in looked:
        F = _entries(mlp, data, "F", [(i, a3, j, a4) for i, j in pairs], place).reshape(K.shape)
        terms["F"] = [bends.contracted(looked.index(i3), looked.index(i4), F)]
    error = sum(each[1] for parts in terms.values() for each in parts)
    found = _finished(
        mlp, data, {name: sum(v for v, _ in parts) for name, parts in terms.items()}, place, error
    )
    if found.error and not bends.is_accurate:
        _warn_of_error(found)
    return found


def _looked(of: Sequence[int]) -> tuple[int, ...]:
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


def _warn_of_error(found: NTKCorrelation) -> None:
    warnings.warn(
        f"the correlator {found.value:.6g} is known to within {found.error:.1g} only: give factors or a tuple of two "
        "functions if the observable is a product, declare its kinks=, or leave out inputs it does not look at.",
        AccuracyWarning,
        stacklevel=3,
    )


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


def _assembled(
    mlp: MLP, X: ArrayLike, wanted: dict[str, tuple[str, Quadruple]], layer: int
) -> NTKCorrelation:
    terms = {
        name: float(_entries(mlp, X, tensor, [places], layer)[0]) for name, (tensor, places) in wanted.items()
    }
    return _finished(mlp, X, terms, layer)


def _finished(
    mlp: MLP, X: ArrayLike, terms: dict[str, float], layer: int, error: float = 0.0
) -> NTKCorrelation:
    """With the 1/n of the width before the layer; layer 1, whose tensors are zero, has the data before it."""
    fan_in = mlp.with_inputs(mlp.check_inputs(X)).widths[layer - 1]
    parts = {name: value / fan_in for name, value in terms.items()}
    return NTKCorrelation(sum(parts.values(), 0.0), parts, layer, fan_in, error / fan_in)


def _entries(mlp: MLP, X: ArrayLike, tensor: str, places: Sequence[Quadruple], layer: int) -> Array:
    found = flow(mlp, X, [tensor], quadruples=np.array(places))
    return np.asarray(found[tensor].sel(layer=layer).values)


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


class _Neuron(NamedTuple):
    """Derivatives of a function of one neuron in coordinates u = back z."""

    back: Array
    found: Derivatives


def _curvature(observable: Any, K: Array, neurons: int, kinks: Sequence[Any]) -> _Curvature:
    """Over independent neurons."""
    if neurons == 1:
        back, found = _one_neuron(observable, K, kinks)
        return _Curvature((back,), {(0, 0): found.bend}, found.error, _is_accurate(found))
    if isinstance(observable, tuple) and len(observable) == 2:
        return _product_curvature(*(_one_neuron(each, K, kinks) for each in observable))
    if not callable(observable):
        raise InputError("an observable of two neurons is a tuple of two functions, or a function of both.")
    back, found = directions(K).back, derivatives_of(observable, K, 2, kinks)
    own = len(back)
    blocks = {
        (m, n): found.bend[m * own : (m + 1) * own, n * own : (n + 1) * own] for m, n in np.ndindex(2, 2)
    }
    return _Curvature((back, back), blocks, found.error, _is_accurate(found))


def _product_curvature(first: _Neuron, second: _Neuron) -> _Curvature:
    """Of a product of functions of one neuron each."""
    f, g = first.found, second.found
    crossed = np.outer(f.slope, g.slope)
    blocks = {(0, 0): f.bend * g.mean, (1, 1): g.bend * f.mean, (0, 1): crossed, (1, 0): crossed.T}
    error = f.error * g.size + g.error * f.size  # no moment of a function exceeds its size much
    return _Curvature((first.back, second.back), blocks, error, _is_accurate(f) and _is_accurate(g))


def _is_accurate(found: Derivatives) -> bool:
    return found.error <= GOAL * found.size


def _one_neuron(function: Any, K: Array, kinks: Sequence[Any]) -> _Neuron:
    if isinstance(function, str | Factor | Activation | Polynomial):
        function = [function]
    if not isinstance(function, Sequence):
        if not callable(function):
            raise InputError(f"{function!r} is no observable: give factors, one per input, or a function.")
        return _Neuron(directions(K).back, derivatives_of(function, K, 1, kinks))
    if len(function) != len(K):
        raise InputError(
            f"{len(function)} factors were given for {len(K)} inputs: give one each, 1.0 for none."
        )
    return _Neuron(np.eye(len(K)), _by_derivatives([as_factor(each) for each in function], K))


def _by_derivatives(factors: list[Factor], K: Array) -> Derivatives:
    """Price's derivatives of a product, among the inputs whose factors are not constant."""
    moving = [place for place, f in enumerate(factors) if not f.is_constant] or [0]
    constants = [f.polynomial[0] for place, f in enumerate(factors) if place not in moving]
    own, block = [factors[place] for place in moving], K[np.ix_(moving, moving)]
    own[0] = own[0] * float(np.prod(constants))
    slope, bend = np.zeros(len(K)), np.zeros(K.shape)
    for place, f in enumerate(own):
        changed = [[*own[:place], part, *own[place + 1 :]] for part in f.derivative()]
        slope[moving[place]] = sum(float(expectation(each, block)) for each in changed)
    gradient = np.asarray(covariance_gradient(own, block).value)
    bend[np.ix_(moving, moving)] = (1 + np.eye(len(moving))) * gradient
    mean = float(expectation(own, block))
    size = max(abs(mean), float(np.abs(slope).max()), float(np.abs(bend).max()))
    return Derivatives(mean, slope, bend, 0.0, size)


def _layer(mlp: MLP, layer: int | None) -> int:
    check_network(mlp)
    place = mlp.depth if layer is None else layer
    if not isinstance(place, int | np.integer) or isinstance(place, bool) or not 1 <= place <= mlp.depth:
        raise InputError(f"layer {layer!r} does not exist: the network has layers 1 to {mlp.depth}.")
    return int(place)


def _at(mlp: MLP, X: ArrayLike, inputs: Sequence[int], layer: int | None) -> tuple[Quadruple, int]:
    """Four inputs, and the layer."""
    place = _layer(mlp, layer)
    a, b, c, d = _inputs(inputs, 4, len(mlp.check_inputs(X)))
    return (a, b, c, d), place


def _four(name: str, values: Sequence[int]) -> Quadruple:
    a, b, c, d = _numbers(name, values, 4)
    return a, b, c, d


def _inputs(values: Sequence[int], count: int, size: int) -> tuple[int, ...]:
    found = _numbers("inputs", values, count)
    if min(found) < 0 or max(found) >= size:
        raise InputError(f"inputs {found} are not all rows of X, which has {size}.")
    return found


def _numbers(name: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    found = np.asarray(values)
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise InputError(f"{name} is {values!r}: give {count} whole numbers.")
    return tuple(int(value) for value in found)
