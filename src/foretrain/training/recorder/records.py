"""Records: labelled arrays from what observables return, and a labelled dataset from a log of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.support.durable import Frame, damage, read_frames
from foretrain.support.errors import FileError, ForetrainWarning, InputError, unknown_name
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[Any]
Layout = Mapping[str, Any]

LOG = "records.log"
FORMAT = 1
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


def read(folder: str | Path, only: str | None = None) -> xr.Dataset:
    """Everything a recorder wrote, also while it runs or after it was killed.

    All variables have the axis ``step``, which holds every recorded step; where an observable was left out to stay
    within the budget they are nan, and ``recorded`` (observable, step) says where they are values. ``only`` names one
    observable: then ``step`` holds just the steps at which it was recorded. Coordinates: ``seconds`` since the start,
    ``cost`` in seconds of the record. Variables of different observables with unlike axes of one name have these axes
    renamed after their observables.

    Examples
    --------
    >>> import foretrain as ft
    >>> ft.training.read("runs/first", only="loss")["loss"].plot()  # doctest: +SKIP
    """
    path = Path(folder).expanduser()
    contents = read_log(path)
    dataset = as_dataset(contents)
    if only is None:
        return dataset
    if only not in contents.observables:
        raise unknown_name("observable", only, contents.observables, "only=")
    own = [name for name, layout in contents.layouts.items() if layout["observable"] == only]
    kept = dataset["recorded"].sel(observable=only).values
    return dataset[own].drop_vars("observable", errors="ignore").isel({STEP: kept})


@dataclass
class Contents:
    """What a log says, with the offset behind its last whole frame."""

    header: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    records: list[Frame] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    closing: dict[str, Any] = field(default_factory=dict)
    end: int = 0
    forgotten: bool = False  # whether whole frames come after the end
    damaged: bool = False  # whether something between frames was passed over

    @property
    def last_step(self) -> int:
        """Of the last record; 0 if there is none."""
        return int(self.records[-1].entry[STEP]) if self.records else 0

    @property
    def seconds(self) -> float:
        """When the last record was made."""
        return float(self.records[-1].entry["seconds"]) if self.records else 0.0

    @property
    def observables(self) -> list[str]:
        """Names of those that were asked for, then of numbers that the caller noted."""
        noted = [layout["observable"] for layout in self.layouts.values()]
        return list(dict.fromkeys([*self.header["observables"], *noted]))


def read_log(folder: Path, until: int | None = None) -> Contents:
    """All that a log says, or all up to a step."""
    frames = read_frames(folder / LOG, "a Recorder", FORMAT)
    if frames is None:
        raise FileError(f"{folder} holds no recording: give the folder that a Recorder was given.")
    lost = damage(frames)
    if lost:
        warn_user(
            f"{folder / LOG} is damaged: {lost} bytes between its records are not readable and left out.",
            ForetrainWarning,
        )
    found = Contents(damaged=bool(lost))
    for frame in frames:
        entry, kind = frame.entry, frame.entry["kind"]
        if until is not None and entry[STEP] > until:
            found.forgotten = True
            break
        if kind == "header":
            found.header = entry
        elif kind == "layout":
            found.layouts[entry["variable"]] = entry
        elif kind == "record":
            found.records.append(frame)
        elif kind == "failure":
            found.failures.append(entry)
        found.closing = entry if kind == "close" else {}
        found.end = frame.stop
    return found


def as_dataset(contents: Contents) -> xr.Dataset:
    """Labelled."""
    import xarray as xr

    steps = list(dict.fromkeys(int(record.entry[STEP]) for record in contents.records))
    position = {step: place for place, step in enumerate(steps)}
    names = contents.observables
    seconds, cost = np.zeros(len(steps)), np.zeros(len(steps))
    recorded = np.zeros((len(names), len(steps)), dtype=bool)
    values: dict[str, dict[int, NDArray[Any]]] = defaultdict(dict)
    for record in contents.records:
        place = position[int(record.entry[STEP])]
        seconds[place] = record.entry["seconds"]
        cost[place] += sum(record.entry["costs"].values())
        for name, array in _arrays(record).items():
            values[name][place] = array
            recorded[names.index(contents.layouts[name]["observable"]), place] = True
    renamed = _distinct_axes(contents.layouts)
    data: dict[str, Any] = {}
    coordinates: dict[str, Any] = {STEP: np.array(steps, dtype=np.int64)}
    for name, layout in contents.layouts.items():
        dims = [renamed[layout["observable"], dim] for dim in layout["dims"]]
        attributes = layout["attributes"] | {"observable": layout["observable"]}
        dtype = np.result_type(np.float32, *(array.dtype for array in values[name].values()))
        stacked = np.full((len(steps), *layout["shape"]), np.nan, dtype=dtype)  # nan where there is no record
        for place, array in values[name].items():
            stacked[place] = array
        data[name] = ((STEP, *dims), stacked, attributes)
        coordinates |= {
            renamed[layout["observable"], dim]: np.array(labels) for dim, labels in layout["labels"].items()
        }
    data["recorded"] = (("observable", STEP), recorded)
    coordinates |= {
        "observable": np.array(names, dtype=str),
        "seconds": (STEP, seconds),
        "cost": (STEP, cost),
    }
    kept = ("version", "started", "model", "schedule", "budget", "metadata")
    facts = {key: contents.header[key] for key in kept if contents.header.get(key) is not None}
    if contents.failures:
        facts["failures"] = {
            failure["observable"]: f"step {failure[STEP]}: {failure['error']}"
            for failure in contents.failures
        }
    facts |= {key: value for key, value in contents.closing.items() if key not in ("kind", STEP)}
    return xr.Dataset(data, coordinates, facts)


def _arrays(record: Frame) -> dict[str, NDArray[Any]]:
    found, start = {}, 0
    for entry in record.entry["values"]:
        count = int(np.prod(entry["shape"], dtype=np.int64))
        array = np.frombuffer(record.body, dtype=entry["dtype"], count=count, offset=start)
        found[entry["variable"]] = array.reshape(entry["shape"])
        start += array.nbytes
    return found


def _distinct_axes(layouts: Mapping[str, Layout]) -> dict[tuple[str, str], str]:
    """Names of axes by observable.

    One that is not the same in all observables, or is called like a variable, is named after its observable.
    """
    meanings: dict[str, set[str]] = defaultdict(set)
    for layout in layouts.values():
        for dim, size in zip(layout["dims"], layout["shape"]):
            meanings[dim].add(f"{size}: {layout['labels'].get(dim)}")
    found = {}
    for layout in layouts.values():
        for dim in layout["dims"]:
            name = dim if len(meanings[dim]) == 1 and dim not in layouts else f"{layout['observable']}_{dim}"
            found[layout["observable"], dim] = f"{name}_axis" if name in layouts else name
    return found
