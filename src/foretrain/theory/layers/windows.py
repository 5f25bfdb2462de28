"""Which input positions an output position reads, along one axis: convolutions, pooling, resizing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.layers.positions import Array, Indices, Taps, Weights

PADDINGS = ("zeros", "circular", "reflect", "replicate")


def convolution(
    size: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
    mode: str = "zeros",
) -> Taps:
    """Tap t of output p reads stride p + dilation t - padding."""
    if mode not in PADDINGS:
        raise unknown_name("padding `mode`", mode, PADDINGS)
    outputs = (size + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1
    if outputs < 1:
        raise InputError(
            f"a window of {dilation * (kernel - 1) + 1} does not fit into {size} padded positions."
        )
    source = stride * np.arange(outputs) + dilation * np.arange(kernel)[:, None] - padding[0]
    return Taps(_padded(source, size, mode), size)


def _padded(source: Indices, size: int, mode: str) -> Indices:
    """Positions outside as the padding says; -1 for zeros."""
    if mode == "circular":
        return np.asarray(source % size)
    if mode == "replicate":
        return np.clip(source, 0, size - 1)
    if mode == "reflect":
        inside = np.abs(source)
        return np.where(inside >= size, 2 * (size - 1) - inside, inside)
    return np.where((source >= 0) & (source < size), source, -1)


def transposed_convolution(
    size: int, kernel: int, *, stride: int = 1, padding: int = 0, dilation: int = 1, output_padding: int = 0
) -> Taps:
    """Tap t of output p reads (p + padding - dilation t) / stride where that is a position."""
    outputs = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1
    reached = np.arange(outputs) + padding - dilation * np.arange(kernel)[:, None]
    source, rest = reached // stride, reached % stride
    return Taps(np.where((rest == 0) & (source >= 0) & (source < size), source, -1), size)


def pooling_windows(
    size: int, kernel: int, *, stride: int, padding: int = 0, ceil_mode: bool = False, dilation: int = 1
) -> Indices:
    """First position of each window, before padding; a last one may overhang with ``ceil_mode``."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    outputs = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (outputs - 1) * stride >= size + padding:
        outputs -= 1
    if outputs < 1:
        raise InputError(f"a window of {kernel} does not fit into {size} padded positions.")
    return stride * np.arange(outputs) - padding


def maxima(
    size: int,
    kernel: int,
    stride: int | None = None,
    padding: int = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
) -> Indices:
    """Positions in the window of each output of a max pooling, (kernel, outputs); -1 outside of the input."""
    step = kernel if stride is None else stride
    starts = pooling_windows(
        size, kernel, stride=step, padding=padding, ceil_mode=ceil_mode, dilation=dilation
    )
    members = starts + dilation * np.arange(kernel)[:, None]
    inside = (members >= 0) & (members < size)
    if not inside.any(axis=0).all():
        raise InputError(
            f"max pooling with kernel {kernel}, dilation {dilation} and padding {padding} has a window that holds "
            f"none of the {size} positions: use less padding."
        )
    return np.where(inside, members, -1)


def adaptive_maxima(size: int, outputs: int) -> Indices:
    """Windows from floor(i size / outputs) to ceil((i + 1) size / outputs), (longest, outputs); -1 after the end."""
    number = np.arange(outputs)
    first, last = number * size // outputs, -(-(number + 1) * size // outputs)
    members = first + np.arange((last - first).max())[:, None]
    return np.where(members < last, members, -1)


def together(axes: Sequence[Indices], sizes: Sequence[int]) -> Indices:
    """Windows of several axes as one: flat positions (members, outputs), -1 where one of the axes holds none."""
    members = np.zeros((1, 1), dtype=np.intp)
    for one, size in zip(axes, sizes, strict=True):
        both = members[:, None, :, None] * size + one[None, :, None, :]
        none = (members < 0)[:, None, :, None] | (one < 0)[None, :, None, :]
        members = np.where(none, -1, both).reshape(len(members) * len(one), -1)
    return members


def average(
    size: int,
    kernel: int,
    *,
    stride: int,
    padding: int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Weights:
    """Means over windows; ``divisor`` replaces the number of cells."""
    starts = pooling_windows(size, kernel, stride=stride, padding=padding, ceil_mode=ceil_mode)
    matrix = np.zeros((len(starts), size))
    for row, start in zip(matrix, starts):
        stop = min(start + kernel, size + padding)
        first, last = max(start, 0), min(stop, size)
        count = divisor or (stop - start if count_include_pad else last - first)
        row[first:last] = 1 / count
    return Weights.of(matrix)


def adaptive_average(size: int, outputs: int) -> Weights:
    """Means over windows from floor(i size / outputs) to ceil((i + 1) size / outputs)."""
    matrix = np.zeros((outputs, size))
    for i, row in enumerate(matrix):
        first, last = i * size // outputs, -(-(i + 1) * size // outputs)
        row[first:last] = 1 / (last - first)
    return Weights.of(matrix)


def flattened(size: int) -> Taps:
    """A head that reads every position by a weight of its own: one output, as many taps as positions."""
    return Taps(np.arange(size)[:, None], size)


def total(size: int, factor: float = 1.0) -> Weights:
    """The sum over all positions, times a factor."""
    return Weights.of(np.full((1, size), factor))


def chosen(size: int, positions: Array | Indices) -> Weights:
    """Some positions, in the order given; -1 for one that is zero."""
    matrix = np.zeros((len(positions), size))
    for row, position in zip(matrix, np.asarray(positions)):
        if position >= 0:
            row[position] = 1.0
    return Weights.of(matrix)
