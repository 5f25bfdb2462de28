"""Where a key of a TOML file stands: the parser says what it holds, not on which line."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_NAME = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*(?P<name>{_NAME})\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"\s*(?P<name>{_NAME})\s*=")


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line of the entry, or of the nearest one around it that has a line; 1 for the whole file."""
    wanted = [str(part) for part in path]
    best, line = 0, 1
    for number, (place, is_key) in _places(text).items():
        shared = _shared(place, wanted)
        whole = shared == len(place) or (is_key and shared == len(wanted))
        if whole and shared > best:
            best, line = shared, number
    return line


def _places(text: str) -> dict[int, tuple[list[str], bool]]:
    """Line by line, the full names of tables and keys."""
    table: list[str] = []
    found: dict[int, tuple[list[str], bool]] = {}
    for number, line in enumerate(text.split("\n"), 1):  # as the parser counts them
        if header := _TABLE.match(line):
            table = _parts(header["name"])
            found[number] = (table, False)
        elif key := _KEY.match(line):
            found[number] = ([*table, *_parts(key["name"])], True)
    return found


def _parts(name: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(_PART, name)]


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    count = 0
    for one, other in zip(first, second):
        if one != other:
            break
        count += 1
    return count
