"""The imbalance identity as an experiment: what holds, what is refuted, and that a wrong power is noticed."""

from __future__ import annotations

import pytest

from foretrain.experiments import Result
from foretrain.experiments.saddle_escape import imbalance as experiment


@pytest.fixture(scope="module")
def result() -> Result:
    return experiment.imbalance_identity(experiment.Plan(2, 100, 20), 0)


def test_identities_hold_but_for_the_printed_matrix(result: Result) -> None:
    wrong = [row.quantity for row in result.table if row.agrees is False]
    assert wrong == ["tanh: drift of the matrix less that of corollary 12 as printed, relative"]
    conserved = [row for row in result.table if "conserved" in row.quantity]
    assert len(conserved) == 2
    assert result.figure is not None
    result.plot()


def test_a_wrong_power_is_noticed(result: Result) -> None:
    wrong = result.data.assign(drift=result.data.drift * result.data["size"] ** 0.3)
    assert not any(row.agrees for row in experiment._power_rows(wrong))
