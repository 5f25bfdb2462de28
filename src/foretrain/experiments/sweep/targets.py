"""What is computed at every point, an observable, an experiment or a function in a user's file, and its parameters.

Parameters are declared by a function's signature, with their types, defaults and help. An experiment is a function of
its plan, and has one for every scale. The fields of the plans that are numbers or text are settings, also those of
plans inside plans. One that lists values takes a single one of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from foretrain.experiments.registry import Scale
from foretrain.experiments.sweep.answers import RESERVED
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    from foretrain.experiments.registry import Experiment, Result

Scalar: TypeAlias = bool | int | float | str
REQUIRED = inspect.Parameter.empty
SEED = "seed"

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
SCALARS = (bool, int, float, str)
_ANY = "a number, text, true or false"
_HUGE = 2**63  # whole numbers of labelled axes are below


@dataclass(frozen=True)
class Parameter:
    """One of them; ``kind`` is its type, or None where the function does not say."""

    name: str
    kind: type | None
    default: Any = REQUIRED
    help: str = ""
    optional: bool = False  # None is a value too

    @property
    def type_words(self) -> str:
        """What it takes, for people."""
        return _ANY if self.kind is None else _WORDS[self.kind]

    @property
    def default_words(self) -> str:
        """What it is if nothing is said."""
        return "required" if self.default is REQUIRED else "" if self.default is None else str(self.default)

    def converted(self, value: Any) -> Scalar:
        """The value in the parameter's type, so that 1 and 1.0 are one point; refused if it is of another."""
        if isinstance(value, int) and not -_HUGE <= value < _HUGE:
            raise InputError(f"{self.name} is {value}, but labels have 64 bits: give a number below 2**63")
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if self.kind is int and isinstance(value, float) and value.is_integer() and abs(value) < _HUGE:
            return int(value)
        wrong = self.kind is not None and (
            not isinstance(value, self.kind) or (isinstance(value, bool) and self.kind is not bool)
        )
        if wrong or not _is_plain(value):
            raise InputError(f"{self.name} takes {self.type_words}, not {value!r}: give {self.type_words}")
        return cast("Scalar", value)


def declared(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Of a function: help is the text of ``Annotated[float, "…"]``."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some that are written in C do not say
        raise NotSupportedError(
            f"{_name(function)} does not tell its parameters: wrap it in a function that does."
        ) from None
    found = []
    for name, item in signature.parameters.items():
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            continue
        if item.kind is item.POSITIONAL_ONLY:
            raise NotSupportedError(
                f"{_name(function)} takes {name} by position only: let it be given by name."
            )
        found.append(_parameter(name, _hint(function, item.annotation), item.default))
    return tuple(found)


def resolved(parameters: tuple[Parameter, ...], given: Mapping[str, Scalar]) -> dict[str, Any]:
    """Every parameter but the seed with its value, in the order of their declaration.

    Defaults that a file could not say, such as arrays, are left to the function.
    """
    found = {}
    for parameter in parameters:
        value = given.get(parameter.name, parameter.default)
        if (value is None or _is_plain(value)) and (parameter.name != SEED or parameter.name in given):
            found[parameter.name] = value
    return found


def missing(parameters: tuple[Parameter, ...], given: Collection[str]) -> list[str]:
    """Names of those without a default that nobody gave."""
    return [p.name for p in parameters if p.default is REQUIRED and p.name not in given and p.name != SEED]


def _is_plain(value: Any) -> bool:
    """Whether JSON gives it back equal: not so for nan."""
    return type(value) in SCALARS and value == value


def _hint(function: Callable[..., Any], annotation: Any) -> Any:
    """What an annotation means where the function is written; each for itself, as some may name what is not there."""
    holder = type("_", (), {"__annotations__": {"it": annotation}})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(holder, names, include_extras=True)["it"]
    except Exception:  # a user's annotations may name anything
        return None


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    text = ""
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        text = next((note for note in notes if isinstance(note, str)), "")
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = [option for option in options if option in SCALARS]
    kind = kinds[0] if len(kinds) == 1 else None
    if kind is None and type(default) in SCALARS:
        kind = type(default)
    return Parameter(name, kind, default, text, optional=type(None) in options or default is None)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


_TAKEN = (*RESERVED, "scale", SEED)
_MOST_SHOWN = 6  # values of a list that the help names


@dataclass(frozen=True)
class Target:
    """A function of parameters by name, and how it is told apart from others.

    It takes the seed among them if ``is_random``. ``code`` is the digest of a user's file, empty for what belongs to
    the library.
    """

    name: str
    parameters: tuple[Parameter, ...]
    function: Callable[..., Any]
    code: str = ""

    @property
    def is_random(self) -> bool:
        """Whether it takes a seed."""
        return any(parameter.name == SEED for parameter in self.parameters)


def of_observable(name: str, folder: Path) -> Target:
    """One of the registry, or ``file.py:function`` as seen from a folder."""
    from foretrain.experiments.sweep import observables

    if ".py:" in name:
        return _of_file(name, folder)
    if ":" in name or name.endswith(".py"):
        raise InputError(f"{name!r} names no function of a file: write it like 'mine.py:function'.")
    found = observables.get(name)
    return Target(f"observable {name}", found.parameters, found.function)


def of_experiment(name: str) -> Target:
    """One of those that ``foretrain reproduce`` lists: its parameters are the scale, the seed and its settings."""
    from foretrain.experiments.registry import get

    experiment = get(name)
    own = declared(_experiment_parameters)
    settings = [item for item in Settings(experiment.plans).parameters() if item.name not in _TAKEN]
    return Target(f"experiment {name}", (*own, *settings), _Run(experiment))


@dataclass(frozen=True)
class _Run:
    """Runs an experiment; the numbers of its table are the answer."""

    experiment: Experiment

    def __call__(self, *, scale: str, seed: int, **settings: Scalar | None) -> dict[str, Any]:
        changes = {name: value for name, value in settings.items() if value is not None}
        if not changes or scale not in tuple(Scale):  # which is refused there
            return _numbers(self.experiment.run(scale, seed))
        plan = Settings(self.experiment.plans).plan(scale, changes)
        return _numbers(self.experiment.run(scale, seed, plan=plan))


def _experiment_parameters(
    *,
    scale: Annotated[str, "quick, or paper for the size of the source"] = "quick",
    seed: Annotated[int, "the same seed gives the same numbers"] = 0,
) -> None:
    """What every experiment takes."""


def _numbers(result: Result) -> dict[str, Any]:
    """The rows of the table, labelled by their quantities."""
    import numpy as np
    import xarray as xr

    labels: list[str] = []
    seen = Counter[str]()
    for row in result.table:  # a quantity that comes again gets a number
        seen[row.quantity] += 1
        again = seen[row.quantity] > 1
        labels.append(f"{row.quantity} ({seen[row.quantity]})" if again else row.quantity)

    def column(values: list[Any]) -> xr.DataArray:
        numbers = [np.nan if value is None or isinstance(value, str) else float(value) for value in values]
        return xr.DataArray(numbers, {"quantity": labels}, ["quantity"])

    return {
        "agrees": float(result.agrees),
        "here": column([row.here for row in result.table]),
        "expected": column([row.expected for row in result.table]),
        "standard_error": column([row.standard_error for row in result.table]),
        "row_agrees": column([row.agrees for row in result.table]),
    }


def _of_file(address: str, folder: Path) -> Target:
    from foretrain.support.loading import load_callable

    file, _, name = address.rpartition(":")
    path = folder / Path(file).expanduser()
    function = load_callable(f"{path}:{name}")
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return Target(f"observable {address}", declared(function), function, digest)


class _Setting(NamedTuple):
    """Where a setting stands in a plan, by names of fields, and whether it lists values."""

    path: tuple[str, ...]
    is_list: bool

    @property
    def name(self) -> str:
        return "_".join(self.path)


class Settings:
    """Those of one experiment, from its plans."""

    def __init__(self, plans: Mapping[str, Any]) -> None:
        self._plans = plans
        first, *others = (list(_places(plan)) for plan in plans.values())
        self._settings = {item.name: item for item in first if all(item in places for places in others)}

    def parameters(self) -> tuple[Parameter, ...]:
        """Their names and types; left out, they are what the scale says."""
        return tuple(map(self._parameter, self._settings.values()))

    def plan(self, scale: str, changes: Mapping[str, Scalar]) -> Any:
        """The plan of a scale with some settings changed."""
        plan = self._plans[scale]
        for name, value in changes.items():
            path, is_list = self._settings[name]
            plan = _replaced(plan, path, (value,) if is_list else value)
        return plan

    def _parameter(self, item: _Setting) -> Parameter:
        values = {scale: reduce(getattr, item.path, plan) for scale, plan in self._plans.items()}
        single = [one for value in values.values() for one in (value if item.is_list else (value,))]
        kind = float if {type(one) for one in single} == {int, float} else type(single[0])
        told = ", ".join(f"{_told(value)} ({scale})" for scale, value in values.items())
        return Parameter(
            item.name,
            kind,
            None,
            f"one value, else {told}" if item.is_list else f"else {told}",
            optional=True,
        )


def _fields(plan: Any) -> dict[str, str]:
    """Names and annotations of a dataclass or a named tuple; none of anything else."""
    if dataclasses.is_dataclass(plan):
        return {item.name: str(item.type) for item in dataclasses.fields(plan)}
    names = getattr(plan, "_fields", ())
    return {name: str(type(plan).__annotations__.get(name, "")) for name in names}


def _places(plan: Any, before: tuple[str, ...] = ()) -> Iterator[_Setting]:
    for name, annotation in _fields(plan).items():
        value = getattr(plan, name)
        if type(value) in SCALARS:
            yield _Setting((*before, name), False)
        elif (
            isinstance(value, tuple)
            and value
            and "..." in annotation
            and {type(one) for one in value} <= {*SCALARS}
        ):
            yield _Setting((*before, name), True)
        elif _fields(value):
            yield from _places(value, (*before, name))


def _replaced(plan: Any, path: tuple[str, ...], value: Any) -> Any:
    first, *rest = path
    new = _replaced(getattr(plan, first), tuple(rest), value) if rest else value
    if dataclasses.is_dataclass(plan) and not isinstance(plan, type):
        return dataclasses.replace(plan, **{first: new})
    return plan._replace(**{first: new})


def _told(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    shown = " ".join(map(str, value[:_MOST_SHOWN]))
    return shown if len(value) <= _MOST_SHOWN else f"{shown} …"
