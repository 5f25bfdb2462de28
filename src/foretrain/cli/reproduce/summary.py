"""The verdicts of several experiments as the answer of a command: document, tables, data and picture."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.cli.frame import command_answer
from foretrain.experiments.runs.tables import differences, verdicts
from foretrain.support.answers import Answer, Table

if TYPE_CHECKING:
    from foretrain.experiments.runs import Run


def summary(run: Run, page: Path | None) -> Answer:
    """It holds if every experiment came to its end, and every row that disagrees is explained."""
    from foretrain.report.experiments import experiments_figure

    wrong = differences(run.records)
    text: list[str | Table] = [verdicts(run.records)]
    if wrong.rows:
        text += ["Rows that disagree:", wrong]
    text.append(run.verdict)
    if any(record.error for record in run.records):
        text.append("Run one that failed alone, with --debug, to see where.")
    document = run.to_dict()
    if page is not None:
        document["page"] = str(page)
        text.append(f"Tables and pictures: {page}")
    figure = partial(experiments_figure, run)
    return command_answer(document, text, data=run.to_dataset(), figure=figure, holds=run.holds)
