"""The file that describes a sweep, read, checked and refused with the line to mend, and the points that it asks for.

::

    observable = "phase"             # or experiment = "saddle-scaling", or observable = "mine.py:function"
    title = "Phases of tanh"         # of the picture
    seed = 0                         # of everything random
    repeats = 5                      # draws of every point, if it is random

    [fixed]
    activation = "tanh"

    [axes]
    C_W = { from = 0.5, to = 3.0, points = 26 }
    C_b = [0.0, 0.1, 0.2]
    epsilon = { from = 1e-3, to = 0.1, points = 9, spacing = "log" }

Each point has a key and a seed that depend on its parameters alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from foretrain.experiments.sweep.answers import REPEAT, RESERVED
from foretrain.experiments.sweep.targets import (
    SEED,
    Parameter,
    Scalar,
    Target,
    missing,
    of_experiment,
    of_observable,
    resolved,
)
from foretrain.support.errors import FileError, ForetrainError, InputError, unknown_name

if TYPE_CHECKING:
    import xarray as xr

    from foretrain.experiments.sweep.journal import Contents

_DECIMALS = 12  # of values between the ends of a range, so that 0.1 + 0.2 is 0.3
_MOST_POINTS = 10**6
_LINE = re.compile(r"\(at line (?P<line>\d+), column \d+\)|\(at end of document\)")


class Range(BaseModel):
    """Values from one number to another."""

    model_config = ConfigDict(extra="forbid", strict=True)

    start: float = Field(alias="from", allow_inf_nan=False)
    stop: float = Field(alias="to", allow_inf_nan=False)
    points: int | None = Field(default=None, ge=2, le=_MOST_POINTS)
    step: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    spacing: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _consistent(self) -> Range:
        if (self.points is None) == (self.step is None):
            raise ValueError("give either points or step")
        if self.start >= self.stop:
            raise ValueError("let from be below to")
        if not np.isfinite(self.stop - self.start):
            raise ValueError("let from and to be nearer to each other")
        if self.spacing == "log" and (self.start <= 0 or self.step is not None):
            raise ValueError("with spacing = 'log' give points, and let from be above 0")
        if self.step is not None and (self.stop - self.start) / self.step > _MOST_POINTS:
            raise ValueError("give a larger step")
        return self

    def values(self) -> list[float]:
        """In ascending order, both ends included if the step meets the end."""
        if self.points is None:
            assert self.step is not None
            count = int(np.floor((self.stop - self.start) / self.step * (1 + 1e-12))) + 1
            found = self.start + self.step * np.arange(count)
        elif self.spacing == "log":
            found = np.geomspace(self.start, self.stop, self.points)
        else:
            found = np.linspace(self.start, self.stop, self.points)
        return [float(f"{value:.{_DECIMALS}g}") for value in found]


_RANGE_KEYS = tuple(item.alias or name for name, item in Range.model_fields.items())


def _range_or_list(value: Any) -> Any:
    """Said in the file's words: pydantic would complain of both kinds at once."""
    if isinstance(value, dict):
        return Range.model_validate(value).values()
    if not isinstance(value, list) or not value:
        raise ValueError("give a list of values, or { from = …, to = …, points = … }")
    if any(isinstance(item, dict | list) for item in value):
        raise ValueError("let every value be a number, text, true or false")
    return value


class File(BaseModel):
    """What may stand in the file; names of parameters are checked later, against what is swept."""

    model_config = ConfigDict(extra="forbid", strict=True)

    observable: str | None = None
    experiment: str | None = None
    title: str = ""
    seed: int = Field(default=0, ge=0)
    repeats: int | None = Field(default=None, ge=1, le=_MOST_POINTS)
    axes: dict[str, Annotated[list[Any], BeforeValidator(_range_or_list)]] = Field(default_factory=dict)
    fixed: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_target(self) -> File:
        if (self.observable is None) == (self.experiment is None):
            raise ValueError("name either an observable or an experiment")
        return self


@dataclass(frozen=True)
class Spec:
    """A sweep that can be run: axes with their values, every other parameter with its one value."""

    target: Target
    axes: dict[str, tuple[Scalar, ...]]
    fixed: dict[str, Any]
    seed: int
    repeats: int | None
    title: str

    @property
    def count(self) -> int:
        """Of points."""
        return int(np.prod([len(values) for values in self.axes.values()], dtype=np.float64)) * (
            self.repeats or 1
        )

    def identity(self) -> dict[str, Any]:
        """All that the numbers depend on, as JSON holds it."""
        return {
            "target": self.target.name,
            "code": self.target.code,
            "seed": self.seed,
            "repeats": self.repeats,
            "axes": {name: list(values) for name, values in self.axes.items()},
            "fixed": self.fixed,
        }


def read_spec(path: str | Path) -> Spec:
    """Read and check a file."""
    source = Path(path).expanduser()
    try:
        text = source.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"{source} cannot be read ({reason}): give a TOML file that describes a sweep."
        ) from None
    return _Checker(source, text).spec()


class _Checker:
    """Knows the text, so that it can name the line."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text

    def spec(self) -> Spec:
        file = self._file()
        target = self._target(file)
        by_name = {parameter.name: parameter for parameter in target.parameters}
        axes = {name: self._axis(name, values, by_name) for name, values in file.axes.items()}
        fixed = {name: self._value(("fixed", name), by_name, value) for name, value in file.fixed.items()}
        for name in axes.keys() & fixed.keys():
            raise self._refusal(("fixed", name), f"{name} is an axis as well: leave out one of them")
        if lacking := missing(target.parameters, {*axes, *fixed}):
            raise self._refusal((), f"{target.name} needs {', '.join(lacking)}: add it to [fixed] or [axes]")
        if file.repeats is not None:
            if not target.is_random:
                raise self._refusal(
                    ("repeats",), f"{target.name} takes no seed, so that all repeats are equal: leave it out"
                )
            if SEED in ({*axes, *fixed}):
                raise self._refusal(
                    ("repeats",), "the seed is given, so that all repeats are equal: leave out one of them"
                )
        elif not axes:
            raise self._refusal(
                ("axes",), "there is nothing to sweep over: add a table [axes] with a parameter"
            )
        rest = {name: value for name, value in resolved(target.parameters, fixed).items() if name not in axes}
        found = Spec(target, axes, rest, file.seed, file.repeats, file.title)
        if found.count > _MOST_POINTS:
            raise self._refusal(
                ("axes",), f"the axes make {found.count:,} points: give at most {_MOST_POINTS:,}"
            )
        return found

    def _file(self) -> File:
        try:
            return File.model_validate(tomllib.loads(self._text))
        except ValidationError as error:
            found = error.errors(include_url=False)
            slips = [item for item in found if item["type"] == "extra_forbidden"]
            first = (slips or found)[0]
            raise self._refusal(_place(first["loc"]), _words(first)) from None
        except (ValueError, RecursionError) as error:  # the parser's own, and of endless numbers and nesting
            place = _LINE.search(str(error))
            line = int(place["line"]) if place and place["line"] else len(self._text.splitlines()) or 1
            raise self._at(
                line, f"this is not TOML ({_LINE.sub('', str(error)).strip()}): mend the line"
            ) from None

    def _target(self, file: File) -> Target:
        kind = "observable" if file.observable is not None else "experiment"
        try:
            if file.observable is not None:
                return of_observable(file.observable, self._path.parent)
            assert file.experiment is not None
            return of_experiment(file.experiment)
        except ForetrainError as error:
            raise self._refusal((kind,), str(error).rstrip(".")) from None

    def _axis(self, name: str, values: list[Any], by_name: dict[str, Parameter]) -> tuple[Scalar, ...]:
        found = tuple(self._value(("axes", name), by_name, value) for value in values)
        if name in RESERVED:
            raise self._refusal(("axes", name), f"{name} names a part of the store: rename the parameter")
        if {type(value) for value in found} == {int, float}:
            found = tuple(map(float, found))
        if len({type(value) for value in found}) > 1:
            raise self._refusal(("axes", name), f"the values of {name} are of several types: give one type")
        if len(set(found)) < len(found):
            twice = next(value for value, count in Counter(found).items() if count > 1)
            raise self._refusal(("axes", name), f"{name} has {twice!r} twice: leave out one of them")
        return found

    def _value(self, place: tuple[str, str], by_name: dict[str, Parameter], value: Any) -> Scalar:
        name = place[1]
        if not by_name:
            raise self._refusal(place, f"the function declares no parameters: let it take {name} by its name")
        if name not in by_name:
            raise self._refusal(place, str(unknown_name("parameter", name, by_name)).rstrip("."))
        try:
            return by_name[name].converted(value)
        except InputError as error:
            raise self._refusal(place, str(error)) from None

    def _refusal(self, place: Sequence[str | int], words: str) -> InputError:
        return self._at(line_of(self._text, place), words)

    def _at(self, line: int, words: str) -> InputError:
        return InputError(f"{self._path}, line {line}: {words}{'' if words.endswith('?') else '.'}")


def _place(location: Sequence[str | int]) -> tuple[str | int, ...]:
    """Of an entry of the file: names of the alternatives that pydantic adds are left out."""
    return tuple(part for part in location if not (isinstance(part, str) and "[" in part))


def _words(error: Any) -> str:
    """What is wrong and what to do, in the words of the file."""
    where = ".".join(str(part) for part in _place(error["loc"]))
    kind, message = error["type"], str(error["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden" and error["loc"][0] == "axes":
        return f"{where} is not known here: known are {', '.join(_RANGE_KEYS)}"
    if kind == "extra_forbidden":
        known = ", ".join(File.model_fields)
        return f"{where} is not known here: known are {known}; parameters go to [fixed] or [axes]"
    if kind == "less_than_equal":
        return f"{where}: give at most {_MOST_POINTS:,}"
    if kind == "dict_type":
        return f"{where} is not a table: write [{where}] on a line of its own, and its parameters below"
    return f"{where}: {message}" if where else message


_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_NAME = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*(?P<name>{_NAME})\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"\s*(?P<name>{_NAME})\s*=")


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line of the entry, or of the nearest one around it that has a line; 1 for the whole file."""
    wanted = [str(part) for part in path]
    best, line = 0, 1
    for number, (place, is_key) in _places(text).items():
        count = 0
        for one, other in zip(place, wanted):
            if one != other:
                break
            count += 1
        shared = count
        whole = shared == len(place) or (is_key and shared == len(wanted))
        if whole and shared > best:
            best, line = shared, number
    return line


def _places(text: str) -> dict[int, tuple[list[str], bool]]:
    """Line by line, the full names of tables and keys."""
    table: list[str] = []
    found: dict[int, tuple[list[str], bool]] = {}
    for number, line in enumerate(text.split("\n"), 1):  # as the parser counts them
        if header := _TABLE.match(line):
            table = _parts(header["name"])
            found[number] = (table, False)
        elif key := _KEY.match(line):
            found[number] = ([*table, *_parts(key["name"])], True)
    return found


def _parts(name: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(_PART, name)]


@dataclass(frozen=True)
class Point:
    """One of them: where it stands on the axes, and what its function is called with."""

    place: tuple[int, ...]
    coordinates: dict[str, Any]
    arguments: dict[str, Any]
    key: str


def axes_of(spec: Spec) -> dict[str, tuple[Any, ...]]:
    """The axes of the store: those of the file, and the repeats."""
    return spec.axes | ({} if spec.repeats is None else {REPEAT: tuple(range(spec.repeats))})


def points(spec: Spec) -> Iterator[Point]:
    """All points, the last axis running fastest."""
    axes = axes_of(spec)
    for place in itertools.product(*(range(len(values)) for values in axes.values())):
        coordinates = {name: axes[name][i] for name, i in zip(axes, place)}
        own = {name: value for name, value in coordinates.items() if name != REPEAT}
        arguments = spec.fixed | own
        # Whether a value was on an axis or fixed makes no difference: axes can be added to a store.
        identity = _canonical({"parameters": arguments, "repeat": coordinates.get(REPEAT, 0)})
        text = json.dumps(identity, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if spec.target.is_random and SEED not in arguments:
            words = np.frombuffer(digest, dtype="<u4").tolist()
            seed = np.random.SeedSequence([spec.seed, *words]).generate_state(1)[0]
            arguments = arguments | {SEED: int(seed)}  # below 2**32, which all libraries take
        yield Point(place, coordinates, arguments, digest.hex())


def _canonical(value: Any) -> Any:
    """Where a function does not say its type, 1 becomes 1.0 if an axis gets 1.5 as well; it stays the same point."""
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class Plan:
    """What a file asks for, and the folder that it goes to."""

    spec: Spec
    store: Path

    @staticmethod
    def of(spec: str | Path, store: str | Path | None) -> Plan:
        """The store is beside the file, unless it is named."""
        found = read_spec(spec)
        chosen = Path(spec).with_suffix(".sweep") if store is None else Path(store)
        return Plan(found, chosen.expanduser().absolute())

    @cached_property
    def points(self) -> dict[str, Point]:
        """All of them by their keys."""
        return {point.key: point for point in points(self.spec)}

    def wanted(self, contents: Contents, *, retry_failed: bool) -> list[Point]:
        """Points that are still to be computed."""
        over = contents.done.keys() | (set() if retry_failed else contents.failed.keys())
        return [point for key, point in self.points.items() if key not in over]

    def dataset(self, contents: Contents) -> xr.Dataset:
        """What is finished, labelled."""
        from foretrain.experiments.sweep.answers import as_dataset

        return as_dataset(contents, axes_of(self.spec), self.points.values(), self.spec)
