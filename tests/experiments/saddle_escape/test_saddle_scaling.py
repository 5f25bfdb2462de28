"""Escape times over ε: the reference's values, slopes, and whole networks on the scalar flow."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.experiments import Result
from foretrain.experiments.saddle_escape import escape_times as experiment


@pytest.fixture(scope="module")
def result() -> Result:
    return experiment.saddle_scaling(experiment.ScalingPlan(3, 1), 0)


@pytest.mark.slow
def test_every_claim_agrees(result: Result) -> None:
    assert [row.quantity for row in result.table if row.agrees is False] == []
    assert sum(row.agrees is True for row in result.table) == 24
    assert "Slopes are -(L-2) and -(r-2)" in result.verdict


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "leading", "exact"), [(3, 1276.75, 1292.63), (4, 65965.3, 66031.8)])
def test_values_of_the_reference(result: Result, layers: int, leading: float, exact: float) -> None:
    own = result.data.sel(kind="balanced", layers=layers).isel(epsilon=0)
    assert float(own["time"].sel(formula="leading")) == pytest.approx(leading, rel=1e-5)
    assert float(own["time"].sel(formula="reduced")) == pytest.approx(exact, rel=1e-5)
    assert float(own["law"]) == pytest.approx(leading, rel=1e-5)  # (11) is the quadrature of balanced scales


@pytest.mark.slow
def test_a_full_bottleneck_is_balanced(result: Result) -> None:
    times = result.data["time"].sel(layers=6)
    np.testing.assert_allclose(times.sel(kind="balanced"), times.sel(kind="bottleneck"))


@pytest.mark.slow
def test_it_draws(result: Result) -> None:
    assert result.figure is not None
    result.plot()
