"""Errors speak of Python's arguments; on the command line they are options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

# Not inside of longer words, nor in a path.
_BEFORE, _AFTER = r"(?<![\w/-])", r"(?![\w/'\"])"
_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
_SAID_OF_VALUES = r"(?:is|are) (?=for |[-\d'\"\[(]|nan\b|inf\b)|contains |lists |must be "
# Options whose names are words of every day: in a sentence they are not meant.
_EVERYDAY = (
    "data",
    "inputs",
    "layers",
    "modes",
    "outputs",
    "parameters",
    "points",
    "samples",
    "states",
    "steps",
    "test",
)


def in_options(said: str, options: Mapping[str, str], phrases: Sequence[tuple[str, str]] = ()) -> str:
    """A message in which ``eta=``, ``learner='bayes'`` or ``leave eta out`` name the options of the command.

    ``options`` are by their names in Python, whatever the case; ``phrases`` come first: what is said in another way.
    """
    for python, here in phrases:
        said = re.sub(f"{_BEFORE}{re.escape(python)}{_AFTER}", here, said)
    names = _any(options)

    def option(found: re.Match[str]) -> str:
        return options[found["name"].lower()]

    def with_value(found: re.Match[str]) -> str:
        return f"{option(found)} {found['value']}"

    def each(found: re.Match[str]) -> str:
        return re.sub(rf"\b(?P<name>{names})\b", option, found[0], flags=re.IGNORECASE)

    name = rf"{_BEFORE}(?P<name>{names})"
    bare = _any([one for one in options if one not in _EVERYDAY])
    listed = rf"(?:{bare})(?:(?:, | and | or )(?:{bare}))*\b"
    rules = (
        (rf"{name}=(?P<quote>['\"])(?P<value>[\w.]+)(?P=quote)", with_value),
        (rf"{name}=(?P<value>{_NUMBER}){_AFTER}", with_value),
        (rf"{name}=True\b", option),
        (rf"{name}={_AFTER}", option),
        (rf"^(?P<name>{names})(?= (?:{_SAID_OF_VALUES}))", option),
        (rf"\bleave {listed} out\b", each),
        (rf"\bleave out {listed}", each),
        (rf"\bout, or {listed}(?=[.,;:])", each),
        (rf"\b(?:smaller|larger) {listed}", each),
    )
    for pattern, replaced in rules:
        said = re.sub(pattern, replaced, said, flags=re.IGNORECASE)
    return said


def _any(names: Iterable[str]) -> str:
    """A pattern of all of them; one that begins another comes after it. Of none: what never occurs."""
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True)) or r"(?!)"
