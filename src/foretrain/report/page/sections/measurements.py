"""All measurements behind the findings, as tables: what a picture shows, and what no picture shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.doctor.checks import CHECKS
from foretrain.report.page.markup import Markup, element
from foretrain.report.page.numbers import cell
from foretrain.report.page.patient import Patient
from foretrain.report.page.section import Section
from foretrain.report.page.table import Table, table

if TYPE_CHECKING:
    import xarray

_MOST_COLUMNS = 12


def measurements(patient: Patient) -> Section | None:
    """One folded group of tables for every check that measured something."""
    questions = {check.name: check.question for check in CHECKS}
    groups = [
        _group(questions.get(name, name), list(_tables(data))) for name, data in patient.measurements.items()
    ]
    if not groups:
        return None
    lead = "The numbers behind findings and pictures, by question."
    return Section("measurements", "All measurements", lead, groups)


def _group(question: str, tables: list[Table]) -> Markup:
    told = [table(one.thinned()) for one in tables]
    return element("details", element("summary", question), told, class_="more")


def _tables(data: xarray.Dataset) -> Iterator[Table]:
    """Single numbers in one table; then one table for every dimension."""
    single = [(_name(data, key), data[key].item()) for key in data.data_vars if data[key].ndim == 0]
    single += [(str(key).replace("_", " "), value) for key, value in data.attrs.items() if _is_told(value)]
    if single:
        yield Table("Single numbers", ("Quantity", "Value"), single)
    for dimension in dict.fromkeys(v.dims[0] for v in data.data_vars.values() if v.ndim == 1):
        keys = [key for key in data.data_vars if data[key].dims == (dimension,)]
        labels = data[dimension].values if dimension in data.coords else np.arange(data.sizes[dimension])
        columns = [data[key].values for key in keys]
        rows = [tuple(_item(value) for value in row) for row in zip(labels, *columns, strict=True)]
        name = str(dimension).replace("_", " ")
        yield Table(f"By {name}", (name, *(_name(data, key) for key in keys)), rows)
    for key in data.data_vars:
        if data[key].ndim == 2 and min(data[key].shape) <= _MOST_COLUMNS:
            yield _crossed(_name(data, key), data[key])


def _crossed(name: str, values: xarray.DataArray) -> Table:
    """Two dimensions: the longer one goes down."""
    down, across = sorted((str(d) for d in values.dims), key=lambda d: -values.sizes[d])
    heads = [f"{across.replace('_', ' ')} {cell(_item(label))}" for label in values[across].values]
    rows = zip(values[down].values, values.transpose(down, across).values, strict=True)
    table = [(_item(label), *map(_item, row)) for label, row in rows]
    return Table(f"{name} by {down.replace('_', ' ')}", (down.replace("_", " "), *heads), table)


def _name(data: xarray.Dataset, key: Any) -> str:
    units = data[key].attrs.get("units", "")
    return str(key).replace("_", " ") + (f" ({units})" if units else "")


def _is_told(value: Any) -> bool:
    return isinstance(value, str | int | float | np.number) and value != ""


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
