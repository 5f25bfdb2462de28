"""What a network has learned already must not be undone: treatments are tried before they are advised."""

from __future__ import annotations

from dataclasses import replace

from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.doctor.setup import Case
from foretrain.doctor.setup.memo import once
from foretrain.doctor.trials.constant import constant_loss

_SAMPLES = 512
_LEARNED = 0.9  # of the loss of a constant, if training has begun: less has been learned
# Of a network that is said to be fresh only this little is proof: with few inputs, random outputs are near by chance.
_LEARNED_THOUGH_FRESH = 0.5
_UNDONE = 0.5  # of what was learned, at most, may a treatment take


def sparing(case: Case, found: Examination) -> Examination:
    """The findings, those without their treatment that would undo what was learned."""
    if not any(_treatable(finding) for finding in found.findings) or not has_learned(case):
        return found
    return replace(found, findings=tuple(_spared(case, finding) for finding in found.findings))


def _treatable(finding: Finding) -> bool:
    return finding.treatment is not None and finding.severity <= Severity.WARNING


@once
def _losses(case: Case) -> tuple[float, float]:
    """Now, and of a constant."""
    return case.chosen(_SAMPLES).value(case.model), constant_loss(case)


def has_learned(case: Case) -> bool:
    """Whether it does clearly better than a constant."""
    now, constant = _losses(case)
    return now < (_LEARNED if not case.setup.fresh else _LEARNED_THOUGH_FRESH) * constant


def _spared(case: Case, finding: Finding) -> Finding:
    if not _treatable(finding) or finding.treatment is None:
        return finding
    treated = Case(finding.treatment.apply(case.setup))
    if treated.setup.model is case.setup.model and treated.task is case.task:
        return finding
    (now, constant), after = _losses(case), treated.chosen(_SAMPLES).value(treated.model)
    if after - now <= _UNDONE * (constant - now):
        return finding
    return replace(
        finding,
        severity=Severity.NOTE,
        advice=f"Leave it as it is: the network has learned, and the cure ({finding.treatment.name}) would take the "
        f"loss from {now:.3g} to {after:.3g}. For a new start: {finding.advice}",
        code="",
        treatment=None,
    )
