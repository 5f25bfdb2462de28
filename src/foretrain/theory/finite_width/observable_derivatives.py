"""Mean derivatives <O>, <dO> and <ddO> of any function of preactivations, with an error estimate.

By parts (8.56), in independent directions u of K = L L^T with z = L u: <dO/du_p> = <O u_p> and
<d^2 O / du_p du_q> = <O (u_p u_q - 1_pq)>, so that only values of O are needed, and they serve all moments:

* smooth functions of up to six directions: the trapezoidal rule inside a ball, refined until nothing changes,
* functions with declared kinks, up to three directions: panels that end at the kinks,
* everything else: scrambled Sobol points, with a standard error.

Of products of factors they follow from Price's theorem instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from foretrain.gaussian import covariance_gradient, expectation, expectation_of
from foretrain.gaussian.observables import Function, checked_function, directions, factors_of, kink_locations
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.support.seeds import generator, spawn

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
