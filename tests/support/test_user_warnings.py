"""Warnings point at the line that called the package, from any depth inside it."""

from __future__ import annotations

import warnings

import pytest

import foretrain as ft
from foretrain.support.errors import AccuracyWarning
from foretrain.support.user_warnings import warn_user


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
