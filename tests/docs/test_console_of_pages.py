"""What pages tell the reader to type besides `foretrain`, and the files of sweeps that they show."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from bench import __main__ as bench

import foretrain as ft
from foretrain.experiments.sweep import EXAMPLE, sweep
from foretrain.experiments.sweep.spec import read_spec

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SWEEPS = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def typed(command: str) -> list[list[str]]:
    """The arguments of every line of a shell that begins with a command."""
    lines = [
        line.removeprefix("$ ").partition(" #")[0]
        for page in PAGES
        for block in blocks("console", page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if line.startswith(f"$ {command} ")
    ]
    assert lines
    return [shlex.split(line)[len(command.split()) :] for line in lines]


def file_of(block: str, folder: Path) -> Path:
    """The block as the file that its first line names."""
    path = folder / block.splitlines()[0].removeprefix("# ")
    path.write_text(block, encoding="utf-8")
    return path


def test_every_fence_names_its_language() -> None:
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert "" not in fences[::2], page


def test_targets_of_make_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {word for words in typed("make") for word in words} <= set(targets)


def test_options_of_the_benchmarks_can_be_read() -> None:
    for arguments in typed("python -m bench"):
        assert bench._parser().parse_args(arguments)
    with pytest.raises(SystemExit):
        bench._parser().parse_args(["--no-such-option"])


def test_extras_to_install_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for _, requirement in typed("pip"):
        found = re.fullmatch(r"foretrain\[(\w+)\]", requirement)
        assert found
        assert found[1] in project["optional-dependencies"]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The file with a function of one's own, which the page shows."""
    (found,) = [block for block in blocks("python", SWEEPS) if block.startswith("# mine.py")]
    return file_of(found.partition("\n\n\nprint(")[0] + "\n", tmp_path)


@pytest.mark.usefixtures("mine")
def test_files_of_sweeps_can_be_read(tmp_path: Path) -> None:
    found = blocks("toml", SWEEPS)
    assert len(found) == 3
    for number, block in enumerate(found):
        path = tmp_path / f"{number}.toml"
        path.write_text(block, encoding="utf-8")
        assert read_spec(path).count > 1


def test_the_example_is_the_file_that_comes_with_the_package(tmp_path: Path) -> None:
    shown = file_of(blocks("toml", SWEEPS)[0], tmp_path)
    assert read_spec(shown).identity() == read_spec(EXAMPLE).identity()


@pytest.mark.usefixtures("mine")
def test_the_function_of_ones_own_can_be_swept(tmp_path: Path) -> None:
    (block,) = [block for block in blocks("toml", SWEEPS) if "mine.py:gap" in block]
    found = sweep(file_of(block, tmp_path), tmp_path / "gap.sweep", workers=1)
    assert set(found.data["status"].values.ravel()) == {"done"}
    assert found.data["spectrum"].sizes == {"width": 3, "depth": 2, "repeat": 2, "mode": 8}
    assert (found.data["gap"] >= 1).all()
    assert ft.load(tmp_path / "gap.sweep").equals(found.data)
