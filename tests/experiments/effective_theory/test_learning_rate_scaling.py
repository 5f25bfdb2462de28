"""Learning rates against uniform ones: rules share one kernel, norms are gradients, and the experiment agrees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretrain.compare.build import build
from foretrain.experiments import get
from foretrain.experiments.effective_theory import gradients_by_layer as experiment
from foretrain.support.seeds import generator
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

X, Y = experiment._two_moons(generator(0))


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_rules_have_the_same_kernel_in_the_mean(name: str) -> None:
    sizes = []
    for rule in ("recommended", "uniform", "plain"):
        mlp = experiment._with_rule(name, rule, 20, X[:4])
        sizes.append(np.trace(flow(mlp, X[:4], ["Theta"])["Theta"].values[-1]) / 4)
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-10)
    steps = np.array(mlp.lambda_W) / mlp.widths[:-1]
    np.testing.assert_allclose(steps, mlp.lambda_b)  # plain: one step size for every parameter


def test_norms_are_those_of_parameter_gradients() -> None:
    mlp = MLP("tanh", 4, 7, n_in=2, C_b=0.1)
    network = build(mlp, seed=1)
    found = experiment._norms(network, torch.from_numpy(X[:3]))
    expected = np.zeros((4, 2))
    for x in torch.from_numpy(X[:3]):
        network.zero_grad()
        network(x[None]).sum().backward()
        for place, layer in enumerate(network.layers):
            weight = float((layer.weight.grad**2).sum()) / layer.in_features
            expected[place] += np.array([float((layer.bias.grad**2).sum()), weight]) / 3
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_kernel_loss_is_that_of_repeated_steps() -> None:
    mlp, eta, steps = experiment._with_rule("tanh", "recommended", 20, X), 0.01, 3
    found = flow(mlp, X, ["K", "Theta"])
    K, Theta = (found[name].values[-1] for name in ("K", "Theta"))
    error = K + Y @ Y.T
    for step in range(steps + 1):
        assert experiment._kernel_losses(mlp, X, Y, eta, steps)[step] == pytest.approx(0.5 * np.trace(error))
        error = (np.eye(len(X)) - eta * Theta) @ error @ (np.eye(len(X)) - eta * Theta)


def test_two_moons() -> None:
    assert np.mean(X**2) == pytest.approx(1)
    assert Y.sum() == 0


@pytest.mark.statistical
def test_quick_run_agrees_and_draws() -> None:
    result = get("learning-rate-scaling").run()
    assert result.agrees
    assert "measured shares agree" in result.verdict
    assert result.figure is not None
    result.plot()
