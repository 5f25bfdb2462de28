"""Are inputs and targets on one scale?

What looks uneven is judged by its consequence. Inputs are suspect if a linear readout of them learns much slower than
one of standardised inputs, or if their size is far from 1; they are faulted only if the network itself, trained as
the user trains it, then learns less on samples held out than with standardised inputs.

Measurements, by ``feature`` (the last axis of the inputs, or channels for convolutions): ``mean`` and ``deviation``
in units of the inputs, ``constant``; ``spread`` (largest over smallest deviation), ``offset`` (size of the mean input
against its variation), ``size`` (root mean square), ``steps`` and ``standard_steps`` (in which a linear readout
learns nine tenths of what it can, as given and standardised); where it was tried, ``loss`` (data, step) of the
trainings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.doctor.baselines import fit_learners
from foretrain.doctor.data import (
    CONSTANT,
    SOURCE,
    UNEVEN,
    Features,
    conflict_findings,
    feature_axis,
    label_findings,
    measure,
    standardised,
    standardising_code,
    target_findings,
)
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.proof import try_cure
from foretrain.doctor.setup import Case
from foretrain.doctor.short_training import Run, divide
from foretrain.support.errors import NotSupportedError

if TYPE_CHECKING:
    import xarray

_SUSPECT = 30.0  # times fewer steps for a linear readout of standardised inputs; images of digits have 15
_FAR = 20.0  # times larger or smaller than 1
_EXTREME = 100.0  # times: worth a note even where the network bears it
_CLEARLY = 0.15  # of a score
_MOST_CLASSES = 1000


def check(case: Case) -> Examination:
    """Look at inputs, then at targets."""
    x, y = case.task.x, case.task.y
    if y is not None and _all_alike(x) and not _all_alike(y):
        finding = Finding(
            Severity.CRITICAL,
            "All samples have the same input: nothing can be learned but the average of the targets.",
            f"No number in x differs among {len(x)} samples, while y does; the same input gives the same "
            "output, whatever the weights are.",
            "measured",
            "Look at how x is loaded and prepared: a wrong column, a fill value or a scale that rounds all to one "
            "number makes inputs constant.",
        )
        return Examination((finding,))
    taken_for_quantities = tokens_as_quantities(case)
    if taken_for_quantities:
        return Examination(tuple(taken_for_quantities))
    if not x.is_floating_point():
        raise NotSupportedError("the inputs are whole numbers (tokens): they have no scale.")
    if y is None:
        raise NotSupportedError("there are no targets that say which scale of inputs suits them.")
    if len(x) < 2:
        raise NotSupportedError("one sample has no distribution: give at least two.")
    # Targets as numbers, (samples, any); labels as one number for each class.
    if not y.is_floating_point() and int(y.max()) < _MOST_CLASSES:
        y = nn.functional.one_hot(y.clamp(min=0))
    features = measure(x, y.detach().reshape(len(y), -1), feature_axis(case.setup.model, x))
    found, tried = _inputs(case, features)
    findings = [found, *target_findings(case), *label_findings(case), *conflict_findings(case)]
    if len(findings) > 1 and found.severity is Severity.GOOD and findings[1].severity <= Severity.WARNING:
        findings = findings[1:]
    return Examination(tuple(findings), _data(features, tried))


def tokens_as_quantities(case: Case) -> list[Finding]:
    """Whole numbers that stand for tokens or categories, in a network without embeddings."""
    x, outcome, division = case.task.x, outcome_of(case), divide(case.setup)
    embeds = any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in case.model.modules())
    judge, known = outcome.bench.judge, outcome.bench.known
    if (
        not isinstance(x, Tensor)
        or embeds
        or outcome.at_ease
        or judge is None
        or known is None
        or not division.apart
    ):
        return []
    values = torch.unique(x[:_MOST_CLASSES])
    if not bool((values == values.round()).all()) or not 3 <= len(values) <= _MOST_CLASSES:
        return []
    parts = division.training.x, division.held_out.x
    best = {
        kind: max(fit_learners(parts[0].to(kind), known, parts[1].to(kind), judge), key=lambda one: one.score)
        for kind in (torch.long, torch.float64)
    }
    gain = best[torch.long].scores - best[torch.float64].scores
    if not gain.mean() > max(_CLEARLY, 3 * gain.std() / len(gain) ** 0.5):
        return []
    return [
        Finding(
            Severity.CRITICAL if not outcome.learns else Severity.WARNING,
            f"Inputs are {len(values)} whole numbers that stand for tokens or categories, and the network "
            "takes them for "
            "quantities: it has no embedding.",
            f"As categories (one-hot) {best[torch.long].name} has {best[torch.long].score:.3g}, as quantities "
            f"{best[torch.float64].score:.3g}.",
            "measured: simple learners of both codes, on samples held out",
            "Put torch.nn.Embedding before the first layer, or give one-hot vectors.",
            f"embedding = torch.nn.Embedding({int(values.max()) + 1}, 32)  # then the first layer takes its outputs",
        )
    ]


def _all_alike(values: Tensor) -> bool:
    """Whether no number differs between samples by more than a constant feature may."""
    some = values.detach().double()
    size = some.abs().amax()
    return len(some) > 1 and bool(((some - some[:1]).abs() <= CONSTANT * size).all())


def _inputs(case: Case, features: Features) -> tuple[Finding, dict[str, Run]]:
    count = len(features.mean)
    constant = f", {int(features.constant.sum())} of them constant" if features.constant.any() else ""
    evidence = (
        f"{count} feature{'s' if count > 1 else ''}{constant}: deviations within a factor of "
        f"{features.spread:,.3g}, mean {features.offset:.2g} of the variation, size {features.size:.3g}; a linear "
        f"readout of them needs {features.steps:,.2g} steps, of standardised ones {features.standard_steps:,.2g}."
    )
    title = "Inputs are on a scale that suits learning."
    fine = Finding(Severity.GOOD, title, evidence, SOURCE, numbers=_numbers(features))
    uneven = features.steps > _SUSPECT * features.standard_steps
    far = not 1 / _FAR < features.size < _FAR
    if not (uneven or far) or features.constant.all() or not case.setup.fresh:
        return fine, {}
    cure = Treatment(
        "standardise x", lambda setup: setup.with_inputs(standardised(setup.task.x, features.axis))
    )
    proof, outcome = try_cure(case, cure), outcome_of(case)
    runs = {"as given": proof.given.course, "standardised": proof.cured.course}
    extreme = (
        features.steps > _EXTREME * features.standard_steps or not 1 / _EXTREME < features.size < _EXTREME
    )
    if not proof.worth and not proof.heals:
        if not extreme:
            return fine, runs
        # It trains as well as it would without: worth a note where it is extreme.
        does = (
            "though it learns the given samples"
            if outcome.learns
            else "which is not what holds learning back"
        )
        title = _title(features).replace("which holds learning back", does)
        advice = "Standardise the inputs, or compare the two on samples that were not trained on."
        said = f"{evidence} Standardised: {proof.sentence}"
        return replace(fine, severity=Severity.NOTE, title=title, evidence=said, advice=advice), runs
    sizes = np.sqrt(features.mean**2 + features.deviation**2)
    largest = np.argsort(sizes)[::-1][:3] if len(sizes) > 1 else ()
    faulted = replace(
        fine,
        severity=Severity.WARNING,
        title=_title(features),
        advice="Standardise the inputs, feature by feature, and use the same numbers for data that come later.",
        code=standardising_code(case.task.x, features.axis),
        treatment=cure,
        where=tuple(f"feature {place}" for place in largest),
    )
    return faulted, runs


def _title(features: Features) -> str:
    if features.spread > UNEVEN and features.spread > features.offset:
        return f"Input features differ in scale by a factor of {features.spread:,.3g}, which holds learning back."
    if features.offset > UNEVEN / 2:
        return f"The mean of the inputs is {features.offset:.3g} times their variation, which holds learning back."
    return f"Inputs have size {features.size:.3g} instead of about 1, which holds learning back."


def _numbers(features: Features) -> dict[str, float]:
    names = ("spread", "offset", "size", "steps", "standard_steps")
    return {name: getattr(features, name) for name in names}


def _data(features: Features, tried: dict[str, Run]) -> xarray.Dataset:
    import xarray

    found = xarray.Dataset(
        {
            "mean": ("feature", features.mean, {"units": "units of x"}),
            "deviation": ("feature", features.deviation, {"units": "units of x"}),
            "constant": ("feature", features.constant),
            **_numbers(features),
        },
        {"feature": np.arange(len(features.mean))},
        {"axis": features.axis},
    )
    if tried:
        length = min(len(one.losses) for one in tried.values())
        found["loss"] = (("data", "step"), np.stack([one.losses[:length] for one in tried.values()]))
        found = found.assign_coords(data=list(tried), step=np.arange(length))
    return found
