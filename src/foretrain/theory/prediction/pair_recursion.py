"""K and Theta of the output layer for all pairs of two sets of inputs, or of one.

An entry depends on its own two inputs only: on its value in the layer before, and on their variances, which are known
from a recursion of single inputs. Closed forms therefore go through all layers tile by tile, with a tile that stays
in the cache; other activations go layer by layer, many pairs at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import Expectation, cross_gram, factor, gram, second_moments
from foretrain.gaussian.closed_forms import closed_pair, tile_rule, workspace
from foretrain.gaussian.grams import Tile, square_tiles
from foretrain.support.acceleration import accelerates
from foretrain.support.progress import Progress
from foretrain.support.threads import over_cores
from foretrain.theory.architecture import MLP
from foretrain.theory.recursions.expectations import grow_kernel, grow_tangent_kernel, refuse_exploded

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Expectations = Callable[[int, Array], list[Array]]

_IN_CACHE = 256  # inputs on a side of a tile that goes through all layers
_AT_ONCE = 2000  # inputs on a side of what goes layer by layer
_TILES_PER_STEP = 64  # of the bar


@dataclass(frozen=True, eq=False, repr=False)
class Inputs:
    """Inputs with what is known of each alone, in every layer; inputs with the same label are the same."""

    points: Array  # (N, n_0)
    labels: Indices  # (N,)
    squares: Array  # x.x / n_0, (N,)
    variances: tuple[Array, ...]  # K_aa of the layers 1..L, (N,) each
    moments: tuple[tuple[Array, ...], ...]  # <s s>, and <s' s'> if asked for, of the layers 1..L-1

    @classmethod
    def of(cls, mlp: MLP, points: Array, orders: tuple[int, ...]) -> Inputs:
        """K_aa by the recursion of single inputs (4.118), (B.11), refused where it explodes."""
        known: dict[bytes, int] = {}
        labels = np.array(
            [known.setdefault(row.tobytes(), len(known)) for row in points + 0.0], dtype=np.intp
        )
        distinct = points[np.unique(labels, return_index=True)[1]]
        squares = np.einsum("ai,ai->a", distinct, distinct) / points.shape[1]
        K = _first_kernel(mlp, squares, np.empty_like(squares))
        variances, moments = [K[labels]], []
        for layer in mlp.layers[1:]:
            refuse_exploded(K, layer.number - 1)
            found = [second_moments(factor(mlp.activation, order), K) for order in orders]
            moments.append(tuple(moment[labels] for moment in found))
            K = grow_kernel(found[0], K, layer)
            variances.append(K[labels])
        refuse_exploded(K, mlp.depth)
        return cls(points, labels, squares[labels], tuple(variances), tuple(moments))

    def __getitem__(self, chosen: slice) -> Inputs:
        return Inputs(
            self.points[chosen],
            self.labels[chosen],
            self.squares[chosen],
            tuple(variance[chosen] for variance in self.variances),
            tuple(tuple(moment[chosen] for moment in of_layer) for of_layer in self.moments),
        )

    def __len__(self) -> int:
        return len(self.points)

    def equal_pairs(self, others: Inputs) -> tuple[Indices, Indices]:
        """Positions at which the two sets have the same input."""
        if not np.isin(self.labels, others.labels).any():
            return np.empty(0, np.intp), np.empty(0, np.intp)
        i, j = np.nonzero(self.labels[:, None] == others.labels)
        return i, j


def pair_kernels(
    mlp: MLP, rows: Inputs, columns: Inputs, orders: tuple[int, ...], tolerance: float
) -> list[Array]:
    """K (4.118), (B.11), and Theta (8.63) if the orders are 0 and 1, of the output layer between two sets.

    Twice the same object is one set, whose kernels are symmetric.
    """
    one_set = rows is columns
    out = [np.empty((len(rows), len(columns))) for _ in orders]
    closed = all(closed_pair(f, f) for f in (factor(mlp.activation, order) for order in orders))
    compiled = accelerates(len(rows) * len(columns) * (mlp.depth - 1) / (2 if one_set else 1))

    def work(tile: Tile) -> None:
        first, second = rows[tile.rows], columns[tile.columns]
        targets = [matrix[tile.rows, tile.columns] for matrix in out]
        on_diagonal = one_set and tile.rows == tile.columns
        expectations = (
            _closed(mlp, first, second, orders, compiled)
            if closed
            else _layer_by_layer(mlp, first, second, orders, on_diagonal, tolerance)
        )
        _through_layers(mlp, first, second, expectations, targets)
        if tile.mirrored:
            for matrix, target in zip(out, targets, strict=True):
                matrix[tile.columns, tile.rows] = target.T

    tiles = square_tiles((len(rows), len(columns)), one_set, _IN_CACHE if closed else _AT_ONCE)
    step = _TILES_PER_STEP if closed else 1
    with Progress("tiles of the kernel", total=len(tiles)) as bar:
        for start in range(0, len(tiles), step):
            part = tiles[start : start + step]
            over_cores(work, part, uses_blas=True)
            bar.advance(len(part))
    return out


def _through_layers(
    mlp: MLP, rows: Inputs, columns: Inputs, expectations: Expectations, targets: list[Array]
) -> None:
    """The recursion of one tile from the inputs to the output layer."""
    shape, equal = (len(rows), len(columns)), rows.equal_pairs(columns)
    product = np.matmul(rows.points, columns.points.T, out=workspace("Theta", shape))
    product /= rows.points.shape[1]
    # The same input on both sides has no angle at all, not that of rounding, and the same moments wherever it stands.
    product[equal] = rows.squares[equal[0]]
    K = _first_kernel(mlp, product, workspace("K", shape))
    Theta = product
    Theta *= mlp.lambda_W[0]
    Theta += mlp.lambda_b[0]
    for number, layer in enumerate(mlp.layers[1:]):
        signal, *slopes = found = expectations(number, K)
        for moments, own in zip(found, rows.moments[number], strict=False):
            moments[equal] = own[equal[0]]
        for slope in slopes:
            grow_tangent_kernel(Theta, signal, slope, layer)
        K = grow_kernel(signal, K, layer)
    for target, last in zip(targets, (K, Theta), strict=False):
        target[...] = last


def _closed(mlp: MLP, rows: Inputs, columns: Inputs, orders: tuple[int, ...], compiled: bool) -> Expectations:
    """<s s> of these orders by closed forms, in memory that is used again two layers later."""
    rule = tile_rule(mlp.activation, compiled=compiled)
    memory = workspace("expectations", (2, len(orders), len(rows), len(columns)))

    def expectations(number: int, K: Array) -> list[Array]:
        a, b = rows.variances[number], columns.variances[number]
        found = dict(zip(orders, memory[number % 2], strict=True))
        rule(a[:, None], b[None], K, found)
        return list(found.values())

    return expectations


def _layer_by_layer(
    mlp: MLP, rows: Inputs, columns: Inputs, orders: tuple[int, ...], one_set: bool, tolerance: float
) -> Expectations:
    """<s s> of these orders by the rules for all pairs."""
    factors = [factor(mlp.activation, order) for order in orders]
    pairs = [(f, f) for f in factors]

    def expectations(number: int, K: Array) -> list[Array]:
        if one_set:
            found = gram(pairs, K, tolerance=tolerance)
        else:
            variances = rows.variances[number], columns.variances[number]
            found = cross_gram(pairs, K, *variances, tolerance=tolerance)
        return [np.asarray(item.value) for item in cast("list[Expectation]", found)]

    return expectations


def _first_kernel(mlp: MLP, product: Array, out: Array) -> Array:
    """C_b + C_W x.x' / n_0 (4.8)."""
    np.multiply(product, mlp.C_W[0], out=out)
    out += mlp.C_b[0]
    return out
