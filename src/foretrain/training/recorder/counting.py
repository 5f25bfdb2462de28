"""The steps of an optimizer, each counted once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import torch


def on_every_step(
    optimizer: torch.optim.Optimizer, advance: Callable[..., None]
) -> torch.utils.hooks.RemovableHandle:
    """Call ``advance`` after every step, from the outside.

    torch wraps the method ``step`` of every class of which there was an optimizer. One that calls the method of its
    base class may therefore run the hook for that as well, before its own step is over.
    """
    if sum("step" in vars(kind) for kind in type(optimizer).__mro__ if kind is not torch.optim.Optimizer) < 2:
        return optimizer.register_step_post_hook(advance)

    def outermost(*_: object) -> None:
        if not _within_its_step(sys._getframe(1), optimizer):
            advance()

    return optimizer.register_step_post_hook(outermost)


def _within_its_step(wrapper: FrameType, optimizer: torch.optim.Optimizer) -> bool:
    """Whether what called a hook was itself called during a step of the same optimizer."""
    outer = wrapper.f_back
    while outer is not None:
        if outer.f_code is wrapper.f_code and outer.f_locals.get("self") is optimizer:
            return True
        outer = outer.f_back
    return False
