"""The loop around a recorder: its steps, the batch that observables look at, and a live line on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.support.progress import in_main_process, on_terminal


def on_every_step(
    optimizer: torch.optim.Optimizer, method: Callable[[], Callable[[], None] | None]
) -> torch.utils.hooks.RemovableHandle:
    """Call what a weak reference holds after every step, from the outside; the optimizer keeps no recorder alive.

    torch wraps the method ``step`` of every class of which there was an optimizer. One that calls the method of its
    base class may therefore run the hook for that as well, before its own step is over.
    """

    def advance(*_: object) -> None:
        if (own := method()) is not None:
            own()

    if sum("step" in vars(kind) for kind in type(optimizer).__mro__ if kind is not torch.optim.Optimizer) < 2:
        return optimizer.register_step_post_hook(advance)

    def outermost(*_: object) -> None:
        wrapper = sys._getframe(1)
        outer = wrapper.f_back
        # Was what called the hook itself called during a step of the same optimizer?
        while outer is not None:
            if outer.f_code is wrapper.f_code and outer.f_locals.get("self") is optimizer:
                return
            outer = outer.f_back
        advance()

    return optimizer.register_step_post_hook(outermost)


def batch_source(batch: Any) -> Callable[[], Any]:
    """What gives the batch: always the same, copied now, the first one of a loader; or a function's newest."""
    if isinstance(batch, torch.utils.data.DataLoader):
        batch = next(iter(batch))
    elif callable(batch) and not isinstance(batch, Tensor | nn.Module):
        source: Callable[[], Any] = batch
        return source
    kept = _copied(batch)
    return lambda: kept


def _copied(value: Any) -> Any:
    """Training loops may fill the same tensors again and again."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


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
