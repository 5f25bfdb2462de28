"""Which parts of the target are learned, and how fast?

The modes of what the target has in common for all samples (the mean) and of what tells them apart (the deviations;
for labels: one mode for each class), and what descent leaves of each, if the tangent kernel stays as it is:
half-times in steps at the given rate (for optimizers that do not descend: at the recommended rate of plain descent).
Real networks are often faster, because their kernel grows; so a slow forecast is told as a note. It is a warning only
if a real training by descent at its best rate hardly moves while another optimizer does, or if the training as given
has learned what samples share and has left what tells them apart.

Measurements by ``mode`` (from the largest on): ``singular_value``, ``share`` (of the target), ``half_time`` (steps),
``left`` (mode, step) and ``left_after`` (mode, budget), shares of the mode; ``picture`` (mode, and axes time x
output, or those of the inputs) where the modes can be looked at, with ``picture_of`` in its attributes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.doctor.finding import Examination, Finding, Severity, Treatment, counted
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.output_kernel import (
    ModeForecast,
    OutputKernel,
    forecast_modes,
    output_kernel,
    pictures,
    reference,
)
from foretrain.doctor.setup import Case, Group, Recipe, descent
from foretrain.doctor.stability import edge
from foretrain.doctor.trials import trial

if TYPE_CHECKING:
    import xarray

_SOURCE = "Hazelden et al., corollary 2; linearised descent (1 - rate H Theta)^steps on the target's modes"
BUDGETS = (100, 1_000, 10_000, 100_000)  # steps
_BUDGET = 10_000
_LEARNED = 0.1  # of a mode: less is left, and it needs no time
_SLOW_SHARE = 0.1  # of the target in slow modes: worth knowing
_MOST = 0.5  # of the target in slow modes: the other optimizer is tried
_MENTIONED = 0.01  # of the target: smaller deviations are noise
_UNLEARNED = 0.9  # of the energy of the deviations
_STUCK, _MOVES = 0.02, 0.5  # of the loss: descent at its best takes less, the other takes more


def check(case: Case) -> Examination:
    """Forecast every mode; try another optimizer where descent is said to be too slow."""
    standard = reference(case)
    kernel = output_kernel(standard)
    found = forecast_modes(kernel)
    finding = _unlearned(case, kernel, found) or _told(case, standard, found, len(kernel.task.x))
    return Examination((finding,), _data(found, pictures(found, kernel.task, kernel.outputs.shape)))


def _unlearned(case: Case, kernel: OutputKernel, found: ModeForecast) -> Finding | None:
    """What the training as given has left of the deviations, where it learned something but hardly any of them."""
    apart = np.array([name.startswith("deviation") for name in found.target.names])
    outcome = outcome_of(case)
    if not (apart.any() and outcome.learns and kernel.asks_for_targets):
        return None
    if float(found.shares[apart].sum()) < _MENTIONED:
        return None
    with torch.no_grad():
        outputs = outcome.course.model(kernel.task.x).double().cpu().numpy()
    y = kernel.task.y.detach().double().cpu().numpy().reshape(outputs.shape)
    wanted, missed = y - y.mean(0), (y - outputs) - (y - outputs).mean(0)
    left = float(np.sum(missed**2) / np.sum(wanted**2))
    if left < _UNLEARNED:
        return None
    steps, halves = len(outcome.course.losses), found.half_times[apart]
    told = ", ".join(_mode(int(place), found) for place in np.flatnonzero(apart)[:3])
    return Finding(
        Severity.WARNING,
        f"After {steps:,} steps {left:.0%} of what tells samples apart is left: only what they share was learned.",
        f"The deviations from the mean over samples are {found.shares[apart].sum():.0%} of the target. Half-times of "
        f"their modes, if the tangent kernel stayed as it is: {told}.",
        _SOURCE,
        "Train for longer, or by Adam, which is faster along flat directions, and judge by condition.",
        numbers={"deviations_left": left, "shortest_half_time": float(halves.min())},
    )


def _slow(found: ModeForecast, factor: float = 1.0) -> NDArray[np.bool_]:
    """Modes that are not learned yet and need more than the budget, with rates times a factor."""
    return np.asarray((np.abs(found.left[0]) > _LEARNED) & (found.half_times > _BUDGET * factor))


def _told(case: Case, standard: Case, found: ModeForecast, samples: int) -> Finding:
    slow, shares, halves = _slow(found), found.shares, found.half_times
    share, count = float(shares[slow].sum()), len(shares)
    by = "" if case.recipe.is_descent else " by plain descent at its recommended rate"
    largest = np.argsort(-shares, kind="stable")[:3]
    told = ", ".join(_mode(int(place), found) for place in largest)
    evidence = f"Half-times at rate {standard.recipe.rate:.3g}{by}, over {samples} samples: {told}."
    numbers = {
        "slow_modes": float(slow.sum()),
        "slow_share": share,
        "shortest_half_time": float(halves.min()),
        "longest_half_time": float(halves.max()),
    }
    if share < _SLOW_SHARE:
        pending = halves[(np.abs(found.left[0]) > _LEARNED) & ~slow]
        title = "The main modes of the target are learned already."
        if len(pending):
            soonest = _steps(float(pending.min()))
            title = f"All main modes of the target are within reach: the first halves in {soonest}."
        return Finding(Severity.GOOD, title, evidence, _SOURCE, numbers=numbers)
    outcome = outcome_of(case)
    if outcome.learns:  # what was seen outweighs a forecast
        title = "It was seen to learn; the forecast by its tangent kernel at the start is too slow here."
        evidence = f"{outcome.evidence} If the kernel stayed as it is: {evidence[:1].lower()}{evidence[1:]}"
        return Finding(Severity.GOOD, title, evidence, _SOURCE, numbers=numbers)
    title = (
        f"{int(slow.sum())} of {count} target mode{'s' if count > 1 else ''} ({share:.0%} of the target) would need "
        f"more than {_BUDGET:,} steps to halve."
    )
    finding = Finding(Severity.WARNING, title, evidence, _SOURCE, numbers=numbers)
    return _with_optimizer(case, standard, found, finding) or replace(
        finding,
        severity=Severity.NOTE,
        evidence=f"{evidence} A kernel that grows while the network learns makes this faster.",
        advice="Give it that many steps, or momentum or Adam, which are faster along flat directions.",
    )


def _mode(place: int, found: ModeForecast) -> str:
    name = found.target.names[place]
    if found.classes and np.max(np.abs(found.target.right[place])) > 0.99:
        name += f" (class {int(np.argmax(np.abs(found.target.right[place])))})"
    learned = abs(float(found.left[0][place])) <= _LEARNED
    when = "learned already" if learned else _steps(float(found.half_times[place]))
    return f"{name} ({found.shares[place]:.0%} of the target) {when}"


def _steps(count: float) -> str:
    if not np.isfinite(count):
        return "no number of steps in sight"
    return f"{count:,.2g} steps" if count < 10 else f"{counted(count)} steps"


def _with_optimizer(case: Case, standard: Case, found: ModeForecast, finding: Finding) -> Finding | None:
    """With Adam, if descent at its best rate is slow by forecast and by trial, and Adam is not; else None."""
    if not case.recipe.is_descent:
        return None
    best, descending = edge(standard).best
    if float(found.shares[_slow(found, best / standard.recipe.rate)].sum()) < _MOST:
        return None
    if abs(descending.drop) > _STUCK * abs(descending.start):
        return None
    setup = standard.setup
    adam = Recipe(torch.optim.Adam, (Group(descent(setup.model, 1.0).groups[0].names, {"lr": 1e-3}),))
    tried = trial(setup.with_recipe(adam), descending.steps)
    if tried.drop < _MOVES * abs(tried.start):
        return None
    return replace(
        finding,
        evidence=f"{finding.evidence} In {tried.steps} steps Adam took the loss from {tried.start:.3g} to "
        f"{tried.end:.3g}, descent at its best rate to {descending.end:.3g}.",
        advice="Train with Adam: it is faster along flat directions.",
        code="optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.001)",
        treatment=Treatment("Adam instead of descent", lambda setup: setup.with_recipe(adam)),
        vague=1,  # it makes up for weights and inputs that are at fault
    )


def _data(
    found: ModeForecast,
    looks: tuple[tuple[str, ...], NDArray[np.float64]] | None,
) -> xarray.Dataset:
    import xarray

    data = xarray.Dataset(
        {
            "singular_value": ("mode", found.target.values),
            "share": ("mode", found.shares),
            "half_time": ("mode", found.half_times, {"units": "steps"}),
            "left": (("mode", "step"), found.left.T, {"units": "share of the mode"}),
            "left_after": (
                ("mode", "budget"),
                np.stack([found.left_after(budget) for budget in BUDGETS], axis=1),
            ),
        },
        {
            "mode": np.arange(1, len(found.shares) + 1),
            "name": ("mode", list(found.target.names)),
            "step": found.steps,
            "budget": list(BUDGETS),
        },
        {"modes_of": "classes" if found.classes else "targets"},
    )
    if looks is not None:
        names, values = looks
        what = "outputs over time" if "time" in names else "inputs weighed by the mode"
        data["picture"] = (names, values, {"picture_of": what})
    return data
