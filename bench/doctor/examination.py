"""One case through `ft.doctor`, judged: what it said, whether it named the cause, and whether its cure cures."""

from __future__ import annotations

import copy
import hashlib
import math
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import foretrain as ft
from bench.doctor.case import Case
from bench.doctor.training import Outcome, train
from foretrain.doctor.diagnosis import Diagnosis
from foretrain.doctor.finding import Severity
from foretrain.doctor.setup import Setup
from foretrain.support.errors import ForetrainError

HEALTHY, ILL, REFUSED, FAILED, LATE = "healthy", "ill", "refused", "failed", "late"
BETTER = 1.05  # times a smaller loss: what is nearer to 1 may be an accident
BETTER_SCORE = 0.02  # of 1, where losses cannot be compared
NOTHING, CURED, SAME, HARMED = "nothing", "better", "same", "worse"


@dataclass(frozen=True)
class Result:
    """What became of one case. `outcome` is what the doctor called it, or why it said nothing."""

    name: str
    family: str
    split: str
    seed: int
    faulty: bool
    outcome: str
    agrees: bool = True  # whether headline and `diagnosis.healthy` say the same
    complaint: bool = False  # whether there is a warning or a critical finding
    first: bool = False  # whether the first finding names the cause
    anywhere: bool = False
    finding: str = ""  # severity, check and title of the first, or the message of an error
    seconds: float = 0.0
    cure: str = ""  # what the plan's treatment does to held-out data; empty if it was not tried
    cure_numbers: str = ""

    def record(self, reveal: bool) -> dict[str, Any]:
        """For JSON; of a case that is to stay unseen neither name nor words."""
        values = asdict(self)
        if not reveal:
            values |= {"name": hidden(self.name), "finding": "", "cure_numbers": ""}
        return values


def hidden(name: str) -> str:
    """What stands for the name of an unseen case."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def examine(case: Case, seed: int, *, cures: bool, limit: float) -> Result:
    """Ask the doctor, and with `cures` carry out its plan and train with and without it."""
    known = (case.name, case.family, case.split, seed, case.fault is not None)
    start = time.monotonic()
    try:
        with warnings.catch_warnings(), ends_after(limit):
            warnings.simplefilter("ignore")
            model, x, y, options = case.make(seed)
            diagnosis = ft.doctor(model, x, y, seed=seed, budget=math.inf, **options)
            seconds = time.monotonic() - start
            judged = judge(case, diagnosis) | {"seconds": seconds}
            if cures:
                judged |= try_cure(case, diagnosis, seed)
        return Result(*known, **judged)
    except ForetrainError as error:
        named = case.names_cause(str(error))
        return Result(
            *known, REFUSED, True, True, named, named, f"refused: {error}", time.monotonic() - start
        )
    except TimeoutError as error:
        return Result(*known, LATE, finding=str(error), seconds=time.monotonic() - start)
    except Exception as error:
        words = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return Result(*known, FAILED, finding=words, seconds=time.monotonic() - start)


def judge(case: Case, diagnosis: Diagnosis) -> dict[str, Any]:
    """What a diagnosis says, beside what it should say."""
    texts = [
        (finding, f"{check} {finding.title} {finding.evidence} {finding.advice}")
        for check, finding in diagnosis.by_severity()
    ]
    told_healthy = diagnosis.headline.startswith("Healthy")
    called_healthy = told_healthy and diagnosis.healthy
    first = (
        ""
        if not texts
        else f"{texts[0][0].severity.word}, {diagnosis.by_severity()[0][0]}: {texts[0][0].title}"
    )
    return {
        "outcome": HEALTHY if called_healthy else ILL,
        "agrees": told_healthy == diagnosis.healthy,
        "complaint": any(finding.severity <= Severity.WARNING for finding, _ in texts),
        # A network that is called healthy has no cause of illness, whatever words its good findings have.
        "first": bool(texts) and not called_healthy and case.names_cause(texts[0][1]),
        "anywhere": any(
            case.names_cause(text if finding.severity <= Severity.WARNING else finding.title)
            for finding, text in texts
            if finding.severity <= Severity.NOTE
        ),
        "finding": first,
    }


def try_cure(case: Case, diagnosis: Diagnosis, seed: int) -> dict[str, Any]:
    """Train the setup as given and as treated alike, and compare them on samples that neither has seen."""
    plan = diagnosis.plan()
    if not plan.steps:
        return {"cure": NOTHING}
    given, treated = (_trained(setup, plan.given, case, seed) for setup in (plan.given, plan.treated))
    same_units = plan.treated.task.loss is plan.given.task.loss and plan.treated.task.y.equal(
        plan.given.task.y
    )
    numbers = f"loss {given.loss:.3g} -> {treated.loss:.3g}, score {given.score:.2f} -> {treated.score:.2f}"
    return {"cure": compare(given, treated, same_units), "cure_numbers": numbers}


def _trained(setup: Setup, given: Setup, case: Case, seed: int) -> Outcome:
    model = copy.deepcopy(setup.model)
    optimizer = setup.recipe.build(model)
    task = setup.task
    return train(
        model, task.x, task.y, task.loss, optimizer, setup.batch_size or given.batch_size, seed, case.score
    )


def compare(given: Outcome, treated: Outcome, same_units: bool) -> str:
    """Whether the treated setup is better on held-out data: by the loss, or by the score where units differ."""
    if same_units:
        before, after = (value if math.isfinite(value) else math.inf for value in (given.loss, treated.loss))
        if after == before:
            return SAME
        if min(before, after) > 0:  # else the loss has no scale, and the sign of the difference counts
            ratio = after / before
            return CURED if ratio < 1 / BETTER else HARMED if ratio > BETTER else SAME
        return CURED if after < before else HARMED
    gain = treated.score - given.score
    return CURED if gain > BETTER_SCORE else HARMED if gain < -BETTER_SCORE else SAME


@contextmanager
def ends_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside once so much time has passed; in the main thread of a process."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
