"""From the finished points of a sweep to one labelled dataset, the same whatever their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.sweep.answers import ERROR, REPEAT, STATUS, unpacked
from foretrain.support.memory import require_memory

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.journal import Contents
    from foretrain.experiments.sweep.points import Point
    from foretrain.experiments.sweep.spec import Spec

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
    answers: dict[tuple[int, ...], xarray.Dataset] = {}
    for point in points:
        if point.key in contents.done:
            frame = contents.done[point.key]
            answers[point.place] = unpacked(frame.entry, frame.body)
            status[point.place] = DONE
        elif point.key in contents.failed:
            status[point.place], error[point.place] = FAILED, contents.failed[point.key]["error"]
    labels = _all_labels(answers.values())
    data = {
        name: ((*axes, *dims), _stacked(name, dims, labels, answers, shape), attributes)
        for name, (dims, attributes) in _variables(answers.values()).items()
    }
    data[STATUS] = (tuple(axes), status.astype(str), {})
    if any(error.ravel()):
        data[ERROR] = (tuple(axes), error.astype(str), {})
    coordinates = _coordinates(axes, spec) | {dim: list(own) for dim, own in labels.items()}
    return xarray.Dataset(data, coordinates, _attributes(spec))


def _all_labels(answers: Iterable[xarray.Dataset]) -> dict[str, dict[Any, int]]:
    """Of every axis of the answers, labels with their places: numbers in order, text as it comes up."""
    found: dict[str, dict[Any, None]] = {}
    for answer in answers:
        for dim in answer.dims:
            found.setdefault(str(dim), {}).update(dict.fromkeys(answer[dim].values.tolist()))
    return {
        dim: {label: place for place, label in enumerate(_ordered(list(labels)))}
        for dim, labels in found.items()
    }


def _ordered(labels: list[Any]) -> list[Any]:
    is_text = any(isinstance(label, str) for label in labels)
    return [str(label) for label in labels] if is_text else sorted(labels)


def _variables(answers: Iterable[xarray.Dataset]) -> dict[str, tuple[tuple[str, ...], dict[str, Any]]]:
    found: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {}
    for answer in answers:
        for name, array in answer.data_vars.items():
            found.setdefault(str(name), (tuple(map(str, array.dims)), dict(array.attrs)))
    return found


def _stacked(
    name: str,
    dims: tuple[str, ...],
    labels: Mapping[str, Mapping[Any, int]],
    answers: Mapping[tuple[int, ...], xarray.Dataset],
    shape: tuple[int, ...],
) -> NDArray[Any]:
    own = {place: answer[name] for place, answer in answers.items() if name in answer}
    whole = (*shape, *(len(labels[dim]) for dim in dims))
    is_text = any(array.dtype.kind == "U" for array in own.values())
    require_memory(8 * np.prod(whole, dtype=float), f"{name} of all points", "sweep over fewer points")
    found = np.full(whole, "" if is_text else np.nan, dtype=object if is_text else np.float64)
    for place, array in own.items():
        array = array.transpose(*dims)
        spots: list[Any] = [[labels[dim][label] for label in array[dim].values.tolist()] for dim in dims]
        index: tuple[Any, ...] = (*place, *np.ix_(*spots))
        found[index] = array.values
    return found.astype(str) if is_text else found


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
