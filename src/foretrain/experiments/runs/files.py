"""What a finished experiment leaves in its folder: labelled data, its table for machines, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.support.atomic import new_file
from foretrain.support.json_text import json_text

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.experiment import Experiment, Result, Scale

ANSWER, PICTURE = "answer.json", "figure.png"


def document_of(experiment: Experiment, scale: Scale, seed: int, result: Result) -> dict[str, Any]:
    """All that is known of a result but its data, for machines."""
    return {
        **_facts(experiment),
        "scale": scale,
        "seed": seed,
        "verdict": result.verdict,
        "agrees": result.agrees,
        "rows": [row.record() for row in result.table],
    }


def labelled(experiment: Experiment, scale: Scale, seed: int, result: Result) -> xarray.Dataset:
    """The data with their origin."""
    run = {"scale": str(scale), "seed": seed, "verdict": result.verdict}
    return result.data.assign_attrs(_facts(experiment) | run)


def write_result(folder: Path, experiment: Experiment, scale: Scale, seed: int, result: Result) -> None:
    """Write data, answer and picture, in place of earlier ones."""
    from foretrain.support.store import DATA, save  # numpy, which the list of experiments does without

    save(labelled(experiment, scale, seed, result), folder / DATA, overwrite=True)
    with new_file(folder / ANSWER, overwrite=True) as path:
        path.write_text(f"{json_text(document_of(experiment, scale, seed, result))}\n", encoding="utf-8")
    if result.figure is not None:
        from foretrain.support.answers.matplotlib_renderer import write

        write(result.figure(), folder / PICTURE)


def _facts(experiment: Experiment) -> dict[str, str]:
    return {"name": experiment.name, "title": experiment.title, "source": experiment.source}
