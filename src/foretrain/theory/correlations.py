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

Observables need their mean derivatives <O>, <dO> and <ddO>, with an error estimate. By parts (8.56), in independent
directions u of K = L L^T with z = L u: <dO/du_p> = <O u_p> and <d^2 O / du_p du_q> = <O (u_p u_q - 1_pq)>, so that
only values of O are needed, and they serve all moments:

* smooth functions of up to six directions: the trapezoidal rule inside a ball, refined until nothing changes,
* functions with declared kinks, up to three directions: panels that end at the kinks,
* everything else: scrambled Sobol points, with a standard error.

Of products of factors they follow from Price's theorem instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.gaussian import covariance_gradient, expectation, expectation_of
from foretrain.gaussian.observables import Function, checked_function, directions, factors_of, kink_locations
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.support.seeds import generator, spawn
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import whole_numbers
from foretrain.theory.flow import flow

if TYPE_CHECKING:
    import xarray as xr


GOAL = 1e-6
"""Error of the moments, relative to the root mean square of the function, up to which nothing is said."""

_MOST_LATTICE, _MOST_PANELS = 6, 3  # directions
_FIRST_STEP, _FINER = 1.0, 0.8
_FIRST_RADIUS, _MOST_RADIUS, _RIND = 7.5, 12.0, 0.5
_MOST_POINTS = (100_000, 1_000_000, 3_000_000, 12_000_000, 45_000_000, 45_000_000)  # by number of directions
_CONVERGED = (1e-9, 1e-9, 1e-8, 1e-8, 1e-7, 1e-7)  # change of the moments at which refinement stops
_MARGIN = 3.0  # of what is still to come over the last change, where convergence is slow
_INNER = 3  # directions of the lattice that are held in memory at once
# Off the symmetric places, where odd errors cancel unseen.
_SHIFTS = (0.137, 0.291, 0.413, 0.071, 0.359, 0.223)
_REPLICATES, _MOST_SOBOL = 16, 2**17


class Derivatives(NamedTuple):
    """<O>, <dO/du> and <ddO/dudu>, each to within ``error``; ``size`` is the root mean square of O."""

    mean: float
    slope: Array
    bend: Array
    error: float
    size: float


class ObservableMeans(NamedTuple):
    """<dO / du_{m; p}> and <d^2 O / du_{m; p} du_{n; q}> of neurons m, n in coordinates u = back z.

    Each is known to within ``error``.
    """

    backs: tuple[Array, ...]  # of each neuron (coordinates, inputs)
    slopes: tuple[Array, ...]
    bends: dict[tuple[int, int], Array]
    error: float
    is_accurate: bool

    def slope_along(self, neuron: int, vector: Array) -> tuple[float, float]:
        """The sum of a neuron's slopes with a vector (inputs,), and its error."""
        own = self.backs[neuron] @ vector
        return float(self.slopes[neuron] @ own), self.error * float(np.abs(own).sum())

    def bend_along(self, m: int, n: int, tensor: Array) -> tuple[float, float]:
        """The sum of bends with a tensor (inputs, inputs), and its error."""
        own = self.backs[m] @ tensor @ self.backs[n].T
        return float(np.sum(self.bends[m, n] * own)), self.error * float(np.abs(own).sum())


class OneNeuron(NamedTuple):
    """Derivatives of a function of one neuron in coordinates u = back z."""

    back: Array
    found: Derivatives


def observable_means(observable: Any, K: Array, neurons: int, kinks: Sequence[Any]) -> ObservableMeans:
    """Of a function of one neuron; of a tuple of two such, multiplied; or of a function of two neurons."""
    if neurons == 1:
        back, found = one_neuron(observable, K, kinks)
        return ObservableMeans(
            (back,), (found.slope,), {(0, 0): found.bend}, found.error, _is_accurate(found)
        )
    if isinstance(observable, tuple) and len(observable) == 2:
        (back, f), (other, g) = (one_neuron(each, K, kinks) for each in observable)
        crossed = np.outer(f.slope, g.slope)
        return ObservableMeans(
            (back, other),
            (f.slope * g.mean, g.slope * f.mean),
            {(0, 0): f.bend * g.mean, (1, 1): g.bend * f.mean, (0, 1): crossed, (1, 0): crossed.T},
            f.error * g.size + g.error * f.size,  # no moment of a function exceeds its size much
            _is_accurate(f) and _is_accurate(g),
        )
    if not callable(observable):
        raise InputError("an observable of two neurons is a tuple of two functions, or a function of both.")
    back, found = directions(K).back, derivatives_of(observable, K, 2, kinks)
    parts = slice(None, len(back)), slice(len(back), None)
    return ObservableMeans(
        (back, back),
        (found.slope[parts[0]], found.slope[parts[1]]),
        {(m, n): found.bend[parts[m], parts[n]] for m, n in np.ndindex(2, 2)},
        found.error,
        _is_accurate(found),
    )


def _is_accurate(found: Derivatives) -> bool:
    """Whether the integrals reached their goal."""
    return found.error <= GOAL * found.size


def one_neuron(function: Any, K: Array, kinks: Sequence[Any]) -> OneNeuron:
    """Derivatives of factors, one per input, by Price's theorem; of a callable by integration."""
    factors = factors_of(function, len(K))
    if factors is None:
        return OneNeuron(directions(K).back, derivatives_of(function, K, 1, kinks))
    # Price's derivatives of a product, among the inputs whose factors are not constant.
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
    return OneNeuron(np.eye(len(K)), Derivatives(mean, slope, bend, 0.0, size))


def derivatives_of(
    function: Callable[[Array], Any], K: Array, copies: int, kinks: Sequence[Any]
) -> Derivatives:
    """Of a function of ``copies`` independent neurons, called with (points, copies, inputs), in directions (m, p).

    With one copy the function is called with (points, inputs). Kinks are values of z, for all inputs alike or one
    sequence for each.
    """
    forth, back = directions(K)
    whole, call = _repeated(forth, copies), checked_function(function, len(K), copies)
    size, places = whole.shape[1], kink_locations(kinks, len(K))
    if not size:
        value = float(call(np.zeros((1, len(whole))))[0])
        return Derivatives(value, np.zeros(0), np.zeros((0, 0)), 0.0, abs(value))
    if any(places) and size <= _MOST_PANELS:
        return _by_panels(call, _repeated(K, copies), _repeated(back, copies), places * copies)
    if not any(places) and size <= _MOST_LATTICE:
        return _by_lattice(lambda u: call(u @ whole.T), size)
    return _by_sampling(lambda u: call(u @ whole.T), size)


def _repeated(matrix: Array, copies: int) -> Array:
    """The same block for every copy."""
    return np.asarray(np.kron(np.eye(copies), matrix), dtype=np.float64)


class _Sums(NamedTuple):
    """Weighted sums over points: O, O u, O u u, O^2."""

    mean: float
    slope: Array
    bend: Array
    square: float

    def plus(self, other: _Sums) -> _Sums:
        return _Sums(
            self.mean + other.mean,
            self.slope + other.slope,
            self.bend + other.bend,
            self.square + other.square,
        )

    def moments(self) -> Array:
        """<O>, <O u>, <O (u u - 1)> in one row."""
        bend = self.bend - self.mean * np.eye(len(self.slope))
        return np.concatenate([[self.mean], self.slope, bend.ravel()])


def _sums(values: Array, u: Array, weights: Array | float) -> _Sums:
    weighted = weights * values
    return _Sums(
        float(weighted.sum()),
        weighted @ u,
        (weighted[:, None] * u).T @ u,
        float(np.sum(weighted * values)),
    )


def _derivatives(moments: Array, error: float, size: float) -> Derivatives:
    count = (math.isqrt(4 * len(moments) - 3) - 1) // 2  # 1 + r + r^2 of them
    return Derivatives(
        float(moments[0]), moments[1 : count + 1], moments[count + 1 :].reshape(count, count), error, size
    )


def _by_lattice(call: Function, size: int) -> Derivatives:
    """Step and ball are refined until neither changes the moments, or points run out."""
    goal, most = _CONVERGED[size - 1], _MOST_POINTS[size - 1]
    step, radius, before = _FIRST_STEP, _FIRST_RADIUS, None
    while True:
        total, cut = _on_lattice(call, size, step, radius)
        moments, scale = total.moments(), math.sqrt(max(total.square, 0.0)) or 1.0
        change = math.inf if before is None else float(np.abs(moments - before).max())
        if cut > goal * scale and radius < _MOST_RADIUS:
            radius, before = radius + 1.5, None
        elif change <= goal * scale:
            break
        else:
            step, before = step * _FINER, moments
        cells = math.pi ** (size / 2) / math.gamma(size / 2 + 1) * (radius / step) ** size  # in the ball
        if np.isfinite(change) and cells > most:
            break
    return _derivatives(moments, _MARGIN * change + cut, scale)


def _on_lattice(call: Function, size: int, step: float, radius: float) -> tuple[_Sums, float]:
    """Sums over the ball, and what its rind holds of them, which bounds what lies outside."""
    density = (step / math.sqrt(2 * math.pi)) ** size
    total, cut = _Sums(0.0, np.zeros(size), np.zeros((size, size)), 0.0), 0.0
    reach = math.ceil(radius / step) + 1
    lines = [step * (np.arange(-reach, reach + 1) + shift) for shift in _SHIFTS[:size]]
    inner = np.stack(np.meshgrid(*lines[-_INNER:], indexing="ij"), axis=-1).reshape(-1, min(size, _INNER))
    lengths = np.sum(inner**2, axis=1)
    order = np.argsort(lengths)
    inner, lengths = inner[order], lengths[order]
    for outer in track(list(product(*lines[:-_INNER])), "lattice points"):  # the inner directions at once
        own = sum(value**2 for value in outer)
        count = int(np.searchsorted(lengths, radius**2 - own, side="right"))
        if not count:
            continue
        fixed = np.broadcast_to(np.array(outer), (count, len(outer)))
        u, squares = np.concatenate([fixed, inner[:count]], axis=1), lengths[:count] + own
        values, weights = call(u), density * np.exp(-0.5 * squares)
        total = total.plus(_sums(values, u, weights))
        rind = squares > (radius - _RIND) ** 2
        cut += float(np.sum(np.abs(values[rind]) * weights[rind] * squares[rind]))
    return total, cut


def _by_panels(call: Function, K: Array, back: Array, kinks: list[tuple[float, ...]]) -> Derivatives:
    """One expectation for each moment, because the panels depend on what they integrate."""

    def expected(*places: int) -> tuple[float, float]:
        """Of O times 1, u_p or u_p u_q - 1_pq, whichever has these places."""
        equal = float(len(places) == 2 and places[0] == places[1])
        found = expectation_of(
            lambda z: call(z) * ((z @ back.T)[:, list(places)].prod(axis=1) - equal), K, kinks=kinks
        )
        return float(found.value), float(found.error)

    found = np.array([expected(*p) for order in range(3) for p in product(range(len(back)), repeat=order)])
    square = float(expectation_of(lambda z: call(z) ** 2, K, kinks=kinks))
    return _derivatives(found[:, 0], float(found[:, 1].max()), math.sqrt(max(square, 0.0)) or 1.0)


def _by_sampling(call: Function, size: int) -> Derivatives:
    """Independent scramblings, four times as many points each time, until their spread is small enough."""
    from scipy.special import ndtri
    from scipy.stats import qmc  # takes a second to import, and few calls come here

    each, error, scale = 2**11, math.inf, 1.0
    moments = np.zeros(1 + size + size**2)
    while error > GOAL * scale and each < _MOST_SOBOL:
        each *= 4
        rows, squares = [], []
        for child in spawn(0, _REPLICATES):
            uniform = qmc.Sobol(size, rng=generator(child)).random(each)
            u = ndtri(np.clip(uniform, 1e-300, 1 - 1e-16))
            total = _sums(call(u), u, 1 / each)
            rows.append(total.moments())
            squares.append(total.square)
        moments, scale = np.mean(rows, axis=0), math.sqrt(np.mean(squares)) or 1.0
        error = float(np.std(rows, axis=0, ddof=1).max() / math.sqrt(_REPLICATES))
    return _derivatives(moments, error, scale)


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


def _asked(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None
) -> tuple[Quadruple, Quadruple, int]:
    """Four labels of neurons, four inputs, and the layer."""
    i, j, k, m = whole_numbers("neurons", neurons, 4)
    check_network(mlp)
    place = mlp.check_layer(layer)
    a, b, c, d = whole_numbers("inputs", inputs, 4, len(mlp.check_inputs(X)))
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
    place, data, looked = mlp.check_layer(layer), mlp.check_inputs(X), tuple(int(number) for number in found)
    K = flow(mlp, data, ["K"])["K"].sel(layer=place).values
    return _Observed(data, place, looked, observable_means(observable, K, len(looked), kinks))


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
    i3, i4 = whole_numbers("neurons", neurons, 2)
    a3, a4 = whole_numbers("inputs", inputs, 2, len(data))
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
    i0, i1, i2 = whole_numbers("neurons", neurons, 3)
    a0, a1, a2 = whole_numbers("inputs", inputs, 3, len(data))
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
