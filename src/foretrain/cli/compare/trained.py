"""``foretrain compare --trained``: predictions beside networks that are really trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from foretrain.cli.compare.answer import Kind, answer
from foretrain.cli.options import predicted_loss
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretrain.compare.trained import FiniteComparison, TrainedComparison
    from foretrain.theory.architecture import MLP

# Generic inputs: unequal norms, no right angles.
_TRAIN = ((1.3, 0.26, -0.65), (-0.52, 1.43, 0.39), (0.13, -0.78, 1.56))
_TARGETS = (1.0, -0.7, 0.4)
_TESTS = ((1.04, 0.91, 0.13), (-1.17, 0.39, 1.04))
_ENTRIES_SHOWN = 30
_INFINITE_ONLY = ("time", "loss")


class TrainingData(NamedTuple):
    """What networks are trained on, and what they are asked."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_test: NDArray[Any]


def compare_networks(
    networks: Sequence[MLP], data: Path | None, options: Mapping[str, Any], seed: int
) -> Answer:
    """Train networks of every activation and judge all of them together; options are those of ``ft.compare``."""
    from foretrain.compare.entry import compare
    from foretrain.support.progress import track
    from foretrain.support.seeds import spawn

    finite = options.get("regime") == "finite"
    given: dict[str, Any] = dict(options)
    if "loss" in given:
        given["loss"] = predicted_loss(given["loss"])
    if finite:
        _refuse_infinite_only(given)
    task = _training_data(data)
    outputs = _outputs(task.y, given.get("loss"))
    tasks = list(zip(networks, spawn(seed, len(networks)), strict=True))
    found = [
        compare(mlp.replace(n_out=outputs), *task, trained=True, seed=own, **given)
        for mlp, own in track(tasks, "activations")
    ]
    return answer(found, _finite() if finite else _infinite(), seed)


def _training_data(path: Path | None) -> TrainingData:
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


def _outputs(y: NDArray[Any], loss: str | None) -> int:
    """One for each column of the targets, or for the cross-entropy of numbered classes one for each class."""
    if loss == "cross_entropy" and y.shape[1] == 1:
        return max(2, int(y.max()) + 1)
    return int(y.shape[1])


def _refuse_infinite_only(options: Mapping[str, Any]) -> None:
    for name in _INFINITE_ONLY:
        if name in options:
            raise InputError(
                f"--{name} is for infinite width: leave it out with --regime finite, which is about the end of "
                "training on squared errors."
            )


def _infinite() -> Kind:
    from foretrain.report.trained import trained_figure

    return Kind("The prediction", "trained networks", _paragraphs, _document, trained_figure)


def _paragraphs(found: TrainedComparison) -> list[str | Table]:
    from foretrain.compare.presentation import ladder_text, last_layer_rows
    from foretrain.compare.trained.presentation import power_text, size_rows

    columns = tuple(f"n x rms deviation of {name}" for name in found.observables)
    return [
        f"{found.mlp.activation.label}: {ladder_text(found)}",
        f"trained {found.goal.law.statement}",
        Table(("width", "networks", "steps", *columns), size_rows(found)),
        *_first_entries(("entry", "theory", "measured limit", "standard error", "z"), last_layer_rows(found)),
        power_text(found),
    ]


def _first_entries(columns: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> list[str | Table]:
    parts: list[str | Table] = [Table(columns, rows[:_ENTRIES_SHOWN])]
    left = len(rows) - _ENTRIES_SHOWN
    return [*parts, f"{left} more entries: see --json or --save"] if left > 0 else parts


def _document(found: TrainedComparison) -> dict[str, Any]:
    powers = {name: found.power(name) for name in found.observables}
    return {
        "regime": "infinite",
        "learner": found.learner,
        "trained": found.goal.law.statement,
        "eta": found.goal.training.eta,
        "steps": found.steps.tolist(),
        "powers": {name: None if power is None else power.value for name, power in powers.items()},
        "power_errors": {
            name: None if power is None else power.standard_error for name, power in powers.items()
        },
    }


def _finite() -> Kind:
    from foretrain.report.trained import finite_figure

    return Kind("The order 1/n", "real networks", _finite_paragraphs, _finite_document, finite_figure)


def _finite_paragraphs(found: FiniteComparison) -> list[str | Table]:
    from foretrain.compare.presentation import ladder_text
    from foretrain.compare.trained.finite.entries import POSTERIOR, TRAINED

    meanings = POSTERIOR if found.learner == "bayes" else TRAINED
    columns = ("entry", "theory", *(f"n = {width}" for width in found.widths), "limit", "standard error", "z")
    return [
        f"{found.mlp.activation.label}: {ladder_text(found)}",
        f"{found.goal.statement}; n is the width of the last hidden layer",
        *_first_entries(columns, _finite_rows(found)),
        "\n".join(f"{name}: {meanings[name]}" for name in found.observables),
    ]


def _finite_rows(found: FiniteComparison) -> list[list[Any]]:
    from numpy import isnan

    ends = zip(found.limit, found.standard_error, found.z, strict=True)
    return [
        [
            entry.label,
            float(theory),
            *map(float, measured),
            float(limit),
            float(error),
            None if isnan(z) else round(float(z), 2),
        ]
        for entry, theory, measured, (limit, error, z) in zip(
            found.entries, found.theory, found.measured.T, ends, strict=True
        )
    ]


def _finite_document(found: FiniteComparison) -> dict[str, Any]:
    from foretrain.compare.trained.finite.goal import FiniteGoal
    from foretrain.compare.trained.finite.presentation import scaled_terms

    goal = found.goal
    return {
        "regime": "finite",
        "learner": found.learner,
        "trained": goal.statement,
        "eta": goal.goal.training.eta
        if isinstance(goal, FiniteGoal) and goal.algorithm != "two_step"
        else None,
        "widths": found.widths.tolist(),
        "steps": found.steps.tolist(),
        "infinite_mean": found.goal.prediction.infinite_mean.values,
        "scaled_terms": scaled_terms(found),
    }
