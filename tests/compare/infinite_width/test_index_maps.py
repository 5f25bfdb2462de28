"""Which positions convolutions of three axes and transposed ones of two read: exactly those of torch, tap by tap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.theory.layers import windows
from foretrain.theory.layers.positions import Taps

TORCH_MODES = {"zeros": "constant", "circular": "circular", "reflect": "reflect", "replicate": "replicate"}


def numbered(sizes: Sequence[int]) -> Tensor:
    """An image of one channel whose positions hold 1, 2, 3, ..."""
    return torch.arange(1.0, prod(sizes) + 1, dtype=torch.float64).reshape(1, 1, *sizes)


def one_hot(kernel: Sequence[int]) -> Tensor:
    """A weight for each tap, which is 1 there, (taps, 1, kernel...)."""
    return torch.eye(prod(kernel), dtype=torch.float64).reshape(prod(kernel), 1, *kernel)


def read_by(taps: Sequence[Taps]) -> NDArray[np.float64]:
    """What each tap of each output finds in the numbered image, (taps, outputs...); 0 outside."""
    image = np.pad(numbered([one.size for one in taps])[0, 0].numpy(), (1, 0))  # position -1 is 0
    axes = len(taps)
    shaped = [
        np.expand_dims(one.source + 1, [k for k in range(2 * axes) if k not in (axis, axes + axis)])
        for axis, one in enumerate(taps)
    ]
    found = image[tuple(np.broadcast_arrays(*shaped))]
    inside = np.logical_and.reduce(np.broadcast_arrays(*(one > 0 for one in shaped)))
    return np.where(inside, found, 0.0).reshape(-1, *(one.source.shape[1] for one in taps))


def test_convolutions_of_three_axes_read_what_torch_reads() -> None:
    sizes, count = (4, 5, 3), 0
    for kernel, stride, dilation, padding, mode in itertools.product(
        [(1, 2, 3), (3, 3, 2), (4, 2, 3)],
        [(1, 1, 1), (2, 1, 3), (3, 2, 2)],
        [(1, 1, 1), (1, 2, 1), (2, 1, 2)],
        [((0, 0),) * 3, ((1, 1), (0, 0), (2, 2)), ((0, 1), (2, 1), (1, 0)), ((2, 2), (2, 2), (2, 2))],
        TORCH_MODES,
    ):
        settings = list(zip(sizes, kernel, stride, dilation, padding, strict=True))
        if any(n + sum(p) < d * (k - 1) + 1 for n, k, _, d, p in settings):
            with pytest.raises(InputError, match="does not fit"):
                [windows.convolution(n, k, stride=s, dilation=d, padding=p) for n, k, s, d, p in settings]
            continue
        taps = [
            windows.convolution(n, k, stride=s, dilation=d, padding=p, mode=mode)
            for n, k, s, d, p in settings
        ]
        sides = [side for pair in padding[::-1] for side in pair]
        padded = functional.pad(numbered(sizes), sides, mode=TORCH_MODES[mode])
        found = functional.conv3d(padded, one_hot(kernel), stride=stride, dilation=dilation)
        np.testing.assert_array_equal(read_by(taps), found[0].numpy())
        count += 1
    assert count > 250


def test_transposed_convolutions_of_two_axes_read_what_torch_reads() -> None:
    sizes, count = (4, 3), 0
    for kernel, stride, padding, extra, dilation in itertools.product(
        [(1, 2), (3, 3), (4, 2), (2, 5)],
        [(1, 1), (2, 1), (3, 2)],
        [(0, 0), (1, 0), (2, 1)],
        [(0, 0), (1, 0), (1, 2)],
        [(1, 1), (2, 1), (1, 3)],
    ):
        settings = list(zip(sizes, kernel, stride, padding, extra, dilation, strict=True))
        outputs = [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, o, d in settings]
        if min(outputs) < 1 or any(o >= max(s, d) for _, _, s, _, o, d in settings):
            continue  # torch refuses these
        taps = [
            windows.transposed_convolution(n, k, stride=s, padding=p, output_padding=o, dilation=d)
            for n, k, s, p, o, d in settings
        ]
        weight = one_hot(kernel).movedim(0, 1)  # (input channels, taps as output channels, kernel...)
        found = functional.conv_transpose2d(
            numbered(sizes), weight, stride=stride, padding=padding, output_padding=extra, dilation=dilation
        )
        np.testing.assert_array_equal(read_by(taps), found[0].numpy())
        count += 1
    assert count > 120


READ: dict[str, tuple[type[nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "conv3d": (nn.Conv3d, (4, 5, 3), {"kernel_size": (2, 3, 2), "stride": (1, 2, 1), "padding": (1, 2, 0)}),
    "conv3d, same, reflect": (
        nn.Conv3d,
        (4, 5, 3),
        {"kernel_size": (2, 3, 2), "dilation": (1, 2, 1), "padding": "same", "padding_mode": "reflect"},
    ),
    "transposed": (
        nn.ConvTranspose2d,
        (4, 3),
        {
            "kernel_size": (3, 2),
            "stride": (3, 2),
            "padding": (1, 0),
            "output_padding": (2, 1),
            "dilation": (1, 3),
        },
    ),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", READ)
def test_options_of_torch_reach_the_layer_that_is_read(name: str) -> None:
    kind, sizes, options = READ[name]
    pointwise = nn.Conv3d if len(sizes) == 3 else nn.Conv2d
    net = nn.Sequential(pointwise(2, 8, 1), kind(8, 8, **options)).double()
    x = torch.randn(2, 2, *sizes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = ft.infinite_width(net, x, init={"*": (1.3, 0.2)}).nngp.values

    # The same layer with a single channel, each of its taps alone, applied to every position alone.
    taps = one_hot(options["kernel_size"])
    single = kind(1, len(taps), bias=False, **options).double()
    single.weight.data = taps if kind is nn.Conv3d else taps.movedim(0, 1)
    places = torch.eye(prod(sizes), dtype=torch.float64).reshape(prod(sizes), 1, *sizes)
    maps = single(places).detach().flatten(2).numpy()  # (inputs, taps, outputs)
    flat = x.flatten(2).numpy()
    before = 1.3 * np.einsum("acp,bcq->apbq", flat, flat) / 2 + 0.2
    after = 1.3 * np.einsum("pti,apbq,qtj->aibj", maps, before, maps, optimize=True) / len(taps) + 0.2
    np.testing.assert_allclose(found.reshape(after.shape), after, rtol=1e-11, atol=1e-14)
