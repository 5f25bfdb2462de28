"""What the states of a recurrent network can do over time: whether they hold the target until it is asked for.

Data, by ``step`` of the sequences: ``target_energy`` (share of the target's part that differs between samples),
``held`` (what the states tell about the loudest target, relative to the most they tell at any step), ``reach`` (size
of the gradient from where that target is read back to what the layer was given at a step, relative to the largest),
``changed_states`` (diagonal of the temporal kernel: how much descent moves the states at a step), ``mode_course``
(mode, step: where modes of the target live), ``half_time`` (mode, in steps of descent at the given rate),
``temporal_gram`` (step, step_2: the temporal kernel, averaged over samples), ``temporal_share`` (eigenmode).
Attributes: ``retention``, ``lag``, ``temporal_rank``, ``spatial_rank``, ``core_cosine``, ``asked``, ``best``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import nn

from foretrain.compare.task import Task
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment, counted
from foretrain.doctor.recurrence.longer_memory import (
    Change,
    adaptive,
    adaptive_code,
    adaptive_rate,
    change_code,
    changed,
    changes_for,
)
from foretrain.doctor.recurrence.memory import Memory, Pass, measure_memory, recurrent_layers, run
from foretrain.doctor.recurrence.state_kernel import Modes, Ranks, measure_modes, measure_ranks
from foretrain.doctor.setup import Case, Setup
from foretrain.support.errors import NotSupportedError

if TYPE_CHECKING:
    import xarray

_SAMPLES = 512
_FAINT = 0.1  # of the most the states ever told: below, descent stays on Memory-Pro's plateau for hundreds of steps
_FAINT_FOR_ADAPTIVE = 0.02  # Adam finds what is left above this within tens of steps
_FORGOTTEN = 0.01  # below, descent does not leave the plateau, and Adam hardly
_BETTER = 2.0  # times: what a change must do for the retention before it is advised
_SOURCE = "Hazelden et al., Prop. 1 and Cor. 2 (NTK of the states and its target modes)"
_GATES = (
    "Tallec & Ollivier 2018 (chrono initialisation); Hazelden et al., Cor. 1 (the propagator over the delay)"
)


def check(case: Case) -> Examination:
    """Memory of the target, ranks of the state kernel, and half-times of the target's modes."""
    layers = recurrent_layers(case.model)
    if not layers:
        raise NotSupportedError(_without_recurrence(case.model))
    task = case.chosen(_SAMPLES)
    seen = run(case.model, task.x)
    ranks, modes = measure_ranks(case, seen), measure_modes(case, seen)
    try:
        memory = measure_memory(seen, task)
    except NotSupportedError as error:
        return Examination((_unjudged(str(error), ranks, modes),), _dataset(seen, None, ranks, modes))
    if memory.retention >= (_FAINT_FOR_ADAPTIVE if case.recipe.is_adaptive else _FAINT):
        findings = [_remembers(memory, ranks, modes)]
    else:
        findings = _forgets(case, task, seen, memory, ranks, modes)
    return Examination(tuple(findings), _dataset(seen, memory, ranks, modes))


def _without_recurrence(model: nn.Module) -> str:
    if any(isinstance(module, nn.MultiheadAttention) for module in model.modules()):
        return "attention sees all steps of a sequence at once, so that no state has to last until it is asked for."
    return "the model has no recurrent layer of torch, so that it has no states over time."


def _remembers(memory: Memory, ranks: Ranks, modes: Modes) -> Finding:
    return Finding(
        Severity.GOOD,
        f"The states still tell {memory.retention:.0%} of what they knew about the target when it is asked for.",
        f"{_told(memory)} {ranks.sentence} {modes.sentence}".strip(),
        _SOURCE,
        numbers={"retention": memory.retention, "lag": memory.lag, **ranks.numbers},
    )


def _unjudged(reason: str, ranks: Ranks, modes: Modes) -> Finding:
    return Finding(
        Severity.GOOD,
        "Nothing speaks against the memory of the states.",
        f"{reason[:1].upper()}{reason[1:]} {ranks.sentence} {modes.sentence}".strip(),
        _SOURCE,
        numbers=ranks.numbers,
    )


def _told(memory: Memory) -> str:
    lives = memory.energy > 0.01 * memory.energy.max()
    first, last = int(lives.argmax()), len(lives) - 1 - int(lives[::-1].argmax())
    where = f"in steps {first} to {last}" if len(lives) > 1 else "at the end"
    return (
        f"The target lives {where}; the states hold most of it at step {memory.best}, and it is read from step "
        f"{memory.asked} on, {memory.lag:.0f} steps later on average."
    )


def _forgets(case: Case, task: Task, seen: Pass, memory: Memory, ranks: Ranks, modes: Modes) -> list[Finding]:
    names = tuple(recurrent_layers(case.model))
    change, after = _best_change(case.setup, task, seen, memory, names)
    reach = memory.reach[memory.best]
    evidence = (
        f"{_told(memory)} What is read then tells samples apart by {memory.retention:.2g} of that, and gradients "
        f"that reach step {memory.best} have {reach:.2g} of their size. {ranks.sentence}"
    )
    numbers = {"retention": memory.retention, "lag": memory.lag, "reach": float(reach), **ranks.numbers}
    found = Finding(
        Severity.CRITICAL if memory.retention < _FORGOTTEN else Severity.WARNING,
        f"When the target is asked for, the states hold only {100 * memory.retention:.2g} % of what they knew of it.",
        evidence,
        _GATES,
        "Choose a recurrent layer with gates and biases, or shorten the delay."
        if change is None
        else change.advice,
        "" if change is None else change_code(change, names, seen.steps),
        None if change is None else Treatment(change.name, lambda s: changed(s, change, names, seen.steps)),
        numbers | ({} if change is None else {"retention_after": after}),
        names,
    )
    return [found] if case.recipe.is_adaptive else [found, _slow(seen, modes)]


def _best_change(
    setup: Setup, task: Task, seen: Pass, memory: Memory, names: tuple[str, ...]
) -> tuple[Change | None, float]:
    """The change after which the states, measured again, retain most."""
    best: tuple[Change | None, float] = (None, _BETTER * memory.retention)
    for change in changes_for(seen.module, setup.fresh):
        trial = Case(changed(setup, change, names, seen.steps))
        kept = measure_memory(run(trial.model, task.x), task).retention
        if kept > best[1]:
            best = (change, kept)
    return best


def _slow(seen: Pass, modes: Modes) -> Finding:
    rate = adaptive_rate(seen.module)
    slowest = modes.slowest
    told = (
        f" {counted(slowest)} steps to halve the slowest mode of the target"
        if math.isfinite(slowest)
        else " very long"
    )
    return Finding(
        Severity.WARNING,
        f"Plain descent would need{told}, because gradients through the delay are small.",
        modes.sentence
        or "Gradients from the time of the answer shrink on their way back to what has to be remembered.",
        "Hazelden et al., Cor. 2 (rate of a mode = its Rayleigh quotient), figure 4",
        f"Train by Adam at a rate of {rate:g}, which divides gradients by their size.",
        adaptive_code(rate),
        Treatment("train by Adam", lambda setup: adaptive(setup, rate)),
        {"slowest_half_time": slowest, "rate": rate},
    )


def _dataset(seen: Pass, memory: Memory | None, ranks: Ranks, modes: Modes) -> xarray.Dataset:
    import numpy as np
    import xarray

    found = xarray.Dataset(coords={"step": np.arange(seen.steps)}, attrs=dict(ranks.numbers))
    if memory is not None:
        found["held"], found["reach"] = ("step", memory.held), ("step", memory.reach)
        if len(memory.energy) == seen.steps:
            found["target_energy"] = ("step", memory.energy)
        found.attrs |= {name: getattr(memory, name) for name in ("retention", "lag", "asked", "best")}
    return found.merge(ranks.data).merge(modes.data)
