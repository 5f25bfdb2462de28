"""A sweep that is refused changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from swept import write_spec

from foretrain.experiments.sweep import sweep
from foretrain.support.errors import FileError, InputError

UNSENDABLE = """
import threading

held = threading.Lock()


def own(a: int):
    with held:
        return a
"""


def write(folder: Path, values: str) -> Path:
    (folder / "mine.py").write_text(UNSENDABLE)
    return write_spec(folder, f'observable = "mine.py:own"\n[axes]\na = {values}')


def test_a_function_that_cannot_be_sent_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be sent to other processes"):
        sweep(write(tmp_path, "[0, 1, 2]"), tmp_path / "store", workers=2)
    assert not (tmp_path / "store").exists()


def test_a_refused_extension_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    sweep(write(tmp_path, "[0, 1]"), tmp_path / "store", workers=1)
    log = (tmp_path / "store" / "points.log").read_bytes()
    larger = write(tmp_path, "[0, 1, 2, 3]")
    with pytest.raises(InputError, match="cannot be sent to other processes"):
        sweep(larger, tmp_path / "store", workers=2, extend=True)
    with pytest.raises(FileError, match="--extend"):
        sweep(larger, tmp_path / "store", workers=1)
    assert (tmp_path / "store" / "points.log").read_bytes() == log
