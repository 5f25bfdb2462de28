"""What several checks ask of the same case is measured once and kept with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from foretrain.doctor.setup import Case

Found = TypeVar("Found")


def once(measure: Callable[[Case], Found]) -> Callable[[Case], Found]:
    """A measurement that is made once for each case, and forgotten with it."""
    key = f"measured {measure.__module__}.{measure.__qualname__}"

    @wraps(measure)
    def remembered(case: Case) -> Found:
        kept = vars(case)
        if key not in kept:
            kept[key] = measure(case)
        found: Found = kept[key]
        return found

    return remembered
