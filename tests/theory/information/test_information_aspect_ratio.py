"""Depth over width of the largest truncated information: printed, complete, and what the exact law says there."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.information import (
    aspect_ratio,
    complete_information,
    log_normal_law,
    mixture_information,
    next_coefficient,
    printed_information,
    turning_point,
)
from foretrain.theory.residual_networks import largest_mutual_information, optimal_aspect_ratio


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", (0.0769231, 0.04, 0.00625)),
        ("relu", (0.0307692, 0.016, 0.0025)),
        ("tanh", (0.2307692, 0.12, 0.01875)),
    ],
)
def test_ratios_of_the_reference(name: str, expected: tuple[float, ...]) -> None:
    informations = (0.000986193, 0.006666667, 0.016276042)
    for m, ratio, information in zip((1, 5, 50), expected, informations):
        found = aspect_ratio(name, m, m)
        assert found.printed == pytest.approx(ratio, abs=5e-8)
        assert found.information == pytest.approx(information, abs=5e-10)
        assert found.breakdown == pytest.approx(1.5 * ratio, abs=1e-7)
        assert found.printed == pytest.approx(optimal_aspect_ratio(name, n_out=2 * m))
        assert found.information == pytest.approx(largest_mutual_information(2 * m))


@pytest.mark.parametrize(
    ("name", "gamma", "expected"),
    [
        ("relu", 0.6, 0.0269396552),
        ("relu", 0.9, 0.1004898882),
        ("tanh", 0.6, 0.1378676471),
        ("tanh", 0.9, 0.3489386450),
    ],
)
def test_residual_ratios_of_the_reference(name: str, gamma: float, expected: float) -> None:
    found = aspect_ratio(name, 5, 5, gamma)
    assert found.printed == pytest.approx(expected, abs=5e-11)
    if name == "relu":  # the complete fluctuations are larger, so that less depth is allowed
        assert found.nu > found.nu_printed
        assert found.complete < found.printed


def test_values_around_the_maximum() -> None:
    y = turning_point(1, 1) * np.array([1.0, 2.0, 4.0])
    assert printed_information(1, 1, y) == pytest.approx([0.000986, -0.003945, -0.078895], abs=5e-7)
    exact = aspect_ratio("linear", 1, 1).exact_information
    assert exact == pytest.approx(0.002027, abs=5e-7)
    assert aspect_ratio("tanh", 1, 1).exact_information is None


@pytest.mark.parametrize("kind", ["scale-invariant", "K*=0"])
def test_complete_series_peaks_at_its_own_ratio(kind: str) -> None:
    turn = turning_point(2, 3, next_coefficient(kind))
    values = complete_information(2, 3, turn * np.array([0.99, 1.0, 1.01]), kind)
    assert values[1] > max(values[0], values[2])


def test_complete_series_is_nearer_to_the_exact_information() -> None:
    for y in (0.01, 0.05, 0.1):
        exact = mixture_information(log_normal_law(y), 1, 1).value
        errors = [
            abs(float(value) - exact)
            for value in (complete_information(1, 1, y, "scale-invariant"), printed_information(1, 1, y))
        ]
        assert errors[0] < errors[1]


@pytest.mark.statistical
def test_second_order_of_the_variance_at_zero_kernel() -> None:
    """X = (2/3) r + (2/15) r^2 + O(r^3): the metric of K* = 0 networks, G' = G (1 - G) chi^2_n / n with a_1 = -1.

    The cubic term is cancelled between r and r/2, whose squares then separate 2/15 from the 0 of (A.71) and from the
    2/9 of a log-normal law.
    """
    rng, draws = np.random.default_rng(0), 60_000
    found = []
    for width in (2000, 4000):
        G = np.full(draws, 0.3)
        for _ in range(999):
            G *= (1 - G) * (1 + np.sqrt(2 / width) * rng.standard_normal(draws))
        d, r = G / G.mean() - 1, 1000 / width
        X = float((d**2).mean())
        # The finite depth shifts the first order, by as much as infinite width says.
        found.append(((X - _first_order(1000) * r) / r**2, np.std(d**2 - 2 * d * X) / np.sqrt(draws) / r**2))
    limit = 2 * found[1][0] - found[0][0]
    error = float(np.hypot(2 * found[1][1], found[0][1]))
    assert error < 0.08
    assert abs(limit - 2 / 15) < 3.5 * error
    assert found[0][0] > 0.06 + 3 * found[0][1]
    assert found[0][0] < 2 / 9 - 3 * found[0][1]


def _first_order(depth: int) -> float:
    """n X / L at infinite width by the recursion V' = (1 - 2K)^2 V + 2 K'^2, K' = K (1 - K)."""
    K, V = 0.3, 0.0
    for _ in range(depth - 1):
        K, V = K * (1 - K), (1 - 2 * K) ** 2 * V + 2 * (K * (1 - K)) ** 2
    return V / K**2 / depth


def test_moments_of_the_process_by_hand() -> None:
    """dM_k/ds = k M_k - k M_(k+1) + k (k-1) r M_k, order by order in r ~ e^s, has polynomials in k for solutions."""
    k = np.arange(0, 6)
    first = k * (k - 2) / 3
    second = -k / 30 + 14 * k**2 / 45 - 4 * k**3 / 15 + k**4 / 18
    for order, values, source in ((1, first, np.ones(6)), (2, second, first)):
        left = order * values[1:-1]
        right = k[1:-1] * (values[1:-1] - values[2:]) + k[1:-1] * (k[1:-1] - 1) * source[1:-1]
        assert left == pytest.approx(right, abs=1e-12)
    # X = M_2 / M_1^2 - 1
    assert first[2] - 2 * first[1] == pytest.approx(2 / 3)
    assert second[2] - 2 * second[1] - 2 * first[1] * first[2] + 3 * first[1] ** 2 == pytest.approx(2 / 15)
    assert next_coefficient("K*=0") == pytest.approx(20 - 12 * (2 / 15) / (2 / 3) ** 2)
    assert next_coefficient("scale-invariant") == 20 - 12 / 2


def test_the_repr_warns_of_the_truncation() -> None:
    text = repr(aspect_ratio("relu", 5, 5, 0.6))
    assert "truncated" in text
    assert "0.6" in text


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: aspect_ratio("gelu", 1, 1), NotSupportedError, "half-stable"),
        (lambda: aspect_ratio("sigmoid", 1, 1), NotSupportedError, "no critical initialisation"),
        (lambda: aspect_ratio("tanh", 0, 1), InputError, "number of neurons is 0"),
        (lambda: aspect_ratio("tanh", 1, 1, gamma=1.0), InputError, "gamma is 1.0"),
        (lambda: next_coefficient("half-stable"), InputError, "not known for the class"),
    ],
)
def test_bad_input(ask: object, error: type[Exception], message: str) -> None:
    assert callable(ask)
    with pytest.raises(error, match=message):
        ask()
