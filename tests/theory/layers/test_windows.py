"""Which positions a max pooling reads: as torch has it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from foretrain.support.errors import InputError
from foretrain.theory.layers.windows import adaptive_maxima, maxima, together


def members_by_torch(size: int, *options: Any) -> set[tuple[int, int]] | None:
    """Which (position, output) belong together: what a maximum of one-hot inputs is."""
    try:
        pooled = torch.nn.functional.max_pool1d(torch.eye(size)[:, None], *options)[:, 0]
        empty = torch.nn.functional.max_pool1d(torch.zeros(1, 1, size), *options)
    except RuntimeError:
        return None
    if torch.isinf(empty).any():
        return None
    return {(int(i), int(p)) for i, p in torch.nonzero(pooled > 0)}


def test_windows_are_those_of_torch() -> None:
    checked = 0
    options = itertools.product((1, 2, 3, 4), (1, 2, 3), (0, 1, 2), (1, 2), (False, True))
    for size, (kernel_size, stride, padding, dilation, ceil) in itertools.product((4, 5, 8), options):
        expected = members_by_torch(size, kernel_size, stride, padding, dilation, ceil)
        if expected is not None:
            windows = maxima(size, kernel_size, stride, padding, dilation, ceil)
            found = {(int(i), p) for p, column in enumerate(windows.T) for i in column if i >= 0}
            assert found == expected, (size, kernel_size, stride, padding, dilation, ceil)
            checked += 1
    assert checked > 200


def test_windows_of_two_axes_are_those_of_torch() -> None:
    flat = together((maxima(5, 3, 2, 1), maxima(4, 2, 1, 0, 2)), (5, 4))
    image = torch.arange(20.0).reshape(1, 1, 5, 4)
    for values in (image, -image):
        expected = torch.nn.functional.max_pool2d(values, (3, 2), (2, 1), (1, 0), (1, 2))
        inside = np.where(flat < 0, -np.inf, values.numpy().ravel()[flat])
        np.testing.assert_array_equal(inside.max(axis=0), expected.numpy().ravel())


def test_no_axes_are_one_window_of_one_position() -> None:
    np.testing.assert_array_equal(together((), ()), [[0]])


@pytest.mark.parametrize(("size", "outputs"), [(7, 3), (8, 4), (5, 1), (5, 5)])
def test_adaptive_windows_are_those_of_torch(size: int, outputs: int) -> None:
    expected = torch.nn.functional.adaptive_max_pool1d(torch.eye(size)[:, None], outputs)[:, 0].numpy() > 0
    found = np.zeros_like(expected)
    for p, column in enumerate(adaptive_maxima(size, outputs).T):
        found[column[column >= 0], p] = True
    np.testing.assert_array_equal(found, expected)


def test_a_window_without_positions_is_refused() -> None:
    with pytest.raises(InputError, match="holds none of the 4 positions"):
        maxima(4, 2, 1, 1, 5)
