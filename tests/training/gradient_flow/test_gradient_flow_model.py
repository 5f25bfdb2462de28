"""Gradient flow of any model on its own data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import nn

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.training.gradient_flow import (
    Integration,
    Problem,
    escape,
    gaussian_sample,
    gradient_flow,
    scaled_he,
    snapshots,
    trajectory,
)
from foretrain.training.gradient_flow.methods import Chebyshev, Evaluation, spectral_radius

FINE: dict[str, Any] = {"rtol": 1e-9, "method": "dormand_prince"}


def half_mean_square(outputs, y):
    return 0.5 * (outputs - y).square().mean()


def test_linear_regression_relaxes_exponentially() -> None:
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    x = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)  # modes with rates 2 and 1/2
    found = gradient_flow(model, x, torch.zeros(2, 1).double(), half_mean_square, max_time=3.0, **FINE)
    expected = [math.exp(-6.0), math.exp(-1.5)]
    np.testing.assert_allclose(found.model.weight.detach()[0], expected, rtol=1e-6)
    assert found.status == "time limit"
    assert found.time == pytest.approx(3.0)
    assert float(model.weight.detach().sum()) == 2  # the model itself is not changed
    times = found.data["time"].values
    loss = 0.25 * (4 * np.exp(-4 * times) + np.exp(-times))
    np.testing.assert_allclose(found.data["loss"], loss, rtol=1e-6)


def test_events_are_found_inside_a_step() -> None:
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    x, y = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
    by_loss = gradient_flow(model, x, y, half_mean_square, stop=0.02, **FINE)
    assert by_loss.status == "reached"
    assert by_loss.time == pytest.approx(0.5 * math.log(25), rel=1e-6)
    assert float(by_loss.data["loss"][-1]) == pytest.approx(0.02, rel=1e-8)
    by_weight = gradient_flow(
        model, x, y, half_mean_square, stop=lambda moved, loss: float(moved.weight.detach()) - 0.3, **FINE
    )
    assert by_weight.time == pytest.approx(-math.log(0.3), rel=1e-6)


def test_a_classifier_with_rates_agrees_with_scipy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 3)).double()
    x, y = torch.randn(12, 3).double(), torch.randint(0, 3, (12,))
    rates = {"0.weight": 2.0, "2.bias": 0.0}
    found = gradient_flow(model, x, y, nn.functional.cross_entropy, max_time=5.0, rates=rates, **FINE)
    parameters = dict(model.named_parameters())
    factors = torch.cat([torch.full((p.numel(),), rates.get(n, 1.0)).double() for n, p in parameters.items()])

    def velocity(_, vector):
        leaf = torch.tensor(vector, requires_grad=True)
        parts = leaf.split([p.numel() for p in parameters.values()])
        named = {n: part.reshape(p.shape) for (n, p), part in zip(parameters.items(), parts)}
        loss = nn.functional.cross_entropy(torch.func.functional_call(model, named, (x,)), y)
        return -(factors * torch.autograd.grad(loss, leaf)[0]).numpy()

    start = torch.cat([p.detach().ravel() for p in parameters.values()]).numpy()
    end = solve_ivp(velocity, (0, 5), start, method="DOP853", rtol=1e-10, atol=1e-12).y[:, -1]
    moved = torch.cat([p.detach().ravel() for p in found.model.parameters()]).numpy()
    np.testing.assert_allclose(moved, end, rtol=1e-6, atol=1e-8)


def test_it_is_the_matrix_flow_on_a_network_without_biases() -> None:
    problem = Problem("tanh", depth=3, width=5, inputs=2)
    networks, sample = scaled_he(problem, 3, [0.5], 1), gaussian_sample(problem, 64)
    model = nn.Sequential(
        nn.Linear(2, 5, bias=False),
        nn.Tanh(),
        nn.Linear(5, 5, bias=False),
        nn.Tanh(),
        nn.Linear(5, 1, bias=False),
    ).double()
    with torch.no_grad():
        for module, weight in zip(model[::2], networks.weights):
            module.weight.copy_(weight[0])
    found = gradient_flow(
        model,
        sample.points.T,
        sample.targets.T,
        half_mean_square,
        max_time=10.0,
        observe={"first": lambda moved: moved[0].weight, "total": lambda moved: moved[0].weight.sum()},
    )
    seen = snapshots(problem, networks, [10.0], sample=sample)
    loss = trajectory(problem, seen, sample=sample)["loss"].values[0, 0]
    assert float(found.data["loss"][-1]) == pytest.approx(float(loss), rel=1e-3)
    assert found.data["first"].dims == ("step", "first_0", "first_1")
    np.testing.assert_allclose(found.data["first"].sum(["first_0", "first_1"]), found.data["total"])
    assert "reached" not in repr(found)
    assert "gradients" in repr(found)


def test_frozen_parameters_stay_and_buffers_are_used() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    model[0].weight.requires_grad_(False)
    x = torch.randn(5, 2).double()
    found = gradient_flow(model, x, x[:, :1], half_mean_square, max_time=0.5)
    torch.testing.assert_close(found.model[0].weight, model[0].weight)
    assert list(found.data["parameter"].values) == ["0.bias", "2.weight", "2.bias"]


def test_a_flow_without_velocity_is_at_rest() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    x = torch.ones(1, 1).double()
    assert gradient_flow(model, x, 0 * x, half_mean_square, max_time=1.0).status == "at rest"


def test_bad_requests_are_named() -> None:
    model, x = nn.Linear(1, 1), torch.ones(1, 1)
    with pytest.raises(InputError, match="never end"):
        gradient_flow(model, x, x, half_mean_square)
    with pytest.raises(InputError, match="not trained parameters"):
        gradient_flow(model, x, x, half_mean_square, max_time=1, rates={"wieght": 1.0})
    with pytest.raises(InputError, match="one number"):
        gradient_flow(model, x.repeat(2, 1), x, lambda outputs, y: outputs - y, max_time=1)
    with pytest.raises(NotSupportedError, match="nothing to flow"):
        gradient_flow(model.requires_grad_(False), x, x, half_mean_square, max_time=1)


def stiff_field(state):
    """Two independent relaxations with rates 1000 and 1."""
    rates = -torch.tensor([[1000.0, 1.0]]).double() * state[0]
    return Evaluation((rates,), np.zeros(1), np.ones(1))


def test_the_spectral_radius_is_found_with_its_safety_margin() -> None:
    state = (torch.ones(1, 2).double(),)
    radius, _, cost = spectral_radius(stiff_field, state, stiff_field(state), (torch.ones(1, 2).double(),))
    assert radius[0] == pytest.approx(1200, rel=1e-3)
    assert cost <= 5


@pytest.mark.parametrize("stages", [2, 5, 30])
def test_chebyshev_steps_have_a_local_error_of_third_order(stages) -> None:
    def field(state):
        return Evaluation((-state[0] + state[0] ** 2 / 4,), np.zeros(1), np.ones(1))

    start = (torch.ones(1, 1).double(),)
    errors, estimates = [], []
    for length in (0.1, 0.05):
        exact = 4 / (1 + 3 * math.exp(length))  # of x' = -x + x²/4 from 1
        radius = np.array([((stages - 1) ** 2 - 1.5) / 1.54 / length])
        trial = Chebyshev().step(field, start, field(start), np.array([length]), radius)
        assert trial.evaluations == stages
        errors.append(abs(float(trial.state[0]) - exact))
        estimates.append(abs(float(trial.error[0])))
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.15)
    assert estimates[0] / estimates[1] == pytest.approx(8, rel=0.15)


@pytest.mark.slow
def test_chebyshev_goes_far_where_others_are_held_by_stability() -> None:
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    x = torch.diag(torch.tensor([400.0, 0.08]).double().sqrt())  # modes with rates 200 and 1/25
    y = torch.zeros(2, 1).double()
    found = {
        method: gradient_flow(model, x, y, half_mean_square, max_time=10.0, method=method)
        for method in ("chebyshev", "bogacki_shampine")
    }
    for flow in found.values():
        assert float(flow.model.weight.detach()[0, 1]) == pytest.approx(math.exp(-0.4), rel=1e-3)
        assert abs(float(flow.model.weight.detach()[0, 0])) < 1e-3
    assert 4 * found["chebyshev"].evaluations < found["bogacki_shampine"].evaluations


def test_chebyshev_finds_the_same_escapes() -> None:
    problem = Problem("tanh", depth=3, width=16, inputs=4)
    networks, sample = scaled_he(problem, 3, [0.1], 3), gaussian_sample(problem, 128)
    found = [
        escape(
            problem, networks, thresholds=[0.1, 0.01], sample=sample, integration=Integration(method=method)
        )
        for method in ("chebyshev", "dormand_prince")
    ]
    np.testing.assert_allclose(found[0]["time"], found[1]["time"], rtol=3e-3)
