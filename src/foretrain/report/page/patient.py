"""A network on the page: its diagnosis, what was found, what to do, and what was seen when it was trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretrain.doctor.checks import CHECKS
from foretrain.doctor.finding import Severity
from foretrain.support.answers import Answer, Facts, Part, Table, Tone, dataset_tables
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
    """The worst finding in one sentence, or a clean bill; a link where it stands on top of the page."""
    found = patient.diagnosis.findings
    worst = found[0].severity if found else Severity.NOTE
    examinations = patient.diagnosis.examinations.values()
    examined = sum(not (one.skipped or one.failed) for one in examinations)
    sentence = f"A clean bill of health: none of {examined} checks found anything that holds learning back."
    if found and worst <= Severity.WARNING:
        sentence = found[0].title
    elif not examined:
        sentence = "Nothing could be examined: every check was skipped, for the reasons given below."
    number = Counter(finding.severity for finding in found)
    counts = [
        f"{number[one]} {one.word}{'s' if one in (Severity.WARNING, Severity.NOTE) and number[one] > 1 else ''}"
        for one in Severity
        if number[one]
    ]
    skipped = sum(bool(one.skipped) for one in examinations)
    counts += [f"{skipped} skipped"] if skipped else []
    tone = Severity.GOOD if worst is Severity.NOTE and found else worst  # notes hold nothing back
    return element(
        "a" if link else "div",
        element("span", patient.name, class_="counts") if link else None,
        element("div", badge(tone.word)),
        element("p", sentence),
        element("p", ", ".join(counts), class_="counts"),
        class_=f"verdict {tone.word}",
        href=link or None,
    )


def facts(patient: Patient) -> Facts:
    """The network, its data and its optimizer, in a few words each."""
    setup = patient.diagnosis.setup
    from foretrain.compare.bundle import Bundle

    x = setup.task.x
    each = str(x) if isinstance(x, Bundle) else " × ".join(map(str, x.shape[1:])) + " each"
    return Facts(
        {
            "Network": type(setup.model).__name__,
            "Trained parameters": f"{setup.trained_parameters:,}",
            "Samples": f"{len(x):,}" + (f" ({each})" if each != " each" else ""),
            "Loss": setup.task.loss_name,
            "Optimizer": str(setup.recipe) + (" (chosen by the doctor)" if setup.recipe.chosen else ""),
            "Batch": "all samples" if setup.batch_size is None else number_text(setup.batch_size),
        }
    )


def remedy(patient: Patient) -> Answer | None:
    """The plan, and its proof by training; None for a healthy network that was not trained."""
    seen, found = patient.verification, patient.diagnosis
    proof: list[Part] = [] if seen is None else [seen.figure]
    if found.healthy:
        return Answer("Nothing needs to be treated.", proof, title="How it trains") if proof else None
    plan = (found.plan() if seen is None else seen.plan).answer()
    return Answer(plan.statement, [*plan.parts, *proof], title="What to do")


def findings(patient: Patient) -> Answer:
    """A card for every finding, from the worst on; good news is folded."""
    found = patient.diagnosis
    cards = [finding.answer(check, found.cause_of(check, finding)) for check, finding in found.by_severity()]
    lead = "From the worst on; causes come before their consequences. Open a card for evidence, source and advice."
    return Answer(lead, cards, title="Findings")


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
