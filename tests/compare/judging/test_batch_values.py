"""Batch values: their covariance and how well it is known; the jackknife."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.compare.judging.ladder import BatchValues


def test_the_jackknife_of_a_mean_is_the_batches_and_of_a_variance_unbiased() -> None:
    values = np.random.default_rng(1).standard_normal((12, 1))
    plain = BatchValues.jackknife(lambda means: means["value"], {"value": values})
    np.testing.assert_allclose(plain.values, values, rtol=1e-12, atol=1e-12)
    squared = BatchValues.jackknife(
        lambda means: means["square"] - means["value"] ** 2, {"value": values, "square": values**2}
    )
    assert squared.estimate[0] == pytest.approx(values.var(ddof=1), rel=1e-12)


def test_batch_values_give_covariances() -> None:
    values = np.random.default_rng(0).standard_normal((400, 3)) @ np.array(
        [[1, 1, 0], [0, 1, 0], [0, 0, 2.0]]
    )
    found = BatchValues(values)
    np.testing.assert_allclose(np.sqrt(np.diagonal(found.covariance)), found.standard_error, rtol=1e-12)
    assert found.covariance[0, 1] * 400 == pytest.approx(1.0, abs=0.25)


def test_the_freedom_of_entries_without_noise_and_of_tiny_ones() -> None:
    values = np.random.default_rng(0).standard_normal((200, 1))
    everything = np.concatenate([values, 1e-200 * values, np.ones((200, 1))], axis=1)
    with np.errstate(all="raise", under="ignore"):
        freedom = BatchValues(everything).freedom
    assert freedom[1] == pytest.approx(freedom[0])
    assert freedom[2] == 199
