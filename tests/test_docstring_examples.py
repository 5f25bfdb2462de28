"""The examples of docstrings print what they say they print."""

from __future__ import annotations

import doctest
from importlib import import_module
from pkgutil import walk_packages

import pytest

ROOMS = ("gaussian", "saddle", "theory", "operators", "empirical", "training", "compare", "doctor", "support")


def modules(room: str) -> list[str]:
    package = import_module(f"foretrain.{room}")
    return [
        package.__name__,
        *(info.name for info in walk_packages(package.__path__, f"{package.__name__}.")),
    ]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("room", ROOMS)
def test_examples_hold(room: str) -> None:
    tried, failed = 0, []
    for name in modules(room):
        found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
        tried += found.attempted
        failed += [name] if found.failed else []
    assert not failed
    assert tried >= {"doctor": 4, "support": 6}.get(room, 10)
