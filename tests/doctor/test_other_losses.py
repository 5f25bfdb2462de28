"""Losses that ask for something else than the targets, targets of which few count, and loaders that never shuffle."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from planted_networks import digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

import foretrain as ft
from foretrain.doctor.short_training import _asks_for_targets, alike_neighbours


def network(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, outputs))


def diagnosed(model: nn.Module, *data: Any, rate: float = 1e-2, **options: Any) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    return ft.doctor(model, *data, optimizer=optimizer, **{"batch_size": 32, **options})


def inputs(samples: int = 400) -> Tensor:
    return torch.randn(samples, 6, generator=torch.Generator().manual_seed(0))


def quantile(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.maximum(0.9 * (targets - outputs), -0.1 * (targets - outputs)).mean()


def negative(outputs: Tensor, targets: Tensor) -> Tensor:
    return -mse_loss(outputs, targets)


def counts() -> Tensor:
    torch.manual_seed(1)
    return torch.poisson(torch.exp(inputs()[:, :1] + 0.5))


def test_which_losses_ask_for_the_targets() -> None:
    numbers, outputs = inputs()[:64, :1], torch.zeros(64, 1)
    for loss in (mse_loss, nn.L1Loss(), nn.HuberLoss(), lambda o, t: (o - t).cosh().log().mean(), negative):
        assert _asks_for_targets(loss, numbers, outputs)
    assert not _asks_for_targets(quantile, numbers, outputs)
    assert not _asks_for_targets(nn.PoissonNLLLoss(), counts()[:64], outputs)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [quantile, nn.PoissonNLLLoss()])
def test_what_they_ask_for_is_learned_and_called_so(loss: Any) -> None:
    targets = counts() if isinstance(loss, nn.Module) else inputs()[:, :1] + 0.5 * inputs()[:, 1:2]
    found = diagnosed(network(), inputs(), targets, loss=loss)
    assert found.healthy, found


@pytest.mark.slow
def test_a_loss_without_a_constant_to_compare_with_is_judged_by_its_fall() -> None:
    def contrast(model: nn.Module, batch: Any) -> Tensor:
        x = batch[0] if isinstance(batch, list | tuple) else batch
        one, other = (normalize(model(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
        return cross_entropy(one @ other.T / 0.2, torch.arange(len(x)))

    found = diagnosed(network(8), inputs(), step=contrast)
    assert "not known for this loss" in str(found)
    assert found.healthy, found
    assert not diagnosed(network(8), inputs(), step=contrast, rate=1e-9).healthy


@pytest.mark.slow
def test_equal_answers_for_all_samples_are_not_called_learned() -> None:
    def attract(model: nn.Module, batch: Any) -> Tensor:
        x = batch[0] if isinstance(batch, list | tuple) else batch
        return (model(x + 0.1 * torch.randn_like(x)) - model(x)).square().mean()

    found = diagnosed(network(8), inputs(), step=attract)
    assert not found.healthy
    assert "have become alike" in str(found)


@pytest.mark.slow
def test_targets_of_which_few_count_are_named() -> None:
    x = inputs(1000)
    found = diagnosed(network(), x, torch.exp(4 * x[:, :1] + 2.8 * x[:, 1:2]), loss=mse_loss)
    assert not found.healthy
    assert any("targets make up nearly all" in finding.title for finding in found.findings)
    rare = (x[:, :1] > 1.8).float()  # 3 % of the samples, all of them alike
    found = diagnosed(network(), x, rare, loss=mse_loss)
    assert not any("make up nearly all" in finding.title for finding in found.findings)


@pytest.mark.slow
def test_a_loader_that_never_shuffles_sorted_samples_is_named_and_shuffling_mends_it() -> None:
    x, y = digits(1500)
    order = y.argsort()
    dataset = torch.utils.data.TensorDataset(x[order], y[order])
    for shuffle in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=shuffle)
        found = ft.doctor(
            model, loader, loss=cross_entropy, optimizer=torch.optim.SGD(model.parameters(), lr=0.3)
        )
        assert found.healthy is shuffle, found
        assert shuffle or "not shuffled" in found.cause[1].title


def test_a_loss_of_its_own_that_the_budget_cuts_keeps_what_was_seen() -> None:
    class Slow(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.01)
            result: Tensor = super().forward(x)
            return result

    model = Slow(*network())
    found = diagnosed(
        model, inputs(), step=lambda m, batch: m(batch).square().mean(), budget=1.5, checks="outcome"
    )
    assert "cut by the budget" in found.headline
    assert "what a constant would have is not known" in found.headline
    assert not found.examinations["outcome"].cut


def test_neighbours_are_alike_where_samples_come_sorted() -> None:
    labels = torch.randint(5, (400,), generator=torch.Generator().manual_seed(0))
    numbers = inputs()[:, 0]
    for targets in (labels, numbers):
        assert abs(alike_neighbours(targets)) < 0.15  # three standard errors
        assert alike_neighbours(targets.sort().values) > 0.95
    assert alike_neighbours(torch.zeros(10, dtype=torch.long)) == 0
