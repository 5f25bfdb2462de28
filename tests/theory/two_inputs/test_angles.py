"""Finite angles: the exact recursion against the kernel, high precision, the reference's numbers and its own law."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.theory.angles import (
    angle_flow,
    angle_law,
    angle_recursion,
    crossover_depth,
    log_angle_constant,
    sine_excess,
)
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics.kernel_laws import extrapolated
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.flow import flow

RELU = 1 / math.pi


def at_angle(psi: float, second: float = 1.0) -> tuple[list[float], list[float]]:
    return [1.0, 0.0], [second * math.cos(psi), second * math.sin(psi)]


@pytest.mark.parametrize(
    ("psi", "layers", "expected"),
    [
        (math.pi / 2, (2, 10, 100), (1.24685022, 0.545613197, 0.085382232)),
        (1.0, (2, 5, 10), (0.881275856, 0.660029280, 0.473429104)),
    ],
)
def test_relu_angles_of_the_reference(
    psi: float, layers: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    found = angle_flow(MLP("relu", 100, 10, C_W=2.0), *at_angle(psi, 1.7))["psi"].sel(layer=list(layers))
    np.testing.assert_allclose(found, expected, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["relu", "leaky_relu", "abs", "linear"]),
    st.floats(0.0, 0.5),
    st.floats(0.3, 2.5),
    st.sampled_from([None, 0.6, -0.4]),
    st.integers(0, 2**31 - 1),
)
def test_recursion_is_the_kernel(name: str, C_b: float, C_W: float, gamma: float | None, seed: int) -> None:
    mlp = MLP(name, depth=5, width=10, C_b=C_b, C_W=C_W, gamma=gamma)
    X = np.random.default_rng(seed).standard_normal((2, 3))
    found, K = angle_flow(mlp, *X), flow(mlp, X)["K"].values
    norm = np.sqrt(K[:, 0, 0] * K[:, 1, 1])
    np.testing.assert_allclose(norm * np.cos(found["psi"]), K[:, 0, 1], atol=1e-12 * norm.max())
    np.testing.assert_allclose(found["K_22"], K[:, 1, 1], rtol=1e-12)
    np.testing.assert_allclose(
        found["K_2"], (K[:, 0, 0] + K[:, 1, 1] - 2 * K[:, 0, 1]) / 4, atol=1e-12 * norm.max()
    )


@pytest.mark.parametrize("psi", [1e-9, 1e-4, 0.6, 2.0, 3.1])
@pytest.mark.parametrize("rho", [0.05, RELU, 2 / math.pi])
def test_recursion_keeps_its_digits(rho: float, psi: float) -> None:
    with mpmath.workdps(50):
        angle, weight = mpmath.mpf(psi), 2 / mpmath.pi if rho == 2 / math.pi else mpmath.mpf(rho)
        for _ in range(60):
            cosine = mpmath.cos(angle)
            angle = mpmath.acos(cosine + weight * (mpmath.sin(angle) - angle * cosine))
        assert angle_recursion(rho, psi, 61)[-1] == pytest.approx(float(angle), rel=3e-14)


def test_small_angles_of_inputs_keep_their_digits() -> None:
    mlp = MLP("relu", 2, 10, C_b=0.3, C_W=2.0)
    first = float(angle_flow(mlp, [1.0, 0.0], [1.0, 1e-9])["psi"][0])
    # det K = C_b C_W |x_1 - x_2|^2 / n_0 + (C_W / n_0)^2 |x_1 x x_2|^2 and K = 1.3 on the diagonal.
    assert first == pytest.approx(1e-9 * math.sqrt(0.3 + 1) / 1.3, rel=1e-12)


def test_excess_of_the_sine_at_both_branches() -> None:
    for psi in (1e-5, 0.3, 0.499999, 0.500001, 2.0):
        with mpmath.workdps(40):
            exact = mpmath.sin(psi) - psi * mpmath.cos(psi)
        assert sine_excess(psi) == pytest.approx(float(exact), rel=3e-15)


@pytest.mark.slow
def test_law_and_constants_to_great_depth() -> None:
    deep = angle_flow(MLP("relu", 100_000, 10, C_W=2.0), *at_angle(math.pi / 2))
    layer, psi, law = (deep[name].values for name in ("layer", "psi", "psi_asymptotic"))
    places = np.array([10**3, 10**4, 10**5]) - 1
    miss = np.abs(law / psi - 1)[places]
    # What is left is O(log^2 l / l^2).
    assert (miss < 4 * np.log(layer[places]) ** 2 / layer[places] ** 2).all()
    assert miss[2] < 5e-8
    assert deep.attrs["crossover_depth"] == pytest.approx(6.0)
    rest = 1 / psi - RELU / 3 * layer - RELU / 2 * np.log(layer / deep.attrs["l_0"])
    assert abs(rest[-1]) < 5e-5
    ratio = (deep["K_2"] / deep["K_2_asymptotic"]).values
    assert ratio[-1] == pytest.approx(1, abs=5e-4)


def test_coefficients_of_the_law_from_the_recursion_alone() -> None:
    psi = angle_recursion(RELU, 1.0, 32_768)
    layer = np.arange(1, len(psi) + 1)
    places = np.array([2**12, 2**13, 2**14, 2**15]) - 1
    basis = np.stack([layer, np.log(layer), np.ones(len(layer)), np.log(layer) / layer], axis=1)[places]
    fitted = np.linalg.solve(basis, 1 / psi[places])
    assert fitted[0] == pytest.approx(RELU / 3, rel=1e-8)
    assert fitted[1] == pytest.approx(RELU / 2, rel=1e-4)


def test_constant_of_a_small_start_agrees_with_its_own_long_flow() -> None:
    psi = 0.004
    flowing = angle_recursion(RELU, psi, 60_000)
    scale = 3 / (RELU * flowing)
    long = extrapolated(flowing, scale - 1.5 * np.log(scale) - np.arange(1, len(flowing) + 1)) / -1.5
    assert log_angle_constant(RELU, psi) == pytest.approx(long, rel=1e-9)


def test_skips_slow_the_angle_down() -> None:
    gamma = 0.6
    mlp = MLP("leaky_relu", 200, 10, C_W=2 * (1 - gamma**2) / (1 + 0.01**2), gamma=gamma)
    found = angle_flow(mlp, *at_angle(1.2, 0.4))
    rho = (1 - gamma**2) * 0.99**2 / (1 + 0.01**2) / math.pi
    np.testing.assert_allclose(found["psi"][:-1], angle_recursion(rho, 1.2, 199), rtol=1e-12)
    assert found.attrs["rho"] == pytest.approx(rho)
    law = angle_law(rho, math.log(found.attrs["l_0"]), [199])[0]
    assert float(found["psi"][198]) == pytest.approx(law, rel=0.05)


def test_norms_out_of_range_leave_the_angle() -> None:
    critical = angle_flow(MLP("relu", 3000, 10, C_W=2.0), *at_angle(2.0, 3.0))["psi"].values
    for C_W in (4.0, 1.0):
        off = angle_flow(MLP("relu", 3000, 10, C_W=C_W), *at_angle(2.0, 3.0))
        np.testing.assert_allclose(off["psi"], critical, rtol=1e-12)
        assert "psi_asymptotic" not in off
    assert float(off["K_2"][-1]) == 0.0


def test_any_other_activation_goes_by_the_kernel() -> None:
    mlp = MLP("tanh", 4, 10, C_b=0.1, C_W=1.5)
    X = np.array([[1.0, 0.4, -0.3], [0.2, -1.0, 0.7]])
    found, K = angle_flow(mlp, *X), flow(mlp, X)["K"].values
    np.testing.assert_allclose(
        np.cos(found["psi"]), K[:, 0, 1] / np.sqrt(K[:, 0, 0] * K[:, 1, 1]), atol=1e-13
    )


def test_angles_too_small_for_the_kernel_are_told() -> None:
    with pytest.warns(AccuracyWarning, match="from layer 2 on"):
        angle_flow(MLP("tanh", 3, 10), [1.0, 0.0], [1.0, 1e-6])


def test_distance_of_unequal_norms_keeps_their_difference() -> None:
    found = angle_flow(MLP("relu", 3_000, 10, C_W=2.0), *at_angle(1.0, 3.0)).isel(layer=-1)
    assert float(found["K_2"]) == pytest.approx(1 + float(found["psi"]) ** 2 * 3 / 4, rel=1e-8)
    assert float(found["K_2_asymptotic"] - found["K_2"]) == pytest.approx(0, abs=1e-7)


def test_linear_networks_keep_the_angle_and_say_so() -> None:
    found = angle_flow(MLP("linear", 50, 10), *at_angle(2.5, 0.3))
    np.testing.assert_allclose(found["psi"], 2.5, rtol=1e-13)
    assert "linear" in found.attrs["law"]
    assert crossover_depth(0.0, 1.0) == math.inf


def test_bad_input() -> None:
    with pytest.raises(InputError, match="x = 0 with C_b = 0"):
        angle_flow(MLP("relu", 3, 10, C_W=2.0), [0.0, 0.0], [1.0, 0.0])
    with pytest.raises(InputError, match="no signal is left"):
        angle_flow(MLP("relu", 3, 10, C_W=[2.0, 0.0, 2.0]), [1.0, 0.0], [0.0, 1.0])
    with pytest.raises(InputError, match="0 <= psi <= pi"):
        angle_recursion(0.1, 4.0, 5)


@pytest.mark.statistical
def test_angle_of_random_networks_at_the_second_layer() -> None:
    """The mean metric of layer 2 is exact at any width."""
    x_1, x_2 = at_angle(2.0, 1.5)
    mlp = MLP("relu", 2, 6, C_b=0.2, C_W=1.7)
    found = angle_flow(mlp, x_1, x_2).isel(layer=1)
    metric = sample_metric(mlp, np.array([x_1, x_2]), draws=400_000, layers=[2], seed=5)
    cross = metric.values[:, 0, 0, 1]
    expected = math.cos(float(found["psi"])) * math.sqrt(float(found["K_11"] * found["K_22"]))
    assert abs(cross.mean() - expected) < 3.5 * cross.std() / math.sqrt(len(cross))
