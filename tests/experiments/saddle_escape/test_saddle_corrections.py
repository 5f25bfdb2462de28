"""First corrections of escape times: published numbers, refuted formulas, and what a wrong coefficient would do."""

from __future__ import annotations

import pytest

from foretrain.experiments import Scale
from foretrain.experiments.saddle_escape import escape_times as experiment


@pytest.fixture(scope="module")
def result() -> experiment.Result:
    return experiment.saddle_corrections(experiment.PLANS["saddle_corrections"][Scale.QUICK], 0)


@pytest.mark.slow
def test_the_exact_flow_refutes_the_printed_coefficients_and_no_other(result: experiment.Result) -> None:
    wrong = [row for row in result.table if row.agrees is False]
    assert all(row.disputed and row.note for row in wrong)
    assert len(wrong) == len(experiment._CASES) + 1
    assert {type(row.agrees) for row in result.table} == {bool}
    assert result.figure is not None
    result.plot()


@pytest.mark.slow
def test_coefficients_are_those_of_the_reference(result: experiment.Result) -> None:
    last = result.data.measured.isel(halving=-1)
    published = {"tanh, L = 4": 1.1999, "tanh, L = 5": 1.1199, "tanh, L = 6": 1.0665, "gelu, L = 3": 1.5005}
    for case, value in published.items():
        assert abs(float(last.sel(case=case))) == pytest.approx(value, rel=3e-3)


@pytest.mark.slow
def test_a_wrong_coefficient_is_noticed(result: experiment.Result) -> None:
    wrong = result.data.assign(derived=1.05 * result.data.derived)
    rows = [row for row in experiment._coefficient_rows(wrong) if "first-order flow" in row.quantity]
    assert not any(row.agrees for row in rows)
