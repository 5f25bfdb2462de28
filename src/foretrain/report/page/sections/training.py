"""Training seen and foretold: with and without the advice; the prediction, its range of trust, and the real curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.report.page.markup import Markup, element
from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.curves import scale_for
from foretrain.report.page.plots.plot import BLUE, GREEN, ORANGE, Plot, axis
from foretrain.report.page.plots.series import level, line
from foretrain.report.page.section import Part, Section
from foretrain.report.page.sections.findings import code_block
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    from foretrain.doctor.learning_curve import LearningCurve
    from foretrain.doctor.verification import Verification

_LOOKS = {"given": ("as given", ORANGE), "treated": ("with the advice", GREEN)}


def training(patient: Patient) -> Section | None:
    """Learning curves: with the advice and without; and the prediction beside what really happens."""
    parts: list[Part] = []
    if patient.verification is not None:
        parts += [_trained(patient.verification), _treatments(patient.verification)]
    if patient.curve is not None:
        parts += [_foretold(patient.curve), _errors(patient.curve)]
    if not parts:
        return None
    lead = "The prediction takes the network as linear in its weights; where it is shaded it can be trusted."
    return Section("training", "Learning curves", lead, parts)


def _trained(seen: Verification) -> Plot:
    drawn = [
        line(
            _LOOKS[key][0],
            one.steps,
            one.losses,
            colour=_LOOKS[key][1],
            dash="solid",
            hovertemplate="%{y:.4g}",
        )
        for key, one in seen.curves.items()
    ]
    losses = np.concatenate([one.losses for one in seen.curves.values()])
    rows = [
        (_LOOKS[key][0], int(step), float(loss))
        for key, one in seen.curves.items()
        for step, loss in zip(one.steps, one.losses, strict=True)
    ]
    return Plot(
        "curves",
        "With and without the advice",
        seen.verdict[:1].upper() + seen.verdict[1:],
        drawn,
        {
            "xaxis": axis("step"),
            "yaxis": axis(f"loss ({seen.loss_name})", scale_for(losses)),
            "hovermode": "x unified",
        },
        Table("Loss by step", ("Network", "Step", "Loss"), rows),
        {"yaxis": "Logarithmic loss", "xaxis": "Logarithmic steps"},
        height=400,
        wide=True,
    )


def _foretold(curve: LearningCurve) -> Plot:
    steps, end = curve.steps, curve.trusted_until
    last = int(steps[-1])
    until = f"up to step {number(end)}" if end < last else "to the end"
    return Plot(
        "prediction",
        "Predicted and real",
        f"On {curve.samples} samples the tangent kernel predicts a loss of {number(curve.predicted[-1])} after "
        f"{number(last)} steps; really it is {number(curve.measured[-1])}. The prediction can be trusted {until}.",
        [
            line("real", steps, curve.measured, colour=ORANGE, dash="solid", hovertemplate="%{y:.4g}"),
            line("predicted", steps, curve.predicted, colour=BLUE, dash="dash", hovertemplate="%{y:.4g}"),
        ],
        {
            "xaxis": axis("step"),
            "yaxis": axis("loss", scale_for(np.concatenate([curve.predicted, curve.measured]))),
            "shapes": [_shade(float(steps[0]), float(end))] if end > steps[0] else [],
            "hovermode": "x unified",
        },
        Table(
            "Loss by step",
            ("Step", "Predicted", "Real"),
            list(zip(steps.tolist(), curve.predicted.tolist(), curve.measured.tolist(), strict=True)),
        ),
        {"yaxis": "Logarithmic loss", "xaxis": "Logarithmic steps"},
        height=380,
    )


def _errors(curve: LearningCurve) -> Plot:
    from foretrain.doctor.learning_curve import TRUSTED

    steps, kinds = (
        curve.looked_at,
        {"of the outputs": curve.relative_error, "of their speed": curve.speed_error},
    )
    last = [f"{name} {number(100 * values[-1])} %" for name, values in kinds.items()]
    return Plot(
        "trust",
        "Error of the prediction",
        f"At step {number(steps[-1])} the linearisation gets wrong: {', '.join(last)}. Up to "
        f"{100 * TRUSTED:.0f} % it is trusted.",
        [
            line(name, steps, values, place=i, markers=True, hovertemplate="%{y:.3g}")
            for i, (name, values) in enumerate(kinds.items())
        ],
        {
            "xaxis": axis("step", "log"),
            "yaxis": axis("relative error", "log"),
            "shapes": [level(TRUSTED, "limit of trust")],
            "hovermode": "x unified",
        },
        Table(
            "Relative errors by step",
            ("Step", *(name.capitalize() for name in kinds)),
            list(zip(steps.tolist(), *(values.tolist() for values in kinds.values()), strict=True)),
        ),
        {"yaxis": "Logarithmic error", "xaxis": "Logarithmic steps"},
        height=380,
    )


def _shade(start: float, end: float) -> dict[str, Any]:
    return {
        "type": "rect",
        "yref": "paper",
        "x0": start,
        "x1": end,
        "y0": 0,
        "y1": 1,
        "fillcolor": "var(--faint-blue)",
        "line": {"width": 0},
        "layer": "below",
        "showlegend": True,
        "name": "prediction is trusted",
    }


def _treatments(seen: Verification) -> Markup:
    steps = seen.plan.steps
    if not steps:
        return element(
            "p", "There was nothing to treat, so the network was trained as given only.", class_="lead"
        )
    told = [
        element("li", step.treatment.name, element("span", f" ({step.finding.title})", class_="lead"))
        for step in steps
    ]
    return element(
        "details",
        element("summary", f"What was treated, in this order ({len(steps)})"),
        element("ol", told),
        code_block(seen.plan.code, "All of it as code") if seen.plan.code else None,
        class_="more",
        open=True,
    )
