"""Cures are tried before they are advised: kept where they help, with another rate if need be, else withheld."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from planted_networks import digits, regression
from torch import Tensor, nn

from foretrain.doctor.checks.gains import check
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.proof import prove
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.treatment import Plan, Step
from foretrain.doctor.verification import verify


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(torch.relu(x))


def residual(blocks: int, width: int = 32) -> nn.Sequential:
    """With He's weights: every block multiplies second moments and kernels by about two."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), *[Block(width) for _ in range(blocks)], nn.Linear(width, 10))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
    return model


def single(setup: Setup, finding: Finding) -> Plan:
    assert finding.treatment is not None
    return Plan(setup, (Step("gains", finding, finding.treatment),), finding.treatment.apply(setup))


@pytest.mark.slow
def test_blocks_that_grow_are_shrunk_together_with_the_rate_that_suits_them() -> None:
    """At the given rate the shrunk network is slower: its kernel has become so much smaller."""
    model, (x, y) = residual(14), digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-4)
    setup = make_setup(model, x, y, Training(optimizer=optimizer))
    found = check(Case(setup))
    assert found.findings[0].severity <= Severity.WARNING
    assert verify(single(setup, found.findings[0]), 200).improvement < 0.9
    (finding,) = prove(Case(setup), found).findings
    assert finding.treatment is not None
    assert "learning rate x" in finding.treatment.name
    assert verify(single(setup, finding), 200).improvement > 1.1
    exec(finding.code, {"torch": torch, "model": model, "optimizer": optimizer})
    treated = finding.treatment.apply(setup)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(treated.recipe.rate)
    pairs = zip(model.parameters(), treated.model.parameters(), strict=True)
    assert all(torch.allclose(one, other, rtol=1e-5) for one, other in pairs)


def line(optimizer: Any = 0.05) -> Setup:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
    if optimizer == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return make_setup(model, *regression(), Training(optimizer=optimizer))


def told(cure: Treatment, severity: Severity = Severity.WARNING, **numbers: float) -> Examination:
    return Examination((Finding(severity, "Odd", "It is.", "", "Do.", "pass", cure, numbers),))


BLIND = Treatment("all inputs zero", lambda setup: setup.with_inputs(0 * setup.task.x))
LARGER = Treatment("a larger readout", lambda setup: setup.rescaled({"2.weight": 30.0}))
FASTER = Treatment("a faster rate", lambda setup: setup.with_recipe(setup.recipe.scaled(3.0)))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("optimizer", "cure"),
    [(0.05, BLIND), ("adam", BLIND), (None, BLIND), ("adam", LARGER)],
    ids=["descent-blind", "adam-blind", "default-blind", "adam-larger"],
)
def test_a_cure_that_harms_is_withheld_and_that_is_told(optimizer: Any, cure: Treatment) -> None:
    (finding,) = prove(Case(line(optimizer)), told(cure)).findings
    assert finding.severity is Severity.NOTE
    assert finding.treatment is None
    assert not finding.code
    assert finding.title == "Odd"
    assert f"Tried ({cure.name})" in finding.evidence
    assert finding.advice.startswith("Leave it as it is")


def test_a_cure_that_helps_is_advised_as_it_is() -> None:
    (finding,) = prove(Case(line()), told(FASTER)).findings
    assert finding.treatment is FASTER
    assert finding.severity <= Severity.WARNING
    assert finding.code == "pass"
    assert "With the cure" in finding.proof


def test_a_cure_that_changes_nothing_is_withheld_unless_nothing_is_learned_at_all() -> None:
    idle = Treatment("nothing", lambda setup: setup.with_weights(lambda _: None))
    for rate, severity in ((0.05, Severity.NOTE), (1e-6, Severity.WARNING)):
        setup = line(rate)
        adaptive = replace(setup, recipe=replace(setup.recipe, kind=torch.optim.Adagrad))
        (finding,) = prove(Case(adaptive), told(idle)).findings
        assert finding.severity is severity


def test_notes_and_what_was_tried_on_samples_held_out_are_left_alone() -> None:
    for found in (told(BLIND, Severity.NOTE), told(BLIND, held_out_loss=1.0)):
        assert prove(Case(line()), found).findings == found.findings


def test_what_is_measured_of_a_treated_setup_is_kept() -> None:
    setup = line()
    treated = LARGER.apply(setup)
    assert LARGER.apply(setup) is treated
    other = setup.with_recipe(setup.recipe.scaled(2.0))
    assert LARGER.apply(other).recipe.rate == 2 * treated.recipe.rate
