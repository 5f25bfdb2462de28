"""<s(u) s(v)>, <s'(u) s'(v)> and <u s'(u) v s'(v)> of one Gaussian field at all pairs of points of a tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from foretrain.activations import Activation
from foretrain.gaussian.closed_forms import closed_pair, tile_rule
from foretrain.gaussian.factors import Factor, Term
from foretrain.gaussian.grams import AllPairs, second_moments
from foretrain.gaussian.quadrature import Stack
from foretrain.support.arrays import beside, namespace, on_host
from foretrain.theory.layers.fields import Field, Tile
from foretrain.theory.layers.positions import Array, Indices, Pairs, flat_positions, shape_of

_TOLERANCE = 1e-12
_BLOCK = 2**14  # pairs for which all that a closed form holds stays in the cache of a core


@lru_cache(maxsize=256)
def factor_of(activation: Activation, kind: str) -> Factor:
    """The value, the slope, or z times the slope of a nonlinearity."""
    if kind == "value":
        return Factor((Term(activation),))
    slope = Factor((Term(activation, order=1, floor=1),))
    return slope if kind == "slope" else Factor(slope.terms, (0.0, 1.0))


def pair_means(
    activation: Activation, kinds: Sequence[str], covariance: Any, of: Field, tile: Tile, pairs: Pairs
) -> list[Any]:
    """Each kind of mean at every pair, as ``tile.split`` has them: the closed form, else a series.

    Covariances of points with themselves must be their variances to the last digit (:func:`exact_own`).
    """
    factors = [factor_of(activation, kind) for kind in kinds]
    means: list[Any] = [None] * len(kinds)
    closed = {pair[1]: k for k, one in enumerate(factors) if (pair := closed_pair(one, one)) is not None}
    if closed:
        rule, library = tile_rule(activation, compiled=tile.compiled), namespace(covariance)
        sides = tile.rows((of, "second"), pairs), tile.columns((of, "second"), pairs)
        targets = {order: library.empty_like(covariance) for order in closed}
        # What numpy sweeps several times stays near the core: a block of pairs at a time.
        step = max(1, _BLOCK * len(covariance) // math.prod(covariance.shape))
        for start in range(0, len(covariance), len(covariance) if tile.compiled else step):
            some = slice(start, None if tile.compiled else start + step)
            a, b = (one if len(one) == 1 else one[some] for one in sides)
            rule(a, b, covariance[some], {order: target[some] for order, target in targets.items()})
        for order, k in closed.items():
            means[k] = targets[order]
    if activation.slopes is not None and "gain" in kinds:  # z s'(z) = s(z)
        means[kinds.index("gain")] = means[kinds.index("value")]
    left = [k for k, value in enumerate(means) if value is None]
    if left:
        listed = covariance.reshape(*shape_of(pairs), *tile.shape)
        more = _by_series([factors[k] for k in left], listed, of, tile, pairs)
        for k, value in zip(left, more, strict=True):
            means[k] = tile.split(value, pairs)
    return means


@lru_cache(maxsize=256)
def has_closed_means(activation: Activation, gains: bool) -> bool:
    """Whether no mean of a nonlinearity needs a series."""
    kinds = ("value", "slope", "gain") if gains and activation.slopes is None else ("value", "slope")
    factors = [factor_of(activation, kind) for kind in kinds]
    return all(closed_pair(one, one) is not None for one in factors)


def exact_own(covariance: Any, tile: Tile, of: Field, pairs: Pairs) -> Any:
    """The covariances with those of points with themselves equal to the variances to the last digit.

    The angle between a point and itself would else be the square root of a rounding error.
    """
    assert tile.shared is not None
    covariance = covariance if namespace(covariance) is not np else np.ascontiguousarray(covariance)
    number = np.arange(len(tile.shared[0]))
    *places, number = np.ix_(*(axis.same for axis in pairs), number)
    positions = np.ix_(*(axis.p[axis.same] for axis in pairs), number.ravel())[:-1]
    rows, columns = (beside(one[number], covariance) for one in tile.shared)
    own, points = ([beside(one, covariance) for one in where] for where in (places, positions))
    covariance[(*own, rows, columns)] = tile.row_points[of, "second"][(*points, rows)]
    return covariance


def _by_series(factors: list[Factor], covariance: Array, of: Field, tile: Tile, pairs: Pairs) -> list[Array]:
    """By the rules of :mod:`foretrain.gaussian.grams` for matrices of pairs."""
    products = [(one, one) for one in factors]
    if tile.own:
        return _own_by_series(products, covariance, tile.row_points[of, "second"], pairs)
    results = [np.empty(covariance.shape) for _ in factors]
    flat_rows, flat_columns = (
        points[of, "second"].reshape(-1, points[of, "second"].shape[-1])
        for points in (tile.row_points, tile.column_points)
    )
    p, q = flat_positions(pairs)
    values = covariance.reshape(len(p), *covariance.shape[len(pairs) :])
    out = [one.reshape(values.shape) for one in results]
    for places in _blocks(p, q, len(flat_rows)):  # (m, n): all pairs of m first and n second positions
        first, second = p[places[:, 0]], q[places[0]]
        block = values[places].transpose(0, 2, 1, 3)  # (m, rows, n, columns)
        variance = np.concatenate([flat_rows[first].ravel(), flat_columns[second].ravel()])
        matrix = np.ascontiguousarray(block).reshape(flat_rows[first].size, flat_columns[second].size)
        found = AllPairs(matrix, variance, _TOLERANCE, first_column=len(matrix)).all(products)
        for target, one in zip(out, found, strict=True):
            target[places] = one.value.reshape(block.shape).transpose(0, 2, 1, 3)
    if tile.shared is not None:
        (inputs, beside_them), same = tile.shared, np.flatnonzero(p == q)
        for target, factor in zip(out, factors, strict=True):
            own = second_moments(factor, flat_rows[p[same]][:, inputs].ravel()).reshape(len(same), -1)
            target[same[:, None], inputs, beside_them] = own
    return results


def _own_by_series(
    products: list[tuple[Factor, Factor]], covariance: Array, variance: Array, pairs: Pairs
) -> list[Array]:
    """Pairs of positions of each input with itself."""
    p, q = flat_positions(pairs)
    flat = variance.reshape(-1, variance.shape[-1])
    values = covariance.reshape(len(p), -1)
    results = [np.empty(values.shape) for _ in products]
    same = np.flatnonzero(p == q)
    for target, (factor, _) in zip(results, products, strict=True):
        target[same] = second_moments(factor, flat[p[same]].ravel()).reshape(len(same), -1)
    if len(same) < len(p):
        matrix = np.zeros((len(flat), len(flat)))
        for number in range(values.shape[1]):
            matrix[:] = 0
            np.fill_diagonal(matrix, flat[:, number])
            matrix[p, q] = values[:, number]
            found = AllPairs(matrix, flat[:, number], _TOLERANCE, first_column=0).all(products)
            for target, one in zip(results, found, strict=True):
                target[:, number] = one.value[p, q]
    return [one.reshape(covariance.shape) for one in results]


def _blocks(p: Indices, q: Indices, positions: int) -> list[Indices]:
    """Where pairs stand that form products of first and second positions: all of them, or those of each first one."""
    order = np.lexsort((q, p))
    if len(p) == positions**2:
        return [order.reshape(positions, positions)]
    edges = np.flatnonzero(np.diff(p[order])) + 1
    return [part[None] for part in np.split(order, edges)]


def point_mean(activation: Activation, variance: Any) -> Any:
    """<s(u)> at single points of these variances."""
    if activation.slopes is not None:
        minus, plus = activation.slopes
        return (plus - minus) * (variance / (2 * math.pi)) ** 0.5
    on_device, variance = variance, on_host(variance)
    flat, one = variance.ravel(), factor_of(activation, "value")
    value, _ = Stack(flat[:, None, None], np.zeros((len(flat), 1)), _TOLERANCE).total([one])
    return beside(value.reshape(variance.shape), on_device)
