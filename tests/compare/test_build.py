from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import foretrain as ft
from foretrain.compare.build import build, parameter_groups
from foretrain.support.errors import InputError

MLP = ft.MLP(
    "tanh",
    depth=4,
    width=[3, 5, 5],
    n_in=2,
    n_out=2,
    C_b=[0.3, 0.1, 0.0, 0.2],
    C_W=[1.5, 0.7, 1.0, 2.0],
    lambda_b=[0.5, 1.0, 2.0, 3.0],
    lambda_W=[1.0, 0.2, 0.0, 4.0],
    gamma=[0.0, 0.0, 0.6, 0.0],
)
X = np.array([[0.3, -1.2], [0.8, 0.4], [1.5, 0.1]])


def numpy_forward(network: nn.Module, X: np.ndarray) -> list[np.ndarray]:
    """Formulas (4.2) and (B.3) written out once more."""
    state = {name: value.numpy() for name, value in network.state_dict().items()}
    found: list[np.ndarray] = []
    for index, gamma in enumerate(MLP.gamma):
        signal = np.tanh(found[-1]) if found else X
        z = signal @ state[f"layers.{index}.weight"].T + state[f"layers.{index}.bias"]
        found.append(z + gamma * found[-1] if gamma else z)
    return found


def test_forward_is_the_formula() -> None:
    network = build(MLP, seed=3)
    expected = numpy_forward(network, X)
    found = network.preactivations(torch.tensor(X))
    assert [z.shape[1] for z in found] == [3, 5, 5, 2]
    for z, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(z.detach().numpy(), reference, rtol=1e-13, atol=1e-14)
    assert torch.equal(network(torch.tensor(X)), found[-1])


def test_the_state_is_what_a_torch_user_expects() -> None:
    state = build(MLP).state_dict()
    assert list(state) == [f"layers.{i}.{name}" for i in range(4) for name in ("weight", "bias")]
    assert state["layers.1.weight"].shape == (5, 3)
    assert sum(value.numel() for value in state.values()) == MLP.parameter_count


def test_variances_are_those_of_the_parametrisation() -> None:
    mlp = ft.MLP("relu", depth=2, width=400, n_in=300, n_out=300, C_b=[0.5, 0.0], C_W=[1.3, 0.8])
    network = build(mlp, seed=1)
    for layer, linear in zip(mlp.layers, network.layers, strict=True):
        weights = linear.weight.detach().numpy().ravel() * np.sqrt(linear.in_features)
        error = layer.C_W * np.sqrt(2 / weights.size)
        assert abs(np.mean(weights**2) - layer.C_W) < 4 * error
        assert abs(np.mean(weights)) < 4 * np.sqrt(layer.C_W / weights.size)
    biases = network.layers[0].bias.detach().numpy()
    assert abs(np.mean(biases**2) - 0.5) < 4 * 0.5 * np.sqrt(2 / biases.size)
    assert not network.layers[1].bias.any()


def test_seed_dtype_and_inputs() -> None:
    free = ft.MLP("tanh", depth=2, width=4)
    one, same, other = build(free, 3), build(free, 3), build(free, 3, seed=1)
    assert torch.equal(one.layers[0].weight, same.layers[0].weight)
    assert not torch.equal(one.layers[0].weight, other.layers[0].weight)
    single = build(free, 3, dtype=torch.float32)
    assert single(torch.zeros(1, 3)).dtype == torch.float32
    torch.testing.assert_close(single.layers[0].weight.double(), one.layers[0].weight, rtol=1e-6, atol=0)
    with pytest.raises(InputError, match="n_in is 3"):
        build(MLP, n_in=3)
    with pytest.raises(InputError, match="n_in is not set"):
        build(free)


def test_repr_tells_the_parametrisation() -> None:
    text = repr(build(MLP))
    assert "W ~ N(0, C_W / fan-in)" in text
    assert "residual MLP tanh" in text


def test_one_step_of_sgd_is_the_theory_of_gradient_descent() -> None:
    """z changes by −η Σ λ_b dz/db dL/db + λ_W / n dz/dW dL/dW, written out for one hidden layer."""
    mlp = ft.MLP("sin", depth=2, width=3, n_in=2, C_b=0.2, lambda_b=[0.7, 0.4], lambda_W=[1.5, 2.5])
    network, eta = build(mlp, seed=5), 0.03
    x, y = torch.tensor(X), torch.tensor([[0.4], [-0.2], [1.0]], dtype=torch.float64)
    W1, b1, W2, b2 = (
        network.state_dict()[f"layers.{i}.{name}"].clone().numpy()
        for i in (0, 1)
        for name in ("weight", "bias")
    )
    optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta))
    (0.5 * (network(x) - y) ** 2).sum().backward()
    optimizer.step()
    z = X @ W1.T + b1
    residual = (np.sin(z) @ W2.T + b2) - y.numpy()
    back = residual @ W2 * np.cos(z)
    expected = {
        "layers.0.weight": W1 - eta * 1.5 / 2 * back.T @ X,
        "layers.0.bias": b1 - eta * 0.7 * back.sum(axis=0),
        "layers.1.weight": W2 - eta * 2.5 / 3 * residual.T @ np.sin(z),
        "layers.1.bias": b2 - eta * 0.4 * residual.sum(axis=0),
    }
    for name, value in network.state_dict().items():
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-12, atol=1e-15)


def test_groups_fit_any_network_of_linear_layers() -> None:
    mlp = ft.MLP("relu", depth=2, width=4, n_in=3)
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))
    assert [group["lr"] for group in parameter_groups(plain, mlp, 0.6)] == pytest.approx([0.6, 0.2, 0.15])
    with pytest.raises(InputError, match="depth 3"):
        parameter_groups(plain, ft.MLP("relu", depth=3, width=4, n_in=3), 0.1)
    with pytest.raises(InputError, match=r"layer 1 .*width 4"):
        parameter_groups(plain, ft.MLP("relu", depth=2, width=5, n_in=3), 0.1)


@pytest.mark.parametrize("eta", [np.nan, np.inf, -0.1, "fast", None, True])
def test_learning_rates_that_are_none_are_refused(eta: object) -> None:
    mlp = ft.MLP("relu", depth=2, width=4, n_in=3)
    with pytest.raises(InputError, match="learning rate"):
        parameter_groups(build(mlp), mlp, eta)


def test_groups_need_a_network_and_its_architecture() -> None:
    mlp = ft.MLP("relu", depth=2, width=4, n_in=3)
    with pytest.raises(InputError, match="network is None"):
        parameter_groups(None, mlp, 0.1)
    with pytest.raises(InputError, match="give an MLP"):
        parameter_groups(build(mlp), None, 0.1)
    with pytest.raises(InputError, match="give an MLP"):
        build(None)
