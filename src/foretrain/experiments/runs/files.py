"""A finished experiment as an answer that says where it is from, and the folder that keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.support.answers import Answer

if TYPE_CHECKING:
    from foretrain.experiments.experiment import Experiment, Result, Scale


def answer_of(experiment: Experiment, scale: Scale, seed: int, result: Result) -> Answer:
    """The answer of a result with title and source, and in its data scale, seed and verdict."""
    facts = {"name": experiment.name, "title": experiment.title, "source": experiment.source}
    run = {"scale": str(scale), "seed": seed}
    answer = result.answer()
    table, *pictures = answer.parts
    return replace(
        answer,
        statement=experiment.title,
        parts=[experiment.source, table, result.verdict, *pictures],
        data=result.data.assign_attrs(facts | run | {"verdict": result.verdict}),
        record={**facts, **run, **answer.document()},
    )


def write_result(folder: Path, experiment: Experiment, scale: Scale, seed: int, result: Result) -> None:
    """Write data, answer and picture, in place of earlier ones."""
    # With numpy, which the list of experiments does without.
    from foretrain.support.answers.folder import write_folder

    write_folder(folder, answer_of(experiment, scale, seed, result), overwrite=True)
