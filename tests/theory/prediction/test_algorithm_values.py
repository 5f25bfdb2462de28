"""Algorithms and learners as values: the same predictions as their names with a rate and a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.theory.prediction.algorithms import Descent, GradientFlow, Newton, TwoStep, named_algorithm
from foretrain.theory.prediction.predict import Bayes

MLP = ft.MLP("sin", depth=2, width=100, n_in=2, C_b=0.1, C_W=1.3, lambda_b=0.5)
DATA = [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 1.6], [[-1.2, -0.95]]


@pytest.mark.parametrize("regime", ["infinite", "finite"])
@pytest.mark.parametrize(
    ("value", "options"),
    [
        (Descent(), {}),
        (Descent(0.1), {"eta": 0.1}),
        (Descent(0.1, 3), {"eta": 0.1, "time": 3}),
        (GradientFlow(), {"algorithm": "flow"}),
        (GradientFlow(0.7), {"algorithm": "flow", "time": 0.7}),
        (GradientFlow(0.7, eta=0.5), {"algorithm": "flow", "time": 0.7, "eta": 0.5}),
        (TwoStep(), {"algorithm": "two_step"}),
    ],
)
def test_a_value_predicts_what_its_name_does(regime: Any, value: Any, options: dict[str, Any]) -> None:
    found, known = (
        ft.predict(MLP, *DATA, regime=regime, **given) for given in ({"algorithm": value}, options)
    )
    assert np.array_equal(found.mean, known.mean)
    assert np.array_equal(found.covariance, known.covariance)
    assert found.statement == known.statement


def test_a_value_of_inference_has_its_noise() -> None:
    found = ft.predict(MLP, *DATA, learner=Bayes(0.2, noisy_labels=True))
    known = ft.predict(MLP, *DATA, learner="bayes", noise=0.2, noisy_labels=True)
    assert np.array_equal(found.covariance, known.covariance)
    assert found.log_evidence == known.log_evidence


def test_names_and_values() -> None:
    assert named_algorithm("gradient_descent", 0.1, 3.0) == Descent(0.1, 3)
    assert named_algorithm("two_step", eta=5.0) == TwoStep()
    assert named_algorithm("newton") == Newton()
    assert named_algorithm(GradientFlow(2)) == GradientFlow(2.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": Descent(), "eta": 0.1}, "leave eta, time and momentum out"),
        ({"algorithm": GradientFlow(), "time": 1.0}, "leave eta, time and momentum out"),
        ({"algorithm": Newton(), "regime": "finite"}, "infinite width only"),
        ({"algorithm": Descent(), "learner": "bayes"}, "has no algorithm"),
        ({"learner": GradientFlow(0.1)}, "unknown learner"),
        ({"regime": GradientFlow(0.1)}, "unknown regime"),
        ({"learner": Bayes(0.1), "noise": 0.1}, "leave noise and noisy_labels out"),
    ],
)
def test_what_is_said_twice_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ft.predict(MLP, *DATA, **options)


@pytest.mark.parametrize(
    "make", [lambda: Descent(steps=-1), lambda: Descent(0.0), lambda: GradientFlow(-1.0)]
)
def test_bad_values_are_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()
