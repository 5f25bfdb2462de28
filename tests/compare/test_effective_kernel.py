"""Kernels after real training against predictions: brute force on a tiny network, powers of 1/n, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray
from torch.func import functional_call, jacrev

from foretrain.compare.build import build, parameter_groups
from foretrain.compare.effective_kernel import (
    compare_effective_kernels,
    descended_kernel,
    differentials,
    kernel_of,
    measured_networks,
    root_mean_square,
    slope_of,
)
from foretrain.compare.joint_training import Learner, train_together
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


def test_training_together_is_stochastic_gradient_descent_by_torch() -> None:
    mlp = MLP("gelu", 2, 6, n_in=4, n_out=1, C_b=0.1, C_W=1.5)
    targets, eta, x = (
        [np.array([0.3, -0.2, 0.1]), np.array([-0.4, 0.1, 0.5])],
        [0.11, 0.17],
        torch.from_numpy(X),
    )
    learners = [Learner(build(mlp, seed=seed), targets[seed], eta[seed]) for seed in (0, 1)]
    steps = train_together(learners, x)
    for seed, learner in enumerate(learners):
        network = build(mlp, seed=seed)
        optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta=eta[seed]))
        for _ in range(int(steps.max())):
            optimizer.zero_grad()
            error = network(x)[:, 0] - torch.from_numpy(targets[seed])
            (0.5 * (error**2).sum()).backward()
            optimizer.step()
        assert error.abs().max().item() < 1e-9
        for own, other in zip(network.parameters(), learner.network.parameters(), strict=True):
            assert torch.allclose(own, other, rtol=0, atol=1e-12)


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
        train_together([Learner(network, targets, eta)], x)
        errors.append(np.abs(predicted - kernel_of(network, x)).max())
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


def test_powers_of_known_sizes() -> None:
    widths, draws = np.array([32, 64, 128, 256]), 400
    noise = np.random.default_rng(0).normal(size=(4, draws))
    values = np.abs(noise) * 3.0 / widths[:, None] ** 2 * (1 + 5 / widths[:, None])
    sizes = xarray.DataArray(values, dims=("width", "draw"), coords={"width": widths})
    found = slope_of(sizes)
    assert found.agrees(-2.0)
    assert not found.agrees(-1.0)
    share = slope_of(sizes, xarray.full_like(sizes, 1.0) / sizes.width)
    assert share.value == pytest.approx(found.value + 1, abs=1e-9)
    value, error = root_mean_square(np.abs(noise))
    assert np.abs(value / error).max() < 4
    assert error == pytest.approx(np.full(4, (2 / draws) ** 0.5 / 2), rel=0.3)
    both, none = root_mean_square(values, values)
    assert not both.any()
    assert none == pytest.approx(np.zeros(4), abs=1e-15)


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
    assert "EffectiveKernels of 3 networks" in repr(found)
    assert "tanh: the kernel after training" in found.verdict
    again = compare_effective_kernels(mlp, X[:2], Y[:2], widths=(16, 32, 64), draws=3, seed=2)
    assert again.data.equals(found.data)


def test_bad_input() -> None:
    mlp = MLP.critical("tanh", 2, 8)
    with pytest.raises(InputError, match="three different"):
        compare_effective_kernels(mlp, X, Y, widths=(16, 32))
    with pytest.raises(InputError, match="standard error"):
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
