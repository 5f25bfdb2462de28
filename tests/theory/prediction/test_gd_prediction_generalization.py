"""One training and one test input, nearby inputs, laws of robustness, interpolation and extrapolation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.nearby import Nearby
from foretrain.theory.prediction.infinite_width import (
    SCALE_INVARIANT_LIMITS,
    GradientDescent,
    TwoOutputs,
    class_robustness,
    constant_rate_robustness,
    constant_rate_robustness_as_printed,
    expanded_mean_as_printed,
    expanded_prediction,
    linear_robustness,
    nearby_training,
    on_the_line,
    one_training_input,
    propagate_tangent,
    robust_hyperparameters,
    tangent_angles,
    tangent_series,
)

SMOOTH = ft.MLP("tanh", depth=3, width=100, C_b=0.1, C_W=1.3, lambda_b=0.2, lambda_W=0.8)
MIDDLE, GAP = np.array([1.0, 0.3, -0.5]), np.array([0.2, 1.0, 0.3])


def bent(z: Any) -> Any:
    return np.tanh(z) + np.tanh(z) ** 2 / 2


def test_one_training_input_is_the_general_prediction() -> None:
    x, y = MIDDLE + GAP / 2, MIDDLE - GAP
    found = one_training_input(SMOOTH, x, y)
    general = GradientDescent.of(SMOOTH, [x], [1.7], [y]).end()
    assert found.mean(1.7) == pytest.approx(general.mean.values.item(), rel=1e-12)
    assert found.variance == pytest.approx(general.covariance.values.item(), rel=1e-12)
    assert found.bias(1.7, 0.4) == pytest.approx(general.mean.values.item() - 0.4)
    assert "robustness" in repr(found)
    with pytest.raises(InputError, match="moves nothing"):
        one_training_input(SMOOTH.replace(lambda_b=0.0, lambda_W=0.0), x, y)


@pytest.mark.parametrize(
    ("tilt", "expected"),
    [
        (
            0.0,
            {
                "K00": 0.05801184784,
                "K0": -7.444232323e-4,
                "K2": 7.905159247e-4,
                "Theta00": 1.645685985,
                "Theta0": -0.01110204547,
                "Theta2": 9.932502528e-3,
            },
        ),
        (
            0.05,
            {
                "K1": 2.304634624e-4,
                "K0": -7.077808168e-4,
                "K2": 7.443940746e-4,
                "Theta1": -5.847714689e-3,
                "Theta0": -0.01031531365,
                "Theta2": 9.426458829e-3,
            },
        ),
    ],
)
def test_nearby_components_of_the_reference(tilt: float, expected: dict[str, float]) -> None:
    mlp = ft.MLP("tanh", depth=10, width=100, lambda_b=[1.3 / layer for layer in range(1, 11)], lambda_W=0.7)
    found = propagate_tangent(mlp, Nearby(1.0, tilt, 0.01), Nearby(2.0, 0.7 * tilt, 0.007)).sel(layer=10)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-9), name


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("act", ["gelu", "sin"])
@pytest.mark.parametrize("gamma", [None, 0.6])
def test_nearby_components_tend_to_the_exact_ones(act: str, gamma: float | None) -> None:
    """What is left out of robustness and variance is of order three where norms differ, four where not."""
    mlp = ft.MLP(act, depth=4, width=50, C_b=0.1, C_W=0.9, lambda_b=0.3, lambda_W=0.7, gamma=gamma)
    across = GAP - (GAP @ MIDDLE) / (MIDDLE @ MIDDLE) * MIDDLE
    for gap, order in ((GAP, 3), (across, 4)):
        errors = []
        for size in (0.2, 0.1):
            exact = one_training_input(mlp, MIDDLE + size * gap / 2, MIDDLE - size * gap / 2)
            found = nearby_training(mlp, MIDDLE, size * gap).sel(layer=4)
            errors.append(
                [float(found["robustness"]) - exact.robustness, float(found["variance"]) - exact.variance]
            )
        ratio = np.array(errors[0]) / np.array(errors[1])
        assert (ratio > 0.75 * 2**order).all()


def test_angles_of_the_reference() -> None:
    mlp = ft.MLP("relu", depth=10, width=100, C_W=2.0, lambda_b=0.05, lambda_W=0.08)
    found = tangent_angles(mlp, [1.0, 0.0], [math.cos(1), math.sin(1)])  # K = 1, psi = 1 in layer 1
    at = found.sel(layer=[2, 5, 10])
    assert at["psi"].values == pytest.approx([0.881275856, 0.660029280, 0.473429104], abs=1e-9)
    assert at["cos_zeta"].values == pytest.approx([0.690355257, 0.533451421, 0.432540066], abs=1e-9)
    assert found["Theta_11"].values == pytest.approx(0.09 * np.arange(1, 11), rel=1e-12)  # (10.91)


def test_angles_agree_with_kernels_at_any_norms() -> None:
    x, y = np.array([1.0, 0.4, -0.2]), np.array([0.3, -1.1, 0.5])
    mlp = ft.MLP("leaky_relu", depth=5, width=30, C_b=0.1, C_W=1.4, lambda_b=0.2, lambda_W=0.6, gamma=0.3)
    found, exact = tangent_angles(mlp, x, y).sel(layer=5), one_training_input(mlp, x, y)
    assert float(found["robustness"]) == pytest.approx(exact.robustness, abs=1e-9)
    assert float(found["variance"]) == pytest.approx(exact.variance, abs=1e-9)


@pytest.mark.slow
def test_deep_scale_invariant_networks_forget_three_quarters() -> None:
    for lambda_b, lambda_W, act in ((1.0, 0.0, "relu"), (0.2, 1.5, "leaky_relu")):
        mlp = ft.MLP.critical(act, depth=6000, width=10, lambda_b=lambda_b, lambda_W=lambda_W)
        deep = tangent_angles(mlp, [1.0, 0.2], [-0.2, 1.0]).isel(layer=-1)
        K = float(ft.MLP.critical(act, depth=1).first_kernel([[1.0, 0.2]])[0, 0])
        assert float(deep["cos_zeta"]) == pytest.approx(SCALE_INVARIANT_LIMITS["cos_zeta"], rel=6e-3)
        assert float(deep["robustness"]) == pytest.approx(SCALE_INVARIANT_LIMITS["robustness"], rel=3e-3)
        assert float(deep["variance"]) / K == pytest.approx(SCALE_INVARIANT_LIMITS["variance / K"], rel=9e-3)


def test_linear_networks_keep_their_robustness_at_every_layer() -> None:
    mlp = ft.MLP("linear", depth=12, width=10, lambda_b=0.3, lambda_W=0.5)
    found = tangent_angles(mlp, [1.0, 0.0], [math.cos(0.8), math.sin(0.8)])
    law = linear_robustness(K=0.5, cos_psi=math.cos(0.8), lambda_b=0.3, lambda_W=0.5)
    assert found["robustness"].values == pytest.approx(law, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "exact_at"),
    [("tanh", 0.03), ("sin", 0.02), pytest.param(bent, 0.04, marks=pytest.mark.statistical)],
)
def test_law_of_robustness(act: Any, exact_at: float) -> None:
    """(10.78) at 1500 layers, where corrections of relative order log L / L are left."""
    depth = 1500
    mlp = ft.MLP.critical(act, depth=depth, width=10, lambda_b=1.3, lambda_W=0.7)
    found = nearby_training(mlp, [1.0, 1.0], [1e-3, -1e-3]).isel(layer=-1)
    power = robust_hyperparameters(act).depth_power
    delta_squared = float(found["K2"]) * depth ** (1 - power)
    law = class_robustness(act, depth, delta_squared, lambda_b=1.3, lambda_W=0.7)
    assert float(found["robustness"]) == pytest.approx(law, rel=exact_at)
    assert power == pytest.approx(0.2 if act is bent else 0.0, abs=1e-6)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("act", "limit"), [("tanh", 2.0), ("sin", 1.35)])
def test_constant_rates_and_the_missing_term(act: str, limit: float) -> None:
    depth = 3000
    mlp = ft.MLP(act, depth=depth, width=10, lambda_b=1.3, lambda_W=0.7)
    found = nearby_training(mlp, [1.0, 1.0], [1e-3, -1e-3]).isel(layer=-1)
    delta_squared = float(found["K2"]) * depth
    assert float(found["Theta2"]) / delta_squared == pytest.approx(limit, rel=0.01)
    law = constant_rate_robustness(act, depth, delta_squared, 1.3, 0.7)
    printed = constant_rate_robustness_as_printed(act, depth, delta_squared, 1.3, 0.7)
    assert float(found["robustness"]) == pytest.approx(law, rel=0.02)
    assert printed / law == pytest.approx(0.7 / limit)


def test_robust_hyperparameters() -> None:
    assert robust_hyperparameters("tanh").depth_power == 0.0
    assert "-3/4" in repr(robust_hyperparameters("relu"))
    assert "10.98" in robust_hyperparameters("linear").advice
    assert robust_hyperparameters("gelu").universality_class == "half-stable"
    with pytest.raises(NotSupportedError, match="no critical initialisation"):
        robust_hyperparameters("sigmoid")
    with pytest.raises(NotSupportedError, match="for K"):
        class_robustness("relu", 10, 0.1)
    with pytest.raises(NotSupportedError, match="odd activations"):
        constant_rate_robustness(bent, 10, 0.1)
    with pytest.raises(InputError, match="needs it positive"):
        constant_rate_robustness("tanh", 10, 0.1, lambda_b=0.0)
    with pytest.raises(InputError, match="both zero"):
        linear_robustness(1.0, 0.5, lambda_b=0.0, lambda_W=0.0)


def test_series_of_the_reference() -> None:
    found = tangent_series(SMOOTH, MIDDLE, GAP)
    assert [found.middle, found.first, found.mean, found.distance, found.cubic] == pytest.approx(
        [1.068533059, 0.0427432, -0.1316000, 0.1624190, -0.0091102], abs=6e-7
    )


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [None, 0.5])
def test_series_agrees_with_the_recursion_of_components(gamma: float | None) -> None:
    mlp = ft.MLP("gelu", depth=5, width=20, C_b=0.2, C_W=1.1, lambda_b=0.4, lambda_W=0.6, gamma=gamma)
    series, parts = tangent_series(mlp, MIDDLE, GAP), nearby_training(mlp, MIDDLE, GAP).isel(layer=-1)
    pairs = {
        "Theta00": series.middle,
        "Theta1": series.first,
        "Theta0": series.mean,
        "Theta2": series.distance,
    }
    for name, value in pairs.items():
        assert float(parts[name]) == pytest.approx(value, rel=1e-9), name


def test_cubic_coefficient_by_differences_of_exact_kernels() -> None:
    """Odd in both places: T(e, 2e) - T(-e, -2e) and two others, solved for d and e of the cubic part."""
    series, step = tangent_series(SMOOTH, MIDDLE, GAP), 0.05
    places = step * np.array([1.0, 2.0, -1.0, -2.0])
    points = MIDDLE + places[:, None] / 2 * GAP
    Theta = ft.flow(SMOOTH, points, ["Theta"], tolerance=1e-13)["Theta"].values[-1]
    odd = {(i, j): (Theta[i, j] - Theta[i + 2, j + 2]) / 2 for i, j in ((0, 0), (0, 1), (1, 1))}
    rows = np.array([[2, 2, 2], [3, 9, 6], [4, 16, 16]], dtype=float)
    # linear e_1 + e_2, d (e_1^3 + e_2^3), e (e_1^2 e_2 + e_1 e_2^2), up to fifth order
    found = np.linalg.solve(rows * np.array([step, step**3, step**3]), list(odd.values()))
    assert found[0] == pytest.approx(series.first / 2, rel=1e-3)
    assert found[2] == pytest.approx(series.cubic, rel=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("equal_norms", [True, False])
def test_expansion_between_two_inputs(equal_norms: bool) -> None:
    """Mean and single networks: the error is of third order, where the printed mean is wrong at second."""
    gap = GAP - (GAP @ MIDDLE) / (MIDDLE @ MIDDLE) * MIDDLE if equal_norms else GAP
    errors, printed = [], []
    for size in (0.1, 0.05):
        plus, minus = MIDDLE + size * gap / 2, MIDDLE - size * gap / 2
        up, down, s = 0.8 + 0.3 * size, 0.8 - 0.5 * size, np.array([0.3, 1.6])
        exact = on_the_line(SMOOTH, plus, minus, up, down, s).mean.values[:, 0]
        series = tangent_series(SMOOTH, MIDDLE, size * gap)
        errors.append(np.abs(expanded_prediction(series, s, up, down) - exact) / size**2)
        printed.append(np.abs(expanded_mean_as_printed(series, s, up, down) - exact) / size**2)
    assert (errors[1] < 0.7 * errors[0]).all()
    assert (errors[1] < 0.05 * printed[1]).all()
    assert (printed[1] > 0.9 * printed[0]).all()


@pytest.mark.slow
def test_expansion_of_a_single_network() -> None:
    """Initial outputs that are smooth along the line, as those of a network are."""
    errors, s = [], 0.35
    for size in (0.1, 0.05):
        places = size / 2 * np.array([1.0, -1.0, 2 * s - 1])
        z = 0.4 - 0.7 * places + 0.9 * places**2
        inputs = MIDDLE + places[:, None] * GAP
        targets = np.array([0.8 + 0.3 * size, 0.8 - 0.5 * size])
        training = GradientDescent.of(SMOOTH, inputs[:2], targets, inputs[2:])
        exact = training.network(z[:2], z[2:]).item()
        series = tangent_series(SMOOTH, MIDDLE, size * GAP)
        found = expanded_prediction(series, s, *targets, TwoOutputs(*z))
        errors.append(abs(float(found) - exact) / size**2)
    assert errors[1] < 0.7 * errors[0]
    assert errors[1] < 0.01


def test_linear_networks_interpolate_and_the_ensemble_agrees_to_fourth_order() -> None:
    linear = ft.MLP("linear", depth=4, width=20, n_out=2, lambda_b=0.3, lambda_W=0.7)
    found = on_the_line(linear, [1.0, 0.2], [0.1, -0.8], [1.5, 0.0], [-0.5, 2.0], [-0.5, 0.25, 2.0])
    s = np.array([-0.5, 0.25, 2.0])[:, None]
    assert found.mean.values == pytest.approx(s * [1.5, 0.0] + (1 - s) * [-0.5, 2.0], abs=1e-9)
    assert np.abs(found.covariance.values).max() < 1e-9
    variances = []
    for size in (0.4, 0.2):
        ends = MIDDLE + size * GAP / 2, MIDDLE - size * GAP / 2
        variances.append(on_the_line(SMOOTH, *ends, 1.0, 1.0, 0.5).covariance.values.item())
    assert variances[0] / variances[1] == pytest.approx(16, rel=0.1)


def test_refusals() -> None:
    relu = ft.MLP("relu", depth=3, width=10, C_W=2.0)
    with pytest.raises(NotSupportedError, match="use tangent_angles"):
        nearby_training(relu, MIDDLE, GAP)
    with pytest.raises(NotSupportedError, match="use on_the_line"):
        tangent_series(relu, MIDDLE, GAP)
    with pytest.raises(NotSupportedError, match="not scale-invariant"):
        tangent_angles(SMOOTH, MIDDLE, GAP)
    with pytest.raises(InputError, match="coincide"):
        expanded_prediction(tangent_series(SMOOTH, MIDDLE, 0 * GAP), 0.5, 1.0, 1.0)
