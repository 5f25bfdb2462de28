"""Error bars hold for noise with a memory, and forecasts for laws that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from foretrain.doctor.training_log.trend import change, falls, forecast, memory, trend


def noise(count: int, alike: float, seed: int) -> np.ndarray:
    """Autoregressive noise of unit variance."""
    white = np.random.default_rng(seed).normal(size=count + 200) * np.sqrt(1 - alike**2)
    return np.asarray(lfilter([1.0], [1.0, -alike], white))[200:]


@pytest.mark.parametrize(("alike", "most"), [(0.0, 0), (0.5, 2), (0.9, 6)])
def test_noise_alone_falls_as_seldom_as_it_should(alike: float, most: int) -> None:
    steps = np.arange(400.0)
    false = sum(
        change(steps, noise(400, alike, seed)).falls or change(steps, noise(400, alike, seed)).rises
        for seed in range(300)
    )
    assert false <= most


def test_a_fall_has_its_size_and_its_error() -> None:
    steps = np.arange(400.0)
    z = [
        (one.value + 1.0) / one.error
        for one in (change(steps, noise(400, 0.5, seed) - steps / 399) for seed in range(200))
    ]
    # Student's t with some ten degrees of freedom, a little wider because blocks are not quite independent.
    assert abs(np.mean(z)) < 0.25
    assert 0.85 < np.std(z) < 1.5


@pytest.mark.parametrize("count", [8, 30, 500])
@pytest.mark.parametrize("folds", [1, 3, 8, 30])
def test_smooth_falls_are_significant_however_curved(count: int, folds: float) -> None:
    assert falls(np.arange(float(count)), np.exp(-folds * np.linspace(0, 1, count)))


def test_memory_is_that_of_an_autoregression() -> None:
    for alike in (0.0, 0.6, 0.9):
        expected = (1 + alike) / (1 - alike)
        assert memory(noise(20_000, alike, 0)) == pytest.approx(expected, rel=0.25)


def test_the_trend_follows_a_line_to_its_ends_and_leaves_spikes_out() -> None:
    values = 5.0 - np.arange(300) / 100
    spiky = values.copy()
    spiky[150] = 50.0
    np.testing.assert_allclose(trend(values).level, values, atol=1e-12)
    np.testing.assert_allclose(trend(spiky).level, values, atol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_forecasts_hold_within_their_errors(seed: int) -> None:
    steps = np.arange(800.0)
    dice = 0.01 * noise(800, 0.3, seed)
    for law in (lambda t: 0.3 + 2 * (t + 1) ** -0.5, lambda t: 0.2 + 1.5 * np.exp(-t / 400)):
        ahead = forecast(steps, law(steps) + dice)
        assert ahead is not None
        assert abs(ahead.loss - law(np.array([1600.0]))[0]) < 3 * ahead.error + 0.005


def test_a_staircase_has_no_forecast() -> None:
    steps = np.arange(400.0)
    assert forecast(steps, 2.0 - (steps > 300) - 0.5 * (steps > 380)) is None
