"""One experiment's result as the answer of a command: document, table, data and picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.cli.frame import command_answer
from foretrain.experiments.experiment import rows_table
from foretrain.experiments.runs.files import document_of, labelled
from foretrain.support.answers import Answer

if TYPE_CHECKING:
    from foretrain.experiments.registry import Experiment, Result, Scale


def answer_of(experiment: Experiment, scale: Scale, seed: int, result: Result) -> Answer:
    """What is printed, saved and drawn; it holds if no tested row disagrees."""
    document = document_of(experiment, scale, seed, result)
    return command_answer(
        document,
        [experiment.title, experiment.source, rows_table(document["rows"]), result.verdict],
        data=labelled(experiment, scale, seed, result),
        figure=result.figure,
        holds=result.agrees,
    )
