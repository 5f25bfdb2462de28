"""Inputs of a network and its linear maps, over channels and positions (architectures, sections 3 and 5)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from foretrain.support.arrays import beside, namespace
from foretrain.theory.layers.fields import Field, Kernel, Tile, on_same_positions, weighted_sum
from foretrain.theory.layers.positions import (
    Array,
    Axis,
    AxisMap,
    Indices,
    Pairs,
    PairStep,
    Taps,
    Weights,
    at_points,
    shape_of,
    taken,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Data(Field):
    """Numbers as given, (positions..., inputs, channels): S is the mean of their products over channels."""

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """S at the pairs; no parameter has been met."""
        library, rows, columns = namespace(tile.row_data[self]), tile.row_data[self], tile.column_data[self]
        channels = rows.shape[-1]
        if not tile.own and all(axis.is_full() for axis in pairs):  # one product of matrices
            S = rows.reshape(-1, channels) @ columns.reshape(-1, channels).T
            S = S.reshape(*rows.shape[:-1], *columns.shape[:-1])
            axes = len(pairs)
            order = [k + side for k in range(axes) for side in (0, axes + 1)] + [axes, 2 * axes + 1]
            S = library.moveaxis(S, tuple(order), tuple(range(len(order)))).reshape(
                *shape_of(pairs), *tile.shape
            )
            S /= channels
            return Kernel(S, None)
        at_p, at_q = at_points(rows, pairs, "p"), at_points(columns, pairs, "q")
        if tile.own:
            return Kernel(library.einsum("...ac,...ac->...a", at_p, at_q) / channels, None)
        return Kernel(at_p @ library.swapaxes(at_q, -1, -2) / channels, None)

    def mean(self, tile: Tile) -> Any:
        """The mean over the channels given."""
        return tile.row_data[self].mean(-1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Embedded(Field):
    """Rows of a table of independent Gaussian vectors, chosen by tokens (positions..., inputs)."""

    variance: float
    rate: float
    padding: int | None = None

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """Equal tokens have the variance in common, others nothing."""
        at_p, at_q = at_points(tile.row_data[self], pairs, "p"), at_points(tile.column_data[self], pairs, "q")
        if not tile.own:
            at_p, at_q = at_p[..., None], at_q[..., None, :]
        equal = (at_p == at_q) if self.padding is None else (at_p == at_q) & (at_p != self.padding)
        ones = tile.zeros(*equal.shape) + equal
        return Kernel(self.variance * ones, self.rate * ones)


@dataclass(frozen=True, eq=False, kw_only=True)
class Table(Field):
    """Parameters or constants that all inputs have in common at each position: positional tables, class tokens.

    Random entries: ``variance`` and ``rate``, independent at different positions. Fixed ones: ``values``
    (positions..., channels).
    """

    variance: float = 0.0
    rate: float = 0.0
    values: Array | None = None

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """The same for all pairs of inputs."""
        zero = tile.zeros(*shape_of(pairs), *tile.shape)
        mask = on_same_positions(pairs, zero)
        if self.values is None:
            return Kernel(zero + self.variance * mask, zero + self.rate * mask)
        at_p, at_q = at_points(self.values, pairs, "p"), at_points(self.values, pairs, "q")
        S = (at_p * at_q).mean(axis=-1).reshape(mask.shape)
        return Kernel(zero + beside(S, zero), zero + self.rate * mask)

    def mean(self, tile: Tile) -> Any:
        """The mean of fixed values; 0 for random ones."""
        if self.values is None:
            return super().mean(tile)
        zero = tile.zeros(*self.positions, tile.size)
        return zero + beside(self.values.mean(axis=-1)[..., None], zero)


@dataclass(frozen=True, eq=False, kw_only=True)
class Mapped(Field):
    """A field whose positions are mapped axis by axis; ``removed`` axes have one position left and go."""

    axes: tuple[AxisMap | None, ...]
    removed: tuple[int, ...] = ()

    def _all_axes(self, pairs: Pairs) -> Pairs:
        """The pairs with those axes that go, each with its one position."""
        kept = iter(pairs)
        return tuple(Axis.full(1) if k in self.removed else next(kept) for k in range(len(self.axes)))

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """What the maps read."""
        axes = zip(self.axes, self._all_axes(wanted), strict=True)
        return (tuple(axis if one is None else one.reads(axis) for one, axis in axes),)

    def prepare(self, wanted: Pairs, given: tuple[Pairs, ...]) -> list[PairStep]:
        """A step for each axis, the ones that shrink it most first."""
        axes = list(enumerate(zip(self.axes, self._all_axes(wanted), given[0], strict=True)))
        lengths, steps = list(shape_of(given[0])), []
        for k, (one, want, have) in sorted(axes, key=lambda axis: len(axis[1][1]) / max(len(axis[1][2]), 1)):
            if one is None and len(want) != len(have):
                one = Weights.of(np.eye(want.size))
            if one is not None:
                steps.append(one.step(want, have, prod(lengths[:k])))
                lengths[k] = len(want)
        return steps

    def mapped(
        self,
        values: Any,
        pairs: Pairs,
        steps: list[PairStep],
        tile: Tile,
        *,
        scale: float = 1.0,
        constant: float = 0.0,
        added: Any = None,
        share: float = 1.0,
    ) -> Any:
        """The sum over taps, or the map of positions on both sides, times a scale; a new array.

        To which a constant, and a share of what is ``added``, is added.
        """
        if values is None:
            return None
        shape = (*shape_of(pairs), *tile.shape)
        if steps and tile.compiled and prod(values.shape):
            from foretrain.theory.layers import fused_maps

            return fused_maps.mapped(values, steps, scale, constant, added, share).reshape(shape)
        if prod(values.shape):
            for step in steps:
                values = step(values)
            values = values.reshape(shape)
            if not steps:
                values = scale * values
            elif scale != 1:
                values *= scale
        else:  # everything that is read lies in the padding
            values = tile.zeros(*shape)
        if added is not None:
            values += added if share == 1 else share * added
        if constant:
            values += constant
        return values


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearMap(Mapped):
    """Fresh weights over channels and taps: linear layers, convolutions, transposed ones, heads that flatten.

    K' = C_b + C_W/k sum_t S, Theta' = lambda_b + 1/k sum_t (lambda_W S + C_W Theta), with the same tap t on
    both sides.
    """

    C_W: float
    C_b: float
    lambda_W: float
    lambda_b: float
    shared: bool = True  # one set of weights for all positions; else each position has its own

    @property
    def scale(self) -> float:
        """C_W / k for k taps of all axes, by which every sum over taps is multiplied (1/k where C_W is zero)."""
        return (self.C_W or 1.0) / prod(len(one.source) for one in self.axes if isinstance(one, Taps))

    def _own_only(self, pairs: Pairs) -> Pairs:
        """Weights of different positions are independent: only p = q has a kernel."""
        return pairs if self.shared else tuple(Axis(axis.keys[axis.same], axis.size) for axis in pairs)

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """What the taps read."""
        return super().needs(self._own_only(wanted))

    def prepare(self, wanted: Pairs, given: tuple[Pairs, ...]) -> list[PairStep]:
        """The sums over taps."""
        return super().prepare(self._own_only(wanted), given)

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """The rule of a linear layer after the sum over taps."""
        within, (S, Theta) = self._own_only(pairs), inputs[0]
        if self.C_W:
            K = self.mapped(S, within, prepared, tile, scale=self.scale, constant=self.C_b)
            # lambda_W/k sum_t S is a share of K - C_b.
            share = self.lambda_W / self.C_W
            rest = self.lambda_b - share * self.C_b
            Theta = self.mapped(
                Theta, within, prepared, tile, scale=self.scale, constant=rest, added=K, share=share
            )
            if Theta is None:  # nobody writes into the Theta of an input: it may be K itself
                Theta = K if share == 1 and rest == 0 else share * K + rest
        else:
            mean = self.mapped(S, within, prepared, tile, scale=self.scale)
            K, Theta = 0 * mean + self.C_b, self.lambda_W * mean + self.lambda_b
        if self.shared:
            return Kernel(K, Theta)
        own = tuple(beside(one, K) for one in np.ix_(*(axis.same for axis in pairs)))
        spread = tuple(tile.zeros(*shape_of(pairs), *tile.shape) for _ in range(2))
        for target, values in zip(spread, (K, Theta)):
            target[own] = values
        return Kernel(*spread)


@dataclass(frozen=True, eq=False, kw_only=True)
class PositionMap(Mapped):
    """A fixed map A of positions: S' = A S A^T, Theta' = A Theta A^T, m' = A m."""

    @property
    def keeps_gains(self) -> bool:
        """Gains of channels pass through."""
        return bool(self.gains)

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """The map on both sides."""
        return Kernel(*(self.mapped(part, pairs, prepared, tile) for part in inputs[0]))

    def mean(self, tile: Tile) -> Any:
        """The map of the means."""
        values = tile.mean(self.inputs[0])
        library = namespace(values)
        for k, one in enumerate(self.axes):
            if isinstance(one, Weights):
                matrix = beside(one.matrix_of_positions.toarray(), values)
                values = library.moveaxis(library.tensordot(matrix, values, ((1,), (k,))), 0, k)
        return values.reshape(*self.positions, tile.size)


@dataclass(frozen=True, eq=False, kw_only=True)
class Arranged(Field):
    """The same numbers with axes of positions transposed (``order``), then merged or split into ``positions``.

    ``groups``: for each axis after transposing and merging, how many of the transposed axes it holds; or, where
    ``split``, how many axes each transposed axis becomes.
    """

    order: tuple[int, ...]
    groups: tuple[int, ...]
    split: bool = False

    @property
    def keeps_gains(self) -> bool:
        """Nothing is computed."""
        return bool(self.gains)

    def _fine(self) -> list[list[int]]:
        """Sizes of the fine axes in each coarse one."""
        fine = iter(self.positions if self.split else [self.inputs[0].positions[k] for k in self.order])
        return [[next(fine) for _ in range(count)] for count in self.groups]

    def _before(self, transposed: list[Any]) -> tuple[Any, ...]:
        """What belongs to the transposed axes, in the order of the input's."""
        return tuple(transposed[self.order.index(k)] for k in range(len(self.order)))

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """The same pairs, seen along the input's axes."""
        if not self.split:
            axes: list[Axis] = []
            for coarse, sizes in zip(wanted, self._fine(), strict=True):
                p, q = _unraveled(coarse.p, sizes), _unraveled(coarse.q, sizes)
                axes += [Axis.of(a, b, size) for a, b, size in zip(p, q, sizes)]
            return (self._before(axes),)
        fine, coarse_axes = iter(wanted), []
        for sizes in self._fine():
            some = [next(fine) for _ in sizes]
            coarse_axes.append(Axis(np.sort(_merged_keys(some, sizes)), prod(sizes)))
        return (self._before(coarse_axes),)

    def prepare(self, wanted: Pairs, given: tuple[Pairs, ...]) -> list[Indices | None]:
        """For each coarse axis, where its pairs stand among those at hand."""
        have = [given[0][k] for k in self.order]
        places: list[Indices | None] = []
        if self.split:
            fine = iter(wanted)
            for sizes, axis in zip(self._fine(), have, strict=True):
                keys = _merged_keys([next(fine) for _ in sizes], sizes)
                places.append(np.searchsorted(axis.keys, keys))
            return places
        left = iter(have)
        for coarse, sizes in zip(wanted, self._fine(), strict=True):
            some = [next(left) for _ in sizes]
            p, q = _unraveled(coarse.p, sizes), _unraveled(coarse.q, sizes)
            spots = tuple(axis.places(a, b) for axis, a, b in zip(some, p, q))
            places.append(
                np.ravel_multi_index(spots, shape_of(tuple(some))) if some else np.zeros(1, np.intp)
            )
        return places

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """The same entries in another order."""
        parts = (None if part is None else self._rearranged(part, pairs, prepared) for part in inputs[0])
        return Kernel(*parts)

    def _rearranged(self, values: Any, pairs: Pairs, places: list[Indices]) -> Any:
        axes, trailing = len(self.order), values.shape[len(self.order) :]
        values = namespace(values).moveaxis(values, self.order, tuple(range(axes)))
        if not self.split:
            fine, sizes = iter(values.shape[:axes]), []
            for count in self.groups:
                sizes.append(prod(next(fine) for _ in range(count)))
            values = values.reshape(*sizes, *trailing)
        for k, where in enumerate(places):
            values = taken(values, where, k)
        return values.reshape(*shape_of(pairs), *trailing)

    def mean(self, tile: Tile) -> Any:
        """The same numbers."""
        values = tile.mean(self.inputs[0])
        values = namespace(values).moveaxis(values, self.order, tuple(range(len(self.order))))
        return values.reshape(*self.positions, tile.size)


def _unraveled(indices: Indices, sizes: list[int]) -> tuple[Indices, ...]:
    return np.unravel_index(indices, sizes) if sizes else ()


def _merged_keys(axes: list[Axis], sizes: list[int]) -> Indices:
    """Keys of the product of lists as pairs along one axis, in the order of the product."""
    grids = np.meshgrid(*(np.arange(len(axis)) for axis in axes), indexing="ij")
    p = np.ravel_multi_index([axis.p[grid] for axis, grid in zip(axes, grids)], sizes)
    q = np.ravel_multi_index([axis.q[grid] for axis, grid in zip(axes, grids)], sizes)
    return np.asarray((p * prod(sizes) + q).ravel(), dtype=np.intp)


@dataclass(frozen=True, eq=False, kw_only=True)
class Joined(Field):
    """Fields one after another along an axis of positions; different ones are independent but for their means."""

    axis: int

    @property
    def reads_points(self) -> bool:
        """Means."""
        return True

    def _limits(self) -> list[tuple[int, int]]:
        ends = np.cumsum([one.positions[self.axis] for one in self.inputs]).tolist()
        return list(zip([0, *ends[:-1]], ends))

    def _inside(self, axis: Axis, first: tuple[int, int], second: tuple[int, int]) -> Indices:
        """Which pairs have p in one part and q in another."""
        p, q = axis.p, axis.q
        return np.flatnonzero((p >= first[0]) & (p < first[1]) & (q >= second[0]) & (q < second[1]))

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """Of each part the pairs inside it."""
        found = []
        for start, stop in self._limits():
            axis = wanted[self.axis]
            inside = self._inside(axis, (start, stop), (start, stop))
            own = Axis.of(axis.p[inside] - start, axis.q[inside] - start, stop - start)
            found.append((*wanted[: self.axis], own, *wanted[self.axis + 1 :]))
        return tuple(found)

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """The kernels of the parts, and products of means between them."""
        S, Theta = (tile.zeros(*shape_of(pairs), *tile.shape) for _ in range(2))
        before = (slice(None),) * self.axis
        if tile.leaves_points:  # they are read where other pairs of points are computed
            for one in self.inputs:
                tile.mean(one)
        for i, (first, kernel) in enumerate(zip(self._limits(), inputs, strict=True)):
            inside = (*before, beside(self._inside(pairs[self.axis], first, first), S))
            S[inside] = kernel.S
            if kernel.Theta is not None:
                Theta[inside] = kernel.Theta
            for j, second in enumerate(self._limits()):
                across = self._inside(pairs[self.axis], first, second)
                if i != j and not (self.inputs[i].gaussian or self.inputs[j].gaussian) and len(across):
                    S[(*before, beside(across, S))] = self._means(
                        tile, pairs, across, (i, first[0]), (j, second[0])
                    )
        return Kernel(S, Theta)

    def _means(
        self, tile: Tile, pairs: Pairs, across: Indices, row: tuple[int, int], column: tuple[int, int]
    ) -> Any:
        """m(a; p) m(b; q) for p in one part and q in another."""
        axis, k = pairs[self.axis], self.axis
        sides = []
        for (part, start), positions, side in ((row, axis.p, "p"), (column, axis.q, "q")):
            name = (self.inputs[part], "mean")
            points = tile.row_points if side == "p" else tile.column_points
            values = taken(points[name], positions[across] - start, k)
            others = [one for number, one in enumerate(pairs) if number != k]
            for number, one in zip([n for n in range(len(pairs)) if n != k], others):
                values = taken(values, getattr(one, side), number)
            sides.append(values if tile.own else values[..., None] if side == "p" else values[..., None, :])
        return sides[0] * sides[1]

    def mean(self, tile: Tile) -> Any:
        """The means of the parts."""
        means = [tile.mean(one) for one in self.inputs]
        return namespace(means[0]).concatenate(means, self.axis)


@dataclass(frozen=True, eq=False, kw_only=True)
class Superposed(Field):
    """A linear combination of independent Gaussian fields: Gaussian again."""

    weights: tuple[float, ...]

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """Sums of kernels times squared weights."""
        return weighted_sum([weight**2 for weight in self.weights], inputs)


@dataclass(frozen=True, eq=False, kw_only=True)
class ChannelPart(Field):
    """Some of the channels of a field: the same kernel, but independent of the other channels."""

    @property
    def keeps_gains(self) -> bool:
        """Nothing is computed."""
        return bool(self.gains)

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """That of the whole."""
        return inputs[0]

    def mean(self, tile: Tile) -> Any:
        """That of the whole."""
        return tile.mean(self.inputs[0])
