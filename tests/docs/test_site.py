"""What the site promises: nothing is fetched, warnings are errors, and what pages name exists."""

import re
from pathlib import Path

import pytest
from reference import ENTRY, LINK, REST, canonical, expanded, resolve

import foretrain
from foretrain import experiments

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
API = sorted((DOCS / "api").glob("*.md"))
TEXTS = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((DOCS / "tutorials").glob("*.py"))]
CORRECTIONS = (DOCS / "corrections.md").read_text(encoding="utf-8")


def test_warnings_are_errors_and_fonts_are_the_readers() -> None:
    assert re.search(r"^strict: true$", CONFIG, re.MULTILINE)
    assert re.search(r"^  font: false", CONFIG, re.MULTILINE)
    assert "http" not in CONFIG


@pytest.mark.parametrize("folder", ["assets", "hooks"])
def test_nothing_is_fetched(folder: str) -> None:
    for file in (DOCS / folder).iterdir():
        if file.is_file():
            assert not re.search(r"https?://", file.read_text(encoding="utf-8")), file


def test_every_page_is_in_the_navigation() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    pages |= {f"tutorials/{page.stem}.md" for page in (DOCS / "tutorials").glob("*.py")}
    assert pages == set(re.findall(r"[\w/-]+\.md", CONFIG.split("nav:")[1]))


@pytest.mark.parametrize("page", API, ids=lambda page: page.stem)
def test_what_the_reference_lists_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert all(resolve(address) is not None for address in ENTRY.findall(text))
    assert all(resolve(address) is not None for address in REST.findall(text))
    with pytest.raises(ModuleNotFoundError):
        resolve("foretrain.no_such_thing")


def test_links_to_functions_are_listed_in_the_reference() -> None:
    pages = expanded({page.name: page.read_text("utf-8") for page in API})
    listed = {address for text in pages.values() for address in ENTRY.findall(text)}
    texts = [page.read_text("utf-8") for page in DOCS.rglob("*.md")]
    linked = {canonical(address) for text in texts for address in LINK.findall(text)}
    assert linked
    assert linked - listed == set()


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_names_that_pages_give_work_after_importing_foretrain(page: Path) -> None:
    for name in re.findall(r"\bft((?:\.\w+)+)", page.read_text(encoding="utf-8")):
        found = foretrain
        for part in name.split(".")[1:]:
            assert hasattr(found, part), f"ft{name}"
            found = getattr(found, part)


def test_every_benchmark_is_explained() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    measured = {
        found.stem for found in (ROOT / "bench").glob("*.py") if "\ndef jobs(" in found.read_text("utf-8")
    }
    assert len(measured) >= 9
    assert measured == set(re.findall(r'markdown\(lines, "(\w+)"\)', page))


def test_evidence_of_the_corrections_exists() -> None:
    for file, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", CORRECTIONS):
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
    named = re.findall(r"`foretrain reproduce ([\w-]+)`", CORRECTIONS)
    assert len(named) >= 5
    assert set(named) <= set(experiments.names())
