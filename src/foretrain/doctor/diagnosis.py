"""All that was found about a network, and the treatment that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Any

from foretrain.doctor.budget import Account
from foretrain.doctor.checks import CHECKS
from foretrain.doctor.finding import SCORE_GAIN, Examination, Finding, Severity, finite, number_of
from foretrain.doctor.outcome import Outcome, outcome_of
from foretrain.doctor.outcome_chart import outcome_chart
from foretrain.doctor.proof import Proof, try_cure
from foretrain.doctor.setup import Case, Setup
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
from foretrain.support.errors import InputError
from foretrain.support.seeds import kept_random_states

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.treatment import Plan
    from foretrain.doctor.verification import Verification


_FEW = 1 / 3  # of the checks: a model that no more apply to was mostly not examined
_AS_MUCH = 0.8  # of the largest gain: what lies above it are equals, as single trainings scatter
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

        Among causes of one severity those come first that name a fault, and whose cure was tried and gained most;
        where cures gain about as much, what is treated first. What names only the place of a fault comes after all
        that name one.
        """
        pairs = [(name, finding) for name, one in self._checks() for finding in one.findings]
        most = max((one.numbers.get(SCORE_GAIN, 0.0) for _, one in pairs), default=0.0)
        stages = {check.name: check.stage for check in CHECKS}

        def rank(pair: tuple[str, Finding]) -> tuple[float, int, float, int]:
            name, (severity, vague, gain) = pair[0], pair[1].rank
            symptom = name == "outcome" and severity <= Severity.WARNING
            return (
                (Severity.WARNING + 0.5 if symptom else severity),
                vague,
                max(gain, -_AS_MUCH * most),
                stages[name],
            )

        return tuple(sorted(pairs, key=rank))

    @property
    def outcome(self) -> Finding | None:
        """What the training as given showed; None where it was not asked for."""
        return self.examinations["outcome"].worst if "outcome" in self.examinations else None

    @cached_property
    def short_training(self) -> Outcome | None:
        """The training behind ``outcome`` with its baselines: what was observed is kept with the setup."""
        judged = self.examinations.get("outcome")
        if judged is None or judged.skipped or judged.failed:
            return None
        return outcome_of(Case(self.setup))

    @property
    def cause(self) -> tuple[str, Finding] | None:
        """The first complaint that is not the outcome itself, with the name of its check."""
        return next((pair for pair in self.complaints() if pair[0] != "outcome"), None)

    @cached_property
    def proof(self) -> Proof | None:
        """The trainings without and with the cure of the cause; None where there is none that was seen to help."""
        if self.cause is None or self.cause[1].treatment is None or self.short_training is None:
            return None
        if self.examinations[self.cause[0]].untried:
            return None
        proof = try_cure(Case(self.setup), self.cause[1].treatment)
        return proof if proof.helps else None

    @property
    def healthy(self) -> bool:
        """Whether it was seen to learn, most was examined, and nothing critical and no warning was found."""
        seen = self.outcome is not None and self.outcome.severity is Severity.GOOD
        return seen and self._examined and not any(True for _ in self.complaints())

    @property
    def _examined(self) -> bool:
        """Whether most checks were made, as far as they apply."""
        left_out = sum(one.cut or one.failed for one in self.examinations.values())
        return len(self.made) >= left_out and len(self.made) > _FEW * len(self.examinations)

    def complaints(self) -> Iterator[tuple[str, Finding]]:
        """What is critical or a warning, with the name of its check."""
        return (pair for pair in self.by_severity() if pair[1].severity <= Severity.WARNING)

    @property
    def coverage(self) -> str:
        """How many checks were made, and which questions are open because they were not."""
        failed = [name for name, one in self.examinations.items() if one.failed]
        skipped = [name for name, one in self.examinations.items() if one.skipped and not one.cut]
        unseen = [f"failed: {', '.join(failed)}"] if failed else []
        unseen += [f"skipped: {', '.join(skipped)}"] if skipped else []
        if "outcome" not in self.examinations:
            unseen.append("whether it learns")
        unseen = [f"not looked at, {'; '.join(unseen)}"] if unseen else []
        made = len(self.made)
        return "; ".join([number_of(made, "check"), *unseen, *([self.late] if self.late else [])])

    @property
    def made(self) -> list[str]:
        """Names of the checks that came to an end."""
        return [name for name, one in self.examinations.items() if not (one.failed or one.skipped or one.cut)]

    @property
    def late(self) -> str:
        """What the time did not allow, and why; empty where all was looked at and tried."""
        cut = [name for name, one in self.examinations.items() if one.cut]
        untried = [name for name, one in self.examinations.items() if one.untried]
        late = [f"not looked at: {', '.join(cut)}"] if cut else []
        late += [f"advice not tried: {', '.join(untried)}"] if untried else []
        return f"{'; '.join(late)} ({self.account.reason})" if late else ""

    @property
    def verdict(self) -> str:
        """What the training as given showed, in one sentence; empty where there was none."""
        if self.outcome is None or (self.short_training is None and self.outcome.severity > Severity.WARNING):
            return ""
        return self.outcome.answer().statement

    @property
    def headline(self) -> str:
        """Whether it learns, what stops it, and what was not looked at."""
        complaints, cause, verdict = list(self.complaints()), self.cause, self.verdict
        if not self.made and not complaints:
            none = "None of the checks applies to this model: see why each was skipped."
            return f"Nothing was examined; {self.late}." if self.late else none
        if not complaints and not verdict:
            return f"Nothing was found that holds learning back ({self.coverage})."
        if not complaints:
            word = "Healthy" if self._examined else "Mostly not examined"
            return f"{word}: {verdict[:1].lower()}{verdict[1:].rstrip('.')} ({self.coverage})."
        if self.short_training is not None and not self.short_training.judged:
            return f"{verdict.rstrip('.')} ({self.coverage})."
        if cause is None:
            run = None if self.short_training is None else self.short_training.course
            explained = run is None or run.error or run.unfinished
            open_question = "" if explained else "; what stops it was not found"
            return f"{verdict.rstrip('.')}{open_question} ({self.coverage})."
        title = cause[1].answer().statement
        late = f" ({self.late})" if self.late else ""
        if "outcome" in dict(complaints):
            return f"{verdict} Cause: {title.rstrip('.')}{late}."
        severities = [finding.severity for _, finding in complaints]
        counts = [
            number_of(severities.count(severity), word)
            for severity, word in ((Severity.CRITICAL, "critical finding"), (Severity.WARNING, "warning"))
            if severity in severities
        ]
        return f"{verdict} {' and '.join(counts)}: {title.rstrip('.')}{late}.".lstrip()

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
            with kept_random_states():
                self.__dict__["_plan"] = make_plan(self, self.account.budget if seconds is None else seconds)
        return self._plan

    def verify(self, steps: int = 200, *, seconds: float = 60.0) -> Verification:
        """Train the network as given and as treated for some steps (or so many seconds), with the same batches."""
        from foretrain.doctor.verification import verify

        with kept_random_states():
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
        """The verdict with its curve, the cause with its cure and proof, the plan once it is made; then the rest."""
        plan = self.__dict__.get("_plan")
        treated = {step.check for step in plan.steps} if plan else set()
        complaints, setup = list(self.complaints()), self.setup
        # What was not looked at stands at the top; the headline says it where there is no complaint.
        limits = [f"{self.coverage}."] if self.cause and "not looked at" in self.coverage else []
        parts: list[Part] = [" ".join([*limits, *setup.notes])] if limits or setup.notes else []
        if self.short_training is not None:
            parts += [self.short_training.evidence, self.chart]
        first = self.cause or next(iter(complaints), None)
        if first is not None:
            check, finding = first
            parts.append(finding.answer(check, code=check not in treated))
        if plan is not None and complaints:
            parts.append(plan.answer())
        elif complaints:
            parts.append(
                "Next: .plan() carries out the advice on a copy, .verify() trains with and without it, "
                ".findings[i] has evidence, advice and code of each line below."
            )
        parts += self.other_cards(*treated)
        skipped = [f"skipped: {name}: {one.skipped}" for name, one in self._checks() if one.skipped]
        parts += ["\n".join(skipped)] if skipped else []
        batch = "all samples" if setup.batch_size is None else number_of(setup.batch_size, "sample")
        chosen = " (chosen by the doctor)" if setup.recipe.chosen else ""
        state = "" if setup.fresh else " Training has begun."
        parts.append(
            f"{type(setup.model).__name__} with {number_of(setup.trained_parameters, 'parameter')} on "
            f"{number_of(len(setup.task.x), 'sample')}: {setup.task.loss_name}, {setup.recipe}{chosen}, "
            f"{batch} in a step.{state}"
        )
        parts += [self.figure] if self.short_training is None else []
        critical = any(finding.severity is Severity.CRITICAL for finding in self.findings)
        statement = self.verdict if self.cause and self.verdict else self.headline  # the cause has its card
        return Answer(
            statement,
            parts,
            self.to_dataset,
            self._record(),
            not critical,
            interrupted=self.account.interrupted,
        )

    def other_cards(self, *treated: str) -> list[Answer]:
        """All findings but the cause and the outcome, folded; code of ``treated`` checks stands in the plan."""
        first, cards = self.cause[1] if self.cause else None, list[Answer]()
        for check, finding in self.by_severity():
            if finding is first or check == "outcome":
                continue
            cause = self.cause_of(check, finding)
            card = finding.answer(check, cause, code=check not in treated)
            after = f"{card.statement.rstrip('.')} (probably a consequence of {cause})."
            cards.append(replace(card, statement=after if cause else card.statement, folded=True))
        return cards

    def chart(self) -> Figure:
        """The training as given beside the baselines and, where a cure was proved, the training with it."""
        if self.short_training is None:
            raise InputError('there is no outcome to draw: let the check "outcome" be made.')
        figure = outcome_chart(self.short_training, self.proof)
        return replace(figure, title="\n".join(wrap(self.headline, 75)))

    def figure(self, trained: Verification | None = None, name: str = "") -> Figure:
        """The outcome, every check with its worst finding, and the trainings with and without the plan, if given."""
        asked = list(self._checks())
        charts = [] if self.short_training is None else self.chart().panels
        charts += [] if trained is None else trained.figure().panels
        rows = ["ABCD"[: len(charts)]] if charts else []
        overview = "ABCD"[len(charts)]
        rows.append(overview * max(1, len(charts)))
        lower = max(3.0, 0.4 * len(asked) + 1.2)
        heights = (4.2, lower) if charts else ()
        figure = Figure(
            "\n".join(wrap(f"{name}: {self.headline}" if name else self.headline, 85)),
            layout=" ".join(rows),
            heights=heights,
            size=(14.0 if len(charts) > 1 else 9.5, sum(heights) or lower),
            panels=list(charts),
        )
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
