"""Standard errors of accuracies and their differences, and regression on classes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from foretrain.experiments.judgements import Sampled
from foretrain.experiments.small_data.kernel_classifiers import (
    KernelRegression,
    difference_row,
    over_folds,
    over_sets_and_tests,
    scikit_learn,
)
from foretrain.support.errors import NotSupportedError


def test_errors_over_folds_are_widened_by_what_they_share() -> None:
    found = over_folds(np.array([[0.9, 1.0, 0.8, 1.0]]), 4)
    assert found.mean == pytest.approx(0.925)
    assert found.error**2 == pytest.approx((1 / 4 + 1 / 3) * np.var([0.9, 1.0, 0.8, 1.0], ddof=1))


def test_errors_over_sets_and_tests_are_those_of_repeated_draws() -> None:
    """Hits of a model with effects of sets and of tests: the estimated variance is that of the mean over draws."""
    source = np.random.default_rng(0)
    sets, tests = source.normal(scale=0.2, size=(1000, 5, 1)), source.normal(size=(1000, 1, 30))
    found = [over_sets_and_tests(one) for one in sets + tests]
    expected = 0.2**2 / 5 + 1 / 30
    assert np.mean([one.error**2 for one in found]) == pytest.approx(expected, rel=0.05)
    assert np.var([one.mean for one in found]) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(
    ("mean", "claim", "agrees", "word"),
    [
        (0.4, "above 0", True, "higher"),
        (0.2, "above 0", None, "not told apart"),
        (-0.4, "above 0", False, "lower"),
        (-0.2, "not below 0", True, "not told apart"),
        (-0.4, "not below 0", False, "lower"),
        (0.4, "0", None, "higher"),
    ],
)
def test_a_difference_counts_beyond_three_errors(
    mean: float, claim: str, agrees: bool | None, word: str
) -> None:
    row = difference_row("a minus b", Sampled(mean, 0.1), claim)
    assert row.agrees is agrees
    assert row.note.startswith(f"{word}, where differences up to 0.3 ")
    assert (row.here, row.standard_error) == (mean, 0.1)


def test_regression_on_classes_is_that_of_scikit_learn() -> None:
    ridge = pytest.importorskip("sklearn.kernel_ridge").KernelRidge(alpha=0.3, kernel="linear")
    source = np.random.default_rng(1)
    seen, asked, labels = source.normal(size=(20, 4)), source.normal(size=(50, 4)), np.arange(20) % 3
    expected = ridge.fit(seen, np.eye(3)[labels] - 1 / 3).predict(asked).argmax(axis=1)
    found = KernelRegression(0.3).fit(seen @ seen.T, labels).predict(asked @ seen.T)
    np.testing.assert_array_equal(found, expected)


def test_without_scikit_learn_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.svm", None)
    with pytest.raises(NotSupportedError, match="pip install scikit-learn"):
        scikit_learn("svm")
