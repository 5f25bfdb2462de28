"""From the finished points of a sweep to one labelled dataset, the same whatever their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.sweep.answers import ERROR, REPEAT, STATUS, Variable, unpacked
from foretrain.support.memory import require_memory

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.journal import Contents
    from foretrain.experiments.sweep.points import Point
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
    for point in points:
        if point.key in contents.done:
            frame = contents.done[point.key]
            for variable in unpacked(frame.entry, frame.body):
                found.setdefault(variable.name, []).append((point.place, variable))
            status[point.place] = DONE
        elif point.key in contents.failed:
            status[point.place], error[point.place] = FAILED, contents.failed[point.key]["error"]
    labels = _all_labels(chain.from_iterable(found.values()))
    data = {name: _stacked(own, labels, axes, shape) for name, own in found.items()}
    data[STATUS] = (tuple(axes), status.astype(str), {})
    if any(error.ravel()):
        data[ERROR] = (tuple(axes), error.astype(str), {})
    coordinates = _coordinates(axes, spec) | {dim: list(own) for dim, own in labels.items()}
    return xarray.Dataset(data, coordinates, _attributes(spec))


def _all_labels(found: Iterable[tuple[_Place, Variable]]) -> dict[str, dict[Any, int]]:
    """Of every axis of the answers, labels with their places: numbers in order, text as it comes up."""
    known: dict[str, dict[Any, None]] = {}
    for _, variable in found:
        for dim, labels in zip(variable.dims, variable.labels):
            known.setdefault(dim, {}).update(dict.fromkeys(labels))
    return {
        dim: {label: place for place, label in enumerate(_ordered(list(labels)))}
        for dim, labels in known.items()
    }


def _ordered(labels: list[Any]) -> list[Any]:
    is_text = any(isinstance(label, str) for label in labels)
    return [str(label) for label in labels] if is_text else sorted(labels)


def _stacked(
    own: _Found,
    labels: Mapping[str, Mapping[Any, int]],
    axes: Mapping[str, tuple[Any, ...]],
    shape: tuple[int, ...],
) -> tuple[tuple[str, ...], NDArray[Any], dict[str, Any]]:
    """One variable over all points: dimensions, values, attributes."""
    name, dims, _, _, attributes = own[0][1]
    whole = (*shape, *(len(labels[dim]) for dim in dims))
    require_memory(8 * np.prod(whole, dtype=float), f"{name} of all points", "sweep over fewer points")
    is_text = any(variable.values.dtype.kind == "U" for _, variable in own)
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
