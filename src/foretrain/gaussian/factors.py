"""What stands at one input inside an expectation: activations, their derivatives, powers of z."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.polynomial import Polynomial
from numpy.polynomial import polynomial as poly
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.support.errors import InputError, NotSupportedError

Array = NDArray[np.float64]

# Larger intermediate arrays get fresh pages from the system, which cost more than arithmetic.
_POINTS_AT_ONCE = 15_000


@dataclass(frozen=True)
class Term:
    """One activation, differentiated ``order`` times, to the ``power``.

    The first ``floor`` derivatives are taken pointwise, the others as distributions: jumps of derivatives from
    ``floor`` on leave delta functions.
    """

    activation: Activation
    order: int = 0
    power: int = 1
    floor: int = 0

    @property
    def kinks(self) -> tuple[float, ...]:
        """Where this term is not smooth."""
        return tuple(k.location for k in self.activation.kinks)

    def is_singular_at(self, location: float) -> bool:
        """Whether the derivative contains a delta function (or its derivatives) at ``location``."""
        return any(
            kink.location == location and any(kink.jump(k) != 0 for k in range(self.floor, self.order))
            for kink in self.activation.kinks
        )

    @property
    def parity(self) -> int:
        """+1 even, -1 odd, 0 neither."""
        base = {"odd": -1, "even": 1, None: 0}[self.activation.parity]
        return int((base * (-1) ** self.order) ** self.power)


@dataclass(frozen=True)
class Delta:
    """``weight * rest(z) * (d/dz)^order delta(z - location)``: the singular part of a factor."""

    location: float
    order: int
    weight: float
    rest: Factor


@dataclass(frozen=True)
class Factor:
    """A product of terms and a polynomial, all of the same input.

    Factors multiply (``factor("tanh") * factor("tanh", order=1)``), have powers, and differentiate.
    """

    terms: tuple[Term, ...] = ()
    polynomial: tuple[float, ...] = (1.0,)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.terms, self.polynomial))

    def __reduce__(self) -> tuple[Any, ...]:
        return Factor, (self.terms, self.polynomial)  # a hash is good for one process only

    def __call__(self, z: Any) -> NDArray[Any]:
        """The pointwise value; delta functions are not in it (see ``deltas``)."""
        z = np.asarray(z)
        return self._product(z, [t.activation.derivative(z, t.order) for t in self.terms])

    def _product(self, z: NDArray[Any], derivatives: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The value, from the derivative of the activation in every term."""
        values = [_power(d, t.power) for d, t in zip(derivatives, self.terms, strict=True)]
        if self.polynomial != (1.0,) or not values:
            values.append(np.asarray(poly.polyval(z, np.asarray(self.polynomial, dtype=z.dtype))))
        return math.prod(values[1:], start=values[0])

    def __mul__(self, other: Any) -> Factor:
        if isinstance(other, int | float):
            return Factor(self.terms, tuple(float(other) * c for c in self.polynomial))
        other = as_factor(other)
        powers: dict[tuple[Activation, int, int], int] = {}
        for term in (*self.terms, *other.terms):
            key = (term.activation, term.order, term.floor)
            powers[key] = powers.get(key, 0) + term.power
        terms = (Term(act, order, power, floor) for (act, order, floor), power in powers.items())
        product = poly.polymul(np.array(self.polynomial), np.array(other.polynomial))
        return Factor(tuple(sorted(terms, key=_sorting_key)), tuple(float(c) for c in product))

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Factor:
        if not isinstance(exponent, int) or exponent < 0:
            raise InputError(f"a factor can be raised to 0, 1, 2, ..., not to {exponent!r}.")
        terms = tuple(replace(t, power=t.power * exponent) for t in self.terms if exponent)
        return Factor(terms, tuple(float(c) for c in poly.polypow(np.array(self.polynomial), exponent)))

    def __repr__(self) -> str:
        words = []
        for term in self.terms:
            primes = "'" * term.order if term.order <= 3 else f"^({term.order})"
            words.append(term.activation.name + primes + (f"**{term.power}" if term.power > 1 else ""))
        if self.polynomial != (1.0,) or not words:
            powers = ["", " z", *(f" z^{k}" for k in range(2, len(self.polynomial)))]
            parts = [f"{c:g}{power}" for c, power in zip(self.polynomial, powers) if c]
            words.insert(0, "(" + (" + ".join(parts) or "0") + ")")
        return " ".join(words)

    def derivative(self) -> tuple[Factor, ...]:
        """The terms of the product rule; their sum is the derivative."""
        parts = []
        if len(self.polynomial) > 1:
            lowered = tuple(float(c) for c in poly.polyder(np.array(self.polynomial)))
            parts.append(Factor(self.terms, lowered))
        for i, term in enumerate(self.terms):
            left = (replace(term, power=term.power - 1),) if term.power > 1 else ()
            rest = Factor(self.terms[:i] + left + self.terms[i + 1 :], self.polynomial)
            slope = Factor((replace(term, order=term.order + 1, power=1),))
            parts.append(rest * slope * float(term.power))
        return tuple(part for part in parts if any(part.polynomial))

    def pointwise(self) -> Factor:
        """The same factor without its delta functions."""
        return Factor(tuple(replace(t, floor=t.order) for t in self.terms), self.polynomial)

    @property
    def is_infinite(self) -> bool:
        """Whether it is the square of a delta function, or another even power: of infinite expectation."""
        if len(self.terms) != 1 or len(self.polynomial) != 1 or self.polynomial[0] <= 0:
            return False
        term = self.terms[0]
        return term.power % 2 == 0 and any(term.is_singular_at(location) for location in self.kinks)

    @cached_property
    def kinks(self) -> tuple[float, ...]:
        """Where the pointwise value, or one of its derivatives, jumps."""
        return tuple(sorted({location for term in self.terms for location in term.kinks}))

    @cached_property
    def is_singular(self) -> bool:
        """Whether delta functions are among what it multiplies."""
        return any(term.is_singular_at(location) for term in self.terms for location in term.kinks)

    @cached_property
    def parity(self) -> Literal[-1, 0, 1]:
        """+1 even, -1 odd, 0 neither."""
        signs = {(-1) ** k for k, c in enumerate(self.polynomial) if c}
        result = signs.pop() if len(signs) == 1 else 0
        for term in self.terms:
            result *= term.parity
        return 1 if result > 0 else -1 if result < 0 else 0

    @property
    def is_polynomial(self) -> bool:
        """Whether no activation occurs."""
        return not self.terms

    @property
    def is_constant(self) -> bool:
        """Whether the factor is a number."""
        return not self.terms and len(self.polynomial) == 1

    @cached_property
    def strip(self) -> float:
        """Length over which the factor can be trusted to be analytic: a guide for the first step of a rule.

        The distance of the nearest complex singularity, or for a user's function a length measured on it; entire
        functions vary over lengths of order one too (rules check themselves).
        """
        return min((min(t.activation.strip, 2.5) for t in self.terms), default=math.inf)

    @cached_property
    def poles(self) -> int:
        """The order of its nearest singularities if those of the activations are simple poles."""
        return max(1, sum((term.order + 1) * term.power for term in self.terms))

    @property
    def is_unproven(self) -> bool:
        """Whether smoothness between the kinks was measured on a user's function, not derived."""
        return any(t.activation.strip_is_measured for t in self.terms)

    @cached_property
    def pieces(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Polynomial coefficients on z < 0 and on z >= 0 if the factor is polynomial there, else None."""
        sides = [np.array(self.polynomial), np.array(self.polynomial)]
        for term in self.terms:
            if term.activation.pieces is None:
                return None
            for side, piece in enumerate(term.activation.pieces):
                slope = poly.polyder(np.array(piece), term.order) if term.order else np.array(piece)
                sides[side] = poly.polymul(sides[side], poly.polypow(slope, term.power))
        minus, plus = (tuple(float(c) for c in np.atleast_1d(s)) for s in sides)
        return minus, plus

    def mean_value(self, z: Array) -> Array:
        """The value; at a kink the mean of both one-sided limits, which is what a vanishing width leaves."""
        value = np.array(self(z), dtype=float)
        for location in self.kinks:
            at = z == location
            if at.any():
                sides = self(np.array([np.nextafter(location, -np.inf), np.nextafter(location, np.inf)]))
                value[at] = sides.mean()
        return value

    @cached_property
    def deltas(self) -> tuple[Delta, ...]:
        """The singular part as delta functions and their derivatives, each with what multiplies it.

        Raises :class:`NotSupportedError` where the product of distributions has no meaning.
        """
        found: list[Delta] = []
        for location in self.kinks:
            singular = [term for term in self.terms if term.is_singular_at(location)]
            if not singular:
                continue
            if len(singular) > 1 or singular[0].power > 1:
                raise NotSupportedError(
                    f"{self!r} multiplies delta functions of the same input at z = {location:g}, "
                    "which has no finite value; ask for it at distinct inputs."
                )
            term = singular[0]
            kink = next(k for k in term.activation.kinks if k.location == location)
            rest = Factor(tuple(t for t in self.terms if t != term), self.polynomial)
            for k in range(term.floor, term.order):
                if kink.jump(k) == 0:
                    continue
                order = term.order - 1 - k
                weight, smooth = kink.jump(k), rest
                if not _is_smooth_at(rest, location, order):
                    weight, smooth = _weight_across_jump(rest, term, location, order, kink.jump(k))
                found.append(Delta(location, order, weight, smooth))
        return tuple(found)


def values_of(factors: Sequence[Factor], z: Array) -> Array:
    """Values of several factors at the same points, in front of them: each derivative is evaluated once."""
    points, result = z.reshape(-1), np.empty((len(factors), z.size))
    for start in range(0, z.size, _POINTS_AT_ONCE):
        part = slice(start, start + _POINTS_AT_ONCE)
        found: dict[tuple[Activation, int], NDArray[Any]] = {}
        for row, f in zip(result[:, part], factors, strict=True):
            for t in f.terms:
                if (t.activation, t.order) not in found:
                    found[t.activation, t.order] = t.activation.derivative(points[part], t.order)
            row[...] = f._product(points[part], [found[t.activation, t.order] for t in f.terms])
    return result.reshape(len(factors), *z.shape)


def _power(value: NDArray[Any], power: int) -> NDArray[Any]:
    """By products, which for whole powers is many times faster than numpy's power."""
    if power == 1:
        return value
    root = _power(value, power // 2)
    square: NDArray[Any] = root * root
    return square * value if power % 2 else square


def _sorting_key(term: Term) -> tuple[str, str, int, int]:
    parameters = repr(sorted(term.activation.parameters.items()))
    return term.activation.name, parameters, term.order, term.floor


def _is_smooth_at(factor: Factor, location: float, order: int) -> bool:
    """Whether all derivatives of ``factor`` up to ``order`` are continuous at ``location``."""
    jumps = (
        kink.jump(term.order + k)
        for term in factor.terms
        for kink in term.activation.kinks
        if kink.location == location
        for k in range(order + 1)
    )
    return all(jump == 0 for jump in jumps)


def _weight_across_jump(
    rest: Factor, term: Term, location: float, order: int, jump: float
) -> tuple[float, Factor]:
    """Weight of ``rest * delta`` where ``rest`` holds powers of the very step whose derivative the delta is.

    With u the stepping derivative, u^p du integrates to (u_+^(p+1) - u_-^(p+1)) / (p+1): the one value that
    every smooth approximation of the activation tends to.
    """
    step = [t for t in rest.terms if t.activation == term.activation and t.order == term.order - 1]
    others = Factor(tuple(t for t in rest.terms if t not in step), rest.polynomial)
    if order != 0 or len(step) != 1 or not _is_smooth_at(others, location, 0):
        raise NotSupportedError(
            f"{rest!r} jumps where a derivative of {term.activation.name} has a delta function "
            f"(z = {location:g}): their product has no definite value."
        )
    base = Factor((Term(step[0].activation, step[0].order),))
    low = float(base(np.nextafter(location, -np.inf)))
    high = low + jump
    power = step[0].power
    return (high ** (power + 1) - low ** (power + 1)) / (power + 1), others


def factor(activation: Any, order: int = 0, power: int = 1) -> Factor:
    """The ``order``-th derivative of an activation, to the ``power``, as a factor of an expectation.

    >>> factor("tanh", order=1) * factor("tanh")
    tanh tanh'
    """
    if not isinstance(order, int) or order < 0 or not isinstance(power, int) or power < 1:
        raise InputError(
            f"order must be 0, 1, ... and power 1, 2, ..., but they are {order!r} and {power!r}."
        )
    return Factor((Term(find_activation(activation), order, power),))


def as_factor(spec: Any) -> Factor:
    """A factor from a factor, an activation (object, name, callable), ``(activation, order)`` or a polynomial."""
    if isinstance(spec, Factor):
        return spec
    if isinstance(spec, Polynomial):
        return Factor((), tuple(float(c) for c in spec.convert().coef))
    if isinstance(spec, int | float):
        return Factor((), (float(spec),))
    if isinstance(spec, tuple) and len(spec) == 2:
        return factor(spec[0], order=spec[1])
    return factor(spec)


z = Factor((), (0.0, 1.0))
"""The input itself: ``z * factor("tanh", order=1)`` stands for z tanh'(z)."""
one = Factor()
"""The factor that does nothing."""
