"""Inputs that are copies or multiples of each other, or zero, with activations that have kinks or jumps."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.gaussian import expectation
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.kernel_functions import KernelFunctions

KINKED = ("relu", "leaky_relu", "abs", "selu", "softsign", "elu")
NAMES = ["K", "V", "G1", "norm_covariance", "entry_variance"]
X = np.array([[1.0, 0.2, -0.4], [0.3, -1.0, 0.5]])


@pytest.mark.parametrize(
    ("name", "layer", "V", "G1"),
    [
        ("perceptron", 3, (0.36, 0.25351449, 0.14702898, 0.35179283), 0.0241614746),
        ("perceptron", 4, (0.36, 0.27656984, 0.19313968, 0.34740661), 0.0182369293),
        ("sign", 3, (0.0, 0.0, 0.0, 2.27013415), 0.0750216565),
        ("sign", 4, (0.0, 0.0, 0.0, 1.70685488), 0.0448007787),
    ],
)
def test_discontinuous_activations(name: str, layer: int, V: tuple[float, ...], G1: float) -> None:
    """Values of the literal recursions (4.119), (4.115) with inverse kernels."""
    found = flow(MLP(name, depth=4, width=[12, 20, 7], C_b=0.1, C_W=1.2), X, NAMES)
    at = found["V"].sel(layer=layer).values
    np.testing.assert_allclose([at[0, 0, 0, 0], at[0, 0, 0, 1], at[0, 0, 1, 1], at[0, 1, 0, 1]], V, atol=2e-8)
    np.testing.assert_allclose(found["G1"].sel(layer=layer).values, [[0, G1], [G1, 0]], atol=1e-9)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", [*KINKED, "tanh", "gelu"])
def test_a_zero_input_stays_zero_and_leaves_the_others_alone(name: str) -> None:
    net = MLP(name, depth=4, width=[9, 14, 11], C_W=1.1)
    found, alone = (flow(net, inputs, NAMES) for inputs in (np.concatenate([np.zeros((1, 3)), X]), X))
    for key in NAMES:
        values = found[key].values
        inner = values[np.ix_(range(4), *[[1, 2]] * (values.ndim - 1))]
        np.testing.assert_allclose(inner, alone[key].values, rtol=1e-8, atol=1e-11)
        assert np.abs(values[:, 0]).max() < 1e-300  # zero, up to the smallest of floats


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs"])
def test_multiples_of_an_input_are_multiples_in_every_layer(name: str) -> None:
    net = MLP(name, depth=4, width=[9, 14, 11], C_W=1.3)
    found = flow(net, np.stack([X[0], 2 * X[0]]), ["V", "G1"])
    alone = flow(net, X[:1], ["V"])["V"].values.ravel()
    np.testing.assert_allclose(found["G1"].values, 0.0, atol=1e-12)
    for places in np.ndindex(2, 2, 2, 2):
        np.testing.assert_allclose(found["V"].values[:, *places], 2 ** sum(places) * alone, rtol=1e-9)


@pytest.mark.slow
def test_a_multiple_at_one_layer_only() -> None:
    """ELU: 2x is twice x at layer 1 only; G1 at layer 3 against nearly collinear inputs."""
    net = MLP("elu", depth=3, width=[9, 14], C_W=1.3)
    tied, near = (
        flow(net, np.stack([X[0], 2 * X[0] + gap]), ["V", "G1"])
        for gap in (0.0, np.array([1e-4, -1e-4, 2e-4]))
    )
    for key in ("V", "G1"):
        np.testing.assert_allclose(tied[key].values, near[key].values, rtol=2e-3, atol=1e-6)


def test_functions_of_the_kernel_of_a_shifted_step() -> None:
    """g = P(z > 1): its derivatives by finite differences, where the delta function of s' is not at 0."""

    def step(z: np.ndarray) -> np.ndarray:
        return np.where(z > 1.0, 1.0, 0.0)

    functions = KernelFunctions(step)
    K, h = 1.3, 1e-3

    def g(variance: float) -> float:
        return float(
            expectation([functions.activation, functions.activation], np.full((2, 2), variance)).value
        )

    at = functions.at(K)
    assert float(at.square_slope) == pytest.approx((g(K + h) - g(K - h)) / (2 * h), rel=1e-5)
    assert float(at.square_bend) == pytest.approx((g(K + h) - 2 * g(K) + g(K - h)) / h**2, rel=1e-3)
    assert np.isinf(at.slope_square)
