"""Any Python callable of a numpy array as an activation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from foretrain.activations._activation import Activation, Array, Kink, Pieces
from foretrain.activations._callables.cells import SEARCHED, Cells, Features, resolve
from foretrain.activations._callables.kinks import find_kinks
from foretrain.activations._callables.numerical import (
    HIGHEST_ORDER,
    METHOD_NAMES,
    NumericalRule,
    numerical_rule,
)
from foretrain.activations._callables.pointwise import Pointwise, pointwise
from foretrain.activations._callables.recognition import (
    PolynomialRule,
    recognise_degree,
    recognise_parity,
    recognise_polynomials,
)
from foretrain.support.errors import InputError, NotSupportedError

# Relative to the values: jumps that are left out, and doubts about a jump that show it to be as good as none.
_NEGLIGIBLE, _FAINT = 1e-7, 1e-5

_REMEMBERED = 32  # callables

Function = Callable[..., Any]
Kinks = Literal["detect"] | Sequence[float]


class ByIdentity:
    """Makes a callable comparable and hashable by being the same object."""

    def __init__(self, subject: object) -> None:
        self.subject = subject

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.subject is other.subject

    def __hash__(self) -> int:
        return id(self.subject)


@dataclass(frozen=True)
class GivenRule:
    """Derivatives that came with the callable; higher ones by differentiating the last of them."""

    function: Pointwise
    breakpoints: tuple[float, ...]
    numerical: tuple[NumericalRule, ...]

    def __call__(self, z: Array, order: int) -> Array:
        """Given derivatives are evaluated just right of a kink, where their own convention may differ."""
        if order == 0:
            return self.function(z).astype(z.dtype)
        argument = z.astype(np.float64)
        at_kink = np.isin(argument, np.array(self.breakpoints))
        argument = np.where(at_kink, np.nextafter(argument, np.inf), argument)
        given = min(order, len(self.numerical) - 1)
        return self.numerical[given](argument, order - given).astype(z.dtype)

    def jumps(self, order: int) -> tuple[Array, Array]:
        """From the one-sided limits of the given derivative."""
        given = min(order, len(self.numerical) - 1)
        return self.numerical[given].jumps(order - given)


AnyRule = PolynomialRule | NumericalRule | GivenRule


def from_callable(
    function: Function,
    derivatives: Sequence[Function] | None,
    kinks: Kinks,
    name: str,
    formula: str,
    origin: str = "given",
) -> Activation:
    """The activation that a callable computes, with everything about it measured."""
    return _measured(function, _checked(derivatives), kinks, name, formula, origin)[0]


def remembered(
    function: Function, derivatives: Sequence[Function] | None, kinks: Kinks, name: str, formula: str
) -> Activation:
    """As :func:`from_callable`; what was measured of the last callables is used again where it still holds."""
    given = _checked(derivatives)
    places = kinks if isinstance(kinks, str) else _declared(kinks)
    key = (places, name, ByIdentity(function), *map(ByIdentity, given))
    known = _known.pop(key, None)
    if known is None or not known.still_holds():
        activation, cells = _measured(function, given, places, name, formula, "given")
        known = _Known(activation, cells, tuple(pointwise(one, name) for one in (function, *given)))
    _known[key] = known  # the last one: the first is the next to be forgotten
    while len(_known) > _REMEMBERED:
        _known.pop(next(iter(_known)), None)
    return known.activation


class _Known:
    """An activation, and the values by which its callables are known again: they may have changed in the meantime."""

    def __init__(self, activation: Activation, cells: Cells, functions: tuple[Pointwise, ...]) -> None:
        self.activation, self._functions = activation, functions
        self._points = cells.samples.ravel()
        self._values = [one.unchecked(self._points) for one in functions]

    def still_holds(self) -> bool:
        """Whether the callables have the same values where the first was resolved."""
        try:
            return all(
                np.array_equal(one.unchecked(self._points), values, equal_nan=True)
                for one, values in zip(self._functions, self._values, strict=True)
            )
        except InputError:
            return False


_known: dict[tuple[object, ...], _Known] = {}


def _checked(derivatives: Sequence[Function] | None) -> tuple[Function, ...]:
    if derivatives is not None and (
        not isinstance(derivatives, (list, tuple)) or not all(map(callable, derivatives))
    ):
        raise InputError(
            f"derivatives must be a list of callables, the first derivative first, not {derivatives!r}."
        )
    return tuple(derivatives or ())


def _measured(
    function: Function, given: tuple[Function, ...], kinks: Kinks, name: str, formula: str, origin: str
) -> tuple[Activation, Cells]:
    """The activation that a callable computes, and the cells in which it was resolved."""
    checked = pointwise(function, name)
    cells = resolve(checked)
    if cells.noise.is_coarse:
        checked = replace(checked, precision=cells.noise.relative)
    places = find_kinks(checked, cells) if isinstance(kinks, str) else _declared(kinks)
    features = cells.features(places)
    polynomials = recognise_polynomials(checked, places, cells.left)
    rule: AnyRule
    if given:
        rule, method = _given(checked, given, places, features, origin)
    elif polynomials is not None:
        rule, method = polynomials, "of the polynomial pieces"
    else:
        rule = numerical_rule(checked, places, features)
        method = "by " + ", then ".join(METHOD_NAMES[used] for used in rule.methods)
    measured = _kinks(polynomials or rule, places)
    pieces: Pieces | None = None
    if polynomials is not None and not any(polynomials.breakpoints):
        pieces = polynomials.polynomials[0], polynomials.polynomials[-1]
    notes = []
    if isinstance(kinks, str):
        notes.append(f"kinks were looked for on [-{SEARCHED:g}, {SEARCHED:g}]")
    if not checked.takes_arrays:
        notes.append("the callable takes single numbers and is called once per entry (slow)")
    activation = Activation(
        name,
        formula,
        rule,
        ("callable", ByIdentity(function), name, places, *map(ByIdentity, given)),
        kinks=_reported(measured, checked) if isinstance(kinks, str) else tuple(kink for kink, _ in measured),
        parity=recognise_parity(checked),
        degree=recognise_degree(checked),
        pieces=pieces,
        closed_form=None if pieces is None else "piecewise_polynomial",
        strip=features.shortest_length if polynomials is None else math.inf,
        strip_is_measured=polynomials is None,
        max_order=max(HIGHEST_ORDER, len(given)),
        method=method,
        notes=tuple(notes),
    )
    return activation, cells


def _declared(kinks: Iterable[float]) -> tuple[float, ...]:
    try:
        places = tuple(sorted({float(place) + 0.0 for place in kinks}))
    except (TypeError, ValueError):
        raise InputError(
            f"`kinks` must be 'detect' or the places of the kinks, such as (0.0, 1.5), not {kinks!r}."
        ) from None
    if not all(map(math.isfinite, places)):
        raise InputError("the places of kinks must be finite numbers.")
    return places


def _given(
    checked: Pointwise,
    derivatives: tuple[Function, ...],
    places: tuple[float, ...],
    features: Features,
    origin: str,
) -> tuple[GivenRule, str]:
    """The rule that uses the given derivatives, and what to say about it."""
    rules = [numerical_rule(checked, places, features)]
    for order, derivative in enumerate(derivatives, start=1):
        title = f"derivative {order} of {checked.name} ({origin})"
        rule = numerical_rule(pointwise(derivative, title), places, features)
        # It must be the numerical derivative of the one below it.
        lower = rules[-1]
        query = lower.trials()
        found, claimed = lower.estimate(query, 1), rule.function(query.z)
        wrong = np.abs(claimed - found.value) > 1e-6 * (found.size + lower.scale) + found.error
        if wrong.any():
            first = int(np.argmax(wrong))
            raise InputError(
                f"{title} is {claimed[first]:.6g} at z = {query.z[first]:g}, but numerical "
                f"differentiation says {found.value[first]:.6g}: the derivatives must belong to the values."
            )
        rules.append(rule)
    rest = ", then by differentiating the last" if len(derivatives) < HIGHEST_ORDER else ""
    return GivenRule(checked, places, tuple(rules)), f"{origin} to order {len(derivatives)}{rest}"


def _kinks(rule: AnyRule, places: tuple[float, ...]) -> list[tuple[Kink, float]]:
    """The kinks, each with the doubt about the first of its jumps that is not known."""
    if not places:
        return []
    jumps, doubts = (np.array(rows).T for rows in zip(*map(rule.jumps, range(HIGHEST_ORDER + 1))))
    first = np.argmax(np.isnan(jumps), axis=1)
    return [
        (Kink(place, tuple(map(float, jumps[i]))), float(doubts[i, first[i]]))
        for i, place in enumerate(places)
    ]


def _reported(found: Iterable[tuple[Kink, float]], checked: Pointwise) -> tuple[Kink, ...]:
    """Leaves out jumps of nearly rounding size, such as those of a softplus that turns linear far out.

    Windows for numerical derivatives still end at them.
    """
    reported = []
    for kink, doubt in found:
        known = [abs(jump) for jump in kink.jumps if not math.isnan(jump)]
        if max(known, default=0.0) > _NEGLIGIBLE * checked.size:
            reported.append(kink)
        elif len(known) < len(kink.jumps) and not doubt <= _FAINT * checked.size:
            raise NotSupportedError(
                f"the callable {checked.name!r} is not piecewise smooth near z = {kink.location:g}: "
                "foretrain handles kinks where derivatives jump, not power-law singularities."
            )
    return tuple(reported)
