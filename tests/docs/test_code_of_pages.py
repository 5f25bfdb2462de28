"""Every piece of Python in the documentation: it compiles, and it runs (that of README.md: test_readme.py)."""

from pathlib import Path

import pytest
from cells import Cell, markdown_cells, percent_cells
from execution import answers, place_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
SHORT = DOCS / "tutorials" / "transformer_kernel.py"  # some seconds
PAGES = sorted(DOCS.rglob("*.md"))
HEAD = "---\nrun: true\n---\n"


def cells_of(page: Path) -> list[Cell]:
    text = page.read_text(encoding="utf-8")
    return percent_cells(text) if page.suffix == ".py" else markdown_cells(text.removeprefix(HEAD))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def has_code(page: Path) -> bool:
    return any(cell.code for cell in cells_of(page))


WITH_CODE = [page for page in [*PAGES, *TUTORIALS] if has_code(page)]


def test_there_is_code_to_look_at() -> None:
    names = {name_of(page) for page in WITH_CODE}
    assert {"docs/doctor.md", "docs/corrections.md"} <= names
    assert len(TUTORIALS) >= 5


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_code_compiles(page: Path) -> None:
    for cell in cells_of(page):
        if cell.code:
            compile(cell.text, name_of(page), "exec")


@pytest.mark.parametrize("page", [page for page in PAGES if has_code(page)], ids=name_of)
def test_pages_with_code_are_run_when_the_site_is_built(page: Path) -> None:
    assert page.read_text(encoding="utf-8").startswith(HEAD)


@pytest.mark.parametrize("page", [page for page in PAGES if "concepts" in page.parts], ids=name_of)
def test_concepts_have_code(page: Path) -> None:
    assert has_code(page)


def test_one_tutorial_runs_in_the_quick_suite() -> None:
    found = answers(name_of(SHORT), cells_of(SHORT))
    told = "".join(answer.text for answer in found)
    assert "largest difference" in told
    assert [len(answer.figures) for answer in found].count(1) == 1


@pytest.mark.statistical
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_code_runs(page: Path) -> None:
    answers(name_of(page), cells_of(page))


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_tutorials_have_run(page: Path) -> None:
    """With exactly this library; `make docs`, which comes first in the check of a fresh clone, runs them."""
    cells = cells_of(page)
    if not place_of(cells).exists():
        pytest.skip("not run since the library changed: make docs does, and make test-all")
    found = answers(name_of(page), cells)
    assert len(found) == sum(cell.code for cell in cells)
    assert any(answer.text for answer in found)
    assert any(answer.figures for answer in found)
