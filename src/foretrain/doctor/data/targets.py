"""Findings about targets: their offset and scale, how often classes occur, equal inputs with unequal targets."""

from __future__ import annotations

import torch
from torch import nn

from foretrain.doctor.data.features import SOURCE, UNEVEN, standardised, standardising_code
from foretrain.doctor.finding import Finding, Severity, Treatment
from foretrain.doctor.setup import Case
from foretrain.doctor.trials.stability import FASTER, LEARNED, at_its_best, speed_up
from foretrain.doctor.trials.trial import Trial, constant_loss, is_regression

_MOST_DUPLICATES = 0.01  # share of samples that stand beside an equal input with another target
_RARE = 1 / 50  # of the commonest class


def target_findings(case: Case) -> list[Finding]:
    """Offset and scale of the targets of mean squares."""
    if not is_regression(case) or not case.setup.fresh:
        return []
    y = case.task.y.double()
    mean, deviation = y.mean(0), float((y - y.mean(0)).square().mean().sqrt())
    if deviation == 0:
        return [
            Finding(
                Severity.NOTE,
                "All targets are the same: a constant output solves the task.",
                "The standard deviation of y is zero.",
                "measured",
                "Look whether y is what it should be.",
            )
        ]
    offset = float(mean.square().mean().sqrt()) / deviation
    if offset > UNEVEN / 2:
        return _offset(case, offset, deviation)
    if not 1 / UNEVEN < deviation < UNEVEN:
        return _scale(case, deviation)
    return []


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

    given, better = at_its_best(case.setup), at_its_best(case.setup.with_weights(shift))
    faster = speed_up(given, better)
    if faster < FASTER or given.end < LEARNED * constant_loss(case):
        return []
    numbers = ", ".join(f"{value:.6g}" for value in away.tolist())
    return [
        Finding(
            Severity.CRITICAL if given.end > constant_loss(case) else Severity.WARNING,
            f"The mean of the targets is {offset:,.3g} times their variation, which the network has to learn first.",
            f"In {given.steps} steps at its best rate the loss went from {given.start:.3g} to {given.end:.3g}; with "
            f"the bias of the readout at the mean it starts at {better.start:.3g} and ends at {better.end:.3g}.",
            SOURCE,
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
    given = at_its_best(case.setup)
    better = at_its_best(case.setup.with_targets(standardised(y, y.ndim - 1 if y.ndim > 1 else 0)))
    relative = Trial(given.losses / deviation**2)
    faster = speed_up(relative, better)
    if faster < FASTER or relative.end < LEARNED:
        return []
    return [
        Finding(
            Severity.WARNING,
            f"Targets vary by {deviation:.3g} instead of about 1, which holds learning back.",
            f"In {given.steps} steps at its best rate {_percent(relative.end)} of the targets' variance was left, "
            f"and {_percent(better.end)} with standardised targets.",
            SOURCE,
            "Standardise the targets for training and undo it on the outputs; the loss is then in other units.",
            standardising_code(y, y.ndim - 1 if y.ndim > 1 else 0, "y"),
            numbers={"target_deviation": deviation, "speed_up": faster},
        )
    ]


def _percent(share: float) -> str:
    return f"{share:.3%}" if share < 0.01 else f"{share:.0%}" if share < 10 else f"{share:.2g} times"


def label_findings(case: Case) -> list[Finding]:
    """How often every class occurs."""
    y = case.task.y
    if y.is_floating_point() or "cross" not in case.task.loss_name.lower().replace("-", "_"):
        return []
    counts = torch.bincount(y[y >= 0].flatten(), minlength=2).double()
    present = counts[counts > 0]
    if len(present) > 1 and float(present.min()) >= _RARE * float(present.max()):
        return []
    title = f"The rarest class is {float(present.max() / present.min()):,.3g} times rarer than the commonest."
    if len(present) < 2:
        title = "All labels are the same: a constant output solves the task."
    return [
        Finding(
            Severity.NOTE,
            title,
            f"Counts run from {int(present.min())} to {int(present.max())} over {len(present)} classes.",
            "measured",
            "Judge by balanced accuracy, or weigh the classes in the loss.",
        )
    ]


def conflict_findings(case: Case) -> list[Finding]:
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
