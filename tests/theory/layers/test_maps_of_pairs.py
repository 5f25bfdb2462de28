"""Maps of pairs of positions: slices of numpy and compiled loops give what dense matrices give."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

from foretrain.theory.layers import windows
from foretrain.theory.layers.fields import Tile
from foretrain.theory.layers.linear_maps import Mapped
from foretrain.theory.layers.positions import Axis, AxisMap, Pairs, Rows, Taps, Weights, shape_of


def taps(
    size: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1, mode: str = "zeros"
) -> Any:
    sides = (padding, padding)
    return windows.convolution(size, kernel, stride=stride, padding=sides, dilation=dilation, mode=mode)


AXES: dict[str, tuple[AxisMap | None, ...]] = {
    "convolution": (taps(6, 3, padding=1), taps(5, 3, padding=1)),
    "wide kernel": (taps(7, 5, padding=2), taps(5, 4, padding=2)),
    "stride": (taps(7, 3, stride=2, padding=1), taps(6, 2, stride=2)),
    "dilation": (taps(7, 3, dilation=2, padding=2), taps(5, 1)),
    "circular": (taps(4, 3, padding=1, mode="circular"), taps(2, 3, padding=1, mode="circular")),
    "reflected": (taps(5, 3, padding=1, mode="reflect"), taps(4, 3, padding=1, mode="reflect")),
    "transposed": (windows.transposed_convolution(4, 3, stride=2, padding=1), taps(3, 3, padding=1)),
    "one axis of two": (None, taps(5, 3, padding=1)),
    "the other axis": (taps(5, 3, padding=1), None),
    "one axis": (taps(9, 3, padding=1),),
    "three axes": (taps(3, 3, padding=1), taps(4, 3, padding=1), taps(3, 2, padding=1)),
    "flatten": (windows.flattened(4), windows.flattened(3)),
    "pooling": (windows.average(6, 2, stride=2), windows.average(5, 3, stride=1, padding=1)),
    "mean": (windows.total(4, 0.25), windows.total(5, 0.2)),
    "mean of one axis, shrinking later": (taps(6, 3, padding=1), windows.total(5, 0.2)),
    "some positions": (windows.chosen(6, np.array([4, 0, -1, 1])), taps(4, 3, padding=1)),
    "only padding": (taps(1, 3, padding=3, dilation=2), taps(4, 3, padding=1)),
}
LISTS = ["full", "diagonal", "some"]


def dense(one: AxisMap | None, size: int) -> np.ndarray:
    """The map of pairs of positions (P' P', P P) along one axis."""
    if one is None:
        return np.eye(size**2)
    if isinstance(one, Weights):
        matrix = one.matrix_of_positions.toarray()
        return np.kron(matrix, matrix)
    count = one.source.shape[1]
    single = np.zeros((len(one.source), count, size))
    for tap, row in enumerate(one.source):
        single[tap, row >= 0, row[row >= 0]] = 1
    return sum(np.kron(matrix, matrix) for matrix in single)


def sizes_of(axes: tuple[AxisMap | None, ...], outputs: bool) -> list[int]:
    found = []
    for one in axes:
        if isinstance(one, Taps):
            found.append(one.source.shape[1] if outputs else one.size)
        elif isinstance(one, Weights):
            found.append(one.matrix_of_positions.shape[0] if outputs else one.size)
        else:
            found.append(4)
    return found


def wanted_of(kind: str, sizes: list[int]) -> Pairs:
    if kind == "full":
        return tuple(Axis.full(size) for size in sizes)
    if kind == "diagonal":
        return tuple(Axis.diagonal(size) for size in sizes)
    rng = np.random.default_rng(0)
    return tuple(Axis.of(*rng.integers(0, size, (2, size + 1)), size) for size in sizes)


@pytest.mark.parametrize("inputs", [1, 3, 40])
@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "numba"])
def test_maps_are_products_of_matrices(name: str, kind: str, inputs: int, compiled: bool) -> None:
    if compiled:
        pytest.importorskip("numba")
    axes, rng = AXES[name], np.random.default_rng(1)
    sizes, outputs = sizes_of(axes, False), sizes_of(axes, True)
    wanted, field = wanted_of(kind, outputs), Mapped(axes=axes, positions=tuple(outputs))
    (given,) = field.needs(wanted)
    steps = field.prepare(wanted, (given,))
    full = rng.standard_normal([size**2 for size in sizes] + [inputs])
    values = full[np.ix_(*(axis.keys for axis in given), np.arange(inputs))]
    like = {field: np.zeros(1)}
    tile = Tile({}, {}, like, like, own=True, shared=None, size=inputs, column_size=inputs, compiled=compiled)
    before = values.copy()
    result = field.mapped(values, wanted, steps, tile)

    expected = full
    for number, (one, size) in enumerate(zip(axes, sizes)):
        expected = np.moveaxis(np.tensordot(dense(one, size), expected, (1, number)), 0, number)
    expected = expected[np.ix_(*(axis.keys for axis in wanted), np.arange(inputs))]
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-13)
    assert result.shape == (*shape_of(wanted), inputs)

    added = rng.standard_normal(result.shape)
    more = field.mapped(values, wanted, steps, tile, scale=0.3, constant=0.7, added=added, share=0.4)
    np.testing.assert_allclose(more, 0.3 * expected + 0.7 + 0.4 * added, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(values, before)


def test_rows_of_a_matrix() -> None:
    """Every row is found again, and rows that go on from one another are one stretch."""
    rng = np.random.default_rng(2)
    matrices = [sparse.random_array((9, 7), density=d, rng=rng).tocsr() for d in (0.0, 0.2, 1.0)]
    matrices.append(sparse.csr_array(np.eye(6, 8, 1) + 2 * np.eye(6, 8, 2)))
    for matrix in matrices:
        rows = Rows.of(matrix)
        found = np.zeros(matrix.shape)
        for first, length, start, count in rows.stretches.astype(int):
            for further in range(length):
                for entry in range(start, start + count):
                    found[first + further, int(rows.columns[entry]) + further] += rows.weights[entry]
        np.testing.assert_array_equal(found, matrix.toarray())
    assert len(rows.stretches) == 1


def test_a_convolution_of_all_pairs_has_few_stretches() -> None:
    """A row of positions begins and ends in stretches of its own; the rest of it is one."""
    size = 16
    step = taps(size, 3, padding=1).step(Axis.full(size), Axis.full(size), 1)
    assert len(step.rows.stretches) <= 3 * size
    assert reduce(int.__add__, step.rows.stretches[:, 1].astype(int).tolist()) == size**2
