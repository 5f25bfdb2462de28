"""Critical points of the catalogue against the reference's tables, and of a user's function."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foretrain.theory.criticality import criticality, susceptibility
from foretrain.theory.kernel_functions import KernelFunctions


@pytest.mark.parametrize(
    ("name", "C_W"),
    [("relu", 2.0), ("linear", 1.0), ("abs", 1.0), ("leaky_relu(slope=0.5)", 1.6)],
)
def test_scale_invariant_class(name: str, C_W: float) -> None:
    found = criticality(name)
    assert found.universality_class == "scale-invariant"
    assert (found.C_b, found.K_star) == (0.0, None)
    assert pytest.approx(C_W, abs=1e-14) == found.C_W
    assert found.exponents["p_V"] == -1


@pytest.mark.parametrize(
    ("name", "C_W", "a_1", "a_2", "b_1"),
    [
        ("tanh", 1.0, -2.0, 17 / 3, -2.0),
        ("sin", 1.0, -1.0, 2 / 3, -1.0),
        ("erf", math.pi / 4, -2.0, 14 / 3, -2.0),
    ],
)
def test_vanishing_fixed_point_class(name: str, C_W: float, a_1: float, a_2: float, b_1: float) -> None:
    found = criticality(name)
    assert found.universality_class == "K*=0"
    assert (found.C_b, found.K_star) == (0.0, 0.0)
    assert pytest.approx(C_W, abs=1e-14) == found.C_W
    assert found.point is not None
    coefficients = found.point.coefficients
    np.testing.assert_allclose([coefficients[k] for k in ("a_1", "a_2", "b_1")], [a_1, a_2, b_1], rtol=1e-12)
    assert found.exponents == {"p_0": 1, "p_parallel": 2, "p_perpendicular": pytest.approx(1), "p_V": 1}


@pytest.mark.parametrize(
    ("name", "K_star", "C_b", "C_W", "bend", "side"),
    [
        ("swish", 14.320173618, 0.5551431707, 1.9880046783, 2.84979219e-6, "below"),
        ("gelu", (3 + math.sqrt(17)) / 2, 0.1729223908, 1.9830582574, -1.43626419e-4, "above"),
    ],
)
def test_half_stable_class(name: str, K_star: float, C_b: float, C_W: float, bend: float, side: str) -> None:
    found = criticality(name)
    assert found.universality_class == "half-stable"
    np.testing.assert_allclose([found.K_star, found.C_b, found.C_W], [K_star, C_b, C_W], rtol=3e-9)
    assert found.point is not None
    assert found.point.coefficients["a_1"] == pytest.approx(bend, rel=1e-6)
    assert found.point.stability == f"attracts from {side}"
    assert [point.stability for point in found.others] == ["unstable"]


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "quadratic", "cubic", "perceptron", "cos"])
def test_none(name: str) -> None:
    found = criticality(name)
    assert not found.exists
    assert found.universality_class == "none"
    assert (found.C_b, found.C_W, found.K_star, found.exponents) == (None, None, None, {})
    assert "none (" in repr(found)


def test_sigmoid_would_need_a_negative_bias_variance() -> None:
    assert "C_b = -4 < 0" in repr(criticality("sigmoid"))


def test_a_user_function_gets_a_verdict() -> None:
    found = criticality(lambda z: z * np.tanh(np.logaddexp(0.0, z)))
    mish = criticality("mish")
    assert found.universality_class == mish.universality_class == "half-stable"
    assert found.K_star == pytest.approx(mish.K_star, rel=1e-6)
    assert found.C_W is not None
    assert susceptibility("mish", found.K_star or 0.0, found.C_W).parallel == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tanh", (0.2736763079, 0.324629996, 0.5924257934, -0.187028301, -0.4729098141, 0.06487968772)),
        ("gelu", (0.1895565418, 0.4478872467, 0.4072479685, 0.07580788426, 0.1427584899, 0.2327134643)),
        ("relu", (0.25, 0.5, 0.5, 0.0, 0.0, 0.3125)),
    ],
)
def test_functions_of_the_kernel(name: str, expected: tuple[float, ...]) -> None:
    K = 0.5
    v = KernelFunctions(name).at(K)
    found = (
        v.square,
        v.square_slope,
        v.slope_square,
        0.5 * v.slope_square_slope,
        4 * K**2 * v.square_bend,
        v.fourth - v.square**2,
    )
    np.testing.assert_allclose([float(x) for x in found], expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu"])
def test_the_table_of_functions_agrees_with_the_rules(name: str) -> None:
    functions = KernelFunctions(name)
    for K in (3e-5, 0.2, 1.7, 40.0):
        np.testing.assert_allclose(
            functions.fast(K), [float(v) for v in functions.at(K)], rtol=1e-11, atol=1e-10
        )


def test_susceptibility_of_a_residual_layer() -> None:
    found = susceptibility("relu", K=[1.0, 2.0], C_W=1.5, gamma=0.5)
    np.testing.assert_allclose(found.parallel, 1.0)
    np.testing.assert_allclose(found.perpendicular, 1.0)


@pytest.mark.parametrize("name", ["softsign", "elu"])
def test_a_jump_of_the_second_derivative_doubles_the_exponent(name: str) -> None:
    found = criticality(name)
    assert (found.universality_class, found.C_b, found.C_W, found.K_star) == ("K*=0", 0.0, 1.0, 0.0)
    functions, K, depth = KernelFunctions(name), 0.5, 20_000
    for _ in range(depth):
        K = float(functions.fast(K)[0])
    assert found.point is not None
    assert K * (found.point.coefficients["a_1/2"] * depth / 2) ** 2 == pytest.approx(1.0, rel=0.02)
    assert found.exponents["p_0"] == 2
    assert 1 - functions.fast(K)[1] == pytest.approx(found.exponents["p_parallel"] / depth, rel=0.02)
    assert 1 - functions.fast(K)[3] == pytest.approx(found.exponents["p_perpendicular"] / depth, rel=0.02)
