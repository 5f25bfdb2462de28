"""Settings of an experiment besides its scale and seed: widths, gains, activations, draws and the like.

An experiment looks up what it does at a scale in a table of its module, ``{Scale.QUICK: plan, Scale.PAPER: plan}``.
The fields of those plans that are numbers or text are settings. One that lists values takes a single one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from foretrain.experiments.sweep.parameters import Parameter, Scalar

if TYPE_CHECKING:
    from foretrain.experiments.experiment import Result, Scale

_SCALARS = (bool, int, float, str)
_MOST_SHOWN = 6  # values of a list that the help names


class _Setting(NamedTuple):
    """Where a setting stands in a plan, by names of fields, and whether it lists values."""

    path: tuple[str, ...]
    is_list: bool

    @property
    def name(self) -> str:
        return "_".join(self.path)


class Settings:
    """Those of one experiment's function."""

    def __init__(self, function: Callable[..., Result]) -> None:
        self._function = function
        self._table, self._plans = _table_of(function)
        places = [set(_places(plan)) for plan in self._plans.values()]
        everywhere = set.intersection(*places) if places else set()
        self._settings = {
            item.name: item for item in next(map(_places, self._plans.values()), ()) if item in everywhere
        }

    def parameters(self) -> tuple[Parameter, ...]:
        """Their names and types; left out, they are what the scale says."""
        return tuple(map(self._parameter, self._settings.values()))

    def function(self, scale: Scale, changes: Mapping[str, Scalar]) -> Callable[..., Result]:
        """The experiment's function with another plan at this scale, beside the one that it was written with."""
        if not changes:
            return self._function
        plan = self._plans[scale]
        for name, value in changes.items():
            path, is_list = self._settings[name]
            plan = _replaced(plan, path, (value,) if is_list else value)
        own = self._function
        assert isinstance(own, FunctionType)
        names = own.__globals__ | {self._table: {**self._plans, scale: plan}}
        return FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)

    def _parameter(self, item: _Setting) -> Parameter:
        values = {scale: _value(plan, item.path) for scale, plan in self._plans.items()}
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


def _table_of(function: Callable[..., Result]) -> tuple[str, Mapping[Scale, Any]]:
    """The table of plans that a function looks its scale up in, with the name that it has there."""
    from foretrain.experiments.experiment import Scale

    for name in function.__code__.co_names if isinstance(function, FunctionType) else ():
        found = function.__globals__.get(name)
        if isinstance(found, dict) and found.keys() == set(Scale) and all(map(_fields, found.values())):
            return name, found
    return "", {}


def _fields(plan: Any) -> dict[str, str]:
    """Names and annotations of a dataclass or a named tuple; none of anything else."""
    if dataclasses.is_dataclass(plan):
        return {item.name: str(item.type) for item in dataclasses.fields(plan)}
    names = getattr(plan, "_fields", ())
    return {name: str(type(plan).__annotations__.get(name, "")) for name in names}


def _places(plan: Any, before: tuple[str, ...] = ()) -> Iterator[_Setting]:
    for name, annotation in _fields(plan).items():
        value = getattr(plan, name)
        if type(value) in _SCALARS:
            yield _Setting((*before, name), False)
        elif isinstance(value, tuple) and "..." in annotation and _are_scalars(value):
            yield _Setting((*before, name), True)
        elif _fields(value):
            yield from _places(value, (*before, name))


def _are_scalars(values: tuple[Any, ...]) -> bool:
    return bool(values) and all(type(value) in _SCALARS for value in values)


def _value(plan: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        plan = getattr(plan, name)
    return plan


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
