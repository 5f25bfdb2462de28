"""``ft.doctor``: look at a torch model and its data, and say what will hold learning back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from foretrain.compare.plateau.levels import Loss, prepare
from foretrain.doctor.checks import CHECKS, Check
from foretrain.doctor.diagnosis import Diagnosis
from foretrain.doctor.finding import Examination
from foretrain.doctor.recipe import Recipe, descent, recipe_of
from foretrain.doctor.setup import Case, Setup
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.progress import track
from foretrain.support.seeds import Seed

_LOSSES: dict[str, Loss] = {
    "mse": nn.functional.mse_loss,
    "cross_entropy": nn.functional.cross_entropy,
}


def doctor(
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    loss: Loss | str | None = None,
    optimizer: torch.optim.Optimizer | float | None = None,
    batch_size: int | None = None,
    checks: Iterable[str] | None = None,
    seed: Seed = 0,
) -> Diagnosis:
    """Say what will hold back the learning of a fresh or half-trained network, and what to do about it.

    ``loss`` is "mse", "cross_entropy" or any function of outputs and targets (by default cross-entropy for labels that
    are whole numbers, else mean squares). ``optimizer`` is a torch optimizer, or the learning rate of plain descent; without it
    the doctor chooses plain descent at half the largest stable rate. ``x`` may be a DataLoader of pairs. The model is
    not changed.

    >>> network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> x = torch.randn(64, 8)
    >>> found = doctor(network, x, x[:, :1], optimizer=0.05)
    >>> found.findings[0].severity.word
    'good'
    """
    setup = make_setup(model, x, y, loss=loss, optimizer=optimizer, batch_size=batch_size, seed=seed)
    return Diagnosis(setup, examine(setup, _chosen(checks)))


def examine(setup: Setup, checks: Iterable[Check]) -> Mapping[str, Examination]:
    """The checks, one by one; what does not apply is told as skipped, with its reason."""
    case, found = Case(setup), {}
    for check in track(list(checks), "examining"):
        try:
            found[check.name] = check.function(case)
        except NotSupportedError as error:
            found[check.name] = Examination(skipped=str(error))
    return found


def make_setup(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    loss: Loss | str | None,
    optimizer: torch.optim.Optimizer | float | None,
    batch_size: int | None,
    seed: Seed,
) -> Setup:
    """Checked and copied: what is trained, and how."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give a torch.nn.Module.")
    recipe = _recipe(model, optimizer)
    private = copy.deepcopy(model)
    task = prepare(private, x, y, _loss(loss))
    if batch_size is not None and not 1 <= batch_size <= len(task.x):
        raise InputError(
            f"batch_size is {batch_size}: give a whole number from 1 to {len(task.x)}, all samples."
        )
    setup = Setup(private, task, recipe, batch_size, seed)
    return with_chosen_rate(setup) if recipe.chosen else setup


def with_chosen_rate(setup: Setup) -> Setup:
    """With plain descent at the rate that the doctor recommends for this network."""
    from foretrain.doctor.stability import edge

    trial = setup.with_recipe(descent(setup.model, 1.0, chosen=True))
    return setup.with_recipe(descent(setup.model, edge(Case(trial)).recommended, chosen=True))


def _recipe(model: nn.Module, optimizer: torch.optim.Optimizer | float | None) -> Recipe:
    if optimizer is None:
        return descent(model, 1.0, chosen=True)
    if isinstance(optimizer, torch.optim.Optimizer):
        return recipe_of(model, optimizer)
    if not isinstance(optimizer, str) and 0 < float(optimizer) < float("inf"):
        return descent(model, float(optimizer))
    raise InputError(
        f"optimizer is {optimizer!r}: give a torch optimizer, or a positive learning rate of plain descent."
    )


def _loss(loss: Loss | str | None) -> Loss | None:
    if isinstance(loss, str):
        if loss not in _LOSSES:
            raise unknown_name("loss", loss, _LOSSES)
        return _LOSSES[loss]
    return loss


def _chosen(names: Iterable[str] | None) -> tuple[Check, ...]:
    if names is None:
        return CHECKS
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            raise unknown_name("check", name, known)
    return tuple(known[name] for name in names)
