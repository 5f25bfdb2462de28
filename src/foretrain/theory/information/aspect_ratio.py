"""Depth over width at which the truncated information peaks (A.71)-(A.74), and what that is worth.

In deep critical networks X = nu r + c (nu r)^2 + ..., r = L/n. The printed (A.71) has c = 0 inside a series of third
order; with the true c its coefficient 20 + 3 m_1 + 3 m_2 becomes 20 - 12 c + 3 m_1 + 3 m_2. Scale-invariant networks
multiply the metric by independent factors, X = e^(nu r) - 1 and c = 1/2. At K* = 0 the metric, in units of its mean
at infinite width and as n and L grow, follows dg/ds = g - g^2 with noise of variance 2 r per unit of s = log l; the
moments of that process give X = (2/3) r + (2/15) r^2, hence c = 3/10. Skip connections rescale r in either class.

The maximum belongs to the truncated series. The exact information grows with r without one; at r* it is about twice
the printed value in scale-invariant networks. So r* is the scale nu r (m_1 + m_2) ~ 1 at which perturbation theory
ends, and 3/2 r* the depth at which the series is negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import activation as find_activation
from foretrain.support.answers import Result
from foretrain.support.errors import InputError
from foretrain.theory.criticality import criticality
from foretrain.theory.information.laws import log_normal_law
from foretrain.theory.information.mixtures import mixture_information
from foretrain.theory.information.series import information_series, neurons
from foretrain.theory.residual_networks import fluctuation_rate

Array = NDArray[np.float64]

_PRINTED = 20.0
_COMPLETE = {"scale-invariant": 14.0, "K*=0": 16.4}


def turning_point(m_1: float, m_2: float, coefficient: float = _PRINTED) -> float:
    """X, or nu r, of the maximum: 4 / (20 + 3 m_1 + 3 m_2), or with another coefficient for the 20 (A.72)."""
    return 4 / (coefficient + 3 * neurons(m_1) + 3 * neurons(m_2))


def next_coefficient(universality_class: str) -> float:
    """What stands for the 20 of (A.71) once the second order of X in nu r is there: 14 scale-invariant, 16.4 K*=0."""
    if universality_class not in _COMPLETE:
        raise InputError(
            f"the second order of X is not known for the class {universality_class!r}, only for "
            f"{' and '.join(_COMPLETE)}."
        )
    return _COMPLETE[universality_class]


def printed_information(m_1: float, m_2: float, spread: ArrayLike) -> Array:
    """(A.71) as printed: the series in X at X = nu r, the ``spread``; negative beyond 3/2 r*, where it is invalid."""
    return information_series(m_1, m_2, spread)


def complete_information(m_1: float, m_2: float, spread: ArrayLike, universality_class: str) -> Array:
    """The same with all terms of third order in nu r."""
    y = np.asarray(spread, dtype=np.float64)
    missing = (_PRINTED - next_coefficient(universality_class)) / 48
    return np.asarray(printed_information(m_1, m_2, y) + m_1 * m_2 * missing * y**3)[()]


@dataclass(frozen=True, repr=False)
class AspectRatio(Result):
    """Depth over width r at which the truncated information of m_1 and m_2 output neurons peaks.

    ``printed`` is (A.72), (B.36) with the printed nu; ``complete`` has the whole nu and all terms of third order.
    ``information`` is the printed series at its maximum (A.74), ``exact_information`` the true one at the same nu r,
    known for scale-invariant networks (None otherwise). Beyond ``breakdown``, 3/2 r*, the series is negative.
    """

    activation: str
    universality_class: str
    gamma: float
    m_1: float
    m_2: float
    nu_printed: float
    nu: float
    printed: float
    complete: float
    breakdown: float
    information: float
    exact_information: float | None


def aspect_ratio(activation: Any, m_1: float, m_2: float, gamma: float = 0.0) -> AspectRatio:
    """r*, printed and complete, of critical networks, for two groups of outputs (halves in (A.73)).

    Half-stable activations and those without criticality are refused: there nu depends on the inputs or is not known.

    Examples
    --------
    >>> found = aspect_ratio("relu", 5, 5)
    >>> round(found.printed, 10), round(found.complete, 10)
    (0.016, 0.0181818182)
    """
    act = find_activation(activation)
    printed, nu = (fluctuation_rate(act, gamma, method) for method in ("book", "complete"))
    kind = criticality(act).universality_class
    turn = turning_point(m_1, m_2)
    exact = mixture_information(log_normal_law(turn), m_1, m_2).value if kind == "scale-invariant" else None
    return AspectRatio(
        act.label,
        kind,
        float(gamma),
        neurons(m_1),
        neurons(m_2),
        printed,
        nu,
        turn / printed,
        turning_point(m_1, m_2, next_coefficient(kind)) / nu,
        1.5 * turn / printed,
        float(printed_information(m_1, m_2, turn)),
        exact,
    )
