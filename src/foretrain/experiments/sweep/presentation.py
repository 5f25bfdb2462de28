"""What a sweep shows: its points as a table, lines over one axis, a map over two; repeats are averaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.sweep.answers import ERROR, REPEAT, STATUS
from foretrain.experiments.sweep.targets import SEED
from foretrain.support import answers
from foretrain.support.answers import FAINT, INK, PALETTE, Answer, Axis, Figure, Part, Table, scale_for
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.run import Sweep

Array = NDArray[Any]

_MOST_ROWS = 24  # of points in the table; the store has all
_MOST_TOLD = 5  # errors and warnings
_MOST_PANELS = 6
_MOST_LINES = len(PALETTE)  # of a family; with more values on both axes a map shows more
_DEVIATION = "_error"  # ends the name of a quantity's standard error
_DRAWS = (REPEAT, SEED)
_WIDE = 30.0  # largest over smallest value from which on a logarithmic scale is worth it


def sweep_answer(sweep: Sweep, quantity: str | None = None) -> Answer:
    """Points, failures and warnings of a sweep; ``quantity`` names the one to print and draw, or None for all."""
    data, spec = sweep.data, sweep.spec
    parts: list[Part] = [*_points_table(data, quantity)]
    errors, warnings = list(sweep.errors.items()), list(sweep.warnings.items())
    parts += [f"Failed at {where}: {error}" for where, error in errors[:_MOST_TOLD]]
    if errors:
        rest = len(errors) - _MOST_TOLD
        more = f"{rest} more have failed; the store names them all. " if rest > 0 else ""
        own = ", and extend=True (--extend) if your function changes" if spec.target.code else ""
        parts.append(f"{more}Mend the cause and run it again with retry_failed=True (--retry-failed){own}.")
    parts += [f"Warning at {where}: {warning}" for where, warning in warnings[:_MOST_TOLD]]
    if len(warnings) > _MOST_TOLD:
        parts.append(f"{len(warnings) - _MOST_TOLD} more points have warnings.")
    parts.append(f"Store: {sweep.store}, for foretrain.load")
    if _panels(data, quantity):
        parts.append(lambda: sweep_figure(data, quantity))
    record = {
        "title": data.attrs["title"],
        "target": spec.target.name,
        "store": str(sweep.store),
        "points": spec.count,
        "done": sweep.done,
        "computed": sweep.computed,
        "axes": {name: list(values) for name, values in spec.axes.items()},
        "repeats": spec.repeats,
        "fixed": spec.fixed,
        "values": {name: data[name].values for name in _quantities(data, quantity)},
        "errors": dict(errors),
        "warnings": dict(warnings),
    }
    statement = (
        f"{spec.title or spec.target.name}: {sweep.done} of {spec.count} points done, {len(errors)} failed, "
        f"{sweep.computed} computed now."
    )
    return Answer(statement, parts, data, record, holds=not errors)


def sweep_figure(data: xarray.Dataset, quantity: str | None = None) -> Figure:
    """Draw one quantity of a sweep, or all that are numbers (the first six).

    Axes with one value do not count; "repeat" and "seed" are averaged, with standard errors on lines.
    """
    axes = drawn_axes(data)
    data = data.sortby([axis for axis in axes if _is_numeric(data[axis])])  # lines join neighbours
    panels = _panels(data, quantity)
    settings = json.loads(data.attrs.get("fixed", "{}"))
    fixed = ", ".join(f"{name} = {_short(value)}" for name, value in settings.items())
    title = fill(f"{data.attrs['title']} ({fixed})" if fixed else str(data.attrs["title"]), 90)
    figure = Figure(title, columns=3, size=(7.2, 5.0) if len(panels) == 1 else None)
    for name, array in panels.items():
        if len(axes) == 2 and all(
            _is_numeric(array[axis]) and array.sizes[axis] > _MOST_LINES for axis in axes
        ):
            # Colours show it over two axes; where a level is special, its line is drawn and the colours part there.
            y, x = axes
            values = array.mean([dim for dim in array.dims if dim not in axes]).transpose(y, x).values
            finite, special = values[np.isfinite(values)], array.attrs.get("special")
            panel = figure.panel(x=_axis(array[x]), y=_axis(array[y]))
            places = array[x].values, array[y].values
            if special is not None and (finite < special).any() and (finite > special * (1 + 1e-9)).any():
                label = f"{name}  (line: {special:g})"
                panel.heat_map(
                    values,
                    *places,
                    label,
                    diverging=True,
                    low=finite.min(),
                    high=finite.max(),
                    middle=special,
                )
                panel.contours(*places, values, [special], color=INK, width=1.4)
            else:
                panel.heat_map(values, *places, name, logarithmic=scale_for(values, _WIDE) == "log")
        else:
            _add_lines(figure, array, axes, name, data.get(f"{name}{_DEVIATION}"))
    return figure


def drawn_axes(data: xarray.Dataset) -> list[str]:
    """Axes of the sweep that a picture shows, the longest last; refused if they are none or too many."""
    axes = [
        str(dim)
        for dim in data[STATUS].dims
        if data.sizes[dim] > 1 and (dim not in _DRAWS or data[STATUS].ndim == 1)
    ]
    if not 1 <= len(axes) <= 2:
        raise InputError(
            f"the sweep has {len(axes)} axes with several values ({', '.join(axes) or 'none'}), and a picture "
            "shows one or two: leave out --plot, or draw a part of the data yourself."
        )
    return sorted(axes, key=lambda axis: (_is_numeric(data[axis]), data.sizes[axis]))


def _quantities(data: xarray.Dataset, quantity: str | None) -> list[str]:
    known = [str(name) for name in data.data_vars if name not in (STATUS, ERROR)]
    if quantity is not None and quantity not in known:
        raise unknown_name("`quantity`", quantity, known)
    return known if quantity is None else [quantity]


def _points_table(data: xarray.Dataset, quantity: str | None) -> Iterator[str | Table]:
    """Points in rows, as many as fit on a screen; what has axes of its own is left to the store."""
    axes, names = [str(dim) for dim in data[STATUS].dims], _quantities(data, quantity)
    shown = [name for name in names if data[name].dims == data[STATUS].dims]
    if not shown:
        if names:
            yield f"Found, with axes of its own, to be read from the store: {', '.join(names)}."
        return
    places = list(product(*(range(data.sizes[axis]) for axis in axes)))
    step = -(-len(places) // _MOST_ROWS)
    rows = [
        [
            *(data[axis].values[i].item() for axis, i in zip(axes, place)),
            *(data[name].values[place].item() for name in shown),
        ]
        for place in places[::step]
    ]
    yield Table((*axes, *shown), rows)
    if step > 1:
        yield f"These are {len(rows)} of the {len(places)} points."


def _panels(data: xarray.Dataset, quantity: str | None) -> dict[str, xarray.DataArray]:
    """Numbers over the axes alone; a quantity with labels of its own gives one panel for each."""
    known = {
        str(name): array
        for name, array in data.data_vars.items()
        if name not in (STATUS, ERROR) and array.dtype.kind == "f"
    }
    plain = [name for name in known if name.removesuffix(_DEVIATION) not in known.keys() - {name}]
    if quantity is not None and quantity not in known:
        raise unknown_name("`quantity`", quantity, known)
    chosen = plain if quantity is None else [quantity]
    panels = {title: panel for name in chosen for title, panel in _single(data, name, known[name])}
    return dict(list(panels.items())[:_MOST_PANELS])


def _single(
    data: xarray.Dataset, name: str, array: xarray.DataArray
) -> Iterator[tuple[str, xarray.DataArray]]:
    own = [dim for dim in array.dims if dim not in data[STATUS].dims]
    array = array.squeeze([dim for dim in data[STATUS].dims if data.sizes[dim] == 1], drop=True)
    if not own:
        if np.isfinite(array.values).any():
            yield name, array
        return
    for place in np.ndindex(*(array.sizes[dim] for dim in own)):
        one = array.isel(dict(zip(own, place)))
        labels = ", ".join(str(one[dim].item()) for dim in own)
        if np.isfinite(one.values).any():
            yield f"{name}: {labels}", one.drop_vars([str(dim) for dim in own])


def _add_lines(
    figure: Figure, array: xarray.DataArray, axes: list[str], name: str, errors: xarray.DataArray | None
) -> None:
    """One for each value of the shorter axis, or a choice of them; bars are standard errors."""
    x, family = axes[-1], axes[0] if len(axes) == 2 else None
    panel: answers.Panel = figure.panel(
        x=_axis(array[x]), y=Axis(fill(name, 44), scale_for(array.values, _WIDE))
    )
    values: list[Any] = [None] if family is None else array[family].values.tolist()
    # At most as many as there are colours, from the first to the last.
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), _MOST_LINES)).round().astype(int))
    places = array[x].values if _is_numeric(array[x]) else np.arange(array[x].size)
    for value in (values[place] for place in chosen):
        here = {} if value is None else {family: value}
        own = None if errors is None else errors.sel(here).squeeze(drop=True)
        mean, error = _averaged(array.sel(here), x, own)
        label = "" if value is None else f"{family} = {_short(value)}"
        panel.curve(places, mean, "o-", label, error=error, size=3.5)
    if (special := array.attrs.get("special")) is not None:
        panel.level(special, color=FAINT, dash=":")


def _averaged(array: xarray.DataArray, x: str, errors: xarray.DataArray | None) -> tuple[Array, Array | None]:
    """The mean over draws and its standard error; of a single draw its own error, if there is one."""
    draws = [dim for dim in array.dims if dim != x]
    if not draws:
        return array.values, None if errors is None else errors.values
    count = np.maximum(array.notnull().sum(draws), 1)
    mean, spread = array.mean(draws), array.std(draws)
    return mean.values, (spread / np.sqrt(np.maximum(count - 1, 1))).values


def _axis(coordinate: xarray.DataArray) -> Axis:
    meaning = coordinate.attrs.get("long_name")
    text = fill(f"{coordinate.name}: {meaning}" if meaning else str(coordinate.name), 44)
    if not _is_numeric(coordinate):
        return answers.names_axis([_short(value) for value in coordinate.values.tolist()], text)
    return Axis(text, "log" if _is_geometric(coordinate.values) else "linear")


def _is_numeric(coordinate: xarray.DataArray) -> bool:
    return coordinate.dtype.kind in "iuf"


def _is_geometric(values: Array) -> bool:
    """Whether neighbours have one ratio, as a logarithmic axis shows best."""
    if len(values) < 3 or values.min() <= 0:
        return False
    steps = np.diff(np.log(values.astype(float)))
    return bool(np.ptp(steps) < 0.25 * abs(steps.mean()) and values.max() / values.min() > 4)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
