"""The picture of an outcome: curves beside baselines, the cure, and trainings that end early."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Treatment
from foretrain.doctor.outcome import Outcome, observe_briefly
from foretrain.doctor.outcome_chart import loss_chart, outcome_chart
from foretrain.doctor.proof import try_cure
from foretrain.doctor.setup import Case, Setup
from foretrain.support.answers.figure import Curve, Figure, Level

X = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
BASELINES = [
    "a constant",
    "a linear model",
    "nearest neighbours",
    "a linear readout of the untrained network",
]


def setup(rate: float = 0.1, y: Tensor = X[:, :1]) -> Setup:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    return make_setup(network, X, y, Training(optimizer=rate, loss="mse"))


def curves(figure: Figure) -> dict[str, Curve]:
    (panel,) = figure.panels
    return {mark.label: mark for mark in panel.marks if isinstance(mark, Curve)}


def test_every_baseline_is_a_line_as_long_as_the_training() -> None:
    outcome = observe_briefly(setup())
    drawn = curves(outcome_chart(outcome))
    assert list(drawn) == ["as given", "as given, training samples", *BASELINES]
    for baseline in outcome.bench.baselines:
        np.testing.assert_allclose(drawn[baseline.name].y, baseline.score)
        assert drawn[baseline.name].x.tolist() == [0, outcome.course.steps[-1]]
    np.testing.assert_allclose(drawn["as given"].y, outcome.course.scores.mean(1))
    assert drawn["as given, training samples"].y == pytest.approx([outcome.course.trained_score])


def test_a_cure_is_drawn_beside_and_its_loss_only_in_the_same_units() -> None:
    faster = Treatment("faster", lambda one: one.with_recipe(one.recipe.scaled(1e4)))
    larger = Treatment("larger targets", lambda one: one.with_targets(2 * one.task.y))
    given = setup(1e-5)
    for cure, same in ((faster, True), (larger, False)):
        proof = try_cure(Case(given), cure)
        drawn = curves(outcome_chart(proof.given, proof))
        np.testing.assert_allclose(drawn["with the cure"].y, proof.cured.course.scores.mean(1))
        assert any("with the cure" in label for label in curves(loss_chart(proof.given, proof))) == same


def test_far_below_a_constant_is_cut_off_and_no_number_is_drawn() -> None:
    outcome = observe_briefly(setup(y=X[:, :1] * 1e-3))  # the network starts far above these targets
    (panel,) = outcome_chart(outcome).panels
    assert outcome.course.scores.mean(1).min() < -1
    assert panel.y.low == -1


def test_a_divergence_is_marked_and_leaves_no_infinities() -> None:
    outcome = observe_briefly(setup(1e3))
    assert outcome.course.diverged
    for chart in (outcome_chart(outcome), loss_chart(outcome)):
        (panel,) = chart.panels
        (level,) = (mark for mark in panel.marks if isinstance(mark, Level) and mark.x is not None)
        assert level.x == len(outcome.course.losses)
        assert not any(np.isinf(curve.y).any() for curve in curves(chart).values())


def test_without_scores_the_loss_is_drawn() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3))
    task = make_setup(
        network, X, X, Training(optimizer=0.1, loss=lambda out, y: (out.sum(1) - y[:, 0]).abs().mean())
    )
    outcome: Outcome = observe_briefly(task)
    assert not outcome.scored
    assert list(curves(outcome_chart(outcome))) == ["as given, samples of the step", "as given, held out"]
