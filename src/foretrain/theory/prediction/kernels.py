"""Kernels of the output layer on the blocks that a prediction needs, without those of the layers before.

Squares and rectangles are computed as such: many test inputs never make all of K_BB unless their covariance is asked
for, and their variances come from a recursion of single inputs.

An entry depends on its own two inputs only: on its value in the layer before, and on their variances, which are known
from a recursion of single inputs. Closed forms therefore go through all layers tile by tile, with a tile that stays
in the cache; other activations go layer by layer, many pairs at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian import Expectation, cross_gram, factor, gram, second_moments
from foretrain.gaussian.closed_forms import closed_pair, tile_rule, workspace
from foretrain.gaussian.grams import Tile, square_tiles
from foretrain.support.acceleration import accelerates
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress
from foretrain.support.threads import over_cores
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.recursions.expectations import grow_kernel, grow_tangent_kernel, refuse_exploded
from foretrain.theory.recursions.kinks import inputs_on_kinks, warn_of_kinks

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


Spread = Literal["covariance", "variance", "none"]

_ALONE, _WITH_THETA = (0,), (0, 1)  # derivatives of the activation that K alone needs, and K with Theta
_WAY_OUT = "use fewer training inputs, or predict fewer test inputs at a time"


class Blocks(NamedTuple):
    """One kernel on training inputs A and test inputs B."""

    train: Array  # (A, A)
    cross: Array  # (A, B)
    test: Array | None  # (B, B) for the spread "covariance", (B,) for "variance"


def kernel(mlp: MLP, X: ArrayLike) -> Array:
    """K^(L) of all pairs of inputs (4.118), (B.11): (N, N)."""
    inputs = Inputs.of(mlp, mlp.check_inputs(X), orders=_ALONE)
    (found,) = _between(mlp, inputs, inputs, orders=_ALONE)
    return found


def tangent_kernel(mlp: MLP, X: ArrayLike) -> Array:
    """Theta^(L) of all pairs of inputs (9.5): (N, N)."""
    inputs = mlp.check_inputs(X)
    check_slopes(mlp)
    warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    return last_layer(mlp, inputs)[1]


def last_layer(mlp: MLP, inputs: Array, tolerance: float = 1e-10) -> tuple[Array, Array]:
    """K^(L) and Theta^(L) of all pairs of inputs together (10.44), (10.45), the layers before forgotten."""
    every = Inputs.of(mlp, inputs, orders=_WITH_THETA)
    K, Theta = _between(mlp, every, every, orders=_WITH_THETA, tolerance=tolerance)
    return K, Theta


def cross_kernel(mlp: MLP, X1: ArrayLike, X2: ArrayLike) -> Array:
    """K^(L) between two sets of inputs: (N1, N2)."""
    first, second = _two_sets(mlp, mlp.check_inputs(X1), mlp.check_inputs(X2), orders=_ALONE)
    (found,) = _between(mlp, first, second, orders=_ALONE)
    return found


def cross_tangent_kernel(mlp: MLP, X1: ArrayLike, X2: ArrayLike) -> Array:
    """Theta^(L) between two sets of inputs: (N1, N2)."""
    first, second = mlp.check_inputs(X1), mlp.check_inputs(X2)
    check_slopes(mlp)
    for kind, inputs in (("X1 input", first), ("X2 input", second)):
        warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs), kind)
    rows, columns = _two_sets(mlp, first, second, orders=_WITH_THETA)
    return _between(mlp, rows, columns, orders=_WITH_THETA)[1]


def training_blocks(mlp: MLP, train: Array, test: Array, spread: Spread = "covariance") -> Blocks:
    """K on training and test inputs, and no more of it than ``spread`` needs."""
    (found,) = _blocks(mlp, train, test, spread, orders=_ALONE)
    return found


def tangent_blocks(
    mlp: MLP, train: Array, test: Array, spread: Spread = "covariance", tolerance: float = 1e-10
) -> tuple[Blocks, Blocks]:
    """The same of K and of Theta; no prediction needs the latter between test inputs."""
    K, Theta = _blocks(mlp, train, test, spread, orders=_WITH_THETA, tolerance=tolerance)
    return K, Theta


def _blocks(
    mlp: MLP, train: Array, test: Array, spread: Spread, orders: tuple[int, ...], tolerance: float = 1e-10
) -> list[Blocks]:
    """Blocks of K, and of Theta with the order 1; refused before the work where they do not fit together."""
    pairs = len(test) ** 2 if spread == "covariance" else 0
    require_memory(
        8.0 * (len(orders) * len(train) * (len(train) + len(test)) + pairs),
        f"the kernel of {len(train):,} training and {len(test):,} test inputs",
        _WAY_OUT
        if len(train) > len(test) or not pairs
        else f"ask for spread='variance' or 'none', or {_WAY_OUT}",
    )
    rows, columns = _two_sets(mlp, train, test, orders)
    crosses = _between(mlp, rows, columns, orders, tolerance)
    own: dict[Spread, Callable[[], Array | None]] = {
        "covariance": lambda: _between(mlp, columns, columns, orders=_ALONE, tolerance=tolerance)[0],
        "variance": lambda: columns.variances[-1],
        "none": lambda: None,
    }
    tests = [own[spread](), None]
    wholes = _between(mlp, rows, rows, orders, tolerance)
    return [Blocks(*parts) for parts in zip(wholes, crosses, tests, strict=False)]


def _two_sets(mlp: MLP, first: Array, second: Array, orders: tuple[int, ...]) -> tuple[Inputs, Inputs]:
    """Both from one run, so that an input of both has the same variances in them."""
    if first.shape[1] != second.shape[1]:
        raise InputError(
            f"the two sets of inputs have {first.shape[1]} and {second.shape[1]} components: give the same number."
        )
    every = Inputs.of(mlp, np.concatenate([first, second]), orders)
    return every[: len(first)], every[len(first) :]


def _between(
    mlp: MLP, rows: Inputs, columns: Inputs, orders: tuple[int, ...], tolerance: float = 1e-10
) -> list[Array]:
    require_memory(
        8.0 * len(orders) * len(rows) * len(columns),
        f"the kernel of {len(rows):,} x {len(columns):,} inputs",
        _WAY_OUT,
    )
    return pair_kernels(mlp, rows, columns, orders, tolerance)


def check_spread(spread: str) -> Spread:
    """What is asked about the spread of outputs, or an error."""
    if spread not in get_args(Spread):
        raise unknown_name("`spread`", str(spread), get_args(Spread))
    return cast("Spread", spread)


def check_slopes(mlp: MLP) -> None:
    """An error where the tangent kernel is infinite."""
    if not mlp.activation.is_continuous:
        raise NotSupportedError(
            f"the tangent kernel of {mlp.activation.label} is infinite, since the activation jumps: use a continuous "
            "activation, or Bayesian inference, which needs K alone."
        )


@dataclass(frozen=True, repr=False, eq=False)
class OutputKernels(Result):
    """K and Theta of the output layer in blocks: A training inputs, B test inputs."""

    K_train: Array  # (A, A)
    K_cross: Array  # (B, A)
    K_test: Array | None  # (B, B), for variances alone (B,), None if no spread is asked for
    Theta_train: Array  # (A, A)
    Theta_cross: Array  # (B, A)

    @classmethod
    def from_matrices(cls, K: ArrayLike, Theta: ArrayLike, training: int) -> OutputKernels:
        """From matrices of all inputs, the first ``training`` of which are trained on."""
        kernel, tangent = np.asarray(K, dtype=np.float64), np.asarray(Theta, dtype=np.float64)
        if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or kernel.shape != tangent.shape:
            raise InputError(
                f"K has shape {kernel.shape} and Theta {tangent.shape}: give two square matrices of all inputs, "
                "training inputs first."
            )
        if not 0 < training <= len(kernel):
            raise InputError(f"training is {training}: give a number from 1 to {len(kernel)}.")
        seen, new = slice(None, training), slice(training, None)
        # Copies, so that what is not kept does not stay in memory.
        blocks = (
            kernel[seen, seen],
            kernel[new, seen],
            kernel[new, new],
            tangent[seen, seen],
            tangent[new, seen],
        )
        return cls(*(block.copy() for block in blocks))

    @property
    def training(self) -> int:
        """How many inputs are trained on."""
        return len(self.K_train)

    @property
    def tests(self) -> int:
        """How many are not."""
        return len(self.K_cross)

    @property
    def joint(self) -> Array:
        """K of all inputs, training inputs first, which samples of initial outputs need."""
        if self.K_test is None or self.K_test.ndim != 2:
            raise InputError(
                "the kernel between test inputs is missing: make the kernels with `spread='covariance'`."
            )
        return np.block([[self.K_train, self.K_cross.T], [self.K_cross, self.K_test]])


def output_kernels(
    mlp: MLP,
    X_train: ArrayLike,
    X_test: ArrayLike | None = None,
    *,
    spread: Spread = "covariance",
    tolerance: float = 1e-10,
) -> OutputKernels:
    """The blocks for a network: (10.44), (10.45); only the last layer is kept, whatever the depth."""
    check_network(mlp)
    train = mlp.check_inputs(X_train, "X_train")
    mlp = mlp.with_inputs(train)
    test = train[:0] if X_test is None else mlp.check_inputs(X_test, "X_test")
    check_slopes(mlp)
    for kind, inputs in (("training input", train), ("test input", test)):
        warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs), kind)
    K, Theta = tangent_blocks(mlp, train, test, check_spread(spread), tolerance)
    return OutputKernels(K.train, K.cross.T, K.test, Theta.train, Theta.cross.T)
