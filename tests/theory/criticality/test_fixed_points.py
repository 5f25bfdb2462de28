"""Fixed points against the reference's numbers, closed forms and plain iteration of the recursion."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from foretrain.support.errors import InputError
from foretrain.theory.criticality import criticality
from foretrain.theory.criticality.fixed_points import correlation_depth, fixed_points, flows_to
from foretrain.theory.kernel_functions import KernelFunctions


def test_the_reference_point_of_tanh() -> None:
    (point,) = fixed_points("tanh", C_b=0.3, C_W=1.5)
    assert pytest.approx(0.8461750173, abs=1e-10) == point.K
    assert point.chi_parallel == pytest.approx(0.3178500569, abs=1e-10)
    assert (point.stability, point.phase) == ("stable", "ordered")
    assert point.depth_parallel == pytest.approx(-1 / math.log(0.3178500569), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "side", "nearby"),
    [("swish", "attracts from below", 14.5931), ("gelu", "attracts from above", 3.03498)],
)
@pytest.mark.parametrize("gamma", [0.0, 0.6])
def test_double_roots_and_their_trivial_neighbours(name: str, side: str, nearby: float, gamma: float) -> None:
    found = criticality(name, gamma)
    points = {round(p.K, 3): p for p in fixed_points(name, found.C_b, found.C_W, gamma)}
    assert len(points) == 2
    critical = points[round(found.K_star, 3)]
    assert (critical.stability, critical.phase) == (side, "critical")
    assert pytest.approx(found.K_star, rel=1e-9) == critical.K
    assert (critical.depth_parallel, critical.depth_perpendicular) == (math.inf, math.inf)
    trivial = points[round(nearby, 3)]
    assert trivial.stability == "stable"
    assert pytest.approx(nearby, abs=5e-5) == trivial.K


def test_rounded_hyperparameters_split_the_double_root() -> None:
    assert len(fixed_points("gelu", 0.17292239, 1.98305826)) == 3
    assert [p.stability for p in fixed_points("gelu", 0.17292239, 1.98305826)] == [
        "stable",
        "unstable",
        "stable",
    ]


@pytest.mark.parametrize(
    ("name", "C_W", "expected"),
    [
        ("tanh", 1.0, [("stable", "critical")]),
        ("tanh", 0.9, [("stable", "ordered")]),
        ("tanh", 1.1, [("unstable", "chaotic"), ("stable", "chaotic")]),
        ("gelu", 4.0, [("unstable", "critical")]),
        ("selu", 1.0, [("unstable", "chaotic"), ("stable", "chaotic")]),
    ],
)
def test_zero_is_a_fixed_point_without_biases(name: str, C_W: float, expected: list[tuple[str, str]]) -> None:
    points = fixed_points(name, 0.0, C_W)
    assert points[0].K == 0
    assert [(p.stability, p.phase) for p in points] == expected


def test_selu_was_made_for_unit_variance() -> None:
    assert pytest.approx(1.0, abs=1e-12) == fixed_points("selu", 0.0, 1.0)[1].K


def test_closed_forms_of_the_quadratic() -> None:
    """K = C_b + 3 C_W K^2 has the roots (1 -+ sqrt(1 - 12 C_W C_b)) / (6 C_W); one is double at 12 C_W C_b = 1."""
    root = math.sqrt(1 - 12 * 0.5 * 0.01)
    low, high = fixed_points("quadratic", 0.01, 0.5)
    np.testing.assert_allclose([low.K, high.K], [(1 - root) / 3, (1 + root) / 3], rtol=1e-12)
    assert (low.stability, high.stability) == ("stable", "unstable")
    (double,) = fixed_points("quadratic", 1 / 6, 0.5)
    assert pytest.approx(1 / 3, rel=1e-9) == double.K
    assert double.stability == "attracts from below"
    assert fixed_points("quadratic", 0.17, 0.5) == ()


def test_scale_invariant_activations_in_closed_form() -> None:
    (line,) = fixed_points("relu", 0.0, 2.0)
    assert (line.K, line.stability, line.phase) == (None, "marginal", "critical")
    assert fixed_points("relu", 0.1, 2.0) == fixed_points("relu", 0.1, 3.0) == ()
    assert fixed_points("relu", 0.0, 3.0)[0].stability == "unstable"
    (point,) = fixed_points("leaky_relu(slope=0.5)", 0.3, 0.8, gamma=0.5)
    assert pytest.approx(0.3 / (1 - 0.25 - 0.8 * 0.625)) == point.K
    np.testing.assert_array_equal(flows_to("relu", 0.0, 2.0, [0.5, 3.0]), [0.5, 3.0])
    assert flows_to("relu", 0.1, 2.0, 1.0) == math.inf
    assert flows_to("relu", 0.0, 3.0, 0.0) == 0
    assert flows_to("relu", 0.0, 3.0, 1e-9) == math.inf


def test_where_the_flow_ends_on_either_side_of_criticality() -> None:
    gelu = criticality("gelu")
    ends = flows_to("gelu", gelu.C_b, gelu.C_W, [1.0, 3.2, gelu.K_star, 10.0])
    np.testing.assert_allclose(ends, [3.03498, 3.03498, gelu.K_star, gelu.K_star], atol=5e-6)
    swish = criticality("swish")
    ends = flows_to("swish", swish.C_b, swish.C_W, [1.0, swish.K_star, 14.4, 20.0])
    np.testing.assert_allclose(ends, [swish.K_star, swish.K_star, 14.59310, 14.59310], atol=6e-6)
    assert flows_to("mish", criticality("mish").C_b, criticality("mish").C_W, 2.0) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh", "gelu", "sigmoid", "elu", "cos"])
def test_the_end_is_where_iteration_leads(name: str) -> None:
    functions, compared = KernelFunctions(name), 0
    for C_b, C_W, gamma, start in product((0.0, 0.4), (0.5, 2.6), (0.0, -0.5), (0.05, 4.0)):
        end, K, steps = flows_to(name, C_b, C_W, start, gamma), start, 0
        while 1e-6 < K < 100 and steps < 150:
            K, steps = C_b + C_W * float(functions.fast(K)[0]) + gamma**2 * K, steps + 1
        if not 1e-6 < K < 100:
            assert end == (math.inf if K > 1 else 0.0)
            continue
        chi = gamma**2 + C_W * float(functions.fast(K)[1])
        if chi < 0.9:  # else 150 layers are too few
            assert end == pytest.approx(K, rel=1e-5)
            compared += 1
    assert compared >= 4


def test_a_decreasing_map_overshoots_and_settles() -> None:
    """cos: g = (1 + exp(-2 K)) / 2 falls with K."""
    (point,) = fixed_points("cos", 0.1, 3.0)
    K = 0.1
    for _ in range(100):
        K = 0.1 + 1.5 * (1 + math.exp(-2 * K))
    assert pytest.approx(K, rel=1e-12) == point.K
    assert point.chi_parallel == pytest.approx(-3.0 * math.exp(-2 * K), rel=1e-10)
    assert point.stability == "stable"
    assert flows_to("cos", 0.1, 3.0, 40.0) == point.K


def test_correlation_depth() -> None:
    np.testing.assert_allclose(
        correlation_depth([math.exp(-0.1), math.exp(0.1), 1.0, 0.0]), [10, 10, math.inf, 0], rtol=1e-12
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-0.1, 1.0, 0.0), "C_b is -0.1"),
        ((0.1, math.nan, 0.0), "C_W is nan"),
        ((0.1, 1.0, 1.0), "gamma is 1"),
    ],
)
def test_bad_input(arguments: tuple[float, float, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fixed_points("tanh", *arguments)
    with pytest.raises(InputError, match=message):
        flows_to("tanh", arguments[0], arguments[1], 1.0, arguments[2])
    with pytest.raises(InputError, match="not negative"):
        flows_to("tanh", 0.1, 1.0, -1.0)
