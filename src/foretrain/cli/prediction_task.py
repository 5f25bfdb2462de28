"""The task of ``foretrain predict``: inputs, targets or classes, and what is to be predicted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.cli.options import predicted_loss
from foretrain.support.errors import InputError
from foretrain.support.loading import Data, load_data

Array = NDArray[Any]

_TRAINED = np.array([-2.0, -1.3, -0.4, 0.3, 1.0, 1.9])
_HELD_OUT = 5
_CLASSES = 1000  # more of them need more samples
_TESTED = np.linspace(-3.0, 3.0, 61)


@dataclass(frozen=True)
class Task:
    """Rows of inputs, targets (rows, outputs) or classes (rows,), the loss, and where all is from, in words."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array | None
    loss: str
    outputs: int
    origin: str


def task_from(path: Path | None, loss: str | None, *, one_hot: bool, bayes: bool, few: bool) -> Task:
    """What a data file asks for; the example without one, of fewer points where many take minutes."""
    chosen = None if loss is None else predicted_loss(loss)
    if path is None:
        if chosen == "cross_entropy" or one_hot:
            raise InputError("the example has no classes: give a data file whose y holds whole numbers.")
        return _example(_TRAINED[1::2], _TESTED[10:51:2]) if few else _example(_TRAINED, _TESTED)
    data, origin = _with_tests(load_data(path), path)
    assert data.x_test is not None
    x, x_test = (np.asarray(rows.reshape(len(rows), -1), dtype=np.float64) for rows in (data.x, data.x_test))
    if data.y.dtype.kind in "biu" and data.y.size == len(data.y):
        task = Task(x, data.y.ravel(), x_test, data.y_test, "", 0, origin)
        return _classes(task, chosen, one_hot=one_hot, bayes=bayes)
    if one_hot or chosen == "cross_entropy":
        raise InputError(
            f"y in {path} holds no classes: save whole numbers, one for each input, or leave "
            f"{'--one-hot' if one_hot else '--loss cross_entropy'} out."
        )
    y = data.y.reshape(len(x), -1)
    y_test = None if data.y_test is None else data.y_test.reshape(len(x_test), -1)
    return Task(x, y, x_test, y_test, "squared_error", y.shape[1], origin)


def _with_tests(data: Data, path: Path) -> tuple[Data, str]:
    """The data and what they are; where there is nothing to predict, every fifth sample is kept for it."""
    if data.x_test is not None:
        return data, f"{len(data.x)} training and {len(data.x_test)} test inputs of {path}"
    held = np.arange(len(data.x)) % _HELD_OUT == _HELD_OUT - 1
    if not held.any():
        raise InputError(
            f"{path} has no x_test and too few samples to hold some out: add the inputs to predict."
        )
    parts = Data(data.x[~held], data.y[~held], data.x[held], data.y[held])
    return (
        parts,
        f"{len(parts.x)} of {len(data.x)} samples of {path}; every fifth is held out to be predicted",
    )


def _classes(task: Task, chosen: str | None, *, one_hot: bool, bayes: bool) -> Task:
    """Classes as they are for the cross-entropy, else one column each, if that is what is wanted."""
    y = task.y.astype(np.int64)
    y_test = None if task.y_test is None else task.y_test.ravel().astype(np.int64)  # however they were saved
    if y_test is not None and task.y_test is not None and (y_test != task.y_test.ravel()).any():
        raise InputError("y holds classes but y_test does not: save whole numbers in both.")
    every = y if y_test is None else np.concatenate([y, y_test])
    count = int(every.max()) + 1
    if every.min() < 0 or count < 2:
        raise InputError(
            "y holds whole numbers but no classes 0, 1, ...: save it as floating-point numbers if they are targets."
        )
    if count > max(_CLASSES, 10 * len(every)):
        raise InputError(
            f"y names class {count - 1} among {len(every)} samples: number the classes 0, 1, ... without gaps, or "
            "save y as floating-point numbers if they are targets."
        )
    if one_hot:
        if chosen == "cross_entropy":
            raise InputError("--one-hot is for squared errors: leave it out with --loss cross_entropy.")
        tested = None if y_test is None else indicator(y_test, count)
        return Task(task.x, indicator(y, count), task.x_test, tested, "squared_error", count, task.origin)
    if chosen == "squared_error" or bayes:
        raise InputError(
            "y holds classes: add --one-hot to predict one output for each, or save it as floating-point numbers if "
            "they are targets."
        )
    return Task(task.x, y, task.x_test, y_test, "cross_entropy", count, task.origin)


def indicator(classes: Array, count: int) -> Array:
    """One column for each class, 1 in that of each input: (inputs, classes)."""
    return np.asarray(classes[:, None] == np.arange(count), dtype=np.float64)


def _example(trained: Array, tested: Array) -> Task:
    """Points of a wave; the constant second component of the inputs stands for a bias."""
    x, x_test = (np.stack([points, np.ones(len(points))], axis=1) for points in (trained, tested))
    y, y_test = (np.sin(1.6 * rows[:, :1]) + 0.3 * rows[:, :1] for rows in (x, x_test))
    origin = f"none given, so {len(x)} points of sin(1.6 x) + 0.3 x and {len(x_test)} test inputs (x, 1)"
    return Task(x, y, x_test, y_test, "squared_error", 1, origin)
