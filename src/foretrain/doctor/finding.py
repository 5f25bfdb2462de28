"""What a check says: findings with evidence and advice, the measurements behind them, and the words for both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from inspect import getsourcelines
from textwrap import wrap
from typing import TYPE_CHECKING

from foretrain.support.answers import Answer, Code, Facts, Part, Result, labelled

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.setup import Setup

SCORE_GAIN = "score_gain"  # among the numbers of a finding: what its cure gained on samples held out
_MOST_PLACES = 12  # that a finding lists
_WIDTH = 92  # of a line of code
_WRITTEN_OUT = 1e6  # steps; more are told by their power of ten
_FARTHEST = 14  # power of ten of steps


class Severity(IntEnum):
    """How much a finding holds learning back; sorts from the worst."""

    CRITICAL = 0  # the network will not learn, or hardly
    WARNING = 1  # it learns, but much slower or less than it could
    NOTE = 2  # worth knowing; nothing to do, or nothing certain
    GOOD = 3  # looked at and healthy

    @property
    def word(self) -> str:
        """In lower case, for people and machines."""
        return self.name.lower()


@dataclass(frozen=True)
class Treatment:
    """Advice that can be carried out: ``change`` takes a setup to a better one and leaves the given one as it is."""

    name: str
    change: Callable[[Setup], Setup]

    def apply(self, setup: Setup) -> Setup:
        """The treated setup: always the same one, so that what is measured of it is kept with it."""
        key = (self, repr(setup.recipe))
        if key not in setup.known:
            setup.known[key] = self.change(setup)
        treated: Setup = setup.known[key]
        return treated


@dataclass(frozen=True, repr=False)
class Finding(Result):
    """One thing that was found.

    ``title`` says it in one plain sentence, ``evidence`` with numbers, ``source`` names the theory (author and
    equation), ``advice`` what to do (empty for good news) and ``code`` is Python that does it to ``model``,
    ``optimizer``, ``x``; ``proof`` says what a training with it showed. ``numbers`` are the evidence for machines,
    ``where`` the layers or features concerned.
    ``vague`` orders findings of one severity: 0 names a fault, 1 a setting that may make up for another fault, 2 only
    the part or place where the fault is.
    """

    severity: Severity
    title: str
    evidence: str
    source: str
    advice: str = ""
    code: str = ""
    treatment: Treatment | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    vague: int = 0
    proof: str = ""

    @property
    def rank(self) -> tuple[float, int, float]:
        """Sorts what names a fault before what only names its place, and then by what cures gained."""
        severity = (
            Severity.WARNING + 0.25 if self.vague > 1 and self.severity <= Severity.WARNING else self.severity
        )
        return severity, self.vague, -self.numbers.get(SCORE_GAIN, 0.0)

    def answer(self, check: str = "", cause: str | None = None, *, code: bool = True) -> Answer:
        """A card with evidence, advice and theory; ``cause`` names the check whose treatment should come first."""
        more = len(self.where) - _MOST_PLACES
        texts = {
            "Evidence": self.evidence,
            "Advice": f"Probably a consequence of {cause}: treat that first." if cause else self.advice,
            "Proof": "" if cause else self.proof,
            "Theory": self.source,
            "Where": ", ".join(self.where[:_MOST_PLACES]) + (f" and {more} more" if more > 0 else ""),
        }
        parts: list[Part] = [Facts({name: text for name, text in texts.items() if text})]
        if self.code and code and cause is None:
            parts.append(Code(self.code, "The advice as code", brief=True))
        record = vars(self) | {
            "severity": self.severity.word,
            "treatment": None if self.treatment is None else self.treatment.name,
            "numbers": {name: finite(value) for name, value in self.numbers.items()},
            "where": list(self.where),
        }
        return Answer(
            self.title if self.title.endswith((".", "!", "?")) else f"{self.title}.",
            parts,
            data=lambda: labelled(self.numbers),
            record=record,
            title=check,
            tone=self.severity.word,
            folded=self.severity > Severity.WARNING,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Examination(Result):
    """What one check found: at least one finding, and the labelled measurements behind it."""

    findings: tuple[Finding, ...] = ()
    data: xarray.Dataset | None = None
    skipped: str = ""  # one sentence, where the check does not apply to this model
    failed: bool = False  # by an error of its own; its only finding says so
    cut: bool = False  # not looked at, because the time was over; ``skipped`` says so
    untried: bool = False  # the cures of its findings were not tried, because the time was over

    @property
    def worst(self) -> Finding | None:
        """The finding that holds learning back most; None if the check was skipped."""
        return min(self.findings, key=lambda finding: finding.severity, default=None)

    def answer(self) -> Answer:
        """Its findings from the worst on, or why it was skipped."""
        said = f"This check was skipped: {self.skipped}" if self.skipped else ""
        ranked = sorted(self.findings, key=lambda finding: finding.severity)
        return Answer(said, [finding.answer() for finding in ranked], self.data)


def finite(value: float) -> float | None:
    """A number as JSON has it, or None."""
    return float(value) if math.isfinite(value) else None


def number_of(count: int, word: str, several: str = "") -> str:
    """A number with its noun: "1 layer", "3 layers"."""
    return f"{count} {word if count == 1 else several or f'{word}s'}"


def all_of(count: int, word: str, several: str = "") -> str:
    """All of so many: "the only layer", "both layers", "all 3 layers"."""
    named = number_of(count, word, several)
    return f"the only {word}" if count == 1 else f"both {named[2:]}" if count == 2 else f"all {named}"


def counted(steps: float) -> str:
    """Numbers of steps, two digits of which are all that a forecast knows: "25", "1,300", "2 x 10^8"."""
    if not steps < 10**_FARTHEST:
        return f"more than 10^{_FARTHEST}"
    if steps < 1:
        return "1" if steps > 0 else "0"
    power = math.floor(math.log10(steps))
    rounded = round(steps, 1 - power) if power > 0 else round(steps)
    if rounded < _WRITTEN_OUT:
        return f"{rounded:,.0f}"
    digits, exponent = f"{rounded:.1e}".split("e")
    return f"{digits.removesuffix('.0')} x 10^{int(exponent)}"


def body_of(function: Callable[..., object]) -> str:
    """The lines of a function below its head, so that the code that is shown is the code that is carried out."""
    return "".join(getsourcelines(function)[0][1:]).rstrip()


def dictionary_code(name: str, rows: Iterable[str], comment: str = "") -> list[str]:
    """Lines of Python that make a dictionary, with as many of its entries ("key: value") in a line as fit."""
    # A key stays with the start of its value.
    joined = " ".join(f"{row}," for row in rows).replace(": ", ":\0")
    lines = wrap(joined, _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    after = f"  # {comment}" if comment else ""
    return [f"{name} = {{{after}", *(f"    {line}".replace("\0", " ") for line in lines), "}"]


def scaling_code(factors: Mapping[str, float]) -> str:
    """Python that multiplies parameters by their factors."""
    return "\n".join(
        [
            *dictionary_code("factors", (f"{name!r}: {factor!r}" for name, factor in factors.items())),
            "with torch.no_grad():",
            "    for name, factor in factors.items():",
            "        model.get_parameter(name).mul_(factor)",
        ]
    )
