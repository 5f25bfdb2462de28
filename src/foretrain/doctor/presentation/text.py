"""A diagnosis in words: headline, complaints from the worst on with evidence and advice, one line for the rest."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from foretrain.doctor.checks import CHECKS
from foretrain.doctor.finding import Finding, Severity

if TYPE_CHECKING:
    from foretrain.doctor.diagnosis import Diagnosis
    from foretrain.doctor.treatment import Plan
    from foretrain.doctor.verification import Verification

_NARROWEST, _WIDEST = 40, 100  # characters in a line, as wide as the terminal
_CODE_LINES = 14  # of one finding; all of it is in finding.code
_DIFFERENCE = 1.1  # factors of the loss below this one are called no difference


def headline(diagnosis: Diagnosis) -> str:
    """One sentence: how many findings, and the worst."""
    complaints = list(diagnosis.complaints())
    made = [one for one in diagnosis.examinations.values() if not one.skipped and not one.failed]
    failed = [name for name, one in diagnosis.examinations.items() if one.failed]
    if not made:
        return "None of the checks applies to this model: see why each was skipped."
    if not complaints:
        open_ones = f", but {_count(len(failed), 'check')} failed: {', '.join(failed)}" if failed else ""
        return (
            f"Healthy: nothing was found that holds learning back ({_count(len(made), 'check')}){open_ones}."
        )
    counts = [
        _count(sum(finding.severity is severity for _, finding in complaints), word)
        for severity, word in ((Severity.CRITICAL, "critical finding"), (Severity.WARNING, "warning"))
        if any(finding.severity is severity for _, finding in complaints)
    ]
    return f"{' and '.join(counts)}: {_sentence(complaints[0][1].title)}"


def told(diagnosis: Diagnosis) -> str:
    """The whole diagnosis as text."""
    parts = [headline(diagnosis), patient(diagnosis)]
    parts += [complaint(diagnosis, name, finding) for name, finding in diagnosis.complaints()]
    parts.append("\n".join(in_one_line_each(diagnosis)))
    if not diagnosis.healthy:
        parts.append(
            _wrapped(
                "Next: .plan() carries out the advice on a copy, .verify() trains with and without it, "
                ".findings[i].code has the code."
            )
        )
    return "\n\n".join(part for part in parts if part)


def patient(diagnosis: Diagnosis) -> str:
    """What was looked at."""
    setup = diagnosis.setup
    count = sum(p.numel() for p in setup.model.parameters() if p.requires_grad)
    batch = "all samples" if setup.batch_size is None else f"{setup.batch_size} samples"
    chosen = " (chosen by the doctor)" if setup.recipe.chosen else ""
    state = "" if setup.fresh else " Training has begun."
    text = (
        f"{type(setup.model).__name__} with {count} parameters on {len(setup.task.x)} samples: "
        f"{setup.task.loss_name}, {setup.recipe}{chosen}, {batch} in a step.{state}"
    )
    return _wrapped(" ".join([text, *setup.notes]))


def complaint(diagnosis: Diagnosis, check: str, finding: Finding) -> str:
    """One critical finding or warning, with evidence, advice and code."""
    lines = [_wrapped(f"{finding.severity.name}: {_sentence(finding.title)}  [{check}]")]
    cause = diagnosis.cause_of(check, finding)
    if cause is not None:
        lines.append(_wrapped(f"Probably a consequence of {cause}: treat that first.", "  "))
    if finding.evidence:
        source = f" ({finding.source})" if finding.source else ""
        lines.append(_wrapped(f"{finding.evidence.rstrip('.')}.{source}", "  "))
    if finding.advice and cause is None:
        lines.append(_wrapped(f"Do: {finding.advice}", "  "))
    if finding.code and cause is None:
        lines += [f"    {line}" for line in _shortened(finding.code)]
    return "\n".join(lines)


def in_one_line_each(diagnosis: Diagnosis) -> Iterator[str]:
    """Notes, what is healthy, and what was skipped with the reason."""
    for name, finding in diagnosis.by_severity():
        if finding.severity > Severity.WARNING:
            label = "note" if finding.severity is Severity.NOTE else "good"
            yield _wrapped(f"{label:<8}{name}: {_sentence(finding.title)}", hanging="        ")
    for check in CHECKS:
        one = diagnosis.examinations.get(check.name)
        if one is not None and one.skipped:
            yield _wrapped(f"{'skipped':<8}{check.name}: {one.skipped}", hanging="        ")


def plan_text(plan: Plan) -> str:
    """The treatments that were carried out, in their order."""
    if not plan.steps:
        return "There is nothing to treat automatically."
    lines = [f"{number}. {step.treatment.name}  [{step.check}]" for number, step in enumerate(plan.steps, 1)]
    return "\n".join(["Treatment, in this order:", *lines])


def verdict(trained: Verification) -> str:
    """One honest sentence about the two trainings."""
    given, treated = trained.given, trained.treated
    start, steps = given.losses[0] if len(given.losses) else math.nan, int(treated.steps[-1])
    ended = f" ({trained.stopped})" if trained.stopped else ""
    if "treated" not in trained.curves:
        if given.diverged_at is not None:
            return f"nothing was treated, and training diverged at step {given.diverged_at}{ended}."
        return f"nothing was treated; in {steps} steps the loss went from {start:.4g} to {given.final:.4g}{ended}."
    if given.diverged_at is not None and treated.diverged_at is not None:
        return (
            f"the advice does not help: both trainings diverged, at steps {given.diverged_at} and "
            f"{treated.diverged_at}{ended}."
        )
    if treated.diverged_at is not None:
        return (
            f"the advice does harm: with it training diverged at step {treated.diverged_at}, without it the loss "
            f"reached {given.final:.4g}{ended}."
        )
    if given.diverged_at is not None:
        return (
            f"the advice helps: without it training diverged at step {given.diverged_at}, with it the loss reached "
            f"{treated.final:.4g} after {steps} steps{ended}."
        )
    return f"{_compared(trained, steps)}{ended}."


def _compared(trained: Verification, steps: int) -> str:
    given, treated, factor = trained.given, trained.treated, trained.improvement
    where = f" on {trained.samples} samples held out" if trained.unseen else ""
    over = treated.final_over
    smooth = f" (median of the last {over} steps)" if over > 1 else ""
    ends = f"{treated.final:.4g} with it and {given.final:.4g} without{smooth}"
    losses = f"after {steps} steps the loss{where} is {ends}"
    if factor >= _DIFFERENCE:
        times = f", {factor:.3g} times less" if math.isfinite(factor) else ""
        sooner = ""
        if 1 < trained.speedup < math.inf:
            sooner = f"; the given network's best loss is reached {trained.speedup:.3g} times sooner"
        return f"the advice helps: {losses}{times}{sooner}"
    if factor > 1 / _DIFFERENCE:
        return f"the advice makes little difference here: {losses}"
    return f"the advice does not help in this run: {losses}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _width() -> int:
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))


def _wrapped(text: str, first: str = "", hanging: str | None = None) -> str:
    following = first if hanging is None else hanging
    return "\n".join(
        wrap(text, _width(), initial_indent=first, subsequent_indent=following, break_long_words=False)
    )


def _shortened(code: str) -> list[str]:
    lines = code.strip("\n").splitlines()
    if len(lines) <= _CODE_LINES:
        return lines
    kept = _CODE_LINES - 1
    return [
        *lines[:kept],
        f"# ... {len(lines) - kept} more lines: finding.code in Python, --json on the command line",
    ]
