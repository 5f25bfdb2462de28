"""Training logs as arrays: files, tables and mappings whose columns are found by their usual names."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import FileError, InputError

Array = NDArray[np.float64]

# What training scripts call their columns; the first that is there is taken, and "/", ".", "-" and blanks are "_".
_NAMES = {
    "loss": (
        "loss",
        "train_loss",
        "training_loss",
        "train_loss_step",
        "loss_step",
        "loss_train",
        "train_loss_epoch",
    ),
    "rate": ("lr", "learning_rate", "train_lr", "train_learning_rate", "rate"),
    "validation": (
        "val_loss",
        "eval_loss",
        "valid_loss",
        "validation_loss",
        "val_loss_epoch",
        "dev_loss",
        "test_loss",
    ),
    "gradient_norm": ("grad_norm", "gradient_norm", "train_grad_norm", "grad_norm_total", "gnorm"),
    "step": ("step", "global_step", "train_global_step", "steps", "_step", "iteration", "iter"),
    "epoch": ("epoch", "train_epoch", "epochs"),
}
_RATE_OF_OPTIMIZER = re.compile(r"lr_\w+")  # Lightning's monitor writes lr-Adam, lr-SGD/pg1, ...
_LEAST_RECORDS = 8  # losses, below which no trend has an error bar


@dataclass(frozen=True, eq=False)
class Curves:
    """A log as arrays. Losses may be no number, where training diverged; what was not written down is None."""

    steps: Array
    losses: Array
    rates: Array | None = None
    validation_steps: Array | None = None
    validation_losses: Array | None = None
    gradient_norms: Array | None = None
    epochs: Array | None = None

    def __post_init__(self) -> None:
        if len(self.losses) < _LEAST_RECORDS:
            raise InputError(
                f"the log has {len(self.losses)} losses: give at least {_LEAST_RECORDS}, because an error bar "
                "of the trend needs them."
            )
        if not (np.diff(self.steps) > 0).all():
            raise InputError("`steps` do not increase: give one loss for each step, in order.")


def from_arrays(
    losses: Any, rates: Any, steps: Any, validation: Any, gradient_norms: Any, epochs: Any
) -> Curves:
    """The curves of arrays that were given one by one."""
    loss = _column("losses", losses)
    places = np.arange(len(loss), dtype=float) if steps is None else _column("steps", steps, len(loss))
    at = values = None
    if isinstance(validation, tuple) and len(validation) == 2:
        at = _column("validation", validation[0])
        values = _column("validation", validation[1], len(at))
    elif validation is not None:
        at, values = places, _column("validation", validation, len(loss))
    if at is not None and values is not None:
        at, values = at[np.isfinite(values)], values[np.isfinite(values)]
    others = {"rates": rates, "gradient_norms": gradient_norms, "epochs": epochs}
    columns = {key: None if one is None else _column(key, one, len(loss)) for key, one in others.items()}
    return Curves(places, loss, columns["rates"], at, values, columns["gradient_norms"], columns["epochs"])


def from_source(source: Any) -> Curves:
    """The curves of a file, a mapping from names to columns, a data frame, or rows that are mappings."""
    place = "the log"
    if isinstance(source, str | PathLike):
        place = str(source)
        rows = _file_rows(Path(source).expanduser())
    elif hasattr(source, "columns") or isinstance(source, Mapping):
        rows = _table_rows(source)
    else:
        rows = list(source)
    written = dict.fromkeys(name for row in rows for name in row)
    simple = {_simple(name): name for name in reversed(list(written))}
    columns = {
        kind: simple[next(alias for alias in aliases if alias in simple)]
        for kind, aliases in _NAMES.items()
        if any(alias in simple for alias in aliases)
    }
    monitored = sorted(name for name in simple if _RATE_OF_OPTIMIZER.fullmatch(name))
    if "rate" not in columns and monitored:
        columns["rate"] = simple[monitored[0]]
    if "loss" not in columns:
        known = ", ".join(map(str, written)) or "none"
        raise InputError(
            f"{place} has no column of losses ({known}): call one of them 'loss' or 'train_loss'."
        )
    return _from_rows(rows, columns)


def _from_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Curves:
    """Training records are the rows with a loss, validation records those with a validation loss."""
    cells = {
        kind: [_number(row.get(name)) for row in rows] for kind, name in columns.items()
    }  # None is a gap; not a number is a loss that diverged
    trained = np.array([cell is not None for cell in cells["loss"]])
    filled: dict[str, Array] = {
        kind: _carried(cells[kind]) for kind in ("step", "rate", "epoch") if kind in cells
    }
    epochs = filled.get("epoch")
    if "step" in filled:
        steps = filled["step"]
        repeated = len(np.unique(steps[trained])) < trained.sum()
        if repeated and epochs is not None and len(np.unique(epochs)) > 1:
            pairs = np.stack([epochs, steps], axis=1)[trained]
            if len(np.unique(pairs, axis=0)) == len(pairs) and (np.diff(epochs[trained]) >= 0).all():
                steps = np.arange(len(rows), dtype=float)  # steps that are counted anew in every epoch
    elif epochs is not None and (np.diff(epochs[trained]) > 0).all():
        steps = epochs
    else:
        steps = np.cumsum(trained) - 1.0
    # A run that was resumed writes some steps twice: the later record is the one that led on.
    order = {step: row for row, step in enumerate(steps.tolist()) if trained[row]}
    chosen = np.array([order[step] for step in sorted(order)], dtype=int)

    def taken(kind: str) -> Array | None:
        if kind not in cells:
            return None
        gaps = np.array([math.nan if cell is None else cell for cell in cells[kind]])
        values = filled.get(kind, gaps)
        return values[chosen] if np.isfinite(values[chosen]).any() else None

    losses = np.array([cells["loss"][row] for row in chosen], dtype=float)
    validated = {
        steps[row]: cell
        for row, cell in enumerate(cells.get("validation", ()))
        if cell is not None and math.isfinite(cell)
    }
    at = np.array(sorted(validated)) if validated else None
    return Curves(
        steps[chosen],
        losses,
        taken("rate"),
        at,
        None if at is None else np.array([validated[step] for step in at.tolist()]),
        taken("gradient_norm"),
        taken("epoch"),
    )


def _file_rows(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a CSV, JSON or JSON-lines file; the contents decide which it is."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}): check the path of the log.") from None
    except UnicodeDecodeError:
        raise FileError(f"{path} is no text: give a log as CSV, JSON or JSON lines.") from None
    if not text.lstrip().startswith(("{", "[")):
        head = text.partition("\n")[0]
        delimiter = max(",;\t", key=head.count)
        return list(csv.DictReader(text.splitlines(), delimiter=delimiter))
    try:
        document = json.loads(text)
    except ValueError:
        return list(_json_lines(path, text.splitlines()))
    if isinstance(document, Mapping) and isinstance(
        document.get("log_history"), list
    ):  # Hugging Face's Trainer
        document = document["log_history"]
    if isinstance(document, Mapping):
        return _table_rows(document)
    if not all(isinstance(row, Mapping) for row in document):
        raise FileError(f"{path} is a list of other things than records: give one object for each step.")
    return list(document)


def _json_lines(path: Path, lines: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError:
            if number == len(lines):  # a run that was killed while it wrote
                return
            raise FileError(f"line {number} of {path} is no JSON: mend it, or leave it out.") from None
        if not isinstance(row, Mapping):
            raise FileError(f"line {number} of {path} is no object: write names and numbers in braces.")
        yield row


def _table_rows(table: Any) -> list[Mapping[str, Any]]:
    """The rows of columns, whose gaps are nan: that of a loss is one if a number follows or if it was validated."""
    names = [name for name in getattr(table, "columns", table) if np.ndim(table[name]) == 1]
    columns = [_column(str(name), table[name]) for name in names]
    if len({len(column) for column in columns}) > 1:
        raise InputError("the columns of the log differ in length: give as many values in each.")
    gaps = {name: np.isnan(column) for name, column in zip(names, columns)}
    simple = {name: _simple(name) for name in names}
    validated = np.zeros(len(columns[0]) if columns else 0, dtype=bool)
    for name in (name for name in names if simple[name] in _NAMES["validation"]):
        validated |= ~gaps[name]
    for name in (name for name in names if simple[name] in _NAMES["loss"]):
        followed = np.arange(len(validated)) < np.flatnonzero(~gaps[name]).max(initial=-1)
        gaps[name] &= followed | validated
    return [
        {name: cell for name, cell in zip(names, cells) if not gaps[name][row]}
        for row, cells in enumerate(zip(*columns))
    ]


def _simple(name: object) -> str:
    """A name in small letters, with one "_" for all signs between them."""
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower())


def _column(name: str, values: Any, length: int | None = None) -> Array:
    """One column of numbers; unlike other arguments it may hold some that are not finite."""
    try:
        column = np.asarray([math.nan if one is None else one for one in values], dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        column = np.empty((0, 0))
    if column.ndim != 1:
        raise InputError(f"`{name}` is no row of numbers: give a sequence or a one-dimensional array.")
    if length is not None and len(column) != length:
        raise InputError(f"`{name}` has {len(column)} values: give {length}, one for each loss or step.")
    return column


def _number(cell: Any) -> float | None:
    """The number in a cell of a row; None where there is none."""
    try:
        return None if cell is None or isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError):
        return None


def _carried(cells: Iterable[float | None]) -> Array:
    """Values with every gap filled by the last value before it, or the first one after it."""
    column = np.array([math.nan if cell is None else cell for cell in cells])
    known = np.flatnonzero(np.isfinite(column))
    if not len(known):
        return column
    before = np.maximum(np.searchsorted(known, np.arange(len(column)), side="right") - 1, 0)
    return np.asarray(column[known[before]])
