"""Scale-invariant activations: closed forms for every depth, critical or not (5.60)-(5.65), (5.113)-(5.120)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.support.errors import NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics.laws import Law, LawSet, Uniform
from foretrain.theory.two_inputs.nearby import Nearby

Array = NDArray[np.float64]

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
    K = _kernel(growth, common.C_b, start.K00, layer)
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
        laws["fluctuation"] = _fluctuation(c, growth, common.C_b, V, K, layer)
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


def _kernel(growth: float, C_b: float, first: float, layer: Array) -> Array:
    if growth == 1:
        return first + C_b * (layer - 1)
    settled = C_b / (1 - growth)
    return np.asarray((first - settled) * growth ** (layer - 1) + settled)


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


def _fluctuation(c: float, growth: float, C_b: float, V: Array, K: Array, layer: Array) -> Law:
    if growth == 1 and C_b == 0:
        return Law(c * (layer - 1), "c (l - 1) / n", "(5.120)", "none")
    if growth == 1:
        return Law(c * layer / 3, "c l / (3 n)", "derived", "O(1) / n")
    return Law(V / K**2, "V / (n K^2)", "derived", "none")


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
