"""A field and maps of it that meet again: one linear map, beside plain algebra and draws of the whole field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from test_drawn import H0, H1, HO, as_matrix, assert_within_errors, by_draws, field, kernel

from foretrain.theory.layers import Signal, concatenated, data, joined
from foretrain.theory.layers.positions import Weights
from foretrain.theory.layers.recombined import Recombined, lineage

Array = NDArray[np.float64]


def first(size: int = 6) -> Signal:
    return data(size).convolution(3, padding=1, **H0)


def mean_over_windows(size: int) -> Array:
    """Of three positions, the padding counted."""
    return (np.eye(size) + np.eye(size, k=1) + np.eye(size, k=-1)) / 3


def pooled(h: Signal) -> Signal:
    return h.average_pool(3, stride=1, padding=1)


@pytest.mark.parametrize("name", [None, "relu"])
@pytest.mark.parametrize("positions", ["all", "equal"])
def test_a_field_without_its_mean_over_windows(name: str | None, positions: str) -> None:
    h, x = first() if name is None else first().activation(name), field(3, 6, 2)
    output, M = h - pooled(h), np.kron(np.eye(3), np.eye(6) - mean_over_windows(6))
    assert isinstance(output.field, Recombined)
    assert output.field.gaussian is (name is None)
    whole, found = kernel(h, x), kernel(output, x, positions=positions)
    assert found.errors is None
    for values, inside in ((found.S, whole.S), (found.Theta, whole.Theta)):
        expected = M @ as_matrix(inside, (6,)) @ M.T
        if positions == "equal":
            expected = np.einsum("apbp->pab", expected.reshape(3, 6, 3, 6))
            np.testing.assert_allclose(values, expected, atol=1e-12)
        else:
            np.testing.assert_allclose(as_matrix(values, (6,)), expected, atol=1e-12)


def test_maps_of_two_axes_are_one_map() -> None:
    h, x = data((3, 4)).linear(**H0), field(2, 3, 4, 2)
    output = h - h.average_pool(3, stride=1, padding=1)
    M = np.eye(12) - np.kron(mean_over_windows(3), mean_over_windows(4))
    expected = np.kron(np.eye(2), M) @ as_matrix(kernel(h, x).S, (3, 4)) @ np.kron(np.eye(2), M).T
    np.testing.assert_allclose(as_matrix(kernel(output, x).S, (3, 4)), expected, atol=1e-12)


def test_a_nonlinearity_may_follow_a_gaussian_sum() -> None:
    """x + (x moved by one position) is Gaussian: relu has its closed form."""
    h, x = first(), field(2, 6, 2)
    moved = h.over_positions([Weights.of(np.roll(np.eye(6), 1, axis=0))], name="roll")
    output = (h + moved).activation("relu")
    exact = kernel(output, x)
    assert exact.errors is None
    found = kernel(by_draws(output), x, draws=2**14, repetitions=32)
    assert found.errors is not None
    assert_within_errors(found.S - exact.S, found.errors[0])
    assert_within_errors(found.Theta - exact.Theta, found.errors[1])


CLASS = Weights.of([[0.9, 0.0, 0.1, 0.0]])


def first_kind(signal: Signal) -> Signal:
    """The first of two kinds of channels."""
    return Signal((replace(signal.blocks[0], share=1.0),), signal.positions)


MIXERS: dict[str, Callable[[Signal], Signal]] = {
    "with one norm": lambda h: h + (pooled(y := h.layer_norm(epsilon=0.1)) - y),
    "norms of all positions": lambda h: h + (pooled(y := h.layer_norm(over_positions=True)) - y),
    "gains that train": lambda h: h + 0.7 * (pooled(y := h.layer_norm(gain=0.6, shift=0.4)) - y),
    "scales of layers": lambda h: h + (pooled(y := h.layer_norm(gain=0.6)) - y).trained(0.7, gain=0.5),
    "gains of positions": lambda h: (
        h + pooled(h.layer_norm(over_positions=True, gain=0.6, shift=0.4, own_position=True))
    ),
    "RMS norm": lambda h: h - 0.5 * pooled(h.rms_norm(epsilon=0.1, gain=0.3)),
    "twice": lambda h: (
        (z := h + (pooled(y := h.layer_norm()) - y)) + (pooled(y := z.layer_norm(gain=0.3)) - y)
    ),
    "beside others": lambda h: (
        (z := h + h.activation("relu").linear(**H1)) + (pooled(y := z.layer_norm()) - y)
    ),
    "a constant": lambda h: h + pooled(h + 0.3),
    "a norm of two kinds of channels": lambda h: first_kind(
        (z := concatenated([h, h.linear(**H1).activation("relu")])) + pooled(z.layer_norm())
    ),
    "a class token": lambda h: joined(
        [h.over_positions([CLASS]), pooled(h.trained(gain=0.4)).take(0, [2, 1])]
    ),
}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("name", MIXERS)
def test_blocks_that_mix_positions_agree_with_draws(name: str, rectified: bool) -> None:
    """The same sums drawn channel by channel; norms of rectified fields subtract means."""
    h, x = first(4).activation("relu") if rectified else first(4), field(2, 4, 2)
    output = MIXERS[name](h)
    exact = kernel(output, x)
    found = kernel(by_draws(output), x, draws=2**14, repetitions=32)
    assert found.errors is not None
    both = [
        np.hypot(one, 0 if exact.errors is None else exact.errors[k]) for k, one in enumerate(found.errors)
    ]
    assert (exact.errors is None) is (name != "a constant")
    assert_within_errors(found.S - exact.S, both[0])
    assert_within_errors(found.Theta - exact.Theta, both[1])
    normed = kernel(output.layer_norm(epsilon=1.0).linear(**HO), x)
    drawn = kernel(by_draws(output).layer_norm(epsilon=1.0).linear(**HO), x, draws=2**13)
    np.testing.assert_allclose(drawn.S, normed.S, atol=0.02 * np.abs(normed.S).max())


def test_the_line_of_maps_ends_where_something_new_begins() -> None:
    h = first()
    y = pooled(h.layer_norm(gain=0.6)).trained(0.7, gain=0.5)
    assert lineage(y.field)[-1] is h.field
    assert lineage(h.activation("relu").linear().field)[-1] is not h.field
