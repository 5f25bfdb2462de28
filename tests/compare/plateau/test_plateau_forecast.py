"""Predicted steps: exactly solvable flows, the scaling law, stability, and clocks of descent."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from plateau_networks import chain, product_of_scalars, task_of
from torch import nn

from foretrain.compare.plateau import ScalingLaw, plateau
from foretrain.compare.plateau.descent import descent_of, first_below, step_text
from foretrain.compare.plateau.forecast import stability
from foretrain.compare.task import prepare


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_equal_scalar_layers_escape_when_the_integral_says(depth: int) -> None:
    """ẇ = 2 (1 - w^L) w^(L-1) for the squared error, integrated by an independent quadrature."""
    from scipy.integrate import quad

    model, x, y = product_of_scalars(depth, 0.1)
    found = plateau(model, x, y, lr=0.01)
    end = (1 - math.sqrt(0.5)) ** (1 / depth)  # the loss (1 - w^L)² is one half
    exact = quad(lambda w: 1 / (2 * (1 - w**depth) * w ** (depth - 1)), 0.1, end)[0] / 0.01
    assert found.forecast.level == 1.0
    assert found.forecast.escape == pytest.approx(exact, rel=2e-3)
    assert found.forecast.has_plateau
    assert found.bottleneck.count == depth
    assert found.bottleneck.epsilon == pytest.approx(0.1)


def test_the_law_and_the_flow_agree_on_what_halving_does() -> None:
    model, x, y = product_of_scalars(4, 0.05)
    law = plateau(model, x, y, lr=0.01).law
    assert law is not None
    assert law.applies
    assert (law.exponent, law.halving, law.formula) == (2, 4.0, "~ ε^-2")
    assert law.halving_here == pytest.approx(4, rel=0.01)
    assert law.exponent_here == pytest.approx(2, abs=0.02)


def test_the_law_of_two_and_one_small_layers() -> None:
    assert ScalingLaw(2, 0.1, math.nan, True).halving == pytest.approx(math.log(20) / math.log(10))
    assert ScalingLaw(1, 0.1, math.nan, True).halving == 1
    assert ScalingLaw(1, 0.1, math.nan, True).formula == "bounded"


def test_crossings_lie_on_straight_lines() -> None:
    steps, losses = np.array([0.0, 2.0, 4.0]), np.array([3.0, 2.0, 0.0])
    assert first_below(steps, losses, 1.0) == 3.0
    assert first_below(steps, losses, 3.5) == 0.0
    assert first_below(steps, losses, -1.0) == math.inf


def test_rate_times_curvature_is_exact_for_linear_regression() -> None:
    x = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(5, 1, bias=False).double()
    task = prepare(model, x, x[:, 0], None)
    exact = 0.3 * 2 * float(torch.linalg.eigvalsh(x.T @ x / 40)[-1])
    assert stability(model, task, descent_of(model, 0.3, None)) == pytest.approx(exact, rel=1e-2)


def test_at_a_saddle_the_positive_curvature_is_found() -> None:
    """f = u v at u = v = 0 with target 1: the Hessian of (uv - 1)² is [[0, -2], [-2, 0]]."""
    model, x, y = product_of_scalars(2, 0.0)
    found = stability(model, prepare(model, x, y, None), descent_of(model, 1.0, None))
    assert found == pytest.approx(2, rel=1e-2)


@pytest.mark.slow
def test_rates_of_groups_and_momentum_set_the_clock() -> None:
    model = chain(nn.Tanh, [6, 16, 16, 1], [0.15, 0.15, 0.15])
    x, y = task_of(6)
    slow = plateau(model, x, y, lr=0.01).forecast.escape
    momentum = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.75)
    assert plateau(model, x, y, optimizer=momentum).forecast.escape == pytest.approx(slow / 4, rel=1e-3)
    groups = torch.optim.SGD([{"params": [p], "lr": 0.02} for p in model.parameters()], lr=1.0)
    assert plateau(model, x, y, optimizer=groups).forecast.escape == pytest.approx(slow / 2, rel=1e-3)


@pytest.mark.slow
def test_momentum_is_predicted_on_long_plateaus_and_doubted_on_short_ones() -> None:
    model = chain(nn.Tanh, [6, 16, 16, 16, 1], [0.2] * 4)
    x, y = task_of(6)
    slow = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    found = plateau(model, x, y, optimizer=slow)
    assert "Momentum" not in repr(found)
    assert abs(found.verify().networks["given"].error) < 0.05
    fast = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    assert "Momentum 0.9 remembers about 10 steps" in repr(plateau(model, x, y, optimizer=fast))


def test_few_steps_are_told_with_digits() -> None:
    assert [step_text(step) for step in (0.0123, 0.29, 9.4, 1234.5)] == ["0.012", "0.29", "9.4", "1,234"]
