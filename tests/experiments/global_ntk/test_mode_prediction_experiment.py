"""The forward test of mode predictions: stacked training is plain SGD, scores are counted right, parts go on."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray

from foretrain.empirical.mode_prediction import PREDICTORS, predict_modes
from foretrain.empirical.target_modes import target_modes
from foretrain.experiments.global_ntk import mode_prediction as experiment
from foretrain.experiments.global_ntk.stacked_training import Training, mode_rates, outputs, stacked
from foretrain.experiments.parts import Parts
from foretrain.support.seeds import spawn
from foretrain.training.tasks.memory_pro import Cell, MemoryPro, Recurrent

TASK = MemoryPro(2, 1, 2)
TINY = experiment.Plan(
    6,
    2,
    2,
    {"gru": experiment._Setting((1.0, 2.0), 0.1, 40), "rnn": experiment._Setting((0.8, 1.2), 0.1, 40)},
)


def networks(cell: Cell) -> list[Recurrent]:
    return [Recurrent(3, 5, 3, cell, gain=1.5, seed=seed) for seed in range(3)]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("cell", ["rnn", "gru"])
def test_stacked_networks_compute_what_single_ones_do(cell: Cell) -> None:
    models, angles = networks(cell), TASK.angles(4)
    x, y = TASK.inputs(angles), TASK.targets(angles)
    vectors = torch.from_numpy(target_modes(y.double().reshape(-1, 3).numpy()).vectors).float()
    together = stacked(models)
    found, rates = outputs(cell, together, x), mode_rates(cell, together, x, vectors)
    for place, model in enumerate(models):
        torch.testing.assert_close(found[place], model(x))
        np.testing.assert_allclose(rates[place], predict_modes(model, x, y, 0.1, 1).rayleigh, rtol=1e-4)


@pytest.mark.parametrize("cell", ["rnn", "gru"])
def test_training_is_plain_sgd_for_each(cell: Cell) -> None:
    models, seed = networks(cell), np.random.SeedSequence(3)
    angles = TASK.angles(4)
    y = TASK.targets(angles)
    target = target_modes(y.double().reshape(-1, 3).numpy())
    course = Training(TASK, 0.1, 5, [0, 2, 6], [0, 6]).run(cell, models, target, seed)
    assert course.left.shape == (3, 3, 3)
    assert course.rates.shape == (3, 3, 2)
    for place, model in enumerate(copy.deepcopy(models)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for own in spawn(seed, 7)[:6]:
            batch = TASK.angles(5, own)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(TASK.inputs(batch)), TASK.targets(batch)).backward()
            optimizer.step()
        misfit = (y - model(TASK.inputs(angles))).detach().double().numpy().ravel()
        np.testing.assert_allclose(course.left[place, :, -1], target.shares(misfit), atol=1e-5)


def made_up(left: list[list[float]], forecast: list[list[float]]) -> xarray.Dataset:
    """Shares (networks, modes) that do not change in time, the same for both cells."""
    looks, networks = experiment._LOOKS + 1, len(left)
    shape = (2, networks, 1, 3, looks)
    actual = np.broadcast_to(np.array(left)[None, :, None, :, None], shape)
    told = np.broadcast_to(np.array(forecast)[None, :, None, None, :, None], (2, networks, 1, 4, 3, looks))
    dims = ("cell", "level", "draw", "mode", "progress")
    return xarray.Dataset(
        {"left": (dims, actual), "forecast": ((*dims[:3], "predictor", *dims[3:]), told)},
        {"predictor": list(PREDICTORS), "mode": [1, 2, 3], "cell": ["gru", "rnn"]},
    )


def test_hits_and_base_rates_are_counted() -> None:
    left = [[0.1, 0.4, 0.9], [0.2, 0.6, -0.1], [0.0, 0.7, 1.2]]
    forecast = [[0.3, 0.6, 0.8], [-0.7, 0.9, 0.2], [0.1, 0.8, 0.9]]
    scores = experiment._scored(made_up(left, forecast))
    flow = scores.sel(predictor="flow")
    assert float(flow.hit.mean()) == pytest.approx(7 / 9)
    assert float(scores.base.mean()) == pytest.approx(
        7 / 9
    )  # mode 1 always, modes 2 and 3 two times of three
    assert float(scores.constant.mean()) == pytest.approx(5 / 9)  # five of nine are learned
    row = experiment._hit_row(scores, "flow")
    assert row.agrees is None
    assert row.here == pytest.approx(7 / 9)
    per_network = np.repeat([2 / 3, 2 / 3, 1], 2)
    assert row.standard_error == pytest.approx(per_network.std(ddof=1) / np.sqrt(6))
    count = 2 * len(experiment._BUDGETS)
    words = (
        f"learned and foreseen {3 * count}, neither {4 * count}, foreseen only 0, learned only {2 * count}"
    )
    assert experiment._confusion_row(scores, "flow").here == words


def test_sure_differences_are_told() -> None:
    left = [[0.1, 0.4, 0.9], [0.1, 0.9, 0.3], [0.1, 0.4, 0.9], [0.1, 0.9, 0.3]]
    right = experiment._scored(made_up(left, left))
    assert experiment._hit_row(right, "rayleigh").agrees is True
    wrong = experiment._scored(made_up(left, (1 - np.array(left)).tolist()))
    assert experiment._hit_row(wrong, "rayleigh").agrees is False


def test_rank_correlation_is_spearmans() -> None:
    from scipy.stats import spearmanr

    drawn = np.random.default_rng(0).normal(size=(2, 3, 20)).round(1)
    expected = np.mean([spearmanr(first, second).statistic for first, second in zip(*drawn)])
    assert experiment._rank_correlation(*drawn) == pytest.approx(expected)
    flat = np.vstack([drawn[0], np.ones(20)]), np.vstack([drawn[1], np.ones(20)])
    assert experiment._rank_correlation(*flat) == pytest.approx(expected)
    assert experiment._rank_correlation(np.array([[0.1, np.inf]]), np.array([[0.1, 0.9]])) == pytest.approx(1)


@pytest.mark.slow
def test_a_tiny_run_goes_on_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = experiment.mode_prediction(TINY, 1, Parts(tmp_path / "parts", {"seed": 1}))
    assert len(list((tmp_path / "parts").glob("*.zarr"))) == 4
    assert result.data.learned.shape == (2, 2, 2, 3, len(experiment._BUDGETS))
    monkeypatch.setattr(experiment, "_one_gain", pytest.fail)  # everything must come from what was kept
    again = experiment.mode_prediction(TINY, 1, Parts(tmp_path / "parts", {"seed": 1}))
    assert again.verdict == result.verdict
    assert "8 networks" in result.verdict
    assert "less than 0.5 of it is left" in result.verdict
    quantities = [row.quantity for row in result.table]
    assert "hit rates, budget of 0.025 of all steps" in quantities
    assert "hit rates, mode 1 (fixation)" in quantities
    assert result.figure is not None
    result.plot()


@pytest.mark.slow
def test_forecasts_are_of_the_networks_that_are_trained() -> None:
    found = experiment._one_gain(TINY, "gru", 2.0, np.random.SeedSequence(5))
    at_start = found.isel(progress=0)
    for name in PREDICTORS:
        np.testing.assert_allclose(at_start.forecast.sel(predictor=name), at_start.left, atol=1e-5)
    slow = experiment.Plan(6, 2, 2, {"gru": experiment._Setting((2.0,), 1e-3, 40)})
    found = experiment._one_gain(slow, "gru", 2.0, np.random.SeedSequence(5))
    change = found.left.isel(progress=-1) - found.left.isel(progress=0)
    told = (found.forecast.isel(progress=-1) - found.forecast.isel(progress=0)).sel(predictor="linearised")
    np.testing.assert_allclose(change, told, atol=0.1 * float(abs(change).max()))


@pytest.mark.statistical
def test_forecasts_beat_the_base_rate() -> None:
    """Sixteen networks and a shorter task; two standard errors over networks make a difference."""
    setting = experiment._Setting((1.0, 1.5, 2.0, 2.5), 0.03, 160)
    result = experiment.mode_prediction(experiment.Plan(48, 6, 4, {"gru": setting}), 3, Parts())
    rows = {row.quantity: row for row in result.table}
    assert rows["hit rate, flow"].agrees
    assert rows["rank correlation of shares left, modes 2 and 3, flow"].agrees
    assert rows["rank correlation of shares left, modes 2 and 3, rayleigh"].agrees
