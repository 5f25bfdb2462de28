"""Trainings that weigh two networks, or two kinds of data, against each other, each at the rate that suits it."""

from __future__ import annotations

import math

from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.setup.threads import suited_threads
from foretrain.doctor.trials.stability import edge
from foretrain.doctor.trials.trial import Trial, trial

FASTER = 10.0  # times fewer steps for the same loss: "much slower than it could be"
LEARNED = 0.1  # of the loss of the best constant: a training that ends below has nothing to complain of
_STEPS = 200
_SAMPLES = 1024  # so few that they are learned by heart would hide an uneven scale


def as_given(setup: Setup) -> Trial:
    """A training at the rate that is used."""
    return trial(setup, _STEPS, _SAMPLES)


def at_its_best(setup: Setup) -> Trial:
    """A training at the recommended rate; other optimizers adapt by themselves."""
    if not setup.recipe.is_descent:
        return as_given(setup)
    factor = edge(Case(setup)).recommended / setup.recipe.rate
    return as_given(setup.with_recipe(setup.recipe.scaled(factor)))


def with_chosen_rate(setup: Setup) -> Setup:
    """With descent at the recommended rate, where the doctor chooses it; ratios of rates stay as they are."""
    if not (setup.recipe.chosen and setup.recipe.is_descent):
        return setup
    with suited_threads(setup):
        rate = edge(Case(setup)).recommended
    # Where no weight moves any output there is no edge, and any rate does as little.
    factor = rate / setup.recipe.rate if 0 < rate < math.inf else 1.0
    return setup.with_recipe(setup.recipe.scaled(factor))


def speed_up(given: Trial, better: Trial) -> float:
    """How many times fewer steps the better one needs for the same loss."""
    if not better.end < given.end:
        return 1.0
    return given.steps / max(1, better.steps_to(given.end))
