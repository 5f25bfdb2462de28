"""``foretrain compare --trained``: predictions beside networks that are really trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from foretrain.cli.comparison_answer import joined, judged
from foretrain.cli.frame import Answer
from foretrain.cli.output import Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretrain.compare.trained import TrainedComparison
    from foretrain.theory.architecture import MLP

# Generic inputs: unequal norms, no right angles.
_TRAIN = ((1.3, 0.26, -0.65), (-0.52, 1.43, 0.39), (0.13, -0.78, 1.56))
_TARGETS = (1.0, -0.7, 0.4)
_TESTS = ((1.04, 0.91, 0.13), (-1.17, 0.39, 1.04))
_ENTRIES_SHOWN = 30


class TrainingData(NamedTuple):
    """What networks are trained on, and what they are asked."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_test: NDArray[Any]


def training_data(path: Path | None) -> TrainingData:
    """Of a data file with x, y and x_test, or the built-in example."""
    import numpy as np

    if path is None:
        return TrainingData(np.array(_TRAIN), np.array(_TARGETS)[:, None], np.array(_TESTS))
    from foretrain.support.loading import load_data

    found = load_data(path)
    if found.x_test is None:
        raise InputError(f"{path} has no array 'x_test': add the inputs whose outputs are to be compared.")
    x, x_test = (np.asarray(each, dtype=float).reshape(len(each), -1) for each in (found.x, found.x_test))
    y = np.asarray(found.y, dtype=float)
    return TrainingData(x, y.reshape(len(y), -1), x_test)


def compare_networks(
    networks: Sequence[MLP], data: TrainingData, options: Mapping[str, Any], seed: int
) -> Answer:
    """Train networks of every activation and judge all of them together."""
    from foretrain.compare.trained import compare_trained
    from foretrain.support.progress import track
    from foretrain.support.seeds import spawn

    tasks = list(zip(networks, spawn(seed, len(networks)), strict=True))
    outputs = data.y.shape[1]
    found = [
        compare_trained(mlp.replace(n_out=outputs), *data, seed=own, **options)
        for mlp, own in track(tasks, "activations")
    ]
    return _answer(found, seed)


def _answer(found: Sequence[TrainedComparison], seed: int) -> Answer:
    from foretrain.report.trained import draw_trained

    verdict = judged(found)
    datasets = [each.to_dataset() for each in found]
    paragraphs = [paragraph for each in found for paragraph in _paragraphs(each)]
    return Answer(
        {**verdict.numbers, "seed": seed, "comparisons": [_document(each) for each in found]},
        [*paragraphs, verdict.sentence("The prediction", "trained networks")],
        data=joined(datasets),
        figure=partial(draw_trained, datasets),
        holds=verdict.agrees,
    )


def _paragraphs(found: TrainedComparison) -> list[str | Table]:
    from foretrain.compare.presentation import ladder_text
    from foretrain.compare.trained.presentation import entry_rows, power_text, size_rows

    rows = entry_rows(found)
    columns = tuple(f"n x rms deviation of {name}" for name in found.observables)
    parts: list[str | Table] = [
        f"{found.mlp.activation.label}: {ladder_text(found)}",
        f"trained {found.goal.law.statement}",
        Table(("width", "networks", "steps", *columns), size_rows(found)),
        Table(("entry", "theory", "measured limit", "standard error", "z"), rows[:_ENTRIES_SHOWN]),
    ]
    if len(rows) > _ENTRIES_SHOWN:
        parts.append(f"{len(rows) - _ENTRIES_SHOWN} more entries: see --json or --save")
    return [*parts, power_text(found)]


def _document(found: TrainedComparison) -> dict[str, Any]:
    powers = {name: found.power(name) for name in found.observables}
    return {
        "activation": found.mlp.activation.label,
        "C_b": list(found.mlp.C_b),
        "C_W": list(found.mlp.C_W),
        "depth": found.mlp.depth,
        "learner": found.learner,
        "trained": found.goal.law.statement,
        "eta": found.goal.training.eta,
        "widths": found.widths.tolist(),
        "draws": list(found.ladder.draws),
        "steps": found.steps.tolist(),
        "powers": {name: None if power is None else power.value for name, power in powers.items()},
        "power_errors": {
            name: None if power is None else power.standard_error for name, power in powers.items()
        },
        "rms_z": found.judgement.rms,
        "largest_z": found.judgement.largest,
        "verdict": found.verdict,
        "entries": found.rows(),
    }
