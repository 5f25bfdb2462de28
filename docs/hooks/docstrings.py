"""An extension of griffe: docstrings, which are plain text, become Markdown when they are read."""

from __future__ import annotations

from typing import Any

import griffe
from plain_text import as_markdown  # found because build_site.py, in this folder, is loaded before


class PlainText(griffe.Extension):
    """Makes Markdown of every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
