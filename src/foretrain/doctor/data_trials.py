"""Short real trainings by which the scales of inputs and targets are judged, each at the rate that suits it."""

from __future__ import annotations

import torch
from torch import nn

from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.stability import edge
from foretrain.doctor.trial import Trial, trial

SOURCE = (
    "LeCun et al. (1998), section 4.3: the condition of the inputs' second moments sets the speed of descent"
)
STEPS = 200  # of the trainings that judge what is suspect
UNEVEN = 5.0  # ratio of deviations, or offset against variation, that is named as the cause
FASTER = 10.0  # times fewer steps for the same loss: "much slower than it could be"
LEARNED = 0.1  # of the loss of the best constant: a training that ends below has nothing to complain of
_SAMPLES = 1024  # for them: so few that they are learned by heart would hide an uneven scale


def at_its_best(setup: Setup) -> Trial:
    """A training at the rate that suits the data; other optimizers adapt by themselves."""
    if not setup.recipe.is_descent:
        return trial(setup, STEPS, _SAMPLES)
    factor = edge(Case(setup)).recommended / setup.recipe.rate
    return trial(setup.with_recipe(setup.recipe.scaled(factor)), STEPS, _SAMPLES)


def speed_up(given: Trial, better: Trial) -> float:
    """How many times fewer steps the better one needs for the same loss."""
    if not better.end < given.end:
        return 1.0
    return STEPS / max(1, better.steps_to(given.end))


def constant_loss(case: Case) -> float:
    """The loss of outputs that are all alike, as far as descent on them finds it; a scale for what is learned."""
    task = case.chosen(256)
    with torch.no_grad():
        outputs = case.model(task.x)
    if is_regression(case):
        return float(task.loss(task.y.mean(0, keepdim=True).expand_as(outputs), task.y))
    return float(task.loss(torch.zeros_like(outputs), task.y))


def is_regression(case: Case) -> bool:
    """Whether mean squares of as many targets as outputs are learned."""
    y = case.task.y
    with torch.no_grad():
        same = y.is_floating_point() and y.shape[1:] == case.model(case.task.x[:1]).shape[1:]
    squares = case.task.loss_name == "mean squared error" or isinstance(case.task.loss, nn.MSELoss)
    return same and squares
