"""Settings of an experiment besides its scale and seed: widths, gains, activations, draws and the like.

An experiment is a function of its plan, and has one for every scale. The fields of the plans that are numbers or text
are settings, also those of plans inside plans. One that lists values takes a single one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

from foretrain.experiments.sweep.parameters import Parameter, Scalar

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
        if type(value) in _SCALARS:
            yield _Setting((*before, name), False)
        elif isinstance(value, tuple) and "..." in annotation and _are_scalars(value):
            yield _Setting((*before, name), True)
        elif _fields(value):
            yield from _places(value, (*before, name))


def _are_scalars(values: tuple[Any, ...]) -> bool:
    return bool(values) and all(type(value) in _SCALARS for value in values)


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
