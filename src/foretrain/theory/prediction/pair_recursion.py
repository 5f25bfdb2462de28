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
from foretrain.gaussian.closed_pairs import closed_pair, fill_equal, tile_rule, workspace
from foretrain.gaussian.pairs import Tile, square_tiles
from foretrain.support.errors import InputError
from foretrain.support.progress import Progress
from foretrain.support.threads import over_cores
from foretrain.theory.architecture import MLP, Layer

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Expectations = Callable[[int, Array], list[Array]]

EXPLODED = 1e30
_IN_CACHE = 256  # inputs on a side of a tile that goes through all layers
_AT_ONCE = 2000  # inputs on a side of what goes layer by layer
_TILES_PER_STEP = 64  # of the bar


@dataclass(frozen=True, eq=False, repr=False)
class Inputs:
    """Inputs with their variances in every layer; inputs with the same label are the same."""

    points: Array  # (N, n_0)
    labels: Indices  # (N,)
    variances: tuple[Array, ...]  # K_aa of the layers 1..L, (N,) each

    @classmethod
    def of(cls, mlp: MLP, points: Array, tolerance: float = 1e-10) -> Inputs:
        """K_aa by the recursion of single inputs (4.118), (B.11), refused where it explodes."""
        known: dict[bytes, int] = {}
        labels = np.array([known.setdefault(row.tobytes(), len(known)) for row in points + 0.0])
        first = mlp.layers[0]
        K = first.C_b + first.C_W * np.einsum("ai,ai->a", points, points) / points.shape[1]
        found = [K[np.unique(labels, return_index=True)[1]][labels]]
        own = factor(mlp.activation)
        for layer in mlp.layers[1:]:
            _refuse_exploded(found[-1], layer.number - 1)
            found.append(next_kernel(found[-1], second_moments(own, found[-1], min(tolerance, 1e-12)), layer))
        _refuse_exploded(found[-1], mlp.depth)
        return cls(points, labels, tuple(found))

    def __getitem__(self, chosen: slice) -> Inputs:
        return Inputs(self.points[chosen], self.labels[chosen], tuple(K[chosen] for K in self.variances))

    def __len__(self) -> int:
        return len(self.points)

    def equal_pairs(self, others: Inputs) -> tuple[Indices, Indices]:
        """Positions at which the two sets have the same input."""
        if not np.isin(self.labels, others.labels).any():
            return np.empty(0, np.intp), np.empty(0, np.intp)
        i, j = np.nonzero(self.labels[:, None] == others.labels)
        return i, j


def pair_kernels(
    mlp: MLP, rows: Inputs, columns: Inputs, with_tangent: bool, tolerance: float = 1e-10
) -> list[Array]:
    """K, and Theta if asked for, of the output layer between two sets; twice the same object is one set.

    K is that of (4.118), (B.11), Theta that of (8.63).
    """
    one_set = rows is columns
    out = [np.empty((len(rows), len(columns))) for _ in range(1 + with_tangent)]
    orders = (0, 1) if with_tangent else (0,)
    closed = all(closed_pair(f, f) for f in (factor(mlp.activation, order) for order in orders))

    def work(tile: Tile) -> None:
        first, second = rows[tile.rows], columns[tile.columns]
        targets = [matrix[tile.rows, tile.columns] for matrix in out]
        on_diagonal = one_set and tile.rows == tile.columns
        expectations = (
            _closed(mlp, first, second, orders)
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
    first, equal = mlp.layers[0], rows.equal_pairs(columns)
    shape = len(rows), len(columns)
    product = np.matmul(rows.points, columns.points.T, out=workspace("Theta", shape))
    product /= rows.points.shape[1]
    K = np.multiply(product, first.C_W, out=workspace("K", shape))
    K += first.C_b
    # The same input on both sides has no angle at all, not that of rounding.
    K[equal] = rows.variances[0][equal[0]]
    Theta = product
    Theta *= first.lambda_W
    Theta += first.lambda_b
    for number, layer in enumerate(mlp.layers[1:]):
        signal, *slopes = expectations(number, K)
        for slope in slopes:
            _grow_tangent_kernel(Theta, signal, slope, layer)
        K = next_kernel(K, signal, layer)
        K[equal] = rows.variances[number + 1][equal[0]]
    for target, found in zip(targets, (K, Theta), strict=False):
        target[...] = found


def _closed(mlp: MLP, rows: Inputs, columns: Inputs, orders: tuple[int, ...]) -> Expectations:
    """<s s> of these orders by closed forms, in memory that is used again two layers later."""
    rule, equal = tile_rule(mlp.activation), rows.equal_pairs(columns)
    memory = workspace("expectations", (2, len(orders), len(rows), len(columns)))

    def expectations(number: int, K: Array) -> list[Array]:
        a, b = rows.variances[number], columns.variances[number]
        found = dict(zip(orders, memory[number % 2], strict=True))
        rule(a[:, None], b[None], K, found)
        for order in orders:
            fill_equal(mlp.activation, order, found[order], equal, a[equal[0]])
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


def next_kernel(K: Array, signal: Array, layer: Layer) -> Array:
    """K' = C_b + C_W <s s> + gamma^2 K (B.11), written over <s s>; K is used up."""
    signal *= layer.C_W
    signal += layer.C_b
    if layer.gamma:
        signal += layer.gamma**2 * K
    return signal


def _grow_tangent_kernel(Theta: Array, signal: Array, slope: Array, layer: Layer) -> None:
    """Theta' = lambda_b + lambda_W <s s> + (gamma^2 + C_W <s' s'>) Theta (8.63), written over Theta."""
    slope *= layer.C_W
    slope += layer.gamma**2
    Theta *= slope
    np.multiply(signal, layer.lambda_W, out=slope)
    Theta += slope
    Theta += layer.lambda_b


def _refuse_exploded(variance: Array, layer: int) -> None:
    if not variance.max(initial=0.0) < EXPLODED:
        raise InputError(
            f"the kernel exceeds {EXPLODED:g} at layer {layer}: choose a smaller C_W, fewer layers or smaller inputs."
        )
