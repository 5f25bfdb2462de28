"""Coincident limit: component recursions and (5.39) against the full two-input kernel and the reference's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrain.gaussian import expectation, factor, z
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.kernel_functions import KernelFunctions, kernel_functions
from foretrain.theory.nearby import (
    Nearby,
    components,
    expectation_near,
    first_layer,
    from_components,
    nearby_flow,
    propagate,
)

MIDPOINT, GAP = np.array([1.0, -0.5, 0.8]), np.array([0.3, 0.9, 0.4])


def remainders(mlp: MLP, delta: float) -> np.ndarray:
    """What the expansion leaves of K_[0], K_[1], K_[2] of the full kernel at the last layer."""
    expanded = nearby_flow(mlp, MIDPOINT, delta * GAP).isel(layer=-1)
    pair = np.stack([MIDPOINT + delta * GAP / 2, MIDPOINT - delta * GAP / 2])
    exact = components(flow(mlp, pair)["K"].values[-1])
    return np.array(
        [
            exact.K0 - float(expanded["K00"] + expanded["K0"]),
            exact.K1 - float(expanded["K1"]),
            exact.K2 - float(expanded["K2"]),
        ]
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tanh", (0.2736763079, 0.324629996, 0.5924257934, -0.187028301, -0.4729098141, 0.06487968772)),
        ("gelu", (0.1895565418, 0.4478872467, 0.4072479685, 0.07580788426, 0.1427584899, 0.2327134643)),
        ("relu", (0.25, 0.5, 0.5, 0.0, 0.0, 0.3125)),
    ],
)
def test_functions_of_the_kernel_at_one_half(name: str, values: tuple[float, ...]) -> None:
    table = kernel_functions(name, 0.5)
    found = [float(table[key]) for key in ("g", "chi_parallel", "chi_perpendicular", "h", "j", "source")]
    np.testing.assert_allclose(found, values, rtol=1e-9, atol=1e-15)


def test_functions_of_the_kernel_carry_labels_weights_and_skips() -> None:
    table = kernel_functions("tanh", [0.1, 0.5], C_W=2.0, gamma=0.5)
    plain = kernel_functions("tanh", [0.1, 0.5])
    np.testing.assert_allclose(table["chi_perpendicular"], 0.25 + 2 * plain["chi_perpendicular"])
    np.testing.assert_allclose(table["source"], 4 * plain["source"])
    assert "5.52" in table["h"].attrs["meaning"]
    assert float(table["g"].sel(K=0.5)) == pytest.approx(0.2736763079)


def test_functions_of_scale_invariant_activations_are_exact_at_any_kernel() -> None:
    at = KernelFunctions("relu").at([0.0, 1e-20, 1e8])
    np.testing.assert_array_equal(at.slope_square_slope, 0.0)
    np.testing.assert_array_equal(at.fourth, 1.5 * np.array([0.0, 1e-20, 1e8]) ** 2)


def test_bad_kernel_values() -> None:
    with pytest.raises(InputError, match="kinks"):
        kernel_functions("softsign", 0.0)
    with pytest.raises(InputError, match="one number or a list"):
        kernel_functions("tanh", [[1.0]])


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9), st.floats(-1, 1)), min_size=1, max_size=4))
def test_components_turn_back_into_the_kernel(rows: list[tuple[float, float, float]]) -> None:
    K = np.array([[[a, c], [c, b]] for a, b, c in rows])
    parts = components(K)
    np.testing.assert_allclose(from_components(*parts), K, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(4 * parts.K0 * parts.K2 - parts.K1**2, np.linalg.det(K), atol=1e-11)


def test_components_project_on_the_basis_matrices() -> None:
    basis = np.array([[[1, 1], [1, 1]], [[1, 0], [0, -1]], [[1, -1], [-1, 1]]], dtype=float)
    np.testing.assert_allclose(np.stack(components(basis)), np.eye(3))


def test_reference_row_nearby_tanh() -> None:
    net = MLP("tanh", depth=10, width=10)
    last = propagate(net, Nearby(1.0, 0.0, 0.01)).isel(layer=-1)
    found = [float(last[key]) for key in ("K00", "K0", "K2")]
    np.testing.assert_allclose(found, [0.05801184784, -7.444232323e-4, 7.905159247e-4], rtol=1e-9)
    last = propagate(net, (1.0, 0.05, 0.01)).isel(layer=-1)
    found = [float(last[key]) for key in ("K1", "K0", "K2")]
    np.testing.assert_allclose(found, [2.304634624e-4, -7.077808168e-4, 7.443940746e-4], rtol=1e-9)


@pytest.mark.parametrize(
    "mlp",
    [
        MLP("tanh", depth=4, width=10, C_b=[0.1, 0.2, 0.0, 0.3], C_W=[1.3, 1.1, 0.9, 1.2]),
        MLP("swish", depth=5, width=10, C_W=1.7, gamma=0.5),
        MLP("elu", depth=4, width=10, C_W=1.2),
    ],
    ids=["tanh", "residual swish", "elu"],
)
def test_remainders_fall_as_delta_to_the_four_three_four(mlp: MLP) -> None:
    orders = np.log2(np.abs(remainders(mlp, 0.1) / remainders(mlp, 0.05)))
    np.testing.assert_allclose(orders, [4, 3, 4], atol=0.06)


@pytest.mark.parametrize(
    "mlp", [MLP("relu", 4, 10, C_b=0.1, C_W=1.7), MLP(lambda z: np.clip(z, -0.5, 1.0), 3, 10, C_W=1.9)]
)
def test_jumps_of_the_slope_leave_less_than_delta_cubed(mlp: MLP) -> None:
    coarse, fine = remainders(mlp, 0.1), remainders(mlp, 0.05)
    for component in (0, 2):
        assert np.log2(np.abs(coarse[component] / fine[component])) > 3.8


def test_relu_distance_is_the_non_analytic_recursion() -> None:
    rho, K = 1 / np.pi, 1.3
    after = propagate(MLP("relu", 2, 10, C_W=2.0), Nearby(K, 0.0, 1e-4))["K2"].values[1]
    assert after == pytest.approx(1e-4 - 4 * rho / (3 * np.sqrt(K)) * 1e-6, rel=1e-12)


def test_start_distance_and_angle_are_those_of_the_inputs() -> None:
    net = MLP("sin", depth=2, width=10, C_b=0.2, C_W=1.5)
    pair = np.stack([MIDPOINT + GAP / 2, MIDPOINT - GAP / 2])
    K = net.first_kernel(pair)
    start = nearby_flow(net, MIDPOINT, GAP).isel(layer=0)
    cosine = K[0, 1] / np.sqrt(K[0, 0] * K[1, 1])
    assert float(start["angle"]) == pytest.approx(np.arccos(cosine), rel=1e-12)
    assert float(start["distance"]) ** 2 == pytest.approx(K[0, 0] + K[1, 1] - 2 * K[0, 1])
    assert float(start["K1"]) == pytest.approx((K[0, 0] - K[1, 1]) / 2)
    assert float(start["K00"]) == pytest.approx(first_layer(net, MIDPOINT, 0 * GAP).K00)


def test_factors_of_a_step_are_those_used() -> None:
    pair = nearby_flow(MLP("tanh", depth=3, width=10, C_W=1.4), MIDPOINT, GAP)
    np.testing.assert_allclose(pair["K1"][1:], (pair["K1"] * pair["chi_parallel"])[:-1])
    expected = pair["chi_perpendicular"] * pair["K2"] + pair["h"] * pair["K1"] ** 2
    np.testing.assert_allclose(pair["K2"][1:], expected[:-1])
    assert np.isnan(pair["h"][-1])


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    "sides", [("tanh", "gelu"), (("sin", 1), ("swish", 1)), (z * factor("erf"), "gelu"), ("tanh", z)]
)
def test_general_functions_leave_delta_cubed(sides: tuple[object, object]) -> None:
    def miss(delta: float) -> float:
        K1, K0, K2 = 0.8 * delta, -0.3 * delta**2, 0.7 * delta**2
        exact = expectation(list(sides), from_components(1.2 + K0, K1, K2), tolerance=1e-13)
        return float(expectation_near(*sides, 1.2, K1, K0, K2)) - float(exact)

    assert np.log2(abs(miss(0.02) / miss(0.01))) == pytest.approx(3, abs=0.15)


def test_general_functions_add_up_and_broadcast() -> None:
    K2 = np.array([0.0, 0.01])
    both = expectation_near(["tanh", factor("sin") * 2.0], ["tanh", "sin"], 1.0, K2=K2)
    parts = expectation_near("tanh", "tanh", 1.0, K2=K2) + 2 * expectation_near("sin", "sin", 1.0, K2=K2)
    np.testing.assert_allclose(both, parts, rtol=1e-12)
    # <cos(z_+ - z_-)> = exp(-2 K_2), and sin sin + cos cos is that.
    turned = expectation_near(["sin", "cos"], ["sin", "cos"], 1.0, K2=K2)
    np.testing.assert_allclose(turned, 1 - 2 * K2, rtol=1e-11)


def test_recursions_are_the_general_expansion_of_the_activation() -> None:
    start = Nearby(0.8, 0.05, 0.01, -0.004)
    step = propagate(MLP("gelu", 2, 10, C_b=0.1, C_W=1.6), start).isel(layer=1)
    cross = 0.1 + 1.6 * expectation_near("gelu", "gelu", start.K00, start.K1, start.K0, start.K2)
    assert float(step["K00"] + step["K0"] - step["K2"]) == pytest.approx(float(cross), rel=1e-11)


def test_bad_input() -> None:
    with pytest.raises(NotSupportedError, match="angle_flow"):
        nearby_flow(MLP("perceptron", 3, 10), MIDPOINT, GAP)
    with pytest.raises(NotSupportedError, match="both jump"):
        expectation_near(("relu", 1), ("relu", 1), 1.0, K2=0.1)
    with pytest.raises(InputError, match="same length"):
        nearby_flow(MLP("tanh", 3, 10), MIDPOINT, GAP[:2])
    with pytest.raises(InputError, match="as many of each"):
        expectation_near(["tanh"], ["tanh", "sin"], 1.0)
    with pytest.raises(InputError, match="positive"):
        expectation_near("tanh", "tanh", 0.0)
    with pytest.raises(InputError, match="not symmetric"):
        components([[1.0, 0.1], [0.2, 1.0]])
    with pytest.raises(InputError, match="K2 >= 0"):
        propagate(MLP("tanh", 3, 10), (1.0, 0.0, -0.1))
