"""What foretrain answers: a statement, then paragraphs, tables, pictures and further answers in the order of reading.

Everything public that is returned is a ``Result``: it makes one ``Answer``, and every way to show or keep it follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from foretrain.support.answers.figure import Figure
from foretrain.support.answers.tables import (
    Column,
    Table,
    as_array,
    cell_text,
    dataset_figure,
    fields_dataset,
    tables_dataset,
)
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
    ``holds`` is False where something that was asked for does not hold (exit code 1 of a command), ``interrupted``
    True where it is only what was known when the user ended the work (exit code 130).
    """

    statement: str
    parts: Sequence[Part] = ()
    data: xarray.Dataset | xarray.DataArray | Callable[[], xarray.Dataset | xarray.DataArray] | None = None
    record: Mapping[str, Any] | None = None
    holds: bool = True
    title: str = ""
    tone: str = ""  # "critical", "warning", "note" or "good": how a page colours it
    folded: bool = False  # only the statement is printed, and seen on a page until it is opened
    interrupted: bool = False

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
        tables = []
        for table in self.tables:
            columns = [{k: text for k, text in dataclasses.asdict(c).items() if text} for c in table.columns]
            tables.append({"caption": table.caption, "columns": columns, "rows": table.records()})
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
    also: ClassVar[
        tuple[str, ...]
    ] = ()  # properties that the table of fields shows too, by what they document

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

        ``path`` also writes it to a file: .png, .svg or .pdf. Of a result without a picture of its own the labelled
        numbers are drawn.
        """
        from matplotlib.axes import Axes

        from foretrain.support.answers.matplotlib_renderer import draw, write

        if ax is not None and not isinstance(ax, Axes):
            raise InputError(f"`ax=` is {ax!r}: give the axes to draw into, as plt.subplots() returns them.")
        if path is not None and not isinstance(path, str | PathLike):
            raise InputError(f"`path=` is {path!r}: give the name of a file.")
        answer = self.answer()
        figure = (
            answer.figures[0] if answer.has_figure else dataset_figure(self.to_dataset(), answer.statement)
        )
        if path is not None:
            write(figure, Path(path))
        return draw(figure, ax)

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
    documented = {name: getattr(type(result), name).__doc__ or "" for name in getattr(result, "also", ())}
    meanings = {name: text.partition("\n")[0] for name, text in documented.items()} | dict(meanings or {})
    names = [item.name for item in dataclasses.fields(result) if item.repr]
    values = {name: getattr(result, name) for name in dict.fromkeys([*documented, *names, *meanings])}
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
    more.setdefault("data", lambda: fields_dataset(values))
    parts = [Table(columns, rows).select(places), *more.pop("parts", ())]
    about = (kind.__doc__ or "").partition("\n")[0].replace("``", "")
    return Answer(statement or ": ".join(filter(None, (kind.__name__, about))), parts, **more)


def picked(result: Any, names: str) -> dict[str, Any]:
    """Some attributes of a result by name, which are given in one text."""
    return {name: getattr(result, name) for name in names.split()}


def _is_picture(part: Any) -> bool:
    return isinstance(part, Figure) or callable(part)


def _short(value: Any) -> Any:
    """A value as one cell: arrays by their shape and ends, numbers and words as they are."""
    import numpy as np

    if value is None or isinstance(value, str | int | float | bool | np.generic):
        return value.item() if isinstance(value, np.generic) else value
    shape = getattr(value, "shape", None)
    if shape is not None:
        flat = as_array(value).ravel()
        if flat.size <= 6 and flat.dtype.kind in "iufb":
            return ", ".join(f"{number:.6g}" for number in flat)
        size = " × ".join(map(str, shape))
        if flat.size and flat.dtype.kind in "iuf":
            return f"{size} numbers from {np.nanmin(flat):.4g} to {np.nanmax(flat):.4g}"
        return f"{size} entries"
    if isinstance(value, Result):
        return value.answer().statement.partition("\n")[0]
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, Mapping):
        text = ", ".join(f"{key} = {cell_text(_short(item))}" for key, item in value.items())
    elif isinstance(value, Sequence):
        text = ", ".join(cell_text(_short(item)) for item in value)
    else:
        text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
