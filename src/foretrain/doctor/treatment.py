"""Carrying out the advice: treatments in stages, each found on what the earlier ones have made of the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from foretrain.doctor.checks import CHECKS, Stage
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.stability import with_chosen_rate
from foretrain.support.answers import Answer, Code, Part, Result, labelled
from foretrain.support.progress import Deadline, OutOfTimeError, track, within

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.diagnosis import Diagnosis

_MOST_OF_ONE_CHECK = 3


@dataclass(frozen=True)
class Step:
    """One treatment that was carried out, and the finding that asked for it."""

    check: str
    finding: Finding
    treatment: Treatment


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Result):
    """The network as given, the treatments, and the network as treated."""

    given: Setup
    steps: tuple[Step, ...]
    treated: Setup
    asked: tuple[str, ...] = ()  # names of the checks that were made
    deadline: Deadline = field(default_factory=lambda: Deadline(math.inf), repr=False)
    # What was looked at after the last treatment.
    seen: Mapping[str, Examination] = field(default_factory=dict)

    @cached_property
    def _looked(self) -> tuple[Case, dict[str, Examination]]:
        return Case(self.treated), dict(self.seen)

    @property
    def examinations(self) -> Mapping[str, Examination]:
        """What the checks that were asked say of the treated network; they look when this is first read."""
        return {name: self._after(name) for name in track(self.asked, "examining the treated network")}

    def persists(self, check: str) -> bool:
        """Whether the treated network still gets a complaint from this check, or may, as nobody has looked."""
        after = self._after(check)
        return after.cut or any(finding.severity <= Severity.WARNING for finding in after.findings)

    def _after(self, name: str) -> Examination:
        from foretrain.doctor.examine import examined

        case, found = self._looked
        if name not in found:
            found[name] = examined(case, next(check for check in CHECKS if check.name == name), self.deadline)
        return found[name]

    @property
    def code(self) -> str:
        """The same in Python, for a ``model``, its ``optimizer`` and its data ``x``, ``y``."""
        return "\n\n".join(step.finding.code for step in self.steps if step.finding.code)

    def answer(self) -> Answer:
        """The treatments in their order, with advice and reason, and all of them as code."""
        record = {
            "treatments": [{"check": step.check, "name": step.treatment.name} for step in self.steps],
            "code": self.code,
        }
        if not self.steps:
            said = "0 treatments: there is nothing to treat automatically, follow the advice of the findings."
            return Answer(said, data=self._dataset, record=record)
        parts: list[Part] = [
            Answer(
                step.finding.advice,
                [f"Why: {step.finding.title}"],
                title=f"{number}. {step.treatment.name[:1].upper()}{step.treatment.name[1:]}",
            )
            for number, step in enumerate(self.steps, 1)
        ]
        if self.code:
            parts.append(Code(self.code, "All of it as code, for your model, optimizer, x and y"))
        count = "1 treatment:" if len(self.steps) == 1 else f"{len(self.steps)} treatments, in this order:"
        return Answer(count, parts, self._dataset, record)

    def _dataset(self) -> xarray.Dataset:
        names, checks = [step.treatment.name for step in self.steps], [step.check for step in self.steps]
        return labelled(
            {"treatment": ("step", names), "check": ("step", checks), "treatments": len(names)},
            counted=["step"],
        )


def make_plan(diagnosis: Diagnosis, seconds: float) -> Plan:
    """The cause first, then what is left, from the data over the weights to the optimizer.

    A check looks again once something was treated. When the seconds are over, nobody looks again: then the treatments
    that are known so far are the plan.
    """
    from foretrain.doctor.examine import examined

    setup, steps, deadline = diagnosis.setup, list[Step](), Deadline(seconds)
    case, seen = Case(setup), dict(diagnosis.examinations)
    asked = [check for check in CHECKS if check.name in diagnosis.examinations and check.stage < Stage.NONE]
    cause = diagnosis.cause[0] if diagnosis.cause else ""
    ordered = sorted(asked, key=lambda check: (check.name != cause, check.stage))
    for check in track(ordered, "planning the treatment"):
        if check.treats_descent_only and not setup.recipe.is_descent:
            continue
        for _ in range(_MOST_OF_ONE_CHECK):
            if check.name not in seen:
                seen[check.name] = examined(case, check, deadline)
            found = [
                Step(check.name, finding, finding.treatment)
                for finding in seen[check.name].findings
                if finding.treatment is not None and finding.severity <= Severity.WARNING
            ]
            done = {step.treatment.name for step in steps if step.check == check.name}
            found = [step for step in found if step.treatment.name not in done]
            if not found:
                break
            steps.append(min(found, key=lambda step: step.finding.rank))
            setup = steps[-1].treatment.apply(setup)
            try:
                with within(deadline):
                    setup = with_chosen_rate(setup)
            except OutOfTimeError:  # the rate stays that of the network as given
                pass
            case, seen = Case(setup), {}
    return Plan(diagnosis.setup, tuple(steps), setup, tuple(diagnosis.examinations), deadline, seen)
