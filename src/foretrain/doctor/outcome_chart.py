"""The outcome as a picture: the training as given beside lines for the baselines, and the training with a cure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, Axis, Figure, scale_for

if TYPE_CHECKING:
    from foretrain.doctor.outcome import Outcome
    from foretrain.doctor.proof import Proof

_LOWEST = -1.0  # score that is drawn: far worse than a constant is no matter of degree
_TICKS = {place / 5: f"{place / 5:g}" for place in range(-5, 6)}
_INTERVALS = 4  # along the steps
_WIDE = 30.0  # factor between losses from which on their axis is logarithmic
_LINES = ((":", INK), ("--", ORANGE), ("-.", PURPLE), ("--", SKY), (":", FAINT))  # baselines


def outcome_chart(outcome: Outcome, proof: Proof | None = None) -> Figure:
    """One panel: scores by step beside those of the baselines, or losses where only they can tell.

    With a ``proof`` the training with the cure stands beside the one as given.
    """
    if not outcome.scored:
        return loss_chart(outcome, proof)
    course, figure = outcome.course, Figure(size=(9.5, 4.6))
    judge = outcome.bench.judge
    name = judge.measure.name if judge else "score"
    where = "samples held out" if outcome.apart else "the training samples"
    title = f"{name.capitalize()} on {where}"
    caption = "Lines across: simple learners, fitted to the same training samples."
    panel = figure.panel(title, legend="right", caption=caption)
    curves = [("as given", outcome, "o-", BLUE)]
    if proof is not None and proof.cured.scored:
        curves.append(("with the cure", proof.cured, "s-", GREEN))
    lowest = min(one.score for one in outcome.bench.baselines)
    for label, one, style, color in curves:
        scores = np.where(np.isfinite(one.course.scores), one.course.scores, np.nan).mean(1)
        panel.curve(one.course.steps, scores, style, label, color)
        lowest = min(lowest, float(np.nanmin(scores, initial=lowest)))
    lowest = 0.0 if judge and judge.measure.kind != "numbers" else max(lowest - 0.05, _LOWEST)
    last = max(_INTERVALS, *(int(one.course.steps[-1]) for _, one, _, _ in curves))
    steps = np.linspace(0, last, _INTERVALS + 1).astype(int)
    panel.x = Axis("step", ticks={int(step): f"{step}" for step in steps})
    panel.y = Axis(name, low=lowest, high=1.05, ticks=_TICKS)
    if outcome.apart and math.isfinite(course.trained_score) and not course.diverged:
        end = course.steps[-1:], [max(course.trained_score, _LOWEST)]
        panel.curve(*end, "D", "as given, training samples", BLUE, size=8, hollow=True)
    for baseline, (dash, color) in zip(
        outcome.bench.baselines, _LINES
    ):  # in the legend: words on them may overlap
        score = max(baseline.score, _LOWEST)
        panel.curve(steps[[0, -1]], [score, score], dash, baseline.name, color)
    if course.diverged:
        panel.level(x=len(course.losses), label="diverges", dash=":", color=BLUE)
    return figure


def loss_chart(outcome: Outcome, proof: Proof | None = None) -> Figure:
    """The loss by step, of the training samples and of those held out; a cure that changes its units is left out."""
    figure = Figure(size=(9.5, 4.6))
    runs = [("as given", outcome.course, BLUE)]
    if proof is not None and proof.same_loss:
        runs.append(("with the cure", proof.cured.course, GREEN))
    losses = np.concatenate([np.concatenate([run.losses, run.held_out]) for _, run, _ in runs])
    panel = figure.panel(
        "Loss by step",
        x="step",
        y=Axis(f"loss ({outcome.loss_name})", scale_for(losses, _WIDE)),
        legend="right",
        caption=outcome.evidence,
    )
    for label, run, color in runs:
        steps, trained = np.arange(len(run.losses)), np.where(np.isfinite(run.losses), run.losses, np.nan)
        panel.curve(steps, trained, "-", f"{label}, samples of the step", color, width=0.8, alpha=0.5)
        if outcome.apart:
            held_out = np.where(np.isfinite(run.held_out), run.held_out, np.nan)
            panel.curve(run.steps, held_out, "o-", f"{label}, held out", color)
    if math.isfinite(outcome.constant):
        panel.level(outcome.constant, label="best constant answer", dash=":", color=INK, width=1.6)
    if outcome.course.diverged:
        panel.level(x=len(outcome.course.losses), label="diverges", dash=":", color=BLUE)
    return figure
