"""Data and loss as models take them: labels, shapes, and nothing that is broadcast."""

from __future__ import annotations

import pytest
import torch
from plateau_networks import chain, task_of
from torch import nn

from foretrain.compare.plateau import plateau
from foretrain.compare.task import named_loss, prepare, sample_tensor
from foretrain.support.errors import InputError


def test_whole_numbers_for_one_output_are_numbers_not_labels() -> None:
    model = chain(nn.Tanh, [6, 4, 1], [1.0, 1.0])
    task = prepare(model, task_of(6)[0], torch.arange(256), None)
    assert task.loss_name == "mean squared error"
    assert task.y.shape == (256, 1)


def test_losses_have_names() -> None:
    model, (x, y) = nn.Linear(6, 2), task_of(6)
    targets = torch.cat([y, -y], 1)
    half = prepare(model, x, targets, "squared_error")
    assert half.value(model) == pytest.approx(float((model(x) - targets).square().sum().detach() / 2))
    assert half.loss_name == "half the sum of squared errors"
    assert prepare(model, x, targets, "MSE").value(model) == pytest.approx(half.value(model) / 256)
    labels = torch.arange(256) % 2
    assert prepare(model, x, labels, "Cross-Entropy").loss is nn.functional.cross_entropy
    assert named_loss(nn.functional.l1_loss) is nn.functional.l1_loss


@pytest.mark.slow
def test_a_plateau_takes_the_name_of_a_loss() -> None:
    model, (x, y) = chain(nn.Tanh, [3, 8, 8, 1], [0.3, 0.3, 0.3]), task_of(3, samples=64)
    expected = plateau(model, x, y, lr=0.1).forecast.escape
    assert plateau(model, x, y, lr=0.1, loss="mse").forecast.escape == expected
    summed = plateau(model, x, y, lr=0.1 / 32, loss="squared_error")  # a gradient 64 / 2 times as large
    assert summed.forecast.escape == pytest.approx(expected, rel=1e-3)


def test_samples_may_stand_in_any_sequence_of_numbers() -> None:
    torch.testing.assert_close(
        sample_tensor(((1.0, 2.0), (3.0, 4.0)), "x"), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    )
    assert not sample_tensor(torch.ones(2, requires_grad=True), "x").requires_grad


class Squeezed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).squeeze(-1)


@pytest.mark.slow
def test_targets_are_never_broadcast() -> None:
    model, (x, y) = chain(nn.Tanh, [3, 8, 8, 1], [0.3, 0.3, 0.3]), task_of(3, samples=64)
    expected = plateau(model, x, y, lr=0.1).forecast.escape
    assert plateau(model, x, y[:, 0], lr=0.1, loss="mse").forecast.escape == expected
    assert plateau(Squeezed(*model), x, y, lr=0.1).forecast.escape == pytest.approx(expected, rel=1e-5)
    for loss in (nn.MSELoss(), lambda outputs, targets: ((outputs - targets) ** 2).mean()):
        with pytest.raises(InputError, match="broadcasts against outputs"):
            plateau(model, x, y[:, 0], lr=0.1, loss=loss)
    own = prepare(model, x, y[:, 0], lambda outputs, targets: ((outputs[:, 0] - targets) ** 2).mean())
    assert own.value(model) == pytest.approx(prepare(model, x, y, None).value(model))


def test_targets_in_another_order_of_axes_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (2, 3)))
    with pytest.raises(InputError, match=r"\(3, 2\).*\(2, 3\)"):
        prepare(model, torch.randn(8, 3), torch.randn(8, 3, 2), None)


def test_labels_may_stand_in_a_column_and_be_of_any_whole_type() -> None:
    model, x = nn.Linear(3, 4), torch.randn(8, 3)
    labels = torch.arange(8) % 4
    expected = prepare(model, x, labels, None).value(model)
    for given in (labels[:, None], labels.int()):
        for loss in (None, nn.functional.cross_entropy, nn.CrossEntropyLoss()):
            assert prepare(model, x, given, loss).value(model) == expected
    with pytest.raises(InputError, match="labels"):
        prepare(model, x, labels + 1, nn.CrossEntropyLoss())
    with pytest.raises(InputError, match=r"labels have shape \(2,\)"):
        prepare(model, x, torch.ones(8, 2, dtype=torch.long), nn.CrossEntropyLoss())
