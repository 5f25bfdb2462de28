"""Critical points of the catalogue against the reference's tables, and of a user's function."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.activations import catalogue
from foretrain.support.errors import InputError, NotSupportedError
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
    assert "p_1" not in found.exponents


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
    assert found.exponents == {
        "p_0": 1,
        "p_parallel": 2,
        "p_perpendicular": pytest.approx(1),
        "p_V": 1,
        "p_1": 0,
        "p_1_tuned": 1,
    }


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
    assert "none, since" in repr(found)


def test_sigmoid_would_need_a_negative_bias_variance() -> None:
    assert "C_b = -4 < 0" in repr(criticality("sigmoid"))


@pytest.mark.slow
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


@pytest.mark.parametrize("gamma", [float("nan"), float("inf"), "0.5"])
def test_susceptibility_refuses_what_is_no_skip_connection(gamma: Any) -> None:
    with pytest.raises(InputError, match=r"gamma"):
        susceptibility("tanh", K=1.0, gamma=gamma)


@pytest.mark.slow
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


CLASSES = {
    "scale-invariant": {"linear", "relu", "leaky_relu", "scale_invariant(minus=0.3)", "abs"},
    "K*=0": {"tanh", "erf", "sin", "softsign", "elu", "selu"},
    "half-stable": {"swish", "gelu", "gelu_tanh", "mish"},
    "none": {"perceptron", "sign", "sigmoid", "cos", "monomial(power=4)", "quadratic", "cubic", "softplus"},
}


def test_every_member_of_the_catalogue_has_a_class() -> None:
    expected = {name: kind for kind, names in CLASSES.items() for name in names}
    assert {name.split("(")[0] for name in expected} == set(catalogue())
    assert {name: criticality(name).universality_class for name in expected} == expected


def test_coefficients_of_unstable_points_at_zero() -> None:
    """Values of section 6.2 for SWISH, GELU and softplus - log 2, which repel."""
    for spec, a_1, a_2, b_1 in (
        ("swish", 3 / 4, -5 / 8, 1.0),
        ("gelu", 6 / math.pi, -3.1830989, 2.5464791),
        (lambda z: np.logaddexp(0.0, z) - math.log(2), 3 / 16, -5 / 64, 1 / 4),
    ):
        (point,) = (p for p in (criticality(spec).point, *criticality(spec).others) if p and p.K_star == 0)
        assert point.stability == "unstable"
        found = [point.coefficients[key] for key in ("a_1", "a_2", "b_1")]
        np.testing.assert_allclose(found, [a_1, a_2, b_1], rtol=1e-7)


def test_the_ratio_that_only_tends_to_one_is_no_root() -> None:
    assert criticality("softplus").others == ()
    assert abs(KernelFunctions("softplus").ratio(1e3)[0] - 1) < 0.1


@cache
def remembered_functions(name: object) -> KernelFunctions:
    return KernelFunctions(name)


def flow_of_one_input(name: object, gamma: float, corrections: bool, depth: int) -> np.ndarray:
    """K, V, G1 at every layer by (5.108)-(5.110), (B.11), (B.26), at the critical point found."""
    found, functions = criticality(name, gamma), remembered_functions(name)
    assert found.C_b is not None
    assert found.C_W is not None
    C_W, C_W_1 = found.C_W, found.corrections["C_W_1"] if corrections else 0.0
    K, V, G1, rows = 0.5, 0.0, 0.0, []
    for _ in range(depth):
        rows.append((K, V, G1))
        g, slope, bend, _, _, fourth = functions.fast(K)
        chi = gamma**2 + C_W * slope
        G1 = chi * G1 + 0.5 * C_W * bend * V + C_W_1 * g
        V = chi**2 * V + C_W**2 * (fourth - g**2) + 4 * gamma**2 * (chi - gamma**2) * K**2
        K = found.C_b + C_W * g + gamma**2 * K
    return np.array(rows)


def fine_tuned(z: np.ndarray) -> np.ndarray:
    """Odd, with a_1 = 0 and a_2 < 0."""
    return z * np.exp(-(z**4))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "sin", "softsign", "selu", fine_tuned])
@pytest.mark.parametrize("gamma", [0.0, 0.6])
def test_exponents_and_corrections_against_the_exact_recursion(name: object, gamma: float) -> None:
    depth = 4000
    found = criticality(name, gamma)
    assert found.point is not None
    exponents, nu = found.exponents, found.point.coefficients["nu"]
    bare = flow_of_one_input(name, gamma, False, depth)
    measured = -np.log2(np.abs(bare[-1] / bare[depth // 2 - 1]))
    np.testing.assert_allclose(measured, [exponents[p] for p in ("p_0", "p_V", "p_1")], atol=0.02)
    K, V, G1 = bare[-1]
    assert V / K**2 / depth == pytest.approx(nu, rel=0.01)
    if not found.corrections:
        assert (name, gamma) == ("selu", 0.6)  # odd moments enter there at the same order
        return
    tuned = flow_of_one_input(name, gamma, True, depth)[:, 2]
    assert -np.log2(tuned[-1] / tuned[depth // 2 - 1]) == pytest.approx(exponents["p_1_tuned"], abs=0.05)
    assert abs(tuned[-1]) < 0.01 * abs(G1)


def test_corrections_give_the_reference_values() -> None:
    """Section 11, column G1 tuned, and the limit of depth G1 of section 9, for tanh."""
    found = criticality("tanh")
    assert found.corrections == {"C_b_1": 0.0, "C_W_1": pytest.approx(2 / 3, abs=1e-15)}
    assert found.tuned(100) == (0.0, pytest.approx(1 + 2 / 300))
    functions, K, V, G1 = KernelFunctions("tanh"), 1.0, 0.0, 0.0
    expected = {2: 0.2628629936, 3: 0.2272552532, 5: 0.1635633984, 10: 0.09499139203, 100: 0.01170978203}
    for layer in range(2, 101):
        g, slope, bend, _, _, fourth = functions.fast(K)
        G1 = slope * G1 + 0.5 * bend * V + 2 / 3 * g
        K, V = g, slope**2 * V + fourth - g**2
        if layer in expected:
            assert pytest.approx(expected[layer], rel=1e-8) == G1


def test_corrections_of_the_other_classes() -> None:
    assert criticality("relu").corrections == {"C_b_1": 0.0, "C_W_1": 0.0}
    assert criticality("erf").corrections["C_W_1"] == pytest.approx(2 / 3 * math.pi / 4)
    assert criticality("relu", gamma=0.5).corrections == {}
    assert criticality("gelu").corrections == {}
    with pytest.raises(NotSupportedError, match=r"1/n .*gelu"):
        criticality("gelu").tuned(100)
    with pytest.raises(InputError, match="n is 0"):
        criticality("tanh").tuned(0)


def test_fluctuations_at_a_half_stable_point() -> None:
    """Started at K*: V = (l - 1) S and G1 = a_1 S (l - 1)(l - 2) / 2 (section 6.3)."""
    found = criticality("gelu")
    assert found.point is not None
    c = found.point.coefficients
    assert c["source"] == pytest.approx(62.2084, abs=1e-4)
    assert c["nu"] == pytest.approx(4.904, abs=1e-3)
    functions, V, G1 = KernelFunctions("gelu"), 0.0, 0.0
    for _ in range(9):
        g, slope, bend, _, _, fourth = functions.fast(found.K_star or 0.0)
        G1 = found.C_W * slope * G1 + 0.5 * found.C_W * bend * V
        V = (found.C_W * slope) ** 2 * V + found.C_W**2 * (fourth - g**2)
    assert pytest.approx(9 * c["source"], rel=1e-9) == V
    assert pytest.approx(c["a_1"] * c["source"] * 9 * 8 / 2, rel=1e-9) == G1
    assert criticality("swish").point.coefficients["source"] == pytest.approx(1009.585, abs=1e-3)


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "swish", "selu"])
@pytest.mark.parametrize("gamma", [0.6, -0.9])
def test_a_residual_network_is_critical_with_one_minus_gamma_squared(name: str, gamma: float) -> None:
    plain, found = criticality(name), criticality(name, gamma)
    share = 1 - gamma**2
    assert (found.K_star, found.universality_class) == (plain.K_star, plain.universality_class)
    assert plain.C_b is not None
    assert plain.C_W is not None
    np.testing.assert_allclose([found.C_b, found.C_W], [share * plain.C_b, share * plain.C_W], rtol=1e-14)
    K = 1.0 if found.K_star is None else found.K_star or 1e-20
    chi = susceptibility(name, K, found.C_W, gamma)
    np.testing.assert_allclose([chi.parallel, chi.perpendicular], 1.0, atol=1e-8)
    assert found.C_b + found.C_W * float(KernelFunctions(name).at(K).square) == pytest.approx(
        share * K, rel=1e-8
    )
    for key, value in plain.point.coefficients.items():
        if key[:2] in ("a_", "b_", "h", "rh"):
            assert found.point.coefficients[key] == pytest.approx(share * value, rel=1e-12)
    same = [key for key in plain.exponents if key in found.exponents]
    np.testing.assert_allclose(
        [found.exponents[k] for k in same], [plain.exponents[k] for k in same], rtol=1e-12
    )


def test_vertex_growth_of_residual_networks() -> None:
    """nu of (B.29) for ReLU and of (B.35) for tanh, table of section 8."""
    for gamma, nu in ((0.3, 4.4681), (0.6, 2.9696), (0.9, 0.7961)):
        assert criticality("relu", gamma).point.coefficients["nu"] == pytest.approx(nu, abs=5e-5)
        growth = criticality("tanh", gamma).point.coefficients["nu"]
        assert growth == pytest.approx(2 / 3 * (1 - gamma**4), rel=1e-12)


def test_kernel_of_a_residual_network_at_criticality() -> None:
    """Table of section 8: tanh, gamma = 0.6, K = 1 at layer 1."""
    K, functions, C_W, kernels = 1.0, KernelFunctions("tanh"), criticality("tanh", 0.6).C_W, {}
    for layer in range(2, 11):
        K = kernels[layer] = C_W * float(functions.fast(K)[0]) + 0.36 * K
    np.testing.assert_allclose(
        [kernels[layer] for layer in (2, 3, 10)], [0.612348474, 0.417197584, 0.106077445], atol=1e-9
    )


@pytest.mark.parametrize("gamma", [1.0, -1.0, 1.5, float("nan")])
def test_a_full_skip_connection_is_refused(gamma: float) -> None:
    with pytest.raises(InputError, match="C_W > 0"):
        criticality("tanh", gamma)


def test_an_activation_linear_around_zero_is_stable_and_slower_than_any_power() -> None:
    found = criticality(lambda z: np.clip(z, -1.0, 1.0))
    assert (found.universality_class, found.K_star, found.C_W) == ("K*=0", 0.0, pytest.approx(1.0))
    assert found.point.stability == "stable"
    assert found.exponents["p_0"] == 0
    assert found.corrections == {}


def test_neither_power_law_holds_without_symmetry_and_without_a_1() -> None:
    """a_1 = 0 by an even part: chi_perp = 1 + K s_2^2 / 4 while K ~ depth^(-1/2), so distances outgrow powers."""
    found = criticality(lambda z: np.tanh(z) + math.sqrt(2 / 3) * np.tanh(z) ** 2)
    assert found.point is not None or found.others
    point = found.point or found.others[0]
    assert point.coefficients["a_1"] == 0
    assert point.coefficients["b_1"] == pytest.approx(2 / 3, rel=1e-6)
    assert point.exponents["p_perpendicular"] == -math.inf


@settings(max_examples=3, deadline=None)
@given(scale=st.floats(0.1, 10.0), name=st.sampled_from(["sin", "mish"]))
def test_a_factor_before_the_activation_only_changes_C_W(scale: float, name: str) -> None:
    from foretrain.activations import activation

    act = activation(name)
    plain, scaled = criticality(act), criticality(lambda z: scale * act.value(z))
    assert scaled.universality_class == plain.universality_class
    assert pytest.approx(plain.C_W / scale**2, rel=1e-6) == scaled.C_W
    assert scaled.K_star == pytest.approx(plain.K_star, rel=1e-5, abs=1e-12)
    assert scaled.C_b == pytest.approx(plain.C_b, rel=1e-5, abs=1e-12)
