"""What a recorder did and what it recorded, as results that print and draw themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import (
    PALETTE,
    Answer,
    Axis,
    Figure,
    Panel,
    Part,
    Result,
    Table,
    dataset_table,
    scale_for,
    shades,
)
from foretrain.support.errors import InputError
from foretrain.training.recorder.records import read

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class ObservableSummary:
    """How often an observable was recorded and left out, its seconds in all, and why it ended, if it did."""

    records: int
    skipped: int
    seconds: float
    failure: str | None = None


@dataclass(frozen=True, repr=False)
class RecorderSummary(Result):
    """Steps counted, records written, and the measured share of the time that recording took."""

    folder: str
    steps: int
    records: int
    seconds: float
    overhead: float
    budget: float | None
    bookkeeping_seconds: float
    setup_seconds: float
    closing_seconds: float
    observables: Mapping[str, ObservableSummary]

    def answer(self) -> Answer:
        """The whole recording in a sentence, and its cost by observable."""
        limit = "no limit" if self.budget is None else f"budget {self.budget:.3g}"
        whole = self.seconds or 1.0
        rows: list[tuple[str | int | None, ...]] = [
            (name, own.records, own.skipped, f"{own.seconds / whole:.2%}", own.failure)
            for name, own in self.observables.items()
        ]
        others = "protecting the training, writing, slower steps after it"
        rows.append((others, None, None, f"{self.bookkeeping_seconds / whole:.2%}", None))
        columns = ("observable", "recorded", "skipped", "share of the time", "ended")
        width = len(columns) if any(own.failure for own in self.observables.values()) else len(columns) - 1
        closing = (
            f", writing the dataset at the end {self.closing_seconds:.3g} s" if self.closing_seconds else ""
        )
        return Answer(
            f"Recorder in {self.folder}: {self.steps} steps, {self.records} records, overhead "
            f"{self.overhead:.2%} of {self.seconds:.3g} s ({limit}).",
            [
                Table(columns[:width], [row[:width] for row in rows]),
                f"Apart from this: first-time work before the start {self.setup_seconds:.3g} s{closing}.",
            ],
        )


_MOST_LABELS = 8  # lines beyond this number have colours from first to last, and no names
_MOST_MATRICES = 6  # spectra of so many matrices are drawn
_SHOWN_ROWS = 12
_ERROR = "_error"


@dataclass(frozen=True, eq=False, repr=False)
class Recording(Result):
    """The records of a training by step, as ``read`` gives them, with their picture."""

    data: xr.Dataset
    title: str = "Recording"

    def answer(self) -> Answer:
        """How many records there are of what, single numbers by step, and the picture."""
        steps, names = self.data["step"].values, [name for name, _ in _recorded(self.data)]
        span = f" from step {steps[0]} to {steps[-1]}" if len(steps) else ""
        numbers = [name for name in names if self.data[name].ndim == 1]
        parts: list[Part] = []
        if numbers:
            parts.append(dataset_table(self.data, "step", numbers).thinned(_SHOWN_ROWS))
        statement = f"{self.title}: {len(steps)} records{span} of {', '.join(names) or 'nothing'}."
        return Answer(statement, [*parts, self.figure], self.data)

    def figure(self) -> Figure:
        """One panel for every variable, with bands of one standard error where known.

        Steps are on a log axis if the schedule was; values are where all are positive and they span more than a
        factor of 50. A DataArray whose attribute ``picture`` is "shares" is stacked, with the smallest of many parts
        as one; one with "spectra" (matrix, rank) fills a panel for each matrix.
        """
        figure, data = Figure(self.title, columns=3), self.data
        for name, values in _recorded(data):
            error, picture = _error_of(data, name, values), values.attrs.get("picture")
            if values.ndim == 1:
                _add_lines(self._panel(figure, name, values), values.expand_dims("line", 1), error, [""])
            elif picture == "shares" and values.ndim == 2:
                _add_shares(self._panel(figure, name), values)
            elif picture == "spectra" and values.ndim == 3:
                self._add_spectra(figure, name, values)
            elif values[0].size <= _MOST_LABELS and values.ndim == 2:
                _add_lines(self._panel(figure, name, values), values, error, _labels(values))
            else:
                _add_family(self._panel(figure, name, values), values)
        if not figure.panels:
            raise InputError("nothing was recorded: there is no picture of it.")
        return figure

    def _panel(self, figure: Figure, name: str, values: xr.DataArray | None = None) -> Panel:
        """A panel over the steps; without values it is one of shares."""
        steps = self.data["step"].values
        logarithmic = str(self.data.attrs.get("schedule", "")).startswith("log") and steps[-1] > 1
        low, high = (steps[0], steps[-1]) if steps[-1] > steps[0] else (None, None)
        x = Axis("step", "symlog" if logarithmic else "linear", low, high, whole=not logarithmic)
        y = Axis(low=0.0, high=1.0) if values is None else Axis(scale=scale_for(values.values.real))
        return figure.panel(name.replace("_", " "), x=x, y=y, legend="right" if values is None else "best")

    def _add_spectra(self, figure: Figure, name: str, values: xr.DataArray) -> None:
        """A panel for each matrix; the last one says how many have none."""
        dim = values.dims[1]
        drawn = min(values.sizes[dim], _MOST_MATRICES)
        for place, matrix in enumerate(values[dim].values[:drawn]):
            left = values.sizes[dim] - drawn if place == drawn - 1 else 0
            heading = f"{name}: {matrix}" + (f" ({left} more not drawn)" if left else "")
            own = values.isel({dim: place})
            _add_family(self._panel(figure, heading, own), own)


def recording(folder: str | Path, only: str | None = None) -> Recording:
    """What a recorder wrote into a folder, to be printed and drawn; ``read`` gives its data alone.

    >>> recording("runs/first").plot()  # doctest: +SKIP
    """
    return Recording(read(folder, only), f"Recording in {folder}")


def _recorded(data: xr.Dataset) -> Iterator[tuple[str, xr.DataArray]]:
    """All variables that have values, without the steps at which they were skipped."""
    for name in map(str, data.data_vars):
        is_error = name.endswith(_ERROR) and name.removesuffix(_ERROR) in data
        if name != "recorded" and not is_error and data[name].dims[:1] == ("step",):
            values = _where_recorded(data, name)
            if values.size:
                yield name, values


def _where_recorded(data: xr.Dataset, name: str) -> xr.DataArray:
    values = data[name]
    if "recorded" not in data or "observable" not in values.attrs:
        return values
    return values.isel(step=data["recorded"].sel(observable=values.attrs["observable"]).values)


def _error_of(data: xr.Dataset, name: str, values: xr.DataArray) -> NDArray[Any] | None:
    """Standard errors (steps, lines) where there are some."""
    if f"{name}{_ERROR}" not in data:
        return None
    error = _where_recorded(data, f"{name}{_ERROR}").values
    return error.reshape(len(values), -1) if error.shape == values.shape and (error > 0).any() else None


def _labels(values: xr.DataArray) -> list[str]:
    """Of the only axis beside the steps."""
    (dim,) = values.dims[1:]
    word = str(dim).replace("_", " ")
    return [
        f"{word} {label}" if np.issubdtype(type(label), np.number) else str(label)
        for label in values[dim].values
    ]


def _add_lines(panel: Panel, values: xr.DataArray, error: NDArray[Any] | None, labels: list[str]) -> None:
    for place, (label, color) in enumerate(zip(labels, _colors(len(labels)), strict=True)):
        numbers = values.values.real[:, place]
        if np.isfinite(numbers).any():
            band = error[:, place] if error is not None and (error[:, place] > 0).any() else None
            panel.curve(values["step"].values, numbers, ".-", label, color, band=band, size=3)


def _add_shares(panel: Panel, values: xr.DataArray) -> None:
    """Parts of a whole on top of each other: of many the largest in their order, and the sum of the others."""
    labels, numbers = _labels(values), values.values
    if len(labels) > _MOST_LABELS:
        size = np.nan_to_num(numbers).max(0)
        kept = np.sort(np.argsort(-size, kind="stable")[: _MOST_LABELS - 1])
        others = np.delete(numbers, kept, axis=1).sum(1)
        labels = [*(labels[place] for place in kept), f"{len(labels) - len(kept)} others"]
        numbers = np.column_stack([numbers[:, kept], others])
    tops = numbers.cumsum(1)
    for place, color in reversed(list(enumerate(_colors(len(labels))))):
        low = tops[:, place] - numbers[:, place]
        panel.region(values["step"].values, low, tops[:, place], labels[place], color, alpha=0.85)


def _add_family(panel: Panel, values: xr.DataArray) -> None:
    """Many lines, from dark to light in their order."""
    numbers = values.values.real.reshape(len(values), -1)
    kept = numbers[:, np.isfinite(numbers).any(0)]
    for line, color in zip(kept.T, shades(kept.shape[1]), strict=True):
        panel.curve(values["step"].values, line, "-", color=color, width=1.0)


def _colors(count: int) -> list[str]:
    return list(PALETTE[:count]) if count <= len(PALETTE) else shades(count)
