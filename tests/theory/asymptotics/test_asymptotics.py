"""Asymptotic laws against the exact recursion, the reference's constants, and toy flows solved by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foretrain.activations import activation
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics import asymptotics, exact_fluctuation, linear_vertex, vertex_constant
from foretrain.theory.asymptotics.kernel_laws import (
    Uniform,
    extrapolated,
    half_stable_laws,
    leading_term,
    log_depth_constant,
)
from foretrain.theory.criticality import CriticalPoint, criticality, taylor_coefficients
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.flow import flow
from foretrain.theory.nearby import Nearby

DEPTH = 30_000


def both(data, name: str, layer: int) -> tuple[float, float]:
    return tuple(float(data[name].sel(law=law, layer=layer)) for law in ("exact", "asymptotic"))


def tilted(weight: float):
    """tanh + weight tanh^2 with its first derivatives in closed form."""

    def polynomial(order: int) -> np.polynomial.Polynomial:
        # d/dz turns a polynomial p(t), t = tanh z, into p'(t) (1 - t^2).
        p = np.polynomial.Polynomial([0.0, 1.0, weight])
        for _ in range(order):
            p = p.deriv() * np.polynomial.Polynomial([1.0, 0.0, -1.0])
        return p

    def rule(order: int):
        p = polynomial(order)
        return lambda z: p(np.tanh(z))

    rules = [rule(order) for order in range(1, 7)]
    return activation(rule(0), derivatives=rules, kinks=(), name=f"tilted{weight:g}")


@pytest.fixture(scope="module")
def tanh():
    return asymptotics(MLP("tanh", DEPTH, 10), [1.0], [0.1])


@pytest.mark.parametrize(("name", "l_0"), [("tanh", 0.34387), ("sin", 0.8385)])
def test_depth_constant_of_the_reference(name: str, l_0: float) -> None:
    laws = asymptotics(MLP(name, 10, 10), [1.0])
    assert laws.attrs["l_0"] == pytest.approx(l_0, rel=5e-5)
    assert laws.attrs["universality_class"] == "K*=0"


@pytest.mark.slow
def test_depth_constant_solves_the_series_at_any_great_depth(tanh) -> None:
    exact, law = (tanh["K"].sel(law=name).values for name in ("exact", "asymptotic"))
    layer = tanh["layer"].values
    scaled = np.abs(law - exact) * layer**3
    # What is left is O(1/l^3) without logarithms: times l^3 it tends to a constant.
    assert scaled[999:].max() < 1.1 * scaled[9_999]
    assert scaled[-1] == pytest.approx(scaled[9_999], rel=0.1)


@pytest.mark.slow
def test_remainders_of_the_zero_fixed_point_fall_as_claimed(tanh) -> None:
    layers = np.array([1_000, 30_000])
    for name, power in (("V", 3), ("K1", 3), ("K2", 2), ("G1", 1), ("G1_tuned", 2)):
        gaps = [abs(np.subtract(*both(tanh, name, int(layer)))) for layer in layers]
        slope = -math.log(gaps[1] / gaps[0]) / math.log(30)
        assert slope == pytest.approx(power, abs=0.25), name


def test_constants_of_the_pair_are_limits_of_the_exact_flow(tanh) -> None:
    for name, power, constant in (("K1", 2, "delta_parallel"), ("K2", 1, "delta_squared")):
        exact, law = both(tanh, name, DEPTH)
        assert exact * DEPTH**power == pytest.approx(tanh.attrs[constant], rel=1e-3)
        assert exact == pytest.approx(law, rel=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "limit"),
    [("tanh", 1.236111), ("sin", 2.222222), (tilted(0.3), 0.502864)],
    ids=["tanh", "sin", "tilted"],
)
def test_corrected_tuned_metric_and_the_vertex_coefficients(act: object, limit: float) -> None:
    """Fits of the exact recursion to l = 3e4: (5.94), (5.127) and the corrected (5.143)."""
    laws = asymptotics(MLP(act, DEPTH, 10), [1.0])
    a_1, a_2, b_1 = (laws.attrs[name] for name in ("a_1", "a_2", "b_1"))
    exact = laws.sel(law="exact")
    K, V, G1, tuned = (exact[name].values for name in ("K", "V", "G1", "G1_tuned"))
    places = np.array([DEPTH // k - 1 for k in (1, 2, 4, 8, 16)])
    k = K[places]
    basis = np.stack([np.ones(5), k, k * np.log(k), k**2, k**2 * np.log(k)], axis=1)
    fitted = np.linalg.solve(basis, tuned[places] / (-a_1 * k))[0]
    assert fitted == pytest.approx(limit, abs=2e-6)
    assert both(laws, "G1_tuned", DEPTH)[1] * DEPTH == pytest.approx(limit, abs=1e-6)
    assert extrapolated(K, V / K) == pytest.approx(2 / (3 * -a_1), rel=1e-8)
    second = (5 * a_2 + a_1 * (82 * a_1 - 90 * b_1)) / (3 * a_1**2)
    assert extrapolated(K, (V / K - 2 / (3 * -a_1)) / K) == pytest.approx(second, rel=1e-4)
    assert np.linalg.solve(basis, G1[places])[0] == pytest.approx(1 / (3 * a_1), rel=1e-6)


def test_tuned_column_of_the_reference() -> None:
    exact = asymptotics(MLP("tanh", 100, 10), [1.0])["G1_tuned"].sel(law="exact")
    found = exact.sel(layer=[2, 3, 5, 10, 100]).values
    expected = [0.2628629936, 0.2272552532, 0.1635633984, 0.09499139203, 0.01170978203]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.slow
def test_perpendicular_exponent_of_an_activation_that_is_not_odd() -> None:
    laws = asymptotics(MLP(tilted(0.3), 8_000, 10), [1.0], [0.1])
    K2 = laws["K2"].sel(law="exact").values
    exponent = -math.log(K2[-1] / K2[3_999]) / math.log(2)
    assert exponent == pytest.approx(laws.attrs["b_1"] / laws.attrs["a_1"], abs=6e-4)
    exact, law = both(laws, "K2", 8_000)
    assert exact == pytest.approx(law, rel=2e-4)


@pytest.mark.slow
def test_skips_rescale_the_coefficients() -> None:
    gamma = 0.6
    laws = asymptotics(MLP("tanh", 4_001, 10, C_W=1 - gamma**2, gamma=gamma), [1.25], [0.1])
    assert laws["layer"].values[-1] == 4_000
    assert set(laws) == {"K", "K1", "K2"}
    exact, law = both(laws, "K", 4_000)
    assert exact == pytest.approx(law, rel=1e-6)
    assert exact * 4_000 == pytest.approx(1 / (2 * (1 - gamma**2)), rel=5e-3)
    assert "0.5803 l" in laws.attrs["statement"]
    reference = flow(MLP("tanh", 4_001, 10, C_W=1 - gamma**2, gamma=gamma), [[1.25]])["K"].values.ravel()
    np.testing.assert_allclose(laws["K"].sel(law="exact"), reference[:-1], rtol=1e-11)


@pytest.mark.slow
def test_small_starts_have_the_constant_of_their_own_long_flow() -> None:
    """K = 0.002 is too small to flow far in the depth of a fit: the constant goes by another start."""
    laws = asymptotics(MLP("tanh", 40_000, 10), [math.sqrt(0.00095)], [0.001])
    K = laws["K"].sel(law="exact").values
    own = log_depth_constant(K, K[0], 2.0, (17 / 3 - 4) / 4)
    assert laws.attrs["log_l_0"] == pytest.approx(own, rel=1e-6)
    assert laws.attrs["crossover_depth"] == pytest.approx(1 / (2 * 0.00095))
    assert np.isfinite(laws.attrs["delta_squared"])
    tiny = asymptotics(MLP("tanh", 5, 10), [1e-4], [1e-6])
    assert np.isnan(tiny.attrs["delta_squared"])


@pytest.mark.slow
def test_fine_tuned_activation_falls_as_the_root() -> None:
    act = tilted(math.sqrt(2 / 3))
    leading = leading_term(act, taylor_coefficients(act.taylor(5)))
    assert leading.power == 2
    assert leading.coefficient == pytest.approx(-23 / 3, rel=1e-6)
    laws = asymptotics(MLP(act, 20_000, 10), [1.0], [0.1])
    ratios = [np.divide(*both(laws, "K", layer)) for layer in (1_250, 5_000, 20_000)]
    # The remainder is relative O(l^(-1/2)): it halves at every fourfold depth.
    gaps = np.array(ratios) - 1
    np.testing.assert_allclose(gaps[:-1] / gaps[1:], 2, atol=0.25)
    assert gaps[-1] < 0.03
    assert np.divide(*both(laws, "fluctuation", 20_000)) == pytest.approx(1, abs=0.06)
    assert np.divide(*both(laws, "K1", 20_000)) == pytest.approx(1, abs=0.08)


def test_leading_terms_are_those_of_the_table() -> None:
    for name, a_1 in (("tanh", -2.0), ("sin", -1.0), ("erf", -2.0), ("swish", 0.75), ("gelu", 6 / math.pi)):
        act = activation(name)
        leading = leading_term(act, taylor_coefficients(act.taylor(5)))
        assert leading == (1, pytest.approx(a_1, rel=1e-12)), name


@pytest.mark.slow
def test_jump_of_the_second_derivative_makes_the_kernel_fall_as_the_square() -> None:
    laws = asymptotics(MLP("softsign", 8_000, 10), [1.0], [0.1])
    assert laws.attrs["k"] == 0.5
    assert np.divide(*both(laws, "K", 8_000)) == pytest.approx(1, abs=2e-3)
    assert np.divide(*both(laws, "fluctuation", 8_000)) == pytest.approx(1, abs=1e-3)
    assert np.divide(*both(laws, "K1", 8_000)) == pytest.approx(1, abs=5e-3)


@pytest.mark.parametrize(
    ("name", "K_star", "source"), [("gelu", 3.5615528128, 62.2084), ("swish", 14.320173618, 1009.585)]
)
def test_half_stable_start_at_the_fixed_point(name: str, K_star: float, source: float) -> None:
    critical = criticality(name)
    C_b, C_W = critical.C_b, critical.C_W
    x = math.sqrt((critical.K_star - C_b) / C_W)
    laws = asymptotics(MLP(name, 300, 10, C_b=C_b, C_W=C_W), [x])
    layer = laws["layer"].values
    a_1 = laws.attrs["a_1"]
    assert laws.attrs["K_star"] == pytest.approx(K_star, rel=1e-9)
    V, G1 = (laws[key].sel(law="asymptotic").values for key in ("V", "G1"))
    np.testing.assert_allclose(V, (layer - 1) * source, rtol=1e-6)
    np.testing.assert_allclose(G1, a_1 * source * (layer - 1) * (layer - 2) / 2, rtol=1e-6)
    np.testing.assert_allclose(laws["V"].sel(law="exact"), V, rtol=1e-6)
    np.testing.assert_allclose(laws["G1"].sel(law="exact"), G1, rtol=1e-4, atol=1e-9)


def test_half_stable_laws_solve_the_quadratic_flow() -> None:
    """The toy flow K' = K + a K^2 with chi_perp = 1 + 2 h K, iterated from both sides, far into and past x t = 1."""
    K_star, a_1, h, source = 2.0, -1e-4, -2.5e-4, 7.0
    point = CriticalPoint(
        K_star, 0.1, 1.9, "half-stable", "attracts from above", {"a_1": a_1, "h": h, "source": source}
    )
    layer = np.arange(1.0, 20_001)
    for gap, last in ((1.0, 20_000), (-0.5, 10_000)):
        start = Nearby(K_star + gap, 0.01, 0.002)
        found = half_stable_laws(activation("gelu"), point, Uniform(0.1, 1.9, 0.0), start, layer).laws
        D, K1, K2, V, G1 = gap, start.K1, start.K2, 0.0, 0.0
        for _ in range(last - 1):
            chi = 1 + 2 * a_1 * D
            D, K1, K2, V, G1 = (
                D + a_1 * D**2,
                chi * K1,
                (1 + 2 * h * D) * K2 + h * K1**2,
                chi**2 * V + source,
                chi * G1 + a_1 * V,
            )
        for name, exact in (("K", K_star + D), ("K1", K1), ("K2", K2), ("V", V), ("G1", G1)):
            assert found[name].values[last - 1] == pytest.approx(exact, rel=5e-3), (name, gap)
    far = half_stable_laws(
        activation("gelu"), point, Uniform(0.1, 1.9, 0.0), Nearby(K_star + 1), np.array([1e7])
    ).laws
    assert far["V"].values[0] == pytest.approx(source * 1e7 / 5, rel=1e-2)
    assert far["K"].values[0] - K_star == pytest.approx(1 / (-a_1 * 1e7), rel=1e-2)


def test_half_stable_repelled_start_is_lost_at_a_finite_depth() -> None:
    critical = criticality("gelu")
    laws = asymptotics(MLP("gelu", 20, 10, C_b=critical.C_b, C_W=critical.C_W), [1.0])
    assert "repelling" in laws.attrs["statement"]
    assert 0.6 < laws.attrs["reach"] < 0.7


@pytest.mark.parametrize("C_W", [2.0, 1.8, 2.3])
@pytest.mark.parametrize("C_b", [0.0, 0.1])
def test_scale_invariant_closed_forms_are_exact(C_b: float, C_W: float) -> None:
    laws = asymptotics(MLP("relu", 40, 10, C_b=C_b, C_W=C_W), [1.0, 0.7], [0.1, 0.3])
    for name in ("K", "V", "K1"):
        exact, closed = (laws[name].sel(law=law).values for law in ("exact", "asymptotic"))
        np.testing.assert_allclose(closed, exact, rtol=1e-11, err_msg=name)
    np.testing.assert_array_equal(laws["G1"].sel(law="exact"), 0.0)


def test_table_of_the_reference_off_criticality() -> None:
    laws = asymptotics(MLP("relu", 10, 10, C_b=0.1, C_W=1.8), [math.sqrt(0.5)])
    assert both(laws, "V", 10)[1] == pytest.approx(18.11640383, rel=1e-9)
    assert "tends to 1," in laws.attrs["statement"]


@pytest.mark.slow
def test_semi_critical_fluctuations() -> None:
    laws = asymptotics(MLP("relu", 20_000, 10, C_b=0.3, C_W=2.0), [1.0])
    assert laws.attrs["universality_class"] == "semi-critical"
    exact, law = both(laws, "fluctuation", 20_000)
    assert law == pytest.approx(5 / 3 * 20_000 / 10)
    assert exact == pytest.approx(law, rel=1e-3)
    leaky = MLP("leaky_relu", 2_000, 10, C_b=0.3, C_W=2 / (1 + 0.01**2))
    assert np.divide(*both(asymptotics(leaky, [1.0]), "fluctuation", 2_000)) == pytest.approx(1, rel=2e-2)


def test_exact_fluctuation_starts_with_the_vertex() -> None:
    widths = [10**7, 2 * 10**7, 3 * 10**7]
    mlp = MLP("relu", 4, widths, C_W=2.0)
    V = flow(mlp, [[1.0]], ["V"])["V"].values.ravel()
    np.testing.assert_allclose(exact_fluctuation(mlp)[1:], V[1:] / widths / 2**2, rtol=1e-5)
    assert vertex_constant(activation("linear")) == 2
    # Deep linear: E[z_1^2 z_2^2] / G^2 = (1 + 2 / n)^(l-1).
    assert exact_fluctuation(MLP("linear", 3, 5))[2] == pytest.approx(1.4**2 - 1)


def test_linear_vertex_of_several_inputs() -> None:
    X = np.array([[1.0, 0.3], [-0.4, 0.8], [0.5, 0.5]])
    mlp = MLP("linear", 5, [6, 9, 5, 8])
    deep = flow(mlp, X, ["K", "V"])
    for layer in (1, 2, 5):
        found = linear_vertex(deep["K"].sel(layer=layer), mlp.hidden_widths[: layer - 1])
        np.testing.assert_allclose(found, deep["V"].sel(layer=layer), atol=1e-12)


def test_off_critical_fixed_point_of_the_reference() -> None:
    laws = asymptotics(MLP("tanh", 30, 10, C_b=0.3, C_W=1.5), [1.0], [0.1])
    assert laws.attrs["K_star"] == pytest.approx(0.8461750173, rel=1e-10)
    assert laws.attrs["chi_parallel"] == pytest.approx(0.3178500569, rel=1e-9)
    assert laws.attrs["depth_parallel"] == pytest.approx(-1 / math.log(0.3178500569), rel=1e-9)
    for name in ("V", "G1", "fluctuation", "K2", "K1"):
        exact, law = both(laws, name, 30)
        assert exact == pytest.approx(law, rel=2e-6), name
    gap = [value - laws.attrs["K_star"] for value in both(laws, "K", 8)]
    assert gap[0] == pytest.approx(gap[1], rel=1e-3)


def test_off_critical_flow_to_nothing() -> None:
    """K* = 0, where V / K^2 = 2 l up to a constant."""
    laws = asymptotics(MLP("tanh", 80, 10, C_W=0.8), [1.0])
    assert laws.attrs["K_star"] == 0.0
    assert np.divide(*both(laws, "K", 80)) == pytest.approx(1, rel=1e-6)
    shifts = [np.subtract(*both(laws, "fluctuation", layer)) for layer in (60, 80)]
    assert shifts[0] == pytest.approx(shifts[1], rel=1e-4)


def test_off_critical_approach_that_oscillates() -> None:
    laws = asymptotics(MLP("cos", 12, 10, C_W=0.6), [1.0])
    gaps = laws["K"] - laws.attrs["K_star"]
    assert laws.attrs["chi_parallel"] < 0
    np.testing.assert_allclose(*(gaps.sel(law=law)[5:] for law in ("asymptotic", "exact")), rtol=1e-3)


def test_laws_say_what_they_are() -> None:
    laws = asymptotics(MLP("tanh", 5, 10), [1.0])
    assert laws["K"].dims == ("law", "layer")
    assert laws["V"].attrs["equation"] == "(5.127)"
    assert "log" in laws["V"].attrs["remainder"]
    assert "l_0" in repr(laws)
    assert "K1" not in laws


def test_bad_input() -> None:
    with pytest.raises(NotSupportedError, match="differ between layers"):
        asymptotics(MLP("tanh", 4, 10, C_W=[1, 1, 2, 1]), [1.0])
    with pytest.raises(NotSupportedError, match="hidden widths differ"):
        asymptotics(MLP("tanh", 4, [10, 10, 20]), [1.0])
    with pytest.raises(NotSupportedError, match="grows without bound"):
        asymptotics(MLP("gelu", 4, 10, C_W=3.0), [1.0])
    with pytest.raises(InputError, match="depth 2"):
        asymptotics(MLP("tanh", 1), [1.0])
    with pytest.raises(InputError, match="no signal"):
        asymptotics(MLP("tanh", 3, 10), [0.0])
    with pytest.raises(NotSupportedError, match="without biases"):
        exact_fluctuation(MLP("relu", 3, 10, C_b=0.1))
    with pytest.raises(NotSupportedError, match="not scale-invariant"):
        exact_fluctuation(MLP("tanh", 3, 10))


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["relu", "linear"])
def test_exact_fluctuation_of_random_networks(name: str) -> None:
    mlp = MLP(name, 4, [12, 20, 15], C_W=criticality(name).C_W)
    metric = sample_metric(mlp, [[1.3]], draws=400_000, layers=[4], seed=11).values.ravel()
    K = float(flow(mlp, [[1.3]])["K"].values.ravel()[-1])
    batches = metric.reshape(80, -1).var(axis=1) / K**2
    error = batches.std(ddof=1) / math.sqrt(len(batches))
    assert abs(batches.mean() - exact_fluctuation(mlp)[3]) < 3.5 * error
    assert abs(metric.mean() - K) < 3.5 * metric.std() / math.sqrt(len(metric))
