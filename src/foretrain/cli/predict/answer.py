"""What ``foretrain predict`` tells: the prediction in a table, and the loss where test targets are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.cli.predict.data import Task, indicator
from foretrain.support.answers import Cell, Table

if TYPE_CHECKING:
    import xarray

    from foretrain.theory.architecture import MLP
    from foretrain.theory.prediction.infinite_width.losses import ExpectedLoss
    from foretrain.theory.prediction.result import PredictedOutputs

_ROWS, _OUTPUTS = 15, 4  # of the table; --json and --save have all


def paragraphs(mlp: MLP, task: Task, found: PredictedOutputs, smoothing: float | None) -> list[str | Table]:
    """The answer for people."""
    inner = mlp.layers[min(1, mlp.depth - 1)]
    skip = f", gamma = {max(mlp.gamma, key=abs):g}" if mlp.is_residual else ""
    head = (
        f"{mlp.activation.label}, depth {mlp.depth}, C_b = {inner.C_b:.6g}, C_W = {inner.C_W:.6g}{skip}\n"
        f"Data: {task.origin}.\n{found.statement}."
    )
    parts: list[str | Table] = [head, _table(task, found)]
    tests, outputs = found.mean.shape
    if tests > _ROWS or outputs > _OUTPUTS:
        each = "one output" if outputs == 1 else f"{outputs} outputs"
        parts.append(f"Of {tests} test inputs with {each} each: --json and --save have them all.")
    if smoothing:
        parts.append(
            f"Labels are smoothed: classes that are not given have probability {smoothing:g} in all."
        )
    if found.jitter:
        parts.append(f"A jitter of {found.jitter:.3g} had to be added to the kernel's diagonal.")
    return [*parts, *_finite_width(found), *_verdict(task, found)]


def document(mlp: MLP, task: Task, found: PredictedOutputs, smoothing: float | None) -> dict[str, Any]:
    """The answer for machines."""
    arrays = found.to_dataset()
    names = ("mean", "variance", "probabilities", "infinite_mean", "standard_error")
    sizes = ("log_evidence", "infinite_log_evidence", "expansion", "terms_over_mean")
    loss = _loss(task, found)
    return {
        "activation": mlp.activation.label,
        "depth": mlp.depth,
        "hidden_widths": mlp.hidden_widths,
        **{name: getattr(mlp, name) for name in ("C_b", "C_W", "lambda_b", "lambda_W", "gamma")},
        "data": task.origin,
        "loss": task.loss,
        "label_smoothing": smoothing,
        "statement": found.statement,
        "jitter": found.jitter,
        **{name: arrays[name].values for name in names if name in arrays},
        "terms": {name: part.values for name, part in _terms(found).items()},
        **{name: arrays.attrs.get(name) for name in sizes},
        "accuracy": _accuracy(task, found),
        "test_loss": None
        if loss is None
        else {
            "mean": loss.total,
            "bias": loss.bias,
            "variance": loss.variance,
            "fluctuation": loss.fluctuation,
            "meaning": loss.name,
        },
    }


def _table(task: Task, found: PredictedOutputs) -> Table:
    """Evenly chosen test inputs; classes with their probabilities, else means with their spread."""
    from foretrain.report.prediction import varying_component

    tests, outputs = found.mean.shape
    rows = np.unique(np.linspace(0, tests - 1, min(tests, _ROWS)).round().astype(int))
    columns: list[tuple[str, Sequence[Cell]]] = [("test", [int(row) for row in rows])]
    place = varying_component(task.x, task.x_test)
    if place is not None:
        columns.append(("x", [float(task.x_test[row, place]) for row in rows]))
    arrays = found.to_dataset()
    classes = "probabilities" in arrays
    shown = arrays["probabilities" if classes else "mean"].values
    label = "class" if classes else "mean" if outputs == 1 else "output"
    for output in range(min(outputs, _OUTPUTS)):
        name = label if label == "mean" else f"{label} {output}"
        columns.append((name, [float(shown[row, output]) for row in rows]))
        if "infinite_mean" in arrays:
            columns.append(
                ("infinite width", [float(arrays["infinite_mean"].values[row, output]) for row in rows])
            )
    if not classes and found.variance is not None:
        spread = np.sqrt(found.variance.values.reshape(tests, -1))
        columns.append(("± spread", [float(spread[row].max()) for row in rows]))
    if task.y_test is not None:
        given = task.y_test.reshape(tests, -1)[:, :_OUTPUTS]
        for output in range(given.shape[1]):
            name = "given" if given.shape[1] == 1 else f"given {output}"
            columns.append((name, [given[row, output].item() for row in rows]))
    return Table(tuple(name for name, _ in columns), list(zip(*(cells for _, cells in columns), strict=True)))


def _terms(found: PredictedOutputs) -> dict[str, xarray.DataArray]:
    """What finite width adds to the mean, by origin."""
    return dict(getattr(found, "terms", {}))


def _finite_width(found: PredictedOutputs) -> list[str]:
    """How large every part of what finite width adds is, and the evidence."""
    lines = []
    if _terms(found):
        sizes = ", ".join(f"{name} {float(abs(part).max()):.3g}" for name, part in _terms(found).items())
        lines.append(f"Added to the mean by finite width, at most: {sizes}.")
    evidence = found.to_dataset().attrs.get("log_evidence")
    if evidence is not None:
        lines.append(f"Log evidence of the training targets: {evidence:.6g}.")
    return lines


def _verdict(task: Task, found: PredictedOutputs) -> list[str]:
    loss = _loss(task, found)
    if loss is None:
        return []
    tests = len(found.mean)
    spread = "" if loss.fluctuation is None else f", ± {loss.fluctuation**0.5:.4g} from network to network"
    lines = [
        f"Loss on the {tests} test inputs, {loss.name}: {loss.total:.6g} = bias {loss.bias:.6g} + variance "
        f"{loss.variance:.6g}{spread}."
    ]
    accuracy = _accuracy(task, found)
    if accuracy is not None:
        lines.append(f"The most probable class is the given one for {accuracy:.1%} of the test inputs.")
    return lines


def _loss(task: Task, found: PredictedOutputs) -> ExpectedLoss | None:
    """Mean loss over networks, where test targets are known."""
    from foretrain.theory.prediction.infinite_width import (
        CROSS_ENTROPY,
        CrossEntropyPrediction,
        expected_loss,
    )

    if task.y_test is None:
        return None
    if isinstance(found, CrossEntropyPrediction):
        return expected_loss(found.without_shift(), indicator(task.y_test, task.outputs), CROSS_ENTROPY)
    return expected_loss(found, task.y_test)


def _accuracy(task: Task, found: PredictedOutputs) -> float | None:
    """Share of test inputs whose largest mean output is that of their class; None where there are no classes."""
    if task.y_test is None or task.loss != "cross_entropy":
        return None
    likely = found.to_dataset()["probabilities"].values.argmax(axis=1)
    return float((likely == task.y_test).mean())
