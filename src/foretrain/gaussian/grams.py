"""Expectations of all pairs of inputs at once: <f(z_a) g(z_b)>_K for every a, b of one set, or of two.

What a kernel recursion calls in every layer. Closed forms run tile by tile; smooth functions by Mehler's series,
whose coefficients cost N and not N^2; the pairs for which the series is too slow (nearly parallel inputs of kinked or
very widely spread functions) by interpolation of the two-input rules, or by those rules themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.gaussian import mehler
from foretrain.gaussian.closed_forms import closed_pair, fill_equal, own_values, tile_rule
from foretrain.gaussian.covariance import check_cross, check_gram, stack_pairs
from foretrain.gaussian.expectation import Expectation, check_tolerance
from foretrain.gaussian.factors import Factor, as_factor
from foretrain.gaussian.interpolation import interpolated_pairs
from foretrain.gaussian.quadrature import WIDEST, Products, Stack, too_wide
from foretrain.support.acceleration import accelerates
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import keep_freed_pages, require_memory
from foretrain.support.threads import one_thread_of_blas, over_cores

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Pair = tuple[Factor, Factor]

_GUARDED = 1500**2  # entries: below, the matrices are too small to be worth asking how much memory there is
_TILE = 256
_STRIP = 262_144  # entries: few strips, so that threads seldom meet at the interpreter lock
_PARALLEL = 4e-15  # 1 - |rho| below this is round-off: one direction
_FEW = 3000


def gram(
    products: Any, K: ArrayLike, *, tolerance: float | None = None, dtype: Any = None
) -> Expectation | list[Expectation]:
    """``<f(z_a) g(z_b)>_K`` for all pairs a, b of N inputs.

    Parameters
    ----------
    products
        An activation (name, object, callable) or factor f: gives <f f>. Or a list of pairs ``(f, g)``: gives a list,
        sharing the work, e.g. ``[("tanh", "tanh"), (("tanh", 1), ("tanh", 1))]``.
    K
        Covariance (N, N); float32 stays float32, which is faster.
    tolerance
        Relative to sqrt(<f^2><g^2>); 1e-10, or 1e-6 in float32.

    Entries of the diagonal where delta functions of one input would multiply are inf, or nan if not even that.

    Examples
    --------
    >>> gram("relu", [[1, 0.5], [0.5, 1]]).value.round(6)
    array([[0.5     , 0.304499],
           [0.304499, 0.5     ]])
    """
    pairs, single = _as_pairs(products)
    K, tolerance = _prepare(check_gram(K), len(pairs), tolerance, dtype)
    results = AllPairs(K, np.diagonal(K), tolerance).all(pairs)
    return results[0] if single else results


def cross_gram(
    products: Any,
    K: ArrayLike,
    row_variance: ArrayLike,
    column_variance: ArrayLike,
    *,
    tolerance: float | None = None,
    dtype: Any = None,
) -> Expectation | list[Expectation]:
    """``<f(z_a) g(z_b)>`` for all inputs a of one set and b of another, without the pairs inside a set.

    Parameters
    ----------
    products
        As in :func:`gram`; f stands at the rows, g at the columns.
    K
        Covariances (m, n) between the two sets; float32 stays float32.
    row_variance, column_variance
        Variances (m,) and (n,) of the inputs of each set.
    tolerance
        As in :func:`gram`.

    Examples
    --------
    >>> cross_gram("relu", [[0.5, 1.0]], [1.0], [1.0, 1.0]).value.round(6)
    array([[0.304499, 0.5     ]])
    """
    pairs, single = _as_pairs(products)
    K, *variances = check_cross(K, row_variance, column_variance)
    K, tolerance = _prepare(K, len(pairs), tolerance, dtype)
    variance = np.concatenate(variances).astype(K.dtype, copy=False)
    results = AllPairs(K, variance, tolerance, first_column=len(K)).all(pairs)
    return results[0] if single else results


def second_moments(f: Factor, variance: Array, tolerance: float = 1e-12) -> Array:
    """``<f^2>`` at single inputs of these variances (N,): the diagonal of :func:`gram`."""
    closed = closed_pair(f, f)
    if closed is not None:
        return np.asarray(own_values(*closed, variance))
    stack = Stack(variance[:, None, None], np.zeros((len(variance), 1)), tolerance)
    value, error = stack.total([f * f])
    stack.warn_if_short(Products([(f * f,)]), value[None], error[None])
    return value


def _as_pairs(products: Any) -> tuple[list[Pair], bool]:
    """The products as pairs, and whether there is only one, not in a list."""
    if not isinstance(products, list):
        return [(as_factor(products), as_factor(products))], True
    for product in products:
        if not isinstance(product, tuple) or len(product) != 2:
            raise InputError(
                f"each product must be a pair (f, g), one factor for each input, not {product!r}."
            )
    return [(as_factor(f), as_factor(g)) for f, g in products], False


def _prepare(
    K: NDArray[Any], products: int, tolerance: float | None, dtype: Any
) -> tuple[NDArray[Any], float]:
    """The covariances in the precision asked for, and the tolerance, if there is memory for the results."""
    if dtype is not None:
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise InputError(f"`dtype` must be float32 or float64, not {dtype!r}.")
        K = K.astype(dtype, copy=False)
    tolerance = check_tolerance(tolerance, 1e-6 if K.dtype == np.float32 else 1e-10)
    if K.size > _GUARDED:
        require_memory(
            K.nbytes * (2 * products + 1),
            f"{products} expectations of all pairs of {len(K)} and {K.shape[1]} inputs",
            "ask for fewer inputs or products at a time, or pass K in float32",
        )
    return K, tolerance


class Tile(NamedTuple):
    """A block of pairs; ``mirrored`` if its transpose is to be filled from it."""

    rows: slice
    columns: slice
    mirrored: bool


class Patch(NamedTuple):
    """Entries computed apart from the rest of the matrix."""

    rows: Indices
    columns: Indices
    value: Array
    error: Array
    rule: str

    def mirrored(self) -> Patch:
        """The same entries and their transposes."""
        rows = np.concatenate([self.rows, self.columns])
        columns = np.concatenate([self.columns, self.rows])
        return Patch(rows, columns, np.tile(self.value, 2), np.tile(self.error, 2), self.rule)


def square_tiles(shape: tuple[int, ...], symmetric: bool, size: int = _TILE) -> list[Tile]:
    """Square tiles of a matrix, above the diagonal only where the rest is a mirror image."""
    rows, columns = shape
    return [
        Tile(slice(i, min(i + size, rows)), slice(j, min(j + size, columns)), symmetric and i != j)
        for i in range(0, rows, size)
        for j in range(i if symmetric else 0, columns, size)
    ]


def _strips(rows: int, columns: int) -> list[Tile]:
    """Whole rows: twice the pairs, but contiguous, which for a few sweeps of arithmetic is faster than mirroring."""
    height = max(1, _STRIP // columns)
    return [Tile(slice(i, min(i + height, rows)), slice(0, columns), False) for i in range(0, rows, height)]


class AllPairs:
    """Covariances (m, n) of two sets of inputs, and everything of them that products share.

    Columns are counted on from ``first_column`` among all inputs: from 0 where rows and columns are one set, else
    from m, so that what belongs to single inputs is computed for both sets at once.
    """

    def __init__(
        self, K: NDArray[Any], variance: NDArray[Any], tolerance: float, first_column: int = 0
    ) -> None:
        self.K, self.tolerance = K, tolerance
        self.variance = np.maximum(
            variance, 0
        )  # of all inputs: the rows, then the columns unless they are the same
        self.deviation = np.sqrt(self.variance.astype(float))
        self.first_column = first_column

    @property
    def one_set(self) -> bool:
        """Whether rows and columns are the same inputs."""
        return self.first_column == 0

    def _symmetric(self, f: Factor, g: Factor) -> bool:
        return self.one_set and f == g

    def _sides(self, of_inputs: NDArray[Any], of_others: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """What the first holds for the rows, and the second for the columns."""
        return of_inputs[: len(self.K)], of_others[self.first_column :]

    def all(self, pairs: list[Pair]) -> list[Expectation]:
        """The products in order, closed forms of the same activation together."""
        results: list[Expectation | None] = [None] * len(pairs)
        closed: dict[Activation, dict[int, list[int]]] = {}
        for index, (f, g) in enumerate(pairs):
            found = closed_pair(f, g)
            if found is not None:
                closed.setdefault(found[0], {}).setdefault(found[1], []).append(index)
        for activation, orders in closed.items():
            for order, result in self._closed(activation, list(orders)).items():
                for index in orders[order]:
                    results[index] = result
        # Delta functions and piecewise polynomials have closed forms for stacks of pairs.
        exact = [
            index
            for index, (f, g) in enumerate(pairs)
            if results[index] is None
            and (f.deltas or g.deltas or (f.pieces is not None and g.pieces is not None))
        ]
        for index, result in zip(exact, self._pair_by_pair([pairs[index] for index in exact]), strict=True):
            results[index] = result
        series: dict[Factor, mehler.Series] = {}
        for index, (f, g) in enumerate(pairs):
            if results[index] is None:
                results[index] = self._by_series(f, g, series)
        return [result for result in results if result is not None]

    def _fill(
        self,
        tiles: list[Tile],
        work: Callable[[Tile, list[NDArray[Any]]], None],
        count: int,
        uses_blas: bool = False,
    ) -> list[NDArray[Any]]:
        """Let ``work`` fill ``count`` matrices tile by tile, on all cores."""
        keep_freed_pages()
        out = [np.empty_like(self.K) for _ in range(count)]

        def one(tile: Tile) -> None:
            targets = [matrix[tile.rows, tile.columns] for matrix in out]
            work(tile, targets)
            if tile.mirrored:
                for matrix, target in zip(out, targets):
                    matrix[tile.columns, tile.rows] = target.T

        over_cores(one, tiles, uses_blas=uses_blas)
        return out

    def _closed(self, activation: Activation, orders: list[int]) -> dict[int, Expectation]:
        compiled = accelerates(self.K.size)
        rule = tile_rule(activation, compiled=compiled)
        row_variance, column_variance = self._sides(self.variance, self.variance)

        def work(tile: Tile, targets: list[NDArray[Any]]) -> None:
            a, b = row_variance[tile.rows, None], column_variance[None, tile.columns]
            rule(a, b, self.K[tile.rows, tile.columns], dict(zip(orders, targets)))

        found = {}
        for order, value in zip(orders, self._fill(_strips(*self.K.shape), work, len(orders))):
            if self.one_set:
                fill_equal(activation, order, value, np.diag_indices_from(value), self.variance)
            error = partial(self._rounding, activation, order, value.dtype)
            found[order] = Expectation(value, error, "closed form, by numba" if compiled else "closed form")
        return found

    def _rounding(self, activation: Activation, order: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        square = own_values(activation, order, self.variance)
        norm = 3 * np.finfo(dtype).eps ** 0.5 * np.sqrt(square)
        return np.asarray(np.multiply.outer(*self._sides(norm, norm)))

    def _pair_by_pair(self, pairs: list[Pair]) -> list[Expectation]:
        if not pairs:
            return []
        mirrored = all(self._symmetric(f, g) for f, g in pairs)
        rows, columns = np.triu_indices(len(self.K)) if mirrored else np.indices(self.K.shape).reshape(2, -1)
        value, error = np.empty((2, len(pairs), *self.K.shape), dtype=self.K.dtype)
        for part in np.array_split(np.arange(len(rows)), max(1, len(rows) // 200_000)):
            i, j = rows[part], columns[part]
            value[:, i, j], error[:, i, j] = self._exactly(pairs, i, j)
            if mirrored:
                value[:, j, i], error[:, j, i] = value[:, i, j], error[:, i, j]
        rules = ["closed form" if f.pieces and g.pieces else "conditioning" for f, g in pairs]
        return [Expectation(*item) for item in zip(value, error, rules, strict=True)]

    def _exactly(self, pairs: list[Pair], i: Indices, j: Indices) -> tuple[Array, Array]:
        """Values and errors (products, pairs) by the rules for two inputs (one where they are the same)."""
        value, error = np.empty((2, len(pairs), len(i)))
        same = i == j + self.first_column
        if same.any():
            alone = self.variance[i[same]].astype(float)[:, None, None]
            stack = Stack(alone, np.zeros((len(alone), 1)), self.tolerance)
            for k, (f, g) in enumerate(pairs):
                try:
                    value[k, same], error[k, same] = stack.total([f * g])
                except (
                    NotSupportedError
                ):  # delta functions of one input multiplied: no value, but the pairs have
                    value[k, same] = error[k, same] = np.nan
        if not same.all():
            i, j = i[~same], j[~same]
            K = stack_pairs(self.variance[i], self.variance[j + self.first_column], self.K[i, j])
            stack, products = Stack(K, np.zeros((len(i), 2)), self.tolerance), Products(pairs)
            value[:, ~same], error[:, ~same] = found, doubt = stack.totals(products)
            stack.warn_if_short(products, found, doubt)
        return value, error

    def _by_series(self, f: Factor, g: Factor, known: dict[Factor, mehler.Series]) -> Expectation:
        if self.deviation.max() ** 2 > WIDEST:
            raise too_wide([f, g])
        rho, far, parallel = self._correlations
        with one_thread_of_blas():
            a, b = self._enough_terms(f, g, known, far)
        reach = mehler.largest_correlation(a, b, self.tolerance)
        late = np.abs(rho) > reach if far > reach else None
        if late is not None:
            rho = np.where(late, np.copysign(reach, rho), rho)
            if self.one_set:
                np.fill_diagonal(late, False)

        compiled = accelerates(self.K.size)

        def work(tile: Tile, targets: list[NDArray[Any]]) -> None:
            block = np.ascontiguousarray(rho[tile.rows, tile.columns])
            columns = slice(tile.columns.start + self.first_column, tile.columns.stop + self.first_column)
            mehler.sum_tile(a, b, tile.rows, columns, block, self.tolerance, targets[0], compiled=compiled)

        tiles = square_tiles(self.K.shape, self._symmetric(f, g))
        (value,) = self._fill(tiles, work, 1, uses_blas=not compiled)
        reached = 2 * max(self.tolerance, 8 * float(np.finfo(value.dtype).eps))
        if self._symmetric(f, g):
            np.fill_diagonal(value, a.norm**2)
        # Pairs with one direction only, and the diagonal unless Parseval gave it.
        i, j = parallel
        if f != g and self.one_set:
            diagonal = np.arange(len(self.K))
            i, j = np.concatenate([diagonal, i]), np.concatenate([diagonal, j])
        patches = self._one_direction(f, g, a, b, i, j)
        rule = "Hermite series"
        if late is not None:
            patches.append(self._late_pairs(f, g, late))
            rule += f" and {patches[-1].rule}"
        for patch in patches:
            value[patch.rows, patch.columns] = patch.value

        def error() -> NDArray[Any]:
            bound = reached * np.multiply.outer(*self._sides(a.norm, b.norm))
            for patch in patches:
                rounding = np.finfo(value.dtype).eps * np.abs(patch.value)
                bound[patch.rows, patch.columns] = patch.error + rounding
            return np.asarray(bound)

        return Expectation(value, error, rule)

    @cached_property
    def _correlations(self) -> tuple[NDArray[Any], float, tuple[Indices, Indices]]:
        """Correlations of pairs that are not parallel, the largest of them, and the parallel pairs."""
        with np.errstate(divide="ignore"):
            inverse = np.where(self.deviation > 0, 1 / self.deviation, 0.0).astype(self.K.dtype)
        of_rows, of_columns = self._sides(inverse, inverse)
        rho = self.K * of_rows[:, None]
        rho *= of_columns[None, :]
        limit = 1 - max(_PARALLEL, 8 * float(np.finfo(rho.dtype).eps))
        if self.one_set:
            # The diagonal is filled apart; a value like its neighbours' keeps the range of correlations narrow.
            inputs = np.arange(len(rho))
            np.fill_diagonal(rho, rho[inputs, (inputs + 1) % len(rho)] if len(rho) > 1 else 0.0)
        largest = max(float(rho.max(initial=0.0)), -float(rho.min(initial=0.0)))
        if largest <= limit:
            return rho, largest, (np.empty(0, np.intp), np.empty(0, np.intp))
        i, j = np.nonzero(np.abs(rho) > limit)
        rho[i, j] = 0
        return rho, max(float(rho.max(initial=0.0)), -float(rho.min(initial=0.0))), (i, j)

    def _enough_terms(
        self, f: Factor, g: Factor, known: dict[Factor, mehler.Series], far: float
    ) -> tuple[mehler.Series, mehler.Series]:
        """Coefficients of both factors, as many as the most correlated pair needs (or as are allowed)."""
        # The widest input is usually the hardest: alone, it tells at little cost how many terms all will need.
        widest = self.deviation.max(keepdims=True)
        guess = mehler.MOST_TERMS
        for terms in (mehler.FIRST_TERMS, mehler.MOST_TERMS):
            a, b = (mehler.series(h, widest, terms, self.tolerance) for h in (f, g))
            needed = mehler.terms_needed(a, b, far, self.tolerance)
            if needed is not None:
                guess = min(mehler.MOST_TERMS, needed + 8)
                break
        terms = max([guess, *(len(known[h].coefficients) for h in (f, g) if h in known)])
        while True:
            for h in (f, g):
                if h not in known or len(known[h].coefficients) != terms:
                    known[h] = mehler.series(h, self.deviation, terms, self.tolerance)
            a, b = known[f], known[g]
            if terms >= mehler.MOST_TERMS or mehler.terms_needed(a, b, far, self.tolerance) is not None:
                return a, b
            terms = min(mehler.MOST_TERMS, 2 * terms)

    def _one_direction(
        self, f: Factor, g: Factor, a: mehler.Series, b: mehler.Series, i: Indices, j: Indices
    ) -> list[Patch]:
        """Pairs that are parallel up to rounding: equal inputs by <f^2>, others by the series if it reaches them."""
        if not len(i):
            return []
        partner = j + self.first_column
        first, second = self.deviation[i], self.deviation[partner]
        with np.errstate(divide="ignore", invalid="ignore"):
            rho = np.nan_to_num(np.clip(self.K[i, j].astype(float) / (first * second), -1, 1))
        size, error = a.norm[i] * b.norm[partner], 2 * max(self.tolerance, 4e-15)
        equal = (f == g) & (first == second) & (rho > 1 - _PARALLEL)
        left, patches = np.flatnonzero(~equal), list[Patch]()
        if len(left) < len(i):
            patches.append(Patch(i[equal], j[equal], size[equal], error * size[equal], "one-input rules"))
        if len(left) and mehler.largest_correlation(a, b, self.tolerance) >= 1:
            value = mehler.sum_list(a, b, i[left], partner[left], rho[left])
            patches.append(Patch(i[left], j[left], value, error * size[left], "Hermite series"))
        elif len(left):
            (exact,), (doubt,) = self._exactly([(f, g)], i[left], j[left])
            patches.append(Patch(i[left], j[left], exact, doubt, "one-input rules"))
        return patches

    def _late_pairs(self, f: Factor, g: Factor, late: NDArray[np.bool_]) -> Patch:
        """Pairs beyond the reach of the series: kinks split off, else few one by one and many by interpolation."""
        i, j = np.nonzero(np.triu(late) if self._symmetric(f, g) else late)
        partner = j + self.first_column
        covariance = self.K[i, j].astype(float)
        split = mehler.split_pairs(f, g, self.variance.astype(float), i, partner, covariance, self.tolerance)
        if split is not None:
            patch = Patch(i, j, *split, "split kinks")
        elif len(i) <= _FEW:
            (exact,), (doubt,) = self._exactly([(f, g)], i, j)
            patch = Patch(i, j, exact, doubt, "two-input rules")
        else:
            found = interpolated_pairs(
                f, g, self.deviation[i] ** 2, self.deviation[partner] ** 2, covariance, self.tolerance
            )
            patch = Patch(i, j, *found, "interpolated two-input rules")
        return patch.mirrored() if self._symmetric(f, g) else patch
