from __future__ import annotations

import numpy as np
import pytest

from foretrain.compare.judging.agreement import (
    decorrelated,
    judge,
    largest_score_allowed,
    largest_spread_allowed,
)


def test_the_bound_holds_one_run_in_a_hundred() -> None:
    assert largest_score_allowed(1) == pytest.approx(2.5758293, abs=1e-6)
    scores = np.abs(np.random.default_rng(0).standard_normal((20_000, 30))).max(axis=1)
    share = np.mean(scores > largest_score_allowed(30))
    assert abs(share - 0.01) < 4 * np.sqrt(0.01 * 0.99 / 20_000)


def test_the_spread_of_few_scores_has_a_wider_bound() -> None:
    assert largest_spread_allowed(33) == 1.3
    assert largest_spread_allowed(500) == 1.3
    assert largest_spread_allowed(30) > 1.3
    assert largest_spread_allowed(1) == pytest.approx(largest_score_allowed(1))
    scores = np.random.default_rng(3).standard_normal((20_000, 5))
    share = np.mean(np.sqrt(np.mean(scores**2, axis=1)) > largest_spread_allowed(5))
    assert abs(share - 0.01) < 4 * np.sqrt(0.01 * 0.99 / 20_000)


@pytest.mark.slow
def test_decorrelated_scores_are_independent_and_of_unit_variance() -> None:
    source = np.random.default_rng(1)
    mixing = source.standard_normal((6, 6))
    covariance = mixing @ mixing.T
    draws = source.standard_normal((20_000, 6)) @ mixing.T
    scores = draws / np.sqrt(np.diagonal(covariance))
    found = np.stack([decorrelated(score, covariance, 1e9) for score in scores])
    np.testing.assert_allclose(np.cov(found, rowvar=False), np.eye(found.shape[1]), atol=0.05)


def test_a_measured_covariance_does_not_inflate_the_scores() -> None:
    source = np.random.default_rng(4)
    squares = []
    for _ in range(400):
        samples = source.standard_normal((121, 15))
        covariance = np.cov(samples[1:], rowvar=False)
        found = decorrelated(samples[0] / np.sqrt(np.diagonal(covariance)), covariance, 120)
        squares.append(np.sum(found**2) / found.size)
    assert found.size == 15
    assert abs(np.mean(squares) - 1) < 0.08


def test_faint_directions_and_too_many_are_left_out() -> None:
    same = np.ones((4, 4)) + 1e-6 * np.eye(4)
    found = decorrelated(np.full(4, 1.7), same, 1e9)
    assert found.size == 1
    assert abs(found[0]) == pytest.approx(1.7, rel=1e-5)
    assert decorrelated(np.arange(5.0), np.eye(5), 16).size == 2
    assert decorrelated(np.zeros(0), np.zeros((0, 0)), 3.0).size == 0


def test_a_judgement_counts_everything_together() -> None:
    source = np.random.default_rng(2)
    parts = [(source.standard_normal(20), source.standard_normal(15)) for _ in range(3)]
    found = judge(parts)
    assert (found.entries, found.independent) == (60, 45)
    assert found.bound == largest_score_allowed(105)
    assert found.agrees
    assert "60 entries, 45 independent" in str(found)
    assert str(found) in repr(found)
    assert not judge([(np.array([6.0]), np.zeros(20))]).agrees
    assert not judge([(np.zeros(3), np.full(40, 1.35))]).agrees
    assert judge([(np.zeros(3), np.full(4, 1.35))]).agrees
    assert judge([(np.zeros(0), np.zeros(0))]).agrees


def test_entries_without_fluctuations_are_spoken_of() -> None:
    none, some = judge([(np.zeros(0), np.zeros(0))]), judge([(np.ones(2), np.ones(2))])
    assert none.text(exact_agrees=True) == "no entry fluctuates, and all equal the theory"
    assert none.text(exact_agrees=False) == "no entry fluctuates, and not all equal the theory"
    assert some.text(exact_agrees=True) == str(some)
    assert some.text(exact_agrees=False) == f"{some}; entries that do not fluctuate differ"
