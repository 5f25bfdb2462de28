"""How long an examination may take: what is cut, that it is named, and that Ctrl-C gives what is known."""

from __future__ import annotations

import io
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up_checks import CAUSE, GOOD, MadeUp, register, setup
from torch import nn

import foretrain as ft
from foretrain.cli import main as cli
from foretrain.doctor import examine, short_training
from foretrain.doctor import outcome as outcome_room
from foretrain.doctor.budget import default_budget
from foretrain.doctor.checks import Effort, Stage
from foretrain.doctor.diagnosis import Diagnosis
from foretrain.doctor.examine import chosen_checks, diagnose
from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.doctor.setup import Case
from foretrain.support import progress
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import Deadline, OutOfTimeError, track, within


class Clock:
    """Seconds that pass when checks let them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def takes(clock: Clock, seconds: int, severity: Severity = Severity.GOOD) -> Callable[[Case], Examination]:
    """A check that works for so many seconds, one step in each."""

    def judge(case: Case) -> Examination:
        for _ in track(range(seconds), "working"):
            clock.now += 1
        return Examination(
            (Finding(severity, "It was looked at", "", "", numbers={"steps": float(seconds)}),)
        )

    return judge


def outcome(clock: Clock, seconds: int, severity: Severity = Severity.GOOD) -> MadeUp:
    return MadeUp("outcome", "?", Stage.NONE, takes(clock, seconds, severity), effort=Effort.OUTCOME)


def timed(monkeypatch: pytest.MonkeyPatch, clock: Clock, budget: float, *checks: MadeUp) -> Diagnosis:
    register(monkeypatch, checks)
    return diagnose(setup(), checks, Deadline(budget, clock))


def test_the_default_grows_with_the_model() -> None:
    assert [default_budget(int(size)) for size in (10, 1e6, 1e7)] == pytest.approx([30, 30, 120])
    assert 30 < default_budget(3_000_000) < 120 < default_budget(10**8) <= 240


def test_what_is_cut_is_named_with_the_budget_that_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    theory = MadeUp("theory", "?", Stage.NONE, takes(clock, 40), effort=Effort.THEORY, steps=1)
    quick = MadeUp("quick", "?", Stage.NONE, takes(clock, 1))
    found = timed(monkeypatch, clock, 30.0, theory, outcome(clock, 10), quick)
    assert list(found.examinations) == ["theory", "outcome", "quick"]  # as they were asked for
    assert found.examinations["theory"].cut
    assert not found.examinations["quick"].cut  # it came first
    assert clock.now == 30  # stopped at the end of the step in which the time was over
    assert "not looked at: theory (30 s were not enough, a budget of 70 s would do)" in found.headline
    assert found.headline.startswith("Healthy")
    assert found.to_dict()["checks"]["theory"]["cut"] is True
    assert found.to_dict()["budget"] == 30


def test_the_verdict_leaves_time_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    others = [MadeUp(f"look {number}", "?", Stage.NONE, takes(clock, 1)) for number in range(3)]
    found = timed(monkeypatch, clock, 30.0, *others, outcome(clock, 100))
    assert found.examinations["outcome"].cut
    assert clock.now == 18 + 3
    assert not found.healthy
    # Nine seconds are left, but not for what was cut.
    assert "outcome (too little of the 30 s was left for it, a budget of 60 s would do)" in found.headline


def test_what_is_likely_to_take_too_long_leaves_the_time_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def refuses(case: Case) -> Examination:
        raise NotSupportedError("not for such models.")

    # 50 s, as a step of the outcome takes 1 s.
    long = MadeUp("long", "?", Stage.NONE, takes(clock, 50), effort=Effort.THEORY, steps=50)
    other = MadeUp("other", "?", Stage.NONE, refuses, effort=Effort.THEORY, steps=60)
    found = timed(monkeypatch, clock, 30.0, long, other, outcome(clock, 10))
    assert found.examinations["long"].cut
    assert found.examinations["other"].skipped == "not for such models."
    assert clock.now == 11  # it was stopped after its first step
    assert "too little of the 30 s was left for it, a budget of 65 s would do" in found.headline


def test_where_nothing_is_learned_theory_leaves_time_for_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    theory = MadeUp("theory", "?", Stage.NONE, takes(clock, 40), effort=Effort.THEORY, steps=1)
    training = MadeUp("training", "?", Stage.NONE, takes(clock, 5), effort=Effort.TRAINING, steps=1)
    found = timed(monkeypatch, clock, 30.0, theory, training, outcome(clock, 10, Severity.CRITICAL))
    assert found.examinations["theory"].cut
    assert not found.examinations["training"].cut
    assert clock.now == 18 + 5


def test_advice_that_was_not_tried_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, [CAUSE])

    def late(case: Case, found: Examination) -> Examination:
        raise OutOfTimeError

    monkeypatch.setattr(examine, "prove", late)
    found = diagnose(setup(), [CAUSE])
    assert found.examinations["cause"].findings[0].severity is Severity.CRITICAL
    assert "advice not tried: cause" in found.headline


def test_a_trial_of_advice_that_fails_leaves_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, [CAUSE])

    def fails(case: Case, found: Examination) -> Examination:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(examine, "prove", fails)
    finding = diagnose(setup(), [CAUSE]).examinations["cause"].findings[0]
    assert finding.severity is Severity.CRITICAL
    assert "could not be tried on this model: ZeroDivisionError: division by zero" in finding.advice
    assert finding.treatment is None


def test_a_plan_without_time_is_made_of_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[Case]()

    def judge(case: Case) -> Examination:
        looked.append(case)
        return Examination((GOOD,))

    again = MadeUp("again", "?", Stage.RATE, judge)
    register(monkeypatch, [CAUSE, again])
    found = diagnose(setup(), [CAUSE, again])
    plan = found.plan(0.0)
    assert [step.check for step in plan.steps] == ["cause"]
    assert len(looked) == 1  # not again on the treated network
    assert plan.persists("again")  # nobody knows


def interrupts(case: Case) -> Examination:
    raise KeyboardInterrupt


def test_ctrl_c_gives_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    stopped = MadeUp("stopped", "?", Stage.NONE, interrupts, effort=Effort.THEORY)
    found = timed(monkeypatch, clock, 30.0, stopped, outcome(clock, 1))
    assert found.outcome is not None
    assert found.examinations["stopped"].cut
    assert "not looked at: stopped (it was interrupted)" in found.headline
    assert found.answer().interrupted


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "model.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(4, 1)\n")
    x = np.random.default_rng(0).normal(size=(64, 4))
    np.savez(tmp_path / "data.npz", x=x, y=x[:, :1])
    return f"{tmp_path / 'model.py'}:make", str(tmp_path / "data.npz")


@pytest.mark.parametrize("where", ["look", "make_plan"])
def test_ctrl_c_ends_the_command_with_the_answer_so_far(
    where: str, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from foretrain.doctor import treatment

    monkeypatch.setattr("foretrain.doctor.checks.plateau.check", interrupts)
    if where == "make_plan":
        monkeypatch.undo()
        plan = treatment.make_plan

        def stopped(diagnosis: Diagnosis, seconds: float) -> treatment.Plan:
            if seconds:
                raise KeyboardInterrupt
            return plan(diagnosis, seconds)

        monkeypatch.setattr(treatment, "make_plan", stopped)
    assert cli.main(["doctor", *files, "--lr", "0.1", "--checks", "inputs,plateau"]) == 130
    said = capsys.readouterr().out
    assert "Linear with 5 parameters" in said
    assert ("it was interrupted" in said) == (where == "look")


def test_the_command_takes_a_budget(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *files, "--lr", "0.1", "--checks", "inputs", "--budget", "2m", "--json"]) == 0
    assert '"budget": 120' in capsys.readouterr().out
    assert cli.main(["doctor", *files, "--budget", "soon"]) == 2
    assert "--budget is 'soon'" in capsys.readouterr().err


@pytest.mark.parametrize("budget", [0, -1.0, math.nan])
def test_a_budget_is_positive(budget: float) -> None:
    with pytest.raises(InputError, match="positive number of seconds"):
        ft.doctor(nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1), budget=budget)


def test_a_terminal_shows_what_is_looked_at_and_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    clock, terminal = Clock(), Terminal()
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    monkeypatch.setattr(progress.threading.Timer, "start", lambda timer: timer.function())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal)

    def judge(case: Case) -> Examination:
        clock.now += 12
        assert progress._screen._display is not None
        progress._screen._display.refresh()
        return Examination((GOOD,))

    timed(monkeypatch, clock, 30.0, MadeUp("seconds", "?", Stage.NONE, judge), outcome(clock, 0))
    assert "looking at seconds (2 of 2)" in terminal.getvalue()
    assert "12 s of 30 s" in terminal.getvalue()
    assert "0:0" not in terminal.getvalue()  # no forecast of hours


def trained(monkeypatch: pytest.MonkeyPatch, heavy: bool) -> tuple[Diagnosis, list[float]]:
    """A training of which every step takes a second, within 40 seconds."""
    clock, steps = Clock(), list[float]()
    descend = short_training.descend

    def slow(*arguments: Any) -> float:
        steps.append(descend(*arguments))
        clock.now += 1
        return steps[-1]

    monkeypatch.setattr(short_training, "descend", slow)
    for room in (outcome_room, short_training):
        monkeypatch.setattr(room, "is_heavy", lambda setup: heavy)
    return diagnose(setup(), chosen_checks("outcome"), Deadline(40.0, clock)), steps


def test_the_training_of_a_small_model_ends_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found, steps = trained(monkeypatch, heavy=False)
    assert len(steps) == 24
    assert found.outcome is not None
    assert "after 24 steps, cut by the budget" in found.headline
    assert "what stops it" not in found.headline  # nobody knows that anything does


def test_the_training_of_a_large_model_is_judged_where_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, steps = trained(monkeypatch, heavy=True)
    assert len(steps) == 24
    assert found.outcome is not None
    assert found.outcome.numbers["steps"] == 24
    assert found.examinations["outcome"].data is not None
    assert found.examinations["outcome"].data["record"].values[-1] == 24
    assert not any(key[0] == "course" for key in found.setup.known if isinstance(key, tuple))
    with pytest.raises(OutOfTimeError), within(Deadline(0.0)):
        outcome_room.observe_briefly(found.setup)


class Slow(nn.Linear):
    """A model of which every pass takes a second of the clock."""

    clock = Clock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 1
        return super().forward(x)


@pytest.mark.parametrize("budget", [2.0, 8.0, 30.0, 150.0])
def test_no_pass_begins_after_the_deadline(budget: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    made = examine.make_setup(Slow(4, 1), x, x[:, :1], examine.Training(optimizer=0.01, batch_size=10))
    start = Slow.clock.now
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = diagnose(made, deadline=Deadline(budget, Slow.clock))
    str(found)
    assert Slow.clock.now - start <= budget + 2  # the last look at what the training has
    assert "would do" in found.headline
