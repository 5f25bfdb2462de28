"""Stores: extended, refused, read while they are written, damaged, on a full disk, removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from swept import content, write_drawn, write_fragile, write_spec, written

from foretrain.experiments.sweep import journal, price, read, sweep
from foretrain.experiments.sweep.journal import LOG
from foretrain.experiments.sweep.spec import Plan
from foretrain.support.errors import FileError


def test_a_sweep_that_grew_is_extended_on_request(tmp_path: Path) -> None:
    sweep(write_fragile(tmp_path, "[0, 1]"), workers=1)
    spec = write_fragile(tmp_path, "[3, 1, 0, 4]")
    with pytest.raises(FileError, match=r"\(a was 0, 1, now 4 values from 3 to 4\).*--extend"):
        sweep(spec, workers=1)
    assert price(spec, workers=1).left == 2
    found = sweep(spec, workers=1, extend=True)
    assert found.computed == 2
    assert found.data["value"].values.tolist() == [3, 1, 0, 4]
    assert sweep(spec, workers=1).computed == 0


def test_a_fixed_parameter_may_become_an_axis(tmp_path: Path) -> None:
    sweep(write_fragile(tmp_path, "[0, 1]", "b = 2"), workers=1)
    spec = write_fragile(tmp_path, "[0, 1]\nb = [1, 2]")
    found = sweep(spec, workers=1, extend=True)
    assert found.computed == 2
    assert found.data["value"].values.tolist() == [[10, 20], [11, 21]]


@pytest.mark.parametrize("extend", [False, True])
@pytest.mark.parametrize(
    ("values", "fixed", "told"),
    [
        ("[0]", "", "a was 0, 1, now 0"),
        ("[0, 1, 2]", "b = 1", "b was 0, now 1"),
        ("[1, 2, 3]", "", "a was 0, 1, now"),
    ],
)
def test_another_sweep_is_refused(values: str, fixed: str, told: str, extend: bool, tmp_path: Path) -> None:
    sweep(write_fragile(tmp_path, "[0, 1]"), workers=1)
    with pytest.raises(FileError, match=rf"another sweep \(.*{told}"):
        sweep(write_fragile(tmp_path, values, fixed), workers=1, extend=extend)


def test_changed_code_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    """Otherwise nobody could mend the function at whose points it fails."""
    spec = write_fragile(tmp_path, "[0, 1, 2]")
    sweep(spec, workers=1)
    mended = "def fragile(a: int, b: int = 0):\n    return -1.0\n"
    (tmp_path / "mine.py").write_text(mended)
    with pytest.raises(FileError, match=r"mine.py:fragile .*--extend"):
        sweep(spec, workers=1)
    found = sweep(spec, workers=1, extend=True, retry_failed=True)
    assert found.data["value"].values.tolist() == [0.0, 1.0, -1.0]
    assert sweep(spec, workers=1).computed == 0


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_fragile(tmp_path, "[0, 1]")
    sweep(spec, workers=1)
    monkeypatch.setattr(journal, "__version__", "99.0")
    with pytest.raises(FileError, match=r"foretrain .*99.0"):
        sweep(spec, workers=1)


def test_two_writers_are_kept_apart(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path, "[0, 1]")
    with (
        journal.opened(Plan.of(spec, None), extend=False),
        pytest.raises(FileError, match="another writer"),
    ):
        sweep(spec, workers=1)
    assert sweep(spec, workers=1).done == 2


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_store_must_be_free(kind: str, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    if kind == "file":
        taken.touch()
    else:
        taken.mkdir()
        (taken / "thesis.tex").touch()
    with pytest.raises(FileError, match=r"is a file|other files"):
        sweep(write_fragile(tmp_path), taken, workers=1)
    assert kind == "file" or os.listdir(taken) == ["thesis.tex"]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no sweep"):
        read(write_fragile(tmp_path))


def test_a_finished_sweep_keeps_its_data_while_it_is_looked_at(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path, "[0, 1]")
    sweep(spec, workers=1)
    marked = (tmp_path / "mine.sweep" / "data.zarr").stat().st_ino
    with journal.opened(Plan.of(spec, None), extend=False):
        assert (tmp_path / "mine.sweep" / "data.zarr").stat().st_ino == marked


def test_another_order_of_values_is_the_same_sweep(tmp_path: Path) -> None:
    sweep(write_fragile(tmp_path, "[0, 1, 3]"), workers=1)
    found = sweep(write_fragile(tmp_path, "[3, 0, 1]"), workers=1)
    assert found.computed == 0
    assert found.data["value"].values.tolist() == [3, 0, 1]


def test_points_stay_when_untyped_numbers_are_joined_by_fractions(tmp_path: Path) -> None:
    """The axis becomes one of fractions, and 1 is the point 1.0, with its random numbers."""
    (tmp_path / "mine.py").write_text("def own(a, seed):\n    return seed\n")
    text = 'observable = "mine.py:own"\n[axes]\na = '
    first = sweep(write_spec(tmp_path, f"{text}[1, 2]"), workers=1).data
    grown = sweep(write_spec(tmp_path, f"{text}[1, 1.5, 2]"), workers=1, extend=True)
    assert grown.computed == 1
    np.testing.assert_array_equal(grown.data["value"].sel(a=[1.0, 2.0]), first["value"])
    assert grown.data["value"].max() < 2**32


def test_data_are_there_while_a_sweep_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any reader of Zarr finds what was finished before, and an older state after a kill."""
    monkeypatch.setattr(journal, "_DATA_SECONDS", 0.0)
    monkeypatch.setattr(journal, "_DATA_SHARE", 1e9)
    (tmp_path / "mine.py").write_text(
        "import xarray\n\ndef seen(a: int):\n    if a == 0:\n        return 0\n"
        f"    with xarray.open_zarr({str(tmp_path / 'mine.sweep' / 'data.zarr')!r}) as data:\n"
        "        return int((data['status'] == 'done').sum())\n"
    )
    spec = write_spec(tmp_path, 'observable = "mine.py:seen"\n[axes]\na = [0, 1, 2, 3]')
    assert sweep(spec, workers=1).data["value"].values.tolist() == [0, 1, 2, 3]


def test_data_that_cannot_be_refreshed_do_not_end_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_DATA_SECONDS", 0.0)
    monkeypatch.setattr(journal, "_DATA_SHARE", 1e9)
    real, calls = journal.save, []

    def full(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise FileError("no room.")
        return real(*arguments, **options)

    monkeypatch.setattr(journal, "save", full)
    with pytest.warns(UserWarning, match="no room") as told:
        found = sweep(write_fragile(tmp_path, "[0, 1, 3]"), workers=1)
    assert told[0].filename == __file__
    assert (found.done, len(calls)) == (3, 4)


@pytest.mark.slow
def test_a_full_disk_costs_no_point(tmp_path: Path) -> None:
    """Stood for by a limit on the size of files, which the log reaches."""
    spec = write_drawn(tmp_path, 2)
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); "
    code = f"{limit}from foretrain.cli.main import main; sys.exit(main(['sweep', {str(spec)!r}, '--workers', '1']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    assert "make room" in run.stderr
    assert run.stderr.count("\n") == 1
    before = written(tmp_path / "mine.sweep")
    assert 2 < before.total() < 20
    assert sweep(spec, workers=1).computed == 20 - before.total()
    sweep(spec, tmp_path / "whole", workers=1)
    assert content(tmp_path / "mine.sweep") == content(tmp_path / "whole")


def test_a_store_that_is_removed_meanwhile_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"import shutil\n\ndef remove(a: int):\n    shutil.rmtree({str(tmp_path / 'mine.sweep')!r})\n    return a\n"
    )
    spec = write_spec(tmp_path, 'observable = "mine.py:remove"\n[axes]\na = [0]')
    with pytest.raises(FileError, match="removed"):
        sweep(spec, workers=1)


def test_a_log_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path)
    (tmp_path / "mine.sweep" / LOG).mkdir(parents=True)
    with pytest.raises(FileError, match=r"points\.log cannot be read"):
        sweep(spec, workers=1)
