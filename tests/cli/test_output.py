from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from foretrain.cli.output import (
    Table,
    json_document,
    plain,
    refuse_unknown_picture,
    refuse_unwritable,
    show,
)
from foretrain.support.errors import InputError


def test_tables_are_aligned_with_numbers_to_the_right() -> None:
    table = Table(
        ("name", "value", "holds"), [("a", -0.0, True), ("long name", -12.3456789, None), ("b", None, False)]
    )
    assert plain(["Title", table]) == (
        "Title\n\n"
        "name          value  holds\n"
        "---------  --------  -----\n"
        "a                 0  yes\n"
        "long name  -12.3457\n"
        "b                    no\n"
    )


def test_a_table_without_rows_still_has_its_headings() -> None:
    assert plain([Table(("a", "b"), [])]) == "a  b\n-  -\n"


def test_without_a_terminal_the_text_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    show(["[bold]not markup[/bold]", Table(("x",), [("a" * 200,)])])
    text = capsys.readouterr().out
    assert "[bold]not markup[/bold]\n" in text
    assert "a" * 200 + "\n" in text
    assert "\x1b" not in text


def test_json_holds_what_json_has_no_number_for() -> None:
    document = {
        "nan": math.nan,
        "infinite": [math.inf, -np.inf],
        "array": np.array([[1.0, np.nan]]),
        "integer": np.int64(3),
        "truth": np.bool_(True),
        "tuple": (1, None, "κ"),
        1: {"nested": np.float32(0.5)},
    }
    assert json.loads(json_document(document)) == {
        "nan": None,
        "infinite": ["Infinity", "-Infinity"],
        "array": [[1.0, None]],
        "integer": 3,
        "truth": True,
        "tuple": [1, None, "κ"],
        "1": {"nested": 0.5},
    }


def test_what_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    for refuse in (refuse_unwritable, refuse_unknown_picture):
        with pytest.raises(InputError, match="is a file"):
            refuse(tmp_path / "file" / "below" / "picture.png")
        refuse(tmp_path / "new" / "folder" / "picture.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        refuse_unknown_picture(tmp_path / "folder.png")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(InputError, match="no permission"):
        refuse_unwritable(tmp_path / "new" / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]
