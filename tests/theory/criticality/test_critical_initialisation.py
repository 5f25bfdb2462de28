"""Networks at criticality: hyperparameters, learning rates, sides of the fixed point, and random networks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import criticality
from foretrain.theory.criticality.critical_initialisation import critical_side
from foretrain.theory.ensembles import sample_preactivations
from foretrain.theory.kernel_functions import KernelFunctions


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "softsign"])
def test_every_layer_is_critical(name: str) -> None:
    mlp, found = MLP.critical(name, depth=4, width=8, n_in=3, n_out=2), criticality(name)
    assert (set(mlp.C_b), set(mlp.C_W)) == ({found.C_b}, {found.C_W})
    assert mlp.widths == (3, 8, 8, 8, 2)


def test_layers_without_skip_take_the_plain_values() -> None:
    mlp = MLP.critical("gelu", depth=4, width=8, gamma=0.6)
    found = criticality("gelu")
    np.testing.assert_allclose(np.array(mlp.C_W) / found.C_W, [1, 0.64, 0.64, 1])
    np.testing.assert_allclose(np.array(mlp.C_b) / found.C_b, [1, 0.64, 0.64, 1])
    assert mlp.gamma == (0.0, 0.6, 0.6, 0.0)
    each = MLP.critical("tanh", depth=4, width=8, gamma=[0.0, 0.6, 0.8, 0.0])
    np.testing.assert_allclose(each.C_W, [1, 0.64, 0.36, 1])


def tangent_kernel(mlp: MLP, first: float) -> np.ndarray:
    """Diagonal of the frozen NTK at every layer for one input (9.28), with skip connections."""
    functions, K = KernelFunctions(mlp.activation), first
    theta = [mlp.lambda_b[0] + mlp.lambda_W[0] * first]
    for layer in mlp.layers[1:]:
        g, _, _, slope_square, _, _ = functions.fast(K)
        chi = layer.gamma**2 + layer.C_W * slope_square
        theta.append(layer.lambda_b + layer.lambda_W * g + chi * theta[-1])
        K = layer.C_b + layer.C_W * g + layer.gamma**2 * K
    return np.array(theta)


def test_rates_of_the_scale_invariant_class() -> None:
    """(9.94): lambda / L in every layer gives Theta = lambda_b + lambda_W A_2 K (plus the first layer's own)."""
    mlp = MLP.critical("relu", depth=50, width=8, lambda_b=2.0, lambda_W=3.0)
    assert set(mlp.lambda_b) == {2.0 / 50}
    assert set(mlp.lambda_W) == {3.0 / 50}
    assert tangent_kernel(mlp, 0.7)[-1] == pytest.approx(2.0 + 3.0 * 0.35, rel=0.02)


def test_rates_of_odd_activations() -> None:
    """(9.96), and Theta -> lambda_b + lambda_W s_1^2 / (-a_1)."""
    mlp = MLP.critical("tanh", depth=2000, width=8, lambda_b=2.0, lambda_W=3.0)
    np.testing.assert_allclose(mlp.lambda_b[:3], [2.0, 1.0, 2 / 3])
    assert set(mlp.lambda_W) == {3.0}
    assert tangent_kernel(mlp, 1.0)[-1] == pytest.approx(2.0 + 3.0 / 2, rel=0.01)


@pytest.mark.slow
def test_rates_of_an_activation_with_another_exponent() -> None:
    """(9.95) for tanh + 0.3 tanh^2: p_perp = b_1 / a_1."""
    s = 0.6
    a_1, b_1 = -2 + 0.75 * s**2, -2 + s**2
    mlp = MLP.critical(lambda z: np.tanh(z) + 0.3 * np.tanh(z) ** 2, depth=2000, width=8)
    p, layers = b_1 / a_1, np.arange(1, 2001)
    np.testing.assert_allclose(mlp.lambda_b, layers**-p * 2000 ** (p - 1), rtol=1e-8)
    np.testing.assert_allclose(mlp.lambda_W, (2000 / layers) ** (p - 1), rtol=1e-8)
    assert tangent_kernel(mlp, 1.0)[-1] == pytest.approx(1 - 1 / a_1, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gamma"), [("softsign", None), ("selu", None), ("gelu", 0.5), ("tanh", 0.6)]
)
def test_the_tangent_kernel_stays_of_order_one(name: str, gamma: float | None) -> None:
    first = criticality(name).K_star or 4.0
    ends = [
        tangent_kernel(MLP.critical(name, depth=depth, width=8, gamma=gamma), first)[-1]
        for depth in (250, 500, 1000)
    ]
    assert 0.1 < ends[-1] < 20
    assert abs(ends[2] / ends[1] - 1) < 0.05
    assert abs(ends[2] / ends[1] - 1) < abs(ends[1] / ends[0] - 1) + 0.01


def test_tuned_weights_carry_the_correction() -> None:
    mlp = MLP.critical("tanh", depth=4, width=[50, 100, 200], tuned=True)
    np.testing.assert_allclose(mlp.C_W, [1, 1 + 2 / 150, 1 + 2 / 300, 1 + 2 / 600])
    residual = MLP.critical("tanh", depth=4, width=100, gamma=0.6, tuned=True)
    relative = 1 + 2 / 3 * 1.36 / 100
    np.testing.assert_allclose(residual.C_W, [1, 0.64 * relative, 0.64 * relative, relative])
    with pytest.raises(NotSupportedError, match="not known for gelu"):
        MLP.critical("gelu", depth=4, width=8, tuned=True)
    with pytest.raises(NotSupportedError, match="one gamma"):
        MLP.critical("tanh", depth=4, width=8, gamma=[0, 0.5, 0.6, 0], tuned=True)


def test_inputs_on_the_repelling_side_are_named() -> None:
    found = criticality("gelu")
    x = np.sqrt((np.array([1.0, 3.3, found.K_star * 1.001, 20.0]) - found.C_b) / found.C_W)[:, None]
    with pytest.warns(AccuracyWarning, match=r"2 of 4 inputs .*K = 1 to 3.3.*K = 3.03498"):
        mlp = MLP.critical("gelu", depth=3, width=8, X=x)
    assert mlp.n_in == 1
    side = critical_side(mlp, x)
    assert side.attracted.tolist() == [False, False, True, True]
    np.testing.assert_allclose(np.diag(mlp.first_kernel(side.factors[:, None] * x)), found.K_star)
    np.testing.assert_allclose(side.kernels, critical_side(found, x).kernels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MLP.critical("gelu", depth=3, width=8, X=x[2:])


@pytest.mark.slow
def test_sides_of_the_other_classes() -> None:
    x = np.array([[1.0, 2.0], [0.0, 0.0]])
    assert critical_side(MLP.critical("relu", 3, 8), x).attracted.all()
    side = critical_side(MLP.critical("tanh", 3, 8), x)
    assert side.attracted.all()
    assert "All 2 inputs flow to K* = 0" in repr(side)
    with pytest.warns(AccuracyWarning, match="grow without bound"):
        MLP.critical("mish", 3, 8, X=[[3.0]])
    stuck = critical_side(MLP.critical("gelu", 3, 8), x[1:])
    assert "other C_b and C_W" in stuck.sentence


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("sigmoid", "0.5 at 0"),
        ("softplus", "use another activation"),
        (lambda z: z + z**3, "C_b=0, C_W=1"),
    ],
)
def test_no_criticality_is_refused_with_advice(name: object, advice: str) -> None:
    with pytest.raises(NotSupportedError, match=advice):
        MLP.critical(name, depth=3, width=8)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="gamma is 1"):
        MLP.critical("tanh", depth=3, width=8, gamma=1.0)
    with pytest.raises(InputError, match="depth is 0"):
        MLP.critical("tanh", depth=0, width=8)


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "gamma"), [("relu", None), ("gelu", None), ("tanh", 0.6), ("elu", None)])
def test_random_networks_keep_variance_and_angle(name: str, gamma: float | None) -> None:
    """Measured variances follow the kernel, and neither they nor angles change exponentially over 30 layers."""
    draws, width, depth = 200, 400, 30
    found = criticality(name)
    size = np.sqrt(((found.K_star or 1.0) * 1.2 - found.C_b) / found.C_W)
    X = size * np.sqrt(2) * np.array([[1.0, 0.0], [np.cos(0.5), np.sin(0.5)]])
    mlp = MLP.critical(name, depth=depth, width=width, gamma=gamma)
    z = sample_preactivations(mlp, X, draws, layers=[1, depth - 1], seed=1)
    first, last = (np.mean(z[layer][..., 0] ** 2, axis=1) for layer in (1, depth - 1))
    functions, K = KernelFunctions(name), float(mlp.first_kernel(X)[0, 0])
    for layer in mlp.layers[1 : depth - 1]:
        K = layer.C_b + layer.C_W * float(functions.fast(K)[0]) + layer.gamma**2 * K
    error = last.std() / np.sqrt(draws)
    # The mean differs from K by G1 / width, of relative order depth / width, besides the error of the mean.
    assert abs(last.mean() - K) < 4 * error + 0.5 * depth / width * K
    assert first.mean() == pytest.approx(float(mlp.first_kernel(X)[0, 0]), rel=0.02)
    cosine = np.mean(np.prod(z[depth - 1], axis=-1)) / np.sqrt(
        np.prod(np.mean(z[depth - 1] ** 2, axis=(0, 1)))
    )
    assert cosine < 0.9999  # nearby inputs are still told apart
    doubled = mlp.replace(C_W=[2 * value for value in mlp.C_W])
    exploded = sample_preactivations(doubled, X, 20, layers=[depth - 1], seed=1)[depth - 1]
    halved = mlp.replace(C_W=[0.5 * value for value in mlp.C_W], C_b=0.0)
    vanished = sample_preactivations(halved, X, 20, layers=[depth - 1], seed=1)[depth - 1]
    assert np.mean(exploded**2) > 3 * K
    assert np.mean(vanished**2) < 1e-2 * K
