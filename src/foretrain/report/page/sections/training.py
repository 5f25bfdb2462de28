"""Training foretold: the prediction of the tangent kernel, its range of trust, and the real curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.curves import scale_for
from foretrain.report.page.plots.plot import BLUE, ORANGE, Plot, axis
from foretrain.report.page.plots.series import level, line
from foretrain.report.page.section import Section
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    from foretrain.doctor.kernels.learning_curve import LearningCurve


def training(patient: Patient) -> Section | None:
    """The predicted learning curve of the network as given, beside what really happens."""
    if patient.curve is None:
        return None
    lead = (
        "Of the network as given. The prediction takes it as linear in its weights, and can be trusted where it is "
        "shaded."
    )
    parts = [_foretold(patient.curve), _errors(patient.curve)]
    return Section("training", "Learning curve, predicted and real", lead, parts)


def _foretold(curve: LearningCurve) -> Plot:
    steps, end = curve.steps, curve.trusted_until
    last = int(steps[-1])
    if end <= steps[0]:
        until = "cannot be trusted: it goes wrong from the first steps on"
    else:
        until = f"can be trusted {f'up to step {number(end)}' if end < last else 'to the end'}"
    return Plot(
        "prediction",
        "Predicted and real",
        f"On {curve.samples} samples the tangent kernel predicts a loss of {number(curve.predicted[-1])} after "
        f"{number(last)} steps; really it is {number(curve.measured[-1])}. The prediction {until}.",
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
    from foretrain.doctor.kernels.learning_curve import TRUSTED

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
            "shapes": [level(TRUSTED, "limit of trust", _freer_end(list(kinds.values()), TRUSTED))],
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


def _freer_end(curves: Sequence[Any], height: float) -> str:
    """Where words on a level are farther from all curves: "start" or "end"."""
    first, last = (
        min(abs(np.log(max(float(values[place]), 1e-300) / height)) for values in curves) for place in (0, -1)
    )
    return "start" if first > last else "end"
