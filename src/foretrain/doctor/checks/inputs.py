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
import torch
from torch import Tensor, nn

from foretrain.doctor.features import Features, feature_axis, measure, standardised, standardising_code
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.stability import edge, rate_code
from foretrain.doctor.trial import Trial, trial
from foretrain.support.errors import NotSupportedError

if TYPE_CHECKING:
    import xarray

_SOURCE = (
    "LeCun et al. (1998), section 4.3: the condition of the inputs' second moments sets the speed of descent"
)
_SAMPLES = 1024  # for them: so few that they are learned by heart would hide an uneven scale
_STEPS = 200  # of the trainings that judge what is suspect
_SUSPECT = 30.0  # times fewer steps for a linear readout of standardised inputs; images of digits have 15
_FAR = 20.0  # times larger or smaller than 1
_UNEVEN = 5.0  # ratio of deviations, or offset against variation, that is named as the cause
_EXTREME = 100.0  # times: worth a note even where the network bears it
_FASTER = 10.0  # times fewer steps for the same loss: "much slower than it could be"
_HOPELESS = 50.0  # times fewer steps, of the 200 that are tried
_LEARNED = 0.1  # of the loss of the best constant: a training that ends below has nothing to complain of
_MOST_DUPLICATES = 0.01  # share of samples that stand beside an equal input with another target
_RARE = 1 / 50  # of the commonest class
_MOST_CLASSES = 1000


def check(case: Case) -> Examination:
    """Look at inputs, then at targets."""
    if not case.task.x.is_floating_point():
        raise NotSupportedError("the inputs are whole numbers (tokens): they have no scale.")
    x = case.task.x
    if len(x) < 2:
        raise NotSupportedError("one sample has no distribution: give at least two.")
    features = measure(x, _wanted(case), feature_axis(case.setup.model, x))
    found, tried = _inputs(case, features)
    findings = [found, *_targets(case), *_labels(case), *_conflicts(case)]
    if len(findings) > 1 and found.severity is Severity.GOOD and findings[1].severity <= Severity.WARNING:
        findings = findings[1:]
    return Examination(tuple(findings), _data(features, tried))


def _wanted(case: Case) -> Tensor:
    """Targets as numbers, (samples, any); labels as one number for each class."""
    y = case.task.y
    if not y.is_floating_point() and int(y.max()) < _MOST_CLASSES:
        y = nn.functional.one_hot(y.clamp(min=0))
    return y.detach().reshape(len(y), -1)


def _inputs(case: Case, features: Features) -> tuple[Finding, dict[str, Trial]]:
    told = _told(features)
    uneven = features.steps > _SUSPECT * features.standard_steps
    far = not 1 / _FAR < features.size < _FAR
    if not (uneven or far) or features.constant.all() or not case.setup.fresh:
        return _fine(features, told), {}
    even = case.setup.with_inputs(standardised(case.task.x, features.axis))
    given, better = _at_its_best(case.setup), _at_its_best(even)
    tried = {"as given": given, "standardised": better}
    faster = _speed_up(given, better)
    told += (
        f" In {_STEPS} steps at its best rate the loss went from {given.start:.3g} to {given.end:.3g}; with "
        f"standardised inputs from {better.start:.3g} to {better.end:.3g}."
    )
    worse = faster >= _FASTER or (_extreme(features) and better.end < given.end / 2)
    if not worse or given.end < _LEARNED * _constant_loss(case):
        return _harmless(features, told), tried
    severity = Severity.CRITICAL if faster >= _HOPELESS else Severity.WARNING
    return _faulted(case, features, Finding(severity, _title(features), told, _SOURCE), even), tried


def _faulted(case: Case, features: Features, finding: Finding, even: Setup) -> Finding:
    """With advice, code and treatment: another scale of the inputs asks for another rate of descent."""
    code = standardising_code(case.task.x, features.axis)
    factor = 1.0
    if case.recipe.is_descent and not case.recipe.chosen:
        factor = float(f"{edge(Case(even)).recommended / case.recipe.rate:.3g}")
        code += f"\n{rate_code(factor)}"

    def treat(setup: Setup) -> Setup:
        scaled = setup.with_inputs(standardised(setup.task.x, features.axis))
        return scaled.with_recipe(setup.recipe.scaled(factor)) if factor != 1 else scaled

    return replace(
        finding,
        advice="Standardise the inputs, feature by feature, and use the same numbers for data that come later"
        + (
            f"; the learning rate that suits them is {case.recipe.rate * factor:.2g}." if factor != 1 else "."
        ),
        code=code,
        treatment=Treatment("standardise x", treat),
        numbers=_numbers(features),
        where=_where(features),
    )


def _extreme(features: Features) -> bool:
    return features.steps > _EXTREME * features.standard_steps or not 1 / _EXTREME < features.size < _EXTREME


def _harmless(features: Features, told: str) -> Finding:
    """Suspect, but it trains as well as it would without: worth a note where it is extreme."""
    if not _extreme(features):
        return _fine(features, told)
    return Finding(
        Severity.NOTE,
        _title(features).replace(", which holds learning back", ", though it learns the given samples"),
        told,
        _SOURCE,
        "Standardise the inputs, or compare the two on samples that were not trained on.",
        numbers=_numbers(features),
    )


def _at_its_best(setup: Setup) -> Trial:
    """A training at the rate that suits the data; other optimizers adapt by themselves."""
    if not setup.recipe.is_descent:
        return trial(setup, _STEPS, _SAMPLES)
    factor = edge(Case(setup)).recommended / setup.recipe.rate
    return trial(setup.with_recipe(setup.recipe.scaled(factor)), _STEPS, _SAMPLES)


def _speed_up(given: Trial, better: Trial) -> float:
    if not better.end < given.end:
        return 1.0
    return _STEPS / max(1, better.steps_to(given.end))


def _constant_loss(case: Case) -> float:
    """The loss of outputs that are all alike, as far as descent on them finds it; a scale for what is learned."""
    task = case.chosen(256)
    with torch.no_grad():
        outputs = case.model(task.x)
    if _regression(case):
        return float(task.loss(task.y.mean(0, keepdim=True).expand_as(outputs), task.y))
    return float(task.loss(torch.zeros_like(outputs), task.y))


def _title(features: Features) -> str:
    if features.spread > _UNEVEN and features.spread > features.offset:
        return f"Input features differ in scale by a factor of {features.spread:,.3g}, which holds learning back."
    if features.offset > _UNEVEN / 2:
        return f"The mean of the inputs is {features.offset:.3g} times their variation, which holds learning back."
    return f"Inputs have size {features.size:.3g} instead of about 1, which holds learning back."


def _told(features: Features) -> str:
    count = len(features.mean)
    constant = f", {int(features.constant.sum())} of them constant" if features.constant.any() else ""
    return (
        f"{count} feature{'s' if count > 1 else ''}{constant}: deviations within a factor of "
        f"{features.spread:,.3g}, mean {features.offset:.2g} of the variation, size {features.size:.3g}; a linear "
        f"readout of them needs {features.steps:,.2g} steps, of standardised ones {features.standard_steps:,.2g}."
    )


def _fine(features: Features, told: str) -> Finding:
    return Finding(
        Severity.GOOD, "Inputs are on a scale that suits learning.", told, _SOURCE, numbers=_numbers(features)
    )


def _where(features: Features) -> tuple[str, ...]:
    sizes = np.sqrt(features.mean**2 + features.deviation**2)
    return tuple(f"feature {place}" for place in np.argsort(sizes)[::-1][:3]) if len(sizes) > 1 else ()


def _numbers(features: Features) -> dict[str, float]:
    return {
        "spread": features.spread,
        "offset": features.offset,
        "size": features.size,
        "steps": features.steps,
        "standard_steps": features.standard_steps,
    }


def _regression(case: Case) -> bool:
    y = case.task.y
    with torch.no_grad():
        same = y.is_floating_point() and y.shape[1:] == case.model(case.task.x[:1]).shape[1:]
    squares = case.task.loss_name == "mean squared error" or isinstance(case.task.loss, nn.MSELoss)
    return same and squares


def _targets(case: Case) -> list[Finding]:
    """Offset and scale of the targets of mean squares."""
    if not _regression(case) or not case.setup.fresh:
        return []
    y = case.task.y.double()
    mean, deviation = y.mean(0), float((y - y.mean(0)).square().mean().sqrt())
    if deviation == 0:
        return [_same_targets()]
    offset = float(mean.square().mean().sqrt()) / deviation
    if offset > _UNEVEN / 2:
        return _offset(case, offset, deviation)
    if not 1 / _UNEVEN < deviation < _UNEVEN:
        return _scale(case, deviation)
    return []


def _same_targets() -> Finding:
    return Finding(
        Severity.NOTE,
        "All targets are the same: a constant output solves the task.",
        "The standard deviation of y is zero.",
        "measured",
        "Look whether y is what it should be.",
    )


def _offset(case: Case, offset: float, deviation: float) -> list[Finding]:
    """Learned by the bias of the readout alone if it is set; else all layers are bent to make a constant."""
    name = output_bias(case)
    if name is None:
        return _scale(case, deviation)
    task = case.chosen(1024)
    with torch.no_grad():
        away = (task.y - case.model(task.x)).mean(0).flatten()

    def shift(model: nn.Module) -> None:
        model.get_parameter(name).add_(away.reshape(model.get_parameter(name).shape))

    given, better = _at_its_best(case.setup), _at_its_best(case.setup.with_weights(shift))
    faster = _speed_up(given, better)
    if faster < _FASTER or given.end < _LEARNED * _constant_loss(case):
        return []
    numbers = ", ".join(f"{value:.6g}" for value in away.tolist())
    return [
        Finding(
            Severity.CRITICAL if given.end > _constant_loss(case) else Severity.WARNING,
            f"The mean of the targets is {offset:,.3g} times their variation, which the network has to learn first.",
            f"In {_STEPS} steps at its best rate the loss went from {given.start:.3g} to {given.end:.3g}; with the "
            f"bias of the readout at the mean it starts at {better.start:.3g} and ends at {better.end:.3g}.",
            _SOURCE,
            f"Set the bias of the readout ({name}) so that the mean output is the mean target.",
            f"with torch.no_grad():\n    model.get_parameter({name!r}).add_(torch.tensor([{numbers}]))",
            Treatment("output bias at the mean target", lambda setup: setup.with_weights(shift)),
            {"target_offset": offset, "target_deviation": deviation, "speed_up": faster},
            (name,),
        )
    ]


def output_bias(case: Case) -> str | None:
    """The parameter that adds to the outputs and does nothing else, if there is one; measured, not guessed."""
    model, x = case.model, case.task.x[:4]
    with torch.no_grad():
        outputs = model(x)
        for name, parameter in reversed(list(model.named_parameters())):
            if (
                parameter.numel() != outputs[0].numel()
                or not parameter.requires_grad
                or name not in case.recipe.rates
            ):
                continue
            change = torch.linspace(0.5, 1.0, parameter.numel()).to(parameter).reshape(parameter.shape)
            parameter.add_(change)
            moved = model(x) - outputs
            parameter.sub_(change)
            if torch.allclose(
                moved, change.reshape(outputs[:1].shape).expand_as(moved), rtol=1e-3, atol=1e-4
            ):
                return name
    return None


def _scale(case: Case, deviation: float) -> list[Finding]:
    """Standardised targets change the units of the loss, so it is advised and not carried out."""
    y = case.task.y
    given = _at_its_best(case.setup)
    better = _at_its_best(case.setup.with_targets(standardised(y, y.ndim - 1 if y.ndim > 1 else 0)))
    relative = Trial(given.losses / deviation**2)
    faster = _speed_up(relative, better)
    if faster < _FASTER or relative.end < _LEARNED:
        return []
    return [
        Finding(
            Severity.WARNING,
            f"Targets vary by {deviation:.3g} instead of about 1, which holds learning back.",
            f"In {_STEPS} steps at its best rate {_percent(relative.end)} of the targets' variance was left, and "
            f"{_percent(better.end)} with standardised targets.",
            _SOURCE,
            "Standardise the targets for training and undo it on the outputs; the loss is then in other units.",
            standardising_code(y, y.ndim - 1 if y.ndim > 1 else 0, "y"),
            numbers={"target_deviation": deviation, "speed_up": faster},
        )
    ]


def _percent(share: float) -> str:
    return f"{share:.3%}" if share < 0.01 else f"{share:.0%}" if share < 10 else f"{share:.2g} times"


def _labels(case: Case) -> list[Finding]:
    """How often every class occurs."""
    y = case.task.y
    if y.is_floating_point() or "cross" not in case.task.loss_name.lower().replace("-", "_"):
        return []
    counts = torch.bincount(y[y >= 0].flatten(), minlength=2).double()
    present = counts[counts > 0]
    if len(present) > 1 and float(present.min()) >= _RARE * float(present.max()):
        return []
    if len(present) < 2:
        title = "All labels are the same: a constant output solves the task."
    else:
        title = (
            f"The rarest class is {float(present.max() / present.min()):,.3g} times rarer than the commonest."
        )
    return [
        Finding(
            Severity.NOTE,
            title,
            f"Counts run from {int(present.min())} to {int(present.max())} over {len(present)} classes.",
            "measured",
            "Judge by balanced accuracy, or weigh the classes in the loss.",
        )
    ]


def _conflicts(case: Case) -> list[Finding]:
    """Equal inputs with unequal targets, which no network can fit."""
    x, y = case.task.x, case.task.y
    _, groups = torch.unique(x.reshape(len(x), -1), dim=0, return_inverse=True)
    order = torch.argsort(groups, stable=True)
    same = groups[order][1:] == groups[order][:-1]
    rows = y.reshape(len(y), -1)[order.to(y.device)]
    differ = (rows[1:] != rows[:-1]).any(dim=1).cpu()
    share = float((same.cpu() & differ).double().mean())
    if share <= _MOST_DUPLICATES:
        return []
    return [
        Finding(
            Severity.NOTE,
            f"{share:.0%} of the samples repeat an input with another target, which no network can fit.",
            f"Equal rows of x with unequal rows of y among {len(x)} samples.",
            "measured",
            "Expect a loss above zero, or look whether y belongs to x.",
        )
    ]


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
        found = found.assign_coords(data=list(tried), step=np.arange(_STEPS + 1))
    return found
