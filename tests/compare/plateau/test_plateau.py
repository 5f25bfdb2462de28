"""The plateau of real networks: verdict, advice and what real descent says of them."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from plateau_networks import Erf, chain, task_of
from torch import nn

from foretrain.compare.plateau import plateau
from foretrain.compare.plateau.layers import read_layers


@pytest.mark.slow
def test_descent_of_a_small_network_escapes_when_predicted_and_the_advice_shortens_it() -> None:
    model = chain(nn.Tanh, [6, 24, 24, 24, 1], [0.25] * 4)
    before = copy.deepcopy(model.state_dict())
    x, y = task_of(6)
    found = plateau(model, x, y, lr=0.02, batch_size=32)
    trained = found.verify(runs=2, seed=3)
    given, rescaled = trained.networks["given"], trained.networks["rescaled"]
    assert given.measured > 200
    assert abs(given.error) < 0.05
    assert abs(rescaled.error) < 0.15
    assert trained.speedup == pytest.approx(found.speedup, rel=0.15)
    assert trained.speedup > 10
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    again = found.verify(runs=2, seed=3).to_dataset()
    np.testing.assert_array_equal(trained.to_dataset().loss, again.loss)
    assert dict(again.sizes)["run"] == 2


def test_the_code_of_the_advice_makes_the_rescaled_network() -> None:
    model = chain(Erf, [6, 24, 24, 1], [0.2] * 3)
    found = plateau(model, *task_of(6), lr=0.02)
    copied = copy.deepcopy(model)
    exec(found.code, {"torch": torch, "model": copied})
    for own, expected in zip(copied.parameters(), found.rescaled_model().parameters()):
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-6)
    layers = read_layers(found.rescaled_model(), torch.randn(2, 6))
    assert [layer.relative for layer in layers] == pytest.approx([1, 1, 1], rel=1e-5)


def test_a_healthy_network_has_no_plateau_and_no_advice() -> None:
    found = plateau(chain(nn.Tanh, [6, 32, 32, 1], [1.0, 1.4, 1.0]), *task_of(6), lr=0.05)
    assert not found.forecast.has_plateau
    assert found.law is None
    assert found.code == ""
    assert math.isnan(found.speedup)
    assert found.verdict.startswith("No plateau")
    assert list(found.verify().networks) == ["given"]
    assert "rescaled_loss" not in found.to_dataset()


def test_a_network_that_has_learned_already_is_told_so() -> None:
    x, _ = task_of(6)
    model = nn.Linear(6, 1, bias=False)
    with torch.no_grad():
        found = plateau(model, x, model(x), lr=0.1)
    assert found.forecast.escape == 0
    assert "from the start" in found.verdict
    assert not found.forecast.has_plateau


def test_a_flow_that_stays_is_told_with_numbers() -> None:
    model = chain(nn.Tanh, [6, 16, 16, 16, 1], [0.01] * 4)
    found = plateau(model, *task_of(6), lr=0.01, max_steps=2000)
    assert found.forecast.escape == math.inf
    assert found.forecast.has_plateau
    assert "2,000 steps" in found.verdict
    trained = found.verify(max_steps=60)
    assert "not escaped within 60 steps" in repr(trained)


def test_a_threshold_below_what_can_be_learned_is_not_called_a_plateau() -> None:
    x, _ = task_of(6)
    noise = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(5))
    found = plateau(nn.Linear(6, 1, bias=False), x, 0.3 * x[:, :1] + noise, lr=0.05, max_steps=4000)
    assert not found.forecast.has_plateau
    assert "without reaching" in found.verdict


def test_a_rate_that_is_too_large_is_said_and_seen() -> None:
    model = chain(nn.Tanh, [6, 24, 24, 24, 1], [0.25] * 4)
    found = plateau(model, *task_of(6), lr=3.0, batch_size=64)
    assert "too large" in repr(found)
    assert not found.rescaled_forecast.stable  # type: ignore[union-attr]


def test_the_text_names_layers_law_and_code() -> None:
    told = repr(plateau(chain(nn.Tanh, [6, 16, 16, 1], [0.1] * 3), *task_of(6), lr=0.05))
    for part in (
        "A plateau",
        "3 of 3 weight matrices",
        "2.weight",
        "at the bottleneck",
        "~ ε^-1",
        'model.get_parameter("0.weight").mul_(',
    ):
        assert part in told


@pytest.mark.slow
def test_readings_of_the_theory_are_in_the_data_where_they_are_defined() -> None:
    data = plateau(chain(nn.Tanh, [6, 16, 16, 1], [0.3] * 3), *task_of(6), lr=0.05).to_dataset()
    assert data.X_norm.values[0] == pytest.approx(data.norm.values[0] / 4)
    assert np.isfinite(data.X_signal).all()
    several = plateau(chain(nn.Tanh, [6, 16, 12, 1], [0.3] * 3), *task_of(6), lr=0.05).to_dataset()
    assert "X_norm" not in several


@pytest.mark.slow
def test_convolutions_flow_too() -> None:
    model = nn.Sequential(nn.Conv1d(1, 6, 3), nn.Tanh(), nn.Conv1d(6, 6, 3), nn.Flatten(), nn.Linear(24, 1))
    with torch.no_grad():
        model[0].weight.mul_(0.2)
        model[2].weight.mul_(0.2)
    x, y = task_of(8)
    found = plateau(model, x[:, None], y, lr=0.05)
    assert [layer.name for layer in found.bottleneck.layers] == ["0.weight", "2.weight"]
    assert math.isfinite(found.forecast.escape)


@pytest.mark.slow
def test_normalised_networks_get_no_rescaling() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
    with torch.no_grad():
        for place in (3, 4):
            model[place].weight.mul_(1e-3)
    found = plateau(model, *task_of(6), lr=0.05)
    assert found.forecast.has_plateau
    assert found.factors == {}
    assert "normalisation" in found.verdict
