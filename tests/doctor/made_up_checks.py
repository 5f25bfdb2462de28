"""Made-up checks, so that the core is tested apart from what real checks measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from foretrain.doctor import diagnosis, examine, treatment
from foretrain.doctor.checks import Check, Stage
from foretrain.doctor.examine import Training, diagnose, make_setup
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.setup import Case, Setup

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :1]
GOOD = Finding(Severity.GOOD, "This is as it should be", "", "")


@dataclass(frozen=True)
class MadeUp(Check):
    """A check whose function is given."""

    judge: Callable[[Case], Examination] = lambda case: Examination((GOOD,))

    @property
    def function(self) -> Callable[[Case], Examination]:
        return self.judge


def setup(rate: float = 0.1, weight: float = 0.0) -> Setup:
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(weight)
    return make_setup(model, X, Y, Training(optimizer=rate))


def small_weights(below: float, severity: Severity = Severity.CRITICAL) -> Callable[[Case], Examination]:
    """Complains of weights below a level, and sets them to it."""

    def judge(case: Case) -> Examination:
        size = float(case.model.get_parameter("weight").detach().abs().mean())
        if size >= below:
            return Examination((GOOD,))
        told = Finding(
            severity,
            f"Weights are {size:g}, below {below:g}",
            f"Their mean is {size:g}.",
            "Nobody (1.1)",
            advice="Set them.",
            code=f"model.weight.data.fill_({below})",
            treatment=Treatment(
                f"set weights to {below:g}",
                lambda setup: setup.with_weights(lambda model: nn.init.constant_(model.weight, below)),
            ),
            numbers={"size": size, "never": float("inf")},
            where=("weight",),
        )
        return Examination((told,))

    return judge


def register(monkeypatch: pytest.MonkeyPatch, checks: Sequence[MadeUp]) -> None:
    """Put made-up checks in the place of the real ones."""
    for module in (diagnosis, examine, treatment):
        monkeypatch.setattr(module, "CHECKS", tuple(checks))
    monkeypatch.setattr(
        examine, "prove", lambda case, found: found
    )  # what is made up would not stand a training


def diagnosed(
    monkeypatch: pytest.MonkeyPatch, checks: Sequence[MadeUp], given: Setup | None = None
) -> diagnosis.Diagnosis:
    """What these checks find."""
    register(monkeypatch, checks)
    return diagnose(given or setup(), checks)


CAUSE = MadeUp("cause", "Are weights large?", Stage.WEIGHTS, small_weights(1.0))
CONSEQUENCE = MadeUp("consequence", "Are they?", Stage.OPTIMIZER, small_weights(0.5))
STUBBORN = MadeUp("stubborn", "Are they huge?", Stage.OPTIMIZER, small_weights(2.0, Severity.WARNING))
FINE = MadeUp("fine", "Is all well?", Stage.NONE)
