"""All that was found about a network, and the treatment that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Any

from foretrain.doctor.budget import Account
from foretrain.doctor.checks import CHECKS
from foretrain.doctor.finding import Examination, Finding, Severity, finite
from foretrain.doctor.setup import Setup
from foretrain.support.answers import (
    BLUE,
    FAINT,
    GREEN,
    ORANGE,
    RED,
    Answer,
    Axis,
    Figure,
    Part,
    Result,
    names_axis,
)

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.treatment import Plan
    from foretrain.doctor.verification import Verification


_FEW = 1 / 3  # of the checks: a model that no more apply to was mostly not examined
_MARKS = {
    None: ("_", FAINT),
    Severity.CRITICAL: ("D", RED),
    Severity.WARNING: ("^", ORANGE),
    Severity.NOTE: ("s", BLUE),
    Severity.GOOD: ("o", GREEN),
}


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Result):
    """Findings from the worst on; ``examinations`` holds them by check, with the measurements behind them."""

    setup: Setup
    examinations: Mapping[str, Examination]
    account: Account = field(default_factory=Account)  # of the time that was spent

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Sorted by severity; among equals, causes before consequences."""
        return tuple(finding for _, finding in self.by_severity())

    def by_severity(self) -> tuple[tuple[str, Finding], ...]:
        """The same, each with the name of its check. Causes stand before the outcome, which is their symptom.

        Among causes of one severity those come first that name a fault, and whose cure was tried and gained most.
        """
        pairs = [(name, finding) for name, one in self._checks() for finding in one.findings]

        def rank(pair: tuple[str, Finding]) -> tuple[float, int, float]:
            name, finding = pair
            symptom = name == "outcome" and finding.severity <= Severity.WARNING
            gain = finding.numbers.get("gain", 0.0) if name != "outcome" else 0.0
            return (Severity.WARNING + 0.5 if symptom else finding.severity, finding.vague, -gain)

        return tuple(sorted(pairs, key=rank))

    @property
    def outcome(self) -> Finding | None:
        """What the training as given showed; None where it was not asked for."""
        return self.examinations["outcome"].worst if "outcome" in self.examinations else None

    @property
    def healthy(self) -> bool:
        """Whether it was seen to learn, and nothing critical and no warning was found."""
        seen = self.outcome is not None and self.outcome.severity is Severity.GOOD
        return seen and not any(True for _ in self.complaints())

    def complaints(self) -> Iterator[tuple[str, Finding]]:
        """What is critical or a warning, with the name of its check."""
        return (pair for pair in self.by_severity() if pair[1].severity <= Severity.WARNING)

    @property
    def headline(self) -> str:
        """One sentence: whether it learns, what stops it, and what was not looked at."""
        complaints, outcome = list(self.complaints()), self.outcome
        failed = [name for name, one in self.examinations.items() if one.failed]
        skipped = [name for name, one in self.examinations.items() if one.skipped and not one.cut]
        cut = [name for name, one in self.examinations.items() if one.cut]
        untried = [name for name, one in self.examinations.items() if one.untried]
        made = len(self.examinations) - len(failed) - len(skipped) - len(cut)
        late = [f"not looked at: {', '.join(cut)}"] if cut else []
        late += [f"advice not tried: {', '.join(untried)}"] if untried else []
        if late:
            late = [f"{'; '.join(late)} ({self.account.reason})"]
        if not made and late:
            return f"Nothing was examined; {late[0]}."
        if not made:
            return "None of the checks applies to this model: see why each was skipped."
        unseen = [f"failed: {', '.join(failed)}"] if failed else []
        unseen += [f"skipped: {', '.join(skipped)}"] if skipped else []
        if outcome is None:
            unseen.append("whether it learns")
        unseen = [f"not looked at, {'; '.join(unseen)}"] if unseen else []
        looked = "; ".join([_count(made, "check"), *unseen, *late])
        if not complaints:
            if outcome is None:
                return f"Nothing was found that holds learning back ({looked})."
            proof = outcome.title.rstrip(".")
            most = made >= len(cut) + len(failed) and made > _FEW * len(self.examinations)
            return (
                f"{'Healthy' if most else 'Mostly not examined'}: {proof[:1].lower()}{proof[1:]} ({looked})."
            )
        if [name for name, _ in complaints] == ["outcome"]:
            return f"{complaints[0][1].title.rstrip('.')}; what stops it was not found ({looked})."
        causes = [pair for pair in complaints if pair[0] != "outcome"]
        severities = [finding.severity for _, finding in causes]
        counts = [
            _count(severities.count(severity), word)
            for severity, word in ((Severity.CRITICAL, "critical finding"), (Severity.WARNING, "warning"))
            if severity in severities
        ]
        said = f"{' and '.join(counts)}: {causes[0][1].answer().statement}"
        return f"{said.rstrip('.')} ({late[0]})." if late else said

    def cause_of(self, check: str, finding: Finding) -> str | None:
        """The check whose treatment probably also heals this finding; None if it stands for itself.

        Once ``plan()`` has been asked, what it found on the treated network decides. Before, every complaint is
        taken for a consequence of the first treatable one of an earlier check that is at least as severe.
        """
        if finding.severity > Severity.WARNING:
            return None
        if "_plan" in self.__dict__:
            steps = self._plan.steps
            alone = not steps or steps[0].check == check or check in {step.check for step in steps}
            return None if alone or self._plan.persists(check) else steps[0].check
        order = [known.name for known in CHECKS]
        for other, earlier in self.complaints():
            before = order.index(other) < order.index(check) and earlier.severity <= finding.severity
            if before and earlier.treatment is not None:
                return other
        return None

    @cached_property
    def _plan(self) -> Plan:
        return self.plan()

    def plan(self, seconds: float | None = None) -> Plan:
        """The treatments in their order, each found on what the earlier ones have made of the network.

        That takes no longer than these seconds, by default as many as the examination might take.
        """
        from foretrain.doctor.treatment import make_plan

        if "_plan" not in self.__dict__:
            self.__dict__["_plan"] = make_plan(self, self.account.budget if seconds is None else seconds)
        return self._plan

    def verify(self, steps: int = 200, *, seconds: float = 60.0) -> Verification:
        """Train the network as given and as treated for some steps (or so many seconds), with the same batches."""
        from foretrain.doctor.verification import verify

        return verify(self.plan(), steps, seconds=seconds)

    def to_dataset(self) -> xarray.Dataset:
        """All measurements in one dataset; names and axes have the check in front, as in "inputs.scale"."""
        import xarray

        parts, attributes = list[xarray.Dataset](), dict[str, Any]()
        for name, one in self.examinations.items():
            if one.data is None:
                continue
            names = {str(old): f"{name}.{old}" for old in {*one.data.variables, *one.data.dims}}
            parts.append(one.data.rename(names).drop_attrs(deep=False))
            attributes |= {f"{name}.{key}": value for key, value in one.data.attrs.items()}
        merged = xarray.merge(parts) if parts else xarray.Dataset()
        return merged.assign_attrs(attributes, headline=self.headline)

    def answer(self) -> Answer:
        """Headline, what was looked at, a card for every finding from the worst on, and the plan once it is made."""
        plan = self.__dict__.get("_plan")
        treated = {step.check for step in plan.steps} if plan else set()
        setup = self.setup
        batch = "all samples" if setup.batch_size is None else f"{setup.batch_size} samples"
        chosen = " (chosen by the doctor)" if setup.recipe.chosen else ""
        state = "" if setup.fresh else " Training has begun."
        case = (
            f"{type(setup.model).__name__} with {setup.trained_parameters} parameters on {len(setup.task.x)} "
            f"samples: {setup.task.loss_name}, {setup.recipe}{chosen}, {batch} in a step.{state}"
        )
        parts: list[Part] = [" ".join([case, *setup.notes])]
        parts += [
            finding.answer(check, self.cause_of(check, finding), code=check not in treated)
            for check, finding in self.by_severity()
        ]
        skipped = [f"skipped: {name}: {one.skipped}" for name, one in self._checks() if one.skipped]
        parts += ["\n".join(skipped)] if skipped else []
        if plan is not None and not self.healthy:
            parts.append(plan.answer())
        elif any(True for _ in self.complaints()):
            parts.append(
                "Next: .plan() carries out the advice on a copy, .verify() trains with and without it, "
                ".findings[i].code has the code."
            )
        critical = any(finding.severity is Severity.CRITICAL for finding in self.findings)
        return Answer(
            self.headline,
            [*parts, self.figure],
            self.to_dataset,
            self._record(),
            not critical,
            interrupted=self.account.interrupted,
        )

    def figure(self, trained: Verification | None = None, name: str = "") -> Figure:
        """Every check with its worst finding; beside them the trainings with and without the advice, if given."""
        asked = list(self._checks())
        title = "\n".join(wrap(f"{name}: {self.headline}" if name else self.headline, 110))
        size = (9.5 if trained is None else 14.0, max(3.0, 0.4 * len(asked) + 1.2))
        figure = Figure(title, layout="A" if trained is None else "AAB", size=size)
        panel = figure.panel(
            "Checks",
            x=Axis(low=-0.02, high=1.0, ticks=()),
            y=names_axis([check for check, _ in asked], low=-0.6, high=len(asked) - 0.4, reverse=True),
            grid=False,
            legend="",
        )
        for place, (_, one) in enumerate(asked):
            worst = one.worst
            marker, color = _MARKS[worst.severity if worst else None]
            said = f"{worst.severity.word}: {worst.title}" if worst else f"skipped: {one.skipped}"
            panel.curve([0.0], [place], marker, color=color, size=8)
            panel.note(0.02, place, shorten(said, 110, placeholder=" ..."), size=8.5)
        if trained is not None:
            figure.panels.append(trained.figure().panels[0])
        return figure

    def _checks(self) -> Iterator[tuple[str, Examination]]:
        """Checks that were made or skipped, in the order of the registry."""
        return (
            (check.name, self.examinations[check.name]) for check in CHECKS if check.name in self.examinations
        )

    def _record(self) -> dict[str, Any]:
        setup = self.setup
        questions = {check.name: check.question for check in CHECKS}
        return {
            "headline": self.headline,
            "healthy": self.healthy,
            "model": type(setup.model).__name__,
            "parameters": setup.trained_parameters,
            "samples": len(setup.task.x),
            "loss": setup.task.loss_name,
            "optimizer": str(setup.recipe),
            "optimizer_given": not setup.recipe.chosen,
            "batch_size": setup.batch_size,
            "fresh": setup.fresh,
            "seed": setup.seed,
            "notes": list(setup.notes),
            "seconds": self.account.spent,
            "budget": finite(self.account.budget),
            "interrupted": self.account.interrupted,
            "checks": {
                name: {
                    "question": questions[name],
                    "skipped": one.skipped or None,
                    "failed": one.failed,
                    "cut": one.cut,
                    "untried": one.untried,
                    "findings": [
                        finding.to_dict() | {"consequence_of": self.cause_of(name, finding)}
                        for finding in one.findings
                    ],
                }
                for name, one in self._checks()
            },
        }


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
