"""What a network makes of samples that it was not trained on.

Weights that are too large tell all inputs apart, however near they are: such networks learn the given samples by
heart, often faster than better ones, and know nothing of others. Only samples held out of the training show it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.setup.work import STEP_PASSES, affordable_samples
from foretrain.doctor.trials.stability import edge
from foretrain.doctor.trials.trial import descend
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, torch_generator

FEWEST = 50  # samples: a fifth of fewer tells nothing
_SAMPLES = 320
_STEPS = 120
_WORK = 5e11  # multiplications
_LOOKS = 10  # steps between two looks at the samples held out


@dataclass(frozen=True)
class HeldOut:
    """``trained``: the loss on the samples of the training at its end; ``unseen``: the least on the others."""

    trained: float
    unseen: float
    samples: int  # held out


def divided(total: int, seed: Seed) -> tuple[Tensor, Tensor]:
    """Places of the samples to train on, and of a fifth that is held out."""
    order = torch.randperm(total, generator=torch_generator(seed))
    cut = total - total // 5
    return order[:cut].sort().values, order[cut:].sort().values


def held_out(setup: Setup) -> HeldOut:
    """A short training on four fifths of some samples: by descent at its best rate, or another optimizer as given."""
    case = Case(setup)
    task = case.chosen(max(FEWEST, affordable_samples(setup, _SAMPLES, STEP_PASSES * _STEPS, _WORK)))
    parts = divided(len(task.x), setup.seed)
    ours, theirs = (task.taken(places) for places in parts)
    recipe = setup.recipe
    if recipe.is_descent:
        recipe = recipe.scaled(edge(case).recommended / recipe.rate)
    model = copy.deepcopy(case.model)
    optimizer, least = recipe.build(model), theirs.value(model)
    for step in track(range(_STEPS), "training without samples held out"):
        descend(optimizer, model, ours)
        if step % _LOOKS == _LOOKS - 1:
            least = min(least, theirs.value(model))  # what is no number is never less
    return HeldOut(ours.value(model), least, len(theirs.x))
