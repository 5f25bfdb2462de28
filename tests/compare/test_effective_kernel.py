"""Kernels after real training against predictions: brute force on a tiny network, powers of 1/n, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import functional_call, jacrev

from foretrain.compare.build import build, parameter_groups
from foretrain.compare.effective_kernel import (
    compare_effective_kernels,
    descended_kernel,
    differentials,
    kernel_of,
    measured_networks,
    trained_kernels,
)
from foretrain.compare.trained.networks import stacked
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP

X = np.array([[1, 1, 1, 1], [1, -1, 0.6, -1], [1, 0.8, -1, -1]])
TEST = np.array([[0.5, 1, -0.4, 0.9]])
Y = np.array([0.5, -0.5, 0.3])


def test_differentials_are_derivatives_of_the_kernel_written_out() -> None:
    """The kernel along a straight line through parameter space, to second order."""
    mlp = MLP("tanh", 3, 5, n_in=4, n_out=2, C_b=0.1, C_W=1.5, lambda_b=0.4, lambda_W=0.8)
    network = build(mlp, seed=3)
    x = torch.from_numpy(np.concatenate([X, TEST]))
    found = differentials(network, x)
    named = dict(network.named_parameters())
    rates = {id(group["params"][0]): group["lr"] for group in parameter_groups(network, mlp, eta=1.0)}
    jacobian = jacrev(lambda values: functional_call(network, values, (x,)).reshape(-1))(dict(named))
    weights = torch.linspace(-1, 1, 8, dtype=torch.float64)
    along = {
        name: rates[id(named[name])] * torch.tensordot(weights, slope, dims=1)
        for name, slope in jacobian.items()
    }

    def kernel_at(t: float) -> np.ndarray:
        moved = build(mlp, seed=3)
        with torch.no_grad():
            for name, value in moved.named_parameters():
                value += t * along[name]
        return kernel_of(moved, x)

    w, h = weights.numpy(), 3e-4
    first = found.first @ w
    second = (found.third @ w) @ w
    expected = second + second.T + 2 * (found.second @ w) @ w
    plus, minus = kernel_at(h), kernel_at(-h)
    assert (plus - minus) / (2 * h) == pytest.approx(first + first.T, abs=1e-5)
    assert (plus + minus - 2 * found.kernel) / h**2 == pytest.approx(expected, abs=1e-4)


def test_kernels_are_those_of_networks_that_torch_trained() -> None:
    """Each of two networks towards its own targets at its own rate, in as many steps as were told."""
    mlp = MLP("gelu", 2, 6, n_in=4, n_out=2, C_b=0.1, C_W=1.5)
    targets = np.array(
        [(0.3, -0.2, 0.1, 0.4, 0.2, -0.1), (-0.4, 0.1, 0.5, -0.3, 0.2, 0.6)]
    )  # (sample, output)
    etas = np.array([0.11, 0.17])
    inputs = np.concatenate([X, TEST])
    kernels, steps = trained_kernels(
        stacked([build(mlp, seed=seed) for seed in (0, 1)]), inputs, targets, etas
    )
    assert steps[0] != steps[1]
    for seed in (0, 1):
        network = build(mlp, seed=seed)
        optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta=etas[seed]))
        left = [descended(network, optimizer, targets[seed]) for _ in range(int(steps[seed]) + 1)]
        assert left[-1] <= 1e-10 * left[0] < left[-2]
        np.testing.assert_allclose(kernels[seed], kernel_of(network, torch.from_numpy(inputs)), rtol=1e-8)


def descended(network: torch.nn.Module, optimizer: torch.optim.Optimizer, targets: np.ndarray) -> float:
    """The largest residual, before one step of torch."""
    optimizer.zero_grad()
    error = network(torch.from_numpy(X)).reshape(-1) - torch.from_numpy(targets)
    (0.5 * (error**2).sum()).backward()
    optimizer.step()
    return float(error.detach().abs().max())


def test_descent_with_frozen_second_differentials_leaves_the_third_order() -> None:
    """z = a w x, where only the ddNTK of type II is not zero; it moves, which is of third order in the change."""
    mlp = MLP("linear", 2, 1, n_in=1, C_b=0.0, C_W=1.0, lambda_b=0.0, lambda_W=1.0)
    errors = []
    for size in (0.2, 0.1, 0.05):
        network = build(mlp, seed=1)
        with torch.no_grad():
            network.layers[0].weight.fill_(1.3)
            network.layers[1].weight.fill_(0.9)
            for layer in network.layers:
                layer.bias.zero_()
        x = torch.tensor([[1.0], [0.7]], dtype=torch.float64)
        start = differentials(network, x)
        targets = start.outputs[:1] + size
        eta = 0.5 / start.kernel[0, 0]
        predicted = descended_kernel(start, targets, eta)
        (trained,), _ = trained_kernels(stacked([network]), x.numpy(), targets[None], np.array([eta]))
        errors.append(np.abs(predicted - trained).max())
    assert np.divide(errors[:-1], errors[1:]) == pytest.approx(8, rel=0.25)


def test_predictions_at_one_width_by_the_size_of_the_targets() -> None:
    """The odd change is of first order in Y; (11.138) leaves the second order of all, the third of the odd part."""
    mlp = MLP.critical("tanh", 2, 64, n_in=4)
    sizes = [measured_networks(mlp, X, scale * Y, TEST, draws=2, seed=5) for scale in (0.1, 0.05)]
    for name, power in (
        ("odd_change", 1),
        ("left_first", 2),
        ("even_change", 2),
        ("odd_left", 3),
        ("left_second", 3),
    ):
        ratio = sizes[0][name] / sizes[1][name]
        assert ratio == pytest.approx(np.full(2, 2.0**power), rel=0.05), name


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_the_share_left_falls_as_the_inverse_width(name: str) -> None:
    mlp = MLP.critical(name, 2, 128, n_in=4)
    found = compare_effective_kernels(mlp, X, Y, TEST, widths=(128, 256, 512, 1024, 2048), draws=48, seed=1)
    assert found.agrees, found.verdict
    assert found.slope("odd_left", "odd_change").value < -0.6
    assert abs(found.slope("even_change").value + 1) < 0.2


def test_the_comparison_is_labelled_and_told() -> None:
    mlp = MLP.critical("tanh", 2, 8)
    found = compare_effective_kernels(mlp, X[:2], Y[:2], widths=(16, 32, 64), draws=3, seed=2)
    assert dict(found.data.sizes) == {"width": 3, "draw": 3}
    assert found.data.attrs["depth"] == 2
    assert (found.data.odd_left < 0.5 * found.data.odd_change).all()
    assert "over 3 networks per width" in repr(found)
    assert "tanh: the kernel after training" in found.verdict
    again = compare_effective_kernels(mlp, X[:2], Y[:2], widths=(16, 32, 64), draws=3, seed=2)
    assert again.data.equals(found.data)


def test_bad_input() -> None:
    mlp = MLP.critical("tanh", 2, 8)
    with pytest.raises(InputError, match="three different"):
        compare_effective_kernels(mlp, X, Y, widths=(16, 32))
    with pytest.raises(InputError, match="draws is 1"):
        compare_effective_kernels(mlp, X, Y, draws=1)
    with pytest.raises(InputError, match="between 0 and 2"):
        compare_effective_kernels(mlp, X, Y, step=2.0)
    with pytest.raises(InputError, match="not all zero"):
        compare_effective_kernels(mlp, X, 0 * Y)
    with pytest.raises(InputError, match="changes"):
        compare_effective_kernels(mlp, X, Y[:2])
    with pytest.raises(InputError, match="nan or infinite"):
        compare_effective_kernels(mlp, X, Y * np.nan)
    with pytest.raises(InputError, match="X_test has shape"):
        compare_effective_kernels(mlp, X, Y, np.ones((1, 2)))
    with pytest.raises(InputError, match="did not end"):
        compare_effective_kernels(mlp, X[[0, 0]], Y[:2], widths=(8, 16, 32), draws=2)
    with pytest.raises(InputError, match="no hidden layer"):
        compare_effective_kernels(MLP("tanh", 1), X, Y)
    with pytest.raises(NotSupportedError, match="kinks"):
        compare_effective_kernels(MLP.critical("relu", 2, 8), X, Y)
