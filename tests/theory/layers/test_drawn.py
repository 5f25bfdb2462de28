"""Means over draws: exact cases, the same laws drawn and differentiated by torch, properties, random networks."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from foretrain.support.errors import InputError
from foretrain.support.progress import Progress
from foretrain.theory.layers import Signal, concatenated, data, kernels, tiles
from foretrain.theory.layers.drawn import Drawn, _root, _smooth_functions, drawn
from foretrain.theory.layers.linear_maps import Data
from foretrain.theory.layers.signal import _signal
from foretrain.theory.layers.tiles import Found, in_order, kernel_of

Array = NDArray[np.float64]
NAMES = ("C_W", "C_b", "lambda_W", "lambda_b")
H0 = dict(zip(NAMES, (1.5, 0.2, 0.7, 0.3)))
H1 = dict(zip(NAMES, (1.8, 0.1, 0.9, 0.2)))
HO = dict(zip(NAMES, (1.1, 0.1, 0.6, 0.25)))


def field(*shape: int) -> Array:
    k = np.arange(np.prod(shape))
    return np.sin(0.9 + 1.1 * k + 0.05 * k**2).reshape(shape)


def kernel(output: Signal, x: Array, x2: Array | None = None, **options: Any) -> Found:
    fields = [one for one in in_order(output.field) if isinstance(one, Data)]
    other = None if x2 is None else dict.fromkeys(fields, x2)
    return kernel_of(output.field, dict.fromkeys(fields, x), other, **options)


def by_draws(signal: Signal) -> Signal:
    """The same signal, with its moments drawn."""
    return _signal(drawn(signal.blocks[0].law, signal.positions, "drawn"))


def as_matrix(values: Array, positions: tuple[int, ...]) -> Array:
    """A kernel at all pairs of positions as a matrix of points (input, position)."""
    axes, n = len(positions), values.shape[-1]
    apart = values.reshape(*(size for one in positions for size in (one, one)), n, n)
    order = [2 * axes, *range(0, 2 * axes, 2), 2 * axes + 1, *range(1, 2 * axes, 2)]
    return apart.transpose(order).reshape(n * prod(positions), -1)


def assert_within_errors(difference: Array, error: Array) -> None:
    """Differences whose z-scores are those of noise; where nothing was drawn, no difference but rounding."""
    moving = error > 1e-12
    z = np.append(difference[moving] / error[moving], 0.0)
    assert np.abs(difference[~moving]).max(initial=0) < 1e-9
    assert np.sqrt(np.mean(z**2)) < 2.2  # entries of a kernel are noisy together
    assert np.abs(z).max() < 6


# What has a formula, drawn all the same

FORMULAS: dict[str, Callable[[], Signal]] = {
    "relu": lambda: data(5).convolution(3, padding=1, **H0).activation("relu"),
    "tanh, gains": lambda: data(5).convolution(3, padding=1, **H0).trained(gain=0.6).activation("tanh"),
    "a field itself": lambda: data(5).convolution(3, padding=1, **H0).trained(gain=0.6),
    "depthwise": lambda: data(5).linear(**H0).activation("relu").convolution(3, padding=1, group=1, **H1),
    "groups of 2": lambda: data(5).linear(**H0).activation("relu").convolution(3, group=2, **H1),
    "means": lambda: data((3, 4)).linear(**H0).activation("relu").average_pool(2, stride=1).mean((0,)),
    "gate": lambda: (h := data(5).linear(**H0)) * h.linear(**H1).activation("sigmoid"),
    "end of a block": lambda: (
        (h := data(4).linear(**H0).activation("relu"))
        .__add__(h.convolution(3, padding=1, **H1))
        .activation("relu")
    ),
    "maximum of pairs": lambda: data(6).convolution(3, padding=1, **H0).max_pool(2, stride=1, padding=1),
    "norm": lambda: data(5).linear(**H0).activation("relu").layer_norm(gain=0.4, shift=0.2),
    "met again": lambda: (
        (h := data(5).linear(**H0).activation("relu")) - h.average_pool(3, stride=1, padding=1)
    ),
}


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("head", ["all pairs", "equal positions"])
@pytest.mark.parametrize("name", FORMULAS)
def test_draws_have_the_moments_of_formulas(name: str, head: str) -> None:
    signal = FORMULAS[name]()
    x = field(3, *next(f for f in in_order(signal.field) if isinstance(f, Data)).positions, 2)
    positions = "all" if head == "all pairs" else "equal"
    exact = kernel(signal, x, positions=positions)
    found = kernel(by_draws(signal), x, positions=positions, draws=2**14, repetitions=16)
    assert exact.errors is None
    assert found.errors is not None
    assert_within_errors(found.S - exact.S, found.errors[0])
    assert_within_errors(found.Theta - exact.Theta, found.errors[1])
    assert np.median(found.errors[1]) < 0.03 * np.abs(exact.Theta).max()


# The same laws by torch


class Law:
    """A law of one channel in torch: h(u, weights) for one draw, u (channels, inputs, positions)."""

    def __init__(
        self,
        signal: Callable[[Signal], Signal],
        law: Callable[..., Tensor],
        *weights: tuple[tuple[int, ...], float, float],
        positions: tuple[int, ...] = (6,),
        channels: int = 1,
    ) -> None:
        self.signal, self.law, self.weights = signal, law, weights
        self.positions, self.channels = positions, channels


def pooled(h: Tensor, kernel: int, *options: int) -> Tensor:
    return functional.max_pool1d(h[None], kernel, *options)[0]


def tapped(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A convolution of (channels, inputs, positions) to one channel."""
    return functional.conv1d(h.transpose(0, 1), w[None], b, padding=1)[:, 0]


def normed(h: Tensor, axes: Any, epsilon: float) -> Tensor:
    centred = h - h.mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True) + epsilon).sqrt()


def weights(channels: int) -> list[tuple[tuple[int, ...], float, float]]:
    """Shape, standard deviation and rate of the weights and the bias of a convolution of 3 taps by H1."""
    size = 3 * channels
    return [((channels, 3), (1.8 / size) ** 0.5, 0.9 / size), ((1,), 0.1**0.5, 0.2)]


RELU, TANH = torch.relu, torch.tanh
LAWS: dict[str, Law] = {
    "maximum of three": Law(
        lambda h: h.activation("relu").max_pool(3, stride=2, padding=1), lambda u: pooled(RELU(u[0]), 3, 2, 1)
    ),
    "maximum of gelu": Law(
        lambda h: h.activation("gelu").max_pool(3), lambda u: pooled(functional.gelu(u[0]), 3)
    ),
    "maximum, two axes": Law(
        lambda h: h.max_pool(2).activation("tanh"),
        lambda u: TANH(functional.max_pool2d(u[0].reshape(-1, 4, 4), 2).flatten(1)),
        positions=(4, 4),
    ),
    "gains": Law(
        lambda h: h.trained(gain=0.7).max_pool(3).activation("tanh"),
        lambda u, g: TANH(pooled((1 + g) * u[0], 3)),
        ((1,), 0.0, 0.7),
    ),
    "gains of positions": Law(
        lambda h: h.trained(gain=0.7, own_position=True).max_pool(3).activation("tanh"),
        lambda u, g: TANH(pooled((1 + g) * u[0], 3)),
        ((6,), 0.0, 0.7),
    ),
    "depthwise": Law(
        lambda h: h.activation("relu").convolution(3, padding=1, group=1, **H1).activation("tanh"),
        lambda u, w, b: TANH(tapped(RELU(u), w, b)),
        *weights(1),
    ),
    "depthwise, batch norm": Law(
        lambda h: (
            h.activation("relu")
            .convolution(3, padding=1, group=1, **H1)
            .batch_norm(epsilon=0.0, variance=0.5, mean=0.1, weight=0.9, bias=0.2, gain=0.7, shift=0.3)
            .activation("relu")
        ),
        lambda u, w, b, g, s: RELU((0.9 + g) * (tapped(RELU(u), w, b) - 0.1) / 0.5**0.5 + 0.2 + s),
        *weights(1),
        ((1,), 0.0, 0.7),
        ((1,), 0.0, 0.3),
    ),
    "groups of 2": Law(
        lambda h: h.activation("relu").convolution(3, padding=1, group=2, **H1).activation("tanh"),
        lambda u, w, b: TANH(tapped(RELU(u), w, b)),
        *weights(2),
        channels=2,
    ),
    "instance norm": Law(
        lambda h: h.group_norm(1, epsilon=0.05, gain=0.7, shift=0.3).activation("relu"),
        lambda u, g, s: RELU((1 + g) * normed(u[0], 1, 0.05) + s),
        ((1,), 0.0, 0.7),
        ((1,), 0.0, 0.3),
    ),
    "group norm of 2": Law(
        lambda h: h.activation("relu").group_norm(2, epsilon=0.05).activation("tanh"),
        lambda u: TANH(normed(RELU(u), (0, 2), 0.05)[0]),
        channels=2,
    ),
    "two poolings and a mean": Law(
        lambda h: h.activation("relu").max_pool(2, stride=1).average_pool(2, stride=1).max_pool(2),
        lambda u: pooled(functional.avg_pool1d(pooled(RELU(u[0]), 2, 1)[None], 2, 1)[0], 2),
    ),
    "met again": Law(
        lambda h: (h - h.trained(gain=0.7).average_pool(3, stride=1, padding=1)).activation("relu"),
        lambda u, g: RELU(u[0] - functional.avg_pool1d((1 + g) * u, 3, 1, 1)[0]),
        ((1,), 0.0, 0.7),
    ),
    "product with a part of itself": Law(
        lambda h: h * h.max_pool(3, stride=1, padding=1), lambda u: u[0] * pooled(u[0], 3, 1, 1)
    ),
}


def by_torch(of: Law, K: Array, Theta: Array, draws: int) -> list[tuple[Array, Array]]:
    """S and Theta, each with its standard error, from plain draws and derivatives by torch."""
    rng, size = np.random.default_rng(7), prod(of.positions)
    values, vectors = np.linalg.eigh(K)
    root = vectors * np.sqrt(np.maximum(values, 0))
    u = torch.as_tensor(rng.standard_normal((draws, of.channels, len(K))) @ root.T)
    given = [torch.as_tensor(std * rng.standard_normal((draws, *shape))) for shape, std, _ in of.weights]

    def law(flat: Tensor, *own: Tensor) -> Tensor:
        return of.law(flat.reshape(of.channels, -1, size), *own).reshape(-1)

    h = torch.func.vmap(law)(u, *given).numpy()
    J, *others = torch.func.vmap(torch.func.jacrev(law, argnums=tuple(range(1 + len(given)))))(u, *given)
    tangent = np.einsum("dpci,ij,dqcj->dpq", J.numpy(), Theta, J.numpy(), optimize=True)
    for one, (_, _, rate) in zip(others, of.weights, strict=True):
        flat = one.reshape(*one.shape[:2], -1).numpy()
        tangent += rate * np.einsum("dpk,dqk->dpq", flat, flat)
    each = (h[:, :, None] * h[:, None], tangent)
    return [(one.mean(axis=0), one.std(axis=0) / np.sqrt(draws)) for one in each]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", LAWS)
def test_draws_agree_with_plain_draws_and_derivatives_by_torch(name: str) -> None:
    of, x = LAWS[name], field(2, *LAWS[name].positions, 2)
    h = data(of.positions).convolution(3, padding=1, **H0)
    output = of.signal(h)
    K, Theta = (as_matrix(one, of.positions) for one in kernels(h, x))
    expected = by_torch(of, K, Theta, 10_000)
    for positions in ("all", "equal"):
        found = kernel(output, x, positions=positions, draws=2**14, repetitions=16)
        assert found.errors is not None
        for values, error, (mean, spread) in zip((found.S, found.Theta), found.errors, expected):
            if positions == "all":
                values, error = (as_matrix(one, output.positions) for one in (values, error))
            else:
                count = prod(output.positions)
                values, error = (one.reshape(count, 2, 2) for one in (values, error))
                mean, spread = (
                    np.einsum("apbp->pab", one.reshape(2, count, 2, count)) for one in (mean, spread)
                )
            assert_within_errors(values - mean, np.hypot(error, spread))
            assert np.median(error) < 0.03 * np.abs(mean).max()


def test_the_mean_over_channels_is_subtracted_by_a_norm() -> None:
    """What is left of S at single points is the variance over channels."""
    x, h = field(2, 6, 2), data(6).convolution(3, padding=1, **H0)
    rng, (values, vectors) = np.random.default_rng(7), np.linalg.eigh(as_matrix(kernels(h, x)[0], (6,)))
    root = vectors * np.sqrt(np.maximum(values, 0))
    u = torch.as_tensor(rng.standard_normal((200_000, 12)) @ root.T).reshape(-1, 2, 6)
    variance = functional.max_pool1d(RELU(u), 3, 2, 1).numpy().var(axis=0).T
    signal = LAWS["maximum of three"].signal(h).layer_norm(epsilon=1.0)
    found = np.einsum("paa->pa", kernel(signal, x, positions="equal", draws=2**14).S)
    np.testing.assert_allclose(found, variance / (variance + 1), rtol=0.01)


# Properties


def pooled_signal(size: int = 6) -> Signal:
    return data(size).convolution(3, padding=1, **H0).activation("relu").max_pool(3, stride=2, padding=1)


def network(size: int = 6) -> Signal:
    return pooled_signal(size).convolution(2, **H1).activation("relu").mean().linear(**HO)


def mobile(size: int = 6) -> Signal:
    h = data(size).convolution(3, padding=1, **H0).activation("relu")
    for _ in range(2):
        h = h.convolution(3, padding=1, group=1, **H1).activation("relu").linear(**H1).activation("relu")
    return h.mean().linear(**HO)


@pytest.mark.slow
def test_kernels_are_symmetric_and_positive() -> None:
    x = field(3, 6, 2)
    for output in (pooled_signal(), network(), mobile()):
        found = kernel(output, x)
        for values in (found.S, found.Theta):
            matrix = as_matrix(values, output.positions)
            np.testing.assert_allclose(matrix, matrix.T, rtol=1e-11)
            assert np.linalg.eigvalsh(matrix).min() > -1e-9 * np.abs(matrix).max()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("make", [network, mobile])
def test_inputs_may_be_cut_into_tiles(make: Callable[[], Signal], monkeypatch: pytest.MonkeyPatch) -> None:
    x, output = field(4, 6, 2), make()
    whole = kernel(output, x, draws=2**13)
    for room in ("TILE_ENTRIES", "ONE_TILE", "_DRAWN_TOGETHER"):
        monkeypatch.setattr(tiles, room, 1)
    cut = kernel(output, x, draws=2**13)
    assert whole.errors is not None
    assert cut.errors is not None
    for k, (one, two) in enumerate(((whole.S, cut.S), (whole.Theta, cut.Theta))):
        np.testing.assert_allclose(np.diag(one), np.diag(two), rtol=0.05)
        assert_within_errors(one - two, np.hypot(whole.errors[k], cut.errors[k]))


def test_standard_errors_shrink_with_draws() -> None:
    few, many = (kernel(network(), field(3, 6, 2), draws=draws) for draws in (2**9, 2**15))
    assert few.errors is not None
    assert many.errors is not None
    for coarse, fine in zip(few.errors, many.errors):
        assert np.median(fine) < np.median(coarse) / 6  # 8 for independent draws, more for even ones


def test_fewer_draws_are_taken_where_they_are_accurate_enough() -> None:
    x, options = field(3, 6, 2), {"draws": 2**12, "seed": 5}
    one, most = (kernel(network(), x, accuracy=accuracy, **options) for accuracy in (0.05, 1e-9))
    few, all_draws = (kernel(network(), x, draws=draws, seed=5) for draws in (2**10, 2**12))
    for found, expected in ((one, few), (most, all_draws)):
        np.testing.assert_array_equal(found.S, expected.S)
        np.testing.assert_array_equal(found.Theta, expected.Theta)
    middle = kernel(network(), x, accuracy=2e-3, draws=2**20)
    assert middle.errors is not None
    for error, of in zip(middle.errors, (middle.S, middle.Theta)):
        assert np.linalg.norm(error) <= 2e-3 * np.linalg.norm(of)
    with pytest.raises(InputError, match="accuracy"):
        kernel(network(), x, accuracy=-1.0)


@pytest.mark.parametrize("room", [2**22, 1])
def test_the_progress_bar_moves_inside_a_tile(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Bar] = []

    class Bar(Progress):
        def __init__(self, description: str, total: float) -> None:
            super().__init__(description, total)
            self.total, self.steps = total, list[float]()
            bars.append(self)

        def advance(self, steps: float = 1) -> None:
            self.steps.append(steps)

    monkeypatch.setattr(tiles, "Progress", Bar)
    monkeypatch.setattr(tiles, "ONE_TILE", room)
    kernel(mobile(), field(3, 6, 2), draws=2**12)
    (bar,) = bars
    assert sum(bar.steps) == pytest.approx(bar.total, rel=0.05)
    assert max(bar.steps) < bar.total / 8


def test_a_rectangle_of_two_sets_is_a_part_of_the_square_within_errors() -> None:
    x = field(3, 6, 2)
    square, part = kernel(network(), x), kernel(network(), x[:1], x, seed=1)
    assert square.errors is not None
    assert part.errors is not None
    for k, (whole, some) in enumerate(((square.S, part.S), (square.Theta, part.Theta))):
        assert_within_errors(some - whole[:1], np.hypot(square.errors[k][:1], part.errors[k]))


def test_kernels_change_smoothly_with_hyperparameters() -> None:
    """The draws stay the same: differences are those of the kernel, not of noise."""

    def at(C_W: float) -> Array:
        h = data(6).convolution(3, padding=1, C_W=C_W, C_b=0.2).activation("relu")
        h = h.convolution(3, padding=1, group=1, **H1).activation("tanh").mean().linear(**HO)
        return kernel(h, field(3, 6, 2), draws=2**9).S

    step = 1e-4
    second = (at(1.5 + step) - 2 * at(1.5) + at(1.5 - step)) / step**2
    slope = (at(1.5 + step) - at(1.5 - step)) / (2 * step)
    assert np.abs(slope).min() > 1e-3
    assert np.abs(second).max() < 10 * np.abs(slope).max()


def test_equal_inputs_and_equal_patches_have_equal_kernels() -> None:
    """Windows of a constant image are singular; two copies of an input are one."""
    x = np.stack([field(6, 2), field(6, 2), np.ones((6, 2))])
    output = pooled_signal()
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
    h = data(6).convolution(3, padding=1, C_W=1.5).max_pool(2)
    distances = []
    for one in (h, by_draws(h)):
        S = kernel(one, x, positions="equal").S
        size = np.sqrt(np.einsum("paa->pa", S))
        distances.append((1 - S / (size[:, :, None] * size[:, None, :]))[:, *np.triu_indices(4, 1)])
    assert distances[0].min() > 1e-6
    assert distances[0].max() < 2e-3
    np.testing.assert_allclose(distances[1], distances[0], rtol=0.1)


def test_blank_inputs_without_biases_give_numbers() -> None:
    """S = 0 there; the slope of relu is the mean of both sides, and a bias that starts at 0 trains."""
    x = np.stack([np.zeros((6, 2)), field(6, 2)])
    x[1, :4] = 0.0
    h = data(6).convolution(3, padding=1, C_W=1.5, C_b=0.0, lambda_W=0.7, lambda_b=0.3)
    output = h.activation("relu").max_pool(3)
    found = kernel(output, x)
    assert np.isfinite(found.S).all()
    assert np.isfinite(found.Theta).all()
    assert (found.S[..., 0, :] == 0).all()
    np.testing.assert_allclose(found.Theta[..., 0, 0], 0.3 / 4, rtol=1e-9)
    head = kernel(output.convolution(2, C_W=2.0).activation("relu").flatten(C_W=1.0), x)
    assert np.isfinite(head.S).all()
    assert np.isfinite(head.Theta).all()


def test_roots_are_exact_for_singular_matrices_and_forgive_drawn_ones() -> None:
    rng = np.random.default_rng(4)
    factor = rng.standard_normal((200, 9, 5)) * (rng.random((200, 9, 1)) < 0.6)
    covariance = (factor @ factor.swapaxes(1, 2))[None]
    basis = np.broadcast_to(_smooth_functions(np.indices((3, 3)).reshape(2, 9).T[None]), (200, 9, 9))
    np.testing.assert_allclose(
        basis @ basis.swapaxes(1, 2), np.broadcast_to(np.eye(9), (200, 9, 9)), atol=1e-12
    )
    np.testing.assert_allclose(np.abs(basis[:, :, 0]), 1 / 3)
    root = _root(covariance, basis)
    np.testing.assert_allclose(root @ root.swapaxes(-1, -2), covariance, atol=1e-8 * covariance.max())
    assert (root[np.einsum("gbii->gbi", covariance) == 0] == 0).all()
    noisy = covariance + 1e-3 * (lambda e: e + e.swapaxes(-1, -2))(rng.standard_normal(covariance.shape))
    noisy[0, :, range(9), range(9)] = np.maximum(noisy[0, :, range(9), range(9)], 0.01)
    forgiven = _root(noisy, basis)
    np.testing.assert_allclose(forgiven @ forgiven.swapaxes(-1, -2), noisy, atol=0.1)


def test_roots_of_large_matrices_have_as_many_columns_as_needed() -> None:
    rng = np.random.default_rng(4)
    basis = _smooth_functions(np.indices((20, 15)).reshape(2, 300).T[None])
    np.testing.assert_allclose(basis[0] @ basis[0].T, np.eye(300), atol=1e-12)
    for rank, columns in ((9, 9), (150, 150), (300, 300)):
        factor = rng.standard_normal((300, rank))
        factor[7] = factor[3]
        factor[11] = 0.0
        covariance = (factor @ factor.T)[None, None]
        root = _root(covariance, basis)
        np.testing.assert_allclose(root @ root.swapaxes(-1, -2), covariance, atol=1e-7 * covariance.max())
        np.testing.assert_allclose(root[0, 0, 7], root[0, 0, 3], rtol=0, atol=1e-9 * np.abs(root).max())
        assert (root[0, 0, 11] == 0).all()
        assert root.shape[-1] <= columns + 64


@pytest.mark.slow
def test_concatenated_channels_keep_their_laws() -> None:
    """A depthwise convolution of two kinds of channels: each goes on by itself."""
    h = data(5).linear(**H0)
    both = concatenated([h.activation("relu"), h.linear(**H1).activation("tanh")])
    parts = [
        one.convolution(3, padding=1, group=1, **H1).activation("tanh")
        for one in (h.activation("relu"), h.linear(**H1).activation("tanh"))
    ]
    whole = both.convolution(3, padding=1, group=1, **H1).activation("tanh")
    x = field(2, 5, 2)
    found = kernel(whole.linear(C_W=1.0, C_b=0.0), x, draws=2**14, repetitions=16)
    halves = [kernel(one.linear(C_W=1.0, C_b=0.0), x, draws=2**14, repetitions=16) for one in parts]
    assert found.errors is not None
    expected = (halves[0].S + halves[1].S) / 2
    assert_within_errors(found.S - expected, 1.5 * found.errors[0])


def test_an_expression_of_many_fields_is_drawn_once() -> None:
    h = data(5).linear(**H0)
    signal = (h.activation("relu") + h.linear(**H1).activation("relu") + h.linear(**H1)).activation("gelu")
    assert isinstance(signal.field, Drawn)
    assert signal.field is signal.field
    assert len(signal.field.inputs) == 3
