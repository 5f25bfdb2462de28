"""Scale-invariant activations: closed forms for every depth, critical or not (5.60)-(5.65), (5.113)-(5.120).

Of deep linear networks also the tangent kernel of one input, exact in the width, and closed forms of its
differentials. With s = a z, q = |z|^2 / n, t = tr H / n, u = tr H^2 / n and s = z^T H z / n of a hidden layer, a
Gaussian average over the next weights closes on five means. c = lambda_b + lambda_W a^2 q is what the next layer's
own parameters add to its tangent kernel, and C = a^2 C_W. A deep linear network is linear in its input but not in its
parameters, so that Q, S and T do not vanish: it learns representations, while a network of one layer does not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.support.answers import labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics.laws import Law, LawSet, Uniform
from foretrain.theory.tensors import MEANINGS
from foretrain.theory.two_inputs.nearby import Nearby

if TYPE_CHECKING:
    import xarray as xr


_CLOSE = 1e-12


def vertex_constant(act: Activation) -> float:
    """3 A_4 / A_2^2 - 1: 2 for linear activations, 5 for ReLU (5.116)."""
    minus, plus = _slopes(act)
    return 6 * (minus**4 + plus**4) / (minus**2 + plus**2) ** 2 - 1


def scale_invariant_laws(act: Activation, common: Uniform, start: Nearby, layer: Array) -> LawSet:
    """K, V and the pair components; with skip connections K and the pair components only."""
    minus, plus = _slopes(act)
    growth = common.C_W * (minus**2 + plus**2) / 2 + common.gamma**2
    if abs(growth - 1) < _CLOSE:
        growth = 1.0
    K = start.K00 + common.C_b * (layer - 1)
    if growth != 1:
        settled = common.C_b / (1 - growth)
        K = (start.K00 - settled) * growth ** (layer - 1) + settled
    pair = "holds while l << 3 / (rho psi), see foretrain.theory.angles" if minus != plus else "none"
    laws = {
        "K": Law(K, "K1 chi^(l-1) + C_b (1 - chi^(l-1)) / (1 - chi)", "(5.60)-(5.65), summed", "none"),
        "K1": Law(start.K1 * growth ** (layer - 1), "K1 chi^(l-1)", "(5.60)-(5.65)", "none"),
        "K2": Law(start.K2 * growth ** (layer - 1), "K2 chi^(l-1)", "(5.60)-(5.65)", pair),
    }
    if not common.gamma:
        c = vertex_constant(act)
        V = c * _vertex_sum(growth, common.C_b, start.K00, layer)
        laws["V"] = Law(V, "c sum_m chi^(2(l-m)) K_m^2, c = 3 A_4 / A_2^2 - 1", "(5.116), summed", "none")
        laws["G1"] = Law(np.zeros_like(layer), "0", "(5.117)", "none")
        fluctuation = Law(V / K**2, "V / (n K^2)", "derived", "none")
        if growth == 1 and common.C_b == 0:
            fluctuation = Law(c * (layer - 1), "c (l - 1) / n", "(5.120)", "none")
        elif growth == 1:
            fluctuation = Law(c * layer / 3, "c l / (3 n)", "derived", "O(1) / n")
        laws["fluctuation"] = fluctuation
    kind, statement = _statement(growth, common.C_b)
    return LawSet(kind, statement, laws, {"chi": growth, "c": vertex_constant(act)})


def exact_fluctuation(mlp: MLP) -> Array:
    """Var[G^(l)] / K^2 at layers 1..L, exact at any width, for one input: prod_{k<l} (1 + c / n_k) - 1.

    For scale-invariant activations without biases or skip connections; the mean of the metric is K exactly.

    Examples
    --------
    >>> exact_fluctuation(MLP("relu", depth=3, width=10, C_W=2.0))
    array([0.  , 0.5 , 1.25])
    """
    c = vertex_constant(mlp.activation)
    if any(mlp.C_b) or mlp.is_residual:
        raise NotSupportedError(
            "the exact product holds without biases and skip connections: set `C_b=0`, `gamma=None`."
        )
    steps = np.log1p(c / np.array([math.inf, *mlp.hidden_widths]))
    return np.asarray(np.expm1(np.cumsum(steps)))


def linear_vertex(K: ArrayLike, widths: ArrayLike) -> Array:
    """V_(12)(34) = n_{l-1} sum_{k<l} (1/n_k) (K_13 K_24 + K_14 K_23) after hidden layers of widths n_1..n_{l-1}.

    For linear activations at criticality with C_b = 0, from (4.119); equal widths give (l - 1) times the bracket.
    """
    kernel, n = np.asarray(K, dtype=float), np.asarray(widths, dtype=float)
    factor = float(n[-1] * np.sum(1 / n)) if n.size else 0.0
    crossed = np.einsum("ac,bd->abcd", kernel, kernel) + np.einsum("ad,bc->abcd", kernel, kernel)
    return np.asarray(factor * crossed)


def _slopes(act: Activation) -> tuple[float, float]:
    if act.slopes is None or not any(act.slopes):
        raise NotSupportedError(
            f"{act.label} is not scale-invariant: this law is for linear, ReLU and their kin."
        )
    return act.slopes


def _vertex_sum(growth: float, C_b: float, first: float, layer: Array) -> Array:
    """sum_{m<l} chi^(2(l-m)) K_m^2 with K_m = alpha chi^(m-1) + beta, or first + C_b (m-1) where chi = 1."""
    t = layer - 1
    if growth == 1:
        squares = t * (t - 1) * (2 * t - 1) / 6
        return np.asarray(t * first**2 + C_b * first * t * (t - 1) + C_b**2 * squares)
    beta = C_b / (1 - growth)
    alpha = first - beta
    power = growth**t
    mixed = growth * power * (1 - power) / (1 - growth)
    plain = growth**2 * (1 - power**2) / (1 - growth**2)
    return np.asarray(alpha**2 * t * power**2 + 2 * alpha * beta * mixed + beta**2 * plain)


def _statement(growth: float, C_b: float) -> tuple[str, str]:
    kind = "scale-invariant"
    if growth == 1:
        if C_b == 0:
            return kind, "critical: the kernel keeps its first value, V grows as l"
        return "semi-critical", "chi = 1 with biases: the kernel grows as C_b l, V as l^3"
    depth = abs(1 / math.log(growth)) if growth > 0 else 0.0
    if growth > 1:
        return f"{kind}, off-critical", f"the kernel grows by e every {depth:.4g} layers"
    end = C_b / (1 - growth)
    return f"{kind}, off-critical", f"the kernel tends to {end:.6g}, by a factor 1/e every {depth:.4g} layers"


_NAMES = ("K", "V", "Theta", "D", "F", "A", "B")


class _Means(NamedTuple):
    """Means over networks of one hidden layer."""

    q: float
    q_q: float
    t: float
    q_t: float
    t_t: float
    s: float
    u: float


def exact_linear_ntk(mlp: MLP, x: ArrayLike) -> xr.Dataset:
    """K, V, Theta, D, F, A, B of a linear network at every layer, exact at any widths, for one input.

    They are defined by (4.117), (8.67) and (8.82), without the 1/n_{l-1}; K and Theta are means without corrections.
    Needs C_b = 0 and no skip connections.

    Examples
    --------
    >>> mlp = MLP("linear", depth=4, width=8, lambda_b=0.4, lambda_W=1.3)
    >>> round(exact_linear_ntk(mlp, [0.7**0.5])["B"].sel(layer=4).item(), 8)
    26.78720781
    """
    vector = one_input(x)
    slopes = mlp.activation.slopes
    if slopes is None or slopes[0] != slopes[1] or any(mlp.C_b) or mlp.is_residual:
        raise NotSupportedError(
            "the exact statistics are those of linear networks with C_b = 0 and no skip connections: for others use "
            "foretrain.flow, which is leading order in 1/n."
        )
    signal = float(np.mean(mlp.check_inputs(vector[None])[0] ** 2))
    rows = _layers(mlp, slopes[0] ** 2, signal)
    return labelled(
        {
            name: ("layer", np.array([row[place] for row in rows]), MEANINGS[name])
            for place, name in enumerate(_NAMES)
        },
        {"network": repr(mlp)},
        counted=("layer",),
    )


def _layers(mlp: MLP, square: float, signal: float) -> list[tuple[float, ...]]:
    """The seven numbers of every layer, in the order of the names; fluctuations vanish in the first."""
    first = mlp.layers[0]
    K, Theta = first.C_W * signal, first.lambda_b + first.lambda_W * signal
    rows: list[tuple[float, ...]] = [(K, 0.0, Theta, 0.0, 0.0, 0.0, 0.0)]
    if mlp.depth == 1:
        return rows
    n = first.width
    means = _Means(K, K**2 * (1 + 2 / n), Theta, K * Theta, Theta**2, K * Theta, Theta**2)
    for layer in mlp.layers[1:]:
        q, q_q, t, q_t, t_t, s, u = means
        # Means of c = lambda_b + lambda_W a^2 q with itself and the rest.
        b, w, C = layer.lambda_b, layer.lambda_W * square, square * layer.C_W
        c, q_c, c_t = b + w * q, b * q + w * q_q, b * t + w * q_t
        c_c = b**2 + 2 * b * w * q + w**2 * q_q
        # The tensors of this layer, which follows a hidden layer of width n.
        Theta = c + C * t
        V = n * C**2 * (q_q - q**2)
        D = n * C * (q_c + C * q_t - q * Theta)
        A = n * (c_c + 2 * C * c_t + C**2 * t_t - Theta**2)
        rows.append((C * q, V, Theta, D, C**2 * s, A, C**2 * u))
        # The means over networks of this layer, if it is hidden.
        both, pair, follow = c_c + 2 * C * c_t, 2 / (n * layer.width), (layer.width + 1) / n
        means = _Means(
            C * q,
            C**2 * (1 + 2 / layer.width) * q_q,
            Theta,
            C * q_c + C**2 * (q_t + pair * s),
            both + C**2 * (t_t + pair * u),
            C * q_c + C**2 * (q_t + follow * s),
            both + C**2 * (t_t + follow * u),
        )
        n = layer.width
    return rows


def linear_dntk(K: ArrayLike, layer: int, lambda_b: float = 1.0, lambda_W: float = 1.0) -> dict[str, Array]:
    """F, B, P, Q, R, S, T, U (N, N, N, N) of a critical linear network at a layer, in stored order.

    For s(z) = z with C_b = 0, C_W = 1, uniform learning rates and equal hidden widths: K (N, N) is then that of the
    data, x.x / n_0. With h = lambda_b + lambda_W K, so that Theta = l h, from (8.79), (8.89), (11.52),
    (∞.179), (∞.180): F_1324 = l(l-1)/2 K_12 h_34, B_1324 = l(l-1)(2l-1)/6 h_12 h_34,
    Q_0123 = l(l^2-1)/6 lambda_W K_13 h_02, S_1234 = l^2(l^2-1)/12 lambda_W h_13 h_24,
    T_1342 = l^2(l^2-1)/12 lambda_W^2 h_12 K_34, and P = R = U = 0.

    Examples
    --------
    >>> round(linear_dntk([[1.0]], 10, 0.1, 0.1)["T"].item(), 12)
    1.65
    """
    kernel = np.asarray(K, dtype=float)
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        raise InputError(f"K has shape {kernel.shape}: give a square matrix, one row for each input.")
    if layer < 1:
        raise InputError(f"layer is {layer}: give a positive whole number.")
    h = lambda_b + lambda_W * kernel
    crossed = np.einsum("ac,bd->abcd", h, h)
    quartic = layer**2 * (layer**2 - 1) / 12
    nothing = np.zeros_like(crossed)
    return {
        "F": layer * (layer - 1) / 2 * np.einsum("ac,bd->abcd", kernel, h),
        "B": layer * (layer - 1) * (2 * layer - 1) / 6 * crossed,
        "P": nothing,
        "Q": layer * (layer**2 - 1) / 6 * lambda_W * np.einsum("bd,ac->abcd", kernel, h),
        "R": nothing,
        "S": quartic * lambda_W * crossed,
        "T": quartic * lambda_W**2 * np.einsum("ad,bc->abcd", h, kernel),
        "U": nothing,
    }
