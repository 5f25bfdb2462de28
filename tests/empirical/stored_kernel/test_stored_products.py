"""Products with stored kernels, against those of the matrix in memory."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from tiled_stores import dense, inputs, stored

from foretrain.empirical.stored_kernel import products
from foretrain.empirical.stored_kernel.products import measured_norms, pieces
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.support.errors import InputError, NotEnoughMemoryError

CASES = [
    {},
    {"outputs": "trace"},
    {"by": "layer"},
    {"by": "parameter", "outputs": "trace"},
    {"x2": inputs(7, seed=2)},
    {"x2": inputs(31, seed=2), "by": "layer"},
]


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("side", [5, 23, 40])
def test_products_with_columns(tmp_path: Path, options: dict[str, object], side: int) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", side=side, **options)
    matrix = dense(expected)
    random = np.random.default_rng(0)
    columns, rows = random.normal(size=(matrix.shape[1], 4)), random.normal(size=(matrix.shape[0], 4))
    size = np.abs(matrix).max()
    assert kernel.matmat(columns) == pytest.approx(matrix @ columns, rel=1e-12, abs=1e-13 * size)
    assert kernel.rmatmat(rows) == pytest.approx(matrix.T @ rows, rel=1e-12, abs=1e-13 * size)
    assert kernel @ columns[:, 0] == pytest.approx(matrix @ columns[:, 0], rel=1e-12, abs=1e-13 * size)
    assert kernel.linear_operator() @ columns == pytest.approx(matrix @ columns, rel=1e-12, abs=1e-13 * size)


def test_single_precision_is_summed_in_double(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", dtype=torch.float32)
    matrix, column = dense(expected), np.random.default_rng(0).normal(size=69)
    exact = np.triu(matrix) @ column + np.triu(matrix, 1).T @ column
    diagonal_tiles = np.kron(np.eye(5), np.ones((15, 15)))[:69, :69]
    exact += (np.tril(matrix, -1) - np.triu(matrix, 1).T) * diagonal_tiles @ column  # read as they are
    assert kernel @ column == pytest.approx(exact, rel=1e-12, abs=1e-13 * np.abs(matrix).max())


@pytest.mark.parametrize("options", [{}, {"by": "layer"}, {"outputs": "trace"}])
def test_pieces_smaller_than_tiles(
    tmp_path: Path, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", side=10, **options)
    matrix = dense(expected)
    columns = np.random.default_rng(0).normal(size=(len(matrix), 3))
    monkeypatch.setattr(products, "_PIECE_BYTES", 3.5 * (2 * kernel.files.row_bytes))
    sizes = {piece.rows.stop - piece.rows.start for piece in pieces(kernel)}
    assert sizes == {3 * kernel.width, 1 * kernel.width}
    assert kernel @ columns == pytest.approx(matrix @ columns, rel=1e-12, abs=1e-13 * np.abs(matrix).max())
    assert measured_norms(kernel) == pytest.approx((np.trace(matrix), np.sum(matrix**2)), rel=1e-12)


def test_a_kernel_larger_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", samples=120, side=25)
    monkeypatch.setenv("FORETRAIN_MEMORY", f"{kernel.nbytes // 4}B")
    with pytest.raises(NotEnoughMemoryError):
        np.asarray(kernel)
    held = [piece.values.nbytes for piece in pieces(kernel)]
    assert max(held) * 2 * (products._AHEAD + 1) < kernel.nbytes / 8
    matrix, column = dense(expected), np.random.default_rng(0).normal(size=360)
    assert kernel @ column == pytest.approx(matrix @ column, rel=1e-12, abs=1e-12 * np.abs(matrix).max())
    with pytest.raises(NotEnoughMemoryError, match="fewer columns"):
        kernel @ np.zeros((360, 1000))


def test_each_stored_tile_of_a_symmetric_kernel_is_read_once(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr")
    for path in (kernel.path / "kernel").iterdir():
        numbers = path.name.split(".")[:2]
        if numbers[0].isdigit() and int(numbers[0]) > int(numbers[1]):
            path.unlink()  # mirrors are for other readers
    matrix = dense(expected)
    column = np.random.default_rng(0).normal(size=69)
    assert kernel @ column == pytest.approx(matrix @ column, rel=1e-12, abs=1e-13 * np.abs(matrix).max())


def test_reading_may_end_early(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr")
    first = next(iter(pieces(kernel)))
    assert np.array_equal(first.values, dense(expected)[:15, :15])


def test_wrong_columns_and_bad_numbers(tmp_path: Path) -> None:
    kernel, _ = stored(tmp_path / "k.zarr")
    with pytest.raises(InputError, match=r"\(68,\).*\(69, many\)"):
        kernel @ np.ones(68)
    tile = kernel.path / "kernel" / "0.1.0.0"
    values = np.frombuffer(tile.read_bytes(), np.float64).copy()
    values[7] = np.nan
    tile.write_bytes(values.tobytes())
    record = kernel.path / ".tiles" / "0-1.json"
    crc = [zlib.crc32(values.tobytes()), json.loads(record.read_text())["crc"][1]]
    record.write_text(json.dumps(json.loads(record.read_text()) | {"crc": crc}))
    with pytest.raises(InputError, match="not finite"):
        StoredKernel(kernel.path) @ np.ones(69)
