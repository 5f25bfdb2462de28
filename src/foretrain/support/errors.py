"""One hierarchy of errors. A message is one sentence that says what is wrong and what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ForetrainError(Exception):
    """Base of everything foretrain raises on purpose; the command line turns it into exit code 2."""


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


class AccuracyWarning(UserWarning):
    """A result is returned with an error estimate above the requested tolerance."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a catalogue, with the nearest suggestion."""
    names = sorted(known)
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names)}."
    return InputError(f"unknown {kind} {name!r}: {hint}")
