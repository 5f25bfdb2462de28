"""Activations made of simple pieces: polynomials on each side of 0, and the exponential linear units."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from foretrain.activations._activation import MAX_ORDER, Activation, Array, Kink, Parity
from foretrain.activations._formulas.polynomials import differentiate, horner

Pieces = tuple[tuple[float, ...], tuple[float, ...]]

_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_ALPHA = 1.6732632423543772848170429916717


def two_polynomials(z: Array, order: int, pieces: Pieces) -> Array:
    """The derivative of a function that is one polynomial for z < 0 and another for z >= 0."""
    minus, plus = (horner(differentiate(piece, order), z) for piece in pieces)
    return np.where(z < 0, minus, plus)


def exponential_linear(z: Array, order: int, alpha: float, scale: float) -> Array:
    """Scale times z for z >= 0, alpha (e^z - 1) for z < 0."""
    below = np.minimum(z, 0.0)
    left = alpha * (np.expm1(below) if order == 0 else np.exp(below))
    right = z if order == 0 else np.full_like(z, 1.0 if order == 1 else 0.0)
    return scale * np.where(z < 0, left, right)


def polynomial_kinks(pieces: Pieces) -> tuple[Kink, ...]:
    """The kink at 0 of two polynomial pieces, none if they are the same polynomial."""
    minus, plus = (piece + (0.0,) * (MAX_ORDER + 1) for piece in pieces)
    jumps = tuple(math.factorial(k) * (plus[k] - minus[k]) for k in range(MAX_ORDER + 1))
    return (Kink(0.0, jumps),) if any(jumps) else ()


def polynomial_parity(pieces: Pieces) -> Parity | None:
    """Odd or even when the two pieces mirror each other."""
    length = max(len(piece) for piece in pieces)
    minus, plus = (np.array(piece + (0.0,) * (length - len(piece))) for piece in pieces)
    mirrored = minus * (-1.0) ** np.arange(length)
    if np.array_equal(mirrored, plus):
        return "even"
    return "odd" if np.array_equal(mirrored, -plus) else None


def polynomial_activation(
    name: str, formula: str, pieces: Pieces, degree: float, parameters: tuple[tuple[str, float], ...] = ()
) -> Activation:
    """A homogeneous activation with one monomial on each side of 0."""
    return Activation(
        name,
        formula,
        partial(two_polynomials, pieces=pieces),
        (name, *parameters),
        parameter_items=parameters,
        kinks=polynomial_kinks(pieces),
        parity=polynomial_parity(pieces),
        degree=degree,
        pieces=pieces,
        closed_form="piecewise_polynomial",
    )


def perceptron() -> Activation:
    """(2.9); its value at 0 is 1."""
    return polynomial_activation("perceptron", "1 for z >= 0, 0 for z < 0", ((0.0,), (1.0,)), 0.0)


def sign() -> Activation:
    """The perceptron with values -1 and 1; its value at 0 is 1, so that it is right-continuous."""
    return polynomial_activation("sign", "1 for z >= 0, -1 for z < 0", ((-1.0,), (1.0,)), 0.0)


def linear(slope: float) -> Activation:
    """(2.14) with equal slopes."""
    pieces = ((0.0, slope), (0.0, slope))
    return polynomial_activation("linear", "slope z", pieces, 1.0, (("slope", slope),))


def relu() -> Activation:
    """(2.14) with slopes (0, 1)."""
    return polynomial_activation("relu", "max(z, 0)", ((0.0,), (0.0, 1.0)), 1.0)


def leaky_relu(slope: float) -> Activation:
    """(2.14) with slopes (slope, 1)."""
    pieces = ((0.0, slope), (0.0, 1.0))
    formula = "z for z >= 0, slope z for z < 0"
    return polynomial_activation("leaky_relu", formula, pieces, 1.0, (("slope", slope),))


def scale_invariant(minus: float, plus: float) -> Activation:
    """(2.14) with any two slopes."""
    pieces = ((0.0, minus), (0.0, plus))
    formula = "plus z for z >= 0, minus z for z < 0"
    return polynomial_activation("scale_invariant", formula, pieces, 1.0, (("minus", minus), ("plus", plus)))


def absolute() -> Activation:
    """(2.14) with slopes (-1, 1)."""
    return polynomial_activation("abs", "|z|", ((0.0, -1.0), (0.0, 1.0)), 1.0)


def monomial(power: float) -> Activation:
    """Z to a whole power."""
    piece = (0.0,) * int(power) + (1.0,)
    return polynomial_activation("monomial", "z^power", (piece, piece), power, (("power", power),))


def elu(alpha: float) -> Activation:
    """The exponential linear unit; its first derivative is continuous only for alpha = 1."""
    formula = "z for z >= 0, alpha (exp(z) - 1) for z < 0"
    return _exponential_unit("elu", formula, alpha, 1.0, (("alpha", alpha),))


def selu() -> Activation:
    """The scaled exponential linear unit with its published constants."""
    formula = f"{_SELU_SCALE:.7g} (z for z >= 0, {_SELU_ALPHA:.7g} (exp(z) - 1) for z < 0)"
    return _exponential_unit("selu", formula, _SELU_ALPHA, _SELU_SCALE, ())


def _exponential_unit(
    name: str, formula: str, alpha: float, scale: float, parameters: tuple[tuple[str, float], ...]
) -> Activation:
    jumps = (0.0, scale * (1.0 - alpha), *(-scale * alpha for _ in range(MAX_ORDER - 1)))
    return Activation(
        name,
        formula,
        partial(exponential_linear, alpha=alpha, scale=scale),
        (name, *parameters),
        parameter_items=parameters,
        kinks=(Kink(0.0, jumps),),
    )
