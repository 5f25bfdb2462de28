"""Training seen and foretold: the predicted curve with its range of trust, the real one, and the treated one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.report.page.markup import Markup, element
from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.curves import scale_for
from foretrain.report.page.plots.plot import BLUE, GREEN, ORANGE, Plot, Trace, axis
from foretrain.report.page.plots.series import line
from foretrain.report.page.section import Part, Section
from foretrain.report.page.sections.findings import code_block
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    from foretrain.doctor.verification import Verification


def training(patient: Patient) -> Section | None:
    """Learning curves: with the advice and without, beside the prediction."""
    if patient.verification is None and patient.curve is None:
        return None
    parts: list[Part] = [_curves(patient)]
    if patient.verification is not None:
        parts += [_treatments(patient.verification)]
    lead = "The prediction takes the network as linear in its weights; beyond the shaded steps it is not to be trusted."
    return Section("training", "Learning curves", lead if patient.curve is not None else "", parts)


def _curves(patient: Patient) -> Plot:
    drawn, told = list[Trace](), list[str]()
    rows = dict[int, dict[str, float]]()
    layout: dict[str, Any] = {"xaxis": axis("step"), "yaxis": axis("loss"), "hovermode": "x unified"}
    if patient.curve is not None:
        _add_predicted(patient.curve, drawn, told, rows, layout)
    if patient.verification is not None:
        _add_real(patient.verification, drawn, told, rows)
    layout["yaxis"]["type"] = scale_for(np.concatenate([np.asarray(trace["y"]) for trace in drawn]))
    names = [str(trace["name"]) for trace in drawn]
    table = [(step, *(values.get(name, float("nan")) for name in names)) for step, values in sorted(rows.items())]
    return Plot(
        "curves",
        "Loss over the steps",
        " ".join(told),
        drawn,
        layout,
        Table("Loss by step", ("Step", *names), table),
        {"yaxis": "Logarithmic loss", "xaxis": "Logarithmic steps"},
        height=420,
        wide=True,
    )


def _add_predicted(
    curve: Any, drawn: list[Trace], told: list[str], rows: dict[int, dict[str, float]], layout: dict[str, Any]
) -> None:
    steps, losses, end = np.asarray(curve.steps), np.asarray(curve.predicted), float(curve.trusted_until)
    _add(drawn, rows, "predicted", steps, losses, colour=BLUE, dash="dash")
    trusted = min(end, float(steps[-1]))
    layout["shapes"] = [_shade(max(float(steps[0]), 0.0), trusted)]
    told.append(
        f"The tangent kernel predicts a loss of {number(losses[-1])} after {number(steps[-1])} steps; "
        f"it is to be trusted up to step {number(trusted)}."
    )


def _add_real(
    seen: Verification, drawn: list[Trace], told: list[str], rows: dict[int, dict[str, float]]
) -> None:
    looks = {"given": ("as given", ORANGE, "solid"), "treated": ("treated", GREEN, "solid")}
    for key, curve in seen.curves.items():
        name, colour, dash = looks[key]
        _add(drawn, rows, name, curve.steps, curve.losses, colour=colour, dash=dash)
    told.append(seen.verdict[:1].upper() + seen.verdict[1:])


def _add(
    drawn: list[Trace], rows: dict[int, dict[str, float]], name: str, steps: Any, losses: Any, **look: Any
) -> None:
    drawn.append(line(name, steps, losses, hovertemplate="%{y:.4g}", **look))
    for step, loss in zip(steps, losses, strict=True):
        rows.setdefault(int(step), {})[name] = float(loss)


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
        "name": "prediction is trusted here",
    }


def _treatments(seen: Verification) -> Markup:
    steps = seen.plan.steps
    if not steps:
        return element("p", "There was nothing to treat, so the network was trained as given only.", class_="lead")
    told = [
        element("li", step.treatment.name, element("span", f" ({step.finding.title})", class_="lead")) for step in steps
    ]
    return element(
        "details",
        element("summary", f"What was treated, in this order ({len(steps)})"),
        element("ol", told),
        code_block(seen.plan.code, "All of it as code") if seen.plan.code else None,
        class_="more",
        open=True,
    )
