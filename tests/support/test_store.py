from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import foretrain as ft
from foretrain.support import store
from foretrain.support.errors import FileError, InputError


def everything() -> xr.Dataset:
    """One variable of every kind that a result may hold, zeros and blanks included."""
    return xr.Dataset(
        {
            "K": (
                ("layer", "input 1", "input_2"),
                np.arange(12.0).reshape(3, 2, 2),
                {"unit": "1", "exact": True},
            ),
            "count": ("layer", np.arange(3)),
            "truth": ("layer", np.array([True, False, False])),
            "complex": ("layer", np.array([1 + 2j, 0, np.nan])),
            "single": ("layer", np.array([np.inf, -np.inf, np.nan], dtype=np.float32)),
            "text": ("layer", np.array(["a", "βγ", ""])),
            "date": ("layer", np.array(["2024-01-01", "NaT", "2025-01-01"], dtype="datetime64[ns]")),
            "scalar": ((), 3),
            "empty": ("nothing", np.zeros(0)),
        },
        coords={"layer": [1, 2, 3], "name of layer": ("layer", ["first", "second", "third"])},
        attrs={"title": "Θ of κ", "widths": [4, 5], "nothing": None, "nested": {"a": [1.5, "b"]}},
    )


def read_plainly(path: Path) -> xr.Dataset:
    dataset: xr.Dataset = xr.open_zarr(path, chunks=None).load()
    return dataset


def test_a_dataset_comes_back_as_it_was(tmp_path: Path) -> None:
    data = everything()
    untouched = data.copy(deep=True)
    path = ft.save(data, tmp_path / "result.zarr")
    assert path == tmp_path / "result.zarr"
    xr.testing.assert_identical(ft.load(path), data)
    xr.testing.assert_identical(data, untouched)


@pytest.mark.parametrize("name", ["V", None, "layer", "name of layer"])
def test_an_array_comes_back_as_it_was(tmp_path: Path, name: str | None) -> None:
    array = everything()["K"].rename(name)
    xr.testing.assert_identical(ft.load(ft.save(array, tmp_path / "array.zarr")), array)


@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.int32, np.uint8, np.bool_, np.complex128]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
@settings(deadline=None, max_examples=30)
def test_any_array_comes_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, values: Any) -> None:
    array = xr.DataArray(values, dims=[f"d{i}" for i in range(values.ndim)], name="x")
    loaded = ft.load(ft.save(array, tmp_path_factory.mktemp("store") / "x.zarr"))
    assert loaded.dtype == values.dtype
    assert loaded.values.tobytes() == values.tobytes()


def test_no_warning_reaches_the_user_and_plain_xarray_reads_it(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ft.save(everything(), tmp_path / "a.zarr")
        ft.load(tmp_path / "a.zarr")
        plain = read_plainly(tmp_path / "a.zarr")
    xr.testing.assert_equal(plain.set_coords("name of layer"), everything())
    assert plain.attrs["foretrain_version"] == ft.__version__


def test_version_and_metadata_are_recorded(tmp_path: Path) -> None:
    metadata = {"seed": np.int64(3), "C_W": np.array([1.0, 2.0]), "ok": True, "nested": {"why": None}}
    path = ft.save(everything(), tmp_path / "a.zarr", metadata=metadata)
    assert store.describe(path) == {
        "version": ft.__version__,
        "kind": "Dataset",
        "metadata": {"seed": 3, "C_W": [1.0, 2.0], "ok": True, "nested": {"why": None}},
    }


def test_what_was_loaded_can_be_saved_again(tmp_path: Path) -> None:
    once = ft.load(ft.save(everything(), tmp_path / "a.zarr"))
    xr.testing.assert_identical(ft.load(ft.save(once, tmp_path / "b.zarr")), everything())
    chunked = everything().chunk({"layer": 2})
    xr.testing.assert_identical(ft.load(ft.save(chunked, tmp_path / "c.zarr")), everything())


def test_overwriting_needs_permission_and_a_store(tmp_path: Path) -> None:
    path = ft.save(everything(), tmp_path / "a.zarr")
    with pytest.raises(FileError, match="already exists"):
        ft.save(everything(), path)
    ft.save(everything()["count"], path, overwrite=True)
    xr.testing.assert_identical(ft.load(path), everything()["count"])
    (tmp_path / "thesis").mkdir()
    with pytest.raises(FileError, match="not overwritten"):
        ft.save(everything(), tmp_path / "thesis", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "thesis"]


def test_large_stores_stay_on_disk_until_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ft.save(everything(), tmp_path / "a.zarr")
    monkeypatch.setenv("FORETRAIN_MEMORY", "100B")
    loaded = ft.load(path)
    assert not loaded["K"].variable._in_memory
    xr.testing.assert_identical(loaded, everything())


def test_other_zarr_groups_are_read_as_datasets(tmp_path: Path) -> None:
    data = xr.Dataset({"a": ("x", [1.0, 2.0])})
    for number in (2, 3):
        path = tmp_path / f"foreign{number}.zarr"
        data.to_zarr(path, zarr_format=number, consolidated=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            xr.testing.assert_identical(ft.load(path), data)
        with pytest.raises(FileError, match=r"foretrain\.save"):
            store.describe(path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (np.zeros(3), "ndarray.*Dataset or DataArray"),
        (xr.DataArray([1.0], dims="a/b", name="x"), "'a/b' cannot name"),
        (xr.Dataset({"../x": 1.0}), "cannot name"),
        (xr.Dataset({3: 1.0}), "3 cannot name"),
        (xr.Dataset(attrs={"when": object()}), "'when' .*object"),
        (xr.Dataset({"x": ((), 1.0, {"of": {1, 2}})}), "'of' of 'x' .*set"),
        (xr.Dataset(attrs={"map": {1: 2}}), "keys"),
        (xr.Dataset({"x": ("i", np.array([{}, None], dtype=object))}), "stored"),
        (xr.Dataset(coords={"i": [0, 1], "j": [0, 1]}).stack(k=("i", "j")), "stored"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(tmp_path: Path, data: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        ft.save(data, tmp_path / "a.zarr")
    assert os.listdir(tmp_path) == []


def test_remote_addresses_are_refused() -> None:
    with pytest.raises(InputError, match="remote address"):
        ft.save(everything(), "s3://bucket/result.zarr")


def test_a_missing_store_and_something_else_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        ft.load(tmp_path / "absent.zarr")
    with pytest.raises(FileError, match="Zarr"):
        ft.load(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="Zarr"):
        ft.load(tmp_path / "file")


def damage_metadata(path: Path) -> None:
    (path / ".zmetadata").write_text("{")


def damage_chunk(path: Path) -> None:
    (path / "K" / "0.0.0").write_bytes(b"garbage")


def lose_chunk(path: Path) -> None:
    (path / "K" / "0.0.0").unlink()


@pytest.mark.parametrize("damage", [damage_metadata, damage_chunk, lose_chunk])
def test_a_damaged_store_is_not_read(tmp_path: Path, damage: Any) -> None:
    path = ft.save(everything(), tmp_path / "a.zarr")
    damage(path)
    with pytest.raises(FileError, match="is damaged"):
        ft.load(path)


SLOW_SAVE = """
import sys, time
import xarray as xr
import foretrain as ft
from foretrain.support import atomic

def slow(path):
    print("writing", flush=True)
    time.sleep(60)

atomic._flush = slow
ft.save(xr.Dataset({"a": ("x", [9.0])}), sys.argv[1], overwrite=True)
"""


def test_a_killed_save_leaves_no_half_store_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    path = ft.save(everything(), tmp_path / "a.zarr")
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_SAVE, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        writer.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while writer.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir(tmp_path)) == 2
    assert list(tmp_path.glob("*.zarr")) == [path]
    xr.testing.assert_identical(ft.load(path), everything())
    ft.save(everything()["count"], path, overwrite=True)
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_the_folder_of_an_answer_is_loaded_by_its_data(tmp_path: Path) -> None:
    data = xr.Dataset({"a": ("x", [1.0, 2.0])})
    (tmp_path / "answer").mkdir()
    ft.save(data, tmp_path / "answer" / "data.zarr")
    assert ft.load(tmp_path / "answer").identical(data)


def test_results_that_can_be_labelled_are_saved(tmp_path: Path) -> None:
    class Result:
        def to_dataset(self) -> xr.Dataset:
            return xr.Dataset({"a": ("x", [1.0, 2.0])})

    ft.save(Result(), tmp_path / "result.zarr")
    assert ft.load(tmp_path / "result.zarr").identical(Result().to_dataset())
