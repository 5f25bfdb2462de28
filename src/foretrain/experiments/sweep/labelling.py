"""From the finished points of a sweep to one labelled dataset, the same whatever their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.sweep.answers import ERROR, REPEAT, STATUS, Variable, unpacked
from foretrain.support.memory import require_memory

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.journal import Contents
    from foretrain.experiments.sweep.plan import Point
    from foretrain.experiments.sweep.spec import Spec

_Place: TypeAlias = tuple[int, ...]
_Found: TypeAlias = list[tuple[_Place, Variable]]

DONE, FAILED, MISSING = "done", "failed", "missing"


def as_dataset(
    contents: Contents, axes: Mapping[str, tuple[Any, ...]], points: Iterable[Point], spec: Spec
) -> xarray.Dataset:
    """Every axis of the sweep is a dimension; nan, or empty text, where a point is not finished.

    ``status`` is "done", "failed" or "missing"; ``error`` says why points failed. An axis of the answers that has
    other labels at other points (layers of networks of several depths) holds all of them.
    """
    import xarray

    shape = tuple(len(values) for values in axes.values())
    status, error = np.full(shape, MISSING, dtype=object), np.full(shape, "", dtype=object)
    found: dict[str, _Found] = {}
    forms: dict[str, _Form] = {}
    for point in points:
        place = point.place
        if point.key in contents.done:
            frame = contents.done[point.key]
            answer = list(unpacked(frame.entry, frame.body))
            error[place] = _misfit(answer, forms)
            status[place] = FAILED if error[place] else DONE
            for variable in answer if not error[place] else ():
                found.setdefault(variable.name, []).append((place, variable))
        elif point.key in contents.failed:
            status[place], error[place] = FAILED, contents.failed[point.key]["error"]
    labels = _all_labels(chain.from_iterable(found.values()))
    data = {name: _stacked(own, labels, axes, shape) for name, own in found.items()}
    data[STATUS] = (tuple(axes), status.astype(str), {})
    if any(error.ravel()):
        data[ERROR] = (tuple(axes), error.astype(str), {})
    coordinates = _coordinates(axes, spec) | {dim: list(own) for dim, own in labels.items()}
    return xarray.Dataset(data, coordinates, _attributes(spec))


def _misfit(answer: list[Variable], known: dict[str, _Form]) -> str:
    """Why an answer cannot stand beside those of earlier points, else nothing; ``known`` grows by what is new."""
    new: dict[str, _Form] = {}
    for variable in answer:
        new[variable.name] = _Form(variable.dims, _kind(variable.values.ravel()[:1]))
        new |= {dim: _Form(None, _kind(labels)) for dim, labels in zip(variable.dims, variable.labels)}
    for name, form in new.items():
        before = known.get(name, form)
        if before.dims != form.dims or (before.kind and form.kind and before.kind != form.kind):
            return (
                f"{name} is {form} here, but {before} at an earlier point: return the same kind at every point, and "
                "use a new store."
            )
    known.update({name: form for name, form in new.items() if form.kind or name not in known})
    return ""


class _Form(NamedTuple):
    """Of a variable, with its dimensions, or of the labels of an axis, without."""

    dims: tuple[str, ...] | None
    kind: str

    def __str__(self) -> str:
        if self.dims is None:
            return f"an axis labelled by {self.kind}"
        return f"{self.kind} over ({', '.join(self.dims)})" if self.dims else f"{self.kind} without axes"


def _kind(values: Iterable[Any]) -> str:
    """Empty lists may become either."""
    return next(("text" if isinstance(value, str) else "numbers" for value in values), "")


def _all_labels(found: Iterable[tuple[_Place, Variable]]) -> dict[str, dict[Any, int]]:
    """Of every axis of the answers, labels with their places: numbers in order, text as it comes up."""
    known: dict[str, dict[Any, None]] = {}
    for _, variable in found:
        for dim, labels in zip(variable.dims, variable.labels):
            known.setdefault(dim, {}).update(dict.fromkeys(labels))
    places = {}
    for dim, own in known.items():
        ordered = list(own) if any(isinstance(label, str) for label in own) else sorted(own)
        places[dim] = {label: i for i, label in enumerate(ordered)}
    return places


def _stacked(
    own: _Found,
    labels: Mapping[str, Mapping[Any, int]],
    axes: Mapping[str, tuple[Any, ...]],
    shape: tuple[int, ...],
) -> tuple[tuple[str, ...], NDArray[Any], dict[str, Any]]:
    """One variable over all points: dimensions, values, attributes."""
    name, dims, _, _, attributes = own[0][1]
    whole = (*shape, *(len(labels[dim]) for dim in dims))
    is_text = any(_kind(variable.values.ravel()[:1]) == "text" for _, variable in own)
    size = max(variable.values.dtype.itemsize for _, variable in own)
    require_memory(
        size * np.prod(whole, dtype=float),
        f"{name} of all points and labels",
        "sweep over fewer points, or return arrays that have the same labels at every point",
    )
    values = np.full(whole, "" if is_text else np.nan, dtype=object if is_text else np.float64)
    for place, variable in own:
        spots = [
            [labels[dim][label] for label in labels_] for dim, labels_ in zip(variable.dims, variable.labels)
        ]
        index: tuple[Any, ...] = (*place, *np.ix_(*spots))
        values[index] = variable.values
    return (*axes, *dims), values.astype(str) if is_text else values, attributes


def _coordinates(axes: Mapping[str, tuple[Any, ...]], spec: Spec) -> dict[str, Any]:
    told = {parameter.name: parameter.help for parameter in spec.target.parameters}
    told[REPEAT] = "draws with seeds of their own"
    return {
        name: (name, np.array(values), {"long_name": told[name]} if told.get(name) else {})
        for name, values in axes.items()
    }


def _attributes(spec: Spec) -> dict[str, Any]:
    kind, _, name = spec.target.name.partition(" ")
    fixed = {key: value for key, value in spec.fixed.items() if value is not None}
    return {kind: name, "title": spec.title or name, "fixed": json.dumps(fixed), "seed": spec.seed}
