"""What is held beside a result prints as a line, not as a wall of numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import foretrain as ft
from foretrain.compare.ensembles import Ensemble
from foretrain.compare.trained import Training
from foretrain.compare.trained.goal import Lesson, goal_of

X = np.random.default_rng(0).standard_normal((40, 3))


def test_ensembles() -> None:
    mlp = ft.MLP("tanh", depth=3, width=20, n_in=3)
    assert "draws_per_batch=4, batches=3, method='weights'" in repr(Ensemble(mlp, X, 4, 3, "weights", 0))


def test_comparisons() -> None:
    found = ft.compare(ft.MLP("tanh", depth=2, width=16), X[:1], ["K"], draws=500, scales=(1, 2, 4))
    assert found.ladder.description.endswith("of width 64 (every weight drawn)")
    assert repr(found.batches[0]) == "BatchValues()"


def test_goals_and_trainings() -> None:
    goal = goal_of(ft.MLP("tanh", depth=2, width=16), X[:30], X[:30, 0], X[30:], Lesson(time=3))
    assert len(repr(goal.training)) < 250
    assert len(repr(goal)) < 900
    assert "eta=0.5" in repr(Training(X, eta=0.5))


def test_plateaus() -> None:
    model = nn.Sequential(nn.Linear(3, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.full_like(parameter, 0.005))
    x = torch.from_numpy(X).float()
    found = ft.plateau(model, x, torch.tanh(x[:, :1]), lr=0.1)
    assert repr(found.forecast).startswith("The loss goes from ")
    assert "(reached): waits near 0.485" in repr(found.forecast)
    assert repr(found.task) == "Task(loss_name='mean squared error')"
    run = found.verify(runs=1).networks["given"]
    assert run.statement.startswith("escaped at step ")
