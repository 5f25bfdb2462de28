"""Max pooling in the limit of many channels: closed form, brute force, torch's windows, random torch networks."""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from foretrain.activations import Activation, activation
from foretrain.support.errors import InputError
from foretrain.theory.layers import Signal, data, kernels
from foretrain.theory.layers.linear_maps import Data
from foretrain.theory.layers.signal import _signal
from foretrain.theory.layers.tiles import Found, in_order, kernel_of
from foretrain.theory.layers.windowed import (
    MaxOfPairs,
    MaxPooled,
    _roots,
    adaptive_max_windows,
    is_increasing,
    max_pooled,
    max_windows,
)

Array = NDArray[np.float64]
NAMES = ("C_W", "C_b", "lambda_W", "lambda_b")
H0 = dict(zip(NAMES, (1.5, 0.2, 0.7, 0.3)))
H1 = dict(zip(NAMES, (1.8, 0.1, 0.9, 0.2)))
HO = dict(zip(NAMES, (1.1, 0.1, 0.6, 0.25)))
RELU = activation("relu")


def field(*shape: int) -> Array:
    k = np.arange(np.prod(shape))
    return np.sin(0.9 + 1.1 * k + 0.05 * k**2).reshape(shape)


def pool(signal: Signal, *windows: Any, law: Activation | None = None, sampled: bool = False) -> Signal:
    """The maximum of the one Gaussian field that a signal is, or of an activation of it."""
    found = max_pooled(signal.field, windows, law)
    return _signal(found.pooled if sampled and isinstance(found, MaxOfPairs) else found)


def kernel(output: Signal, x: Array, x2: Array | None = None, **options: Any) -> Found:
    fields = [one for one in in_order(output.field) if isinstance(one, Data)]
    other = None if x2 is None else dict.fromkeys(fields, x2)
    return kernel_of(output.field, dict.fromkeys(fields, x), other, **options)


def assert_within_errors(difference: Array, error: Array) -> None:
    """Differences whose z-scores are those of noise; where nothing was drawn, no difference but rounding."""
    sampled = error > 1e-13
    z = difference[sampled] / error[sampled]
    assert np.abs(difference[~sampled]).max(initial=0) < 1e-12
    assert np.sqrt(np.mean(z**2)) < 1.6
    assert np.abs(z).max() < 5.5


# The closed form


def v13(sampled: bool) -> Signal:
    return pool(data(4).linear(**H0), max_windows(4, 2), sampled=sampled).mean().linear(**HO)


def test_the_maximum_of_pairs_has_the_digits_of_the_reference() -> None:
    """V13."""
    assert isinstance(max_pooled(data(4).linear(**H0).field, [max_windows(4, 2)]), MaxOfPairs)
    found = kernel(v13(sampled=False), field(2, 4, 3))
    assert found.errors is None
    for values, digits in (
        (found.S, (0.7517348959, 0.7106111912, 0.99207813)),
        (found.Theta, (1.121839586, 0.9709746156, 1.352648008)),
    ):
        np.testing.assert_allclose([values[0, 0], values[0, 1], values[1, 1]], digits, rtol=2e-9)


@pytest.mark.parametrize("windows", [max_windows(6, 2), max_windows(6, 2, 1, 1), max_windows(6, 2, 2, 1, 3)])
@pytest.mark.parametrize("gain", [0.0, 0.7])
def test_sampled_pairs_agree_with_the_closed_form(windows: Any, gain: float) -> None:
    """Windows at an edge hold one position; gains of channels belong to the maximum."""
    h = data(6).convolution(3, padding=1, **H0)
    h = h.trained(gain=gain) if gain else h
    x = field(2, 6, 3)
    exact = kernel(pool(h, windows), x)
    drawn = kernel(pool(h, windows, sampled=True), x, draws=2**14, repetitions=32)
    assert exact.errors is None
    assert drawn.errors is not None
    assert_within_errors(drawn.S - exact.S, drawn.errors[0])
    assert_within_errors(drawn.Theta - exact.Theta, drawn.errors[1])


def test_windows_of_two_along_one_of_two_axes_have_the_closed_form() -> None:
    h, x = data((3, 4)).convolution(3, padding=1, **H0), field(2, 3, 4, 2)
    windows = (max_windows(3, 1), max_windows(4, 2))
    exact = kernel(pool(h, *windows), x)
    drawn = kernel(pool(h, *windows, sampled=True), x, draws=2**14, repetitions=32)
    assert exact.errors is None
    assert drawn.errors is not None
    assert_within_errors(drawn.Theta - exact.Theta, drawn.errors[1])


# Brute force: draws of the whole field


def as_matrix(values: Array, positions: tuple[int, ...]) -> Array:
    """A kernel at all pairs of positions as a matrix of points (input, position)."""
    axes, n = len(positions), values.shape[-1]
    apart = values.reshape(*(size for one in positions for size in (one, one)), n, n)
    order = [2 * axes, *range(0, 2 * axes, 2), 2 * axes + 1, *range(1, 2 * axes, 2)]
    return apart.transpose(order).reshape(n * prod(positions), -1)


def brute_force(
    h: Signal, pooled: MaxPooled, x: Array, gain: float = 0.0, own_position: bool = False
) -> list[tuple[Array, Array]]:
    """S, Theta and mean of s(max b(z)), each with its standard error, from 2e5 draws of z at all points together."""
    rng, batches, draws = np.random.default_rng(5), 40, 5000
    K, Theta = (as_matrix(one, h.positions) for one in kernels(h, x))
    values, vectors = np.linalg.eigh(K)
    window = np.ravel_multi_index(tuple(np.maximum(pooled.window, 0)), h.positions)
    position, number = np.arange(len(K)) % prod(h.positions), np.arange(len(x))[:, None]
    coupled = gain * (position[:, None] == position if own_position else np.ones_like(K))
    parts = []
    for _ in range(batches):
        z = rng.standard_normal((draws, len(K))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
        inside = z.reshape(draws, len(x), -1)[:, :, window]  # (draws, inputs, k, outputs)
        b = inside if pooled.before is None else pooled.before.value(inside)
        b = np.where(pooled.outside, -np.inf, b)
        where, value = b.argmax(axis=2), b.max(axis=2)
        at = np.take_along_axis(inside, where[:, :, None], axis=2)[:, :, 0]
        slope = np.ones_like(value) if pooled.before is None else pooled.before.derivative(at, 1)
        if pooled.function is not None:
            slope = slope * pooled.function.derivative(value, 1)
            value = pooled.function.value(value)
        point = number * prod(h.positions) + window[where, np.arange(window.shape[1])]
        value, slope, at, point = (one.reshape(draws, -1) for one in (value, slope, at, point))
        i, j = point[:, :, None], point[:, None, :]
        tangent = Theta[i, j] + coupled[i, j] * at[:, :, None] * at[:, None, :]
        total = np.einsum("di,dj,dij->ij", slope, slope, tangent) / draws
        parts.append((value.T @ value / draws, total, value.mean(axis=0)))
    return [(np.mean(one, axis=0), np.std(one, axis=0, ddof=1) / np.sqrt(batches)) for one in zip(*parts)]


LINE, PLANE = max_windows(7, 3, 2, 1), max_windows(4, 2)
CASES = {
    "three, relu": ((7,), (LINE,), "relu", {}),
    "two by two, relu": ((4, 4), (PLANE, PLANE), "relu", {}),
    "three, identity": ((7,), (LINE,), None, {}),
    "three, tanh": ((7,), (LINE,), "tanh", {}),
    "gelu before": ((7,), (LINE,), "gelu", {}),
    "gains": ((7,), (LINE,), "relu", {"gain": 0.7}),
    "gains of positions": ((7,), (max_windows(7, 3, 1)[:, :4],), "tanh", {"gain": 0.7, "own_position": True}),
    "adaptive": ((7,), (adaptive_max_windows(7, 3),), "relu", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_sampled_windows_agree_with_draws_of_the_whole_field(name: str) -> None:
    positions, windows, law, gains = CASES[name]
    x = field(2, *positions, 2)
    h = data(positions).convolution(3, padding=1, **H0)
    trained = h.trained(**gains) if gains else h
    output = pool(trained, *windows, law=None if law is None else activation(law))
    pooled = output.field
    assert isinstance(pooled, MaxPooled)
    found = kernel(output, x, draws=2**15, repetitions=32)
    assert found.errors is not None
    expected = brute_force(h, pooled, x, **gains)
    for values, error, (mean, spread) in zip((found.S, found.Theta), found.errors, expected):
        difference, both = as_matrix(values, pooled.positions) - mean, as_matrix(error, pooled.positions)
        assert_within_errors(difference, np.hypot(both, spread))
        assert np.median(both) < 0.01 * np.abs(mean).max()


def test_the_mean_over_channels_agrees_with_draws_of_the_whole_field() -> None:
    """A LayerNorm subtracts it: what is left of S at single points is the variance over channels."""
    x, h = field(2, 7, 2), data(7).convolution(3, padding=1, **H0)
    output = pool(h, LINE, law=RELU)
    (second, second_error), _, (mean, mean_error) = brute_force(h, output.field, x)
    scaled = kernel(output.layer_norm(epsilon=1.0), x, draws=2**15, repetitions=32)
    assert scaled.errors is not None
    variance = np.diag(second) - mean**2
    spread = np.hypot(np.diag(second_error), 2 * mean * mean_error)
    expected, slope = variance / (variance + 1), 1 / (variance + 1) ** 2
    found, error = (np.diag(as_matrix(one, output.positions)) for one in (scaled.S, scaled.errors[0]))
    assert_within_errors(found - expected, np.hypot(error, slope * spread))


# Windows


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
            windows = max_windows(size, kernel_size, stride, padding, dilation, ceil)
            found = {(int(i), p) for p, column in enumerate(windows.T) for i in column if i >= 0}
            assert found == expected, (size, kernel_size, stride, padding, dilation, ceil)
            checked += 1
    assert checked > 200


def test_windows_of_two_axes_are_those_of_torch() -> None:
    size = (5, 4)
    windows = (max_windows(5, 3, 2, 1), max_windows(4, 2, 1, 0, 2))
    pooled = max_pooled(data(size).linear().field, windows, RELU)
    assert isinstance(pooled, MaxPooled)
    image = torch.arange(20.0).reshape(1, 1, *size)
    for values in (image, -image):
        expected = torch.nn.functional.max_pool2d(values, (3, 2), (2, 1), (1, 0), (1, 2))
        inside = np.where(pooled.outside, -np.inf, values[0, 0].numpy()[tuple(np.maximum(pooled.window, 0))])
        np.testing.assert_array_equal(inside.max(axis=0), expected.numpy().ravel())


@pytest.mark.parametrize(("size", "outputs"), [(7, 3), (8, 4), (5, 1), (5, 5)])
def test_adaptive_windows_are_those_of_torch(size: int, outputs: int) -> None:
    expected = torch.nn.functional.adaptive_max_pool1d(torch.eye(size)[:, None], outputs)[:, 0].numpy() > 0
    found = np.zeros_like(expected)
    for p, column in enumerate(adaptive_max_windows(size, outputs).T):
        found[column[column >= 0], p] = True
    np.testing.assert_array_equal(found, expected)


def test_a_window_without_positions_is_refused() -> None:
    with pytest.raises(InputError, match="holds none of the 4 positions"):
        max_windows(4, 2, 1, 1, 5)


# Properties


def relu_pooled(size: int = 6) -> Signal:
    return pool(data(size).convolution(3, padding=1, **H0), max_windows(size, 3, 2, 1), law=RELU)


def network(size: int = 6) -> Signal:
    return relu_pooled(size).convolution(2, **H1).activation("relu").mean().linear(**HO)


def test_kernels_are_symmetric() -> None:
    x = field(3, 6, 2)
    for output in (relu_pooled(), network()):
        found = kernel(output, x)
        for values in (found.S, found.Theta):
            matrix = as_matrix(values, output.positions)
            np.testing.assert_allclose(matrix, matrix.T, rtol=1e-13)


def test_standard_errors_shrink_with_draws() -> None:
    few, many = (kernel(network(), field(3, 6, 2), draws=draws) for draws in (2**9, 2**15))
    assert few.errors is not None
    assert many.errors is not None
    for coarse, fine in zip(few.errors, many.errors):
        assert np.median(fine) < np.median(coarse) / 6  # 8 for independent draws, more for even ones


def test_a_rectangle_of_two_sets_is_a_part_of_the_square_within_errors() -> None:
    x = field(3, 6, 2)
    square, part = kernel(network(), x), kernel(network(), x[:1], x, seed=1)
    assert square.errors is not None
    assert part.errors is not None
    for k, (whole, some) in enumerate(((square.S, part.S), (square.Theta, part.Theta))):
        assert_within_errors(some - whole[:1], np.hypot(square.errors[k][:1], part.errors[k]))


def test_equal_inputs_and_equal_patches_have_equal_kernels() -> None:
    """Windows of a constant image are singular; two copies of an input are one."""
    x = np.stack([field(6, 2), field(6, 2), np.ones((6, 2))])
    output = relu_pooled()
    found = kernel(output, x)
    assert found.errors is not None
    S, Theta, error = (as_matrix(one, output.positions) for one in (found.S, found.Theta, found.errors[1]))
    inside = len(S) // 3
    first, second = slice(0, inside), slice(inside, 2 * inside)
    for values, tolerance in ((S, 1e-9), (Theta, 6 * error[first, first].max())):
        np.testing.assert_allclose(np.diag(values[first, first]), np.diag(values[first, second]), rtol=1e-9)
        np.testing.assert_allclose(values[first, first], values[second, second], rtol=1e-9)
        np.testing.assert_allclose(values[first, first], values[first, second], atol=tolerance)
    assert (np.abs(S / np.sqrt(np.outer(np.diag(S), np.diag(S)))) <= 1 + 1e-9).all()


def test_nearly_equal_inputs_keep_their_small_distance() -> None:
    """1 - correlation is of order 1e-4 here, far below the errors of S itself."""
    rng = np.random.default_rng(2)
    x = field(6, 2) + 0.02 * rng.standard_normal((4, 6, 2))
    h = data(6).convolution(3, padding=1, C_W=1.5)
    exact, drawn = (
        kernel(pool(h, max_windows(6, 2), sampled=one), x, positions="equal") for one in (False, True)
    )
    distances = []
    for S in (exact.S, drawn.S):
        size = np.sqrt(np.einsum("paa->pa", S))
        distances.append((1 - S / (size[:, :, None] * size[:, None, :]))[:, *np.triu_indices(4, 1)])
    assert distances[0].min() > 1e-6
    assert distances[0].max() < 2e-3
    np.testing.assert_allclose(distances[1], distances[0], rtol=0.1)


def test_roots_of_windows_with_blank_positions() -> None:
    rng = np.random.default_rng(4)
    factor = rng.standard_normal((200, 9, 5)) * (rng.random((200, 9, 1)) < 0.6)
    covariance = factor @ factor.swapaxes(1, 2)
    root, inverse = _roots(covariance)
    np.testing.assert_allclose(root @ root, covariance, atol=1e-12 * covariance.max())
    np.testing.assert_allclose(root @ inverse @ root, root, atol=1e-9)
    assert (root[np.einsum("nii->ni", covariance) == 0] == 0).all()


def test_blank_inputs_without_biases_give_numbers() -> None:
    """S = 0 there; the slope of relu is the mean of both sides, and a bias that starts at 0 trains."""
    x = np.stack([np.zeros((6, 2)), field(6, 2)])
    x[1, :4] = 0.0
    h = data(6).convolution(3, padding=1, C_W=1.5, C_b=0.0, lambda_W=0.7, lambda_b=0.3)
    output = pool(h, max_windows(6, 3), law=RELU)
    found = kernel(output, x)
    assert np.isfinite(found.S).all()
    assert np.isfinite(found.Theta).all()
    assert (found.S[..., 0, :] == 0).all()
    np.testing.assert_allclose(found.Theta[..., 0, 0], 0.3 / 4, rtol=1e-12)
    head = kernel(output.convolution(2, C_W=2.0).activation("relu").flatten(C_W=1.0), x)
    assert np.isfinite(head.S).all()
    assert np.isfinite(head.Theta).all()


def test_a_function_may_follow_the_maximum() -> None:
    h, x = data(7).convolution(3, padding=1, **H0), field(2, 7, 2)
    before = kernel(pool(h, LINE, law=RELU), x)
    field_of = max_pooled(h.field, [LINE])
    after = kernel(_signal(field_of.followed_by(RELU)), x)
    np.testing.assert_array_equal(before.Theta, after.Theta)
    twice = kernel(_signal(field_of.followed_by(RELU).followed_by(activation("tanh"))), x)
    once = kernel(_signal(max_pooled(h.field, [LINE], RELU).followed_by(activation("tanh"))), x)
    np.testing.assert_array_equal(twice.S, once.S)
    pairs = max_pooled(h.field, [max_windows(7, 2)])
    assert isinstance(pairs, MaxOfPairs)
    assert isinstance(pairs.followed_by(RELU), MaxPooled)


def test_which_functions_commute_with_a_maximum() -> None:
    assert all(is_increasing(activation(name)) for name in ("relu", "tanh", "sigmoid", "softplus", "erf"))
    assert not any(is_increasing(activation(name)) for name in ("gelu", "swish", "sin", "abs"))


# Random networks


def measured_ntk(width: int, networks: int, x: Array, flat: bool) -> tuple[Array, Array]:
    """NTK of random torch networks at the rates C_W / fan_in and C_b of their layers: mean and standard error."""
    outputs, rates = x.shape[1] // 2, []
    inputs = torch.as_tensor(np.moveaxis(x, -1, 1), dtype=torch.float64)
    layers = torch.nn.Sequential(
        torch.nn.Conv1d(x.shape[2], width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool1d(2),
        torch.nn.Conv1d(width, width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten() if flat else torch.nn.AdaptiveAvgPool1d(1),
        torch.nn.Linear(width * outputs, 1) if flat else torch.nn.Conv1d(width, 1, 1),
    ).double()
    for module in layers:
        if isinstance(module, torch.nn.Linear | torch.nn.Conv1d):
            rates += [1.6 / module.weight[0].numel(), 0.2]
    parameters, found = list(layers.parameters()), []
    for seed in range(networks):
        draw = torch.Generator().manual_seed(1000 * width + seed)
        for parameter, rate in zip(parameters, rates, strict=True):
            parameter.data.normal_(0, rate**0.5, generator=draw)
        rows = []
        for one in layers(inputs).reshape(len(x)):
            gradients = torch.autograd.grad(one, parameters, retain_graph=True)
            rows.append(torch.cat([rate**0.5 * g.ravel() for rate, g in zip(rates, gradients)]))
        jacobian = torch.stack(rows)
        found.append((jacobian @ jacobian.T).numpy())
    return np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(networks)


@pytest.mark.parametrize("flat", [True, False])
def test_random_torch_networks_approach_the_kernel(flat: bool) -> None:
    x, law = field(2, 8, 3), {"C_W": 1.6, "C_b": 0.2}
    h = pool(data(8).convolution(3, padding=1, **law), max_windows(8, 2), law=RELU)
    h = h.convolution(3, padding=1, **law).activation("relu")
    found = kernel(h.flatten(**law) if flat else h.mean().linear(**law), x, draws=2**14)
    assert found.errors is not None
    for width, networks in ((64, 200), (256, 50)):
        mean, error = measured_ntk(width, networks, x, flat)
        spread = np.sqrt(error**2 + found.errors[1] ** 2 + (found.Theta / width) ** 2)
        assert (error < 0.03 * found.Theta).all()
        assert np.abs((mean - found.Theta) / spread).max() < 3.5
