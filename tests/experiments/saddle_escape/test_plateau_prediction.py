"""Predicted plateaus: judgements follow the numbers, a tiny run holds, and parts are read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray

from foretrain.experiments.parts import Parts
from foretrain.experiments.saddle_escape import plateau_prediction as experiment
from foretrain.support.errors import NotSupportedError

TINY = experiment.Plan(
    (experiment.Case("teacher", "tanh", 4, 4, 0.2), experiment.Case("teacher", "erf", 4, 3, 0.06, bias=True)),
    width=16,
    inputs=5,
    samples=128,
    rates={"teacher": 0.007},
    batch=32,
    runs=2,
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts") / "plateaus"


@pytest.fixture(scope="module")
def result(kept: Path) -> experiment.Result:
    return experiment.plateau_prediction(TINY, 0, Parts(kept))


def _made(factor: float, sooner: float = 10.0) -> xarray.Dataset:
    """Predictions of 1000 and 100 steps; the given network is ``factor`` late, the rescaled one ``sooner``."""
    given = 1000 * factor * np.array([0.99, 1.01])
    return xarray.Dataset(
        {
            "predicted": ("variant", [1000.0, 100.0]),
            "measured": (("variant", "run"), np.stack([given, given / sooner])),
            "small_layers": 4,
            "epsilon": 0.1,
        },
        coords={"variant": ["given", "rescaled"]},
    )


def test_steps_are_judged_by_a_fifth_of_the_prediction() -> None:
    row = experiment._step_row(_made(1.19), "case", "given")
    assert row.agrees
    assert row.here == pytest.approx(1190)
    assert row.standard_error == pytest.approx(11.9, rel=1e-3)
    assert experiment._step_row(_made(1.21), "case", "given").agrees is False
    assert experiment._step_row(_made(0.79), "case", "given").agrees is False


def test_shortening_is_judged_beside_the_predicted_one() -> None:
    assert experiment._shortening_row(_made(1.5), "case").agrees  # both late by the same factor
    assert experiment._shortening_row(_made(1.0, sooner=7.9), "case").agrees is False


@pytest.mark.slow
def test_tiny_networks_escape_when_predicted(result: experiment.Result) -> None:
    assert result.agrees
    assert len(result.table) == 8
    assert "2 of 2 plateaus" in result.verdict
    assert (result.data.measured.mean("run") / result.data.predicted).values == pytest.approx(1, abs=0.1)
    assert list(result.data.small_layers.values) == [4, 3]
    assert result.figure is not None
    result.plot()


@pytest.mark.slow
def test_finished_parts_are_read_back(
    kept: Path, result: experiment.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a finished part was computed again")

    monkeypatch.setattr(experiment, "_measure", refuse)
    xarray.testing.assert_identical(experiment.plateau_prediction(TINY, 0, Parts(kept)).data, result.data)


def test_digits_without_scikit_learn_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(NotSupportedError, match="pip install scikit-learn"):
        experiment._digits()


def test_digits_are_centred_with_unit_mean_square() -> None:
    pytest.importorskip("sklearn")
    x, labels = experiment._digits()
    assert x.shape == (1797, 64)
    assert float(x.square().mean()) == pytest.approx(1, rel=1e-5)
    assert float(x.mean(dim=0).abs().max()) < 1e-5
    assert sorted(set(labels.tolist())) == list(range(10))


@pytest.mark.statistical
def test_ten_networks_of_the_quick_size_escape_within_a_fifth() -> None:
    """tanh, GELU and erf, 4 to 8 layers, Gaussian teachers and digits."""
    pytest.importorskip("sklearn")
    result = experiment.plateau_prediction(experiment.PLANS["quick"], 1, Parts())
    assert result.agrees
    steps = [row for row in result.table if row.quantity.endswith("escape step")]
    assert len(steps) == 20
