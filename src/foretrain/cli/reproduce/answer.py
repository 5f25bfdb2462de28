"""One experiment's result as the answer of a command: document, table, data and picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.cli.frame import Answer
from foretrain.experiments.runs.files import document_of, labelled
from foretrain.experiments.runs.tables import rows_of

if TYPE_CHECKING:
    from foretrain.experiments.registry import Experiment, Result, Scale


def answer_of(experiment: Experiment, scale: Scale, seed: int, result: Result) -> Answer:
    """What is printed, saved and drawn; it holds if no tested row disagrees."""
    document = document_of(experiment, scale, seed, result)
    return Answer(
        document,
        [experiment.title, experiment.source, rows_of(document), result.verdict],
        data=labelled(experiment, scale, seed, result),
        figure=result.figure,
        holds=result.agrees,
    )
