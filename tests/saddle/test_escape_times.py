"""Escape times against the reference's numbers, closed forms, mpmath, the exact flow, and symmetries."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

import foretrain as ft
from foretrain.saddle import (
    balanced_time,
    bottleneck_scales,
    classify,
    coupling,
    critical_depth_time,
    escape_time,
    leading_time,
    shell_time,
)
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError

UNBALANCED = [0.03, 0.05, 0.07, 0.09]


def algebraic(z: Any) -> Any:
    return z / np.sqrt(1 + z * z)


def quintic(z: Any) -> Any:
    return z / (1 + z**4) ** 0.25


def integral_of_the_reference(K: float, scales: list[float], threshold: float) -> float:
    """(10) as it stands, by mpmath; a zero scale above the first layer makes its end an inverse square root."""
    with mpmath.workdps(30):
        X = [mpmath.mpf(scale) for scale in scales]
        gaps = [x**2 - X[0] ** 2 for x in X[1:]]
        ends = [X[0] + (threshold - X[0]) * mpmath.mpf(10) ** (-k / 2) for k in range(30, -1, -1)]
        found = mpmath.quad(
            lambda U: 1 / mpmath.sqrt(mpmath.fprod(U**2 + gap for gap in gaps)), [X[0], *ends]
        )
        return float(found / K)


@pytest.mark.parametrize(
    ("depth", "epsilon", "leading", "exact"),
    [
        (3, 0.1, 88.0516, 101.465),
        (3, 0.01, 1276.75, 1292.63),
        (4, 0.1, 587.011, 616.103),
        (4, 0.01, 65965.3, 66031.8),
        (5, 0.1, 4239.52, 4359.38),
    ],
)
def test_balanced_tanh_of_the_reference(depth: int, epsilon: float, leading: float, exact: float) -> None:
    scales = [epsilon] * depth
    assert escape_time("tanh", scales, threshold=0.3) == pytest.approx(leading, rel=2e-6)
    assert escape_time("tanh", scales, threshold=0.3, method="reduced") == pytest.approx(exact, rel=4e-6)


def test_unbalanced_tanh_of_the_reference() -> None:
    times = [
        escape_time("tanh", UNBALANCED, threshold=0.3, method=m) for m in ("reduced", "leading", "corrected")
    ]
    assert times == pytest.approx([1887.7, 1854.5, 1880.3], abs=0.05)


def test_a_single_zero_escapes_and_two_do_not() -> None:
    assert escape_time("tanh", [0, 0.1, 0.1, 0.1], threshold=0.3, method="reduced") == pytest.approx(
        1280.2, abs=0.05
    )
    K = coupling("tanh", 4)
    for place in range(4):
        scales = [0.1] * 4
        scales[place] = 0.0
        times = [
            escape_time("tanh", scales, threshold=0.3, method=m) for m in ("leading", "corrected", "reduced")
        ]
        assert times[0] == pytest.approx(integral_of_the_reference(K, scales, 0.3), rel=1e-9)
        assert abs(times[1] / times[2] - 1) < 0.3 * abs(times[0] / times[2] - 1)
    for method in ("leading", "corrected", "reduced"):
        assert escape_time("tanh", [0.1, 0, 0.1, 0], threshold=0.3, method=method) == math.inf
        assert escape_time("gelu", [0, 0, 0.1], threshold=0.3, method=method) == math.inf


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(
    ("scales", "threshold"),
    [
        ([0.1, 0.03, 0.2, 0.4], 0.3),
        ([0.4, 0.001, 0.0011], 0.7),
        ([0.1, 1e-6, 1.000001e-6, 0.4], 0.3),
        ([1e-5, 1e-5], 0.5),
        ([0.2, 1e-4, 2.0, 3.0, 1e-3, 0.1], 0.7),
        ([0.25, 0.1, 0.1], 0.3),
        ([0.1, 0.0, 0.3], 1.0),
        ([0.0, 2.0, 3.0], 1.0),
        ([0.05] * 9, 0.3),
    ],
)
def test_leading_quadrature_by_mpmath(scales: list[float], threshold: float) -> None:
    expected = integral_of_the_reference(0.1, scales, threshold)
    assert leading_time(0.1, scales, threshold) == pytest.approx(expected, rel=1e-8)


@given(
    epsilon=st.floats(1e-8, 0.2),
    depth=st.integers(2, 12),
    threshold=st.floats(0.25, 3.0),
    K=st.floats(1e-3, 10.0),
)
@settings(max_examples=50, deadline=None)
def test_balanced_closed_form(epsilon: float, depth: int, threshold: float, K: float) -> None:
    expected = balanced_time(K, epsilon, depth, threshold)
    assert leading_time(K, [epsilon] * depth, threshold) == pytest.approx(expected, rel=1e-11)


@given(
    first=st.floats(1e-4, 0.3),
    others=st.lists(st.floats(1e-4, 2.0), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_layers_above_the_first_may_be_permuted(first: float, others: list[float], seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(others)
    for method in ("leading", "corrected"):
        plain, moved = (
            escape_time("tanh", [first, *rest], threshold=0.4, method=method) for rest in (others, shuffled)
        )
        assert moved == pytest.approx(plain, rel=1e-11)


def test_the_order_of_the_first_layer_matters() -> None:
    """The threshold is on X_1, so scales are never sorted."""
    assert (
        escape_time("tanh", UNBALANCED, threshold=0.3)
        > escape_time("tanh", UNBALANCED[::-1], threshold=0.3) + 1
    )


@pytest.mark.parametrize("method", ["leading", "corrected"])
def test_scaling_with_beta_and_width(method: Any) -> None:
    base = escape_time("gelu", UNBALANCED, threshold=0.3, method=method)
    scaled = escape_time("gelu", UNBALANCED, width=256, beta=3.0, threshold=0.3, method=method)
    assert scaled == pytest.approx(base * 2 / 3, rel=1e-12)


@pytest.mark.parametrize("method", ["leading", "corrected", "reduced"])
def test_units_of_time(method: Any) -> None:
    matrix, reduced = (
        escape_time("tanh", UNBALANCED, width=25, threshold=0.3, method=method, time=time)
        for time in ("matrix", "reduced")
    )
    assert matrix == pytest.approx(25 * reduced, rel=1e-12)
    assert isinstance(matrix, float)


@given(scale=st.floats(0.1, 10.0), scales=st.lists(st.floats(0.01, 0.2), min_size=2, max_size=5))
@settings(max_examples=30, deadline=None)
def test_scaling_of_all_amplitudes(scale: float, scales: list[float]) -> None:
    base = leading_time(1.0, scales, 0.3)
    together = leading_time(1.0, np.array(scales) * scale, 0.3 * scale)
    assert together == pytest.approx(base * scale ** (2 - len(scales)), rel=1e-10)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("spec", "scales"),
    [
        (np.arctan, UNBALANCED),
        (np.arctan, [0.09, 0.05, 0.07, 0.03]),
        (algebraic, [0.08] * 5),
        ("mish", [0.02, 0.03, 0.05, 0.04]),
        ("gelu", [0.04] * 4),
        (quintic, [0.15] * 7),
        (quintic, [0.1, 0.2, 0.15, 0.2, 0.15, 0.2, 0.2]),
        ("erf", [0.05, 0.1, 0.1, 0.0]),
    ],
)
def test_the_correction_gains_on_the_exact_flow(spec: Any, scales: list[float]) -> None:
    """Also for activations that the sources do not mention, balanced and not."""
    leading, corrected, exact = (
        escape_time(spec, scales, threshold=0.3, method=m) for m in ("leading", "corrected", "reduced")
    )
    assert abs(corrected - exact) < 0.3 * abs(leading - exact)
    assert corrected == pytest.approx(exact, rel=0.02)


def test_the_correction_is_first_order() -> None:
    """Halving all scales and the threshold (q = 3): the leading error falls by 4, the corrected one by 16."""
    errors = []
    for size in (1.0, 0.5):
        scales, threshold = np.array([0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.11]) * size, 0.3 * size
        leading, corrected, exact = (
            escape_time("tanh", scales, threshold=threshold, method=m)
            for m in ("leading", "corrected", "reduced")
        )
        errors.append((leading / exact - 1, corrected / exact - 1))
    (large, large_better), (small, small_better) = errors
    assert large / small == pytest.approx(4.0, rel=0.1)
    assert large_better / small_better == pytest.approx(16.0, rel=0.2)


@pytest.mark.parametrize(
    ("scales", "threshold"),
    [
        ([0.06, 0.02, 0.1, 0.08], 0.5),
        ([0.06, 1e-5, 0.1, 0.08], 0.64),
        ([0.6, 0.01, 0.3], 0.64),
        ([0.377, 0.442, 0.011, 0.294, 0.466, 0.424], 0.586),
        ([0.2, 0.2], 0.6),
    ],
)
def test_corrected_time_by_integrating_the_flow_itself(scales: list[float], threshold: float) -> None:
    """(24) as an ordinary differential equation, with X_1 anywhere among the scales, and near its stall at 0.6455."""
    found, K, start = classify("tanh"), coupling("tanh", len(scales)), np.array(scales)
    powers = np.array([3, *[1] * (len(scales) - 1)])

    def rates(_: float, X: Any) -> Any:
        return K * X.prod() / X * (1 + powers * found.kappa * X[0] ** 2)

    def gap(_: float, X: Any) -> float:
        return float(X[0] - threshold)

    gap.terminal = True  # type: ignore[attr-defined]
    path = solve_ivp(rates, (0, 1e9), start, events=gap, rtol=1e-12, atol=1e-16, method="DOP853")
    assert escape_time("tanh", start, threshold=threshold, method="corrected") == pytest.approx(
        path.t[-1], rel=1e-8
    )


def test_corrected_stalls_beyond_its_range() -> None:
    kappa = classify("tanh").kappa
    stall = math.sqrt(-1 / (3 * kappa))
    near = escape_time("tanh", [0.1] * 4, threshold=0.9999 * stall, method="corrected")
    assert near > escape_time("tanh", [0.1] * 4, threshold=0.99 * stall, method="corrected")
    with pytest.warns(AccuracyWarning, match="stalls"):
        assert escape_time("tanh", [0.1] * 4, threshold=1.0, method="corrected") == math.inf
    assert math.isfinite(escape_time("gelu", [0.1] * 4, threshold=1.0, method="corrected"))


@pytest.mark.parametrize("method", ["leading", "corrected", "reduced"])
def test_a_first_layer_at_the_threshold_has_escaped(method: Any) -> None:
    assert escape_time("tanh", [0.3, 0.1, 0.1], threshold=0.3, method=method) == 0.0
    assert escape_time("tanh", [0.5, 0.0, 0.0], threshold=0.3, method=method) == 0.0


def test_class_a_needs_no_correction() -> None:
    for name in ("linear", "relu"):
        times = {m: escape_time(name, UNBALANCED, threshold=0.3, method=m) for m in ("leading", "corrected")}
        assert times["leading"] == times["corrected"]
    exact = escape_time("relu", [0.01] * 4, threshold=0.1, method="reduced")
    assert exact == pytest.approx(escape_time("relu", [0.01] * 4, threshold=0.1), rel=1e-4)


def test_class_d_speaks_of_the_centred_network() -> None:
    """K of sigma - sigma(0); the exact flow of the centred activation agrees, that of the bare one does not."""
    for name in ("sigmoid", "softplus"):
        with pytest.warns(AccuracyWarning, match="class D"):
            corrected = escape_time(name, [0.03] * 4, threshold=0.3, method="corrected")
        centred = escape_time(ft.saddle.centred(name), [0.03] * 4, threshold=0.3, method="reduced")
        bare = escape_time(name, [0.03] * 4, threshold=0.3, method="reduced")
        assert corrected == pytest.approx(centred, rel=2e-3)
        assert bare < 0.6 * centred  # the last layer first runs to beta / sqrt(N): one small layer fewer


@pytest.mark.parametrize(("bottleneck", "rel"), [(2, 0.2), (3, 0.02), (4, 0.01), (6, 0.01)])
def test_critical_depth_law(bottleneck: int, rel: float) -> None:
    others = [1.2, 0.9, 1.5, 0.8, 1.0][: 6 - bottleneck]
    law = critical_depth_time(0.1, 1e-4, bottleneck, 6, others)
    scales = bottleneck_scales(1e-4, bottleneck, 6, others)
    assert leading_time(0.1, scales) == pytest.approx(law, rel=rel)


def test_one_small_layer_costs_no_time() -> None:
    limit = critical_depth_time(0.1, 1e-6, 1, 4, [1.0, 2.0, 3.0], threshold=0.5)
    assert leading_time(0.1, [1e-6, 1.0, 2.0, 3.0], 0.5) == pytest.approx(limit, rel=1e-5)
    assert limit == pytest.approx(0.5 / (0.1 * 6), rel=0.1)


@pytest.mark.parametrize("ratio", [0.1, 1e-2, 1e-4, 1e-8])
def test_shells(ratio: float) -> None:
    """Separated scales in any order of the list, the threshold on the smallest: (2 - 2 log 2) / log(1/eta) too long.

    Every scale that is passed replaces log 2 by 1; the printed bound L eta^2 is far below that.
    """
    scales = 0.9 * ratio * np.array([1.0, ratio, ratio**2, ratio**3])
    found = shell_time(0.3, scales, threshold=0.9)
    exact = leading_time(0.3, np.sort(scales), threshold=0.9)
    assert found.relative_error == pytest.approx(float(found) / exact - 1, rel=1e-9)
    expected = (2 - 2 * math.log(2)) / (math.log(1 / ratio) + 2 * math.log(2))
    assert found.relative_error == pytest.approx(expected, rel=0.15)
    assert found.eta == pytest.approx(ratio)
    assert sum(found.terms) == pytest.approx(found.time)


@given(scales=st.lists(st.floats(1e-4, 0.8), min_size=2, max_size=6))
@settings(max_examples=30, deadline=None)
def test_shells_are_never_too_short(scales: list[float]) -> None:
    error = shell_time(0.3, scales, threshold=0.9).relative_error
    assert -1e-12 < error < 2 ** ((len(scales) - 1) / 2) - 1


def test_shells_of_equal_scales_are_the_balanced_form() -> None:
    assert float(shell_time(0.3, [0.1] * 4, 0.9)) == pytest.approx(balanced_time(0.3, 0.1, 4, 0.9))
    assert shell_time(0.3, [1.0, 2.0], 0.9).time == 0.0
    assert shell_time(0.3, [0.0, 0.0, 0.1], 0.9).time == math.inf
    with pytest.raises(InputError, match="above the threshold"):
        shell_time(0.3, [0.1, 2.0], 0.9)


def test_no_escape_without_a_positive_coupling() -> None:
    for method in ("leading", "corrected", "reduced"):
        with pytest.raises(InputError, match="not positive"):
            escape_time(lambda u: u - 0.5 * u**3, [0.1] * 3, method=method)
    with pytest.raises(InputError, match="not positive"):
        escape_time("tanh", [0.1] * 3, beta=-1.0)
    with pytest.raises(InputError, match="not positive"):
        escape_time("quadratic", [0.1] * 3)
    assert escape_time(lambda u: u - 0.2 * u**3, [0.1] * 3, threshold=0.3) == pytest.approx(
        balanced_time(0.4 / 8, 0.1, 3, 0.3)
    )
    # Two signs cancel at even depth.
    assert escape_time(lambda z: -np.tanh(z), [0.1] * 4) == pytest.approx(escape_time("tanh", [0.1] * 4))
    with pytest.raises(InputError, match="not positive"):
        escape_time(lambda z: -np.tanh(z), [0.1] * 3)


def test_outside_the_classes_only_the_correction_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="outside"):
        escape_time(lambda z: z + z**4, [0.1] * 3, method="corrected")
    assert escape_time(lambda z: z + z**4, [0.1] * 3) == pytest.approx(balanced_time(1 / 8, 0.1, 3))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"scales": [0.1, -0.1]}, "layer 2 is negative"),
        ({"scales": [0.1]}, "at least two"),
        ({"scales": [[0.1, 0.1]]}, "shape"),
        ({"scales": [0.1, math.nan]}, "finite"),
        ({"scales": np.ma.masked_array([0.1, 0.1], mask=[0, 1])}, "masked"),
        ({"scales": "abc"}, "give numbers"),
        ({"scales": [1e-120, 0.1]}, "give 0"),
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": [0.1, 0.2]}, "threshold"),
        ({"width": 6.5}, "width"),
        ({"beta": math.inf}, "beta"),
        ({"method": "exact"}, "method"),
        ({"time": "steps"}, "time unit"),
        ({"source": "papers"}, "source"),
        ({"source": "paper"}, "corrected"),
    ],
)
def test_bad_input(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        escape_time("tanh", **{"scales": [0.1, 0.1], **arguments})


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((0.1, 5, 4), "at most depth"),
        ((0.1, 0, 4), "bottleneck"),
        ((-0.1, 1, 4), "epsilon"),
        ((0.1, 2, 4, [1.0]), "others"),
    ],
)
def test_bad_bottlenecks(arguments: tuple[Any, ...], word: str) -> None:
    with pytest.raises(InputError, match=word):
        bottleneck_scales(*arguments)
