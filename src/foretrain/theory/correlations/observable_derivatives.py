"""Mean derivatives <O>, <dO> and <ddO> of any function of preactivations, with an error estimate.

By parts (8.56), in independent directions u of K = L L^T with z = L u: <dO/du_p> = <O u_p> and
<d^2 O / du_p du_q> = <O (u_p u_q - 1_pq)>, so that only values of O are needed, and they serve all moments:

* smooth functions of up to six directions: the trapezoidal rule inside a ball, refined until nothing changes,
* functions with declared kinks, up to three directions: panels that end at the kinks,
* everything else: scrambled Sobol points, with a standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import expectation_of
from foretrain.gaussian.observables import Function, checked_function, directions, kink_locations
from foretrain.support.progress import track
from foretrain.support.seeds import generator, spawn

Array = NDArray[np.float64]

GOAL = 1e-6
"""Error of the moments, relative to the root mean square of the function, up to which nothing is said."""

_MOST_LATTICE, _MOST_PANELS = 6, 3  # directions
_FIRST_STEP, _FINER = 1.0, 0.8
_FIRST_RADIUS, _MOST_RADIUS, _RIND = 7.5, 12.0, 0.5
_MOST_POINTS = (100_000, 1_000_000, 3_000_000, 12_000_000, 45_000_000, 45_000_000)  # by number of directions
_CONVERGED = (1e-9, 1e-9, 1e-8, 1e-8, 1e-7, 1e-7)  # change of the moments at which refinement stops
_MARGIN = 3.0  # of what is still to come over the last change, where convergence is slow
_INNER = 3  # directions of the lattice that are held in memory at once
_SHIFTS = (
    0.137,
    0.291,
    0.413,
    0.071,
    0.359,
    0.223,
)  # off the symmetric places, where odd errors cancel unseen
_REPLICATES, _MOST_SOBOL = 16, 2**17


class Derivatives(NamedTuple):
    """<O>, <dO/du> and <ddO/dudu>, each to within ``error``; ``size`` is the root mean square of O."""

    mean: float
    slope: Array
    bend: Array
    error: float
    size: float


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
        if np.isfinite(change) and _point_count(size, step, radius) > most:
            break
    return _derivatives(moments, _MARGIN * change + cut, scale)


def _point_count(size: int, step: float, radius: float) -> float:
    """Volume of the ball over that of a cell."""
    return float(math.pi ** (size / 2) / math.gamma(size / 2 + 1) * (radius / step) ** size)


def _on_lattice(call: Function, size: int, step: float, radius: float) -> tuple[_Sums, float]:
    """Sums over the ball, and what its rind holds of them, which bounds what lies outside."""
    density = (step / math.sqrt(2 * math.pi)) ** size
    total, cut = _Sums(0.0, np.zeros(size), np.zeros((size, size)), 0.0), 0.0
    for u, squares in _lattice_blocks(size, step, radius):
        values, weights = call(u), density * np.exp(-0.5 * squares)
        total = total.plus(_sums(values, u, weights))
        rind = squares > (radius - _RIND) ** 2
        cut += float(np.sum(np.abs(values[rind]) * weights[rind] * squares[rind]))
    return total, cut


def _lattice_blocks(size: int, step: float, radius: float) -> Iterator[tuple[Array, Array]]:
    """Points (Q, size) inside the ball with their squared lengths, a few directions at a time."""
    reach = math.ceil(radius / step) + 1
    lines = [step * (np.arange(-reach, reach + 1) + shift) for shift in _SHIFTS[:size]]
    inner = np.stack(np.meshgrid(*lines[-_INNER:], indexing="ij"), axis=-1).reshape(-1, min(size, _INNER))
    lengths = np.sum(inner**2, axis=1)
    order = np.argsort(lengths)
    inner, lengths = inner[order], lengths[order]
    for outer in track(list(product(*lines[:-_INNER])), "lattice points"):
        own = sum(value**2 for value in outer)
        count = int(np.searchsorted(lengths, radius**2 - own, side="right"))
        if count:
            fixed = np.broadcast_to(np.array(outer), (count, len(outer)))
            yield np.concatenate([fixed, inner[:count]], axis=1), lengths[:count] + own


def _by_panels(call: Function, K: Array, back: Array, kinks: list[tuple[float, ...]]) -> Derivatives:
    """One expectation for each moment, because the panels depend on what they integrate."""

    def expected(weight: Function) -> tuple[float, float]:
        found = expectation_of(lambda z: call(z) * weight(z @ back.T), K, kinks=kinks)
        return float(found.value), float(found.error)

    count = len(back)
    weights: list[Function] = [_one, *(partial(_component, p=p) for p in range(count))]
    weights += [partial(_second, p=p, q=q) for p in range(count) for q in range(count)]
    found = np.array([expected(weight) for weight in weights])
    square = float(expectation_of(lambda z: call(z) ** 2, K, kinks=kinks))
    return _derivatives(found[:, 0], float(found[:, 1].max()), math.sqrt(max(square, 0.0)) or 1.0)


def _one(u: Array) -> Array:
    return np.ones(len(u))


def _component(u: Array, p: int) -> Array:
    return u[:, p]


def _second(u: Array, p: int, q: int) -> Array:
    return np.asarray(u[:, p] * u[:, q] - float(p == q))


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
