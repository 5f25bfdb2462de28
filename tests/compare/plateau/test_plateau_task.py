"""Data and loss as models take them: labels, shapes, and nothing that is broadcast."""

from __future__ import annotations

import pytest
import torch
from plateau_networks import chain, task_of
from torch import nn

from foretrain.compare.plateau import plateau
from foretrain.compare.task import prepare
from foretrain.support.errors import InputError


def test_whole_numbers_for_one_output_are_numbers_not_labels() -> None:
    model = chain(nn.Tanh, [6, 4, 1], [1.0, 1.0])
    task = prepare(model, task_of(6)[0], torch.arange(256), None)
    assert task.loss_name == "mean squared error"
    assert task.y.shape == (256, 1)


class Squeezed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).squeeze(-1)


def test_targets_are_never_broadcast() -> None:
    model, (x, y) = chain(nn.Tanh, [3, 8, 8, 1], [0.3, 0.3, 0.3]), task_of(3, samples=64)
    expected = plateau(model, x, y, lr=0.1).forecast.escape
    assert plateau(model, x, y[:, 0], lr=0.1, loss=nn.MSELoss()).forecast.escape == expected
    assert plateau(Squeezed(*model), x, y, lr=0.1).forecast.escape == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InputError, match="broadcasts against outputs"):
        prepare(model, x, y[:, 0], lambda outputs, targets: ((outputs - targets) ** 2).mean())
    own = prepare(model, x, y[:, 0], lambda outputs, targets: ((outputs[:, 0] - targets) ** 2).mean())
    assert own.value(model) == pytest.approx(prepare(model, x, y, None).value(model))


def test_targets_in_another_order_of_axes_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (2, 3)))
    with pytest.raises(InputError, match=r"shape \(3, 2\) but an output \(2, 3\)"):
        prepare(model, torch.randn(8, 3), torch.randn(8, 3, 2), None)


def test_labels_may_stand_in_a_column_and_be_of_any_whole_type() -> None:
    model, x = nn.Linear(3, 4), torch.randn(8, 3)
    labels = torch.arange(8) % 4
    expected = prepare(model, x, labels, None).value(model)
    for given in (labels[:, None], labels.int()):
        for loss in (None, nn.functional.cross_entropy, nn.CrossEntropyLoss()):
            assert prepare(model, x, given, loss).value(model) == expected
    with pytest.raises(InputError, match="labels run from 1 to 4"):
        prepare(model, x, labels + 1, nn.CrossEntropyLoss())
    with pytest.raises(InputError, match=r"labels have shape \(2,\)"):
        prepare(model, x, torch.ones(8, 2, dtype=torch.long), nn.CrossEntropyLoss())
