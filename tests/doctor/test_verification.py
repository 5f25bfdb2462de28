"""Training with and without the advice: fair, honest, bounded."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up_checks import CAUSE, FINE, X, Y, diagnosed, setup
from torch import Tensor, nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Finding, Severity, Treatment
from foretrain.doctor.setup import Setup, descent
from foretrain.doctor.treatment import Plan, Step
from foretrain.doctor.verification import Curve, Units, Verification, units_between, verify
from foretrain.support.errors import InputError, NotSupportedError


def plan_to(given: Setup, treated: Setup) -> Plan:
    told = Finding(Severity.WARNING, "", "", "", treatment=Treatment("change it", lambda setup: treated))
    return Plan(given, (Step("made_up", told, told.treatment),), treated)


def test_the_curve_is_that_of_descent() -> None:
    given = setup(rate=0.05)
    found = verify(Plan(given, (), given), 20)
    model, losses = nn.Linear(4, 1, bias=False), []
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(21):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), Y)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    assert found.given.steps.tolist() == list(range(21))
    np.testing.assert_allclose(found.given.losses, losses, rtol=1e-5)
    assert found.treated is found.given
    assert found.improvement == 1.0
    assert found.verdict.startswith("nothing was treated; in 20 steps the loss went from ")


def test_batches_and_dropout_are_the_same_in_both() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
    given = make_setup(model, X, Y, Training(optimizer=0.1, batch_size=10))
    twins = verify(plan_to(given, given.with_weights(lambda model: None)), 30)
    assert np.array_equal(twins.given.losses, twins.treated.losses)
    assert twins.improvement == 1.0
    assert "makes little difference" in twins.verdict
    state = torch.random.get_rng_state()
    again = verify(plan_to(given, given), 30)
    assert np.array_equal(twins.given.losses, again.given.losses)
    assert torch.equal(torch.random.get_rng_state(), state)
    other = verify(plan_to(replace(given, seed=1), given), 30)
    assert not np.array_equal(twins.given.losses, other.given.losses)


def test_the_loss_is_told_in_the_units_of_the_given_targets() -> None:
    far = make_setup(nn.Linear(4, 1), X, 50 * Y + 300, Training(optimizer=0.05))
    near = far.with_targets((far.task.y - 300) / 50)
    found = verify(plan_to(far, near), 40)
    expected = 2500 * float(near.task.value(near.model))
    assert found.treated.losses[0] == pytest.approx(expected, rel=1e-4)
    assert found.improvement > 1
    units = units_between(near.task, far.task)
    assert torch.allclose(units.back(near.task.y), far.task.y, rtol=1e-4)
    assert units_between(far.task, far.task) == Units()
    with pytest.raises(NotSupportedError, match="scale and shift"):
        units_between(far.with_targets(far.task.y**3).task, far.task)


def test_scaled_inputs_are_those_of_the_treated_network() -> None:
    wide = make_setup(nn.Linear(4, 1), X * torch.tensor([100.0, 1, 1, 1]), Y, Training(optimizer=1e-5))
    scaled = wide.with_inputs(wide.task.x / wide.task.x.std(0)).with_recipe(descent(wide.model, 0.1))
    found = verify(plan_to(wide, scaled), 100)
    assert found.treated.losses[0] == pytest.approx(scaled.task.value(scaled.model), rel=1e-5)
    assert found.improvement > 10
    assert found.speedup > 2
    assert "the advice helps" in found.verdict
    assert "times less" in found.verdict


def test_divergence_is_told_and_ends_one_training_only() -> None:
    hot, calm = setup(rate=50.0), setup(rate=0.05)
    saved = verify(plan_to(hot, calm), 60)
    assert saved.given.diverged_at is not None
    assert np.isfinite(saved.given.losses).all()
    assert saved.improvement == math.inf
    assert f"diverged at step {saved.given.diverged_at}" in saved.verdict
    assert saved.treated.steps[-1] == 60
    harmed = verify(plan_to(calm, hot), 60)
    assert harmed.improvement == 0
    assert "does harm" in harmed.verdict
    both = verify(plan_to(hot, hot), 60)
    assert math.isnan(both.improvement)
    assert "both trainings diverged" in both.verdict
    alone = verify(Plan(hot, (), hot), 60)
    assert "nothing was treated" in alone.verdict


def test_a_treatment_that_does_not_help_is_not_praised() -> None:
    found = verify(plan_to(setup(rate=0.1), setup(rate=0.001)), 50)
    assert found.improvement < 1
    assert "does not help" in found.verdict


def test_training_ends_when_the_time_is_over() -> None:
    given = setup()
    found = verify(plan_to(given, given), 10_000_000, seconds=0.2)
    assert "0.2 seconds were over" in found.stopped
    assert found.stopped in found.verdict
    assert found.given.steps[-1] == found.treated.steps[-1] < 10_000_000
    assert len(found.given.losses) == 2  # the first, and the one at the end


def test_spikes_at_the_end_do_not_decide() -> None:
    losses = np.geomspace(1, 0.01, 61)
    losses[-1] = 7.0
    assert Curve(np.arange(61), losses).final < 0.02
    assert Curve(np.arange(61), losses).first_below(0.5) == 10
    assert Curve(np.arange(61), losses).first_below(0.001) == math.inf


def test_batch_normalisation_keeps_its_statistics_while_judged() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    given = make_setup(model, X, Y, Training(optimizer=0.05))
    found = verify(Plan(given, (), given), 30)
    expected = nn.functional.mse_loss(model.train()(X), Y).item()  # by the statistics of the samples
    assert found.given.losses[0] == pytest.approx(expected, rel=1e-5)
    assert found.given.final < 0.5 * expected


def test_optimizers_that_ask_for_the_loss_themselves_are_trained_too() -> None:
    model = nn.Linear(4, 1)
    given = make_setup(model, X, Y, Training(optimizer=torch.optim.LBFGS(model.parameters(), lr=0.5)))
    assert verify(Plan(given, (), given), 10).given.final < 1e-3


def test_losses_of_ones_own_and_labels_are_trained() -> None:
    torch.manual_seed(0)

    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().mean()

    given = make_setup(nn.Linear(4, 1), X, Y, Training(loss=own, optimizer=0.05))
    assert verify(Plan(given, (), given), 50).loss_name == "own"
    labels = make_setup(nn.Linear(4, 3), X, torch.arange(64) % 3, Training(optimizer=0.05))
    assert verify(plan_to(labels, labels), 5).loss_name == "cross-entropy"


def test_the_dataset_and_the_record_say_the_same() -> None:
    found = verify(plan_to(setup(rate=50.0), setup(rate=0.05)), 60)
    data = found.to_dataset()
    assert data.loss.dims == ("network", "step")
    assert data.loss.sel(network="treated").values.tolist() == found.treated.losses.tolist()
    assert np.isnan(data.loss.sel(network="given").values[-1])
    assert data.attrs["treatments"] == "change it"
    record = found.to_dict()
    assert record["improvement"] is None  # infinite
    assert record["curves"]["treated"]["loss"] == found.treated.losses.tolist()
    assert repr(found) == f"Training: {found.verdict}"


def test_both_trainings_are_drawn_and_where_one_diverges() -> None:
    found = verify(plan_to(setup(rate=50.0), setup(rate=0.05)), 60)
    (panel,) = found.figure().panels
    level, given, treated = panel.marks
    assert level.x == found.given.diverged_at
    assert given.label == f"as given (diverges at step {found.given.diverged_at})"
    assert treated.y.tolist() == found.treated.losses.tolist()
    assert panel.caption.lower() == found.verdict.lower()
    assert found.plot().axes


@pytest.mark.parametrize("steps", [0, -1, 2.5, True])
def test_steps_are_whole_numbers(steps: float) -> None:
    given = setup()
    with pytest.raises(InputError, match="steps is"):
        verify(Plan(given, (), given), steps)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seconds"):
        verify(Plan(given, (), given), 5, seconds=math.nan)


def test_a_diagnosis_verifies_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(monkeypatch, [CAUSE, FINE], setup(rate=0.01)).verify(5)
    assert set(found.curves) == {"given", "treated"}
    assert found.treated.losses[0] == pytest.approx(
        ((X.sum(1, keepdim=True) - Y) ** 2).mean().item(), rel=1e-5
    )


def test_the_verdict_says_over_which_steps_the_final_loss_is_taken() -> None:
    losses = np.linspace(1.0, 0.5, 61)
    curve = Curve(np.arange(0, 183, 3), losses)
    assert curve.final == pytest.approx(np.median(losses[-6:]))
    assert curve.final_over == 16
    given, treated = Curve(curve.steps, 2 * losses), curve
    curves = {"given": given, "treated": treated}
    told = Verification(Plan(setup(), (), setup()), curves, "loss", 4).verdict
    assert "(median of the last 16 steps)" in told


def test_samples_held_out_are_judged_before_the_others_are_learned_by_heart() -> None:
    steps, losses = np.arange(60), np.abs(np.linspace(-1.0, 1.0, 60)) + 0.1
    curve, flat = Curve(steps, losses), Curve(steps, np.full(60, 0.5))
    assert curve.best < 0.2 < 1.0 < curve.final
    assert Curve(steps, losses, diverged_at=70).best == math.inf
    plan = Plan(setup(), (), setup())
    seen, unseen = (
        Verification(plan, {"given": flat, "treated": curve}, "loss", 4, unseen=held_out)
        for held_out in (False, True)
    )
    assert seen.improvement < 1 < unseen.improvement
    assert "at its best in 59 steps" in unseen.verdict
