"""Carrying out advice: in stages, each looking again, nothing changed in place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from made_up_checks import CAUSE, CONSEQUENCE, FINE, GOOD, STUBBORN, MadeUp, diagnosed, setup, small_weights

from foretrain.doctor.checks import Stage
from foretrain.doctor.examine import make_setup
from foretrain.doctor.finding import Examination, Severity
from foretrain.doctor.setup import Case


def test_what_an_earlier_treatment_heals_is_not_treated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [CAUSE, CONSEQUENCE, FINE])
    plan = found.plan()
    assert [step.check for step in plan.steps] == ["cause"]
    assert torch.all(plan.treated.model.weight == 1.0)
    assert torch.all(plan.given.model.weight == 0.0)
    assert found.cause_of("consequence", found.examinations["consequence"].findings[0]) == "cause"
    assert found.cause_of("cause", found.examinations["cause"].findings[0]) is None
    assert not plan.persists("consequence")


def test_what_remains_is_treated_in_its_own_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [CAUSE, STUBBORN])
    plan = found.plan()
    assert [step.treatment.name for step in plan.steps] == ["set weights to 1", "set weights to 2"]
    assert plan.steps[1].finding.numbers["size"] == 1.0  # it looked at what the first treatment had made
    assert torch.all(plan.treated.model.weight == 2.0)
    assert plan.code == "model.weight.data.fill_(1.0)\n\nmodel.weight.data.fill_(2.0)"
    lines = repr(plan).splitlines()
    assert {"1. Set weights to 1: Set them.", "2. Set weights to 2: Set them."} <= set(lines)
    assert plan.to_dict() == {
        "treatments": [
            {"check": "cause", "name": "set weights to 1"},
            {"check": "stubborn", "name": "set weights to 2"},
        ],
        "code": plan.code,
    }
    assert found.plan() is plan


def test_stages_come_before_the_order_of_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    late = MadeUp("late", "?", Stage.RATE, small_weights(1.0))
    early = MadeUp("early", "?", Stage.DATA, small_weights(0.7))
    assert [step.check for step in diagnosed(monkeypatch, [late, early]).plan().steps] == ["early", "late"]


def test_notes_are_not_treated_nor_what_only_the_user_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    note = MadeUp("note", "?", Stage.WEIGHTS, small_weights(1.0, Severity.NOTE))
    users = MadeUp("users", "?", Stage.NONE, small_weights(1.0))
    found = diagnosed(monkeypatch, [note, users])
    assert found.plan().steps == ()
    assert found.plan().treated is found.setup
    assert "nothing to treat" in repr(found.plan())


def test_a_skipped_check_treats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = MadeUp("skipped", "?", Stage.WEIGHTS, lambda case: Examination(skipped="not for this one."))
    assert diagnosed(monkeypatch, [skipped, CAUSE]).plan().steps[0].check == "cause"


def test_a_chosen_rate_is_chosen_anew_for_what_was_treated(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(case: Case) -> Examination:
        if float(case.task.x.std()) < 5:
            return Examination((GOOD,))
        told = small_weights(9.0)(case).findings[0]
        treatment = replace(told.treatment, change=lambda setup: setup.with_inputs(setup.task.x / 10))
        return Examination((replace(told, treatment=treatment),))

    given = setup()
    chosen = make_setup(given.model, 10 * given.task.x, given.task.y)
    found = diagnosed(monkeypatch, [MadeUp("wide", "?", Stage.DATA, wide)], chosen)
    assert found.plan().treated.recipe.chosen
    assert found.plan().treated.recipe.rate == pytest.approx(100 * chosen.recipe.rate, rel=0.05)


def test_a_check_that_treats_descent_is_not_asked_of_other_optimizers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = list[str]()

    def judge(case: Case) -> Examination:
        looked.append(str(case.recipe))
        return Examination((GOOD,))

    slow = MadeUp("slow", "Is it fast?", Stage.OPTIMIZER, judge, treats_descent_only=True)
    for kind, again in ((torch.optim.SGD, 1), (torch.optim.Adam, 0)):
        looked.clear()
        given = setup()
        given = given.with_recipe(replace(given.recipe, kind=kind))
        plan = diagnosed(monkeypatch, [CAUSE, slow], given).plan()
        assert len(looked) == 1 + again
        assert not plan.persists("slow")
        assert len(looked) == 2  # now it is asked


def test_only_the_check_that_is_asked_looks_at_the_treated_network(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[str]()
    never = MadeUp("never", "Is it?", Stage.NONE, lambda _: (looked.append("never"), Examination())[1])
    plan = diagnosed(monkeypatch, [CAUSE, CONSEQUENCE, never]).plan()
    assert not plan.persists("cause")
    assert looked == ["never"]  # of the network as given
    assert list(plan.examinations) == ["cause", "consequence", "never"]
    assert looked == ["never", "never"]
