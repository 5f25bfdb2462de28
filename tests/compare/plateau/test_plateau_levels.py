"""The loss at the saddle, and the loss at which a network has escaped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plateau_networks import chain, task_of
from torch import nn

from foretrain.compare.plateau.forecast import escape_level, plateau_level
from foretrain.compare.task import prepare


def test_the_level_is_that_of_zero_or_of_the_best_constant() -> None:
    x, y = task_of(5, mean=2.0)
    sizes, scales = [5, 8, 8, 1], [0.1, 0.1, 0.1]
    variance, square = float(y.var(unbiased=False)), float(y.square().mean())
    for activation, bias, level in (
        (nn.Tanh, False, square),
        (nn.Tanh, True, variance),
        (nn.Sigmoid, False, variance),  # W_L σ(0) is a constant that can be learned
    ):
        model = chain(activation, sizes, scales, bias=bias)
        assert plateau_level(model, prepare(model, x, y, None)) == pytest.approx(level, rel=1e-5)


def test_the_level_of_labels_is_the_entropy_of_their_shares() -> None:
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    model = chain(nn.Tanh, [4, 6, 3], [0.1, 0.1], bias=True)
    task = prepare(model, torch.randn(10, 4), labels, None)
    shares = np.array([0.5, 0.3, 0.2])
    assert task.loss_name == "cross-entropy"
    assert plateau_level(model, task) == pytest.approx(-np.sum(shares * np.log(shares)), rel=1e-4)


def test_levels_for_the_escape() -> None:
    assert escape_level(2.0, None, 0.5) == 1.0
    assert escape_level(2.0, 0.3, 0.5) == 0.3
