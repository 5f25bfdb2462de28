"""The test for growth against eigenvalues, and truncations that are never enough."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foretrain.saddle.modes import graded_example, schur_perron, truncated_growth
from foretrain.support.errors import InputError


def largest(A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray) -> float:
    values = np.linalg.eigvals(np.block([[-np.diag(A), B], [C, -np.diag(D)]]))
    return float(values.real.max())


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6), st.floats(0.1, 10.0))
def test_growth_is_the_positive_eigenvalue(n: int, m: int, seed: int, strength: float) -> None:
    random = np.random.default_rng(seed)
    A, D = random.uniform(0.1, 2.0, n), random.uniform(0.1, 2.0, m)
    B, C = (strength * random.uniform(0, 1, s) * (random.random(s) < 0.8) for s in ((n, m), (m, n)))
    found, expected = schur_perron(A, B, C, D), largest(A, B, C, D)
    assume(abs(found.gain - 1) > 1e-6)
    assert (found.growth is not None) == (found.gain > 1) == (expected > 0)
    if found.growth is not None:
        assert found.growth == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_the_smallest_case_in_closed_form() -> None:
    """A = a, D = d: x^2 + (a + d) x + a d - b c = 0."""
    found = schur_perron([1.0], [[3.0]], [[2.0]], [0.5])
    assert found.gain == pytest.approx(12.0)
    assert found.growth == pytest.approx((-1.5 + np.sqrt(2.25 + 4 * 5.5)) / 2, rel=1e-12)
    still = schur_perron([1.0], [[0.5]], [[1.0]], [0.5])
    assert still.gain == 1.0
    assert still.growth is None
    assert "None where the gain is at most 1" in repr(still)


def test_no_truncation_of_the_graded_example_closes() -> None:
    A, B, C, D = graded_example(12)
    rates = truncated_growth(A, B, C, D)
    assert (np.diff(rates) > 0).all()
    assert rates[-1] == pytest.approx(largest(A, B, C, D), rel=1e-9)
    longer = truncated_growth(*graded_example(14))
    np.testing.assert_allclose(longer[:12], rates, rtol=1e-12)
    assert longer[-1] - rates[-1] < 1e-6 < rates[3] - rates[2]


def test_truncations_that_do_not_grow() -> None:
    rates = truncated_growth([1.0], [[0.5, 2.0]], [[0.5], [2.0]], [1.0, 1.0])
    assert np.isnan(rates[0])
    assert rates[1] > 0


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="give \\(n\\)"):
        schur_perron([1.0], [[1.0, 2.0]], [[1.0]], [1.0])
    with pytest.raises(InputError, match="must be positive"):
        schur_perron([0.0], [[1.0]], [[1.0]], [1.0])
    with pytest.raises(InputError, match="must be positive"):
        schur_perron([1.0], [[-1.0]], [[1.0]], [1.0])
    with pytest.raises(InputError, match="finite"):
        schur_perron([np.nan], [[1.0]], [[1.0]], [1.0])
    with pytest.raises(InputError, match="between 0 and 1"):
        graded_example(3, 1.5)
