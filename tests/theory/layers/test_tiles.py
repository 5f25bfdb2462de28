"""Kernels do not depend on how inputs are cut into tiles, and are those of the recursion for MLPs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import foretrain as ft
from foretrain.theory.layers import Signal, data, kernels, tiles

pytestmark = pytest.mark.usefixtures("loops")

LAYER = {"C_W": 1.6, "C_b": 0.1, "lambda_W": 0.7, "lambda_b": 0.3}


def body(activation: str, positions: tuple[int, ...]) -> Signal:
    first = data(positions).convolution(3, padding=1, **LAYER).activation(activation)
    return first.convolution(3, padding=1, **LAYER).activation(activation)


HEADS: dict[str, Callable[[Signal], Signal]] = {
    "mean": lambda h: h.mean().linear(**LAYER),
    "flatten": lambda h: h.flatten(**LAYER),
    "pooled, then flattened": lambda h: h.average_pool(2).flatten(**LAYER),
    "positions": lambda h: h.average_pool(2).linear(**LAYER),
    "norm over positions": lambda h: h.layer_norm(over_positions=True).mean().linear(**LAYER),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_tiles_of_any_size_give_one_kernel(
    activation: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(4, 4, 4, 2))
    output = HEADS[head](body(activation, (4, 4)))
    whole = kernels(output, x)
    assert np.isfinite(whole).all()
    for entries in (1, 2**10):
        monkeypatch.setattr(tiles, "TILE_ENTRIES", entries)
        np.testing.assert_allclose(kernels(output, x), whole, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(kernels(output, x[:3], x[2:]), whole[..., :3, 2:], rtol=1e-9, atol=1e-12)


def test_long_sequences_on_several_threads_come_to_an_end() -> None:
    """The series of tanh is summed on all cores itself; inside the threads of tiles it must not wait for them."""
    x = np.random.default_rng(0).normal(size=(12, 64, 2))
    output = body("tanh", (64,)).mean().linear(**LAYER)
    found = kernels(output, x)
    np.testing.assert_allclose(found[:, :3, 9:], kernels(output, x[:3], x[9:]), rtol=1e-9)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "swish"])
def test_without_positions_it_is_the_recursion_of_an_mlp(activation: str) -> None:
    x = np.random.default_rng(1).normal(size=(40, 3))
    mlp = ft.MLP(activation, depth=3, width=8, n_in=3, C_b=0.1, C_W=1.6, lambda_b=0.3, lambda_W=0.7)
    flow = ft.flow(mlp, x, ["K", "Theta"])
    output = data().linear(**LAYER)
    for _ in range(2):
        output = output.activation(activation).linear(**LAYER)
    found = kernels(output, x)
    for values, name in zip(found, ("K", "Theta"), strict=True):
        np.testing.assert_allclose(values, flow[name].sel(layer=3), rtol=1e-8)
