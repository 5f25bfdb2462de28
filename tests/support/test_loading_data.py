from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrain.support.errors import FileError, ForetrainError, InputError, NotEnoughMemoryError
from foretrain.support.loading import load_data

X, Y = np.arange(6.0).reshape(3, 2), np.arange(3)


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_data_come_back_as_they_were(tmp_path: Path) -> None:
    data = load_data(write(tmp_path / "d.npz", x=X, y=Y, x_test=X[:2], y_test=Y[:2]))
    np.testing.assert_array_equal(data.x, X)
    np.testing.assert_array_equal(data.y, Y)
    assert data.y.dtype == Y.dtype
    assert data.x_test is not None
    assert data.y_test is not None
    np.testing.assert_array_equal(data.x_test, X[:2])
    np.testing.assert_array_equal(data.y_test, Y[:2])


def test_test_targets_are_optional_and_compression_is_fine(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "d.npz", x=X.astype(np.float32), y=Y, x_test=X)
    data = load_data(str(tmp_path / "d.npz"))
    assert data.x.dtype == np.float32
    assert data.x_test is not None
    assert data.y_test is None


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": X}, "has no array 'y'"),
        ({"y": Y}, "has no array 'x'"),
        ({"x": X, "y": Y[:2]}, "3 samples in x but 2 in y"),
        ({"x": X, "y": Y, "y_test": Y}, "has y_test without x_test"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:1]}, "3 samples in x_test but 1 in y_test"),
        ({"x": X, "y": Y, "x_test": X[:, :1]}, r"x_test .*\(1,\).*\(2,\)"),
        ({"x": X, "y": Y, "x_tset": X}, "'x_tset'.*x, y, x_test, y_test"),
        ({"x": X[:0], "y": Y[:0]}, "one sample"),
        ({"x": np.float64(3), "y": Y}, r"x in .* has shape \(\)"),
        ({"x": X, "y": np.array(["a", "b", "c"])}, "y in .*<U1"),
        ({"x": X * 1j, "y": Y}, "x in .* has type complex128"),
        ({"x": np.where(X > 3, np.nan, X), "y": Y}, "x in .* 2 values"),
        ({"x": X, "y": np.array([1.0, np.inf, 2.0])}, "y in .* has 1 values"),
    ],
)
def test_unusable_data_are_refused_in_one_sentence(tmp_path: Path, arrays: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load_data(write(tmp_path / "d.npz", **arrays))


def test_pickles_are_never_run(tmp_path: Path, trap: Any) -> None:
    file = write(tmp_path / "d.npz", x=np.array([trap], dtype=object), y=Y)
    with pytest.raises(FileError, match="pickled"):
        load_data(file)
    assert not trap.mark.exists()
    np.load(file, allow_pickle=True)["x"]
    assert trap.mark.exists()  # the trap works


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not a file"):
        load_data(tmp_path / "absent.npz")
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(FileError, match="npz"):
        load_data(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x", "some text")
    with pytest.raises(FileError, match="is not an array"):
        load_data(tmp_path / "x.npz")


@pytest.mark.parametrize("position", [60, 150, 200])
def test_damaged_files_are_refused(tmp_path: Path, position: int) -> None:
    file = write(tmp_path / "d.npz", x=X, y=Y)
    content = bytearray(file.read_bytes())
    content[position : position + 8] = b"\xff" * 8
    file.write_bytes(content)
    with pytest.raises(ForetrainError, match="is damaged"):
        load_data(file)


def test_data_that_do_not_fit_in_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros((1000, 100)), y=np.zeros(1000))
    monkeypatch.setenv("FORETRAIN_MEMORY", "100kB")
    with pytest.raises(NotEnoughMemoryError, match=r"808 kB"):
        load_data(tmp_path / "d.npz")
