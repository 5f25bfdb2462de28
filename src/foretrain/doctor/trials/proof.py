"""Advice is proved before it is given: the network is trained for a while as it is and as it would be.

Theory says what a cure does to signals, gradients and kernels. It does not say that learning gains from it: where
blocks pass on (1 + g) of the second moment, L of them multiply signals, gradients and every layer's part of the
tangent kernel by the same (1 + g)^L (B.11), (B.16), which another learning rate undoes as well. So a cure is tried at
the given rate; where the network then learns no better, at the rate that suits it; and it is not advised if that does
not help either. Where neither training leaves its first loss, what theory says stands.

What a network has learned already must not be undone: such treatments are not advised either.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.setup.case import once
from foretrain.doctor.trials.stability import as_given, edge, rate_code, with_chosen_rate
from foretrain.doctor.trials.trial import Trial, constant_loss

_DIFFERENCE = 1.05  # times the loss without the cure: what is nearer to it may be an accident
_LEARNED = 0.9  # of the first loss: a network that ends above waits, and what it waits for is not in sight
_LAST = 0.1  # of a trial, over which its loss is taken
_LOOKED_AT = 512  # samples
_LEARNED_BEFORE = 0.9  # of the loss of a constant, if training has begun: less has been learned
# Of a network that is said to be fresh only this little is proof: with few inputs, random outputs are near by chance.
_LEARNED_THOUGH_FRESH = 0.5
_UNDONE = 0.5  # of what was learned, at most, may a treatment take


def proved(case: Case, found: Examination) -> Examination:
    """The findings, those without their treatment with which the network learns no better."""
    return replace(found, findings=tuple(_proved(case, finding) for finding in found.findings))


def _proved(case: Case, finding: Finding) -> Finding:
    cure, setup = finding.treatment, case.setup
    if cure is None or finding.severity > Severity.WARNING or "held_out_loss" in finding.numbers:
        return finding  # the last has been tried on samples held out
    given, treated = as_given(setup), with_chosen_rate(cure.apply(setup))
    tried = as_given(treated)
    if _helps(tried, given):
        return finding
    if treated.recipe.is_descent and not treated.recipe.chosen:
        factor = float(f"{edge(Case(treated)).recommended / treated.recipe.rate:.3g}")
        suited = as_given(treated.with_recipe(treated.recipe.scaled(factor)))
        if _helps(suited, given):
            return _with_rate(finding, cure, treated, factor)
        tried = min(tried, suited, key=_reached)
    reached = _reached(tried)
    told = f"{reached:.3g}" if np.isfinite(reached) else "no number at all"
    return replace(
        finding,
        severity=Severity.NOTE,
        evidence=f"{finding.evidence.rstrip('.')}. Tried: in {given.steps} steps the loss reached "
        f"{_reached(given):.3g} as it is, and {told} with the cure ({cure.name}).",
        advice="Leave it as it is: this network learns no better with the cure.",
        code="",
        treatment=None,
    )


def _helps(tried: Trial, given: Trial) -> bool:
    before, after = _reached(given), _reached(tried)
    if before > _LEARNED * given.start:
        return not after > _DIFFERENCE * before
    return after < before / _DIFFERENCE


def _reached(found: Trial) -> float:
    """The median of the last tenth, so that single spikes and batches do not decide."""
    return float(np.median(found.losses[-max(1, round(_LAST * len(found.losses))) :]))


def _with_rate(finding: Finding, cure: Treatment, treated: Setup, factor: float) -> Finding:
    """The cure together with the rate that suits the cured network."""

    def apply(setup: Setup) -> Setup:
        cured = cure.apply(setup)
        return cured.with_recipe(cured.recipe.scaled(factor))

    rate = treated.recipe.rate * factor
    return replace(
        finding,
        advice=f"{finding.advice.rstrip('.')}; the learning rate that suits it then is {rate:.2g}.",
        code=f"{finding.code}\n{rate_code(factor)}" if finding.code else "",
        treatment=Treatment(f"{cure.name}, learning rate x {factor:.3g}", apply),
    )


def sparing(case: Case, found: Examination) -> Examination:
    """The findings, those without their treatment that would undo what was learned."""
    treatable = [one for one in found.findings if one.treatment and one.severity <= Severity.WARNING]
    if not treatable or not has_learned(case):
        return found
    return replace(found, findings=tuple(_spared(case, finding) for finding in found.findings))


@once
def _losses(case: Case) -> tuple[float, float]:
    """Now, and of a constant."""
    return case.chosen(_LOOKED_AT).value(case.model), constant_loss(case)


def has_learned(case: Case) -> bool:
    """Whether it does clearly better than a constant."""
    now, constant = _losses(case)
    return now < (_LEARNED_BEFORE if not case.setup.fresh else _LEARNED_THOUGH_FRESH) * constant


def _spared(case: Case, finding: Finding) -> Finding:
    if finding.treatment is None or finding.severity > Severity.WARNING:
        return finding
    treated = Case(finding.treatment.apply(case.setup))
    if treated.setup.model is case.setup.model and treated.task is case.task:
        return finding
    (now, constant), after = _losses(case), treated.chosen(_LOOKED_AT).value(treated.model)
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
