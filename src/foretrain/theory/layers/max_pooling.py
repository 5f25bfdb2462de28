"""Maxima over windows of a Gaussian field z, in the limit of many channels (architectures, section 4: MaxPool).

A maximum reads the joint law of its window. With A the window of the first point of a pair and B that of the second,

    S = E[s(max_A z) s(max_B z')],    Theta = E[s'(max_A z) s'(max_B z') Theta_z(argmax_A, argmax_B)].

The maximum of two Gaussians without an activation has a closed form; all others are means over random draws.
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
from foretrain.theory.layers.expressions import Apply, Elementwise, Leaf, Sum, as_activation
from foretrain.theory.layers.fields import Field, Kernel, Tile
from foretrain.theory.layers.linear_maps import PositionMap
from foretrain.theory.layers.positions import Array, Axis, Indices, Pairs, Weights, shape_of
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
class MaxPooled(Field):
    """s(max z) over windows, each the product of one for each axis, by sampling.

    ``windows``: for each axis (k, outputs) positions of the input, -1 for none. ``function``: s; an increasing one
    may have stood before the maximum. ``before``: a function of z that is not increasing, and must come first.
    """

    windows: tuple[Indices, ...]
    function: Activation | None = None
    before: Activation | None = None

    @property
    def reads_points(self) -> bool:
        """The law of each window."""
        return True

    @property
    def keeps_gains(self) -> bool:
        """Gains are averaged together with the maximum."""
        return True

    @property
    def sampled(self) -> bool:
        """Always: where there is a formula, :func:`max_pooled` gives a field that has it."""
        return True

    @property
    def is_of_pairs(self) -> bool:
        """Whether it is the maximum of at most two Gaussians, which has a closed form."""
        largest = prod(int((one >= 0).sum(axis=0).max()) for one in self.windows)
        gains = any(gain.own_position for gain in self.inputs[0].gains)
        return largest <= 2 and self.function is None and self.before is None and not gains

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

    def followed_by(self, function: Activation) -> MaxPooled:
        """The same maximum with a function, increasing or not, applied to it."""
        if self.function is not None:
            function = as_activation(Apply(function, Apply(self.function, Leaf(self.inputs[0]))))
        return replace(self, function=function)

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """All pairs with the first position in one window and the second in the other."""
        found = []
        for one, axis, size in zip(self.windows, wanted, self.inputs[0].positions, strict=True):
            i, j = np.broadcast_arrays(one[:, None, axis.p], one[None, :, axis.q])
            inside = (i >= 0) & (j >= 0)
            found.append(Axis.of(i[inside], j[inside], size))
        return (tuple(found),)

    def prepare(self, wanted: Pairs, given: tuple[Pairs, ...]) -> Pairs:
        """The pairs at hand, among which those of two windows are looked up."""
        return given[0]

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Pairs) -> Kernel:
        """Means over draws: first of single points (in tiles of own pairs), then of pairs, some lines at a time.

        A line is a pair of positions and an input of the rows, with all inputs of the columns.
        """
        assert tile.sampling is not None
        columns = 1 if tile.own else tile.column_size
        S, Theta = (None if one is None else one.reshape(-1, tile.size, columns) for one in inputs[0])
        assert S is not None
        x = tile.sampling.normals(self, 2 * self.window.shape[1]).T
        if tile.own:
            self._keep_points(tile, S, prepared, x)
        grid = np.indices(shape_of(pairs)).reshape(len(pairs), -1)
        p, q = (
            np.ravel_multi_index([getattr(axis, side)[n] for axis, n in zip(pairs, grid)], self.positions)
            for side in "pq"
        )
        found = np.zeros((2, len(p), tile.size, columns))
        count, step = len(p) * tile.size, max(1, 2 * NUMBERS_AT_ONCE // (columns * x.size))
        for start in range(0, count, step):
            pair, a = np.divmod(np.arange(start, min(start + step, count)), tile.size)
            found[:, pair, a] = self._means(tile, Kernel(S, Theta), prepared, p[pair], q[pair], a, x)
        found = found.reshape(2, *shape_of(pairs), *tile.shape)
        return Kernel(found[0], found[1] if Theta is not None or self.inputs[0].gains else None)

    def _means(
        self, tile: Tile, kernel: Kernel, given: Pairs, p: Indices, q: Indices, a: Indices, x: Array
    ) -> tuple[Array, Array]:
        """S and Theta, each (lines, columns), on lines of output positions p, q and row inputs a."""
        k, rows, columns = len(x) // 2, tile.row_points, tile.column_points
        places, nowhere = self._places(given, p, q)

        # 1. Windows of the rows: z_A = K_A^(1/2) x1.
        root = rows[self, "root"][p, :, :, a]
        first = self._maximum((root.swapaxes(0, 1) @ x[:k])[:, :, None], p)

        # 2. Windows of the columns given those: z_B = C^T K_A^(-1/2) x1 + L x2, L L^T = K_B - C^T K_A^+ C.
        covariance = np.where(nowhere[..., None], 0.0, kernel.S[places, a])
        known = np.einsum("ijlc,lih->lcjh", covariance, rows[self, "inverse"][p, :, :, a], optimize=True)
        if tile.own:
            root, square = columns[self, "root"][q, :, :, a][:, None], columns[self, "square"][q, a][:, None]
        else:
            root, square = np.moveaxis(columns[self, "root"][q], -1, 1), columns[self, "square"][q]
        mixing = np.concatenate([known, _cholesky(root @ root, known)], axis=-1)
        drawn = np.moveaxis(mixing, 2, 0).reshape(-1, 2 * k) @ x
        second = self._maximum(drawn.reshape(k, *square.shape, -1), q)

        # 3. Second moments, scaled so that no correlation exceeds 1: the column's own moment is known already.
        value = _mean_product(first.value, second.value)
        here = np.square(second.value).mean(axis=-1)
        value *= np.sqrt(np.divide(square, here, out=np.ones_like(here), where=here > 0))

        # 4. How often two positions are the maxima together, times the slopes there: the weights of their Theta.
        total = np.zeros_like(value)
        if kernel.Theta is not None:
            weights = _mean_product(first.slopes[:, None], second.slopes[None])
            total += (weights * np.where(nowhere[..., None], 0.0, kernel.Theta[places, a])).sum(axis=(0, 1))

        # 5. Gains of channels: their part of Theta is a multiple of the product of the two maxima.
        if self.inputs[0].gains:
            weights = _mean_product((first.z * first.slopes)[:, None], (second.z * second.slopes)[None])
            same = (self.window[:, :, None, p] == self.window[:, None, :, q]).all(axis=0)[..., None]
            for gain in self.inputs[0].gains:
                total += gain.rate * (weights * same if gain.own_position else weights).sum(axis=(0, 1))
        return value, total

    def _places(self, given: Pairs, p: Indices, q: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        """Where the pairs of two windows stand in the list at hand, and which are none, (k, k, lines)."""
        window = np.maximum(self.window, 0)
        spots = [axis.places(one[:, None, p], one[None, :, q]) for axis, one in zip(given, window)]
        places = np.ravel_multi_index(spots, shape_of(given), mode="clip")
        return places, self.outside[:, None, p] | self.outside[None, :, q]

    def _keep_points(self, tile: Tile, S: Array, given: Pairs, x: Array) -> None:
        """What single points have: roots of the covariance of the window, the mean and the mean square."""
        outputs, k = np.arange(prod(self.positions)), len(x) // 2
        places, nowhere = self._places(given, outputs, outputs)
        covariance = np.where(nowhere[..., None], 0.0, S[places, :, 0]).transpose(2, 3, 0, 1)
        root, inverse = _roots(covariance)
        mean, square = np.empty((2, len(outputs), tile.size))
        for p in outputs:
            values = self._maximum(root[p].swapaxes(0, 1) @ x[:k], p).value
            mean[p], square[p] = values.mean(axis=-1), np.square(values).mean(axis=-1)
        kept = {"root": np.moveaxis(root, 1, -1), "inverse": np.moveaxis(inverse, 1, -1), "square": square}
        kept["mean"] = mean.reshape(*self.positions, tile.size)
        tile.row_points.update({(self, name): values for name, values in kept.items()})

    def _maximum(self, z: Array, at: Any) -> _Maximum:
        """The maximum over the first axis of draws at these output positions; equal largest ones share its slope."""
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
        return _Maximum(z, value, slopes)

    def mean(self, tile: Tile) -> Array:
        """E[s(max z)] at single points."""
        return tile.row_points[self, "mean"]


class _Maximum(NamedTuple):
    """Draws z of windows (k, ...), their s(max z), and its slope in each z."""

    z: Array
    value: Array
    slopes: Array


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
