"""Tail exponents: known laws, an independent distance, and what a fit cannot say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from foretrain.empirical.fields import heavy_tail, tail_p_value
from foretrain.support.errors import InputError


def pareto(exponent: float, count: int, seed: int) -> np.ndarray:
    return (1.0 - np.random.default_rng(seed).random(count)) ** (-1.0 / (exponent - 1.0))


@pytest.mark.parametrize("exponent", [1.8, 2.5, 4.0])
def test_exponents_of_pure_power_laws(exponent: float) -> None:
    fits = [heavy_tail(pareto(exponent, 1500, seed)) for seed in range(8)]
    scores = np.array([(fit.exponent - exponent) / fit.standard_error for fit in fits])
    assert np.abs(scores).max() < 4
    assert abs(scores.mean()) < 4 / np.sqrt(8)


def test_the_tail_begins_where_the_law_does() -> None:
    """Uniform below 1, exponent 2.5 above: the fit must leave the uniform part out."""
    source = np.random.default_rng(2)
    values = np.concatenate([source.random(2000), pareto(2.5, 2000, 3)])
    fit = heavy_tail(values)
    assert 0.9 < fit.minimum < 1.6
    assert abs(fit.exponent - 2.5) < 4 * fit.standard_error


def test_estimate_and_distance_by_independent_formulas() -> None:
    values = np.random.default_rng(4).lognormal(size=200)
    fit = heavy_tail(values)
    tail = values[values >= fit.minimum]
    assert fit.tail == tail.size
    assert fit.count == 200
    estimate = 1 + tail.size / np.log(tail / fit.minimum).sum()
    assert fit.exponent == pytest.approx(estimate, rel=1e-12)
    assert fit.standard_error == pytest.approx((estimate - 1) / np.sqrt(tail.size), rel=1e-12)
    law = stats.pareto(estimate - 1, scale=fit.minimum)
    assert fit.distance == pytest.approx(stats.kstest(tail, law.cdf).statistic, rel=1e-9)
    for start in np.sort(values)[:190:7]:
        other = values[values >= start]
        slope = other.size / np.log(other / start).sum()
        distance = stats.kstest(other, stats.pareto(slope, scale=start).cdf).statistic
        assert distance >= fit.distance - 1e-12


def test_units_and_zeros_do_not_matter() -> None:
    values = pareto(2.2, 300, 5)
    one, other = heavy_tail(values), heavy_tail(np.concatenate([1e3 * values, np.zeros(40)]))
    assert other.exponent == pytest.approx(one.exponent, rel=1e-10)
    assert other.minimum == pytest.approx(1e3 * one.minimum, rel=1e-10)


def test_whether_the_law_fits_at_all() -> None:
    assert tail_p_value(pareto(2.5, 300, 1), draws=60) > 0.1
    # Nothing below 1, a thin tail above: no power law from any minimum that leaves half of the values.
    thin = 1 + np.random.default_rng(1).random(300)
    assert tail_p_value(thin, draws=60, smallest_tail=150) < 0.1


def test_p_values_have_a_seed() -> None:
    values = pareto(2.5, 100, 1)
    assert tail_p_value(values, draws=20, seed=3) == tail_p_value(values, draws=20, seed=3)


def test_the_text_says_experiment() -> None:
    fit = heavy_tail(pareto(2.5, 100, 1))
    assert "an experiment, not a theorem" in repr(fit)
    assert f"{fit.exponent:.3f}" in repr(fit)


@pytest.mark.parametrize(
    ("values", "tail", "message"),
    [
        ([1.0, 2.0, 3.0], 10, "3 positive values"),
        ([1.0, np.nan], 2, "finite"),
        ([1.0, -2.0], 2, "not negative"),
        ([2.0] * 30, 10, "not all equal"),
        ([1.0] + [2.0] * 30, 2, None),
        ([1.0, 2.0, 3.0], 1, "two are the least"),
        ([], 2, "0 positive values"),
    ],
)
def test_bad_values(values: list[float], tail: int, message: str | None) -> None:
    if message is None:
        assert heavy_tail(values, tail).minimum == 1.0
    else:
        with pytest.raises(InputError, match=message):
            heavy_tail(values, tail)
