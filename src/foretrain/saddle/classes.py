"""The four classes of activations, by what breaks the balance of the layers: phi(z) = z sigma'(z) - sigma(z) (1).

With sigma(z) = a_0 + alpha z + a_q z^q + ... : A linear (phi = 0; scale-invariant ones almost everywhere), B odd
with q = 3, 5, ..., C a_0 = 0 with q = 2, D a_0 != 0, which is A, B or C once centred. Anything else is outside.

The rate constant of the plateau, K = beta h alpha^(L-1) / sqrt(N) (7), belongs to the time s = N t of the matrix
flow; in the time t of the scalar flow (4) it is N times as large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.gaussian import Factor, expectation, factor, z
from foretrain.saddle.parameters import check_beta, matrix_times
from foretrain.support.answers import Answer, Axis, Figure, Result, labelled
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    import xarray

Letter = Literal["A", "B", "C", "D", "outside"]

_NEGLIGIBLE = 1e-9  # derivatives of a user's function are known to about ten digits
_TOLERANCE = 1e-13
_HIGHEST_POWER, _UNLIKE_A_POWER = 11, 0.1
_PROBES = np.concatenate([np.linspace(0.01, 3.0, 60), np.linspace(3.2, 12.0, 12)])


@dataclass(frozen=True, repr=False)
class SaddleClass(Result):
    """How an activation behaves near the saddle.

    ``h`` is E[g sigma(g)] = E[sigma'(g)]; ``kappa`` = a_q E[g^q sigma(g)] / (alpha h), with sigma centred, is the
    coefficient of the first correction (24): 0 in class A, nan outside the classes. ``q`` and ``a_q`` are the first
    nonlinear power and its coefficient (q None: none up to the known order). ``centred_letter`` is the class of
    sigma - sigma(0), the letter itself unless that is D. ``alpha`` is the slope at 0, from the right at a kink,
    and ``slopes`` are the ones from the left and the right.
    """

    activation: Activation
    letter: Letter
    q: int | None
    alpha: float
    h: float
    kappa: float
    a_0: float
    a_q: float
    centred_letter: Letter
    slopes: tuple[float, float]
    one_sided: tuple[float, float]  # E[|g| (sigma(g) - a_0)] over g < 0 and over g > 0
    reason: str

    def signal(self, depth: int) -> float:
        """h alpha^(L-1) of (7); with different slopes on the two sides of 0, the sum over both signs of g."""
        if self.slopes[0] == self.slopes[1]:
            return self.h * self.alpha ** (depth - 1)
        total = 0.0
        for signal, moment in zip((-1.0, 1.0), self.one_sided):
            for _ in range(depth - 1):  # what becomes of a small signal of this sign
                signal *= self.slopes[int(signal > 0)]
            total += moment * signal
        return total

    @property
    def centring_note(self) -> str:
        """What expansions in small scales stand for in class D; empty in the others."""
        if self.letter != "D":
            return ""
        return (
            f"{self.activation.label} is in class D (σ(0) = {self.a_0:.6g}), where expansions in small scales are "
            "for the centred σ - σ(0); a network with σ as it is given follows method='reduced', whose time may be "
            "quite different"
        )

    def answer(self) -> Answer:
        """The class, why, its numbers, and the activation beside its series at 0."""
        name = self.letter if self.letter == "outside" else f"class {self.letter}"
        if self.letter == "D":
            name += f" (centred: {self.centred_letter})"
        power = "" if self.q is None else f", q = {self.q}, a_q = {self.a_q:.6g}"
        numbers = ", ".join(f"{key} = {getattr(self, key):.10g}" for key in ("alpha", "h", "kappa"))
        record = {
            "activation": self.activation.label,
            "class": self.letter,
            "centred_class": self.centred_letter,
            **{key: getattr(self, key) for key in ("q", "alpha", "h", "kappa", "reason")},
            "note": self.centring_note or None,
        }
        return Answer(
            f"{self.activation.label}: {name}: {self.reason}\n  {numbers}{power}, a_0 = {self.a_0:.6g}",
            [self._figure],
            data=self._numbers,
            record=record,
        )

    def _numbers(self) -> xarray.Dataset:
        single = {key: float(getattr(self, key)) for key in ("alpha", "h", "kappa", "a_0", "a_q")}
        variables = {
            "q": math.nan if self.q is None else float(self.q),
            **single,
            "slopes": ("side", self.slopes, "slopes of the activation at 0"),
            "one_sided": ("side", self.one_sided, "E[|g| (σ(g) - a_0)] over g of this sign"),
        }
        notes = {"activation": self.activation.label, "letter": self.letter, "reason": self.reason}
        return labelled(variables, notes, side=["left", "right"])

    def _figure(self) -> Figure:
        """The activation with its tangent and its first nonlinear power, then alpha, h and kappa."""
        points = np.linspace(-2.0, 2.0, 161)
        values = np.asarray(self.activation.value(points), dtype=float)
        tangent = self.a_0 + np.where(points < 0, *self.slopes) * points
        ends = np.concatenate([values, tangent])
        room = 0.1 * float(np.ptp(ends)) or 1.0
        figure = Figure(f"{self.activation.label} near the saddle", columns=2)
        upright = Axis(low=float(ends.min()) - room, high=float(ends.max()) + room)
        panel = figure.panel("Activation and its series at 0", x="z", y=upright)
        panel.curve(points, values, "-", "σ(z)")
        panel.curve(points, tangent, "--", "$a_0$ + α z")
        if self.q is not None and math.isfinite(self.a_q):
            word = f"$a_0$ + α z + $a_{{{self.q}}}$ $z^{{{self.q}}}$"
            panel.curve(points, tangent + self.a_q * points**self.q, ":", word)
        known = {"α": self.alpha, "h": self.h, "κ": self.kappa}
        known = {name: value for name, value in known.items() if math.isfinite(value)}
        numbers = figure.panel("Slope α, signal h, first correction κ", y=Axis(room=0.1))
        numbers.bars(list(known), list(known.values()), texts=[f"{value:.4g}" for value in known.values()])
        return figure


@dataclass(frozen=True)
class _Shape:
    """What the series at 0 and the symmetry of sigma - sigma(0) say."""

    letter: Letter
    q: int | None
    a_q: float
    reason: str


def classify(activation: Any) -> SaddleClass:
    """The class of an activation (a name, an Activation, any callable), with q, alpha, h and kappa.

    >>> classify("gelu").letter, classify("gelu").q
    ('C', 2)
    """
    return _classify(find_activation(activation))


def centred(activation: Any) -> Activation:
    """sigma - sigma(0): what class D becomes when it is centred."""
    act = find_activation(activation)
    offset = float(act.value(0.0))
    if offset == 0.0:
        return act
    derivatives = [_Derivative(act, order) for order in range(1, act.max_order + 1)]
    places = tuple(kink.location for kink in act.kinks)
    return find_activation(
        _Shifted(act, offset), derivatives=derivatives, kinks=places, name=f"centred {act.label}"
    )


@dataclass(frozen=True)
class _Shifted:
    """An activation less a constant; a class of its own so that it can be sent to workers."""

    act: Activation
    offset: float

    def __call__(self, points: Any) -> Any:
        return self.act.value(points) - self.offset


@dataclass(frozen=True)
class _Derivative:
    """One derivative of an activation as a function."""

    act: Activation
    order: int

    def __call__(self, points: Any) -> Any:
        return self.act.derivative(points, self.order)


@lru_cache(maxsize=128)
def _classify(act: Activation) -> SaddleClass:
    if not act.is_continuous:
        raise NotSupportedError(
            f"{act.label} jumps: the flow needs a continuous activation that is differentiable almost everywhere."
        )
    a_0 = float(act.value(0.0))
    left = right = float(act.derivative(0.0, 1))
    for kink in act.kinks:
        if kink.location == 0.0:
            left = right - kink.jump(1)
    shape = _shape(act, a_0)
    h = _mean(z * factor(act))
    absolute = _mean(factor("abs") * factor(act)) - a_0 * math.sqrt(2 / math.pi)
    letter: Letter = "D" if a_0 != 0.0 and shape.letter != "outside" else shape.letter
    reason = f"σ(0) = {a_0:.6g} is not 0; σ - σ(0) {shape.reason}" if a_0 != 0.0 else f"σ {shape.reason}"
    return SaddleClass(
        activation=act,
        letter=letter,
        q=shape.q,
        alpha=right,
        h=h,
        kappa=_kappa(act, shape, a_0, right, h),
        a_0=a_0,
        a_q=shape.a_q,
        centred_letter=shape.letter,
        slopes=(left, right),
        one_sided=((absolute - h) / 2, (absolute + h) / 2),
        reason=reason,
    )


def _shape(act: Activation, a_0: float) -> _Shape:
    slopes = act.slopes
    if slopes is not None and slopes[0] != slopes[1]:
        return _Shape("A", None, 0.0, "is scale-invariant, so that φ = 0 almost everywhere")
    if any(kink.location == 0.0 for kink in act.kinks):
        return _Shape("outside", None, math.nan, "has a kink at 0 and no Taylor series there")
    q, a_q, slope = None, 0.0, float(act.derivative(0.0, 1))
    # Coefficients of rounding size, in units of the largest scale of the series, are none.
    series = act.taylor(act.max_order, series=True)
    size = max(abs(float(series[1])), float(np.abs(act.value(_PROBES[:20])).max()), 1e-300)
    powers = [p for p in range(2, len(series)) if abs(float(series[p])) > _NEGLIGIBLE * size]
    if powers:
        q, a_q = powers[0], float(series[powers[0]])
    else:
        points = np.concatenate([-_PROBES, _PROBES])
        if np.allclose(act.value(points), a_0 + slope * points, rtol=1e-12, atol=1e-12 * abs(a_0)):
            return _Shape("A", None, 0.0, "is linear, φ = 0")
        q, a_q = _higher_power(act, a_0) if _is_odd(act, a_0) else (None, 0.0)
    if q is None:
        return _Shape("outside", None, 0.0, f"is linear near 0 to order {act.max_order} but not everywhere")
    if slope == 0.0:
        return _Shape("outside", q, a_q, "has no slope at 0")
    if q == 2:
        return _Shape("C", q, a_q, "has a quadratic term")
    if q % 2 and _is_odd(act, a_0):
        return _Shape("B", q, a_q, f"is odd with the first nonlinear power {q}")
    return _Shape("outside", q, a_q, f"has the first nonlinear power {q} and is not odd")


def _higher_power(act: Activation, a_0: float) -> tuple[int | None, float]:
    """The power q and a_q of an odd sigma beyond its known derivatives, from how it leaves its tangent at 0."""
    points = np.geomspace(0.1, 0.5, 16)
    value = act.value(points) - a_0
    rest = np.abs(value - float(act.derivative(0.0, 1)) * points)
    if not (rest > 1e-13 * np.abs(value)).all():
        return None, 0.0
    exponent = math.log(rest[1] / rest[0]) / math.log(points[1] / points[0])
    q = round(exponent)
    if q % 2 == 0 or not act.max_order < q <= _HIGHEST_POWER or abs(exponent - q) > _UNLIKE_A_POWER:
        return None, 0.0
    powers = [1, q, q + 2, q + 4, q + 6, q + 8]
    scaled = points[:, None] ** powers / points[:, None] ** q
    found, *_ = np.linalg.lstsq(scaled, value / points**q, rcond=1e-15)
    return q, float(found[1])


def _is_odd(act: Activation, a_0: float) -> bool:
    """Whether sigma - a_0 is odd."""
    if act.parity == "odd":
        return True
    above, below = act.value(_PROBES), act.value(-_PROBES)
    size = np.abs(above) + np.abs(below) + abs(a_0)
    return bool((np.abs(above + below - 2 * a_0) <= 1e-12 * size).all())


def _kappa(act: Activation, shape: _Shape, a_0: float, alpha: float, h: float) -> float:
    """a_q E[g^q (sigma(g) - a_0)] / (alpha h) of (24); the constant contributes at even q only."""
    if shape.letter == "A":
        return 0.0
    if shape.letter == "outside" or shape.q is None:
        return math.nan
    moment = _mean(z**shape.q * factor(act))
    if shape.q % 2 == 0:
        moment -= a_0 * math.prod(range(1, shape.q, 2))
    return shape.a_q * moment / (alpha * h) if h else math.nan


def _mean(f: Factor) -> float:
    return float(expectation([f], [[1.0]], tolerance=_TOLERANCE))


def coupling(activation: Any, depth: int, width: int = 64, beta: float = 1.0, time: str = "matrix") -> float:
    """K of dX_l/ds = K prod_{m != l} X_m (7), per unit of matrix time s or of reduced time t; of any sign.

    >>> round(coupling("tanh", depth=4, width=64), 9)
    0.075713189
    """
    layers, neurons = whole_number("depth", depth, 2), whole_number("width", width)
    strength = check_beta(beta) * classify(activation).signal(layers) / math.sqrt(neurons)
    return strength * matrix_times(neurons, time)


def escape_coupling(found: SaddleClass, depth: int, width: int, beta: float) -> float:
    """K per matrix time, refused unless it is positive: only then do positive scales grow."""
    rate = check_beta(beta) * found.signal(depth) / math.sqrt(width)
    if not rate > 0:
        raise InputError(
            f"there is no escape along positive scales: K = beta h alpha^(L-1) / sqrt(N) = {rate:.6g} is not "
            f"positive for {found.activation.label} (h = {found.h:.6g}, alpha = {found.alpha:.6g}, L = {depth}, "
            f"beta = {beta:g}); choose an activation, depth or beta with K > 0."
        )
    return rate
