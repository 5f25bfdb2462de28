from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from foretrain.support.answers import Answer, Table, text
from foretrain.support.answers.folder import refuse_unknown_picture, refuse_unwritable
from foretrain.support.errors import InputError


def plain(parts: Sequence[str | Table]) -> str:
    return text.plain(Answer("", parts))


def show(parts: Sequence[str | Table]) -> None:
    text.show(Answer("", parts))


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


@pytest.fixture
def on_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str | Table]], list[str]]:
    """Lines on a terminal of 60 letters."""

    def lines(parts: Sequence[str | Table]) -> list[str]:
        for name, value in {"COLUMNS": "60", "NO_COLOR": "1", "TERM": "xterm"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        show(parts)
        return re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    return lines


Screen = Callable[[Sequence[str | Table]], list[str]]


def test_numbers_of_a_wide_table_are_whole_on_a_narrow_screen(on_screen: Screen) -> None:
    values = -1.23456e-05 * np.arange(1, 13)
    table = Table(("layer", *(f"quantity {i}" for i in range(12))), [(77, *values), (88, *values)])
    lines = on_screen([table])
    words = [word for line in lines for word in line.split()]
    assert all(words.count(text) == 2 for text in table.texts()[0][1:])
    assert words.count("77") == words.count("layer") > 1  # with every block of columns
    assert max(map(len, lines)) <= 60


def test_long_texts_in_tables_are_broken_and_never_cut(on_screen: Screen) -> None:
    lines = on_screen([Table(("name", "meaning"), [("a" * 40, "word " * 20)])])
    assert max(map(len, lines)) <= 60
    text = "".join(lines)
    assert text.count("a") - "name meaning".count("a") == 40
    assert text.count("word") == 20


def test_code_is_not_broken_but_prose_is(on_screen: Screen) -> None:
    code = f'  model.get_parameter("{"layer." * 12}weight").mul_(2.5)'
    lines = on_screen([f"In Python:\n{code}", "prose " * 20, "model.py:x: [red] is no colour"])
    assert code in lines
    assert sum("prose" in line for line in lines) > 1
    assert "model.py:x: [red] is no colour" in lines


def test_a_table_that_can_be_made_to_fit_is_in_one_piece(on_screen: Screen) -> None:
    columns = ("parameter", "share of the trace", "±", "share of the loss decrease")
    lines = on_screen([Table(columns, [("rnn.weight_ih_l0", 0.556333, None, 0.261306)])])
    assert max(map(len, lines)) <= 60
    assert sum("0.556333" in line and "0.261306" in line for line in lines) == 1
