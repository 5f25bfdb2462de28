"""Laws of single modes against quadratures, the leading escape time, brute force and the scalar flow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, solve_ivp

from foretrain.saddle import ChainField, classify, coupling, leading_time
from foretrain.saddle.modes import (
    chain_moment,
    critical_depth,
    critical_scale,
    fitted_product,
    fitted_scales,
    mode_coupling,
    mode_times,
    stage,
    transit_integral,
)
from foretrain.support.errors import InputError

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


@pytest.mark.parametrize("theta", [1e-3, 0.4, 3.0, 40.0])
def test_transit_integrals(theta: float) -> None:
    assert transit_integral(2, theta) == pytest.approx(math.asinh(theta), rel=1e-12)
    assert transit_integral(3, theta) == pytest.approx(math.atan(theta), rel=1e-12)
    assert transit_integral(4, theta) == pytest.approx(theta / math.sqrt(1 + theta**2), rel=1e-12)
    plain = quad(lambda s: (1 + s * s) ** -2.5, 0, theta, epsabs=0, epsrel=1e-12, limit=200)[0]
    assert transit_integral(6, theta) == pytest.approx(plain, rel=1e-10)


@pytest.mark.parametrize("depth", [2, 4, 5])
def test_chain_moment_against_plain_quadrature(depth: int) -> None:
    rho, signal, product = 0.4, 0.4 * NODES, np.ones_like(NODES)
    for _ in range(depth - 1):
        product *= 1 - np.tanh(signal) ** 2
        signal = rho * np.tanh(signal)
    assert chain_moment("tanh", depth, rho) == pytest.approx(float(product @ WEIGHTS), rel=1e-10)


def test_small_scales_have_the_coupling_of_a_single_mode() -> None:
    assert mode_coupling("gelu", 4, 1e-9, 20, 0.3) == pytest.approx(
        coupling("gelu", 4, width=20, beta=0.3), rel=1e-8
    )


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 6),
    st.lists(st.tuples(st.floats(0.02, 2.0), st.floats(0.01, 0.8)), min_size=1, max_size=4),
    st.floats(0.05, 1.0),
)
def test_times_are_the_quadrature_from_a_zero_first_layer(
    depth: int, modes: list[tuple[float, float]], threshold: float
) -> None:
    """(52) is (10) with X_1(0) = 0 and all other layers at rho."""
    betas, rhos = zip(*modes)
    found = mode_times("tanh", betas, rhos, depth=depth, block_width=20, threshold=threshold)
    for number, rho in enumerate(rhos):
        K = float(found["K"][number])
        expected = leading_time(K, [0.0] + [rho] * (depth - 1), threshold)
        assert float(found["time"][number]) == pytest.approx(expected, rel=1e-8)
    order = np.argsort(found["rank"].values)
    assert (np.diff(found["rate"].values[order]) <= 0).all()


def test_a_weak_mode_with_larger_scales_goes_first() -> None:
    found = mode_times("tanh", (1.0, 0.3), (0.05, 0.4), depth=4, block_width=20, epsilon=0.05)
    assert found["rank"].values.tolist() == [2, 1]
    assert float(found["time"][1]) < float(found["time"][0])
    assert float(found["critical_depth"][0]) == pytest.approx(4.0)
    assert critical_depth(critical_scale(2.7, 0.05, 6), 0.05, 6) == pytest.approx(2.7)


def test_fitted_scales_minimise_the_loss_on_their_curve() -> None:
    field, gap = ChainField(classify("tanh").activation, 20, 1.0), np.array([0.0, 0.01, 0.02, 0.03])
    X = np.sqrt(0.05**2 + gap)
    found = fitted_scales("tanh", X, beta=1.0, block_width=20)
    np.testing.assert_allclose(found**2 - found[0] ** 2, gap, atol=1e-14)
    around = [float(field.loss(np.sqrt((found[0] * factor) ** 2 + gap))) for factor in (0.999, 1.0, 1.001)]
    assert around[1] < min(around[0], around[2])


@pytest.mark.parametrize(("name", "depth"), [("tanh", 3), ("erf", 4), ("sin", 4)])
def test_the_fitted_product_at_leading_order(name: str, depth: int) -> None:
    """The relative correction is of second order in the scales, here with the product and the paper's form apart."""
    errors, sizes = [], []
    for width in (10**6, 10**8):
        found = fitted_scales(name, [1e-3] * depth, beta=1.0, block_width=width)
        errors.append(abs(float(found.prod()) / fitted_product(name, depth, 1.0, width) - 1))
        sizes.append(float(found[0] ** 2))
    assert errors[1] < 0.2
    assert errors[1] / errors[0] == pytest.approx(sizes[1] / sizes[0], rel=0.15)


def test_a_linear_mode_settles_at_the_exact_product() -> None:
    X = np.array([0.1, 0.15, 0.2])
    settled = fitted_scales("linear", X, beta=0.8, block_width=9)
    assert settled.prod() == pytest.approx(0.8 / 3, rel=1e-10)
    field = ChainField(classify("linear").activation, 9, 0.8)
    end = solve_ivp(lambda _, X: field.rates(X), (0, 60), X, method="LSODA", rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(end.y[:, -1], settled, rtol=1e-7)


def test_stage_times() -> None:
    found = stage("tanh", 4, beta=1.0, rho=0.05, block_width=20)
    assert found.growth == pytest.approx(coupling("tanh", 4, width=20))
    path = solve_ivp(
        lambda _, U: found.rate(U[0]),
        (0, 1e5),
        [0.01],
        events=_passing(0.3),
        rtol=1e-10,
        atol=1e-14,
    )
    assert found.time(0.3, start=0.01) == pytest.approx(path.t_events[0][0], rel=1e-6)


def test_stage_drive_and_damping_are_those_of_the_scalar_flow() -> None:
    """At small scales dX_1/ds = F - H U; the growth K U^(L-1) replaces it once all scales are alike."""
    rho, width = 0.02, 20
    found = stage("erf", 3, beta=0.7, rho=rho, block_width=width)
    field = ChainField(classify("erf").activation, width, 0.7)
    assert found.drive == pytest.approx(float(field.rates(np.array([0.0, rho, rho]))[0]) / width, rel=1e-3)
    answer = ChainField(classify("erf").activation, width, 0.0)
    assert found.damping == pytest.approx(
        -float(answer.rates(np.array([1e-3, rho, rho]))[0]) / width / 1e-3, rel=2e-3
    )


def test_a_stage_that_comes_to_rest_never_ends() -> None:
    found = stage("tanh", 4, beta=0.01, rho=0.9, block_width=20)
    assert found.time(0.9) == math.inf


def test_transit_integrals_of_a_path_without_end() -> None:
    assert transit_integral(2, np.inf) == np.inf
    np.testing.assert_allclose(
        transit_integral(3, [np.inf, -np.inf, 1.0]), np.pi * np.array([0.5, -0.5, 0.25])
    )
    np.testing.assert_allclose(transit_integral(5, np.inf), transit_integral(5, 1e6), rtol=1e-10)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="every mode"):
        mode_times("tanh", (1.0, 0.3), (0.1,), depth=4, block_width=20)
    with pytest.raises(InputError, match="never escapes"):
        mode_times("tanh", (1.0,), (0.0,), depth=4, block_width=20)
    with pytest.raises(InputError, match="K > 0"):
        mode_times("tanh", (-1.0,), (0.1,), depth=4, block_width=20)
    with pytest.raises(InputError, match="three layers"):
        critical_depth(0.1, 0.1, 2)
    with pytest.raises(InputError, match="settles"):
        fitted_scales("tanh", [3.0, 3.0, 3.0], beta=1.0, block_width=20)


def _passing(level: float):  # type: ignore[no-untyped-def]
    def gap(_: float, U: np.ndarray) -> float:
        return float(U[0] - level)

    gap.terminal = True  # type: ignore[attr-defined]
    return gap
