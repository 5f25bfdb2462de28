"""Picture of a run of several experiments: how their rows ended, and how long they took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.support.drawing import FAINT, GREEN, ORANGE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foretrain.experiments.runs import Run


def experiments_figure(run: Run) -> Figure:
    """Tested rows of every experiment by how they ended, and how long it took."""
    records = run.records
    figure, (counts, times) = new_figure("Experiments", 1, 2, (13, 1.6 + 0.26 * len(records)))
    place = list(range(len(records)))
    left = [0] * len(records)
    parts = {
        "agree": ([record.agree for record in records], GREEN),
        "disagree, explained": ([record.explained for record in records], ORANGE),
        "disagree": ([record.disagree - record.explained for record in records], RED),
    }
    for label, (values, colour) in parts.items():
        counts.barh(place, values, left=left, color=colour, label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for index, record in enumerate(records):
        if record.error:
            counts.text(0.2, index, "failed", color=RED, va="center", fontsize=9)
    times.barh(place, [record.seconds for record in records], color=FAINT)
    for panel, label in ((counts, "tested rows"), (times, "seconds")):
        panel.set(xlabel=label, ylim=(len(records) - 0.5, -0.5))
    counts.set_yticks(place, [record.name for record in records], fontsize=9)
    times.set_yticks(place, [""] * len(records))
    counts.legend(frameon=False, fontsize=9, ncol=3, loc="lower left", bbox_to_anchor=(0, 1))
    return figure
