"""Curves whose faults are known: what is told of them, and where."""

from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.doctor import Severity
from foretrain.support.errors import InputError

STEPS = np.arange(600.0)
DICE = np.random.default_rng(0).normal(size=600)
HEALTHY = 0.4 + 1.9 * np.exp(-STEPS / 100) + 0.03 * DICE


def complaints(log: ft.doctor.training_log.TrainingLog) -> set[str]:
    return {name for name, finding in log.by_name.items() if finding.severity <= Severity.WARNING}


def test_a_healthy_curve_raises_no_complaint() -> None:
    log = ft.read_log(HEALTHY, np.full(600, 0.1), baseline=np.log(10))
    assert complaints(log) == set()
    assert log.healthy
    assert log.headline.startswith("Nothing is wrong")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_divergence_is_dated_and_the_gradient_is_heard(value: float) -> None:
    losses, norms = HEALTHY.copy(), np.ones(600)
    losses[300:310] = 0.5 * 2.0 ** np.arange(10)
    losses[310:] = value
    norms[300:] = 50.0
    log = ft.read_log(losses, np.full(600, 0.1), gradient_norms=norms)
    finding = log.by_name["divergence"]
    assert finding.severity is Severity.CRITICAL
    assert finding.numbers["at_step"] == pytest.approx(301, abs=2)
    assert finding.numbers["gradient_growth"] == pytest.approx(50)
    assert not log.answer().holds


def test_growth_by_orders_is_a_divergence_without_nan() -> None:
    log = ft.read_log(HEALTHY * np.where(STEPS < 400, 1, np.exp((STEPS - 400) / 20)))
    assert log.by_name["divergence"].severity is Severity.CRITICAL
    assert 400 <= log.by_name["divergence"].numbers["at_step"] < 440


def test_nan_that_is_overcome_is_a_warning() -> None:
    losses = HEALTHY.copy()
    losses[200] = np.nan
    finding = ft.read_log(losses).by_name["divergence"]
    assert (finding.severity, finding.numbers["at_step"]) == (Severity.WARNING, 200)


def test_a_log_of_nothing_but_nan_is_read() -> None:
    assert ft.read_log([np.nan] * 12).by_name["divergence"].severity is Severity.CRITICAL


def test_a_constant_loss_trains_nothing() -> None:
    assert ft.read_log([0.7] * 50).by_name["constant"].severity is Severity.CRITICAL


def test_no_fall_is_critical_only_where_noise_could_not_hide_one() -> None:
    assert ft.read_log(2.3 + 0.02 * DICE).by_name["plateau"].severity is Severity.CRITICAL
    assert ft.read_log(2.3 + 1.5 * (-1) ** np.arange(60)).by_name["plateau"].severity is Severity.WARNING


def test_a_wait_has_its_borders_and_its_escape() -> None:
    losses = 0.1 + 1 / (1 + np.exp((STEPS - 350) / 15)) + 0.01 * DICE
    finding = ft.read_log(losses).by_name["plateau"]
    assert finding.numbers["from_step"] < 30
    assert 280 < finding.numbers["to_step"] < 360
    warm = ft.read_log(losses, np.minimum(STEPS + 1, 350) / 350).by_name["plateau"]
    assert (finding.severity, warm.severity) == (Severity.WARNING, Severity.NOTE)


def test_a_slow_straight_fall_asks_for_larger_steps() -> None:
    assert complaints(ft.read_log(2.3 - 1e-4 * STEPS + 0.005 * DICE)) == {"slow"}


def test_a_training_loss_that_comes_back_up_is_told() -> None:
    log = ft.read_log(HEALTHY + 0.002 * np.maximum(STEPS - 300, 0))
    assert log.by_name["rise"].numbers["from_step"] == pytest.approx(300, abs=60)


def test_the_end_at_the_baseline_is_critical() -> None:
    losses = np.log(10) + 0.5 * np.exp(-STEPS / 30) + 0.01 * DICE
    assert ft.read_log(losses, baseline=np.log(10)).by_name["baseline"].severity is Severity.CRITICAL
    assert "baseline" not in ft.read_log(HEALTHY, baseline=np.log(10)).by_name


def test_starts_far_above_the_baseline_and_losses_below_zero_are_told() -> None:
    log = ft.read_log(HEALTHY + 20 * np.exp(-STEPS / 5), baseline=np.log(10))
    assert log.by_name["start"].severity is Severity.WARNING
    assert ft.read_log(HEALTHY - 1.0).by_name["start"].numbers["lowest"] < 0


def test_spikes_with_the_period_of_an_epoch() -> None:
    losses = HEALTHY.copy()
    losses[49::50] *= 3
    finding = ft.read_log(losses).by_name["spikes"]
    assert finding.numbers["count"] == pytest.approx(12, abs=1)
    assert finding.numbers["period"] == pytest.approx(50)
    assert finding.numbers["lasting"] == 0


def test_a_spike_that_does_not_come_back() -> None:
    finding = ft.read_log(HEALTHY + 0.6 * (STEPS >= 400)).by_name["spikes"]
    assert (finding.numbers["at_step"], finding.numbers["lasting"]) == (pytest.approx(400, abs=12), 1)


def test_spikes_after_restarts_of_the_rate() -> None:
    rates = 0.1 * (1 + np.cos(np.pi * (STEPS % 150) / 150)) / 2 + 1e-4
    losses = HEALTHY * np.where((STEPS % 150 < 4) & (STEPS > 10), 3.0, 1.0)
    assert "follow a rise of the rate" in ft.read_log(losses, rates).by_name["spikes"].evidence


def test_a_rate_that_vanishes_too_soon_ends_learning() -> None:
    rates = np.where(STEPS < 150, 0.1, 1e-4)
    losses = 2.3 - 0.006 * np.minimum(STEPS, 150) + 0.02 * DICE
    finding = ft.read_log(losses, rates).by_name["schedule"]
    assert (finding.severity, finding.numbers["at_step"]) == (Severity.WARNING, 150)
    cosine = 0.05 * (1 + np.cos(np.pi * STEPS / 600))
    assert "schedule" not in ft.read_log(HEALTHY, cosine).by_name


def test_a_fall_that_waited_for_a_smaller_rate() -> None:
    losses = np.where(STEPS < 300, 0.5, 0.2 + 0.3 * np.exp(-(STEPS - 300) / 20))
    losses += 1.5 * np.exp(-STEPS / 20) + 0.02 * DICE
    finding = ft.read_log(losses, np.where(STEPS < 300, 0.1, 0.01)).by_name["schedule"]
    assert (finding.severity, finding.numbers["at_step"]) == (Severity.NOTE, 300)


@pytest.mark.parametrize("known", [True, False])
def test_drops_at_the_borders_of_epochs(known: bool) -> None:
    epochs = STEPS // 60
    losses = 2.3 - 0.15 * epochs + 0.02 * DICE
    finding = ft.read_log(losses, epochs=epochs if known else None).by_name["epochs"]
    assert finding.numbers["period"] == 60
    assert finding.numbers["drop"] == pytest.approx(-0.15, abs=0.02)
    assert "epochs" not in ft.read_log(HEALTHY, epochs=epochs).by_name


def test_overfitting_has_its_best_step() -> None:
    at = np.arange(0.0, 600, 20)
    dice = 0.01 * DICE[:30]
    rising = 0.6 + 1.5 * np.exp(-at / 50) + 0.001 * np.maximum(at - 200, 0) + dice
    log = ft.read_log(HEALTHY - 0.0005 * STEPS, validation=(at, rising))
    assert log.by_name["overfitting"].numbers["at_step"] == pytest.approx(200, abs=60)
    flat = 0.6 + 1.5 * np.exp(-at / 50) + dice
    assert "overfitting" not in ft.read_log(HEALTHY, validation=(at, flat)).by_name
    sparse = np.full(600, np.nan)
    sparse[::20] = rising
    same = ft.read_log(HEALTHY - 0.0005 * STEPS, validation=sparse).by_name["overfitting"]
    assert dict(same.numbers) == dict(log.by_name["overfitting"].numbers)


def test_noise_says_over_how_many_records_averaging_helps() -> None:
    loud = 0.5 * np.exp(1.0 * DICE) + np.exp(-STEPS / 60)
    assert "independent" in ft.read_log(loud).by_name["noise"].evidence


def test_few_losses_are_read_with_wide_errors() -> None:
    assert complaints(ft.read_log(2.0 * 0.8 ** np.arange(8))) == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"losses": [1.0, 0.5]}, "the log has 2 losses: give at least 8"),
        ({"losses": HEALTHY, "rates": [0.1]}, "rates has 1 values: give 600"),
        ({"losses": HEALTHY, "steps": STEPS[::-1]}, "steps do not increase"),
        ({"losses": HEALTHY[:, None]}, "losses is no row of numbers"),
        ({"losses": {"loss": HEALTHY}, "rates": HEALTHY}, "rates is a column of a log given as a whole"),
        ({"losses": HEALTHY, "baseline": np.nan}, "baseline contains values that are not finite"),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ft.read_log(**arguments)  # type: ignore[arg-type]
