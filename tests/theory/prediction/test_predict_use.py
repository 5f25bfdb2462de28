"""``ft.predict`` in use: classes, many test inputs, rates that do not matter, options without meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trained_network import TANH, X, Y

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError, NotEnoughMemoryError

THREE = TANH.replace(n_out=3)
DATA = (X[:3], Y, X[3:])


@pytest.mark.parametrize("repeated", [False, True])
def test_test_inputs_drawn_alone_have_the_law_of_those_drawn_together(repeated: bool) -> None:
    train, labels = (X[[0, 1, 2, 2]], [2, 0, 1, 1]) if repeated else (X[:3], [2, 0, 1])
    options: Any = {"loss": "cross_entropy", "time": 4, "draws": 4000}
    together: Any = ft.predict(THREE, train, labels, X, **options)
    alone: Any = ft.predict(THREE, train, labels, X, **options, spread="variance", seed=1)
    for name, error in (("mean", "mean_standard_error"), ("probabilities", "probabilities_standard_error")):
        difference = getattr(alone, name).values - getattr(together, name).values
        z = difference / np.hypot(getattr(alone, error), getattr(together, error)).values
        assert np.abs(z).max() < 4.2
        assert 0.5 < np.sqrt((z**2).mean()) < 1.6
    # Over seeds such variances have relative errors up to 0.028, twice: four of them.
    np.testing.assert_allclose(alone.variance, together.variance, rtol=0.1)
    np.testing.assert_allclose(
        alone.variance - alone.between_outputs,
        np.diagonal(together.covariance - together.between_outputs),
        rtol=0.16,
    )


def test_many_tests_of_classes_need_no_kernel_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "150MB")
    tests = np.random.default_rng(0).normal(size=(4000, 3))
    options: Any = {"loss": "cross_entropy", "time": 3, "draws": 50}
    relu = ft.MLP("relu", depth=2, width=10, n_out=3, C_W=2.0)
    found: Any = ft.predict(relu, X[:3], [2, 0, 1], tests, **options, spread="none")
    np.testing.assert_allclose(found.probabilities.sum("output"), 1.0)
    with pytest.raises(NotEnoughMemoryError, match="4,000"):
        ft.predict(relu, X[:3], [2, 0, 1], tests, **options)


@pytest.mark.parametrize("learner", ["gradient_descent", "bayes"])
@pytest.mark.parametrize(
    ("train", "test", "way_out"), [(3, 300_000, "spread='variance'"), (300_000, 3, "fewer training inputs")]
)
def test_what_does_not_fit_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, learner: Any, train: int, test: int, way_out: str
) -> None:
    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("work before the refusal")

    monkeypatch.setattr("foretrain.theory.prediction.kernels._two_sets", work)
    inputs = np.ones((max(train, test), 3))
    with pytest.raises(NotEnoughMemoryError, match=way_out):
        ft.predict(TANH, inputs[:train], np.ones((train, 2)), inputs[:test], learner=learner)


def test_classes_in_a_column_and_jitter_at_the_end() -> None:
    options: Any = {"loss": "cross_entropy", "label_smoothing": 0.1, "draws": 50}
    row = ft.predict(THREE, X[:3], [2, 0, 1], X[3:], **options)
    column = ft.predict(THREE, X[:3], [[2], [0], [1]], X[3:], **options)
    np.testing.assert_array_equal(row.mean, column.mean)
    assert row.jitter == 0
    with pytest.warns(AccuracyWarning, match="singular to rounding"):
        repeated = ft.predict(THREE, X[[0, 1, 1]], [2, 0, 0], X[3:], **options)
    assert repeated.jitter > 0


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("regime", ["infinite", "finite"])
def test_algorithms_that_end_at_once_take_any_rate(regime: Any) -> None:
    one: Any = (ft.MLP("tanh", depth=2, width=20), X[:1], [1.0], X[3:4], regime)
    means = [ft.predict(*one, algorithm="two_step", eta=eta).mean for eta in (None, 0.3)]
    if regime == "infinite":
        means.append(ft.predict(*one, algorithm="newton", eta=50.0).mean)
    for mean in means[1:]:
        np.testing.assert_array_equal(mean, means[0])


@pytest.mark.parametrize("time", [np.inf, np.nan, -1, True, "5", [1.0], 10**400])
def test_times_that_are_none(time: Any) -> None:
    for algorithm in ("gradient_descent", "flow"):
        with pytest.raises(InputError, match=r"time is"):
            ft.predict(TANH, *DATA, algorithm=algorithm, time=time)


def test_one_step_is_not_called_steps() -> None:
    assert "after 1 step at eta" in repr(ft.predict(TANH, *DATA, time=1))
    assert "after 2 steps at eta" in repr(ft.predict(TANH, *DATA, time=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label_smoothing": 1.0}, "below 1"),
        ({"label_smoothing": -0.1}, "below 1"),
        ({"label_smoothing": "much"}, "label_smoothing is not"),
        ({"label_smoothing": 0.1, "draws": 2.5}, "whole number"),
        ({"label_smoothing": 0.1, "draws": 1}, "at least 2"),
        ({"label_smoothing": 0.1, "eta": 1e6}, "4 / lambda_max"),
    ],
)
def test_bad_options_of_classes(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ft.predict(THREE, X[:3], [2, 0, 1], X[3:], loss="cross_entropy", **change)


@pytest.mark.parametrize("elsewhere", [{}, {"learner": "bayes"}, {"regime": "finite", "learner": "bayes"}])
def test_only_training_at_finite_width_has_a_tolerance(elsewhere: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="tolerance"):
        ft.predict(TANH, *DATA, **elsewhere, tolerance=1e-8)
    with pytest.raises(InputError, match="tolerance is 2"):
        ft.predict(TANH, *DATA, "finite", tolerance=2)
