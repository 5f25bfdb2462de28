"""Warnings that point at the user's own line, however many calls inside the package lie between."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Literal

from foretrain.support.errors import AccuracyWarning

# Cached properties and contexts of the package call through the standard library.
_INSIDE = (str(Path(__file__).parents[1]), functools.__file__, contextlib.__file__)
_filters = RLock()


@contextmanager
def filtered_warnings(action: Literal["ignore", "error"], message: str) -> Iterator[None]:
    """Ignore a warning, or make it an error, while a block runs.

    Filters belong to the whole process, and leaving the block restores those it began with: threads take turns, or
    one of them would restore the filters of another for good.
    """
    with _filters, warnings.catch_warnings():
        warnings.filterwarnings(action, message=message)
        yield


def warn_user(text: str, category: type[Warning] = AccuracyWarning) -> None:
    """Warn at the nearest line on the stack that is not the package's own."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
