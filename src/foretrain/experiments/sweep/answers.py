"""What a point's function returns: as a labelled dataset, as the bytes of a log, and of all points as one dataset."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from math import prod
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.journal import Contents
    from foretrain.experiments.sweep.spec import Point, Spec

STATUS, ERROR, REPEAT = "status", "error", "repeat"
DONE, FAILED, MISSING = "done", "failed", "missing"
RESERVED = (STATUS, ERROR, REPEAT)
_VALUE = "value"  # of a function that returns one number
_LONGEST_NAME = 60  # which, with any letters, names a folder too


def labelled(result: Any, taken: Collection[str]) -> xarray.Dataset:
    """Of a number, text, array, DataArray, Dataset, or a dict of these; every axis gets labels.

    ``taken`` are names that an answer must not use, those of parameters: they become axes of the whole.
    """
    import xarray

    if isinstance(result, xarray.Dataset):
        result = dict(result.data_vars)
    elif isinstance(result, xarray.DataArray):
        result = {result.name or _VALUE: result}
    elif not isinstance(result, Mapping):
        result = {_VALUE: result}
    if not result:
        raise InputError("the answer is empty: return at least one named value.")
    arrays = {_checked(name, taken): _array(name, value) for name, value in result.items()}
    both = arrays.keys() & {dim for array in arrays.values() for dim in array.dims}
    if both:
        raise InputError(f"{min(both)!r} names a value and an axis of the answer: rename one of them.")
    try:
        found = xarray.Dataset(arrays)
    except ValueError as error:
        raise InputError(
            f"the parts of the answer do not fit together ({error}): name unlike axes apart."
        ) from None
    found = found.assign_coords(
        {dim: np.arange(size) for dim, size in found.sizes.items() if dim not in found.coords}
    )
    for dim in found.dims:
        _check_labels(_checked(dim, taken), found[dim].values)
    return found


def packed(dataset: xarray.Dataset) -> tuple[dict[str, Any], bytes]:
    """An entry of a log and the bytes behind it; ``unpacked`` gives it back, to its bits."""
    variables, body = [], b""
    for name, array in dataset.data_vars.items():
        entry = {"name": name, "dims": list(array.dims), "attributes": _plain(array.attrs)}
        if array.dtype.kind == "U":
            entry["text"] = array.values.ravel().tolist()
        else:
            body += np.ascontiguousarray(array.values, dtype="<f8").tobytes()
        variables.append(entry)
    labels = {str(dim): dataset[dim].values.tolist() for dim in dataset.dims}
    return {"labels": labels, "variables": variables}, body


class Variable(NamedTuple):
    """One named array of an answer; light, because a sweep reads very many."""

    name: str
    dims: tuple[str, ...]
    labels: tuple[list[Any], ...]  # by dimension
    values: NDArray[Any]
    attributes: dict[str, Any]


_Answers: TypeAlias = list[tuple[tuple[int, ...], Variable]]  # with their places on the axes


def unpacked(entry: Mapping[str, Any], body: bytes) -> Iterator[Variable]:
    """The variables of the dataset that ``packed`` was given."""
    start = 0
    for variable in entry["variables"]:
        dims = tuple(variable["dims"])
        labels = tuple(entry["labels"][dim] for dim in dims)
        shape = tuple(map(len, labels))
        if "text" in variable:
            values = np.array(variable["text"], dtype=str).reshape(shape)
        else:
            values = np.frombuffer(body, dtype="<f8", count=prod(shape), offset=start).reshape(shape)
            start += values.nbytes
        yield Variable(variable["name"], dims, labels, values, variable["attributes"])


def _checked(name: Any, taken: Collection[str]) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or "/" in name or name.startswith("."):
        raise InputError(
            f"{name!r:.200} cannot name a part of an answer: use short text without '/' and no dot at its start."
        )
    if name in taken or name in RESERVED:
        raise InputError(
            f"{name!r} names a part of the answer, but is that of a parameter or reserved: rename it."
        )
    return name


def _check_labels(dim: str, labels: NDArray[Any]) -> None:
    """Answers of different points are put together by their labels."""
    if labels.dtype.kind not in "iufbU":
        raise InputError(f"the labels of {dim} are {labels.dtype}: use numbers or text.")
    if len(np.unique(labels)) < len(labels) or (labels.dtype.kind == "f" and np.isnan(labels).any()):
        raise InputError(f"the labels of {dim} repeat, or are not numbers: let them tell all entries apart.")


def _array(name: str, value: Any) -> xarray.DataArray:
    import xarray

    attributes: Mapping[Any, Any] = {}
    if isinstance(value, xarray.DataArray):
        coordinates = {dim: value[dim].values for dim in value.dims if dim in value.coords}
        dims, attributes, value = value.dims, value.attrs, value.values
    else:
        coordinates, dims = {}, tuple(f"{name}_axis_{axis}" for axis in range(np.ndim(_numpy(name, value))))
    return xarray.DataArray(_numpy(name, value), coordinates, dims, attrs=_plain(attributes))


def _numpy(name: str, value: Any) -> NDArray[Any]:
    """Numbers in double precision, or text."""
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu().numpy()
    if not isinstance(value, Number | str | np.ndarray | np.generic | list | tuple):
        raise InputError(
            f"{name} is a {type(value).__name__}: return numbers, text, arrays or labelled arrays."
        )
    array = np.asarray(value)
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} holds {array.dtype}: return real numbers or text.")
    return array.astype(np.float64)


def _plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in attributes.items() if isinstance(value, str | int | float)}


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
    found: dict[str, _Answers] = {}
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
    told = {parameter.name: parameter.help for parameter in spec.target.parameters}
    told[REPEAT] = "draws with seeds of their own"
    coordinates: dict[str, Any] = {
        name: (name, np.array(values), {"long_name": told[name]} if told.get(name) else {})
        for name, values in axes.items()
    }
    coordinates |= {dim: list(own) for dim, own in labels.items()}
    kind, _, name = spec.target.name.partition(" ")
    fixed = {key: value for key, value in spec.fixed.items() if value is not None}
    facts = {kind: name, "title": spec.title or name, "fixed": json.dumps(fixed), "seed": spec.seed}
    return xarray.Dataset(data, coordinates, facts)


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


def _all_labels(found: Iterable[tuple[tuple[int, ...], Variable]]) -> dict[str, dict[Any, int]]:
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
    own: _Answers,
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
