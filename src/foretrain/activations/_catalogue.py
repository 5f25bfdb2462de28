"""The catalogue: every activation known by name, its parameters and its other names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from foretrain.activations._activation import Activation
from foretrain.activations._formulas import gated, piecewise, saturating
from foretrain.support.errors import InputError, unknown_name

_HIGHEST_POWER = 100


@dataclass(frozen=True)
class Entry:
    """How to build a member: ``build(**parameters)``, with defaults (None: must be given)."""

    build: Callable[..., Activation]
    defaults: Mapping[str, float | None] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


_ENTRIES: dict[str, Entry] = {
    "perceptron": Entry(piecewise.perceptron, aliases=("step", "heaviside")),
    "sign": Entry(piecewise.sign),
    "sigmoid": Entry(saturating.sigmoid, aliases=("logistic", "expit")),
    "tanh": Entry(saturating.tanh),
    "erf": Entry(saturating.erf),
    "softsign": Entry(saturating.softsign),
    "sin": Entry(saturating.sin, aliases=("sine",)),
    "cos": Entry(saturating.cos, aliases=("cosine",)),
    "linear": Entry(piecewise.linear, {"slope": 1.0}, aliases=("identity",)),
    "relu": Entry(piecewise.relu),
    "leaky_relu": Entry(piecewise.leaky_relu, {"slope": 0.01}),
    "scale_invariant": Entry(piecewise.scale_invariant, {"minus": None, "plus": 1.0}),
    "abs": Entry(piecewise.absolute, aliases=("absolute",)),
    "monomial": Entry(piecewise.monomial, {"power": None}, aliases=("power",)),
    "quadratic": Entry(piecewise.monomial, fixed={"power": 2.0}, aliases=("square",)),
    "cubic": Entry(piecewise.monomial, fixed={"power": 3.0}, aliases=("cube",)),
    "softplus": Entry(gated.softplus),
    "swish": Entry(gated.swish, {"beta": 1.0}, aliases=("silu",)),
    "gelu": Entry(gated.gelu, aliases=("gelu_erf", "gelu_exact")),
    "gelu_tanh": Entry(gated.gelu_tanh, aliases=("gelu_approximate",)),
    "mish": Entry(gated.mish),
    "elu": Entry(piecewise.elu, {"alpha": 1.0}),
    "selu": Entry(piecewise.selu),
}


def catalogue() -> tuple[str, ...]:
    """The names that ``activation`` knows."""
    return tuple(_ENTRIES)


def member(text: str, parameters: Mapping[str, float]) -> Activation:
    """The member called ``text``: one of its names, or a label such as ``leaky_relu(slope=0.2)``."""
    name, written = _parse(text)
    known = {_squeeze(alias): key for key, entry in _ENTRIES.items() for alias in (key, *entry.aliases)}
    if _squeeze(name) not in known:
        every = [alias for key, entry in _ENTRIES.items() for alias in (key, *entry.aliases)]
        raise unknown_name("`activation`", name, every)
    key = known[_squeeze(name)]
    given = {**written, **parameters}
    return _ENTRIES[key].build(**_check_parameters(key, _ENTRIES[key], given), **_ENTRIES[key].fixed)


def _squeeze(name: str) -> str:
    return re.sub(r"[-_\s]", "", name.lower())


def _parse(text: str) -> tuple[str, dict[str, float]]:
    """Splits ``name(key=number, ...)``."""
    match = re.fullmatch(r"\s*([^()]*?)\s*(?:\((.*)\))?\s*", text)
    if match is None:
        raise InputError(f"cannot read the `activation` {text!r}: write it as in 'leaky_relu(slope=0.2)'.")
    written = {}
    for part in filter(None, (part.strip() for part in (match[2] or "").split(","))):
        key, _, number = part.partition("=")
        try:
            written[key.strip()] = float(number)
        except ValueError:
            raise InputError(
                f"cannot read {part!r} in the `activation` {text!r}: write it as in 'leaky_relu(slope=0.2)'."
            ) from None
    return match[1], written


def _check_parameters(name: str, entry: Entry, given: Mapping[str, float]) -> dict[str, float]:
    for key in given:
        if not entry.defaults:
            raise InputError(f"{name} takes no parameters: leave out `{key}|--set {key}`.")
        if key not in entry.defaults:
            raise unknown_name(f"parameter of {name}", key, entry.defaults, "parameters|--set")
    values = {}
    for key, default in entry.defaults.items():
        value = given.get(key, default)
        if value is None:
            raise InputError(
                f"{name} needs the parameter `{key}|--set {key}`: for example activation({name!r}, {key}=2)."
            )
        values[key] = _check_number(name, key, value)
    return values


def _check_number(name: str, key: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, (int, float)) or hasattr(value, "__float__") else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"`{key}|--set {key}` of {name} must be a finite number, not {value!r}.")
    if key in ("beta", "alpha") and number <= 0.0:
        raise InputError(f"`{key}|--set {key}` of {name} must be positive, not {number:g}.")
    if key == "power" and not (number.is_integer() and 0 <= number <= _HIGHEST_POWER):
        raise InputError(
            f"`power|--set power` of {name} must be a whole number from 0 to {_HIGHEST_POWER}, not {number:g}."
        )
    return number
