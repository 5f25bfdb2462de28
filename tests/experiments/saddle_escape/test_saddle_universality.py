"""Collapse of escape times: the spread shrinks with ε, whole networks and descent lie on the scalar flow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrain.experiments import Result, Scale
from foretrain.experiments.parts import Parts
from foretrain.experiments.saddle_escape import escape_times as experiment

TINY = experiment.UniversalityPlan(3, 1, 8, 0.5, 3, {"B": (0.2,), "C": (0.3,)})


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts") / "universality"


@pytest.fixture(scope="module")
def result(kept: Path) -> Result:
    return experiment.saddle_universality(TINY, 0, Parts(kept))


@pytest.mark.slow
def test_every_claim_of_the_collapse_agrees(result: Result) -> None:
    rows = [row for row in result.table if not row.quantity.startswith("SGD")]
    assert len(rows) == 5
    assert all(row.agrees for row in rows)


@pytest.mark.slow
def test_leading_order_collapses_exactly(result: Result) -> None:
    np.testing.assert_allclose(result.data["spread"].sel(formula="leading"), 0, atol=1e-9)


@pytest.mark.slow
def test_descent_is_near_the_scalar_flow(result: Result) -> None:
    rows = [row for row in result.table if row.quantity.startswith("SGD")]
    assert len(rows) == 5
    for row in rows:
        assert isinstance(row.here, float)
        assert row.here == pytest.approx(row.expected, rel=0.1)


@pytest.mark.slow
def test_descent_far_away_is_noticed(result: Result) -> None:
    wrong = result.data.assign(descent_exact=1.2 * result.data["descent_exact"])
    assert not any(row.agrees for row in experiment._descent_rows(wrong))


@pytest.mark.slow
def test_it_draws(result: Result) -> None:
    assert result.figure is not None
    result.plot()


@pytest.mark.statistical
def test_quick_run_agrees() -> None:
    result = experiment.saddle_universality(experiment.PLANS["saddle_universality"][Scale.QUICK], 0, Parts())
    assert [row.quantity for row in result.table if not row.agrees] == []
