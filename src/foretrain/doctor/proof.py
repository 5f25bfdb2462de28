"""Every cure is tried before it is advised: the network is trained with it and without it, on the same samples.

Theory says what a cure does to signals, gradients and kernels. It does not say that learning gains from it: where
blocks pass on (1 + g) of the second moment, L of them multiply signals, gradients and every layer's part of the
tangent kernel by the same (1 + g)^L (B.11), (B.16), which another learning rate undoes as well. So both are judged on
the samples held out: a cure changes one thing at the given rate; where the network then learns no better, it is tried
at the rate that suits it; and a cure that does not help either way is not advised.

What a network has learned already must not be undone: such treatments are not advised either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from foretrain.doctor.finding import SCORE_GAIN, Examination, Finding, Severity, Treatment
from foretrain.doctor.outcome import Outcome, observe_briefly, outcome_of
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.stability import edge, rate_code, with_chosen_rate
from foretrain.doctor.trials import LOOKED_AT, has_learned, losses_of

_DIFFERENCE = 1.05  # times the loss without the cure: what is nearer to it may be an accident
_SURE = 2.0  # standard errors of the difference in scores
_WORTH = 0.02  # of a score: less is no cure
_WORTH_OF_BASELINE = (
    0.25  # of what the best baseline gains: a cure that gains less does not touch what stops it
)
_CLEARLY = 0.05  # of a score of the training samples
_LEFT = 0.98  # of the first loss: a network that ends above has not moved
_LASTING = 0.8  # of the best score above a constant
_UNDONE = 0.5  # of what was learned, at most, may a treatment take


@dataclass(frozen=True, eq=False)
class Proof:
    """Two trainings of the same length, without and with a cure."""

    given: Outcome
    cured: Outcome
    same_loss: bool  # whether losses are in the same units

    @property
    def gain(self) -> float:
        """What the cure gains: in scores of samples held out, or in parts of the loss where only that can tell."""
        return self._difference[0]

    @property
    def after(self) -> float:
        """The score with the cure, or the loss where only that can tell."""
        return self.cured.score if self.cured.scored else self.cured.course.end

    @property
    def _difference(self) -> tuple[float, float]:
        given, cured = self.given, self.cured
        if cured.course.diverged or cured.course.error:
            return -math.inf, 0.0
        if cured.scored and given.scored:
            before = given.course.best_scores
            constant = given.bench.baselines[0].scores
            if given.course.diverged or given.course.error or not np.isfinite(before).all():
                before = constant
            # What is worse than a constant answer is no worse than it: scores of numbers have no lower bound.
            after = cured.course.best_scores
            before = before if before.mean() > constant.mean() else constant
            after = after if after.mean() > constant.mean() else constant
            differences = after - before
            return float(differences.mean()), float(
                differences.std() / math.sqrt(max(1, len(differences) - 1))
            )
        start = abs(given.course.held_out[0]) or 1.0
        end = given.course.end if not given.course.diverged else float(given.course.held_out[0])
        return (end - cured.course.end) / start, 0.01

    @property
    def helps(self) -> bool:
        """Whether the network learns better with the cure, on samples held out."""
        gain, error = self._difference
        if gain > max(_WORTH, _SURE * error):
            return True
        return (self._lower_loss or self._fits_better) and gain >= -_SURE * error

    @property
    def _lower_loss(self) -> bool:
        before, after = self.given.course.end, self.cured.course.end
        return self.same_loss and after < before / _DIFFERENCE and math.isfinite(after)

    @property
    def higher_loss(self) -> bool:
        """Whether the loss ends clearly above that without the cure, whatever the answers are."""
        return self.same_loss and self.cured.course.end > _DIFFERENCE * self.given.course.end

    @property
    def _fits_better(self) -> bool:
        """Whether a network that was not at ease gets clearly nearer to the training samples, if not to others."""
        given, cured = self.given, self.cured
        nearer = cured.course.trained_score - given.course.trained_score > _CLEARLY
        return nearer and not given.at_ease and cured.fitted - given.fitted > _WORTH_OF_BASELINE

    @property
    def worth(self) -> bool:
        """Whether it helps by so much that what it cures is what holds learning back."""
        return self.helps and (self.share > _WORTH_OF_BASELINE or self._fits_better)

    @property
    def share(self) -> float:
        """What the cure gains, as a part of what the best baseline gains over a constant (or of the first loss)."""
        best = self.given.best
        return (
            self.gain / (best.score - self.given.bench.baselines[0].score) if best is not None else self.gain
        )

    @property
    def lasts(self) -> bool:
        """Whether most of what was gained with the cure is still there at the end."""
        if not self.cured.scored:
            return True
        constant, last = self.given.bench.baselines[0].score, float(self.cured.course.scores[-3:].mean())
        return last - constant > _LASTING * (self.cured.score - constant)

    @property
    def heals(self) -> bool:
        """Whether the network was not seen to learn without the cure, and is with it."""
        return not self.given.learns and self.cured.learns

    @property
    def still(self) -> bool:
        """Whether neither training left its first loss, so that what theory says stands."""
        return all(
            not one.course.diverged and one.course.end > _LEFT * one.course.held_out[0]
            for one in (self.given, self.cured)
        )

    @property
    def sentence(self) -> str:
        """Both trainings in numbers."""
        given, cured = self.given, self.cured
        steps = len(cured.course.losses)
        if cured.scored and cured.bench.judge is not None:
            name = cured.bench.judge.measure.name
            before = (
                "beyond all bounds"
                if given.course.diverged
                else f"{round(max(given.score, -9.9), 4) + 0.0:.3g}"
            )
            when = f"after {steps} steps"
            if not self.lasts:
                when = f"at best in {steps} steps, {float(cured.course.scores[-1].mean()):.3g} at their end"
            return f"{name} {cured.score:.3g} {when} (without: {before})."
        before = "beyond all bounds" if given.course.diverged else f"{given.course.end:.3g}"
        return f"loss {cured.course.end:.3g} after {steps} steps (without: {before})."


def try_cure(case: Case, treatment: Treatment) -> Proof:
    """Train with the cure and without it, for as many steps."""
    given, treated = case.setup, with_chosen_rate(treatment.apply(case.setup))
    same = treated.task.loss is given.task.loss and treated.task.y is given.task.y
    return Proof(observe_briefly(given), observe_briefly(treated), same)


def prove(case: Case, examination: Examination) -> Examination:
    """The findings, without the treatments with which the network learns no better."""
    return replace(examination, findings=tuple(_proved(case, finding) for finding in examination.findings))


def _proved(case: Case, finding: Finding) -> Finding:
    cure, outcome = finding.treatment, outcome_of(case)
    known = SCORE_GAIN in finding.numbers or "held_out_loss" in finding.numbers
    if cure is None and outcome.learns and not outcome.at_ease and finding.severity <= Severity.WARNING:
        # What makes it slow: a fact that was measured, or a guess which nothing proves.
        return replace(finding, severity=Severity.NOTE if finding.vague else Severity.WARNING)
    if cure is None or finding.severity > Severity.WARNING or known:
        return finding  # the last have been tried already
    proof = try_cure(case, cure)
    if not proof.worth or proof.higher_loss:  # at another rate it may be
        both, suited = _at_suited_rate(case, finding, cure)
        if suited is not None and suited.helps and (not proof.helps or suited.gain > proof.gain):
            finding, proof = both, suited
    if not proof.helps and (outcome.learns or not proof.still):
        return replace(
            finding,
            severity=Severity.NOTE,
            evidence=f"{finding.evidence.rstrip('.')}. Tried ({cure.name}): {proof.sentence}",
            advice="Leave it as it is: this network learns no better with the cure.",
            code="",
            treatment=None,
        )
    if outcome.learns and not proof.worth:
        advice = f"It learns without as well ({proof.sentence.rstrip('.')}). {finding.advice}"
        return replace(finding, severity=Severity.NOTE, advice=advice)
    severity = Severity.CRITICAL if proof.heals else finding.severity
    if outcome.learns or not (proof.heals or proof.worth):
        severity = Severity.WARNING  # not what stops it
    return replace(
        finding,
        severity=severity,
        numbers={**finding.numbers, SCORE_GAIN: proof.gain},
        proof=f"With the cure: {proof.sentence}" if proof.helps else "",
    )


def _at_suited_rate(case: Case, finding: Finding, cure: Treatment) -> tuple[Finding, Proof | None]:
    """The finding with a cure that also takes the rate which suits the cured network, where descent has one."""
    treated = with_chosen_rate(cure.apply(case.setup))
    if not treated.recipe.is_descent or treated.recipe.chosen:
        return finding, None
    factor = float(f"{edge(Case(treated)).recommended / treated.recipe.rate:.3g}")

    def apply(setup: Setup) -> Setup:
        cured = cure.apply(setup)
        return cured.with_recipe(cured.recipe.scaled(factor))

    rate = treated.recipe.rate * factor
    both = replace(
        finding,
        advice=f"{finding.advice.rstrip('.')}; the learning rate that suits it then is {rate:.2g}.",
        code=f"{finding.code}\n{rate_code(factor)}" if finding.code else "",
        treatment=Treatment(f"{cure.name}, learning rate x {factor:.3g}", apply),
    )
    return both, try_cure(case, both.treatment or cure)


def spare(case: Case, examination: Examination) -> Examination:
    """The findings, without the treatments that would undo what was learned."""
    treatable = [one for one in examination.findings if one.treatment and one.severity <= Severity.WARNING]
    if not treatable or not has_learned(case):
        return examination
    return replace(examination, findings=tuple(_spared(case, finding) for finding in examination.findings))


def _spared(case: Case, finding: Finding) -> Finding:
    if finding.treatment is None or finding.severity > Severity.WARNING:
        return finding
    treated = Case(finding.treatment.apply(case.setup))
    if treated.setup.model is case.setup.model and treated.task is case.task:
        return finding
    (now, constant), after = losses_of(case), treated.chosen(LOOKED_AT).value(treated.model)
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
