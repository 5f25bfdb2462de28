"""Tables and labelled datasets: columns with a meaning, cells as numbers or words, and one from the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from foretrain.support.answers.figure import Axis, Figure, names_axis, scale_for

if TYPE_CHECKING:
    import xarray

Cell: TypeAlias = Any  # a text, a number, a truth value, or None for an empty cell
_PANELS = 6  # of a picture of a dataset
_LEGEND = 8  # curves with a name
_APART = 50.0  # times larger than another: not on the same axis


class Tone(str):
    """How something ended: "critical", "warning", "note" or "good". Pages show it as a badge, in its colour."""

    __slots__ = ()


@dataclass(frozen=True)
class Column:
    """A heading, what stands below it, its unit, and the name of the column that holds its standard error."""

    name: str
    meaning: str = ""
    unit: str = ""
    error: str = ""

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, init=False, repr=False)
class Table:
    """Rows under headings; ``caption`` says what they are.

    Renderers show numbers with six digits, truth values as yes and no, a value with an error column as value ± error.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    caption: str

    def __init__(
        self, columns: Sequence[str | Column], rows: Sequence[Sequence[Cell]], caption: str = ""
    ) -> None:
        headings = tuple(Column(column) if isinstance(column, str) else column for column in columns)
        object.__setattr__(self, "columns", headings)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "caption", caption)

    def __repr__(self) -> str:
        from foretrain.support.answers.text import aligned

        return "\n".join([*([self.caption] if self.caption else []), aligned(self.for_people())])

    @classmethod
    def of(cls, columns: Mapping[Any, Any], caption: str = "") -> Table:
        """From columns by their headings; arrays will do, and cells below the end of a short one stay empty."""
        cells = [column.tolist() if hasattr(column, "tolist") else column for column in columns.values()]
        return cls(list(columns), list(zip_longest(*cells)), caption)

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings as they are shown."""
        return tuple(column.heading for column in self.columns)

    def texts(self) -> list[list[str]]:
        """All cells as they are shown."""
        return [[cell_text(cell) for cell in row] for row in self.rows]

    def numeric(self, place: int) -> bool:
        """Whether a column holds numbers, which are set to the right."""
        cells = [row[place] for row in self.rows if row[place] is not None]
        return bool(cells) and all(
            isinstance(c, int | float | np.number) and not isinstance(c, bool) for c in cells
        )

    def select(self, places: Sequence[int]) -> Table:
        """Some columns only."""
        rows = [tuple(row[place] for place in places) for row in self.rows]
        return Table([self.columns[place] for place in places], rows, self.caption)

    def for_people(self) -> Table:
        """With every error behind its value, "1.25 ± 0.03", instead of in a column of its own."""
        names = [column.name for column in self.columns]
        errors = {
            place: names.index(column.error)
            for place, column in enumerate(self.columns)
            if column.error and column.error in names
        }
        if not errors:
            return self
        kept = [place for place in range(len(names)) if place not in errors.values()]
        rows = [
            [with_error(row[place], row[errors[place]]) if place in errors else row[place] for place in kept]
            for row in self.rows
        ]
        return Table([self.columns[place] for place in kept], rows, self.caption)

    def thinned(self, most: int) -> Table:
        """With at most so many rows, evenly spread, the first and the last among them; the caption says so."""
        if len(self.rows) <= most:
            return self
        places = np.unique(np.linspace(0, len(self.rows) - 1, most).round().astype(int))
        caption = f"{self.caption} ({len(places)} of {len(self.rows)} rows, evenly spread)".strip()
        return Table(self.columns, [self.rows[place] for place in places], caption)

    def records(self) -> list[dict[str, Cell]]:
        """Rows as dictionaries by the names of the columns."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


def cell_text(cell: Cell) -> str:
    """A cell as it is shown."""
    if cell is None:
        return ""
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    # The sum turns -0 into 0.
    return f"{cell + 0.0:.6g}" if isinstance(cell, int | float | np.number) else str(cell)


def with_others(shares: Mapping[str, float], most: int) -> dict[str, float]:
    """At most so many of the shares, in their order; of more the smallest are put together as "others"."""
    if len(shares) <= most:
        return dict(shares)
    largest = sorted(shares, key=lambda name: -shares[name])[: most - 1]
    kept = {name: share for name, share in shares.items() if name in largest}
    return kept | {f"{len(shares) - len(kept)} others": sum(shares.values()) - sum(kept.values())}


def with_error(value: Cell, error: Cell) -> Cell:
    """A value with its standard error, "1.25 ± 0.03"; the value alone where it has none."""
    if not error or value is None or isinstance(value, str) or not np.isfinite(error):
        return value
    return f"{cell_text(value)} ± {error:.2g}"


def labelled(
    variables: Mapping[str, Any],
    notes: Mapping[str, Any] | None = None,
    counted: Sequence[str] = (),
    **coordinates: Any,
) -> xarray.Dataset:
    """Arrays with the names of their axes as a dataset: {"share": ("mode", values), "trace": 3.0}.

    Several axes are one text, "mode input"; a meaning may follow the array. What is None is left out, an estimate
    brings its ``_error``. Axes in ``counted`` count from 1. ``notes`` become attributes that files can hold.
    """
    import xarray

    found: dict[str, Any] = {}
    for name, given in variables.items():
        if isinstance(given, tuple):
            dims, values, *meaning = given
            if values is not None:
                axes = dims.split() if isinstance(dims, str) else dims
                found[name] = (axes, as_array(values), {"meaning": meaning[0]} if meaning else {})
        elif given is not None:
            found |= _with_errors(name, given)
    attributes: dict[str, Any] = {}
    for name, value in (notes or {}).items():
        attributes |= _with_errors(name, _storable(value))
    data = xarray.Dataset(found, coordinates, attributes)
    counts = {dim: np.arange(1, data.sizes[dim] + 1) for dim in counted if dim in data.sizes}
    return data.assign_coords(counts)


def dataset_table(
    data: xarray.Dataset,
    along: str,
    names: Sequence[str] | Mapping[str, str] | None = None,
    caption: str = "",
) -> Table:
    """One row for every place along an axis of a dataset: its coordinates, then the variables over it alone.

    ``names`` picks variables, and may give them other headings. ``x_error`` is the standard error of ``x``.
    """
    own = [str(name) for name, values in data.variables.items() if values.dims == (along,)]
    coordinates = [name for name in own if name in data.coords]
    chosen = names or [name for name in own if name not in coordinates]
    headings = names if isinstance(names, Mapping) else {name: name for name in chosen}
    columns: dict[str | Column, Any] = {} if along in own else {along: range(1, data.sizes[along] + 1)}
    for name in (*sorted(coordinates, key=lambda name: name != along), *chosen):
        meaning = str(data[name].attrs.get("meaning", ""))
        error = headings.get(f"{name}_error", f"{name}_error")
        columns[Column(headings.get(name, name), meaning, error=error)] = data[name].values
        if f"{name}_error" in own and f"{name}_error" not in chosen:
            columns[error] = data[f"{name}_error"].values
    return Table.of(columns, caption)


def tables_dataset(tables: Sequence[Table]) -> xarray.Dataset:
    """Tables as one dataset: every column along the rows of its table."""
    import xarray

    found: dict[str, Any] = {}
    for number, table in enumerate(tables):
        dim = "row" if len(tables) == 1 else f"row_{number + 1}"
        for place, column in enumerate(table.columns):
            cells = [row[place] for row in table.rows]
            if table.numeric(place):
                values: Any = np.array([np.nan if cell is None else cell for cell in cells], dtype=float)
            else:
                values = np.array(["" if cell is None else str(cell) for cell in cells], dtype=str)
            name = _file_name(column.name)
            name = name if name not in found else f"{name}_{number + 1}"
            attributes = {"meaning": column.meaning, "unit": column.unit}
            found[name] = (dim, values, {key: text for key, text in attributes.items() if text})
    return xarray.Dataset(found)


def fields_dataset(values: Mapping[str, Any]) -> xarray.Dataset:
    """Numbers, texts and arrays under their names; what is neither is left out."""
    import xarray

    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, xarray.DataArray):
            found[name] = value
        elif isinstance(value, Mapping) or (isinstance(value, tuple) and any(map(np.ndim, value))):
            parts = value.items() if isinstance(value, Mapping) else enumerate(value, start=1)
            inner = fields_dataset({_file_name(f"{name}_{key}"): item for key, item in parts})
            found |= {str(key): item for key, item in inner.items()}
        elif not hasattr(value, "answer"):  # results inside have a dataset of their own
            array = as_array(value)
            if array.dtype.kind in "biufcU":
                found[name] = (tuple(f"{name}_{axis + 1}" for axis in range(array.ndim)), array)
    return xarray.Dataset(found)


def dataset_tables(data: xarray.Dataset, most_columns: int = 12) -> Iterator[Table]:
    """A dataset as tables: single numbers in one, then one for every dimension and one for every matrix."""
    units = {key: values.attrs.get("units", "") for key, values in data.data_vars.items()}
    words = {key: str(key).replace("_", " ") + (f" ({unit})" if unit else "") for key, unit in units.items()}
    single = [(words[key], data[key].item()) for key in data.data_vars if data[key].ndim == 0]
    single += [
        (str(key).replace("_", " "), value)
        for key, value in data.attrs.items()
        if isinstance(value, str | int | float) and value != ""
    ]
    if single:
        yield Table(("quantity", "value"), single, "Single numbers")
    for dimension in dict.fromkeys(one.dims[0] for one in data.data_vars.values() if one.ndim == 1):
        keys = [key for key in data.data_vars if data[key].dims == (dimension,)]
        columns = [data[dimension].values.tolist(), *(data[key].values.tolist() for key in keys)]
        name = str(dimension).replace("_", " ")
        rows = list(zip(*columns, strict=True))
        yield Table((name, *(words[key] for key in keys)), rows, f"By {name}")
    for key, values in data.data_vars.items():
        if values.ndim == 2 and min(values.shape) <= most_columns:
            down, across = sorted((str(dim) for dim in values.dims), key=lambda dim: -values.sizes[dim])
            name, other = down.replace("_", " "), across.replace("_", " ")
            heads = [f"{other} {cell_text(label)}" for label in values[across].values.tolist()]
            matrix = values.transpose(down, across).values.tolist()
            cells = [(label, *row) for label, row in zip(values[down].values.tolist(), matrix, strict=True)]
            yield Table((name, *heads), cells, f"{words[key]} by {name}")


def dataset_figure(data: xarray.Dataset, title: str = "") -> Figure:
    """A picture of any dataset: what shares a dimension as curves, matrices in colours, single numbers as bars."""
    numeric = {
        str(key): values.squeeze(drop=True) if values.ndim > 1 else values  # one output is no axis
        for key, values in data.data_vars.items()
        if values.dtype.kind in "biuf"
    }
    figure = Figure(title.partition("\n")[0], columns=2)
    for (dimension,) in dict.fromkeys(values.dims for values in numeric.values() if values.ndim == 1):
        curves = {key: values.values for key, values in numeric.items() if values.dims == (dimension,)}
        places = data[dimension]
        # The first column of a table says what its rows are.
        if str(dimension).startswith("row") and dimension not in data.coords:
            places = next(values for values in data.data_vars.values() if values.dims == (dimension,))
            if len(curves) > 1:
                curves.pop(str(places.name), None)
        label, at = str(places.name), places.values
        whole = places.dtype.kind in "iuf" and bool((at == np.round(at)).all())
        x = Axis(label, whole=whole) if places.dtype.kind in "iuf" else names_axis(at.tolist(), label)
        at = at if places.dtype.kind in "iuf" else np.arange(places.size)
        sizes = [
            np.nanmax(np.abs(values), initial=0.0, where=np.isfinite(values)) for values in curves.values()
        ]
        apart = max(sizes) > _APART * min(sizes)  # quantities on different scales have panels of their own
        for group in [{key: curve} for key, curve in curves.items()] if apart else [curves]:
            name = next(iter(group)) if len(group) == 1 else ""
            panel = figure.panel(x=x, y=Axis(name, scale_for(list(group.values()))))
            for number, (key, curve) in enumerate(group.items()):
                panel.curve(at, curve, "o-", key if number < _LEGEND and not name else "", size=3)
            if not any(np.isfinite(curve).any() for curve in group.values()):
                panel.note(0.5, 0.5, "no finite numbers", align="center", fraction=True)
    for key, values in numeric.items():
        if values.ndim >= 2 and len(figure.panels) < _PANELS and min(values.shape[-2:]):
            panel = figure.panel(key, x=str(values.dims[-1]), y=Axis(str(values.dims[-2]), reverse=True))
            panel.heat_map(values.values.reshape(-1, *values.shape[-2:])[0], label=key)
    single = {key: float(values) for key, values in numeric.items() if values.ndim == 0}
    if not figure.panels and single:
        panel = figure.panel(x="value")
        texts = [f"{value:.4g}" for value in single.values()]
        panel.bars(list(single), list(single.values()), horizontal=True, texts=texts)
    if not figure.panels:
        panel = figure.panel(bare=True)
        panel.note(0.5, 0.5, "no numbers to draw", align="center", fraction=True)
    figure.panels = figure.panels[:_PANELS]
    return figure


def _with_errors(name: str, value: Any) -> dict[str, Any]:
    """A number by its name and, of an estimate, its standard error beside it."""
    error = getattr(value, "standard_error", None)
    return {name: value} if error is None else {name: float(value.value), f"{name}_error": float(error)}


def _file_name(name: str) -> str:
    """A name that files can hold: a quotient in words."""
    return name.replace("/", " over ")


def _storable(value: Any) -> Any:
    """As an attribute of a file: no truth values, nothing for None, lists for tuples."""
    if value is None:
        return ""
    return int(value) if isinstance(value, bool) else list(value) if isinstance(value, tuple) else value


def as_array(values: Any) -> Any:
    """Numbers of any origin as numpy's; half precision is widened, which numpy and files do not all know."""
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        return (
            tensor.float() if tensor.dtype.itemsize < 4 and tensor.is_floating_point() else tensor
        ).numpy()
    return np.asarray(values)
