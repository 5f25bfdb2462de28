"""Stores that lost parts, or got others: what is missing comes back, and nothing wrong is read."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stored_models import content, copied, inputs, leftovers, lose, network, records, stored, values

import foretrain as ft
from foretrain.empirical import StoredKernel, ntk
from foretrain.empirical.stored_kernel import create
from foretrain.support.errors import FileError, InputError, NotEnoughMemoryError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "k.zarr"
    stored(path, network(), inputs(12), side=5, workers=1)
    return path


def flip(file: Path) -> None:
    """A bit on a disk that changed by itself: size and times stay."""
    before = file.stat()
    changed = bytearray(file.read_bytes())
    changed[7] ^= 0x41
    file.write_bytes(bytes(changed))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def metadata(path: Path) -> dict[str, Any]:
    files = [file for file in path.rglob(".z*") if file.is_file()]
    return {str(file.relative_to(path)): json.loads(file.read_text()) for file in files}


@pytest.mark.parametrize("file", ["0.1.0.0", "1.0.0.0", "2.2.0.0"])
def test_bits_that_changed_by_themselves_are_found(file: str, whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    StoredKernel(path) @ np.ones(36)  # found intact before
    flip(path / "kernel" / file)
    with pytest.warns(UserWarning, match="1 tiles .*again"):
        stored(path, network(), inputs(12), workers=1)
    assert content(path) == content(whole)


READ: dict[str, Callable[[StoredKernel], Any]] = {
    "product": lambda kernel: kernel @ np.ones(36),
    "transposed": lambda kernel: kernel.rmatmat(np.ones(36)),
    "tile": lambda kernel: kernel.tile(0, 1),
    "array": np.asarray,
    "spectrum": lambda kernel: kernel.spectrum(2),
    "summary": lambda kernel: kernel.summary(top=2),
}


@pytest.mark.parametrize("way", READ)
def test_a_damaged_tile_is_not_read(way: str, whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    kernel = StoredKernel(path)
    READ[way](kernel)
    flip(path / "kernel" / "0.1.0.0")
    said = r"tile 0-1 of .* is damaged or lost: run the same ntk\(\.\.\., store=\) again"
    with pytest.raises(FileError, match=said):
        READ[way](kernel)


def test_mirror_images_have_checksums_of_their_own(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    flip(path / "kernel" / "1.0.0.0")
    kernel = StoredKernel(path)
    np.testing.assert_array_equal(kernel @ np.ones(36), StoredKernel(whole) @ np.ones(36))
    for read in (lambda: kernel.tile(1, 0), lambda: np.asarray(kernel)):
        with pytest.raises(FileError, match="tile 0-1"):
            read()


def test_tiles_in_pieces_are_checked_too(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from foretrain.empirical.stored_kernel import products

    monkeypatch.setattr(products, "_PIECE_BYTES", 1.0)  # a row at a time
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    np.testing.assert_allclose(StoredKernel(path) @ np.eye(36), _matrix(values(whole)), rtol=1e-13)
    flip(path / "kernel" / "1.2.0.0")
    with pytest.raises(FileError, match="tile 1-2"):
        StoredKernel(path) @ np.ones(36)


def _matrix(kernel: NDArray[Any]) -> NDArray[Any]:
    return np.transpose(kernel, (0, 2, 1, 3)).reshape(36, 36)


@pytest.mark.parametrize("record", ["[]", "{}", "null", '{"crc": 3, "squares": 1, "seconds": 1}', ""])
def test_odd_records(record: str, whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    (path / ".tiles" / "0-1.json").write_text(record)
    with pytest.raises(FileError, match="tile 0-1"):
        StoredKernel(path) @ np.ones(36)
    with pytest.warns(UserWarning, match=r"1 tiles of .*\(0-1\)"):
        stored(path, network(), inputs(12), workers=1)
    assert content(path) == content(whole)


def test_a_record_of_another_tile(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    shutil.copy(path / ".tiles" / "0-1.json", path / ".tiles" / "0-0.json")
    with pytest.raises(FileError, match="tile 0-0"):
        _ = StoredKernel(path).norms
    with pytest.warns(UserWarning, match=r"\(0-0\)"):
        stored(path, network(), inputs(12), workers=1)
    assert StoredKernel(path).norms == StoredKernel(whole).norms


def test_lost_records_of_all_tiles(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    shutil.rmtree(path / ".tiles")
    with pytest.raises(FileError, match="is not finished"):
        ft.load(path)
    with pytest.warns(UserWarning, match=r"folder \.tiles"):
        stored(path, network(), inputs(12), workers=1)
    assert content(path) == content(whole)
    assert records(path).keys() == records(whole).keys()


def test_a_lost_array(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    shutil.rmtree(path / "kernel")
    with pytest.raises(FileError, match="9 of its tiles"):
        ft.load(path)
    with pytest.raises(FileError, match="which mends it"):
        StoredKernel(path) @ np.ones(36)
    with pytest.warns(UserWarning, match="6 tiles of"):
        stored(path, network(), inputs(12), workers=1)
    assert content(path) == content(whole)
    assert leftovers(path) == []


LOST = [
    ".zmetadata",
    ".zgroup",
    ".zattrs",
    "kernel/.zarray",
    "kernel/.zattrs",
    "output_1/0",
    "output_2/.zarray",
]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("by", [None, "layer"])
@pytest.mark.parametrize("short", [False, True])
def test_files_of_zarr_are_written_again(by: Any, short: bool, tmp_path: Path) -> None:
    good = tmp_path / "good.zarr"
    stored(good, network(), inputs(12), by=by, side=5, workers=1)
    tiles = {tile: record["seconds"] for tile, record in records(good).items()}
    for name in [*LOST, *([] if by is None else ["layer/0"])]:
        path = copied(good, f"{name.replace('/', '-')}.zarr")
        (path / name).write_bytes(b'{"x') if short and not name.endswith("0") else (path / name).unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stored(path, network(), inputs(12), by=by, workers=1)
            np.testing.assert_array_equal(ft.load(path), ft.load(good))
        assert metadata(path) == metadata(good)
        assert leftovers(path) == [] if by is None else leftovers(path) == ["layer"]
        assert {tile: record["seconds"] for tile, record in records(path).items()} == tiles  # none anew


def test_a_finished_store_is_not_written_to(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "_write", None)
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    stored(path, network(), inputs(12), workers=1)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_without_any_attributes_it_is_no_store(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    for name in (".zmetadata", ".zattrs"):
        (path / name).unlink()
    with pytest.raises(FileError, match=r"no stored kernel.*store=\.$"):
        stored(path, network(), inputs(12))
    assert len(records(path)) == 6


def test_another_format_is_refused(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    attributes = json.loads((path / ".zattrs").read_text())
    attributes["foretrain_tiles"]["format"] = 1
    (path / ".zattrs").write_text(json.dumps(attributes))
    for ask in (lambda: StoredKernel(path), lambda: stored(path, network(), inputs(12))):
        with pytest.raises(FileError, match=r"format 1.*format 2"):
            ask()
    stored(path, network(), inputs(12), workers=1, overwrite=True)
    np.testing.assert_allclose(values(path), np.asarray(ntk(network(), inputs(12))), rtol=1e-13)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_empty_folder_may_be_used(overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.mkdir(mode=0o700)
    stored(path, network(), inputs(12), workers=1, overwrite=overwrite)
    assert path.stat().st_mode & 0o777 == 0o700
    assert StoredKernel(path).missing == 0


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_stay_links(tmp_path: Path) -> None:
    disk, link, nowhere = tmp_path / "disk", tmp_path / "link", tmp_path / "nowhere"
    disk.mkdir()
    link.symlink_to(disk)
    nowhere.symlink_to(tmp_path / "new")
    for overwrite in (False, False, True):
        stored(link, network(), inputs(12), workers=1, overwrite=overwrite)
        assert link.is_symlink()
        assert StoredKernel(disk).missing == 0
    stored(nowhere, network(), inputs(12), workers=1)
    assert StoredKernel(tmp_path / "new").missing == 0


def test_the_folder_one_is_in_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=r"such as .*kernel\.zarr\.$"):
        stored(Path("."), network(), inputs(12))


@pytest.mark.parametrize("store", [3, {}, "", "a\0b", "a" * 300, "~nobody-of-that-name/k.zarr"])
def test_names_that_cannot_be_used(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InputError, FileError), match=r"store=.* (names no folder|cannot be used)"):
        stored(store, network(), inputs(5))


@pytest.mark.parametrize("memory", [-5, 0, True, float("nan"), "0MB", [3]])
def test_memory_that_is_none(memory: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no size"):
        stored(tmp_path / "k.zarr", network(), inputs(5), memory=memory)


def test_processes_without_memory_are_refused_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotEnoughMemoryError, match=r"350 MB .*6 MB.*workers=1"):
        stored(tmp_path / "k.zarr", network(), inputs(5), memory="6MB", workers=2)
    monkeypatch.setenv("FORETRAIN_MEMORY", "300MB")
    stored(tmp_path / "k.zarr", network(), inputs(12))
    assert {record["worker"].split("-")[-2] for record in records(tmp_path / "k.zarr").values()} == {
        str(os.getpid())
    }


def test_a_file_of_ones_own_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(12), by="layer", workers=1)
    (path / "notes.txt").write_text("dear")
    with pytest.raises(FileError, match=r"notes\.txt"):
        stored(path, network(), inputs(5), workers=1, overwrite=True)
    (path / "notes.txt").unlink()
    stored(path, network(), inputs(5), workers=1, overwrite=True)


def test_a_disk_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(create, "_create", refuse)
    with pytest.raises(FileError, match=r"\(Read-only file system\).*store="):
        stored(tmp_path / "k.zarr", network(), inputs(5))


def test_loading_refuses_short_and_lost_tiles(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    file = path / "kernel" / "2.1.0.0"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(FileError, match=r"1 of its tiles"):
        ft.load(path)
    (path / "kernel" / "0.0.0.0").unlink()
    with pytest.raises(FileError, match="2 of its tiles"):
        ft.load(path)


def test_a_run_goes_on_after_a_loss(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "k.zarr"))
    lose(path, "0-0", "1-2")
    (path / ".zgroup").unlink()
    stored(path, network(), inputs(12), workers=1)
    assert content(path) == content(whole)
