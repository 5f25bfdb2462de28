"""What a point's function returns, as a labelled dataset of numbers and text, and as the bytes of a log."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray

STATUS, ERROR, REPEAT = "status", "error", "repeat"
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
    values: np.ndarray[Any, Any]
    attributes: dict[str, Any]


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


def _check_labels(dim: str, labels: np.ndarray[Any, Any]) -> None:
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


def _numpy(name: str, value: Any) -> np.ndarray[Any, Any]:
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
