"""What observables return, as labelled arrays that a log can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[Any]

STEP = "step"
RESERVED = (STEP, "seconds", "cost", "recorded", "observable")


@dataclass(frozen=True, eq=False)
class Variable:
    """One labelled array of one observable."""

    name: str
    observable: str
    values: Array
    dims: tuple[str, ...]
    labels: Mapping[str, list[Any]]
    attributes: Mapping[str, Any]

    @property
    def layout(self) -> dict[str, Any]:
        """All but the values: what must be the same in every record."""
        return {
            "variable": self.name,
            "observable": self.observable,
            "shape": list(self.values.shape),
            "dims": list(self.dims),
            "labels": dict(self.labels),
            "attributes": dict(self.attributes),
        }

    @property
    def entry(self) -> dict[str, Any]:
        """How its bytes are to be read."""
        return {"variable": self.name, "dtype": self.values.dtype.str, "shape": list(self.values.shape)}


def variables(observable: str, result: Any) -> list[Variable]:
    """Of a number, array, DataArray, Dataset, an estimate with its error, or a dict of these.

    An entry of a dict is called after the observable and its key; the key "" stands for the observable itself.
    """
    import xarray as xr

    if hasattr(result, "value") and hasattr(result, "standard_error"):
        result = {"": result.value, "error": result.standard_error}
    if isinstance(result, xr.Dataset):
        result = dict(result.data_vars)
    if not isinstance(result, Mapping):
        return [_variable(observable, observable, result)]
    if not result:
        raise InputError("it returned an empty dict: return at least one named value.")
    found = [_variable(_joined(observable, key), observable, value) for key, value in result.items()]
    known: dict[str, tuple[int, Any]] = {}  # an axis has one meaning within an observable
    for variable in found:
        for dim, size in zip(variable.dims, variable.values.shape):
            meaning = (size, variable.labels.get(dim))
            if json.dumps(known.setdefault(dim, meaning)) != json.dumps(meaning):
                raise InputError(
                    f"its axis {dim!r} has different labels in {variable.name}: name unlike axes apart."
                )
    return found


def check_name(name: Any, what: str) -> str:
    """A name that can stand for a stored variable."""
    if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
        raise InputError(f"{name!r} cannot name {what}: use text without '/' that does not start with '.'.")
    if name in RESERVED:
        raise InputError(f"{name!r} cannot name {what}, because records have one of their own: rename it.")
    return name


def layout_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What changed since an earlier record, in words."""
    if before["shape"] != now["shape"]:
        return (
            f"its shape is {tuple(now['shape'])} but was {tuple(before['shape'])}: pad it to one shape, with nan "
            "where there is nothing"
        )
    if json.dumps(before["labels"]) != json.dumps(now["labels"]) or before["dims"] != now["dims"]:
        return "its axes or their labels changed: return the same labels every time"
    return None


def _joined(observable: str, key: Any) -> str:
    if not isinstance(key, str):
        raise InputError(f"it returned a dict with the key {key!r}: use text.")
    return observable if key in ("", observable) else check_name(f"{observable}_{key}", "a variable")


def _variable(name: str, observable: str, value: Any) -> Variable:
    import xarray as xr

    if isinstance(value, xr.DataArray):
        values = _numbers(value.values, name)
        labels = {str(dim): _labels(value, dim) for dim in value.dims if dim in value.coords}
        dims = tuple(check_name(dim, "an axis") for dim in value.dims)
        attributes = {
            str(key): item for key, item in value.attrs.items() if isinstance(item, str | int | float)
        }
        return Variable(name, observable, values, dims, labels, attributes)
    values = _numbers(value, name)
    dims = tuple(f"{name}_axis_{axis}" for axis in range(values.ndim))
    return Variable(name, observable, values, dims, {}, {})


def _numbers(value: Any, name: str) -> Array:
    """Single, double or complex double precision, in the order and bytes of the log."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        if not value.dtype.is_complex:
            single = value.dtype in (torch.float32, torch.bfloat16, torch.float16)
            value = value.to(torch.float32 if single else torch.float64)
        value = value.resolve_conj().numpy()
    if not isinstance(value, Number | np.ndarray | np.generic | list | tuple):
        raise InputError(
            f"{name} is a {type(value).__name__}: return a number, an array, a DataArray or a dict of these."
        )
    array = np.asarray(value)
    if array.dtype.kind not in "fiubc":
        raise InputError(f"{name} holds {array.dtype} and no numbers: return numbers.")
    kept = "<c16" if array.dtype.kind == "c" else "<f4" if array.dtype == np.float32 else "<f8"
    return np.ascontiguousarray(array, dtype=kept).reshape(array.shape)


def _labels(value: xr.DataArray, dim: Any) -> list[Any]:
    labels = value.coords[dim].values
    found: list[Any] = labels.tolist()
    if labels.dtype.kind not in "iufbU" and not all(isinstance(label, str) for label in found):
        raise InputError(f"the labels of {dim} are {labels.dtype}: use numbers or text.")
    return found
