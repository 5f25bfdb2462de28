"""A line on a terminal that says how far a recording is."""

from __future__ import annotations

import sys
import time

from foretrain.support.progress import in_main_process, on_terminal

_PATIENCE = 2.0  # seconds before the line is worth showing
_PAUSE = 0.2  # seconds between two states of it
_CLEAR = "\r\x1b[K"


class LiveLine:
    """A line that is written over; it goes away at the end."""

    def __init__(self, wanted: bool) -> None:
        self._shown = False
        self._next = time.monotonic() + _PATIENCE if wanted and on_terminal() and in_main_process() else None

    def is_due(self) -> bool:
        """Whether it is time for a new state."""
        return self._next is not None and time.monotonic() >= self._next

    def show(self, text: str) -> None:
        """Write it, cut to the width of the terminal."""
        from shutil import get_terminal_size

        self._write(_CLEAR + text[: get_terminal_size().columns - 1])
        self._shown, self._next = True, time.monotonic() + _PAUSE

    def clear(self) -> None:
        """Leave the line empty for others."""
        if self._shown:
            self._write(_CLEAR)
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # the terminal was closed
            self._next = None
