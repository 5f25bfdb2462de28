"""What to do: the treatments in their order, as code to copy, and the proof, trained with and without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.report.page.markup import Markup, element
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.curves import scale_for
from foretrain.report.page.plots.plot import GREEN, ORANGE, Plot, axis
from foretrain.report.page.plots.series import line
from foretrain.report.page.section import Part, Section
from foretrain.report.page.sections.findings import code_block
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    from foretrain.doctor.treatment import Plan
    from foretrain.doctor.verification import Verification

_LOOKS = {"given": ("as given", ORANGE), "treated": ("with the advice", GREEN)}


def remedy(patient: Patient) -> Section | None:
    """The plan and both curves; None for a healthy network that was not trained."""
    seen, parts = patient.verification, list[Part]()
    if not patient.diagnosis.healthy:
        parts += _treatments(patient.diagnosis.plan() if seen is None else seen.plan)
    if seen is not None:
        parts.append(_trained(seen))
    if not parts:
        return None
    healthy = "Nothing needs to be treated." if patient.diagnosis.healthy else ""
    return Section("plan", "How it trains" if healthy else "What to do", healthy, parts)


def _treatments(plan: Plan) -> list[Markup]:
    if not plan.steps:
        told = "Nothing of this can be treated automatically: follow the advice of the findings below."
        return [element("p", told, class_="lead")]
    steps = [
        element(
            "li",
            element("strong", _sentence(step.treatment.name)),
            element("p", step.finding.advice) if step.finding.advice else None,
            element("p", f"Why: {step.finding.title}", class_="why"),
        )
        for step in plan.steps
    ]
    done = [element("ol", steps, class_="plan")]
    if plan.code:
        words = "All of it as code, for your model, optimizer, x and y"
        done.append(code_block(plan.code, words))
    return done


def _trained(seen: Verification) -> Plot:
    drawn = [
        line(
            _LOOKS[key][0],
            one.steps,
            one.losses,
            colour=_LOOKS[key][1],
            dash="solid" if key == "treated" or len(seen.curves) == 1 else "dash",
            hovertemplate="%{y:.4g}",
        )
        for key, one in seen.curves.items()
    ]
    held_out = ", samples held out" if seen.unseen else ""
    losses = np.concatenate([one.losses for one in seen.curves.values()])
    rows = [
        (_LOOKS[key][0], int(step), float(loss))
        for key, one in seen.curves.items()
        for step, loss in zip(one.steps, one.losses, strict=True)
    ]
    return Plot(
        "curves",
        "Trained with and without the advice" if len(seen.curves) > 1 else "Trained as given",
        _sentence(seen.verdict),
        drawn,
        {
            "xaxis": axis("step"),
            "yaxis": axis(f"loss ({seen.loss_name}{held_out})", scale_for(losses)),
            "hovermode": "x unified",
            "showlegend": True,
        },
        Table("Loss by step", ("Network", "Step", "Loss"), rows),
        {"yaxis": "Logarithmic loss", "xaxis": "Logarithmic steps"},
        height=400,
        wide=True,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
