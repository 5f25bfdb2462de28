"""Slopes of escape times: fits are those of the times, judgements follow the errors, and parts are read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray

from foretrain.experiments import Result
from foretrain.experiments.parts import Parts
from foretrain.experiments.saddle_escape import slopes as experiment
from foretrain.experiments.saddle_escape.slopes import checked_times

TINY = experiment.Plan(4, 16, 4, 4, 3, 64, 1e-3, 2, 3.0)
EPSILON = np.geomspace(0.01, 0.3, 5)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts") / "slopes"


@pytest.fixture(scope="module")
def result(kept: Path) -> Result:
    return experiment.saddle_slopes(TINY, 0, Parts(kept))


def _made(slope: float, shift: float = 0.0, seeds: int = 4) -> xarray.Dataset:
    """A perfect power law whose seeds differ by a factor, with another slope at the threshold 0.01."""
    factors = np.linspace(0.9, 1.1, seeds)
    powers = np.array([slope, slope, slope + shift])
    times = EPSILON[:, None, None] ** powers * factors[:, None]
    return xarray.Dataset(
        {
            "time": (("point", "seed", "threshold"), times),
            "signal": (("point", "seed"), np.ones((5, 1)) * np.where(np.arange(seeds) % 2, -1.0, 1.0)),
            "epsilon": ("point", EPSILON),
        },
        coords={"threshold": [0.05, 0.02, 0.01]},
    )


def test_a_power_law_is_found_and_judged() -> None:
    row = experiment._slope_row(_made(-1.22), 3)
    assert row.here == pytest.approx(-1.22)
    assert row.agrees
    assert experiment._slope_row(_made(-1.22 - 0.11), 3).agrees  # the published error is 0.06
    assert not experiment._slope_row(_made(-1.22 - 0.13), 3).agrees


def test_shifts_of_the_threshold_are_judged() -> None:
    larger, smaller = experiment._shift_rows(_made(-1.2, shift=0.2), 3)
    assert larger.here == pytest.approx(0, abs=1e-12)
    assert larger.agrees
    assert smaller.here == pytest.approx(0.2)
    assert smaller.agrees is False
    assert "linear student" in smaller.note


def test_a_network_that_stays_is_left_out_and_told() -> None:
    data = _made(-1.22)
    data["time"][0, 1] = np.nan
    row = experiment._slope_row(data, 3)
    assert "1 of 20 networks did not escape" in row.note
    assert row.here == pytest.approx(-1.22, abs=0.05)


def test_the_sign_of_the_signal_groups_the_seeds() -> None:
    row = experiment._sign_row(_made(-2.0), 5)
    assert row.here == pytest.approx(0, abs=1e-10)
    assert "2 of 4 seeds" in row.note
    assert experiment._sign_row(_made(-2.0, seeds=2), 5).here == "too few seeds"


def test_the_loss_of_the_best_linear_student() -> None:
    g, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()
    y = np.tanh(g)
    coefficient = (weights * g * y).sum()
    assert experiment.linear_loss() == pytest.approx(
        0.5 * (weights * (y - coefficient * g) ** 2).sum(), rel=1e-8
    )


def test_looking_seldom_rounds_up() -> None:
    np.testing.assert_allclose(checked_times(np.array([0.1, 0.25, 0.26]), 25), [0.25, 0.25, 0.5])


def test_tiny_networks_follow_the_law(result: Result) -> None:
    """r = 3 of depth 4: the law -1 at small ε, and descent within the spread of the seeds."""
    rows = {row.quantity: row for row in result.table}
    local = rows["r = 3: local slope at the smallest ε (law as ε → 0)"]
    assert local.here == pytest.approx(-1, abs=0.05)
    assert rows["r = 3: error of log time at the largest ε (bound: spread over seeds)"].agrees
    (descent,) = [row for name, row in rows.items() if "SGD" in name]
    assert descent.agrees
    assert result.figure is not None
    result.plot()


def test_finished_parts_are_read_back(kept: Path, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a finished part was computed again")

    for name in ("_escapes", "_descent"):
        monkeypatch.setattr(experiment, name, refuse)
    xarray.testing.assert_identical(experiment.saddle_slopes(TINY, 0, Parts(kept)).data, result.data)


@pytest.mark.statistical
def test_published_slopes_from_few_networks() -> None:
    """Four ε and two seeds on the published network; r = 5 is steeper than published, at any size."""
    plan = experiment.Plan(8, 128, 16, 4, 2, 512, 1e-3, 2, 1.0)
    rows = {row.quantity: row for row in experiment.saddle_slopes(plan, 0, Parts()).table}
    assert rows["r = 3: slope, loss < 0.02"].agrees
    assert rows["r = 8: slope, loss < 0.02"].agrees
    assert rows["r = 5: slope, loss < 0.02"].here == pytest.approx(-2.92, abs=0.2)
