"""Copied into a peer's environment and imported at its start: empty modules for imports that the peer
makes but that nothing measured here uses, so that their packages need not be installed.

The names stand one a line in the .txt file beside this one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


class _AnyAttribute(type):
    """Annotations such as `tf.types.experimental.X` are evaluated at import: every attribute is a class."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class StandIn(metaclass=_AnyAttribute):
    """What every attribute of an empty module is."""


class EmptyModule(ModuleType):
    """A module without contents."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


for _name in Path(__file__).with_suffix(".txt").read_text().split():
    sys.modules[_name] = EmptyModule(_name)
