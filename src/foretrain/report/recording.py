"""What a ``Recorder`` recorded, for the eye: curves, line families of spectra, stacked shares, alignment by mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.drawing import BLUE, FAINT, PALETTE, new_figure
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any]
Panel = Callable[["Axes"], None]

_COLUMNS = 3
_MOST_LABELS = 8  # lines beyond this number have colours from first to last, and no names
_MOST_MATRICES = 6  # spectra of so many matrices are drawn
_WIDE = 50.0  # values that span this factor are on a log axis
_ERROR = "_error"


def recording_figure(dataset: xr.Dataset, title: str = "Recording") -> Figure:
    """One panel for every variable of ``foretrain.training.read``, with bands of one standard error where known.

    Steps are on a log axis if the schedule was; values are where all are positive and they span more than a factor of
    50. A DataArray whose attribute ``picture`` is "shares" is stacked, with the smallest of many parts as one; one
    with "spectra" (matrix, rank) fills a panel for each matrix.
    """
    panels = list(_panels(dataset))
    if not panels:
        raise InputError("nothing was recorded: there is no picture of it.")
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(title, rows, columns, (4.4 * columns, 3.1 * rows + 0.4))
    logarithmic = str(dataset.attrs.get("schedule", "")).startswith("log")
    for axis, panel in zip(axes, panels):
        panel(axis)
        _along_training(axis, dataset["step"].values, logarithmic)
    for spare in axes[len(panels) :]:
        spare.set_axis_off()
    return figure


def _panels(dataset: xr.Dataset) -> Iterator[Panel]:
    for name in map(str, dataset.data_vars):
        is_error = name.endswith(_ERROR) and name.removesuffix(_ERROR) in dataset
        if name == "recorded" or is_error or dataset[name].dims[:1] != ("step",):
            continue
        values = _where_recorded(dataset, name)
        if not values.size:
            continue
        picture = values.attrs.get("picture")
        if values.ndim == 1:
            yield partial(_curve, values=values, error=_error_of(dataset, name))
        elif picture == "shares" and values.ndim == 2:
            yield partial(_stacked, values=values)
        elif picture == "spectra" and values.ndim == 3:
            yield from _spectra(values)
        elif values[0].size <= _MOST_LABELS and values.ndim == 2:
            yield partial(_named_lines, values=values, error=_error_of(dataset, name))
        else:
            yield partial(_family, values=values, heading=_words(name))


def _spectra(values: xr.DataArray) -> Iterator[Panel]:
    """A panel for each matrix; the last one says how many have none."""
    dim = values.dims[1]
    drawn = min(values.sizes[dim], _MOST_MATRICES)
    for place, matrix in enumerate(values[dim].values[:drawn]):
        left = values.sizes[dim] - drawn if place == drawn - 1 else 0
        heading = f"{_words(values.name)}: {matrix}" + (f" ({left} more not drawn)" if left else "")
        yield partial(_family, values=values.isel({dim: place}), heading=heading)


def _where_recorded(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """Without the steps at which it was skipped."""
    values = dataset[name]
    if "recorded" not in dataset or "observable" not in values.attrs:
        return values
    own = dataset["recorded"].sel(observable=values.attrs["observable"]).values
    return values.isel(step=own)


def _error_of(dataset: xr.Dataset, name: str) -> xr.DataArray | None:
    error = f"{name}{_ERROR}"
    return _where_recorded(dataset, error) if error in dataset else None


def _curve(axis: Axes, values: xr.DataArray, error: xr.DataArray | None) -> None:
    steps, numbers = values["step"].values, values.values.real
    axis.plot(steps, numbers, color=BLUE, linewidth=1.6, marker=".", markersize=3)
    _band(axis, steps, numbers, error, BLUE)
    _finish(axis, _words(values.name), numbers)


def _named_lines(axis: Axes, values: xr.DataArray, error: xr.DataArray | None) -> None:
    """One line for each label of the only axis beside the steps."""
    (dim,) = values.dims[1:]
    steps = values["step"].values
    for place, (label, color) in enumerate(zip(values[dim].values, _colors(values.sizes[dim]))):
        numbers = values.isel({dim: place}).values.real
        if not np.isfinite(numbers).any():
            continue
        text = f"{_words(dim)} {label}" if np.issubdtype(type(label), np.number) else str(label)
        axis.plot(steps, numbers, color=color, linewidth=1.6, marker=".", markersize=3, label=text)
        _band(axis, steps, numbers, None if error is None else error.isel({dim: place}), color)
    axis.legend(frameon=False, fontsize=7)
    _finish(axis, _words(values.name), values.values.real)


def _stacked(axis: Axes, values: xr.DataArray) -> None:
    labels, parts = _largest_parts(values)
    axis.stackplot(values["step"].values, parts.T, labels=labels, colors=_colors(len(labels)), alpha=0.85)
    axis.set_ylim(0.0, 1.0)
    axis.set_title(_words(values.name), fontsize=10, loc="left")
    axis.legend(
        facecolor="white", framealpha=0.85, edgecolor="none", fontsize=7, loc="upper left", reverse=True
    )


def _largest_parts(values: xr.DataArray) -> tuple[list[str], Array]:
    """Names and (steps, parts): of many the largest ones in their order, and the sum of the others."""
    (dim,) = values.dims[1:]
    labels, numbers = [str(label) for label in values[dim].values], values.values
    if len(labels) <= _MOST_LABELS:
        return labels, numbers
    size = np.nan_to_num(numbers).max(0)
    shown = np.sort(np.argsort(-size, kind="stable")[: _MOST_LABELS - 1])
    others = np.delete(numbers, shown, axis=1).sum(1)
    return [
        *(labels[place] for place in shown),
        f"{len(labels) - len(shown)} others",
    ], np.column_stack([numbers[:, shown], others])


def _family(axis: Axes, values: xr.DataArray, heading: str) -> None:
    """Many lines, from dark to light in their order."""
    numbers = values.values.real.reshape(len(values), -1)
    kept = numbers[:, np.isfinite(numbers).any(0)]
    for line, color in zip(kept.T, _shades(kept.shape[1])):
        axis.plot(values["step"].values, line, color=color, linewidth=1.0)
    _finish(axis, heading, kept)


def _band(axis: Axes, steps: Array, numbers: Array, error: xr.DataArray | None, color: str) -> None:
    if error is not None and error.shape == numbers.shape and bool((error.values > 0).any()):
        axis.fill_between(
            steps, numbers - error.values, numbers + error.values, color=color, alpha=0.2, linewidth=0
        )


def _finish(axis: Axes, heading: str, numbers: Array) -> None:
    finite = numbers[np.isfinite(numbers)]
    if finite.size and finite.min() > 0 and finite.max() > _WIDE * finite.min():
        axis.set_yscale("log")
    axis.set_title(heading, fontsize=10, loc="left")


def _along_training(axis: Axes, steps: Array, logarithmic: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel("step", fontsize=9)
    if logarithmic and steps[-1] > 1:
        axis.set_xscale("symlog", linthresh=1.0, linscale=0.3)  # step 0 has its place
        axis.axvline(1.0, color=FAINT, linewidth=0.6, linestyle=":")
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if steps[-1] > steps[0]:
        axis.set_xlim(float(steps[0]), float(steps[-1]))


def _words(name: object) -> str:
    return str(name).replace("_", " ")


def _colors(count: int) -> list[str]:
    return list(PALETTE[:count]) if count <= len(PALETTE) else _shades(count)


def _shades(count: int) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.9 * place / max(1, count - 1))) for place in range(count)]
