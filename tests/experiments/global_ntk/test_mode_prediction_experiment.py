"""The forward test of mode predictions: trainings are those of torch, rates are counted right, parts go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray

from foretrain.experiments.global_ntk import mode_prediction as experiment
from foretrain.experiments.parts import Parts

TINY = experiment.Plan(8, 6, (20,), ("student and teacher", "match to sample"))


@pytest.mark.slow(after=1)
def test_a_small_forward_test_and_its_parts(tmp_path: Path) -> None:
    result = experiment.mode_prediction(TINY, 1, Parts(tmp_path / "parts", {"seed": 1}))
    data = result.data
    assert set(data.task.values) == set(TINY.tasks)
    assert set(data.optimizer.values) == set(experiment._OPTIMIZERS)
    assert (data.gradients <= data.steps).all()
    # Twenty steps are fewer than the least rehearsal, so that all but longer steps are seen as they are.
    single = data.isel(mode=data.gradients.values == 20)
    np.testing.assert_allclose(single.rehearsal, single.left, atol=0.2)
    again = experiment.mode_prediction(TINY, 1, Parts(tmp_path / "parts", {"seed": 1}))
    xarray.testing.assert_equal(data, again.data)


def test_what_counts_as_right() -> None:
    values = {
        "left": ("mode", [0.1, 0.9, 0.2, 0.21]),
        "rehearsal": ("mode", [0.2, 0.6, 0.9, 0.1]),
        "flow": ("mode", [0.6, 0.7, np.nan, np.nan]),
        "verdict": ("mode", np.array(["learned", "not learned", "not learned", "undecided"])),
        "run": ("mode", np.array(["a", "a", "b", "b"])),
    }
    data = xarray.Dataset(values, attrs={"threshold": 0.5})
    assert experiment._rights(data, "verdict", "rehearsal").tolist() == [True, True, False, False]
    assert experiment._rights(data, "verdict", "flow").tolist() == [False, True]
    assert experiment._rights(data, "order", "rehearsal").tolist() == [True]  # the other pair is a tie
    row = experiment._row("verdict", "", np.array([True, True, True, False]), None)
    assert (row.here, row.note) == (0.75, "3 of 4")
    assert row.standard_error == pytest.approx(np.sqrt(0.75 * 0.25 / 4))
