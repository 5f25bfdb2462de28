"""The experiment on Bayesian learning at finite width: its numbers, what it notices, and that it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrain.experiments import Result
from foretrain.experiments.effective_theory import bayesian_learning as experiment
from foretrain.experiments.parts import Parts
from foretrain.support.store import load, save


def tiny_run(folder: Path | None = None, draws: int = 6000) -> Result:
    plan = experiment.PosteriorPlan({1: draws, 2: draws, 4: draws})
    return experiment.finite_width_posterior(plan, 0, Parts(folder))


@pytest.mark.slow
def test_table_data_and_picture(tmp_path: Path) -> None:
    result = tiny_run()
    tested = [row for row in result.table if row.agrees is not None]
    assert len(tested) == 2 * len(experiment.QUANTITIES) + 1
    assert all(row.agrees for row in tested[:-1])
    assert tested[-1].agrees is False  # the claim of footnote 35
    assert tested[-1].here == pytest.approx(1, abs=0.2)
    theory = result.data["theory"].sel(case="tanh")
    assert theory.sel(quantity="log evidence").item() == pytest.approx(-3.672560350, abs=1e-7)
    assert theory.sel(quantity="metric of layer 2, inputs 0 and 1").item() == pytest.approx(
        -0.831383917, abs=1e-8
    )
    assert result.figure is not None
    result.plot()
    save(result.data, tmp_path / "data.zarr")
    np.testing.assert_array_equal(load(tmp_path / "data.zarr")["limit"], result.data["limit"])


@pytest.mark.slow
def test_a_wrong_theory_is_noticed_and_finished_parts_are_read_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = tiny_run(tmp_path / "parts")
    wrong = first.data.assign(theory=2 * first.data["theory"])
    refused = [row.quantity for row in experiment._table(wrong) if row.agrees is False]
    assert "tanh: metric of layer 3, inputs 0 and 1, times n" in refused
    assert "relu, unequal layers: covariance of means of outputs 1 and 2, times n" in refused

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(experiment, "_measure", never)
    again = tiny_run(tmp_path / "parts")
    np.testing.assert_array_equal(again.data["measured"], first.data["measured"])
