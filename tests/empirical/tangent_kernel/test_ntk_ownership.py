"""Whose a tensor's entries are, told from its gradients with samples weighed equally and unequally."""

from __future__ import annotations

import pytest
import torch
from brute_force import normal
from torch import Tensor

from foretrain.empirical.autograd_graph.tape import SampleAxis, Shared, Silent, owner, weights


def seen(gradient: Tensor, axis: int) -> object:
    """The owner of a tensor whose samples lie along an axis."""
    samples = gradient.shape[axis]
    along = [1] * gradient.ndim
    along[axis] = samples
    return owner(gradient, gradient * weights(samples, gradient).view(along), samples)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("samples", [2, 3, 5, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_gradients_show_their_axis(axis: int, samples: int, dtype: torch.dtype) -> None:
    sizes = [samples if place == axis else size for place, size in enumerate((3, 3, 4))]
    found = seen(normal(*sizes).to(dtype), axis)
    before, after = torch.Size(sizes[:axis]).numel(), torch.Size(sizes[axis + 1 :]).numel()
    assert isinstance(found, SampleAxis)
    assert (found.before, found.after) == (before, after)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_position_with_a_gradient(axis: int) -> None:
    gradient = torch.zeros(3, 3, 4, dtype=torch.float64)
    gradient.select(1 - axis, 2).copy_(normal(3, 4))
    found = seen(gradient, axis)
    assert isinstance(found, SampleAxis)
    assert (found.before, found.after) == ((1, 12) if axis == 0 else (3, 4))


def test_sums_over_samples_are_shared() -> None:
    rows = normal(3, 6)
    assert isinstance(owner(rows.sum(0), (rows * weights(3, rows)[:, None]).sum(0), 3), Shared)


def test_entries_of_samples_in_a_mixed_order_are_shared() -> None:
    rows, order = normal(3, 6), torch.tensor([1, 0, 2])
    assert isinstance(owner(rows[order], (rows * weights(3, rows)[:, None])[order], 3), Shared)


def test_nothing_is_known_without_gradients() -> None:
    assert isinstance(owner(None, None, 3), Silent)
    assert isinstance(owner(torch.zeros(3, 2), torch.zeros(3, 2), 3), Silent)
