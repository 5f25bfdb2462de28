"""Trained ensembles: the tasks, the honest rows, and a tiny run from its parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrain.experiments.effective_theory import trained_networks as experiment
from foretrain.experiments.effective_theory.trained_networks import task_of
from foretrain.experiments.parts import Parts
from foretrain.support.errors import NotSupportedError
from foretrain.theory.prediction.infinite_width import GradientDescent

TINY = experiment.EnsemblePlan((40, 40, 40), (40, 40, 40), 6, 8, 5, 10, (12, 16))


def test_digits_are_centred_and_of_unit_size() -> None:
    pytest.importorskip("sklearn")
    task = experiment.digits_task(50, 100, 100, 0)
    np.testing.assert_allclose(task.X_train.mean(axis=0), 0.0, atol=1e-12)
    assert np.mean(task.X_train**2) == pytest.approx(1.0)
    assert set(task.Y_train.ravel()) == set(task.Y_test.ravel()) == {1.0, -1.0}
    assert task.X_test.shape == (100, 64)
    other = experiment.digits_task(50, 100, 100, 1)
    assert not np.array_equal(task.X_train, other.X_train)


def test_digits_need_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(NotSupportedError, match="pip install scikit-learn"):
        experiment.digits_task(5, 5, 5, 0)


def test_the_function_can_be_trained_to_the_end() -> None:
    task = experiment.angle_task()
    np.testing.assert_allclose((task.X_test**2).mean(axis=1), 1.0)
    rates = GradientDescent.of(task.mlp, task.X_train, task.Y_train, task.X_test).rates
    assert rates.largest / rates.smallest < 30


def test_a_share_counts_networks_as_independent() -> None:
    hits = np.array([[True, True, False], [True, True, True]])
    row = experiment._share_row("share", hits, 0.8)
    assert row.here == pytest.approx(5 / 6)
    assert row.standard_error == pytest.approx(1 / 6)
    assert row.agrees


def test_a_tiny_run_is_resumed_from_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(experiment, "WIDTHS", (12, 18, 36))
    folder = tmp_path / "parts"
    found = experiment.trained_ensembles(TINY, 3, Parts(folder, {"seed": 3}))
    kept = {path.name for path in folder.glob("*.zarr")}
    assert kept == {f"{task}_{part}.zarr" for task in ("function", "digits") for part in PARTS}
    monkeypatch.setattr(experiment, "_networks", pytest.fail)
    again = experiment.trained_ensembles(TINY, 3, Parts(folder, {"seed": 3}))
    assert again.verdict == found.verdict
    assert [row.quantity.split(":")[0] for row in found.table] == ["function"] * 4 + ["digits"] * 5
    line = task_of(found.data, "function")
    assert line.network_output.shape == (10, 24)
    assert line.attrs["shown_width"] == 12
    np.testing.assert_allclose(line.theory.values[:24], line.predicted_mean.values[:, 0])
    figure = found.plot()
    assert len(figure.axes) == 6
    assert figure.axes[0].get_xlabel() == "angle of the input"


PARTS = ("networks", "width_12", "width_18", "width_36")
