"""Torch networks that several experiments draw, and the plain descent by which they train them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch


def he_normal(
    kind: str, widths: Sequence[int], source: torch.Generator, size: float = 1.0, biases: float | None = None
) -> torch.nn.Sequential:
    """Layers with normal weights of variance 2 / fan-in, times a size, and biases of a deviation; the last is linear.

    ``kind`` is the name of the activation's module in ``torch.nn``.
    """
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for fan_in, width in pairwise(widths):
        linear = nn.Linear(fan_in, width, bias=biases is not None, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.normal_(0.0, size * (2 / fan_in) ** 0.5, generator=source)
            if biases is not None:
                linear.bias.normal_(0.0, biases, generator=source)
        layers += [linear, getattr(nn, kind)()]
    return nn.Sequential(*layers[:-1])


def descend(optimizer: torch.optim.Optimizer, loss: Callable[[], Any], steps: int) -> FloatArray:
    """Losses before every step; each step asks for its loss, a tensor, anew."""
    losses = np.empty(steps)
    for step in range(steps):
        optimizer.zero_grad()
        now = loss()
        losses[step] = now.item()
        now.backward()
        optimizer.step()
    return losses
