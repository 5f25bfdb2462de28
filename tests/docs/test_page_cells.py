import json
import os
from pathlib import Path

import execution
import pytest
from cells import Cell, markdown_cells, percent_cells
from execution import PageError, answers_of_pages, run


def test_markdown_is_cut_at_python_fences_only() -> None:
    cells = markdown_cells("a\n```python\nx = 1\n```\nb\n```console\n$ ls\n```\n")
    assert cells == [Cell("a\n", False), Cell("x = 1\n", True), Cell("b\n```console\n$ ls\n```\n", False)]


def test_percent_files_have_title_text_and_code() -> None:
    source = '"""A title."""\n\n# %% [markdown]\n# text\n#\n# more\n\n# %%\nx = 1\n\n# %%\nprint(x)\n'
    assert percent_cells(source) == [
        Cell("# A title\n", False),
        Cell("text\n\nmore\n", False),
        Cell("x = 1\n", True),
        Cell("print(x)\n", True),
    ]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1\n", "title"),
        ('"""T."""\nx = 1\n# %%\n', "nothing"),
        ('"""T."""\n# %% [markdown]\nx = 1\n', "comments only"),
    ],
)
def test_what_is_no_tutorial_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        percent_cells(source)


def test_cells_share_names_and_answer_with_the_last_expression() -> None:
    found = json.loads(run("page", ["x = 2", "print(x)\nx + 1", "x = 3"]))
    assert [cell["text"] for cell in found] == ["", "2\n3\n", ""]


def test_pictures_are_the_same_in_every_run() -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    first, second = (json.loads(run("page", [code]))[0]["figures"] for _ in range(2))
    assert first == second
    assert first[0].count("<svg") == 1


def test_an_error_names_page_cell_and_line() -> None:
    with pytest.raises(PageError, match=r"(?s)page.*cell 2 of page.*ZeroDivisionError"):
        run("page", ["x = 0", "1 / x"])


def test_the_folder_of_a_run_is_not_told() -> None:
    (cell,) = json.loads(run("page", ["import os\nprint(os.path.abspath('runs'))"]))
    assert cell["text"] == f".{os.sep}runs\n"


def test_addresses_in_memory_are_refused() -> None:
    with pytest.raises(PageError, match="address in memory"):
        run("page", ["object()"])


def test_pages_that_have_run_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execution, "CACHE", tmp_path)
    pages = {"one.md": [Cell("print(1)", True)], "text.md": [Cell("words", False)]}
    first = answers_of_pages(pages)
    assert "one.md" in capsys.readouterr().out
    assert answers_of_pages(pages) == first
    assert capsys.readouterr().out == ""
    with pytest.raises(PageError, match="ZeroDivisionError"):
        answers_of_pages({**pages, "two.md": [Cell("1 / 0", True)]})
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
