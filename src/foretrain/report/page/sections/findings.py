"""What was found: the verdict, a card for every finding, and the questions that were asked."""

from __future__ import annotations

from collections import Counter

from foretrain.doctor.checks import CHECKS
from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.report.page.markup import Markup, element
from foretrain.report.page.patient import Patient
from foretrain.report.page.section import Section
from foretrain.report.page.table import Table, table

_SYMBOLS = {Severity.CRITICAL: "✖", Severity.WARNING: "▲", Severity.NOTE: "●", Severity.GOOD: "✔"}
_MOST_PLACES = 12  # that a card lists


def badge(severity: Severity) -> Markup:
    """The severity as a symbol and a word, so that nobody has to tell colours apart."""
    symbol = element("span", _SYMBOLS[severity], aria_hidden="true")
    return element("span", symbol, severity.word.capitalize(), class_=f"badge {severity.word}")


def verdict(patient: Patient, link: str = "") -> Markup:
    """The worst finding in one sentence, or a clean bill; a link where it stands on top of the page."""
    found = patient.diagnosis.findings
    worst = found[0].severity if found else Severity.NOTE
    told = found[0].title if found and worst <= Severity.WARNING else _clean_bill(patient)
    tone = Severity.GOOD if worst is Severity.NOTE and found else worst  # notes hold nothing back
    return element(
        "a" if link else "div",
        element("span", patient.name, class_="counts") if link else None,
        element("div", badge(tone)),
        element("p", told),
        element("p", _counts(patient), class_="counts"),
        class_=f"verdict {tone.word}",
        href=link or None,
    )


def findings(patient: Patient) -> Section:
    """A card for every finding, from the worst on; good news is folded."""
    found = patient.diagnosis
    cards = [_card(finding, found.cause_of(check, finding)) for check, finding in found.by_severity()]
    lead = "From the worst on; causes come before their consequences. Open a card for evidence, source and advice."
    return Section("findings", "Findings", lead, [element("div", cards, class_="cards")])


def checks(patient: Patient) -> Section:
    """Every question that was asked, also those that do not apply to this network."""
    asked = patient.diagnosis.examinations
    questions = {check.name: check.question for check in CHECKS}
    rows = [(questions.get(name, name), _result(found), _answer(found)) for name, found in asked.items()]
    told = Table("All checks with their result", ("Question", "Result", "Answer"), rows)
    return Section("checks", "All checks", "", [element("div", table(told), class_="checks")])


def _clean_bill(patient: Patient) -> str:
    examined = [one for one in patient.diagnosis.examinations.values() if not (one.skipped or one.failed)]
    if not examined:
        return "Nothing could be examined: every check was skipped, for the reasons given below."
    return f"A clean bill of health: none of {len(examined)} checks found anything that holds learning back."


def _counts(patient: Patient) -> str:
    number = Counter(finding.severity for finding in patient.diagnosis.findings)
    words = {Severity.WARNING: "warning", Severity.NOTE: "note"}  # of which there may be some
    told = [
        f"{number[one]} {one.word}{'s' if one in words and number[one] > 1 else ''}"
        for one in Severity
        if number[one]
    ]
    skipped = sum(bool(one.skipped) for one in patient.diagnosis.examinations.values())
    return ", ".join([*told, *([f"{skipped} skipped"] if skipped else [])])


def _card(finding: Finding, cause: str | None) -> Markup:
    """What is probably healed together with its cause has no code of its own."""
    told = {
        "Evidence": finding.evidence,
        "Advice": finding.advice,
        "Theory": finding.source,
        "Where": _where(finding),
    }
    if cause is not None:
        told["Advice"] = f"This is probably a consequence of the check “{_words(cause)}”: treat that first."
    return element(
        "details",
        element("summary", badge(finding.severity), element("h4", finding.title)),
        element(
            "div",
            element("dl", [[element("dt", k), element("dd", text)] for k, text in told.items() if text]),
            _own_code(finding) if finding.code and cause is None else None,
            class_="body",
        ),
        class_=f"card {finding.severity.word}",
        open=finding.severity <= Severity.WARNING,
    )


def _own_code(finding: Finding) -> Markup:
    """Folded, since the plan on top of the page has the code of all treatments."""
    return element(
        "details",
        element("summary", "The advice as code"),
        code_block(finding.code, "Of this finding alone"),
        class_="more",
    )


def _where(finding: Finding) -> str:
    shown, more = finding.where[:_MOST_PLACES], len(finding.where) - _MOST_PLACES
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _words(check: str) -> str:
    return check.replace("_", " ")


def code_block(code: str, label: str) -> Markup:
    """Code with a button that copies it."""
    return element(
        "div",
        element(
            "div",
            element("span", label),
            element("button", "Copy code", type="button", class_="copy"),
            class_="bar",
        ),
        element("pre", element("code", code), tabindex=0, role="region", aria_label=label),
        class_="code",
    )


def _result(found: Examination) -> Markup | str:
    return badge(min(finding.severity for finding in found.findings)) if found.findings else "skipped"


def _answer(found: Examination) -> str:
    if found.skipped:
        return f"Does not apply: {found.skipped}"
    return min(found.findings, key=lambda finding: finding.severity).title if found.findings else ""
