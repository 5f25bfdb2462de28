"""A diagnosis in words, as a record, as data and as a picture."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray
from made_up_checks import CAUSE, CONSEQUENCE, FINE, GOOD, STUBBORN, MadeUp, diagnosed, setup

from foretrain.doctor.checks import Stage
from foretrain.doctor.finding import SCORE_GAIN, Examination, Finding, Severity, Treatment, counted
from foretrain.support.answers.figure import Curve, Note
from foretrain.support.errors import InputError
from foretrain.support.store import load, save

SKIPPED = MadeUp("skipped", "?", Stage.NONE, lambda case: Examination(skipped="not for linear models."))
NOTE = MadeUp(
    "note", "?", Stage.NONE, lambda case: Examination((Finding(Severity.NOTE, "Worth knowing", "", ""),))
)


def measured(name: str) -> MadeUp:
    data = xarray.Dataset(
        {"size": ("layer", np.array([1.0, np.inf]), {"units": "1"})}, {"layer": ["a", "b"]}, {"samples": 3}
    )
    return MadeUp(name, "?", Stage.NONE, lambda case: Examination((GOOD,), data))


def test_the_worst_comes_first_and_causes_before_consequences(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [FINE, STUBBORN, CAUSE, CONSEQUENCE, NOTE])
    assert [name for name, _ in found.by_severity()] == ["cause", "consequence", "stubborn", "note", "fine"]
    assert not found.healthy
    assert found.headline == "2 critical findings and 1 warning: Weights are 0, below 1."


def test_what_was_not_looked_at_is_part_of_the_headline(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [FINE, NOTE, SKIPPED])
    assert not found.healthy  # nothing was found, but it was not seen to learn either
    said = "Nothing was found that holds learning back"
    assert found.headline == f"{said} (2 checks; not looked at, skipped: skipped; whether it learns)."
    lines = repr(found).splitlines()
    assert "good: fine: This is as it should be." in lines
    assert "note: note: Worth knowing." in lines
    assert "skipped: skipped: not for linear models." in lines
    assert "Next:" not in repr(found)
    assert "Linear with 4 parameters on 64 samples: mean squared error, SGD with rate 0.1" in repr(found)


def seen(severity: Severity, title: str, **options: bool) -> MadeUp:
    """An outcome check that says this; the training behind it is real."""
    told = Finding(severity, title, "Much was seen", "", "Look.")
    return MadeUp("outcome", "Does it?", Stage.NONE, lambda case: Examination((told,), **options))


def test_the_outcome_comes_first_then_the_cause_then_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [FINE, CAUSE, CONSEQUENCE, SKIPPED, seen(Severity.CRITICAL, "It stalls")])
    assert found.headline == "It stalls. Cause: Weights are 0, below 1."
    text = repr(found)
    order = [
        "It stalls.",
        "not looked at, skipped: skipped.",
        "the training loss",
        "CRITICAL: cause: ",
        "Next: ",
    ]
    order += ["critical: consequence: ", "good: fine: ", "skipped: skipped: ", "Linear with 4 parameters"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert text.startswith("It stalls.")
    assert "outcome:" not in text  # it was told in the first lines


def test_an_outcome_without_a_cause_has_its_own_card(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [FINE, seen(Severity.CRITICAL, "It stalls")])
    assert found.headline == "It stalls; what stops it was not found (2 checks)."
    assert found.cause is None
    assert "CRITICAL: outcome: It stalls." in repr(found)
    assert "Advice: Look." in repr(found)


def test_healthy_is_said_only_of_what_was_seen_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [FINE, SKIPPED, seen(Severity.GOOD, "It learns: all of it")])
    assert found.healthy
    assert found.headline == "Healthy: it learns: all of it (2 checks; not looked at, skipped: skipped)."
    failed = diagnosed(monkeypatch, [FINE, seen(Severity.NOTE, "This check failed", failed=True)])
    assert not failed.healthy
    assert (
        failed.headline
        == "Nothing was found that holds learning back (1 check; not looked at, failed: outcome)."
    )


def test_warnings_of_a_network_that_learns_are_no_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [STUBBORN, seen(Severity.GOOD, "It learns")])
    assert found.headline == "It learns. 1 warning: Weights are 0, below 2."


def test_the_curve_is_drawn_first_with_the_cure_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    far = replace(setup(1e-4), seed=1)
    found = diagnosed(monkeypatch, [CAUSE, seen(Severity.CRITICAL, "It stalls")], far)
    assert found.proof is None  # larger weights do not help this network
    (panel,) = found.answer().figures[0].panels
    assert panel.title == "Explained variance on samples held out"
    faster = Treatment("faster", lambda one: one.with_recipe(one.recipe.scaled(1e3)))
    slow = Finding(Severity.CRITICAL, "Too slow", "", "", "Faster.", "pass", faster)
    check = MadeUp("slow", "?", Stage.RATE, lambda case: Examination((slow,)))
    found = diagnosed(monkeypatch, [check, seen(Severity.CRITICAL, "It stalls")], far)
    assert found.proof is not None
    (panel,) = found.chart().panels
    labels = [mark.label for mark in panel.marks if isinstance(mark, Curve)]
    assert labels[:2] == ["as given", "with the cure"]
    assert [one.title for one in found.figure(found.verify(5)).panels] == [
        "Explained variance on samples held out",
        "Trained with and without the advice",
        "Checks",
    ]
    with pytest.raises(InputError, match="no outcome to draw"):
        diagnosed(monkeypatch, [CAUSE]).chart()


@pytest.mark.parametrize(("gain", "order"), [(0.85, ["first", "second"]), (0.5, ["second", "first"])])
def test_among_cures_that_gain_as_much_the_first_check_names_the_cause(
    gain: float, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gaining(name: str, value: float) -> MadeUp:
        told = Finding(Severity.CRITICAL, name, "", "", numbers={SCORE_GAIN: value})
        return MadeUp(name, "?", Stage.NONE, lambda case: Examination((told,)))

    found = diagnosed(monkeypatch, [gaining("first", gain), gaining("second", 1.0)])
    assert [name for name, _ in found.by_severity()] == order


def test_where_no_check_applies_nothing_is_called_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnosed(monkeypatch, [SKIPPED]).headline.startswith("None of the checks applies")


def test_complaints_have_evidence_source_advice_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    text = repr(diagnosed(monkeypatch, [CAUSE, FINE]))
    assert "CRITICAL: cause: Weights are 0, below 1." in text
    assert "Evidence: Their mean is 0.\nAdvice: Set them.\nTheory: Nobody (1.1)\nWhere: weight\n" in text
    assert "  model.weight.data.fill_(1.0)" in text


def test_consequences_are_told_as_such_and_not_advised_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [CAUSE, CONSEQUENCE, STUBBORN])
    assert repr(found).count("(probably a consequence of cause).") == 2
    assert "fill_(0.5)" not in repr(found)
    found.plan()  # it looked again: one of the two remains
    assert repr(found).count("(probably a consequence of cause).") == 1
    assert "fill_(2.0)" in repr(found)


def test_long_code_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(f"layer_{number} = {number}" for number in range(40))
    told = Finding(Severity.WARNING, "Long", "", "", advice="Do it all.", code=code)
    text = repr(diagnosed(monkeypatch, [MadeUp("long", "?", Stage.NONE, lambda case: Examination((told,)))]))
    assert "  layer_12 = 12" in text
    assert "layer_13" not in text
    assert "27 more lines" in text


def test_the_record_is_json_with_finite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [CAUSE, FINE, SKIPPED])
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["healthy"] is False
    assert record["parameters"] == 4
    assert record["checks"]["skipped"] == {
        "question": "?",
        "skipped": "not for linear models.",
        "failed": False,
        "cut": False,
        "untried": False,
        "findings": [],
    }
    told = record["checks"]["cause"]["findings"][0]
    assert told["severity"] == "critical"
    assert told["numbers"] == {"size": 0.0, "never": None}
    assert told["where"] == ["weight"]
    assert told["treatment"] == "set weights to 1"


def test_all_measurements_fit_into_one_dataset_that_can_be_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    found = diagnosed(monkeypatch, [measured("first"), measured("second"), FINE])
    data = found.to_dataset()
    assert data["first.size"].dims == ("first.layer",)
    assert data["second.size"].attrs["units"] == "1"
    assert data["second.layer"].values.tolist() == ["a", "b"]
    assert data.attrs["first.samples"] == 3
    save(data, f"{tmp_path}/data.zarr")
    again = load(f"{tmp_path}/data.zarr")
    assert again["first.size"].values.tolist() == [1.0, float("inf")]


def test_nothing_measured_is_an_empty_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    data = diagnosed(monkeypatch, [FINE]).to_dataset()
    assert not data.data_vars
    assert data.attrs["headline"].startswith("Nothing was found")


def test_what_was_left_out_and_what_has_begun_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given = replace(setup(), fresh=False, notes=("Half of the samples were looked at.",), batch_size=7)
    text = " ".join(repr(diagnosed(monkeypatch, [FINE], given)).split())
    assert "7 samples in a step. Training has begun." in text
    assert "(1 check; not looked at, whether it learns). Half of the samples were looked at." in text
    assert torch.equal(given.task.x, setup().task.x)


def test_lines_are_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [CAUSE, NOTE, SKIPPED])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for columns, widest in (("50", 50), ("10", 40), ("300", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        code = found.findings[0].code.splitlines()
        lines = [line for line in repr(found).splitlines() if line.strip() not in code]
        assert widest - 20 < max(map(len, lines)) <= widest


def test_the_plan_follows_the_findings_once_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [CAUSE, FINE])
    assert "Next: .plan()" in repr(found)
    found.plan()
    text = repr(found)
    assert "Next:" not in text
    assert (
        text.count("model.weight.data.fill_(1.0)") == 1
    )  # with the plan, not a second time with the finding
    assert "1 treatment:\n\n1. Set weights to 1: Set them." in text


def test_every_check_is_drawn_with_its_worst_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [CAUSE, FINE, SKIPPED])
    (figure,) = found.answer().figures
    (panel,) = figure.panels
    assert list(panel.y.ticks.values()) == ["cause", "fine", "skipped"]
    notes = [mark.text for mark in panel.marks if isinstance(mark, Note)]
    assert notes == [
        "critical: Weights are 0, below 1",
        "good: This is as it should be",
        "skipped: not for linear models.",
    ]
    assert [one.title for one in found.figure(found.verify(5)).panels] == [
        "Trained with and without the advice",
        "Checks",
    ]
    assert found.plot().axes
    assert "card critical" in found._repr_html_()


def test_findings_and_examinations_are_results_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [CAUSE, SKIPPED])
    assert repr(found.findings[0]).startswith("CRITICAL: Weights are 0, below 1.\n\nEvidence: ")
    assert found.findings[0].to_dict()["numbers"] == {"size": 0.0, "never": None}
    assert "CRITICAL: Weights" in repr(found.examinations["cause"])
    assert repr(found.examinations["skipped"]) == "This check was skipped: not for linear models."


def test_numbers_of_steps_have_two_digits() -> None:
    told = [
        counted(steps) for steps in (0, 0.2, 7.4, 12.4, 1_274, 123_456, 8_531_133, 2e8, 3.3e13, 2e17, np.inf)
    ]
    assert told == [
        *("0", "1", "7", "12", "1,300", "120,000", "8.5 x 10^6", "2 x 10^8", "3.3 x 10^13"),
        *("more than 10^14", "more than 10^14"),
    ]
