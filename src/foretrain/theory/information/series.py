"""Entropy and information of m neurons of a layer for one input, as series in X = V / (n G^2) (A.52)-(A.75).

G and V are the exact mean and variance of the metric: at next order a V / (n K^2) of leading order is not enough.
Every formula needs m X << 1, and the information turns over and becomes negative where that fails, which no true
information does.

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

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import activation as find_activation
from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics import exact_fluctuation
from foretrain.theory.criticality import criticality
from foretrain.theory.flow import flow
from foretrain.theory.information.entropies import neurons
from foretrain.theory.information.mixtures import log_normal_law, mixture_information
from foretrain.theory.residual_networks import fluctuation_rate

if TYPE_CHECKING:
    import xarray as xr


# Of the entries of V as integrals give them, and of the sum of their squares.
_ACCURACY, _DOUBTFUL = 1e-10, 0.01
_ALIKE = (
    "K is singular to the accuracy of its integrals, since inputs repeat or nearly depend on each other: leave out "
    "those that do."
)


def entropy_series(m: float, X: ArrayLike, G: float = 1.0, order: int = 3) -> Array:
    """(m/2) log 2 pi e G - (m^2 + 2m)/16 X^2 + (m^3 + 10 m^2 + 16 m)/48 X^3, up to X^order (A.52), (A.66).

    Examples
    --------
    >>> entropy_series(2, 0.05).round(10)
    np.float64(2.8368353997)
    """
    m, size = neurons(m), _variance(X)
    if not (math.isfinite(G) and G > 0):
        raise InputError(f"G is {G!r}: give the mean of the metric, a positive number.")
    next_order = (m**3 + 10 * m**2 + 16 * m) / 48 * _cubic(order)
    base = m / 2 * math.log(2 * math.pi * math.e * G)
    return np.asarray(base - (m**2 + 2 * m) / 16 * size**2 + next_order * size**3)[()]


def information_series(m_1: float, m_2: float, X: ArrayLike, order: int = 3) -> Array:
    """m_1 m_2 / 8 X^2 - m_1 m_2 (20 + 3 m_1 + 3 m_2) / 48 X^3, up to X^order (A.53), (A.67)."""
    m_1, m_2, size = neurons(m_1), neurons(m_2), _variance(X)
    next_order = m_1 * m_2 * (20 + 3 * m_1 + 3 * m_2) / 48 * _cubic(order)
    return np.asarray(m_1 * m_2 / 8 * size**2 - next_order * size**3)[()]


def tripartite_series(m_1: float, m_2: float, m_3: float, X: ArrayLike) -> Array:
    """m_1 m_2 m_3 / 8 X^3 > 0: neurons of a layer are redundant, never synergistic, at leading order (A.75)."""
    return np.asarray(neurons(m_1) * neurons(m_2) * neurons(m_3) / 8 * _variance(X) ** 3)[()]


def leading_information(K: ArrayLike, V: ArrayLike, n: float, m_1: float = 1, m_2: float = 1) -> float:
    """m_1 m_2 / (8 n^2) V_(ab)(cd) V^(ab)(cd), indices raised with K^-1: several inputs, leading order (derived).

    One input gives (A.53).
    """
    kernel = np.atleast_2d(real_array("K", K))
    size = len(kernel)
    if kernel.shape != (size, size) or np.size(V) != size**4:
        raise InputError(f"K has shape {kernel.shape} and V {np.shape(V)}: give (N, N) and (N, N, N, N).")
    vertex = real_array("V", V).reshape((size,) * 4)
    values, vectors = np.linalg.eigh(kernel)
    if not values[0] > 0:
        raise InputError(_ALIKE)
    root = vectors / np.sqrt(values)
    whitened = np.einsum("abcd,ai,bj,ck,dl->ijkl", vertex, root, root, root, root, optimize=True)
    if _ACCURACY * np.abs(vertex).max() / values[0] ** 2 > _DOUBTFUL * np.linalg.norm(whitened):
        raise InputError(_ALIKE)
    return neurons(m_1) * neurons(m_2) / 8 * float((whitened**2).sum()) / neurons(n) ** 2


def _cubic(order: int) -> float:
    if order not in (2, 3):
        raise InputError(f"order is {order!r}: 2 for the leading term in X, 3 for the next one as well.")
    return float(order == 3)


def _variance(X: ArrayLike) -> Array:
    size = real_array("X", X)
    if (size < 0).any():
        raise InputError("X = V / (n G^2) is a relative variance: give numbers from 0 on.")
    return size


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


def relative_variance(mlp: MLP, x: ArrayLike) -> xr.DataArray:
    """X of one input by layer: exact in width for scale-invariant networks without biases, else V / (n K^2).

    The attribute ``order`` says which: "exact" or "leading".

    Examples
    --------
    >>> relative_variance(MLP("relu", depth=3, width=10, C_W=2.0), [1.0]).values
    array([0.  , 0.5 , 1.25])
    """
    found = flow(mlp, one_input(x)[None], ["K", "V"])
    K, V = (found[name].squeeze([d for d in found[name].dims if d != "layer"]) for name in ("K", "V"))
    if not (K.values > 0).all():
        raise InputError("the input gives no signal at some layer, so that there is no entropy to speak of.")
    if mlp.activation.slopes is not None and not any(mlp.C_b) and not mlp.is_residual:
        values, order = exact_fluctuation(mlp), "exact"
    else:
        values, order = V.values / (np.array([1, *mlp.hidden_widths]) * K.values**2), "leading"
    return (
        K.copy(data=values)
        .rename("relative_variance")
        .assign_attrs(meaning="variance of the metric over its mean squared", order=order)
    )


def layer_information(mlp: MLP, x: ArrayLike, m_1: float = 1, m_2: float = 1) -> xr.Dataset:
    """Entropy of m_1 + m_2 neurons and information between both groups at every layer, by the series (A.66), (A.67).

    Both have the dimension ``order``: "leading" (X^2) and "next" (X^3 as well). ``standing`` says what the
    information is worth: "rising", "past its maximum" from the turning point X = 4 / (20 + 3 m_1 + 3 m_2) on, or
    "negative", which no information is: there :func:`mixture_information` is the one to ask. The entropy takes the
    mean ``metric`` K + G1/n, of order 1/n, or K itself with skip connections, where G1 is not known.
    """
    X = relative_variance(mlp, x)
    # The mean of the metric by layer, as far as it is known.
    found = flow(mlp, one_input(x)[None], ["K"] if mlp.is_residual else ["K", "G1"])
    metric = found["K"].values.ravel()
    if not mlp.is_residual:
        metric = metric + found["G1"].values.ravel() / [1, *mlp.hidden_widths]
    turn, m = turning_point(m_1, m_2), neurons(m_1) + neurons(m_2)
    parts = np.searchsorted([turn, 1.5 * turn], X.values, side="right")
    orders = {"leading": 2, "next": 3}
    # Far beyond the expansion K + G1/n may be negative, and there is no entropy.
    with np.errstate(invalid="ignore"):
        size = m / 2 * np.log(metric)
    entropy = [size + entropy_series(m, X.values, order=k) for k in orders.values()]
    information = [information_series(m_1, m_2, X.values, k) for k in orders.values()]
    return labelled(
        {
            "relative_variance": X,
            "metric": ("layer", metric),
            "entropy": ("order layer", entropy),
            "information": ("order layer", information),
            "standing": ("layer", np.array(["rising", "past its maximum", "negative"])[parts]),
        },
        {"m_1": float(m_1), "m_2": float(m_2), "turning_point": turn, "network": repr(mlp)},
        order=list(orders),
        layer=X["layer"],
    )


def network_information(
    mlp: MLP, X: ArrayLike, m_1: float = 1, m_2: float = 1, layer: int | None = None
) -> float:
    """Information between two groups of neurons of a layer on several inputs at once, leading order 1/n^2."""
    number = mlp.check_layer(layer)
    if number == 1:
        return 0.0
    found = flow(mlp, X, ["K", "V"])
    K, V = (found[name].sel(layer=number).values for name in ("K", "V"))
    return leading_information(K, V, mlp.hidden_widths[number - 2], m_1, m_2)
