"""Maxima, convolutions and norms of few channels: closed forms, solvable cases, random torch networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_drawn import H0, H1, HO, as_matrix, assert_within_errors, by_draws, field, kernel

from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import Signal, data
from foretrain.theory.layers.drawn import Drawn
from foretrain.theory.layers.windowed import Grouped, MaxOfPairs

Array = NDArray[np.float64]


def closely(output: Signal, x: Array, **options: Any) -> Any:
    found = kernel(output, x, draws=2**14, repetitions=32, **options)
    assert found.errors is not None
    return found


# Maxima


def test_the_maximum_of_pairs_has_the_digits_of_the_reference() -> None:
    """V13."""
    output = data(4).linear(**H0).max_pool(2)
    assert isinstance(output.field, MaxOfPairs)
    found = kernel(output.mean().linear(**HO), field(2, 4, 3))
    assert found.errors is None
    for values, digits in (
        (found.S, (0.7517348959, 0.7106111912, 0.99207813)),
        (found.Theta, (1.121839586, 0.9709746156, 1.352648008)),
    ):
        np.testing.assert_allclose([values[0, 0], values[0, 1], values[1, 1]], digits, rtol=2e-9)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "pooling", [{"kernel": 2}, {"kernel": 2, "stride": 1, "padding": 1}, {"kernel": 2, "dilation": 3}]
)
@pytest.mark.parametrize("gain", [0.0, 0.7])
def test_pairs_by_draws_agree_with_the_closed_form(pooling: Any, gain: float) -> None:
    """Windows at an edge hold one position; gains of channels belong to the maximum."""
    h = data(6).convolution(3, padding=1, **H0)
    output, x = (h.trained(gain=gain) if gain else h).max_pool(**pooling), field(2, 6, 3)
    exact, found = kernel(output, x), closely(by_draws(output), x)
    assert exact.errors is None
    assert_within_errors(found.S - exact.S, found.errors[0])
    assert_within_errors(found.Theta - exact.Theta, found.errors[1])


def test_which_maxima_have_a_closed_form() -> None:
    h = data((3, 4)).convolution(3, padding=1, **H0)
    assert isinstance(h.max_pool((1, 2)).field, MaxOfPairs)
    for other in (
        h.max_pool(2),
        h.activation("relu").max_pool((1, 2)),
        h.trained(gain=0.5, own_position=True).max_pool((1, 2)),
    ):
        assert isinstance(other.field, Drawn)


def test_increasing_functions_may_stand_before_or_after_a_maximum() -> None:
    h, x = data(7).convolution(3, padding=1, **H0), field(2, 7, 2)
    before, after = (
        kernel(one, x) for one in (h.activation("relu").max_pool(3), h.max_pool(3).activation("relu"))
    )
    np.testing.assert_allclose(before.Theta, after.Theta, rtol=1e-12)


# Convolutions of few channels


def test_one_weight_of_each_channel_is_solvable() -> None:
    """relu(w h) = relu(w) h for h >= 0: half of the moments of h times those of w."""
    h, x = data(4).linear(**H0).activation("relu"), field(3, 4, 2)
    inside = kernel(h, x)
    found = closely(h.convolution(1, group=1, C_W=1.8, lambda_W=0.9, lambda_b=0.0).activation("relu"), x)
    assert_within_errors(found.S - 1.8 / 2 * inside.S, found.errors[0])
    assert_within_errors(found.Theta - (1.8 * inside.Theta + 0.9 * inside.S) / 2, found.errors[1])


def test_a_pointwise_layer_after_a_convolution_of_few_channels_needs_no_draws() -> None:
    h, x = data(4).linear(**H0).activation("relu"), field(2, 4, 3)
    plain = kernel(h.convolution(3, padding=1, **H1).linear(**H0).mean(), x)
    for group in (1, 2, (4, 8)):
        found = kernel(h.convolution(3, padding=1, group=group, **H1).linear(**H0).mean(), x)
        assert found.errors is None
        np.testing.assert_allclose(found.Theta, plain.Theta, rtol=1e-13)


def test_a_skip_around_a_depthwise_convolution_needs_no_draws_before_a_linear_layer() -> None:
    """Products of its weights with anything else vanish on average."""
    h, x = data(4).linear(**H0).activation("relu"), field(2, 4, 3)
    branch = h.convolution(3, padding=1, group=1, **H1)
    exact = kernel((h + branch).linear(**HO), x)
    assert exact.errors is None
    drawn = closely(by_draws(h + branch).linear(**HO), x)
    assert_within_errors(drawn.S - exact.S, drawn.errors[0])
    assert_within_errors(drawn.Theta - exact.Theta, drawn.errors[1])


@pytest.mark.slow
def test_the_reference_formula_of_a_depthwise_convolution() -> None:
    """Theta' = E{s' s' [lambda_b + lambda_W/k sum h h' + sum w w' f' f' Theta]}, by plain draws."""
    output = (
        data(4).linear(**H0).activation("relu").convolution(3, padding=1, group=1, **H1).activation("tanh")
    )
    x, draws, rng = field(2, 4, 3), 200_000, np.random.default_rng(1)
    inside = kernel(data(4).linear(**H0), x)
    K, Theta = (as_matrix(one, (4,)) for one in (inside.S, inside.Theta))
    root = np.linalg.cholesky(K + 1e-12 * np.eye(8))
    u = (rng.normal(size=(draws, 8)) @ root.T).reshape(draws, 2, 4)
    weights, bias = np.sqrt(1.8 / 3) * rng.normal(size=(draws, 3)), np.sqrt(0.1) * rng.normal(size=(draws, 1))
    h, slope = np.maximum(u, 0)[:, :, :3], (u > 0)[:, :, :3]
    z = np.einsum("dt,dat->da", weights, h) + bias
    rise = 1 - np.tanh(z) ** 2
    near = Theta.reshape(2, 4, 2, 4)[:, :3, :, :3]
    inner = 0.2 + 0.9 / 3 * np.einsum("dat,dbt->dab", h, h)
    inner += np.einsum("dt,ds,dat,dbs,atbs->dab", weights, weights, slope, slope, near, optimize=True)
    found = closely(output.take(0, 1), x, seed=1)
    for values, error, each in zip(
        (found.S, found.Theta),
        found.errors,
        (np.tanh(z)[:, :, None] * np.tanh(z)[:, None], rise[:, :, None] * rise[:, None] * inner),
    ):
        spread = each.std(axis=0) / np.sqrt(draws)
        assert_within_errors(values - each.mean(axis=0), np.hypot(error, spread))


def test_weights_of_each_position_are_not_drawn() -> None:
    own = data(4).linear(**H0).convolution(3, group=1, shared=False, **H1)
    with pytest.raises(NotSupportedError, match="tanh follows convolution, whose few channels have weights"):
        own.activation("tanh")


# Norms of few channels


def test_the_norm_of_two_positions_is_a_sign() -> None:
    """+-1 by which of the two is larger: S = +-2/pi arcsin of the correlation of their differences."""
    x = field(3, 2, 3)
    h = data(2).linear(C_W=1.5, C_b=0.2, lambda_W=0.0, lambda_b=0.0)
    S = as_matrix(kernel(h, x).S, (2,)).reshape(3, 2, 3, 2)
    differences = S[:, 0, :, 0] - S[:, 0, :, 1] - S[:, 1, :, 0] + S[:, 1, :, 1]
    size = np.sqrt(np.diag(differences))
    signs = 2 / np.pi * np.arcsin(np.clip(differences / np.outer(size, size), -1, 1))
    expected = np.kron(signs, [[1.0, -1.0], [-1.0, 1.0]])
    found = closely(h.group_norm(1, epsilon=1e-12, gain=0.7, shift=0.3), x)
    error = [as_matrix(one, (2,)) for one in found.errors]
    assert np.abs(as_matrix(found.S, (2,)) - expected).max() < 6 * error[0].max()
    assert np.abs(as_matrix(found.Theta, (2,)) - (0.7 * expected + 0.3)).max() < 6 * error[1].max()
    assert error[0].max() < 0.01


@pytest.mark.slow
def test_norms_of_many_channels_are_group_norm() -> None:
    """32 channels in each group: their statistics scatter little, and less than those of 2."""
    h, x = data(3).linear(**H0).activation("relu"), field(2, 3, 2)
    many = kernel(h.layer_norm(epsilon=1e-3, over_positions=True), x)
    apart = []
    for channels in (2, 32):
        few = kernel(h.group_norm(channels, epsilon=1e-3), x, draws=2**10)
        apart.append(
            [
                np.abs(one - two).max() / np.abs(two).max()
                for one, two in ((few.S, many.S), (few.Theta, many.Theta))
            ]
        )
    assert max(apart[1]) < 0.08
    assert max(apart[1]) < min(apart[0]) / 2


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


@pytest.mark.statistical
@pytest.mark.parametrize("flat", [True, False])
def test_random_torch_networks_approach_the_kernel(flat: bool) -> None:
    x, law = field(2, 8, 3), {"C_W": 1.6, "C_b": 0.2}
    h = data(8).convolution(3, padding=1, **law).activation("relu").max_pool(2)
    h = h.convolution(3, padding=1, **law).activation("relu")
    found = closely(h.flatten(**law) if flat else h.mean().linear(**law), x)
    for width, networks in ((64, 200), (256, 50)):
        mean, error = measured_ntk(width, networks, x, flat)
        spread = np.sqrt(error**2 + found.errors[1] ** 2 + (found.Theta / width) ** 2)
        assert (error < 0.03 * found.Theta).all()
        assert np.abs((mean - found.Theta) / spread).max() < 3.5


def test_sources_of_weights_of_few_channels_are_their_own() -> None:
    h = data(4).linear(**H0)
    one, two = (h.convolution(3, group=1, **H1).field for _ in range(2))
    assert isinstance(one, Grouped)
    assert isinstance(two, Grouped)
    assert not any(a.meets(b) for a in one.own_sources for b in two.own_sources)
    assert any(a.meets(b) for a in one.sources for b in two.sources)
