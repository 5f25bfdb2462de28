"""Correlations of the tangent kernel with itself, with preactivations and with any observable, to order 1/n.

``ntk_mean``           E[H] = Theta + H1 / n
``ntk_covariance``     Cov[H_{i1 i2; 1 2}, H_{i3 i4; 3 4}] (8.82)
``preactivation_ntk``  E[z_{i1; 1} z_{i2; 2} dH_{i3 i4; 3 4}] (8.67)
``observable_ntk``     E[O dH_{i3 i4; 3 4}] for a function O of one or two neurons (8.71)

dH is H minus its mean, and n the width n_{l-1} before the layer. Values include the 1/n. At infinite width all
of them but the mean vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.gaussian import Factor, covariance_gradient, expectation, expectation_of
from foretrain.gaussian.factors import as_factor
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
Quadruple = tuple[int, int, int, int]

_INDEPENDENT = 1e-9  # of the correlations' eigenvalues: below it a direction of the inputs is rounding


@dataclass(frozen=True)
class NTKCorrelation:
    """A correlator at order 1/n: ``value`` is the sum of ``terms``, each with its 1/n."""

    value: float
    terms: dict[str, float]
    layer: int
    fan_in: int

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {value:.6g}" for name, value in self.terms.items()) or "no term"
        return f"NTKCorrelation({self.value:.10g} from {parts}; layer {self.layer}, fan-in {self.fan_in})"


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
    i, a, place = _four("neurons", neurons), _places(mlp, X, inputs), _layer(mlp, layer)
    wanted = _paired(i, a, "A", "B")
    return _assembled(mlp, X, wanted, place)


def preactivation_ntk(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> NTKCorrelation:
    """E[z_{i1; a1} z_{i2; a2} dH_{i3 i4; a3 a4}] (8.67); arguments as in :func:`ntk_covariance`."""
    i, a, place = _four("neurons", neurons), _places(mlp, X, inputs), _layer(mlp, layer)
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
    data, place, looked = mlp.check_inputs(X), _layer(mlp, layer), tuple(of)
    i3, i4 = _numbers("neurons", neurons, 2)
    a3, a4 = _inputs(inputs, 2, len(data))
    if len(looked) not in (1, 2) or len(set(looked)) < len(looked):
        raise InputError(
            f"of is {looked}: name one neuron, or two different ones, that the observable looks at."
        )
    K = flow(mlp, data, ["K"])["K"].sel(layer=place).values
    bends = _bends(observable, K, len(looked), kinks)
    pairs = list(np.ndindex(K.shape))
    terms = {}
    if i3 == i4:
        D = _entries(mlp, data, "D", [(i, j, a3, a4) for i, j in pairs], place)
        own = np.einsum("minj,mn->ij", bends, np.eye(len(looked)))
        terms["D"] = 0.5 * float(np.sum(own.ravel() * D))
    if i3 in looked and i4 in looked:
        F = _entries(mlp, data, "F", [(i, a3, j, a4) for i, j in pairs], place)
        mixed = bends[looked.index(i3), :, looked.index(i4), :]
        terms["F"] = float(np.sum(mixed.ravel() * F))
    return _finished(mlp, terms, place)


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
    return _finished(mlp, terms, layer)


def _finished(mlp: MLP, terms: dict[str, float], layer: int) -> NTKCorrelation:
    """With the 1/n of the width before the layer; layer 1, whose tensors are zero, has the data before it."""
    fan_in = mlp.hidden_widths[layer - 2] if layer > 1 else (mlp.n_in or 0)
    parts = {name: value / fan_in if layer > 1 else 0.0 for name, value in terms.items()}
    return NTKCorrelation(sum(parts.values(), 0.0), parts, layer, fan_in)


def _entries(mlp: MLP, X: ArrayLike, tensor: str, places: Sequence[Quadruple], layer: int) -> Array:
    found = flow(mlp, X, [tensor], quadruples=np.array(places))
    return np.asarray(found[tensor].sel(layer=layer).values)


class _Neuron(NamedTuple):
    """<f>, <d_a f> and <d_a d_b f> of a function of one neuron at all inputs."""

    mean: float
    slope: Array
    bend: Array


def _bends(observable: Any, K: Array, neurons: int, kinks: Sequence[Any]) -> Array:
    """<d^2 O / dz_{m; a} dz_{n; b}> over independent neurons: (neurons, inputs, neurons, inputs)."""
    size = len(K)
    if neurons == 1:
        return _one_neuron(observable, K, kinks).bend.reshape(1, size, 1, size)
    if isinstance(observable, tuple) and len(observable) == 2:
        first, second = (_one_neuron(each, K, kinks) for each in observable)
        bends = np.empty((2, size, 2, size))
        bends[0, :, 0], bends[1, :, 1] = first.bend * second.mean, second.bend * first.mean
        bends[0, :, 1] = np.outer(first.slope, second.slope)
        bends[1, :, 0] = bends[0, :, 1].T
        return bends
    if not callable(observable):
        raise InputError("an observable of two neurons is a tuple of two functions, or a function of both.")

    def joint(points: Array) -> Array:
        return np.asarray(observable(points.reshape(-1, 2, size)))

    both = np.asarray(np.kron(np.eye(2), K), dtype=np.float64)
    return _by_weights(
        joint, both, [list(row) for row in kinks] * 2 if _is_nested(kinks) else kinks
    ).bend.reshape(2, size, 2, size)


def _is_nested(kinks: Sequence[Any]) -> bool:
    return bool(len(kinks)) and np.ndim(kinks[0]) > 0


def _one_neuron(function: Any, K: Array, kinks: Sequence[Any]) -> _Neuron:
    if isinstance(function, str | Factor | Activation | Polynomial):
        function = [function]
    if not isinstance(function, Sequence):
        if not callable(function):
            raise InputError(f"{function!r} is no observable: give factors, one per input, or a function.")
        return _by_weights(function, K, kinks)
    if len(function) != len(K):
        raise InputError(
            f"{len(function)} factors were given for {len(K)} inputs: give one each, 1.0 for none."
        )
    return _by_derivatives([as_factor(each) for each in function], K)


def _by_derivatives(factors: list[Factor], K: Array) -> _Neuron:
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
    return _Neuron(float(expectation(own, block)), slope, bend)


def _by_weights(function: Callable[[Array], Any], K: Array, kinks: Sequence[Any]) -> _Neuron:
    """By parts (8.56): <df> = K^+ <f z> and <ddf> = K^+ <f (z z - K)> K^+, on the support of K.

    The pseudo-inverse suffices, because the tensors that the derivatives meet never leave that support.
    """

    def weighted(weight: Callable[[Array], Array]) -> float:
        def integrand(points: Array) -> Array:
            return np.asarray(np.asarray(function(points)) * weight(points))

        return float(expectation_of(integrand, K, kinks=kinks))

    size = len(K)
    first, second = np.zeros(size), np.zeros((size, size))
    for a in range(size):
        first[a] = weighted(itemgetter(np.s_[:, a]))
        for b in range(a, size):
            second[a, b] = second[b, a] = weighted(partial(_product, a=a, b=b, mean=K[a, b]))
    inverse = _pseudo_inverse(K)
    mean = float(expectation_of(function, K, kinks=kinks))
    return _Neuron(mean, inverse @ first, inverse @ second @ inverse)


def _product(points: Array, a: int, b: int, mean: float) -> Array:
    return np.asarray(points[:, a] * points[:, b] - mean)


def _pseudo_inverse(K: Array) -> Array:
    """Of the correlations, scaled back, so that inputs may differ much in size; zero inputs drop out."""
    size = np.sqrt(np.maximum(np.diagonal(K), 0.0))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    scaled = scale[:, None] * K * scale
    return np.asarray(scale[:, None] * np.linalg.pinv(scaled, rcond=_INDEPENDENT, hermitian=True) * scale)


def _layer(mlp: MLP, layer: int | None) -> int:
    place = mlp.depth if layer is None else layer
    if not 1 <= place <= mlp.depth:
        raise InputError(f"layer {layer} does not exist: the network has layers 1 to {mlp.depth}.")
    return place


def _places(mlp: MLP, X: ArrayLike, inputs: Sequence[int]) -> Quadruple:
    a, b, c, d = _inputs(inputs, 4, len(mlp.check_inputs(X)))
    return a, b, c, d


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
