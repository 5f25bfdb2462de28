"""Exact escape times from very long plateaus, along slow valleys and with an offset of the activation."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from foretrain.activations import activation
from foretrain.saddle import centred, coupling, escape_time, reduced_flow
from foretrain.saddle.scalar_flow import (
    ChainField,
    StalledError,
    cross_plateau,
    driven_share,
    evaluation_limit,
)
from foretrain.support.errors import AccuracyWarning


@pytest.mark.parametrize(
    ("scales", "expansion"),
    [([1e-3] * 8, 1e-9), ([1e-12] * 8, 1e-10), ([1e-3] * 7 + [1.0], 1e-9), ([0.0] + [1e-3] * 7, 1e-5)],
)
def test_a_plateau_of_any_length_is_crossed(scales: list[float], expansion: float) -> None:
    exact = escape_time("tanh", scales, threshold=0.3, method="reduced")
    assert exact == pytest.approx(
        escape_time("tanh", scales, threshold=0.3, method="corrected"), rel=expansion
    )


def test_a_long_plateau_of_a_linear_network_is_the_quadrature() -> None:
    times = [escape_time("linear", [1e-3] * 8, threshold=0.5, method=m) for m in ("leading", "reduced")]
    assert times[0] == pytest.approx(times[1], rel=1e-10)


def test_a_fixed_point_behind_a_long_plateau_is_never_passed() -> None:
    """The linear network ends where sqrt(N) prod X = 1: at X = 8^(-1/8) = 0.77 for width 64."""
    assert escape_time("linear", [1e-3] * 8, threshold=0.77, method="reduced") < math.inf
    assert escape_time("linear", [1e-3] * 8, threshold=0.78, method="reduced") == math.inf


def test_both_ways_over_a_plateau_agree() -> None:
    """Path length as the variable, against time, where both can do it."""
    field = ChainField(activation("tanh"), 64, 1.0)
    start = np.array([0.03, 0.05, 0.07, 0.09])
    found = cross_plateau(field, start, 0.3, 1000.0)
    assert found.crossed
    assert found.times[-1] == pytest.approx(
        escape_time("tanh", start, threshold=0.3, method="reduced"), rel=1e-8
    )


def test_the_plateau_ends_where_the_output_is_no_longer_small() -> None:
    field = ChainField(activation("tanh"), 64, 1.0)
    found = cross_plateau(field, np.full(4, 0.1), 5.0, 600.0)
    assert not found.crossed
    assert driven_share(field, found.states[0]) == pytest.approx(1.0, abs=1e-2)
    assert driven_share(field, found.states[-1]) == pytest.approx(0.5, abs=1e-6)


LIMIT = "foretrain.saddle.scalar_flow._MOST_EVALUATIONS"


def test_a_slow_valley_gives_infinity_and_says_where_it_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMIT, 2000)
    scales = [0.28766, 0.11217, 0.22977, 0.00376, 0.25532, 0.00375, 0.00176, 0.36786]
    with pytest.warns(AccuracyWarning, match="still moves slowly") as caught:
        time = escape_time("sigmoid", scales, width=100, beta=3.416, threshold=1.5, method="reduced")
    assert time == math.inf
    assert not any("at s = 0 " in str(entry.message) for entry in caught)


@pytest.mark.statistical
def test_a_valley_too_steep_for_the_integrator_is_no_error() -> None:
    scales = [0.58527, 0.01659, 0.03607, 0.02586, 0.01012, 0.44952, 0.06788, 0.62721]
    with pytest.warns(AccuracyWarning, match="still moves slowly"):
        assert escape_time("erf", scales, width=100, beta=4.072, threshold=1.0, method="reduced") == math.inf


def test_the_limit_of_evaluations_says_where_it_was_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMIT, 1)
    check = evaluation_limit(ChainField(activation("tanh"), 64, 1.0))
    state = np.array([0.1, 0.2])
    check(1.0, state)
    check(2.0, state)
    with pytest.raises(StalledError, match="no progress at s = 3") as raised:
        check(3.0, state)
    assert raised.value.time == 3.0
    assert raised.value.state is state


def test_times_beyond_the_largest_number_are_infinite_without_noise() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert escape_time("tanh", [1e-60] * 8, threshold=0.3) == math.inf


def softplus_flow(scales: np.ndarray[Any, Any], threshold: float, offset: float) -> float:
    """(4) for softplus less ``offset``, width 64, beta 1, by Gauss-Hermite quadrature, in matrix time."""
    g, w = np.polynomial.hermite_e.hermegauss(128)
    w = w / w.sum()
    y = np.logaddexp(0, g) - offset

    def rates(_: float, X: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        inputs, outputs = [X[0] * g], [g]
        for scale in X[1:]:
            outputs.append(np.logaddexp(0, inputs[-1]) - offset)
            inputs.append(scale * outputs[-1])
        above, found = np.full_like(g, 8.0), np.empty(len(X))
        error = 8 * inputs[-1] - y
        for layer in range(len(X) - 1, -1, -1):
            found[layer] = -w @ (error * above * outputs[layer]) / 64
            if layer:
                above = above * X[layer] / (1 + np.exp(-inputs[layer - 1]))
        return found

    def gap(_: float, X: np.ndarray[Any, Any]) -> float:
        return float(X[0]) - threshold

    gap.terminal = True  # type: ignore[attr-defined]
    found = solve_ivp(rates, (0, 1e6), scales, method="LSODA", events=gap, rtol=1e-11, atol=1e-14)
    return float(found.t_events[0][0])


@pytest.mark.parametrize(
    ("activation_given", "offset"), [("softplus", 0.0), (centred("softplus"), math.log(2))]
)
def test_the_exact_flow_follows_the_activation_as_given(activation_given: Any, offset: float) -> None:
    scales = np.array([0.05, 0.03, 0.1])
    found = escape_time(activation_given, scales, threshold=0.3, method="reduced")
    assert found == pytest.approx(softplus_flow(scales, 0.3, offset), rel=1e-7)


@pytest.mark.parametrize("method", ["leading", "corrected"])
def test_expansions_in_class_d_say_that_they_are_for_the_centred_network(method: Any) -> None:
    with pytest.warns(AccuracyWarning, match="class D"):
        given = escape_time("softplus", [0.01] * 4, threshold=0.3, method=method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = escape_time(centred("softplus"), [0.01] * 4, threshold=0.3, method=method)
        exact = escape_time(centred("softplus"), [0.01] * 4, threshold=0.3, method="reduced")
    assert given == pytest.approx(other, rel=1e-9)
    assert exact == pytest.approx(other, rel=5e-3)
    assert coupling("softplus", 4) == pytest.approx(coupling(centred("softplus"), 4), rel=1e-12)


def test_nine_digits_of_an_average_need_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        escape_time(centred("sigmoid"), [0.01] * 4, threshold=0.3, method="reduced")


def test_one_layer_at_rest_does_not_mean_that_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softplus: the last layer fits the mean at once, while the others creep; that is no end of the flow."""
    monkeypatch.setattr(LIMIT, 2000)
    with pytest.warns(AccuracyWarning, match="still moves slowly"):
        assert escape_time("softplus", [1e-3] * 8, threshold=0.3, method="reduced") == math.inf


def test_a_trajectory_until_the_threshold_of_a_long_plateau() -> None:
    path = reduced_flow("tanh", [1e-2] * 6, threshold=0.3, points=3)
    assert float(path["time"][-1]) == pytest.approx(330263455.0, rel=1e-6)
