"""Power laws: exact ones are found exactly, scatter gives its error, and gaps are left out."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.experiments.saddle_escape.escape_times import fit, fit_over_seeds, local_slopes, over_seeds

EPSILON = np.geomspace(0.01, 0.3, 7)


def test_an_exact_power_law() -> None:
    found = fit(EPSILON, 5 * EPSILON**-3)
    assert found.slope == pytest.approx(-3)
    assert found.error < 1e-12
    np.testing.assert_allclose(found.times(EPSILON), 5 * EPSILON**-3)
    middle, slopes = local_slopes(EPSILON, 5 * EPSILON**-3)
    np.testing.assert_allclose(slopes, -3)
    assert ((EPSILON[:-1] < middle) & (middle < EPSILON[1:])).all()


def test_missing_times_are_left_out() -> None:
    times = 5 * EPSILON**-3
    times[0] = np.nan
    assert fit(EPSILON, times).slope == pytest.approx(-3)
    assert np.isnan(fit(EPSILON[:2], times[:2]).slope)


def test_the_error_is_that_of_the_regression() -> None:
    source = np.random.default_rng(0)
    found = [fit(EPSILON, EPSILON**-2 * np.exp(0.1 * source.normal(size=7))) for _ in range(2000)]
    slopes, errors = np.array([each.slope for each in found]), np.array([each.error for each in found])
    spread = slopes.std()
    assert slopes.mean() == pytest.approx(-2, abs=4 * spread / np.sqrt(2000))
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(spread, rel=0.1)


def test_seeds_count_where_they_scatter_more_than_the_line() -> None:
    """Slopes -2.1, -2 and -1.9: the mean is a perfect line, and the error is that of the seeds."""
    times = EPSILON[:, None] ** np.array([-2.1, -2.0, -1.9])
    found = fit_over_seeds(EPSILON, times)
    assert found.slope == pytest.approx(-2)
    assert found.error == pytest.approx(0.1 / np.sqrt(3))
    times[2, 1] = np.nan
    assert over_seeds(times)[2] == pytest.approx(EPSILON[2] ** -2)
