"""``ft.doctor``: train a torch model for a while beside baselines, say what will hold learning back, and prove it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from foretrain.compare.task import Loss, named_loss
from foretrain.doctor.checks import CHECKS, Check
from foretrain.doctor.diagnosis import Diagnosis
from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.doctor.intake import (
    Output,
    fitted_task,
    gathered,
    private_copy,
    samples_first,
    summed_over_steps,
)
from foretrain.doctor.proof import prove, spare
from foretrain.doctor.setup import Case, Recipe, Setup, descent, recipe_of, suited_threads
from foretrain.doctor.stability import with_chosen_rate
from foretrain.doctor.trials import shortened_trials
from foretrain.support.arguments import whole_number
from foretrain.support.errors import ForetrainError, InputError, unknown_name
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, integer
from foretrain.support.user_warnings import warn_user


@dataclass(frozen=True)
class Training:
    """How the user trains: what ``doctor`` is told besides the model and the data."""

    loss: Loss | str | None = None
    optimizer: torch.optim.Optimizer | float | None = None
    batch_size: int | None = None
    output: Output = None
    fresh: bool | None = None
    seed: Seed = 0

    def recipe(self, model: nn.Module) -> Recipe:
        """The optimizer as a recipe; plain descent at a rate that is chosen later where there is none."""
        optimizer = self.optimizer
        if optimizer is None:
            return descent(model, 1.0, chosen=True)
        if isinstance(optimizer, torch.optim.Optimizer):
            return recipe_of(model, optimizer)
        number = isinstance(optimizer, int | float | np.number) and not isinstance(optimizer, bool)
        if number and 0 < optimizer < math.inf:
            return descent(model, float(optimizer))
        raise InputError(
            f"`optimizer` is {optimizer!r}: give a torch optimizer, or a positive learning rate of plain descent."
        )


def doctor(
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    loss: Loss | str | None = None,
    optimizer: torch.optim.Optimizer | float | None = None,
    batch_size: int | None = None,
    output: Output = None,
    fresh: bool | None = None,
    checks: Iterable[str] | str | None = None,
    seed: Seed = 0,
) -> Diagnosis:
    """Say what will hold back the learning of a fresh or half-trained network, and what to do about it.

    Parameters
    ----------
    model
        Any ``nn.Module``; it is copied and not changed.
    x, y
        Arrays or tensors with one entry for each sample, or as ``x`` alone a DataLoader of (x, y) pairs. Of many
        samples some thousands are looked at.
    loss
        "mse", "cross_entropy", "squared_error" (half the SUM of squares in a step) or any function of outputs and
        targets, best a mean over samples; by default cross-entropy for labels that are whole numbers, else "mse".
    optimizer
        A torch optimizer of the model, or the learning rate of plain descent. Without it the doctor chooses plain
        descent at half the largest stable rate.
    batch_size
        Samples in a step; by default all, or what the DataLoader takes.
    output
        Position or name of the tensor that counts, of a model that returns several; by default the first.
    fresh
        Whether training has not begun, so that weights may be drawn anew. By default it has begun if the optimizer
        has state or a batch normalisation has seen data.
    checks
        Names of those to make, by default all.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> x = torch.randn(64, 8)
    >>> found = doctor(network, x, x[:, :1], checks=["inputs"])
    >>> list(found.examinations)
    ['inputs']
    """
    chosen = chosen_checks(checks)
    training = Training(loss, optimizer, batch_size, output, fresh, seed)
    return diagnose(make_setup(model, x, y, training), chosen)


def diagnose(setup: Setup, checks: Iterable[Check] = CHECKS) -> Diagnosis:
    """The same for a setup that is made already."""
    return Diagnosis(setup, examine(setup, checks))


def examine(setup: Setup, checks: Iterable[Check]) -> Mapping[str, Examination]:
    """The checks, one by one; what does not apply is told as skipped, with its reason."""
    case, found, asked = Case(setup), dict[str, Examination](), list(checks)
    with Progress("examining", total=len(asked)) as bar:
        for check in asked:
            found[check.name] = examined(case, check)
            bar.advance()
    return found


def examined(case: Case, check: Check) -> Examination:
    """One check."""
    try:
        with suited_threads(case.setup):
            return prove(case, spare(case, check.function(case)))
    except (ForetrainError, MemoryError) as error:
        return Examination(skipped=str(error))
    except Exception as error:  # one check that fails on an unusual model must not hide what the others found
        # Told as a note and as a warning: what was not looked at must not pass for healthy.
        first = (str(error).splitlines() or [""])[0]
        reason = f"This check failed on this model ({type(error).__name__}: {first})"
        warn_user(f"{check.name}: {reason}.", RuntimeWarning)
        note = Finding(
            Severity.NOTE,
            f"{reason}, so that this question is open.",
            f"Not answered: {check.question}",
            "",
            "Please report it with the model and this message; the other checks are not concerned.",
        )
        return Examination((note,), failed=True)


def make_setup(model: nn.Module, x: Any, y: Any = None, training: Training = Training()) -> Setup:
    """What is trained and how, checked and copied."""
    private, seed = private_copy(model), integer(training.seed)  # also refuses what is no seed
    if isinstance(training.seed, int | np.integer):
        seed = int(training.seed)
    recipe = training.recipe(model)
    samples = samples_first(private, gathered(x, y, seed))
    task = fitted_task(private, samples, named_loss(training.loss), training.output)
    asked = samples.batch_size or max(samples.total, len(samples.x))
    if training.batch_size is not None:
        asked = whole_number("batch_size", training.batch_size)
    task = summed_over_steps(task, min(asked, max(samples.total, len(task.x))))
    size, fresh = (asked if asked < len(task.x) else None), training.fresh
    if fresh is None:  # unless the optimizer has state or a batch normalisation has seen data
        stepped = isinstance(training.optimizer, torch.optim.Optimizer) and training.optimizer.state
        counts = [value for name, value in model.named_buffers() if name.endswith("num_batches_tracked")]
        fresh = not stepped and not any(int(count) > 0 for count in counts)
    setup = Setup(private, task, recipe, size, seed, fresh, samples.notes)
    setup = replace(setup, notes=(*setup.notes, *shortened_trials(setup)))
    if recipe.chosen:
        return with_chosen_rate(setup)
    try:
        recipe.build(private)
    except (TypeError, ValueError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"the optimizer {recipe.kind.__name__} cannot be made again for a copy of the model ({first}): give "
            "an optimizer of torch.optim, or the learning rate of plain descent."
        ) from error
    return setup


def chosen_checks(names: Iterable[str] | str | None) -> tuple[Check, ...]:
    """By their names (also as one text with commas), in the order of the registry; None means all."""
    if names is None:
        return CHECKS
    asked = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    known = {check.name: check for check in CHECKS}
    for name in asked:
        if name not in known:
            raise unknown_name("check", str(name), known, "checks")
    return tuple(check for check in CHECKS if check.name in asked)
