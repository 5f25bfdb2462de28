"""Stored kernels, opened without being loaded: what they say of themselves and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from tiled_stores import dense, inputs, stored

import foretrain as ft
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.support import store
from foretrain.support.errors import FileError, InputError, NotEnoughMemoryError


def test_it_says_what_it_holds(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr")
    assert kernel.shape == expected.shape == (23, 23, 3, 3)
    assert kernel.dims == expected.dims
    assert (kernel.entry_type, kernel.outputs, kernel.labels) == ("float64", (0, 1, 2), None)
    assert (kernel.symmetric, kernel.traced, kernel.finished, kernel.missing) == (True, False, 1.0, 0)
    assert kernel.routes == {name: str(route) for name, route in expected.routes.items()}
    assert kernel.nbytes == np.asarray(expected).nbytes
    text = repr(kernel)
    for part in ("input_1 23", "15 tiles of up to 5 x 5 samples", "finished", ".regression(y)", "38.1 kB"):
        assert part in text


@pytest.mark.parametrize("options", [{}, {"outputs": "trace"}, {"by": "layer"}, {"outputs": [2, 0]}])
def test_array_and_labelled_array_are_the_kernel(tmp_path: Path, options: dict[str, object]) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", **options)
    assert np.array_equal(np.asarray(kernel), np.asarray(expected))
    found = kernel.to_xarray()
    assert found.dims == expected.dims
    if not expected.traced:
        assert found["output_1"].values.tolist() == list(expected.outputs)
    assert np.array_equal(found.values, np.asarray(expected))


def test_loading_stays_lazy_in_chunks_of_tiles(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr")
    found = ft.load(kernel.path)
    assert isinstance(found, xr.DataArray)
    assert found.name == "ntk"
    assert found.chunks is not None
    assert found.chunks[0] == (5, 5, 5, 5, 3)
    assert float(found[20, 3, 1, 2]) == float(np.asarray(expected)[20, 3, 1, 2])
    plain = xr.open_zarr(kernel.path)["kernel"]  # no foretrain involved
    assert np.array_equal(plain.values, np.asarray(expected))


def test_loading_without_dask_reads_where_it_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, expected = stored(tmp_path / "k.zarr")
    monkeypatch.setattr(store, "find_spec", lambda name: None)
    found = ft.load(kernel.path)
    assert found.chunks is None
    assert not found.variable._in_memory
    assert np.array_equal(found[20:, 3].values, np.asarray(expected)[20:, 3])


@pytest.mark.parametrize("tile", [(0, 0), (1, 3), (4, 4), (3, 1)])
def test_tiles_are_blocks_of_the_matrix(tmp_path: Path, tile: tuple[int, int]) -> None:
    kernel, expected = stored(tmp_path / "k.zarr")
    rows, columns = (slice(15 * number, min(15 * number + 15, 69)) for number in tile)
    assert np.array_equal(kernel.tile(*tile), dense(expected)[rows, columns])


def test_contributions_and_their_sum(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", by="layer")
    assert kernel.labels == expected.labels == ("0", "2")
    one = kernel["2"]
    assert (one.shape, one.labels) == ((23, 23, 3, 3), None)
    assert np.array_equal(np.asarray(one), np.asarray(expected["2"]))
    assert np.array_equal(one.tile(0, 1), dense(np.asarray(expected["2"]))[:15, 15:30])
    total = kernel.total()
    assert (total.shape, total.by) == ((23, 23, 3, 3), None)
    assert np.asarray(total) == pytest.approx(np.asarray(expected.total()), rel=1e-14)
    assert total.tile(0, 1) == pytest.approx(dense(expected)[:15, 15:30], rel=1e-14)
    assert one.norms[0] == pytest.approx(np.trace(dense(np.asarray(expected["2"]))), rel=1e-13)
    with pytest.raises(KeyError, match="'1' is no label"):
        kernel["1"]


@pytest.mark.parametrize("options", [{}, {"outputs": "trace"}, {"by": "layer"}])
def test_norms_come_from_the_records(tmp_path: Path, options: dict[str, object]) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", **options)
    matrix = dense(expected)
    assert kernel.norms == pytest.approx((np.trace(matrix), np.sum(matrix**2)), rel=1e-13)
    assert kernel.effective_rank() == pytest.approx(np.trace(matrix) ** 2 / np.sum(matrix**2), rel=1e-12)
    shares = kernel.layer_shares
    assert set(shares) == {"0", "2"}
    assert sum(shares.values()) == pytest.approx(1.0, rel=1e-12)


def test_single_precision_and_test_kernels(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", dtype=torch.float32, x2=inputs(7, seed=2).float())
    assert (kernel.entry_type, kernel.samples, kernel.symmetric) == ("float32", (23, 7), False)
    assert np.asarray(kernel).dtype == np.float32
    assert kernel.tile(4, 1) == pytest.approx(dense(expected)[60:, 15:], abs=0)
    with pytest.raises(InputError, match="leave x2 out"):
        _ = kernel.norms


def test_an_unfinished_store_is_refused_with_the_way_on(tmp_path: Path) -> None:
    kernel, _ = stored(tmp_path / "k.zarr")
    for name in ("0-3", "1-1", "4-4"):
        (kernel.path / ".tiles" / f"{name}.json").unlink()
    assert (kernel.missing, kernel.finished) == (3, pytest.approx(0.8))
    assert "80.0% finished, 3 missing" in repr(kernel)
    for ask in (
        lambda: kernel.norms,
        lambda: kernel @ np.ones(69),
        kernel.to_xarray,
        lambda: np.asarray(kernel),
    ):
        with pytest.raises(InputError, match=r"3 of the 15 tiles"):
            ask()
    with pytest.raises(FileError, match="3 tiles are missing"):
        ft.load(kernel.path)


def test_a_kernel_that_does_not_fit_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = stored(tmp_path / "k.zarr")
    monkeypatch.setenv("FORETRAIN_MEMORY", "50kB")
    with pytest.raises(NotEnoughMemoryError, match=r"products with it"):
        np.asarray(kernel)
    assert kernel.to_xarray().shape == kernel.shape


def test_what_is_no_stored_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="nothing does not exist"):
        StoredKernel(tmp_path / "nothing")
    ft.save(xr.DataArray(np.zeros(3), dims="a", name="z"), tmp_path / "other.zarr")
    with pytest.raises(FileError, match="is no stored kernel"):
        StoredKernel(tmp_path / "other.zarr")
    kernel, _ = stored(tmp_path / "k.zarr")
    with pytest.raises(InputError, match="there is no tile"):
        kernel.tile(5, 0)


def test_a_lost_or_short_tile_is_named(tmp_path: Path) -> None:
    kernel, _ = stored(tmp_path / "k.zarr")
    lost = next(path for path in (kernel.path / "kernel").rglob("*") if path.name.startswith("1.2"))
    lost.write_bytes(lost.read_bytes()[:-8])
    with pytest.raises(FileError, match="tile 1-2"):
        kernel.tile(1, 2)
    lost.unlink()
    with pytest.raises(FileError, match="damaged or lost"):
        kernel @ np.ones(69)
