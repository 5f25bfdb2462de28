"""The one door: a name of the catalogue, a callable or a torch module becomes an Activation."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from foretrain.activations import _formulas as formulas
from foretrain.activations._activation import MAX_ORDER, Activation, Kink, Pieces, Rule
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    from foretrain.activations._callables.custom import Function, Kinks

_HIGHEST_POWER = 100
_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_ALPHA = 1.6732632423543772848170429916717
_KNOWN_UFUNCS: dict[np.ufunc, str] = {
    np.tanh: "tanh",
    np.sin: "sin",
    np.cos: "cos",
    np.abs: "abs",
    np.square: "quadratic",
    np.positive: "linear",
    special.erf: "erf",
    special.expit: "sigmoid",
}


@dataclass(frozen=True)
class Entry:
    """How to build a member: ``build(**parameters)``, with defaults (None: must be given)."""

    build: Callable[..., Activation]
    defaults: Mapping[str, float | None] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


def _smooth(name: str, formula: str, rule: Rule, *aliases: str, **known: Any) -> Entry:
    """A member without parameters: its derivatives, and what else is known about it."""
    return Entry(partial(Activation, name, formula, rule, (name,), **known), aliases=aliases)


def _softsign() -> Activation:
    """Smooth to first order; the even derivatives jump at 0. Each side has its pole a distance 1 away."""
    jumps = tuple(-2.0 * math.factorial(k) if k and k % 2 == 0 else 0.0 for k in range(MAX_ORDER + 1))
    rule, kinks = formulas.rational_sign, (Kink(0.0, jumps),)
    return Activation("softsign", "z / (1 + |z|)", rule, ("softsign",), kinks=kinks, parity="odd", strip=1.0)


def _swish(beta: float) -> Activation:
    """(2.16), with the gate's steepness beta."""
    rule, items = partial(formulas.gated_by_logistic, beta=beta), (("beta", beta),)
    formula, strip = "z / (1 + exp(-beta z))", math.pi / beta
    return Activation("swish", formula, rule, ("swish", beta), parameter_items=items, strip=strip)


def _gelu_tanh() -> Activation:
    """The common approximation of the GELU by tanh; a different function, with other critical points.

    Its poles are at 2u(z) = i pi (2m + 1), u the argument of the tanh.
    """
    heights = [math.pi * (2 * m + 1) / (2.0 * formulas.GELU_SCALE) for m in range(20)]
    poles = np.concatenate([np.roots([formulas.GELU_CUBIC, 0.0, 1.0, -1j * height]) for height in heights])
    formula, strip = "z/2 (1 + tanh(sqrt(2/π) (z + 0.044715 z³)))", float(np.min(np.abs(poles.imag)))
    return Activation("gelu_tanh", formula, formulas.gated_by_cubic_tanh, ("gelu_tanh",), strip=strip)


def _monomials(name: str, formula: str, pieces: Pieces, **parameters: float) -> Activation:
    """A homogeneous activation with one monomial on each side of 0, given by ascending coefficients."""
    length = max(MAX_ORDER + 1, *map(len, pieces))
    minus, plus = (np.array(piece + (0.0,) * (length - len(piece))) for piece in pieces)
    jumps = tuple(math.factorial(k) * float(plus[k] - minus[k]) for k in range(MAX_ORDER + 1))
    mirrored = minus * (-1.0) ** np.arange(length)
    is_even, is_odd = np.array_equal(mirrored, plus), np.array_equal(mirrored, -plus)
    return Activation(
        name,
        formula,
        partial(formulas.two_polynomials, pieces=pieces),
        (name, *parameters.items()),
        parameter_items=tuple(parameters.items()),
        kinks=(Kink(0.0, jumps),) if any(jumps) else (),
        parity="even" if is_even else "odd" if is_odd else None,
        degree=max(map(len, pieces)) - 1.0,
        pieces=pieces,
        closed_form="piecewise_polynomial",
    )


def _fixed_monomials(name: str, formula: str, pieces: Pieces, *aliases: str) -> Entry:
    return Entry(partial(_monomials, name, formula, pieces), aliases=aliases)


def _linear(slope: float) -> Activation:
    return _monomials("linear", "slope z", ((0.0, slope), (0.0, slope)), slope=slope)


def _leaky_relu(slope: float) -> Activation:
    pieces = ((0.0, slope), (0.0, 1.0))
    return _monomials("leaky_relu", "z for z >= 0, slope z for z < 0", pieces, slope=slope)


def _scale_invariant(minus: float, plus: float) -> Activation:
    formula, pieces = "plus z for z >= 0, minus z for z < 0", ((0.0, minus), (0.0, plus))
    return _monomials("scale_invariant", formula, pieces, minus=minus, plus=plus)


def _power(power: float) -> Activation:
    piece = (0.0,) * int(power) + (1.0,)
    return _monomials("monomial", "z^power", (piece, piece), power=power)


def _exponential_unit(
    name: str, formula: str, steepness: float, scale: float, **parameters: float
) -> Activation:
    """The first derivative is continuous only for the steepness 1."""
    jumps = (0.0, scale * (1.0 - steepness), *(-scale * steepness for _ in range(MAX_ORDER - 1)))
    return Activation(
        name,
        formula,
        partial(formulas.exponential_linear, alpha=steepness, scale=scale),
        (name, *parameters.items()),
        parameter_items=tuple(parameters.items()),
        kinks=(Kink(0.0, jumps),),
    )


def _elu(alpha: float) -> Activation:
    return _exponential_unit("elu", "z for z >= 0, alpha (exp(z) - 1) for z < 0", alpha, 1.0, alpha=alpha)


def _selu() -> Activation:
    formula = f"{_SELU_SCALE:.7g} (z for z >= 0, {_SELU_ALPHA:.7g} (exp(z) - 1) for z < 0)"
    return _exponential_unit("selu", formula, _SELU_ALPHA, _SELU_SCALE)


_SINE, _COSINE = (partial(formulas.sinusoid, quarter_turns=turns) for turns in (0, 1))
_GELU = "z Φ(z), Φ the normal distribution function"

_ENTRIES: dict[str, Entry] = {
    # (2.9); the values of perceptron and sign at 0 are 1, so that they are right-continuous.
    "perceptron": _fixed_monomials(
        "perceptron", "1 for z >= 0, 0 for z < 0", ((0.0,), (1.0,)), "step", "heaviside"
    ),
    "sign": _fixed_monomials("sign", "1 for z >= 0, -1 for z < 0", ((-1.0,), (1.0,))),
    # (2.10) to (2.12)
    "sigmoid": _smooth("sigmoid", "1 / (1 + exp(-z))", formulas.logistic, "logistic", "expit", strip=math.pi),
    "tanh": _smooth("tanh", "tanh(z)", formulas.hyperbolic_tangent, parity="odd", strip=math.pi / 2),
    "erf": _smooth("erf", "erf(z)", formulas.error_function, parity="odd", closed_form="erf"),
    "softsign": Entry(_softsign),
    "sin": _smooth("sin", "sin(z)", _SINE, "sine", parity="odd", closed_form="sine"),
    "cos": _smooth("cos", "cos(z)", _COSINE, "cosine", parity="even", closed_form="sine"),
    # (2.14), scale-invariant
    "linear": Entry(_linear, {"slope": 1.0}, aliases=("identity",)),
    "relu": _fixed_monomials("relu", "max(z, 0)", ((0.0,), (0.0, 1.0))),
    "leaky_relu": Entry(_leaky_relu, {"slope": 0.01}),
    "scale_invariant": Entry(_scale_invariant, {"minus": None, "plus": 1.0}),
    "abs": _fixed_monomials("abs", "|z|", ((0.0, -1.0), (0.0, 1.0)), "absolute"),
    "monomial": Entry(_power, {"power": None}, aliases=("power",)),
    "quadratic": Entry(_power, fixed={"power": 2.0}, aliases=("square",)),
    "cubic": Entry(_power, fixed={"power": 3.0}, aliases=("cube",)),
    # (2.15) to (2.17); the GELU in its exact form with the error function
    "softplus": _smooth("softplus", "log(1 + exp(z))", formulas.smooth_ramp, strip=math.pi),
    "swish": Entry(_swish, {"beta": 1.0}, aliases=("silu",)),
    "gelu": _smooth("gelu", _GELU, formulas.gated_by_normal, "gelu_erf", "gelu_exact", closed_form="gelu"),
    "gelu_tanh": Entry(_gelu_tanh, aliases=("gelu_approximate",)),
    # Its poles are at e^z = -1 ± i.
    "mish": _smooth("mish", "z tanh(log(1 + exp(z)))", formulas.gated_by_tanh_of_ramp, strip=0.75 * math.pi),
    "elu": Entry(_elu, {"alpha": 1.0}),
    "selu": Entry(_selu),
}


def catalogue() -> tuple[str, ...]:
    """The names that ``activation`` knows."""
    return tuple(_ENTRIES)


def activation(
    spec: str | Activation | Callable[..., Any],
    *,
    derivatives: Sequence[Function] | None = None,
    kinks: Kinks = "detect",
    name: str | None = None,
    **parameters: float,
) -> Activation:
    """An activation from a name, a torch module or function, or any callable of a numpy array.

    Such as ``activation("leaky_relu", slope=0.2)``, ``activation(nn.GELU())`` or ``activation(np.arctan)``.
    For a callable, ``derivatives=[f1, f2, ...]`` gives what is otherwise computed from its values, and
    ``kinks=(0.0, 1.5)`` says where derivatives jump, otherwise found on [-20, 20].
    """
    described = derivatives is not None or name is not None or not isinstance(kinks, str)
    if isinstance(kinks, str) and kinks != "detect":
        raise InputError(
            f"`kinks` must be 'detect' or the places of the kinks, such as (0.0,), not {kinks!r}."
        )
    if isinstance(spec, (str, Activation)):
        if described:
            raise InputError("derivatives, kinks and name describe a callable: leave them out here.")
        if isinstance(spec, str):
            return member(spec, parameters)
        if parameters:
            raise InputError(f"{spec.label} is an activation already: parameters can only go with a name.")
        return spec
    if isinstance(spec, type) or not callable(spec):
        hint = (
            "pass an instance, such as nn.ReLU()" if isinstance(spec, type) else "pass a name or a callable"
        )
        raise InputError(f"cannot make an activation of {spec!r}: {hint}.")
    if parameters:
        raise InputError(
            f"{next(iter(parameters))!r} cannot be passed on to a callable: "
            "bind it first, as in functools.partial(function, `slope=0.2`)."
        )
    if isinstance(spec, np.ufunc) and spec in _KNOWN_UFUNCS and not described:
        return member(_KNOWN_UFUNCS[spec], {})
    # Imported here because names, by far the commonest case, need none of it.
    from foretrain.activations._callables.custom import remembered

    if derivatives is None and _belongs_to_torch(spec):
        from foretrain.activations._torch import from_torch

        return from_torch(spec, kinks, name)
    inner = spec.func if isinstance(spec, partial) else spec
    label = name or str(getattr(inner, "__name__", type(inner).__name__))
    return remembered(spec, derivatives, kinks, label, f"the Python callable {label}")


def _belongs_to_torch(spec: Function) -> bool:
    """Whether to go by torch; without torch already loaded nothing can."""
    if "torch" not in sys.modules:
        return False
    inner = spec.func if isinstance(spec, partial) else spec
    homes = [getattr(inner, "__module__", None), *(kind.__module__ for kind in type(inner).__mro__)]
    if any(str(home).split(".")[0] == "torch" for home in homes):
        return True
    # A plain function belongs there if it fails on numpy arrays and on numbers, but takes a tensor.
    for trial in (np.zeros(3), 0.5):
        try:
            spec(trial)
        except Exception:  # anything may come out of a user's function
            continue
        return False
    from foretrain.activations._torch import takes_tensors

    return takes_tensors(spec)


def member(text: str, parameters: Mapping[str, float]) -> Activation:
    """The member called ``text``: one of its names, or a label such as ``leaky_relu(slope=0.2)``."""
    return _build(text, parameters) if parameters else _without_parameters(text)


@lru_cache(maxsize=256)
def _without_parameters(text: str) -> Activation:
    return _build(text, {})


@lru_cache(maxsize=1)
def _keys() -> dict[str, str]:
    """The entry that every name stands for."""
    return {_squeeze(alias): key for key, entry in _ENTRIES.items() for alias in (key, *entry.aliases)}


def _build(text: str, parameters: Mapping[str, float]) -> Activation:
    name, written = _parse(text)
    known = _keys()
    if _squeeze(name) not in known:
        every = [alias for key, entry in _ENTRIES.items() for alias in (key, *entry.aliases)]
        raise unknown_name("`activation`", name, every)
    key = known[_squeeze(name)]
    given = {**written, **parameters}
    return _ENTRIES[key].build(**_check_parameters(key, _ENTRIES[key], given), **_ENTRIES[key].fixed)


def _squeeze(name: str) -> str:
    return re.sub(r"[-_\s]", "", name.lower())


def _parse(text: str) -> tuple[str, dict[str, float]]:
    """Split ``name(key=number, ...)``."""
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
        value: Any = given.get(key, default)
        if value is None:
            raise InputError(
                f"{name} needs the parameter `{key}|--set {key}`: for example activation({name!r}, {key}=2)."
            )
        try:
            is_number = isinstance(value, (int, float)) or hasattr(value, "__float__")
            number = float(value) if is_number else math.nan
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
        values[key] = number
    return values
