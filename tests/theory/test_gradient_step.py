"""One gradient step: exact kernels of networks in two ways, real steps in numpy and torch, and ensembles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from foretrain.compare.build import build, parameter_groups
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import Parameters, forward, sample_parameters
from foretrain.theory.flow import flow
from foretrain.theory.gradient_step import ensemble_step, kernel_step, mean_step, network_steps
from foretrain.theory.learning_rates import recommended
from foretrain.theory.network_tangent_kernel import (
    LayerRates,
    descend,
    forward_kernels,
    layer_contributions,
    output_kernel,
)

X = np.array([[1.0, 0.5, -0.7], [0.2, -1.1, 0.9], [1.3, 0.4, 0.6]])
Y = np.array([[1.0, -0.5], [-0.7, 0.8], [0.4, 1.2]])
X_TEST, Y_TEST = np.array([[-0.5, 0.8, 0.3]]), np.array([[0.3, 0.1]])


def network(name: str = "tanh", gamma: list[float] | None = None) -> MLP:
    return MLP(
        name,
        4,
        [5, 4, 4],
        n_in=3,
        n_out=2,
        C_b=[0.1, 0.05, 0.2, 0.1],
        C_W=1.5,
        lambda_b=[0.3, 0.2, 0.5, 0.1],
        lambda_W=[1, 0.7, 1.2, 0.5],
        gamma=gamma,
    )


def random_rates(mlp: MLP, seed: int) -> list[LayerRates]:
    """A full random positive semidefinite lambda for every layer and group."""
    source, found = np.random.default_rng(seed), []
    for fan_in, width in zip(mlp.widths, mlp.widths[1:], strict=False):
        matrices = []
        for size in (width, width * fan_in):
            root = source.normal(size=(size, size)) / size**0.5
            matrices.append(root @ root.T)
        found.append(LayerRates(*matrices))
    return found


def jacobian(
    parameters: Parameters, inputs: np.ndarray, step: float = 1e-6
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Central differences of the outputs of one network: for each layer (parameters, n_L, inputs), two groups."""

    def outputs(layer: int, group: str, index: tuple[int, ...], by: float) -> np.ndarray:
        arrays = [array.copy() for array in getattr(parameters, group)]
        arrays[layer][index] += by
        return forward(replace(parameters, **{group: tuple(arrays)}), inputs)[parameters.mlp.depth][0]

    found = []
    for layer in range(parameters.mlp.depth):
        pair = []
        for group in ("biases", "weights"):
            places = list(np.ndindex(getattr(parameters, group)[layer].shape))
            slopes = [
                (outputs(layer, group, place, step) - outputs(layer, group, place, -step)) / (2 * step)
                for place in places
            ]
            pair.append(np.array(slopes))
        found.append((pair[0], pair[1]))
    return found


@pytest.mark.parametrize(("name", "gamma"), [("tanh", None), ("gelu", [0.0, 0.0, 0.6, 0.0]), ("relu", None)])
def test_kernels_against_finite_differences(name: str, gamma: list[float] | None) -> None:
    mlp = network(name, gamma)
    both = sample_parameters(mlp, 2, seed=3)
    parameters = Parameters(mlp, tuple(w[:1] for w in both.weights), tuple(b[:1] for b in both.biases))
    slopes = jacobian(parameters, X)
    standard = layer_contributions(parameters, X)[0]
    rates = random_rates(mlp, 1)
    tensorial = layer_contributions(parameters, X, rates)[0]
    for number, (bias, weight) in enumerate(slopes):
        unit = np.einsum("pia,pjb->ijab", bias, bias)
        np.testing.assert_allclose(standard[number, 0], mlp.lambda_b[number] * unit, atol=2e-8)
        scale = mlp.lambda_W[number] / mlp.widths[number]
        np.testing.assert_allclose(
            standard[number, 1], scale * np.einsum("pia,pjb->ijab", weight, weight), atol=2e-8
        )
        for group, slope in enumerate((bias, weight)):
            matrix = (rates[number].bias, rates[number].weight)[group]
            expected = np.einsum("pia,pq,qjb->ijab", slope, matrix, slope)
            np.testing.assert_allclose(tensorial[number, group], expected, atol=2e-7)


@pytest.mark.parametrize("gamma", [None, [0.0, 0.0, 0.6, 0.0]])
def test_forward_and_backward_agree(gamma: list[float] | None) -> None:
    mlp = network(gamma=gamma)
    parameters = sample_parameters(mlp, 3, seed=5)
    for rates in (None, random_rates(mlp, 2)):
        layers, last = forward_kernels(parameters, X, rates), output_kernel(parameters, X, rates)
        np.testing.assert_allclose(layers[4], last, rtol=1e-10, atol=1e-13)
        matrix = last[0].transpose(2, 0, 3, 1).reshape(6, 6)
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-13)
        assert np.linalg.eigvalsh(matrix).min() > -1e-12
    # A hidden layer's kernel is the output kernel of the network cut off there.
    if gamma is None:
        cut = MLP("tanh", 3, [5, 4], n_in=3, n_out=4, lambda_b=mlp.lambda_b[:3], lambda_W=mlp.lambda_W[:3])
        shorter = Parameters(cut, parameters.weights[:3], parameters.biases[:3])
        np.testing.assert_allclose(forward_kernels(parameters, X)[3], output_kernel(shorter, X), rtol=1e-10)


def test_step_predictions_are_first_order() -> None:
    """Deviations of loss, unseen outputs and test loss from (7.14), (7.20) fall as eta^2, with any PSD lambda."""
    mlp = network()
    parameters = sample_parameters(mlp, 2, seed=7)
    rates, everything = random_rates(mlp, 4), np.concatenate([X, X_TEST])
    before = forward(parameters, everything)[4]
    misses = []
    for eta in (1e-3, 1e-4):
        after = forward(descend(parameters, X, Y, eta, rates), everything)[4]
        steps = network_steps(parameters, X, Y, eta, X_TEST, rates)
        found = []
        for net, step in enumerate(steps):
            change = after[net] - before[net]
            losses = [np.sum((z[net, :, :3] - Y.T) ** 2) / 2 for z in (before, after)]
            tests = [np.sum((z[net, :, 3:] - Y_TEST.T) ** 2) / 2 for z in (before, after)]
            assert step.loss == pytest.approx(losses[0])
            assert step.loss_change < 0
            np.testing.assert_allclose(step.change.T, change, atol=0.1 * np.abs(change).max())
            found.append(
                [
                    np.abs(step.change.T - change).max(),
                    abs(step.loss_change - (losses[1] - losses[0])),
                    abs(step.test_loss_change(Y_TEST) - (tests[1] - tests[0])),
                ]
            )
        misses.append(np.array(found))
    ratio = misses[0] / misses[1]
    assert (ratio > 80).all()
    assert (ratio < 120).all()


@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
def test_a_real_torch_step(name: str) -> None:
    """SGD with the recommended rates as parameter groups moves outputs as the backward equation says."""
    mlp = MLP.critical(name, depth=4, width=6, n_in=3, n_out=2, lambda_b=0.7, lambda_W=1.3)
    mlp = recommended(mlp, X, lambda_b=0.7, lambda_W=1.3).on(mlp)
    model = build(mlp, seed=11)
    parameters = Parameters(
        mlp,
        tuple(layer.weight.detach().numpy()[None].copy() for layer in model.layers),
        tuple(layer.bias.detach().numpy()[None].copy() for layer in model.layers),
    )
    eta = 1e-6
    optimizer = torch.optim.SGD(parameter_groups(model, mlp, eta=eta))
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    before = model(x).detach().numpy()
    (0.5 * (model(x) - y) ** 2).sum().backward()
    optimizer.step()
    moved = descend(parameters, X, Y, eta)
    for layer, weight, bias in zip(model.layers, moved.weights, moved.biases, strict=True):
        np.testing.assert_allclose(layer.weight.detach().numpy(), weight[0], atol=1e-13)
        np.testing.assert_allclose(layer.bias.detach().numpy(), bias[0], atol=1e-13)
    (step,) = network_steps(parameters, X, Y, eta)
    change = model(x).detach().numpy() - before
    np.testing.assert_allclose(change, step.change, atol=1e-4 * np.abs(change).max())


def test_kernel_step_by_hand() -> None:
    H = np.array([[2.0, 0.5, -1.0], [0.5, 1.0, 0.3], [-1.0, 0.3, 4.0]])
    step = kernel_step(H, [1.0, 2.0, 3.0], [0.0, 5.0], eta=0.1)
    np.testing.assert_allclose(step.change[:, 0], [-0.05, 0.25, 0.19])
    assert (step.loss, step.training) == (5.0, 2)
    assert step.loss_change == pytest.approx(-0.1 * (2 - 2 * 1.5 + 9))
    assert step.loss_after == pytest.approx(4.2)
    assert step.test_loss_change([1.0]) == pytest.approx(2 * 0.19)
    assert step.change_of([[0], [0], [2.0]]) == pytest.approx(0.38)
    np.testing.assert_allclose(step.outputs_after[:, 0], [0.95, 2.25, 3.19])
    full = np.einsum("ij,ab->ijab", np.array([[1, 0.3], [0.3, 2]]), H)
    z, y = np.array([[1.0, 0.2], [2.0, -1], [3, 1]]), np.array([[0.0, 1], [5, 1]])
    error = z[:2] - y
    expected = -0.1 * np.einsum("ij,da,aj->di", np.array([[1, 0.3], [0.3, 2]]), H[:, :2], error)
    np.testing.assert_allclose(kernel_step(full, z, y, 0.1).change, expected)


def test_ensemble_is_the_average_of_its_networks() -> None:
    """Exact Gaussian averages against mean_step on sampled outputs."""
    mlp, eta = network(), 0.05
    everything = np.concatenate([X, X_TEST])
    K = flow(mlp, everything, ["K"])["K"].sel(layer=4).values
    z = np.random.default_rng(0).multivariate_normal(np.zeros(4), K, size=(4000, 2)).transpose(0, 2, 1)
    Theta = flow(mlp, everything, ["Theta"])["Theta"].sel(layer=4).values
    steps = [kernel_step(Theta, outputs, Y, eta) for outputs in z]
    found = ensemble_step(mlp, X, Y, eta, X_TEST)
    one = mean_step(mlp, X, Y, eta, z[0], X_TEST)
    np.testing.assert_allclose(one.change, steps[0].change, rtol=1e-9)
    after = np.stack([step.outputs_after for step in steps])
    deviation = np.sqrt(np.diagonal(found.covariance.values) / len(z))[:, None]
    assert (np.abs(after.mean(axis=0) - found["mean"].values) < 4.5 * deviation).all()
    spread = np.einsum("sai,sbi->ab", after - found["mean"].values, after - found["mean"].values) / (
        2 * len(z)
    )
    np.testing.assert_allclose(spread, found.covariance, atol=4.5 * np.sqrt(2 / (2 * len(z))) * K.max())
    moves = np.stack([step.change for step in steps]) - found["mean"].values
    np.testing.assert_allclose(
        np.einsum("sai,sbi->ab", moves, moves) / (2 * len(z)),
        found.change_covariance,
        atol=4.5 * np.sqrt(1 / len(z)) * found.change_covariance.values.max(),
    )
    for name, values in (
        ("loss", [step.loss for step in steps]),
        ("loss_change", [step.loss_change for step in steps]),
    ):
        variance = float(found[f"{name}_variance"])
        assert np.mean(values) == pytest.approx(float(found[name]), abs=4.5 * np.sqrt(variance / len(z)))
        assert np.var(values) == pytest.approx(variance, rel=0.15)


@pytest.mark.statistical
def test_wide_networks_step_as_the_infinite_one() -> None:
    mlp = MLP("tanh", 3, 400, n_in=3, n_out=2, C_b=0.1, C_W=1.3, lambda_b=0.4, lambda_W=0.8)
    found, draws = ensemble_step(mlp, X, Y, 0.1, X_TEST), 200
    steps = network_steps(sample_parameters(mlp, draws, seed=2), X, Y, 0.1, X_TEST)
    changes = np.stack([step.change for step in steps])
    error = changes.std(axis=0) / np.sqrt(draws)
    assert (np.abs(changes.mean(axis=0) - found["mean"].values) < 4 * error + 3 / 400 * 0.1).all()
    falls = np.array([step.loss_change for step in steps])
    slack = 4 * falls.std() / np.sqrt(draws) + 3 / 400 * abs(float(found.loss_change))
    assert abs(falls.mean() - float(found.loss_change)) < slack
    assert falls.var() == pytest.approx(float(found.loss_change_variance), rel=0.5)


def test_bad_input() -> None:
    mlp = network()
    parameters = sample_parameters(mlp, 2, seed=0)
    with pytest.raises(InputError, match="Y has shape"):
        network_steps(parameters, X, Y[:2], 0.1)
    rates = random_rates(mlp, 0)
    with pytest.raises(InputError, match="positive semidefinite"):
        output_kernel(parameters, X, [LayerRates(-np.eye(5), 1.0), *rates[1:]])
    with pytest.raises(InputError, match="symmetric 20 x 20"):
        output_kernel(parameters, X, [rates[0], LayerRates(1.0, np.eye(3)), *rates[2:]])
    with pytest.raises(InputError, match="list 1 layers"):
        output_kernel(parameters, X, rates[:1])
    with pytest.raises(InputError, match="kernel has shape"):
        kernel_step(np.eye(2), [1.0, 2.0, 3.0], [1.0], 0.1)
    with pytest.raises(InputError, match="dO/dz"):
        kernel_step(np.eye(2), [1.0, 2.0], [1.0], 0.1).change_of([1.0])


@pytest.mark.parametrize("eta", [np.nan, np.inf, -0.1, "fast", None, True])
def test_learning_rates_that_are_none_are_refused(eta: object) -> None:
    mlp = network()
    parameters = sample_parameters(mlp, 2, seed=0)
    outputs = np.zeros((len(X), mlp.n_out))
    for call in (
        lambda: kernel_step(np.eye(len(X)), outputs, Y, eta),
        lambda: mean_step(mlp, X, Y, eta, outputs),
        lambda: ensemble_step(mlp, X, Y, eta),
        lambda: network_steps(parameters, X, Y, eta),
        lambda: descend(parameters, X, Y, eta),
    ):
        with pytest.raises(InputError, match="learning rate"):
            call()


def test_kernels_and_targets_that_cannot_be_are_refused() -> None:
    z, y = np.zeros((2, 1)), np.ones((2, 1))
    with pytest.raises(InputError, match=r"kernel .*not finite"):
        kernel_step([[1.0, np.nan], [np.nan, 1.0]], z, y, 0.1)
    with pytest.raises(InputError, match="not symmetric"):
        kernel_step([[1.0, 0.5], [0.0, 1.0]], z, y, 0.1)
    with pytest.raises(InputError, match="not positive semidefinite"):
        kernel_step([[1.0, -3.0], [-3.0, 1.0]], z, y, 0.1)
    whole = np.random.default_rng(0).standard_normal((2, 2, 2, 2))
    with pytest.raises(InputError, match="not symmetric"):
        kernel_step(whole, np.zeros((2, 2)), np.ones((2, 2)), 0.1)
    with pytest.raises(InputError, match="outputs contains values"):
        kernel_step(np.eye(2), [[np.inf], [0.0]], y, 0.1)
    with pytest.raises(InputError, match="targets"):
        kernel_step(np.eye(2), z, "high", 0.1)
    mlp = network()
    wide = np.zeros((len(X), mlp.n_out + 1))
    with pytest.raises(InputError, match="Y has shape"):
        mean_step(mlp, X, wide, 0.1, wide)
    with pytest.raises(InputError, match="outputs has shape"):
        mean_step(mlp, X, Y, 0.1, wide)
    with pytest.raises(InputError, match="give an MLP"):
        mean_step(None, X, Y, 0.1, Y)
    with pytest.raises(InputError, match="give LayerRates"):
        output_kernel(sample_parameters(mlp, 2, seed=0), X, [None] * mlp.depth)
