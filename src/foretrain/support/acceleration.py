"""Loops compiled by numba, if it is installed (the extra ``fast``), for jobs that are worth loading it for.

Numba is not imported before such a job comes: it takes half a second of a process, and some seconds the first time on
a machine, until its cache is filled. What a job is computed by follows from its size alone, so that the same call
gives the same digits whatever ran before.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

ENOUGH_PAIRS = 500_000  # evaluations of a pair, below which a job takes about 10 ms by numpy
INSTALL = "pip install 'foretrain[fast]'"


@lru_cache(maxsize=1)
def _missing() -> str:
    """Why nothing can be compiled; empty if it can be."""
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "NUMBA_DISABLE_JIT switches numba off"
    return ""


@lru_cache(maxsize=1)
def _broken() -> str:
    """Why numba cannot be imported, for example beside a numpy that is too new for it; empty if it can be."""
    try:
        importlib.import_module("numba")
    except Exception as error:  # whatever it raises, numpy does the work
        return f"numba cannot be imported ({error})"
    return ""


def forget() -> None:
    """Look again whether numba is there."""
    _missing.cache_clear()
    _broken.cache_clear()


def accelerates(pairs: float) -> bool:
    """Whether a job of so many evaluations of a pair is done by compiled loops; imports numba if so."""
    return pairs >= ENOUGH_PAIRS and not _missing() and not _broken()


def accelerator(pairs: float = float("inf")) -> str:
    """What loops over so many pairs are done by, as an answer says it: numba, or numpy and why."""
    if pairs < ENOUGH_PAIRS:
        return "numpy, for so few pairs"
    trouble = _missing() or _broken()
    if trouble:
        return f"numpy, because {trouble} (several times faster with it: {INSTALL})"
    return f"numba {metadata.version('numba')}"


def part(function: F, **options: Any) -> F:
    """A part of compiled loops; ``inline="always"`` for what takes many arguments.

    Loops and their parts do not count references to the arrays that they are given, which would cost more than many
    of them; so they cannot make arrays.
    """
    from numba import njit

    return njit(nogil=True, error_model="numpy", _nrt=False, **options)(function)  # type: ignore[no-any-return]


def kept(function: F) -> F:
    """A loop, compiled when it is first called, and kept on disk where that can be written to."""
    try:
        return part(function, cache=True)
    except RuntimeError:  # no folder for the cache can be written to
        return part(function)


def call(loop: Callable[..., Any], *arguments: Any) -> Any:
    """Run a loop, also where what was compiled for it cannot be kept."""
    try:
        return loop(*arguments)
    except OSError:  # of the cache, a full disk for example; the compiled code is there by now
        return loop(*arguments)
