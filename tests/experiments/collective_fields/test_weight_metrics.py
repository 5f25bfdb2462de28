"""Kernels by layer of general networks, watching inputs, and spectra of a network that learns."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.experiments import Result
from foretrain.experiments.collective_fields import collective_fields as experiment


@pytest.fixture(scope="module")
def result() -> Result:
    return experiment.weight_metrics(experiment.MetricsPlan(8, 24, 2, 20, 10), 0)


def test_all_statements_hold_and_conjectures_are_not_judged(result: Result) -> None:
    assert result.agrees
    assert sum(row.agrees is True for row in result.table) == 4 * len(experiment._NETWORKS) + 1
    assert all(row.agrees is None for row in result.table if "tail" in row.quantity)
    assert result.figure is not None
    result.plot()


def test_shares_of_layers_make_one_and_coactivation_is_a_count(result: Result) -> None:
    assert (result.data.drive >= 0).all()
    together = result.data.coactivation.values
    np.testing.assert_allclose(together, np.swapaxes(together, 1, 2))


def test_an_error_of_first_order_is_noticed(result: Result) -> None:
    wrong = result.data.assign(watched_error=result.data.watched_error + 0.01)
    assert [row.agrees for row in experiment._watching_rows(wrong)] == [False]
