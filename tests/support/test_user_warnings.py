"""Warnings point at the line that called the package, from any depth inside it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import foretrain as ft
from foretrain.support.errors import AccuracyWarning
from foretrain.support.user_warnings import warn_user
from foretrain.theory.finite_width import mean_of
from foretrain.theory.prediction.kernels import cross_tangent_kernel


def test_a_direct_call() -> None:
    with pytest.warns(AccuracyWarning, match="told") as caught:
        warn_user("told")
    assert caught[0].filename == __file__


def test_the_category_is_free() -> None:
    with pytest.warns(RuntimeWarning, match="told"):
        warn_user("told", RuntimeWarning)


@pytest.mark.parametrize("learner", ["gradient_descent", "bayes"])
def test_through_the_package(learner: str) -> None:
    narrow = ft.MLP("sin", depth=2, width=2, C_b=0.1, C_W=1.3, lambda_b=0.5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ft.predict(narrow, [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 1.6], [[-1.2, -0.95]], "finite", learner)  # type: ignore[arg-type]
    assert [warning.filename for warning in caught] == [__file__]


def test_zero_inputs_are_told_by_their_set_at_the_line_of_the_user() -> None:
    relu, zero = ft.MLP("relu", depth=3, width=8, C_W=2.0), [0.0, 0.0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ft.predict(relu, [[1.0, 0.5], [0.2, 1.0]], [1.0, 0.0], [[0.3, 0.4], zero])
    assert [warning.filename for warning in caught] == [__file__]
    assert "test input 1" in str(caught[0].message)
    with pytest.warns(AccuracyWarning, match="X1 input 0"):
        cross_tangent_kernel(relu, [zero], [[1.0, 0.5]])


def test_an_expectation_inside_of_another_room() -> None:
    with pytest.warns(AccuracyWarning, match="declare kinks=") as caught:
        mean_of(lambda z: np.abs(z[:, 0] - 0.3), ft.MLP("tanh", depth=3, width=100), [[1.0, 0.5]])
    assert {warning.filename for warning in caught} == {__file__}
