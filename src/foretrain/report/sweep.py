"""The picture of a sweep: lines over one axis, a phase diagram over two; repeats are averaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.sweep.answers import ERROR, REPEAT, STATUS
from foretrain.experiments.sweep.parameters import SEED
from foretrain.support.drawing import BLUE, FAINT, INK, ORANGE, PALETTE, new_figure
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any]

_MOST_PANELS = 6
_MOST_LINES = 6  # of a family; with more values on both axes a map shows more
_ERROR = "_error"  # ends the name of a quantity's standard error
_DRAWS = (REPEAT, SEED)
_WIDE = 30.0  # largest over smallest value from which on a logarithmic scale is worth it


def sweep_figure(data: xarray.Dataset, quantity: str | None = None) -> Figure:
    """Draw one quantity of a sweep, or all that are numbers (the first six).

    Axes with one value do not count; "repeat" and "seed" are averaged, with standard errors on lines.
    """
    axes = drawn_axes(data)
    data = data.sortby([axis for axis in axes if _is_numeric(data[axis])])  # lines join neighbours
    panels = _panels(data, quantity)
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    size = (7.2, 5.0) if len(panels) == 1 else (4.6 * columns, 3.9 * rows)
    figure, places = new_figure(_title(data), rows, columns, size)
    for place, (name, array) in zip(places, panels.items()):
        if len(axes) == 2 and all(
            _is_numeric(array[axis]) and array.sizes[axis] > _MOST_LINES for axis in axes
        ):
            _draw_map(figure, place, array, axes, name)
        else:
            _draw_lines(place, array, axes, name, data.get(f"{name}{_ERROR}"))
    for place in places[len(panels) :]:
        place.set_visible(False)
    return figure


def drawn_axes(data: xarray.Dataset) -> list[str]:
    """Axes of the sweep that a picture shows, the longest last; refused if they are none or too many."""
    found = [
        str(dim)
        for dim in data[STATUS].dims
        if data.sizes[dim] > 1 and (dim not in _DRAWS or data[STATUS].ndim == 1)
    ]
    if not 1 <= len(found) <= 2:
        raise InputError(
            f"the sweep has {len(found)} axes with several values ({', '.join(found) or 'none'}), and a picture "
            "shows one or two: leave out --plot, or draw a part of the data yourself."
        )
    return sorted(found, key=lambda axis: (_is_numeric(data[axis]), data.sizes[axis]))


def _panels(data: xarray.Dataset, quantity: str | None) -> dict[str, xarray.DataArray]:
    """Numbers over the axes alone; a quantity with labels of its own gives one panel for each."""
    known = {
        str(name): array
        for name, array in data.data_vars.items()
        if name not in (STATUS, ERROR) and array.dtype.kind == "f"
    }
    plain = {
        name: array for name, array in known.items() if name.removesuffix(_ERROR) not in known.keys() - {name}
    }
    if quantity is not None and quantity not in known:
        raise unknown_name("quantity", quantity, known)
    chosen = plain if quantity is None else {quantity: known[quantity]}
    found = {title: panel for name, array in chosen.items() for title, panel in _single(data, name, array)}
    if not found:
        raise InputError("the sweep has no numbers to draw: leave out --plot.")
    return dict(list(found.items())[:_MOST_PANELS])


def _single(
    data: xarray.Dataset, name: str, array: xarray.DataArray
) -> Iterator[tuple[str, xarray.DataArray]]:
    own = [dim for dim in array.dims if dim not in data[STATUS].dims]
    array = array.squeeze([dim for dim in data[STATUS].dims if data.sizes[dim] == 1], drop=True)
    if not own:
        yield name, array
        return
    for place in np.ndindex(*(array.sizes[dim] for dim in own)):
        one = array.isel(dict(zip(own, place)))
        labels = ", ".join(str(one[dim].item()) for dim in own)
        if np.isfinite(one.values).any():
            yield f"{name}: {labels}", one.drop_vars([str(dim) for dim in own])


def _draw_lines(
    panel: Axes, array: xarray.DataArray, axes: list[str], name: str, errors: xarray.DataArray | None
) -> None:
    """One for each value of the shorter axis, or a choice of them; bars are standard errors."""
    x = axes[-1]
    family = axes[0] if len(axes) == 2 else None
    values = [None] if family is None else _choice(array[family].values.tolist())
    for colour, value in zip(PALETTE, values):
        here = {} if value is None else {family: value}
        own = None if errors is None else errors.sel(here).squeeze(drop=True)
        mean, error = _averaged(array.sel(here), x, own)
        label = None if value is None else f"{family} = {_short(value)}"
        places = _positions(array[x])
        panel.errorbar(places, mean, error, color=colour, marker="o", markersize=3.5, label=label)
    if (special := array.attrs.get("special")) is not None:
        panel.axhline(special, color=FAINT, linewidth=1, linestyle=":")
    _label_axis(panel, "x", array[x])
    panel.set_ylabel(_wrapped(name))
    if _is_wide(array.values):
        panel.set_yscale("log")
    if family is not None:
        panel.legend(frameon=False, fontsize=8)


def _choice(values: list[Any]) -> list[Any]:
    """At most as many as there are colours, from the first to the last."""
    places = np.unique(np.linspace(0, len(values) - 1, min(len(values), _MOST_LINES)).round().astype(int))
    return [values[place] for place in places]


def _averaged(array: xarray.DataArray, x: str, errors: xarray.DataArray | None) -> tuple[Array, Array | None]:
    """The mean over draws and its standard error; of a single draw its own error, if there is one."""
    draws = [dim for dim in array.dims if dim != x]
    if not draws:
        return array.values, None if errors is None else errors.values
    count = np.maximum(array.notnull().sum(draws), 1)
    mean, spread = array.mean(draws), array.std(draws)
    return mean.values, (spread / np.sqrt(np.maximum(count - 1, 1))).values


def _draw_map(figure: Figure, panel: Axes, array: xarray.DataArray, axes: list[str], name: str) -> None:
    """Colours over two axes; where a level is special, its line and colours that part there."""
    y, x = axes
    values = array.mean([dim for dim in array.dims if dim not in axes]).transpose(y, x).values
    special = array.attrs.get("special")
    mesh = panel.pcolormesh(
        array[x].values,
        array[y].values,
        values,
        shading="nearest",
        rasterized=True,
        **_colours(values, special),
    )
    panel.set_facecolor("#ededed")  # where there is no value
    bar = figure.colorbar(mesh, ax=panel, pad=0.02, aspect=28)
    bar.set_label(name, fontsize=9)
    if _is_crossed(values, special):
        panel.contour(array[x], array[y], values, [special], colors=INK, linewidths=1.4)
        bar.set_label(f"{name}  (line: {special:g})", fontsize=9)
    bar.outline.set_visible(False)
    _label_axis(panel, "x", array[x])
    _label_axis(panel, "y", array[y])
    panel.grid(False)


def _colours(values: Array, special: float | None) -> Mapping[str, Any]:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, TwoSlopeNorm

    finite = values[np.isfinite(values)]
    if special is not None and _is_crossed(values, special):
        parting = LinearSegmentedColormap.from_list("parting", [BLUE, "#ffffff", ORANGE])
        return {"cmap": parting, "norm": TwoSlopeNorm(special, finite.min(), finite.max())}
    if _is_wide(values):
        return {"cmap": "cividis", "norm": LogNorm(finite.min(), finite.max())}
    return {"cmap": "cividis"}


def _is_crossed(values: Array, special: float | None) -> bool:
    finite = values[np.isfinite(values)]
    return special is not None and bool((finite < special).any() and (finite > special * (1 + 1e-9)).any())


def _label_axis(panel: Axes, which: str, coordinate: xarray.DataArray) -> None:
    told = coordinate.attrs.get("long_name")
    text = f"{coordinate.name}: {told}" if told else str(coordinate.name)
    getattr(panel, f"set_{which}label")(_wrapped(text))
    if not _is_numeric(coordinate):
        labels = [_short(value) for value in coordinate.values.tolist()]
        getattr(panel, f"set_{which}ticks")(range(len(labels)), labels, rotation=30 if which == "x" else 0)
    elif _is_geometric(coordinate.values):
        getattr(panel, f"set_{which}scale")("log")


def _positions(coordinate: xarray.DataArray) -> Array:
    return np.asarray(coordinate.values if _is_numeric(coordinate) else np.arange(coordinate.size))


def _is_numeric(coordinate: xarray.DataArray) -> bool:
    return coordinate.dtype.kind in "iuf"


def _is_geometric(values: Array) -> bool:
    """Whether neighbours have one ratio, as a logarithmic axis shows best."""
    if len(values) < 3 or values.min() <= 0:
        return False
    steps = np.diff(np.log(values.astype(float)))
    return bool(np.ptp(steps) < 0.25 * abs(steps.mean()) and values.max() / values.min() > 4)


def _is_wide(values: Array) -> bool:
    finite = values[np.isfinite(values)]
    return bool(len(finite) and finite.min() > 0 and finite.max() / finite.min() > _WIDE)


def _title(data: xarray.Dataset) -> str:
    return str(data.attrs["title"])


def _wrapped(text: str) -> str:
    from textwrap import fill

    return fill(text, 44)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
