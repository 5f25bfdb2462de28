"""Warnings that point at the user's own line, however many calls inside the package lie between."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from pathlib import Path

from foretrain.support.errors import AccuracyWarning

# Cached properties and contexts of the package call through the standard library.
_INSIDE = (str(Path(__file__).parents[1]), functools.__file__, contextlib.__file__)


def warn_user(text: str, category: type[Warning] = AccuracyWarning) -> None:
    """Warn at the nearest line on the stack that is not the package's own."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
