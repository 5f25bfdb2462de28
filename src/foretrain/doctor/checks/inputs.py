"""Are inputs and targets on one scale?

What looks uneven is judged by its consequence. Inputs are suspect if a linear readout of them learns much slower than
one of standardised inputs, or if their size is far from 1; they are faulted only if the network itself then learns
much slower, in short real trainings with the data as given and standardised, each at the rate that suits it.

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
from torch import Tensor, nn

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
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.stability import FASTER, LEARNED, at_its_best, edge, rate_code, speed_up
from foretrain.doctor.trials import Trial, constant_loss
from foretrain.support.errors import NotSupportedError

if TYPE_CHECKING:
    import xarray

_SUSPECT = 30.0  # times fewer steps for a linear readout of standardised inputs; images of digits have 15
_FAR = 20.0  # times larger or smaller than 1
_EXTREME = 100.0  # times: worth a note even where the network bears it
_HOPELESS = 50.0  # times fewer steps, of the 200 that are tried
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
    if not x.is_floating_point():
        raise NotSupportedError("the inputs are whole numbers (tokens): they have no scale.")
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


def _all_alike(values: Tensor) -> bool:
    """Whether no number differs between samples by more than a constant feature may."""
    some = values.detach().double()
    size = some.abs().amax()
    return len(some) > 1 and bool(((some - some[:1]).abs() <= CONSTANT * size).all())


def _inputs(case: Case, features: Features) -> tuple[Finding, dict[str, Trial]]:
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
    even = case.setup.with_inputs(standardised(case.task.x, features.axis))
    given, better = at_its_best(case.setup), at_its_best(even)
    tried = {"as given": given, "standardised": better}
    suspect = replace(
        fine,
        title=_title(features),
        evidence=f"{evidence} In {given.steps} steps at its best rate the loss went from {given.start:.3g} to "
        f"{given.end:.3g}; with standardised inputs from {better.start:.3g} to {better.end:.3g}.",
    )
    faster = speed_up(given, better)
    extreme = (
        features.steps > _EXTREME * features.standard_steps or not 1 / _EXTREME < features.size < _EXTREME
    )
    worse = faster >= FASTER or (extreme and better.end < given.end / 2)
    if worse and not given.end < LEARNED * constant_loss(case):
        severity = Severity.CRITICAL if faster >= _HOPELESS else Severity.WARNING
        return _faulted(case, features, replace(suspect, severity=severity), even), tried
    if not extreme:
        return replace(suspect, title=fine.title), tried
    # It trains as well as it would without: worth a note where it is extreme.
    note = replace(
        suspect,
        severity=Severity.NOTE,
        title=suspect.title.replace(", which holds learning back", ", though it learns the given samples"),
        advice="Standardise the inputs, or compare the two on samples that were not trained on.",
    )
    return note, tried


def _faulted(case: Case, features: Features, finding: Finding, even: Setup) -> Finding:
    """With advice, code and treatment: another scale of the inputs asks for another rate of descent."""
    code, suited, factor = standardising_code(case.task.x, features.axis), "", 1.0
    if case.recipe.is_descent and not case.recipe.chosen:
        factor = float(f"{edge(Case(even)).recommended / case.recipe.rate:.3g}")
        code += f"\n{rate_code(factor)}"
    if factor != 1:
        suited = f"; the learning rate that suits them is {case.recipe.rate * factor:.2g}"

    def treat(setup: Setup) -> Setup:
        scaled = setup.with_inputs(standardised(setup.task.x, features.axis))
        return scaled.with_recipe(setup.recipe.scaled(factor)) if factor != 1 else scaled

    sizes = np.sqrt(features.mean**2 + features.deviation**2)
    largest = np.argsort(sizes)[::-1][:3] if len(sizes) > 1 else ()
    return replace(
        finding,
        advice="Standardise the inputs, feature by feature, and use the same numbers for data that come later"
        f"{suited}.",
        code=code,
        treatment=Treatment("standardise x", treat),
        where=tuple(f"feature {place}" for place in largest),
    )


def _title(features: Features) -> str:
    if features.spread > UNEVEN and features.spread > features.offset:
        return f"Input features differ in scale by a factor of {features.spread:,.3g}, which holds learning back."
    if features.offset > UNEVEN / 2:
        return f"The mean of the inputs is {features.offset:.3g} times their variation, which holds learning back."
    return f"Inputs have size {features.size:.3g} instead of about 1, which holds learning back."


def _numbers(features: Features) -> dict[str, float]:
    names = ("spread", "offset", "size", "steps", "standard_steps")
    return {name: getattr(features, name) for name in names}


def _data(features: Features, tried: dict[str, Trial]) -> xarray.Dataset:
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
        losses = np.stack([one.losses for one in tried.values()])
        found["loss"] = (("data", "step"), losses)
        found = found.assign_coords(data=list(tried), step=np.arange(losses.shape[1]))
    return found
