"""The page on the command line has every command, and commands on all pages can be read."""

import re
import shlex
from pathlib import Path

import pytest
from commands import PLACE, help_of, with_help

from foretrain.cli import frame, main

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "commands.md").read_text(encoding="utf-8")
TYPED = {
    (page.name, line.partition(" #")[0].strip(" $"))
    for page in DOCS.rglob("*.md")
    for block in re.findall(
        r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for line in block.splitlines()
    if line.startswith("$ foretrain ")
}


def test_every_command_has_its_section_and_its_row() -> None:
    assert sorted(PLACE.findall(PAGE)) == sorted(main._COMMANDS)
    for name in main._COMMANDS:
        assert f"\n## foretrain {name}\n" in PAGE
        assert f"| [`{name}`](#foretrain-{name}) |" in PAGE


def test_help_stands_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = with_help("before\n\n{{ foretrain critical --help }}\n\nafter")
    assert shown.startswith("before\n\n```text\nUsage: foretrain critical")
    assert shown.endswith("```\n\nafter")
    assert help_of("critical") in shown
    assert max(map(len, shown.splitlines())) > 60
    with pytest.raises(ValueError, match="exit code 2"):
        help_of("nonsense")


@pytest.mark.parametrize(("page", "line"), sorted(TYPED))
def test_commands_on_pages_can_be_read(page: str, line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    if arguments != ["--help"]:
        frame.parser(name, main.command(name)).make_context(name, arguments)
