"""Balanced expansions against the exact flow, the paper's printed ones, tables and the collapse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from foretrain.saddle import (
    balanced_coefficient,
    balanced_expansion,
    classify,
    collapse,
    coupling,
    escape_time,
    escape_times,
    printed_expansion,
    printed_lambda,
)
from foretrain.support.errors import InputError, NotSupportedError


def measured(spec: Any, depth: int, method: Any, small: float, threshold: float = 0.3) -> float:
    """The coefficient of the second term, from escape times at two scales; constants cancel between them."""
    large, power = 2 * small, depth - 1 - (classify(spec).q or 0)
    K = coupling(spec, depth)
    times = [K * escape_time(spec, [e] * depth, threshold=threshold, method=method) for e in (small, large)]
    leading = [e ** (2 - depth) / (depth - 2) for e in (small, large)]
    second = [math.log(1 / e) if power == 0 else e**-power / power for e in (small, large)]
    return ((times[0] - times[1]) - (leading[0] - leading[1])) / (second[0] - second[1])


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("name", "depth", "here"),
    [
        ("tanh", 4, 1.1999),
        ("gelu", 3, -1.5005),
        ("tanh", 5, 1.1199),
        ("tanh", 6, 1.0665),
        ("gelu", 4, -1.4067),
    ],
)
def test_coefficients_of_the_reference(name: str, depth: int, here: float) -> None:
    """Those of the corrected expansion, and the exact flow's with the next order extrapolated away."""
    q = classify(name).q or 0
    assert balanced_coefficient(classify(name), depth) == pytest.approx(here, abs=6e-5)
    coarse, fine = (measured(name, depth, "reduced", small) for small in (0.02, 0.01))
    ratio = 2.0 ** (2 if depth == q + 1 and q == 3 else q - 1)
    assert (ratio * fine - coarse) / (ratio - 1) == pytest.approx(here, rel=2e-3)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("spec", "depth", "rel"),
    [
        (np.arctan, 5, 1e-3),
        ("mish", 4, 2e-3),
        (lambda z: z / (1 + z**4) ** 0.25, 7, 1e-3),
    ],
)
def test_coefficients_of_other_activations(spec: Any, depth: int, rel: float) -> None:
    small = 0.04 if depth == 7 else 0.01
    assert measured(spec, depth, "reduced", small) == pytest.approx(
        balanced_coefficient(classify(spec), depth), rel=rel
    )


@pytest.mark.parametrize(
    ("spec", "depth", "regime"),
    [("tanh", 6, "L > q + 1"), ("tanh", 4, "L = q + 1"), ("tanh", 3, "L < q + 1"), ("swish", 4, "L > q + 1")],
)
def test_the_expansion_tends_to_the_corrected_quadrature(spec: str, depth: int, regime: str) -> None:
    gaps = []
    for epsilon in (4e-3, 1e-3):
        found = balanced_expansion(spec, epsilon, depth, threshold=0.3)
        exact = found.K * escape_time(spec, [epsilon] * depth, threshold=0.3, method="corrected")
        gaps.append(abs(found.scaled_time - exact) / abs(found.correction))
        assert found.regime == regime
        assert found.time == pytest.approx(found.scaled_time / coupling(spec, depth))
    # At the resonance a constant is left beside the logarithm; below it the second term is integrated.
    bounds = {"L > q + 1": 0.02, "L = q + 1": 0.8, "L < q + 1": 1e-9}
    assert gaps[1] < bounds[regime]
    assert gaps[1] < gaps[0] or gaps[0] < 1e-9


def test_below_the_resonance_the_second_term_is_a_constant() -> None:
    constants = [balanced_expansion("tanh", epsilon, 3, threshold=0.3).correction for epsilon in (1e-3, 1e-4)]
    assert constants[0] == pytest.approx(constants[1], rel=1e-2)
    other = balanced_expansion("tanh", 1e-4, 3, threshold=0.2).correction
    assert abs(other / constants[1] - 1) > 0.2
    assert math.isnan(balanced_coefficient(classify("tanh"), 3))


def test_two_layers_and_linear_ones() -> None:
    found = balanced_expansion("relu", 0.01, 2, threshold=0.3)
    assert found.regime == "linear"
    assert found.scaled_time == pytest.approx(math.log(30))
    assert balanced_coefficient(classify("relu"), 5) == 0.0


def test_the_printed_coefficients() -> None:
    assert printed_lambda("tanh") == pytest.approx(-0.7999, abs=1e-4)
    assert printed_lambda("gelu") == pytest.approx(3.82, abs=1e-3)
    assert printed_lambda("relu") == 0.0
    with pytest.raises(NotSupportedError, match="outside"):
        printed_lambda("softsign")


def test_the_printed_integral_in_closed_form() -> None:
    """(33) at q = 3, L = 4: 1/(U^3 (1 + l U^2)) = 1/U^3 - l/U + l^2 U/(1 + l U^2)."""
    lam, K = printed_lambda("tanh"), coupling("tanh", 4)

    def primitive(U: float) -> float:
        return -1 / (2 * U**2) - lam * math.log(U) + lam / 2 * math.log(1 + lam * U**2)

    found = escape_time("tanh", [0.05] * 4, threshold=0.6, method="corrected", source="paper")
    assert found == pytest.approx((primitive(0.6) - primitive(0.05)) / K, rel=1e-10)
    assert escape_time("tanh", [0.05] * 4, threshold=1.2, method="corrected", source="paper") == math.inf
    assert escape_time("relu", [0.05] * 4, method="corrected", source="paper") == pytest.approx(
        escape_time("relu", [0.05] * 4)
    )
    with pytest.raises(NotSupportedError, match="balanced"):
        escape_time("tanh", [0.05, 0.06], threshold=0.6, method="corrected", source="paper")


def test_the_exact_flow_decides_between_the_two() -> None:
    for name, depth in (("tanh", 5), ("gelu", 4)):
        exact = escape_time(name, [0.03] * depth, threshold=0.3, method="reduced")
        here = escape_time(name, [0.03] * depth, threshold=0.3, method="corrected")
        printed = escape_time(name, [0.03] * depth, threshold=0.3, method="corrected", source="paper")
        assert abs(here - exact) < 0.2 * abs(printed - exact)


def test_printed_expansions() -> None:
    lam, gamma = printed_lambda("tanh"), printed_lambda("gelu")
    assert printed_expansion("tanh", 0.01, 4) == pytest.approx(1e4 / 2 - lam * math.log(100))
    assert printed_expansion("tanh", 0.01, 6) == pytest.approx(1e8 / 4 - lam * 1e4 / 2)
    assert printed_expansion("gelu", 0.01, 4) == pytest.approx(1e4 / 2 - gamma * 100)
    with pytest.raises(NotSupportedError, match="balanced_expansion"):
        printed_expansion("tanh", 0.01, 3)


def test_a_table() -> None:
    table = escape_times(
        "tanh",
        [0.01, 0.1],
        [3, 4],
        bottleneck=[2, 4],
        threshold=0.3,
        others=0.8,
        formula=("leading", "corrected"),
    )
    assert table.dims == ("epsilon", "depth", "bottleneck", "formula")
    assert np.isnan(table.sel(depth=3, bottleneck=4)).all()
    one = escape_time("tanh", [0.1, 0.1, 0.8, 0.8], threshold=0.3, method="corrected")
    assert float(table.sel(epsilon=0.1, depth=4, bottleneck=2, formula="corrected")) == one
    assert float(table["K"].sel(depth=4)) == coupling("tanh", 4)
    assert "matrix flow" in table.attrs["time"]


def test_slopes_of_balanced_tables() -> None:
    """-(L-2) at small scales; half the time unit changes nothing but the factor N."""
    small = np.array([1e-4, 2e-4])
    table = escape_times("gelu", small, [3, 4, 6], formula="leading")
    slopes = np.diff(np.log(table.values[..., 0]), axis=0)[0] / math.log(2)
    np.testing.assert_allclose(slopes, [-1, -2, -4], atol=1e-3)
    reduced = escape_times("gelu", small, [3, 4, 6], formula="leading", time="reduced")
    np.testing.assert_allclose(table.values, 64 * reduced.values)


@pytest.mark.slow
def test_collapse_of_the_classes() -> None:
    """K t of A to C agree at leading order, and in the exact flow the better the smaller epsilon."""
    names = ["linear", "tanh", "erf", "gelu", "swish"]
    found = collapse(names, [0.003, 0.03], 4, threshold=0.5)
    assert found["letter"].values.tolist() == ["A", "B", "B", "C", "C"]
    assert float(found["spread"].sel(formula="leading").max()) < 1e-12
    exact = found["spread"].sel(formula="reduced").values
    assert exact[0] < 0.01
    assert exact[1] > 5 * exact[0]
    bare = found["time"].sel(formula="reduced", epsilon=0.003)
    assert float(bare.max() / bare.min()) > 10
    with pytest.raises(InputError, match="list"):
        collapse("tanh", [0.1], 4)


def test_bad_tables() -> None:
    with pytest.raises(InputError, match="epsilon"):
        escape_times("tanh", [], 4)
    with pytest.raises(InputError, match="formula"):
        escape_times("tanh", [0.1], 4, formula="exact")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="depth"):
        escape_times("tanh", [0.1], 1)
