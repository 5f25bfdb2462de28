"""The experiment on trained networks of finite width: its numbers, what it notices, and that it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrain.experiments import Result
from foretrain.experiments.effective_theory import finite_width_training as experiment
from foretrain.experiments.effective_theory.finite_width_training import case_of, table
from foretrain.experiments.parts import Parts

DRAWS = {32: 200, 64: 200, 128: 200}


CASES = tuple(case for case in experiment.CASES if case not in (experiment.SIX, experiment.DEEP_TANH))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("finite") / "parts"


@pytest.fixture(scope="module")
def result(kept: Path) -> Result:
    """Few networks of the cases whose theory takes no seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "CASES", CASES)
        return experiment.finite_width_training(experiment.Plan(*(6 * (DRAWS,))), 0, Parts(kept))


@pytest.mark.slow
def test_theory_of_every_case(result: Result) -> None:
    """Table E of the reference, and sums of its text."""
    expected = {
        "sin, L = 2, descent at 1.2": -0.4018485,
        "sin, L = 2, descent at 0.2": 0.1256,
        "sin, L = 2, two-step": -0.4864580,
        "tanh, L = 2, descent at 1.2": -1.3811,
        "sin, L = 3, descent at 1.2": -0.3526,
        "sin, L = 3, two-step": -0.7182,
    }
    theory = result.data["theory"].sel(entry="interaction of output 0 at 0")
    for case, value in expected.items():
        assert theory.sel(case=case).item() == pytest.approx(value, abs=6e-5)
    assert result.data["printed_interaction"].item() == pytest.approx(-0.575, abs=5e-4)
    assert result.data["printed_ntk_variance"].item() == pytest.approx(0.3186, abs=5e-5)


@pytest.mark.slow
def test_table_and_picture(result: Result) -> None:
    quantities = [row.quantity for row in result.table]
    assert len(set(quantities)) == len(quantities)
    assert sum("interaction, times n, limit" in each for each in quantities) == 7
    assert sum("rms z of all entries" in each for each in quantities) == len(CASES)
    deep = [row for row in result.table if "L = 3" in row.quantity and "less infinite width" in row.quantity]
    assert all(row.agrees is None and row.note for row in deep)
    assert "checks of the order 1/n agree" in result.verdict
    assert result.figure is not None
    result.plot()


@pytest.mark.slow
def test_cases_of_the_same_networks_differ_by_the_algorithm_alone(result: Result) -> None:
    descent, leap = (
        case_of(result.data, f"sin, L = 2, {how}")["batch_value"] for how in ("descent at 1.2", "two-step")
    )
    variance, interaction = (f"{name} of output 0 at 0" for name in ("ntk_variance", "interaction"))
    np.testing.assert_array_equal(descent.sel(entry=variance), leap.sel(entry=variance))
    one, other = (each.sel(entry=interaction).values.ravel() for each in (descent, leap))
    assert 0.5 < np.corrcoef(one, other)[0, 1] < 0.9999


@pytest.mark.slow
def test_a_wrong_theory_is_noticed(result: Result) -> None:
    wrong = result.data.assign(theory=result.data["theory"] + 10.0)
    refused = [row.quantity for row in table(wrong) if row.agrees is False]
    assert "tanh, L = 2, descent at 1.2: interaction, times n, limit" in refused
    assert any("mean less infinite width" in quantity for quantity in refused)
    zero = result.data.assign(printed_ntk_variance=-5.0)
    assert next(row for row in table(zero) if "ntk_variance as printed" in row.quantity).agrees is False


@pytest.mark.slow
def test_finished_parts_are_read_back(result: Result, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foretrain.compare.trained.finite_goals import FiniteGoal

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(FiniteGoal, "measure", never)
    again = experiment.compared(experiment.SIN, DRAWS, 0, Parts(kept))
    own = case_of(result.data, experiment.SIN.label)["measured"]
    for entry, values in zip(again.entries, again.measured.T, strict=True):
        np.testing.assert_array_equal(values, own.sel(entry=entry.label))
