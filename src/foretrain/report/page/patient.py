"""A network on the page: its diagnosis, what was found, what to do, and what was seen when it was trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from foretrain.doctor.checks import CHECKS
from foretrain.doctor.finding import Severity
from foretrain.doctor.outcome_chart import loss_chart
from foretrain.support.answers import Answer, Code, Facts, Part, Table, Tone, dataset_tables
from foretrain.support.answers.formulas import number_text
from foretrain.support.answers.html import Markup, badge, element
from foretrain.support.errors import NotSupportedError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.diagnosis import Diagnosis
    from foretrain.doctor.learning_curve import LearningCurve
    from foretrain.doctor.verification import Verification

_SECONDS = 20.0  # of one verification of a built-in network at most, so that both take less than two minutes


@dataclass(frozen=True, eq=False)
class Patient:
    """A network on the page. Sections whose data are missing are left out."""

    name: str
    diagnosis: Diagnosis
    verification: Verification | None = None
    curve: LearningCurve | None = None

    @classmethod
    def trained(cls, name: str, diagnosis: Diagnosis, steps: int, seconds: float = 60.0) -> Patient:
        """With its predicted and real learning curve and its verification; without them for 0 steps."""
        from foretrain.doctor.learning_curve import learning_curve
        from foretrain.doctor.setup import Case

        if not steps:
            return cls(name, diagnosis)
        try:
            curve = learning_curve(Case(diagnosis.setup), steps)
        except NotSupportedError:  # the page has no prediction for a model that cannot be linearised
            curve = None
        return cls(name, diagnosis, diagnosis.verify(steps, seconds=seconds), curve)

    def data(self, check: str, *needed: str) -> xarray.Dataset | None:
        """The measurements of a check, if it was carried out and has those that are needed."""
        found = self.measurements.get(check)
        return found if found is not None and all(name in found for name in needed) else None

    @property
    def measurements(self) -> Mapping[str, xarray.Dataset]:
        """All measurements, by check."""
        found = {name: one.data for name, one in self.diagnosis.examinations.items()}
        return {name: data for name, data in found.items() if data is not None}


def example_patients(steps: int, seed: Seed = 0) -> list[Patient]:
    """The two built-in networks: diagnosis, learning curve and verification; without training for 0 steps."""
    from foretrain.doctor.examine import diagnose
    from foretrain.doctor.examples import examples

    return [
        Patient.trained(name, diagnose(setup), steps, seconds=_SECONDS)
        for name, setup in track(examples(seed), "built-in networks")
    ]


def verdict(patient: Patient, link: str = "") -> Markup:
    """What the training showed in one sentence, and what was not looked at; a link where it stands on top."""
    diagnosis = patient.diagnosis
    found, shown = diagnosis.findings, diagnosis.outcome if diagnosis.short_training else None
    worst = min((finding.severity for finding in found), default=Severity.NOTE)
    tone = worst if worst <= Severity.WARNING or not found else Severity.GOOD  # notes hold nothing back
    if not diagnosis.healthy and tone is Severity.GOOD:
        tone = Severity.NOTE  # nothing was found, and it was not seen to learn
    number = Counter(finding.severity for finding in found)
    counts = [
        f"{number[one]} {one.word}{'s' if one in (Severity.WARNING, Severity.NOTE) and number[one] > 1 else ''}"
        for one in Severity
        if number[one]
    ]
    sentence = shown.title if shown else diagnosis.headline
    notes = [] if link else diagnosis.setup.notes
    said = [", ".join(counts), diagnosis.coverage] if counts else [diagnosis.coverage]
    return element(
        "a" if link else "div",
        element("span", patient.name, class_="counts") if link else None,
        element("p", badge(tone.word), " ", sentence),
        element("p", " ".join([f"{' in '.join(said)}.", *notes]), class_="counts"),
        class_=f"verdict {tone.word}",
        href=link or None,
    )


def first_screen(patient: Patient) -> list[Answer]:
    """What is seen without opening anything: the curve beside its baselines, the cause, and its cure with proof."""
    diagnosis, parts = patient.diagnosis, list[Answer]()
    if diagnosis.short_training is not None:
        parts.append(Answer("", [diagnosis.chart], title="Outcome"))
    name, finding = diagnosis.cause or ("outcome", diagnosis.outcome)
    if finding is None or (name == "outcome" and diagnosis.short_training is None):
        return parts
    if name == "outcome":
        seen = diagnosis.short_training.answer().tables if diagnosis.short_training else []
        parts.append(Answer(finding.evidence, seen, title="What was seen"))
    else:
        about = {"Check": name, "Theory": finding.source, "Where": ", ".join(finding.where)}
        more = Answer(
            "", [Facts({key: text for key, text in about.items() if text})], title="Theory", folded=True
        )
        why = Answer(finding.answer().statement, [finding.evidence, more], title="Cause")
        parts.append(replace(why, tone=finding.severity.word))
    if finding.advice and finding.severity <= Severity.WARNING:
        code: list[Part] = [Code(finding.code, "For your model, optimizer and x")] if finding.code else []
        tried = f"With the cure: {diagnosis.proof.sentence}" if diagnosis.proof else ""
        proof = finding.proof or tried
        parts.append(Answer(finding.advice, [*([proof] if proof else []), *code], title="Cure"))
    return parts


def settings(patient: Patient) -> Answer:
    """The network, its data and its optimizer, in a few words each."""
    setup = patient.diagnosis.setup
    from foretrain.compare.bundle import Bundle

    x = setup.task.x
    each = str(x) if isinstance(x, Bundle) else " × ".join(map(str, x.shape[1:])) + " each"
    facts = {
        "Network": type(setup.model).__name__,
        "Trained parameters": f"{setup.trained_parameters:,}",
        "Samples": f"{len(x):,}" + (f" ({each})" if each != " each" else ""),
        "Loss": setup.task.loss_name,
        "Optimizer": str(setup.recipe) + (" (chosen by the doctor)" if setup.recipe.chosen else ""),
        "Batch": "all samples" if setup.batch_size is None else number_text(setup.batch_size),
    }
    return Answer("", [Facts(facts)], title="Settings")


def outcome(patient: Patient) -> Answer | None:
    """The same training by its loss, and the scores of all learners with their errors."""
    seen = patient.diagnosis.short_training
    if seen is None:
        return None
    parts: list[Part] = [*seen.answer().tables, partial(loss_chart, seen, patient.diagnosis.proof)]
    return Answer(seen.evidence, parts if seen.scored else [], title="Outcome in numbers")


def remedy(patient: Patient) -> Answer | None:
    """The plan, and its proof by training; None where nothing complains and it was not trained."""
    seen, found = patient.verification, patient.diagnosis
    proof: list[Part] = [] if seen is None else [seen.figure]
    if not any(True for _ in found.complaints()):
        return Answer("Nothing needs to be treated.", proof, title="How it trains") if proof else None
    plan = (found.plan() if seen is None else seen.plan).answer()
    return Answer(plan.statement, [*plan.parts, *proof], title="All treatments")


def findings(patient: Patient) -> Answer | None:
    """A folded card for every finding besides the cause, from the worst on."""
    cards = patient.diagnosis.other_cards()
    lead = "From the worst on; causes come before their consequences. Open a card for evidence, source and advice."
    return Answer(lead, cards, title="Other findings") if cards else None


def checks(patient: Patient) -> Answer:
    """Every question that was asked, also those that do not apply to this network."""
    questions, rows = {check.name: check.question for check in CHECKS}, []
    for name, one in patient.diagnosis.examinations.items():
        worst = one.worst
        said = worst.title if worst else f"Does not apply: {one.skipped}"
        rows.append((questions.get(name, name), Tone(worst.severity.word) if worst else "skipped", said))
    table = Table(("Question", "Result", "Answer"), rows, "All checks with their result")
    return Answer("", [table], title="All checks")


def measurements(patient: Patient) -> Answer | None:
    """One folded group of tables for every check that measured something."""
    questions = {check.name: check.question for check in CHECKS}
    groups = [
        Answer(questions.get(name, name), list(dataset_tables(data)), folded=True)
        for name, data in patient.measurements.items()
    ]
    lead = "The numbers behind findings and pictures, by question."
    return Answer(lead, groups, title="All measurements") if groups else None
