"""Statements on the global-state NTK: exact ones hold, other readings do not, and breaking one is noticed."""

from __future__ import annotations

import pytest
import torch

from foretrain.experiments import Result
from foretrain.experiments.global_ntk import propositions as experiment

PLAN = experiment.Plan(2, 3, 3, 2, 2)


@pytest.fixture(scope="module")
def result() -> Result:
    return experiment.global_ntk_propositions(PLAN, 0)


def test_only_other_readings_of_the_core_fail(result: Result) -> None:
    wrong = [row for row in result.table if row.agrees is False]
    assert len(wrong) == len(experiment._READINGS)
    assert all(row.disputed for row in wrong)
    assert {type(row.agrees) for row in result.table} <= {bool, type(None)}
    assert result.figure is not None
    result.plot()


def test_the_gru_written_out_is_torchs() -> None:
    """Its propagators make the exact direct sum: each product with its own sites."""
    from foretrain.empirical.global_ntk import global_ntk

    gru, x, _ = experiment._network(PLAN, "GRU", 1)
    hidden, given = experiment._gru_propagators(gru, x)
    states = gru(x)[0].detach()
    before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1).flatten(0, 1)
    rows = x.flatten(0, 1)
    unit = torch.eye(3 * PLAN.units, dtype=torch.float64)
    total = sum(P @ torch.kron(V @ V.T, unit) @ P.T for P, V in ((hidden, before), (given, rows)))
    assert isinstance(total, torch.Tensor)
    torch.testing.assert_close(
        total, global_ntk(gru, x, parameters="weight*").dense(), rtol=1e-10, atol=1e-12
    )


def test_an_operator_that_is_not_the_kernel_is_noticed(result: Result) -> None:
    wrong = result.data.assign(
        core_error=result.data.core_error + 1e-3, slope_error=result.data.slope_error + 1e-3
    )
    refused = [row.quantity for row in experiment._cell_rows(wrong) if row.agrees is False]
    assert len(refused) == 2 * len(experiment._CELLS)
