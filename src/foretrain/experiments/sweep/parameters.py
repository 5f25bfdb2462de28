"""Parameters that a sweep can vary: declared by a function's signature, with their types, defaults and help."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from foretrain.support.errors import InputError, NotSupportedError

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
