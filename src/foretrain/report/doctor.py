"""The picture of a diagnosis: every check with its verdict, and the trainings with and without the advice."""

from __future__ import annotations

from textwrap import shorten, wrap
from typing import TYPE_CHECKING

from foretrain.doctor.checks import CHECKS
from foretrain.doctor.finding import Severity
from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, RED, new_mosaic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.doctor.diagnosis import Diagnosis
    from foretrain.doctor.verification import Verification

_COLOURS = {
    Severity.CRITICAL: RED,
    Severity.WARNING: ORANGE,
    Severity.NOTE: BLUE,
    Severity.GOOD: GREEN,
}
_MARKERS = {Severity.CRITICAL: "X", Severity.WARNING: "^", Severity.NOTE: "s", Severity.GOOD: "o"}
_NETWORKS = {"given": RED, "treated": BLUE}


def doctor_figure(found: Diagnosis, trained: Verification | None = None, name: str = "") -> Figure:
    """Checks as a list with their worst finding; beside them the curves, if there are any."""
    layout = [["checks"]] if trained is None else [["checks", "checks", "loss"]]
    title = "\n".join(wrap(f"{name}: {found.headline}" if name else found.headline, 110))
    rows = sum(check.name in found.examinations for check in CHECKS)
    size = (9.5 if trained is None else 14.0, max(3.0, 0.52 * rows + 1.2))
    figure, panels = new_mosaic(title, layout, [1.0], size)
    _draw_checks(panels["checks"], found)
    if trained is not None:
        _draw_trainings(panels["loss"], trained)
    return figure


def _draw_checks(panel: Axes, found: Diagnosis) -> None:
    asked = [check for check in CHECKS if check.name in found.examinations]
    for place, check in enumerate(asked):
        one = found.examinations[check.name]
        worst = min(one.findings, key=lambda finding: finding.severity, default=None)
        colour = FAINT if worst is None else _COLOURS[worst.severity]
        said = f"skipped: {one.skipped}" if worst is None else worst.title
        label = "" if worst is None else worst.severity.word
        panel.scatter(0, place, marker="_" if worst is None else _MARKERS[worst.severity], color=colour, s=70)
        panel.text(0.02, place - 0.2, check.name, va="center", fontsize=9.5, fontweight="bold", color=INK)
        panel.text(0.24, place - 0.2, label, va="center", fontsize=9.5, color=colour)
        panel.text(
            0.02, place + 0.22, shorten(said, 120, placeholder=" ..."), va="center", fontsize=8, color=INK
        )
    panel.set(xlim=(-0.02, 1), ylim=(len(asked) - 0.4, -0.6), xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
    panel.grid(False)


def _draw_trainings(panel: Axes, trained: Verification) -> None:
    for name, curve in trained.curves.items():
        label = {"given": "as given", "treated": "with the advice"}[name]
        if curve.diverged_at is not None:
            label += f" (diverges at step {curve.diverged_at})"
            panel.axvline(curve.diverged_at, color=_NETWORKS[name], linewidth=0.9, linestyle=":")
        panel.plot(curve.steps, curve.losses, color=_NETWORKS[name], linewidth=1.8, label=label)
    positive = all((curve.losses > 0).all() for curve in trained.curves.values())
    panel.set(xlabel="step", ylabel=trained.loss_name, yscale="log" if positive else "linear")
    panel.set_title("trained with and without the advice", fontsize=11)
    panel.legend(frameon=False, fontsize=9)
