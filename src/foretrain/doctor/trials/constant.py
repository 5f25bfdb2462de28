"""The loss of outputs that are all alike: a scale for what has been learned."""

from __future__ import annotations

import torch
from torch import nn

from foretrain.doctor.setup import Case
from foretrain.doctor.setup.step_sum import StepSum

_SAMPLES = 256


def constant_loss(case: Case) -> float:
    """Of the mean target for squares, of zero outputs for other losses."""
    task = case.chosen(_SAMPLES)
    with torch.no_grad():
        outputs = case.model(task.x)
    if is_regression(case):
        return float(task.loss(task.y.mean(0, keepdim=True).expand_as(outputs), task.y))
    return float(task.loss(torch.zeros_like(outputs), task.y))


def is_regression(case: Case) -> bool:
    """Whether squares of as many targets as outputs are learned."""
    y = case.task.y
    with torch.no_grad():
        same = y.is_floating_point() and y.shape[1:] == case.model(case.task.x[:1]).shape[1:]
    loss = case.task.loss
    return same and (loss is nn.functional.mse_loss or isinstance(loss, nn.MSELoss | StepSum))
