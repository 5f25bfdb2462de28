"""Does it learn? What a short real training showed, beside baselines: see :mod:`foretrain.doctor.outcome`.

This is the symptom. Its causes are named by the other checks, which come before it wherever they complain.
"""

from __future__ import annotations

from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.doctor.outcome import Outcome, Status, learned_by_heart, outcome_of
from foretrain.doctor.setup import Case
from foretrain.support.progress import OutOfTimeError

_SOURCE = (
    "measured: a short training as given, on samples held out, beside baselines fitted to the same samples"
)
_HARDLY = 0.25  # of what the best baseline gains: a network that gained less has hardly learned
_BY_HEART = 0.9  # of the loss of a constant
_SEVERITY = {
    Status.LEARNS: Severity.GOOD,
    Status.LESS: Severity.WARNING,
    Status.STALLS: Severity.CRITICAL,
    Status.DIVERGES: Severity.CRITICAL,
    Status.FAILS: Severity.CRITICAL,
    Status.BY_HEART: Severity.WARNING,
    Status.NOTHING: Severity.WARNING,
    Status.UNSEEN: Severity.WARNING,
}
_ADVICE = {
    Status.LESS: "Look at what the other checks say; if they find nothing, train longer or at another rate, and "
    "compare with the simple learner named here.",
    Status.STALLS: "Look at what the other checks say first; then take the network apart until the rest learns.",
    Status.DIVERGES: "Lower the learning rate, and look at what the other checks say about scales.",
    Status.FAILS: "Mend what the message says: the model runs, but a step of training does not.",
    Status.BY_HEART: "Look whether y belongs to x row by row; if it does, give more samples, or regularise.",
    Status.NOTHING: "Look whether y belongs to x row by row (a shuffle or a shift of one of them ends like this); "
    "if it does, no linear model, neighbour or short training sees the relation in these samples: give more of them.",
    Status.UNSEEN: "Train longer, and look at what the other checks say.",
}


def check(case: Case) -> Examination:
    """The verdict as a finding, with the curve and the baselines as data."""
    outcome = outcome_of(case)
    return Examination((_finding(case, outcome),), outcome.to_dataset())


def _finding(case: Case, outcome: Outcome) -> Finding:
    status, severity = outcome.status, _SEVERITY[outcome.status]
    gain, error = outcome.gain
    if status is Status.LESS and outcome.best is not None:
        wanted = outcome.best.score - outcome.bench.baselines[0].score
        severity = Severity.CRITICAL if gain < _HARDLY * wanted else severity
    numbers = {
        "gain": gain,
        "gain_error": error,
        "constant_loss": outcome.constant,
        "steps": float(len(outcome.course.losses)),
    }
    if outcome.scored:
        numbers |= {"score": outcome.score} | {one.name: one.score for one in outcome.bench.baselines}
    evidence = outcome.evidence
    advice = _ADVICE.get(status, "")
    if outcome.course.unfinished and status is Status.UNSEEN:
        advice = "Give a larger budget: the training was cut before it could show whether it learns."
    elif status in (Status.LESS, Status.STALLS, Status.NOTHING, Status.UNSEEN):
        try:
            numbers["by_heart"] = learned_by_heart(case)
        except OutOfTimeError:
            return Finding(severity, outcome.sentence, evidence, _SOURCE, advice, numbers=numbers)
        evidence += (
            " Trained on eight samples alone it learns them by heart: model, loss and optimizer work together."
            if numbers["by_heart"] > _BY_HEART
            else " Trained on eight samples alone it does not even learn these: look at model, loss and optimizer."
        )
    return Finding(severity, outcome.sentence, evidence, _SOURCE, advice, numbers=numbers)
