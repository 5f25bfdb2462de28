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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from foretrain.compare.task import Task
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment, counted
from foretrain.doctor.memory import (
    Memory,
    Pass,
    adaptive,
    adaptive_code,
    adaptive_rate,
    change_code,
    changed,
    changes_for,
    measure_memory,
    recurrent_layers,
    run,
)
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.output_kernel import forecast_modes, output_kernel, reference
from foretrain.doctor.setup import Case
from foretrain.empirical.global_ntk import global_ntk
from foretrain.empirical.global_ntk.summary import members_of
from foretrain.support.answers import labelled
from foretrain.support.errors import ForetrainError, NotSupportedError

if TYPE_CHECKING:
    import xarray

_SAMPLES = 512
_FAINT = 0.1  # of the most the states ever told: below, descent stays on Memory-Pro's plateau for hundreds of steps
_FORGOTTEN = 0.01  # below, descent does not leave the plateau, and Adam hardly
_BETTER = 2.0  # times: what a change must do for the retention before it is advised
_SOURCE = "Hazelden et al., Prop. 1 and Cor. 2 (NTK of the states and its target modes)"
_GATES = (
    "Tallec & Ollivier 2018 (chrono initialisation); Hazelden et al., Cor. 1 (the propagator over the delay)"
)
Array = NDArray[np.float64]

_PLACES = 400  # samples x steps of the temporal kernel
_MODES = 3
_MENTIONED = 0.01  # of the target: smaller modes are not told
_EIGENMODES = 20
_ACCURACY = 0.1


def check(case: Case) -> Examination:
    """Memory of the target, ranks of the state kernel, and half-times of the target's modes."""
    layers = recurrent_layers(case.model)
    if not layers and any(isinstance(module, nn.MultiheadAttention) for module in case.model.modules()):
        raise NotSupportedError(
            "attention sees all steps of a sequence at once, so that no state has to last until it is asked for."
        )
    if not layers:
        raise NotSupportedError(
            "the model has no recurrent layer of torch, so that it has no states over time."
        )
    task = case.chosen(_SAMPLES)
    seen = run(case.model, task.x)
    ranks, modes = measure_ranks(case, seen), measure_modes(case, seen)
    memory, numbers = None, dict[str, float]()
    try:
        memory = measure_memory(seen, task)
    except NotSupportedError as error:
        title = "Nothing speaks against the memory of the states."
        evidence = f"{str(error)[:1].upper()}{str(error)[1:]}"
    else:
        if memory.retention < _FAINT and not outcome_of(case).at_ease:  # whatever the optimizer, it must show
            findings = _forgets(case, task, seen, memory, ranks, modes)
            return Examination(tuple(findings), _dataset(seen, memory, ranks, modes))
        evidence, numbers = _told(memory), {"retention": memory.retention, "lag": memory.lag}
        share = f"{memory.retention:.0%} of what they knew about the target"
        title = f"The states still tell {share} when it is asked for."
    evidence = f"{evidence} {ranks.sentence} {modes.sentence}".strip()
    finding = Finding(Severity.GOOD, title, evidence, _SOURCE, numbers={**numbers, **ranks.numbers})
    return Examination((finding,), _dataset(seen, memory, ranks, modes))


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
    change, after = None, _BETTER * memory.retention
    for candidate in changes_for(seen.module, case.setup.fresh):  # the one after which states retain most
        trial = Case(changed(case.setup, candidate, names, seen.steps))
        kept = measure_memory(run(trial.model, task.x), task).retention
        if kept > after:
            change, after = candidate, kept
    reach = memory.reach[memory.best]
    found = Finding(
        Severity.CRITICAL if memory.retention < _FORGOTTEN else Severity.WARNING,
        f"When the target is asked for, the states hold only {100 * memory.retention:.2g} % of what they knew of it.",
        f"{_told(memory)} What is read then tells samples apart by {memory.retention:.2g} of that, and gradients "
        f"that reach step {memory.best} have {reach:.2g} of their size. {ranks.sentence}",
        _GATES,
        "Choose a recurrent layer with gates and biases, or shorten the delay.",
        numbers={"retention": memory.retention, "lag": memory.lag, "reach": float(reach), **ranks.numbers},
        where=names,
    )
    if change is not None:
        chosen = change
        found = replace(
            found,
            advice=chosen.advice,
            code=change_code(chosen, names, seen.steps),
            treatment=Treatment(chosen.name, lambda setup: changed(setup, chosen, names, seen.steps)),
            numbers={**found.numbers, "retention_after": after},
        )
    return [found] if case.recipe.is_adaptive else [found, _slow(seen, modes)]


def _slow(seen: Pass, modes: Modes) -> Finding:
    rate, slowest, needs = adaptive_rate(seen.module), modes.slowest, "very long"
    if math.isfinite(slowest):
        needs = f"{counted(slowest)} steps to halve the slowest mode of the target"
    return Finding(
        Severity.WARNING,
        f"Plain descent would need {needs}, because gradients through the delay are small.",
        modes.sentence
        or "Gradients from the time of the answer shrink on their way back to what has to be remembered.",
        "Hazelden et al., Cor. 2 (rate of a mode = its Rayleigh quotient), figure 4",
        f"Train by Adam at a rate of {rate:g}, which divides gradients by their size.",
        adaptive_code(rate),
        Treatment("train by Adam", lambda setup: adaptive(setup, rate)),
        {"slowest_half_time": slowest, "rate": rate},
    )


def _dataset(seen: Pass, memory: Memory | None, ranks: Ranks, modes: Modes) -> xarray.Dataset:
    import xarray

    found = xarray.Dataset(coords={"step": np.arange(seen.steps)}, attrs=dict(ranks.numbers))
    if memory is not None:
        found["held"], found["reach"] = ("step", memory.held), ("step", memory.reach)
        if len(memory.energy) == seen.steps:
            found["target_energy"] = ("step", memory.energy)
        found.attrs |= {name: getattr(memory, name) for name in ("retention", "lag", "asked", "best")}
    return found.merge(ranks.data).merge(modes.data)


@dataclass(frozen=True, eq=False)
class Ranks:
    """Effective ranks of the kernel over time and units; nan where it is not offered for the model."""

    numbers: Mapping[str, float]
    data: xarray.Dataset

    @property
    def sentence(self) -> str:
        """In words."""
        if not self.numbers:
            return ""
        return (
            f"Descent can change the states in about {self.numbers['temporal_rank']:.2g} ways over samples and time, "
            f"and in {self.numbers['spatial_rank']:.3g} over {self.numbers['units']:.0f} units."
        )


@dataclass(frozen=True, eq=False)
class Modes:
    """Half-times of the target's modes in steps of descent, (mode,); empty where the target has no such modes."""

    data: xarray.Dataset
    half_times: Array = field(default_factory=lambda: np.zeros(0))
    names: tuple[str, ...] = ()

    @property
    def slowest(self) -> float:
        """The longest; nan where none is known."""
        return float(self.half_times.max()) if len(self.half_times) else math.nan

    @property
    def sentence(self) -> str:
        """In words."""
        if not len(self.half_times):
            return ""
        told = ", ".join(f"{name} {counted(time)}" for name, time in zip(self.names, self.half_times))
        return (
            f"If the tangent kernel stayed as it is, descent would halve the target's modes in: {told} steps."
        )


def measure_ranks(case: Case, seen: Pass) -> Ranks:
    """From products with random vectors, on a few samples."""
    samples = max(2, _PLACES // seen.steps)
    try:
        # Of the layer's own parameters: what comes before it acts through its inputs, which are held.
        named, prefix = case.model.named_parameters(), f"{seen.name}." if seen.name else ""
        own = [name for name, p in named if name.startswith(prefix) and p.requires_grad]
        whole = global_ntk(case.raw_model, case.chosen(samples).x[:samples], parameters=own)
        members = members_of(whole)
        kernel = next((part for name, part in members.items() if name.startswith("hidden")), whole)
        temporal, spatial = kernel.temporal(accuracy=_ACCURACY), kernel.spatial(accuracy=_ACCURACY)
        try:
            cosine = float(kernel.cosine(kernel.concatenated_core, accuracy=_ACCURACY, seed=0).value)
        except ForetrainError:
            cosine = math.nan
    except (ForetrainError, MemoryError, RuntimeError):  # layers that the operators do not take
        return Ranks({}, labelled({}))
    matrix = temporal.matrix.double().cpu().numpy()
    steps = seen.steps
    blocks = (
        np.einsum("btbs->ts", matrix.reshape(len(matrix) // steps, steps, -1, steps)) * steps / len(matrix)
    )
    values = np.linalg.eigvalsh(matrix)[::-1][:_EIGENMODES]
    numbers = {
        "temporal_rank": float(temporal.rank.value),
        "spatial_rank": float(spatial.rank.value),
        "units": float(seen.states.shape[2]),
        "core_cosine": cosine,
    }
    variables = {
        "temporal_gram": ("step step_2", blocks),
        "changed_states": ("step", np.diag(blocks)),
        "temporal_share": ("eigenmode", values / np.trace(matrix)),
    }
    return Ranks(numbers, labelled(variables, counted=["eigenmode"]))


def measure_modes(case: Case, seen: Pass) -> Modes:
    """Half-times of the target's largest modes, by the same forecast as that of the check of the modes."""
    try:
        kernel = output_kernel(reference(case))
        forecast = forecast_modes(kernel)
    except NotSupportedError:
        return Modes(labelled({}))
    y = kernel.task.y
    if forecast.classes or not y.is_floating_point() or y.shape[1:] != seen.outputs.shape[1:]:
        return Modes(labelled({}))
    largest = np.sort(np.argsort(-forecast.shares, kind="stable")[:_MODES])
    largest = largest[forecast.shares[largest] > _MENTIONED]
    times, names = forecast.half_times[largest], [forecast.target.names[place] for place in largest]
    variables: dict[str, Any] = {
        "half_time": ("mode", times),
        "mode_name": ("mode", np.array(names, dtype=str)),
    }
    if y.ndim == 3 and y.shape[1] == seen.steps:  # where in time the modes live
        left = forecast.target.left[largest].reshape(len(times), len(y), seen.steps)
        variables["mode_course"] = ("mode step", np.sqrt(np.square(left).sum(1)))
    return Modes(labelled(variables, counted=["mode"]), times, tuple(names))
