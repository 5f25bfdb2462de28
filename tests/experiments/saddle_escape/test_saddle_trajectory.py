"""Whole networks against the scalar flow: the flow lies on it, descent scatters about it, a wrong one is noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretrain.experiments import Result, Scale
from foretrain.experiments.saddle_escape import trajectory as experiment
from foretrain.training.gradient_flow import Problem, gaussian_sample, scaled_he
from foretrain.training.gradient_flow.networks import mean_losses

TINY = experiment.Plan(8, 4, 4096, experiment.Descent(8, 4, 4.0, 64, 100, 8))


@pytest.fixture(scope="module")
def result() -> Result:
    return experiment.saddle_trajectory(TINY, 0)


def test_the_flow_lies_on_the_scalar_flow(result: Result) -> None:
    rows = [row for row in result.table if row.quantity.startswith("flow")]
    assert len(rows) == 5
    assert all(row.agrees for row in rows)


def test_descent_scatters_about_the_scalar_flow(result: Result) -> None:
    own = result.data.sel(run="descent")
    found = experiment.scores(own)
    assert set(found) == {"loss", "X_1", "X_2", "X_3", "X_4"}
    np.testing.assert_allclose(own["X"], own["X_exact"], rtol=0.1)
    assert float(own["X_error"].isel(snapshot=-1).min()) > 0


def test_a_wrong_trajectory_is_noticed(result: Result) -> None:
    wrong = result.data.assign(X=1.01 * result.data["X"])
    rows = experiment._flow_rows(wrong.sel(run="flow"))
    assert [bool(row.agrees) for row in rows] == [True, False, False, False, False]
    shifted = result.data.sel(run="descent")
    shifted = shifted.assign(loss=shifted["loss"] + 20 * shifted["loss_error"] + 1e-9)
    assert experiment._descent_rows(shifted)[0].agrees is False


def test_losses_are_those_of_the_problem() -> None:
    problem = Problem("tanh", depth=4, width=8, inputs=4)
    networks, sample = scaled_he(problem, 0, 1.0, seeds=2), gaussian_sample(problem, 64)
    found = experiment._losses(list(networks.weights), sample.points.expand(2, -1, -1))
    torch.testing.assert_close(found, mean_losses(problem, networks.weights, sample))


def test_it_draws(result: Result) -> None:
    assert result.figure is not None
    result.plot()


@pytest.mark.statistical
def test_quick_run_agrees() -> None:
    assert [
        row.quantity
        for row in experiment.saddle_trajectory(experiment.PLANS[Scale.QUICK], 0).table
        if not row.agrees
    ] == []
