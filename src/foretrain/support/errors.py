"""One hierarchy of errors. A message is one sentence that says what is wrong and what to do next.

Parameters stand between backticks in a message: "`eta` is -1: give a positive number, or leave `time=` out.". Python
prints them as they are, without the backticks; ``parameters`` lists them; the command line puts its own options in
their place. "`in Python|on the command line`" is for advice that differs between the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

_MARK = re.compile(r"`([^`]*)`")
_ARGUMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(=(?P<value>.*))?", re.DOTALL)


def in_python(message: str) -> str:
    """A message with its parameters as Python spells them."""
    return _MARK.sub(lambda mark: mark[1].partition("|")[0], message)


def on_the_command_line(message: str, options: Mapping[str, str]) -> str:
    """A message with options in place of parameters; ``options`` are by their names in Python, in small letters."""

    def spell(mark: re.Match[str]) -> str:
        python, bar, here = mark[1].partition("|")
        if bar:
            return here
        argument = _ARGUMENT.fullmatch(python)
        option = options.get(argument["name"].lower()) if argument else None
        if argument is None or option is None:
            return python
        value = (argument["value"] or "").strip("'\"")
        return option if value in ("", "True") else f"{option} {value}"

    return _MARK.sub(spell, message)


class _Marked:
    """What errors and warnings share: a sentence in which parameters stand between backticks."""

    args: tuple[object, ...]

    def __str__(self) -> str:
        return in_python(self.message)

    @property
    def message(self) -> str:
        """The sentence with its marks."""
        return str(self.args[0]) if self.args else ""


class ForetrainError(_Marked, Exception):
    """Base of everything foretrain raises on purpose; the command line turns it into exit code 2."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters it speaks of, in the order of the sentence; marks that hold other words name none."""
        arguments = (_ARGUMENT.fullmatch(mark.partition("|")[0]) for mark in _MARK.findall(self.message))
        return tuple(argument["name"] for argument in arguments if argument)

    @property
    def parameter(self) -> str | None:
        """The parameter that is at fault, if one is named."""
        return next(iter(self.parameters), None)


class InputError(ForetrainError, ValueError):
    """A value, shape or name given by the user cannot be used."""


class FileError(ForetrainError, OSError):
    """A user file is missing, malformed or unsafe to load."""


class NotSupportedError(ForetrainError, TypeError):
    """What was asked for is well defined, but not offered; the message says what to do instead."""


# MemoryError comes first because it brings its own __new__, which copies made by a cluster's workers need.
class NotEnoughMemoryError(MemoryError, ForetrainError):
    """The estimate of what a job needs exceeds what is available."""


class EngineError(ForetrainError, RuntimeError):
    """Workers or a cluster cannot be reached, or died at work."""


class ForetrainWarning(_Marked, UserWarning):
    """Base of the warnings; parameters are marked as in errors."""


class AccuracyWarning(ForetrainWarning):
    """A result is returned with an error estimate above the requested tolerance."""


def error_text(error: BaseException) -> str:
    """The kind of an error, and the first line of what it says without its full stop."""
    said = (str(error).splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def unknown_name(kind: str, name: str, known: Iterable[str], parameter: str = "") -> InputError:
    """The error for a name that is not in a catalogue, with the nearest suggestion.

    The parameter that held the name is marked in ``kind``, as in "`loss`", or given where it is called otherwise.
    """
    names = sorted(known)
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names)}."
    place = f" in `{parameter}`" if parameter else ""
    return InputError(f"unknown {kind} {name!r}{place}: {hint}")
