"""Nonlinearities after depthwise convolutions and after max pooling in a residual block, beside plain sampling."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import Signal, data
from foretrain.theory.layers.tiles import Found, kernel_of

Array = NDArray[np.float64]
FIRST = {"C_W": 1.5, "C_b": 0.2, "lambda_W": 0.7, "lambda_b": 0.3}
SECOND = {"C_W": 1.8, "C_b": 0.1, "lambda_W": 0.9, "lambda_b": 0.2}
DRAWS = 200_000


def inputs() -> Array:
    return np.random.default_rng(5).normal(size=(2, 4, 3))


def kernels(output: Signal, **options: int) -> Found:
    return kernel_of(output.field, output.inputs(inputs()), draws=2**14, **options)  # type: ignore[arg-type]


def first_layer() -> tuple[Array, Array, Array]:
    """Covariance and Theta of the first layer at all points (a, p), and draws of it (draws, a, p)."""
    x = inputs().reshape(8, 3)
    S = x @ x.T / 3
    K, Theta = 1.5 * S + 0.2, 0.7 * S + 0.3
    root = np.linalg.cholesky(K + 1e-12 * np.eye(8))
    return K, Theta, (np.random.default_rng(0).normal(size=(DRAWS, 8)) @ root.T).reshape(DRAWS, 2, 4)


def assert_within_errors(found: Found, sampled: dict[str, Array]) -> None:
    """Means over plain draws (draws, 2, 2) against the kernel, in units of both standard errors."""
    assert found.errors is not None
    for value, error, draws in zip((found.S, found.Theta), found.errors, sampled.values(), strict=True):
        mean, spread = draws.mean(axis=0), draws.std(axis=0) / np.sqrt(len(draws))
        z = (value - mean) / np.hypot(error, spread)
        assert np.abs(z).max() < 4.5, z


def test_tanh_after_a_depthwise_convolution() -> None:
    output = data(4).linear(**FIRST).activation("relu").convolution(3, padding=1, depthwise=True, **SECOND)
    found = kernels(output.activation("tanh").take(0, 1))
    _, Theta, u = first_layer()
    rng = np.random.default_rng(1)
    weights, bias = np.sqrt(1.8 / 3) * rng.normal(size=(DRAWS, 3)), np.sqrt(0.1) * rng.normal(size=(DRAWS, 1))
    h, slope = np.maximum(u, 0)[:, :, :3], (u > 0)[:, :, :3]
    z = np.einsum("dt,dat->da", weights, h) + bias
    rise = 1 - np.tanh(z) ** 2
    near = Theta.reshape(2, 4, 2, 4)[:, :3, :, :3]
    inner = 0.2 + 0.9 / 3 * np.einsum("dat,dbt->dab", h, h)
    inner += np.einsum("dt,ds,dat,dbs,atbs->dab", weights, weights, slope, slope, near, optimize=True)
    sampled = {
        "S": np.tanh(z)[:, :, None] * np.tanh(z)[:, None],
        "Theta": rise[:, :, None] * rise[:, None] * inner,
    }
    assert_within_errors(found, sampled)


def test_the_end_of_a_residual_block_after_max_pooling() -> None:
    pooled = data(4).linear(**FIRST).activation("relu").max_pool(2)
    y = pooled + pooled.linear(**SECOND)
    found = kernels(y.activation("relu").take(0, 0))
    _, Theta, u = first_layer()
    maximum = np.maximum(u[:, :, :2].max(axis=2), 0)
    which, alive = u[:, :, :2].argmax(axis=2), u[:, :, :2].max(axis=2) > 0
    inner = kernels(pooled.linear(**SECOND).take(0, 0))
    covariance = (inner.S + inner.S.T) / 2
    v = np.random.default_rng(2).normal(size=(DRAWS, 2)) @ np.linalg.cholesky(covariance).T
    h = np.maximum(maximum + v, 0)
    on = maximum + v > 0
    near = Theta.reshape(2, 4, 2, 4)
    of_u = near[0, which[:, 0], 1, which[:, 1]]
    pairs = np.empty((DRAWS, 2, 2))
    for a in range(2):
        pairs[:, a, a] = near[a, which[:, a], a, which[:, a]]
    pairs[:, 0, 1] = pairs[:, 1, 0] = of_u
    both = on[:, :, None] & on[:, None]
    through = both & alive[:, :, None] & alive[:, None]
    sampled = {"S": h[:, :, None] * h[:, None], "Theta": through * pairs + both * inner.Theta}
    assert_within_errors(found, sampled)


def test_a_pointwise_layer_after_a_depthwise_one_needs_no_draws() -> None:
    output = data(4).linear(**FIRST).activation("relu").convolution(3, padding=1, depthwise=True, **SECOND)
    plain = data(4).linear(**FIRST).activation("relu").convolution(3, padding=1, **SECOND)
    one, two = kernels(output.linear(**FIRST).mean()), kernels(plain.linear(**FIRST).mean())
    assert one.errors is None
    np.testing.assert_allclose(one.Theta, two.Theta, rtol=1e-13)


def test_gains_between_a_depthwise_convolution_and_a_nonlinearity_are_refused() -> None:
    output = data(4).linear(**FIRST).activation("relu").convolution(3, depthwise=True, **SECOND)
    with pytest.raises(NotSupportedError, match="tanh follows gains, which is not Gaussian"):
        output.batch_norm(gain=0.5).activation("tanh")
