"""What reads the joint law of a window of a Gaussian field z: maxima, and what follows depthwise convolutions.

(Architectures, sections 3 and 4.) With h = f(z_A) at the first point of a pair, A its window, and B that of the
second,

    S = E[f(z_A) f(z_B)],    Theta = sum over i in A, j in B of E[d_i f(z_A) d_j f(z_B)] Theta_z(i, j),

and what weights inside f add to Theta. The maximum of two Gaussians without an activation has a closed form; all
others are means over random draws. A function of such a thing and of other Gaussian fields, as at the end of a
residual block after a max pooling, is drawn together with them (``outer``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation, activation
from foretrain.support.errors import InputError
from foretrain.theory.layers.expressions import (
    Apply,
    Elementwise,
    Expression,
    Leaf,
    Sum,
    as_activation,
    evaluated,
    leaves,
)
from foretrain.theory.layers.fields import Field, Kernel, Tile
from foretrain.theory.layers.linear_maps import LinearMap, PositionMap
from foretrain.theory.layers.positions import Array, Axis, Indices, Pairs, Taps, Weights, selected, shape_of
from foretrain.theory.layers.windows import pooling_windows

NUMBERS_AT_ONCE = 2**17  # pairs of points x positions of a window x draws: few enough for the cache
_ROUNDING = 1e-11  # share of a variance below which what is left of it is rounding


def max_windows(
    size: int,
    kernel: int,
    stride: int | None = None,
    padding: int = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
) -> Indices:
    """Positions in the window of each output, (kernel, outputs), by torch's rules; -1 outside of the input."""
    step = kernel if stride is None else stride
    starts = pooling_windows(
        size, kernel, stride=step, padding=padding, ceil_mode=ceil_mode, dilation=dilation
    )
    found = starts + dilation * np.arange(kernel)[:, None]
    inside = (found >= 0) & (found < size)
    if not inside.any(axis=0).all():
        raise InputError(
            f"max pooling with kernel {kernel}, dilation {dilation} and padding {padding} has a window that holds "
            f"none of the {size} positions: use less padding."
        )
    return np.where(inside, found, -1)


def adaptive_max_windows(size: int, outputs: int) -> Indices:
    """Windows from floor(i size / outputs) to ceil((i + 1) size / outputs), (longest, outputs); -1 after the end."""
    number = np.arange(outputs)
    first, last = number * size // outputs, -(-(number + 1) * size // outputs)
    found = first + np.arange((last - first).max())[:, None]
    return np.where(found < last, found, -1)


def is_increasing(function: Activation) -> bool:
    """Whether a function never falls on [-20, 20], so that it may as well be applied to the maximum."""
    return bool((np.diff(function.value(np.linspace(-20.0, 20.0, 8001))) >= -1e-12).all())


def max_pooled(
    field: Field, windows: Sequence[Indices], law: Activation | None = None, name: str = "max pooling"
) -> MaxPooled | MaxOfPairs:
    """The maximum over windows (one array for each axis) of a Gaussian field, or of an activation ``law`` of it."""
    commutes = law is not None and is_increasing(law)
    pooled = MaxPooled(
        inputs=(field,),
        positions=tuple(one.shape[1] for one in windows),
        name=name,
        sources=field.sources,
        windows=tuple(windows),
        function=law if commutes else None,
        before=None if commutes else law,
    )
    return max_of_pairs(pooled) if pooled.is_of_pairs else pooled


@dataclass(frozen=True, eq=False, kw_only=True)
class Windowed(Field):
    """A function of a window of the first input, and of the other inputs at the same position, by sampling.

    ``windows``: for each axis (k, outputs) positions of the input, -1 for none; the window is their product.
    ``outer``: an expression of ``leaf``, which stands for the function of the window, and of the other inputs.
    """

    windows: tuple[Indices, ...]
    outer: Expression | None = None
    leaf: Field | None = None

    @property
    def reads_points(self) -> bool:
        """The law of each window."""
        return True

    @property
    def keeps_gains(self) -> bool:
        """Gains are averaged together with the function."""
        return True

    @property
    def sampled(self) -> bool:
        """Always."""
        return True

    @property
    def own_numbers(self) -> int:
        """Random numbers of the function itself, such as weights, in each draw."""
        return 0

    def of_window(self, z: Array, numbers: Array, at: Any) -> Drawn:
        """The function of draws z (k, ..., draws) at these output positions, and its slopes."""
        raise NotImplementedError

    def own_theta(self, first: Drawn, second: Drawn) -> Array | None:
        """What weights inside the function add to Theta in each draw, (lines, columns, draws)."""
        return None

    @cached_property
    def window(self) -> Indices:
        """Positions along each axis in the whole window of each output, (axes, k, outputs); -1 for none."""
        axes, sizes = len(self.windows), [len(one) for one in self.windows]
        found = np.empty((axes, *sizes, *self.positions), dtype=np.intp)
        for number, one in enumerate(self.windows):
            found[number] = np.expand_dims(one, [n for n in range(2 * axes) if n % axes != number])
        return found.reshape(axes, prod(sizes), prod(self.positions))

    @cached_property
    def outside(self) -> NDArray[np.bool_]:
        """Which places of each window hold no position, (k, outputs)."""
        return np.asarray((self.window < 0).any(axis=0))

    def together(self, outer: Expression, leaf: Field) -> Windowed:
        """An expression of this function, which it calls ``leaf``, and of Gaussian fields, all drawn together."""
        others = tuple(one for one in leaves(outer) if one is not leaf)
        sources = self.sources.union(*(one.sources for one in others))
        return replace(self, inputs=(self.inputs[0], *others), outer=outer, leaf=leaf, sources=sources)

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """All pairs with the first position in one window and the second in the other; of other inputs the same."""
        found = []
        for one, axis, size in zip(self.windows, wanted, self.inputs[0].positions, strict=True):
            i, j = np.broadcast_arrays(one[:, None, axis.p], one[None, :, axis.q])
            inside = (i >= 0) & (j >= 0)
            found.append(Axis.of(i[inside], j[inside], size))
        return (tuple(found), *(wanted for _ in self.inputs[1:]))

    def prepare(self, wanted: Pairs, given: tuple[Pairs, ...]) -> tuple[Pairs, ...]:
        """The pairs at hand, among which those of two windows are looked up."""
        return given

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: tuple[Pairs, ...]) -> Kernel:
        """Means over draws: first of single points (in tiles of own pairs), then of pairs, some lines at a time.

        A line is a pair of positions and an input of the rows, with all inputs of the columns.
        """
        assert tile.sampling is not None
        columns = 1 if tile.own else tile.column_size
        kernels = [_in_lines(inputs[0], tile, columns)]
        for one, given in zip(inputs[1:], prepared[1:], strict=True):
            parts = (None if part is None else selected(part, given, pairs) for part in one)
            kernels.append(_in_lines(Kernel(*parts), tile, columns))
        k = self.window.shape[1]
        x = tile.sampling.normals(self, 2 * k + 2 * len(self.inputs[1:]) + self.own_numbers).T
        if tile.own:
            self._keep_points(tile, kernels[0].S, prepared[0], x)
        grid = np.indices(shape_of(pairs)).reshape(len(pairs), -1)
        p, q = (
            np.ravel_multi_index([getattr(axis, side)[n] for axis, n in zip(pairs, grid)], self.positions)
            for side in "pq"
        )
        found = np.zeros((2, len(p), tile.size, columns))
        count, step = len(p) * tile.size, max(1, 2 * NUMBERS_AT_ONCE // (columns * x.size))
        for start in range(0, count, step):
            pair, a = np.divmod(np.arange(start, min(start + step, count)), tile.size)
            found[:, pair, a] = self._means(tile, kernels, prepared[0], Lines(pair, p[pair], q[pair], a), x)
        found = found.reshape(2, *shape_of(pairs), *tile.shape)
        return Kernel(found[0], found[1])

    def _means(
        self, tile: Tile, kernels: list[Kernel], given: Pairs, lines: Lines, x: Array
    ) -> tuple[Array, Array]:
        """S and Theta, each (lines, columns)."""
        k, rows, columns = self.window.shape[1], tile.row_points, tile.column_points
        (pair, p, q, a), kernel = lines, kernels[0]
        places, nowhere = self._places(given, p, q)
        own = x[2 * k + 2 * len(self.inputs[1:]) :]

        # 1. Windows of the rows: z_A = K_A^(1/2) x1, and other inputs there.
        root = rows[self, "root"][p, :, :, a]
        first = self.of_window((root.swapaxes(0, 1) @ x[:k])[:, :, None], own, p)
        beside = [
            self._pairs_of(tile, number, kernels[number], lines, x) for number in range(1, len(kernels))
        ]
        first = self._outside_function(first, [one[0] for one in beside])

        # 2. Windows of the columns given those: z_B = C^T K_A^(-1/2) x1 + L x2, L L^T = K_B - C^T K_A^+ C.
        covariance = np.where(nowhere[..., None], 0.0, kernel.S[places, a])
        known = np.einsum("ijlc,lih->lcjh", covariance, rows[self, "inverse"][p, :, :, a], optimize=True)
        if tile.own:
            root, square = columns[self, "root"][q, :, :, a][:, None], columns[self, "square"][q, a][:, None]
        else:
            root, square = np.moveaxis(columns[self, "root"][q], -1, 1), columns[self, "square"][q]
        mixing = np.concatenate([known, _cholesky(root @ root, known)], axis=-1)
        drawn = np.moveaxis(mixing, 2, 0).reshape(-1, 2 * k) @ x[: 2 * k]
        second = self.of_window(drawn.reshape(k, *square.shape, -1), own, q)
        second = self._outside_function(second, [one[1] for one in beside])

        # 3. Second moments, scaled so that no correlation exceeds 1: the column's own moment is known already.
        value = _mean_product(first.value, second.value)
        here = np.square(second.value).mean(axis=-1)
        value *= np.sqrt(np.divide(square, here, out=np.ones_like(here), where=here > 0))

        # 4. Slopes in two positions of the windows: the weights of their Theta; and those in the other inputs.
        total = np.zeros_like(value)
        if kernel.Theta is not None:
            weights = _mean_product(first.slopes[:, None], second.slopes[None])
            total += (weights * np.where(nowhere[..., None], 0.0, kernel.Theta[places, a])).sum(axis=(0, 1))
        for number, other in enumerate(kernels[1:]):
            if other.Theta is not None:
                weights = _mean_product(first.others[number], second.others[number])
                total += weights * other.Theta[pair, a]

        # 5. Gains of channels: their part of Theta is a multiple of the product of the values they multiply.
        for one, u, v in (
            (self.inputs[0], first.z * first.slopes, second.z * second.slopes),
            *(
                (one, (beside[n][0] * first.others[n])[None], (beside[n][1] * second.others[n])[None])
                for n, one in enumerate(self.inputs[1:])
            ),
        ):
            if one.gains:
                weights = _mean_product(u[:, None], v[None])
                same = self._same_positions(p, q) if one is self.inputs[0] else (p == q)[None, None, :, None]
                for gain in one.gains:
                    total += gain.rate * (weights * same if gain.own_position else weights).sum(axis=(0, 1))

        # 6. Weights inside the function.
        more = self.own_theta(first, second)
        return value, total if more is None else total + more.mean(axis=-1)

    def _same_positions(self, p: Indices, q: Indices) -> NDArray[np.bool_]:
        """Which places of two windows are one position, (k, k, lines, 1)."""
        return np.asarray((self.window[:, :, None, p] == self.window[:, None, :, q]).all(axis=0)[..., None])

    def _pairs_of(
        self, tile: Tile, number: int, kernel: Kernel, lines: Lines, x: Array
    ) -> tuple[Array, Array]:
        """Draws of another input at the rows (lines, 1, draws) and the columns (lines, columns, draws)."""
        first, second = x[2 * self.window.shape[1] + 2 * (number - 1) :][:2]
        _, p, q, a = lines
        name = (self.inputs[number], "second")
        rows = tile.row_points[name].reshape(-1, tile.size)[p, a]
        columns = tile.column_points[name].reshape(-1, tile.column_size)
        at_columns = columns[q, a][:, None] if tile.own else columns[q]
        size = np.sqrt(rows)[:, None]
        along = np.divide(kernel.S[lines.pair, a], size, out=np.zeros(at_columns.shape), where=size > 0)
        rest = np.sqrt(np.maximum(at_columns - along**2, 0.0))
        return size[..., None] * first, along[..., None] * first + rest[..., None] * second

    def _outside_function(self, inner: Drawn, others: list[Array]) -> Drawn:
        """The outer expression of the function of the window and of the other inputs, with all slopes."""
        if self.outer is None:
            return inner
        assert self.leaf is not None
        z = {self.leaf: inner.value} | dict(zip(self.inputs[1:], others, strict=True))
        value, slopes = evaluated(self.outer, z)
        rise = np.broadcast_to(slopes[self.leaf], value.shape)
        beside = tuple(np.broadcast_to(slopes[one], value.shape) for one in self.inputs[1:])
        return Drawn(inner.z, value, inner.slopes * rise, beside, rise, inner.parts)

    def _places(self, given: Pairs, p: Indices, q: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        """Where the pairs of two windows stand in the list at hand, and which are none, (k, k, lines)."""
        window = np.maximum(self.window, 0)
        spots = [axis.places(one[:, None, p], one[None, :, q]) for axis, one in zip(given, window)]
        places = np.ravel_multi_index(spots, shape_of(given), mode="clip")
        return places, self.outside[:, None, p] | self.outside[None, :, q]

    def _keep_points(self, tile: Tile, S: Array, given: Pairs, x: Array) -> None:
        """What single points have: roots of the covariance of the window, the mean and the mean square."""
        outputs, k = np.arange(prod(self.positions)), self.window.shape[1]
        places, nowhere = self._places(given, outputs, outputs)
        covariance = np.where(nowhere[..., None], 0.0, S[places, :, 0]).transpose(2, 3, 0, 1)
        root, inverse = _roots(covariance)
        mean, square = np.empty((2, len(outputs), tile.size))
        sizes = [np.sqrt(tile.second(one)).reshape(-1, tile.size) for one in self.inputs[1:]]
        for p in outputs:
            drawn = self.of_window(root[p].swapaxes(0, 1) @ x[:k], x[2 * k + 2 * len(sizes) :], p)
            beside = [size[p][:, None] * x[2 * k + 2 * n] for n, size in enumerate(sizes)]
            values = self._outside_function(drawn, beside).value
            mean[p], square[p] = values.mean(axis=-1), np.square(values).mean(axis=-1)
        kept = {"root": np.moveaxis(root, 1, -1), "inverse": np.moveaxis(inverse, 1, -1), "square": square}
        kept["mean"] = mean.reshape(*self.positions, tile.size)
        tile.row_points.update({(self, name): values for name, values in kept.items()})

    def mean(self, tile: Tile) -> Array:
        """E[f(z)] at single points."""
        return tile.row_points[self, "mean"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MaxPooled(Windowed):
    """s(max z) over windows.

    ``function``: s; an increasing one may have stood before the maximum. ``before``: a function of z that is not
    increasing, and must come first.
    """

    function: Activation | None = None
    before: Activation | None = None

    @property
    def is_of_pairs(self) -> bool:
        """Whether it is the maximum of at most two Gaussians, which has a closed form."""
        largest = prod(int((one >= 0).sum(axis=0).max()) for one in self.windows)
        gains = any(gain.own_position for gain in self.inputs[0].gains)
        return largest <= 2 and self.function is None and self.before is None and not gains

    def followed_by(self, function: Activation) -> MaxPooled:
        """The same maximum with a function, increasing or not, applied to it."""
        if self.function is not None:
            function = as_activation(Apply(function, Apply(self.function, Leaf(self.inputs[0]))))
        return replace(self, function=function)

    def of_window(self, z: Array, numbers: Array, at: Any) -> Drawn:
        """The maximum over the first axis; equal largest ones share its slope."""
        h = z if self.before is None else np.asarray(self.before.value(z), dtype=np.float64)
        outside = self.outside[:, at]
        if outside.any():
            h = np.where(outside.reshape(*outside.shape, *(1,) * (z.ndim - outside.ndim)), -np.inf, h)
        largest = h.max(axis=0)
        chosen = h == largest
        slope: Array | float = 1.0 if self.function is None else _slope(self.function, largest)
        if np.count_nonzero(chosen) > largest.size:
            slope = slope / chosen.sum(axis=0)
        slopes = chosen * slope
        if self.before is not None:
            slopes *= _slope(self.before, z)
        value = (
            largest if self.function is None else np.asarray(self.function.value(largest), dtype=np.float64)
        )
        return Drawn(z, value, slopes)


@dataclass(frozen=True, eq=False, kw_only=True)
class DepthwiseDrawn(Windowed):
    """sum_t w_t f(z_t) + b with a weight for each tap of each channel, drawn together with z.

    Too few weights meet in it to make it Gaussian. ``before``: f; C_W, C_b and rates as in a convolution of k taps.
    """

    C_W: float
    C_b: float
    lambda_W: float
    lambda_b: float
    before: Activation | None = None

    @property
    def own_numbers(self) -> int:
        """Weights and a bias."""
        return int(self.window.shape[1]) + 1

    def of_window(self, z: Array, numbers: Array, at: Any) -> Drawn:
        """The weighted sum over the window; places outside hold 0."""
        k, outside = len(z), self.outside[:, at]
        h = z if self.before is None else np.asarray(self.before.value(z), dtype=np.float64)
        h = np.where(outside.reshape(*outside.shape, *(1,) * (z.ndim - outside.ndim)), 0.0, h)
        weights = np.sqrt(self.C_W / k) * numbers[:k].reshape(k, *(1,) * (z.ndim - 2), -1)
        value = (weights * h).sum(axis=0) + np.sqrt(self.C_b) * numbers[k]
        slopes = weights * (1.0 if self.before is None else _slope(self.before, z))
        return Drawn(z, value, np.broadcast_to(slopes, z.shape), (), np.ones_like(value), h)

    def own_theta(self, first: Drawn, second: Drawn) -> Array:
        """The outer slopes times lambda_b + lambda_W/k sum_t h_t h'_t."""
        assert first.rise is not None
        assert second.rise is not None
        assert first.parts is not None
        assert second.parts is not None
        inner = self.lambda_b + (self.lambda_W / len(first.parts)) * (first.parts * second.parts).sum(axis=0)
        return np.asarray(first.rise * second.rise * inner)


@dataclass(frozen=True)
class Drawn:
    """Draws z of windows (k, ...), the function of each, and its slopes in every z.

    ``others``: slopes in the other inputs; ``rise``: in the function of the window; ``parts``: what weights multiply.
    """

    z: Array
    value: Array
    slopes: Array
    others: tuple[Array, ...] = ()
    rise: Array | None = None
    parts: Array | None = None


class Lines(NamedTuple):
    """Pairs of positions (their number and both positions), each with an input of the rows."""

    pair: Indices
    p: Indices
    q: Indices
    a: Indices


def _in_lines(kernel: Kernel, tile: Tile, columns: int) -> Kernel:
    """A kernel as (pairs of positions, rows, columns)."""
    S, Theta = (None if one is None else one.reshape(-1, tile.size, columns) for one in kernel)
    assert S is not None
    return Kernel(S, Theta)


def _slope(function: Activation, z: Array) -> Array:
    """The slope; at a kink the mean of both sides, which is what closed forms give where a field vanishes."""
    if function.slopes is not None:
        minus, plus = function.slopes
        return np.asarray((plus + minus) / 2 + (plus - minus) / 2 * np.sign(z))
    slope = np.array(function.derivative(z, 1), dtype=np.float64)
    for kink in function.kinks:
        slope[z == kink.location] -= kink.jump(1) / 2
    return slope


def _roots(covariance: Array) -> tuple[Array, Array]:
    """Symmetric roots of semidefinite matrices, and their pseudo-inverses; exactly 0 where a variance is 0."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > _ROUNDING * values[..., -1:]
    size = np.sqrt(np.where(kept, values, 0.0))
    inverse = np.divide(1.0, size, out=np.zeros_like(size), where=kept)
    varies = np.einsum("...ii->...i", covariance) > 0
    mask = varies[..., :, None] & varies[..., None, :]
    root, pseudo = ((vectors * one[..., None, :]) @ vectors.swapaxes(-1, -2) for one in (size, inverse))
    return np.where(mask, root, 0.0), np.where(mask, pseudo, 0.0)


def _cholesky(covariance: Array, known: Array) -> Array:
    """The lower factor of covariance - known known^T for stacks of matrices; what is only rounding counts as 0."""
    left = covariance - known @ known.swapaxes(-1, -2)
    factor = np.zeros_like(left)
    for j in range(left.shape[-1]):
        pivot = left[..., j, j]
        kept = pivot > _ROUNDING * covariance[..., j, j]
        scale = np.where(kept, 1 / np.sqrt(np.where(kept, pivot, 1.0)), 0.0)
        factor[..., j:, j] = left[..., j:, j] * scale[..., None]
        left -= factor[..., :, None, j] * factor[..., None, :, j]
    return factor


def _mean_product(first: Array, second: Array) -> Array:
    """Means over draws, the last axis, of the products of lines (..., 1, draws) with their columns."""
    return np.asarray((second @ first.swapaxes(-1, -2))[..., 0] / first.shape[-1])


@dataclass(frozen=True, eq=False, kw_only=True)
class MaxOfPairs(Elementwise):
    """The maximum of two Gaussians by its closed form; ``pooled`` is the same by sampling."""

    pooled: MaxPooled

    def followed_by(self, function: Activation) -> MaxPooled:
        """The same maximum with a function applied to it, which has no closed form."""
        return self.pooled.followed_by(function)


def max_of_pairs(pooled: MaxPooled) -> MaxOfPairs:
    """max(x, y) = (x + y)/2 + |x - y|/2: the parts may count as independent, as their products are odd in z."""
    (field,) = pooled.inputs
    counts = [(one >= 0).sum(axis=0).max() for one in pooled.windows]
    means, differences = [], []
    for one, size, count in zip(pooled.windows, field.positions, counts, strict=True):
        ends = [np.eye(size)[column[column >= 0][[0, -1]]] for column in one.T]  # x = y where it is alone
        means.append(Weights.of([(x + y) / 2 for x, y in ends]))
        differences.append(Weights.of([x - y for x, y in ends]) if count == max(counts) else means[-1])
    shared: dict[str, Any] = {"positions": pooled.positions, "name": pooled.name, "sources": field.sources}
    mean, difference = (
        PositionMap(inputs=(field,), axes=tuple(axes), gaussian=True, gains=field.gains, **shared)
        for axes in (means, differences)
    )
    law = Sum(((1.0, Leaf(mean)), (0.5, Apply(activation("abs"), Leaf(difference)))))
    return MaxOfPairs(inputs=(mean, difference), expression=law, pooled=pooled, **shared)


@dataclass(frozen=True, eq=False, kw_only=True)
class Depthwise(LinearMap):
    """A convolution of each channel with taps of its own: its moments are those of a convolution, but not its law.

    ``law``: the expression of one Gaussian field that it reads, if it is one.
    """

    law: Expression | None = None

    def drawn(self) -> DepthwiseDrawn | None:
        """The same by draws, which a nonlinearity after it needs; None if what it reads has no known law."""
        if self.law is None:
            return None
        fields = leaves(self.law)
        if len(fields) != 1 or not fields[0].gaussian or self.gains:
            return None
        windows = []
        for one, size in zip(self.axes, fields[0].positions, strict=True):
            windows.append(one.source if isinstance(one, Taps) else np.arange(size)[None])
        return DepthwiseDrawn(
            inputs=fields,
            positions=self.positions,
            name=self.name,
            sources=self.sources | fields[0].sources,
            windows=tuple(windows),
            C_W=self.C_W,
            C_b=self.C_b,
            lambda_W=self.lambda_W,
            lambda_b=self.lambda_b,
            before=None if isinstance(self.law, Leaf) else as_activation(self.law),
        )


def drawable(field: Field) -> Windowed | None:
    """The field as a function of a window that can be drawn, if it is one."""
    if isinstance(field, MaxOfPairs):
        return field.pooled
    if isinstance(field, Depthwise):
        return field.drawn()
    return field if isinstance(field, Windowed) and field.outer is None else None
