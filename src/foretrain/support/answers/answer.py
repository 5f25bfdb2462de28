"""What foretrain answers: a statement, then paragraphs, tables, pictures and further answers in the order of reading.

Everything public that is returned is a ``Result``: it makes one ``Answer``, and every way to show or keep it follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from foretrain.support.answers.figure import Figure
from foretrain.support.answers.table import Column, Table, cell_text
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Code:
    """Lines to copy, shown as they are.

    ``brief`` keeps them short: as text their first lines, on a page the caption until it is opened.
    """

    text: str
    caption: str = ""
    brief: bool = False


@dataclass(frozen=True)
class Facts:
    """A few texts, each under its name."""

    texts: Mapping[str, str]


Part: TypeAlias = "str | Code | Facts | Table | Figure | Callable[[], Figure] | Answer"


@dataclass(frozen=True)
class Answer:
    """An answer as data; renderers print, draw and store it.

    ``statement`` is what a person reads first. ``parts`` follow in the order of reading; a picture may be a function
    that makes it, so that nobody pays for a picture that is not looked at. ``data`` are all labelled numbers, or a
    function that returns them. ``record`` is for machines; without it, it is made of the statement and the tables.
    ``holds`` is False where something that was asked for does not hold (exit code 1 of a command).
    """

    statement: str
    parts: Sequence[Part] = ()
    data: xarray.Dataset | xarray.DataArray | Callable[[], xarray.Dataset | xarray.DataArray] | None = None
    record: Mapping[str, Any] | None = None
    holds: bool = True
    title: str = ""
    tone: str = ""  # "critical", "warning", "note" or "good": how a page colours it
    folded: bool = False  # only the statement is printed, and seen on a page until it is opened

    @property
    def tables(self) -> list[Table]:
        """All tables, those of answers inside included."""
        return [part for part in self._walk() if isinstance(part, Table)]

    @property
    def figures(self) -> list[Figure]:
        """All pictures, made now."""
        return [part() if callable(part) else part for part in self._walk() if _is_picture(part)]

    @property
    def has_figure(self) -> bool:
        """Whether there is a picture; none is made for that."""
        return any(_is_picture(part) for part in self._walk())

    def dataset(self) -> xarray.Dataset | xarray.DataArray | None:
        """The labelled data, made now if that was put off."""
        return self.data() if callable(self.data) else self.data

    def document(self) -> dict[str, Any]:
        """All of it for machines."""
        if self.record is not None:
            return dict(self.record)
        tables = [
            {"caption": table.caption, "columns": [_column_record(c) for c in table.columns], "rows": rows}
            for table in self.tables
            for rows in [table.records()]
        ]
        texts = [part for part in self._walk() if isinstance(part, str)]
        texts += [f"{k}: {text}" for p in self._walk() if isinstance(p, Facts) for k, text in p.texts.items()]
        return {"statement": self.statement, "texts": texts, "tables": tables}

    def _walk(self) -> Iterator[Any]:
        for part in self.parts:
            if isinstance(part, Answer):
                yield part.statement
                yield from part._walk()
            else:
                yield part


class Result:
    """Base of everything public that is returned. A subclass says ``answer()``; the rest is the same for all.

    A dataclass among them is declared with ``repr=False``, or its own text would take the place of this one.
    """

    __slots__ = ()

    def answer(self) -> Answer:
        """What this result says, as data. Without a better one: the fields of a dataclass as a table."""
        return fields_answer(self)

    def __repr__(self) -> str:
        from foretrain.support.answers.text import plain, screen_width

        return plain(self.answer(), screen_width()).rstrip()

    def _repr_html_(self) -> str:
        from foretrain.support.answers.html import fragment

        return fragment(self.answer())

    def plot(self, ax: Axes | None = None, *, path: str | Path | None = None) -> Any:
        """Draw it with matplotlib and return the figure, or draw its main panel into ``ax``.

        ``path`` also writes it to a file: .png, .svg or .pdf.
        """
        from foretrain.support.answers.matplotlib_renderer import draw, write

        figures = self.answer().figures
        if not figures:
            raise InputError(f"{type(self).__name__} has no picture: print it, or use to_dataset().")
        if path is not None:
            write(figures[0], Path(path))
        return draw(figures[0], ax)

    def to_dataset(self) -> xarray.Dataset:
        """All its numbers with labels; ``foretrain.save`` keeps them."""
        import xarray

        data = self.answer().dataset()
        if isinstance(data, xarray.DataArray):
            return data.to_dataset(name=data.name or "values")
        return data if data is not None else tables_dataset(self.answer().tables)

    def to_dict(self) -> dict[str, Any]:
        """The same for machines: lists, texts and numbers that JSON can hold."""
        from foretrain.support.json_text import jsonable

        plain: dict[str, Any] = jsonable(self.answer().document())
        return plain


def fields_answer(
    result: Any, statement: str = "", meanings: Mapping[str, str] | None = None, **more: Any
) -> Answer:
    """The fields of a dataclass as an answer: numbers and texts as a table, arrays by their size.

    Without a statement it is the name of the class and the first line of what its documentation says. ``meanings``
    say what the fields are; other attributes that they name have a row too. ``more`` goes to ``Answer`` as it is.
    """
    meanings = meanings or {}
    names = [item.name for item in dataclasses.fields(result) if item.repr]
    values = {name: getattr(result, name) for name in dict.fromkeys([*names, *meanings])}
    # A standard error stands beside its value: that of a field called x is x_error, that of the first standard_error.
    owners = {f"{name}_error": name for name in values} | {"standard_error": next(iter(values), "")}
    errors = {owners[name]: value for name, value in values.items() if name in owners}
    shown = {name: value for name, value in values.items() if value is not None and name not in owners}
    rows = [
        (
            name,
            _short(value),
            _short(getattr(value, "standard_error", errors.get(name))),
            meanings.get(name, ""),
        )
        for name, value in shown.items()
    ]
    columns = ("quantity", Column("value", error="standard error"), "standard error", "meaning")
    places = [0, 1, *([2] if any(row[2] for row in rows) else []), *([3] if meanings else [])]
    kind = type(result)
    more.setdefault("record", {"type": kind.__name__, **values})
    more.setdefault("data", lambda: _fields_dataset(values))
    parts = [Table(columns, rows).select(places), *more.pop("parts", ())]
    about = (kind.__doc__ or "").partition("\n")[0]
    return Answer(statement or ": ".join(filter(None, (kind.__name__, about))), parts, **more)


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
    import numpy as np
    import xarray

    found: dict[str, Any] = {}
    for name, given in variables.items():
        if isinstance(given, tuple):
            dims, values, *meaning = given
            if values is not None:
                axes = dims.split() if isinstance(dims, str) else dims
                found[name] = (axes, _array(values), {"meaning": meaning[0]} if meaning else {})
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


def picked(result: Any, names: str) -> dict[str, Any]:
    """Some attributes of a result by name, which are given in one text."""
    return {name: getattr(result, name) for name in names.split()}


def tables_dataset(tables: Sequence[Table]) -> xarray.Dataset:
    """Tables as one dataset: every column along the rows of its table."""
    import numpy as np
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
            name = column.name if column.name not in found else f"{column.name}_{number + 1}"
            attributes = {"meaning": column.meaning, "unit": column.unit}
            found[name] = (dim, values, {key: text for key, text in attributes.items() if text})
    return xarray.Dataset(found)


def _fields_dataset(values: Mapping[str, Any]) -> xarray.Dataset:
    """Numbers, texts and arrays under their names; what is neither is left out."""
    import xarray

    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, xarray.DataArray):
            found[name] = value
        elif isinstance(value, Mapping):
            inner = _fields_dataset({f"{name}_{key}": item for key, item in value.items()})
            found |= {str(key): item for key, item in inner.items()}
        elif not isinstance(value, Result):
            array = _array(value)
            if array.dtype.kind in "biufcU":
                found[name] = (tuple(f"{name}_{axis + 1}" for axis in range(array.ndim)), array)
    return xarray.Dataset(found)


def dataset_tables(data: xarray.Dataset, most_columns: int = 12) -> Iterator[Table]:
    """A dataset as tables: single numbers in one, then one for every dimension and one for every matrix."""
    words = {key: _with_unit(key, data[key]) for key in data.data_vars}
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


def _with_unit(key: Any, values: xarray.DataArray) -> str:
    units = values.attrs.get("units", "")
    return str(key).replace("_", " ") + (f" ({units})" if units else "")


def _with_errors(name: str, value: Any) -> dict[str, Any]:
    """A number by its name and, of an estimate, its standard error beside it."""
    error = getattr(value, "standard_error", None)
    return {name: value} if error is None else {name: float(value.value), f"{name}_error": float(error)}


def _storable(value: Any) -> Any:
    """As an attribute of a file: no truth values, nothing for None, lists for tuples."""
    if value is None:
        return ""
    return int(value) if isinstance(value, bool) else list(value) if isinstance(value, tuple) else value


def _array(values: Any) -> Any:
    """Numbers of any origin as numpy's; half precision is widened, which numpy and files do not all know."""
    import numpy as np

    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        return (
            tensor.float() if tensor.dtype.itemsize < 4 and tensor.is_floating_point() else tensor
        ).numpy()
    return np.asarray(values)


def _is_picture(part: Any) -> bool:
    return isinstance(part, Figure) or callable(part)


def _column_record(column: Column) -> dict[str, str]:
    return {key: text for key, text in dataclasses.asdict(column).items() if text}


def _short(value: Any) -> Any:
    """A value as one cell: arrays by their shape and ends, numbers and words as they are."""
    import numpy as np

    if value is None or isinstance(value, str | int | float | bool | np.generic):
        return value.item() if isinstance(value, np.generic) else value
    shape = getattr(value, "shape", None)
    if shape is not None:
        flat = _array(value).ravel()
        if flat.size <= 6 and flat.dtype.kind in "iufb":
            return ", ".join(f"{number:.6g}" for number in flat)
        size = " × ".join(map(str, shape))
        if flat.size and flat.dtype.kind in "iuf":
            return f"{size} numbers from {np.nanmin(flat):.4g} to {np.nanmax(flat):.4g}"
        return f"{size} entries"
    if isinstance(value, Result):
        return value.answer().statement.partition("\n")[0]
    if isinstance(value, Mapping):
        text = ", ".join(f"{key} = {cell_text(_short(item))}" for key, item in value.items())
    elif isinstance(value, Sequence):
        text = ", ".join(cell_text(_short(item)) for item in value)
    else:
        text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
