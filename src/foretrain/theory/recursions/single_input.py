"""One input, to any depth: K, V, G1 (5.108)-(5.110), the tangent kernel (9.6)-(9.21), P to U (11.55), (∞.14)-(∞.18).

The functions of the kernel come from a table that grows along the flow, so that a layer costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.gaussian import Factor, factor, z
from foretrain.theory.architecture import MLP, Layer
from foretrain.theory.kernel_functions import (
    KernelValues,
    Tabulated,
    TangentValues,
    shared_functions,
    shared_tangent_functions,
)
from foretrain.theory.recursions.expectations import width_ratio
from foretrain.theory.recursions.kinks import Kinks

Array = NDArray[np.float64]


def single_input_flow(
    mlp: MLP, first: float, C_b_1: ArrayLike = 0.0, C_W_1: ArrayLike = 0.0
) -> dict[str, Array]:
    """K, V and G1 at layers 1..L, starting from the kernel of layer 1.

    G1' = (n_l / n_{l-1}) [chi_parallel G1 + C_W g'' V / 2] + C_b_1 + C_W_1 g, with the order-1/n parts of C_b and C_W
    at the layer reached (5.140), one number or one per layer; they do not touch layer 1.
    """
    b_1, W_1 = (np.broadcast_to(np.asarray(c, dtype=np.float64), mlp.depth) for c in (C_b_1, C_W_1))
    functions = shared_functions(mlp.activation)
    K, V, G1 = (np.zeros(mlp.depth) for _ in range(3))
    K[0] = first
    with np.errstate(over="ignore", invalid="ignore"):  # a kernel that is not finite is refused by name
        for index, layer in enumerate(mlp.layers[1:], start=1):
            square, slope, bend, _, _, fourth = functions.fast(K[index - 1])
            ratio = width_ratio(mlp, index)
            K[index] = layer.C_b + layer.C_W * square
            V[index] = next_vertex(layer, ratio, slope, fourth - square**2, V[index - 1])
            G1[index] = ratio * (layer.C_W * slope * G1[index - 1] + 0.5 * layer.C_W * bend * V[index - 1])
            G1[index] += b_1[index] + W_1[index] * square
    return {"K": K, "V": V, "G1": G1}


ValueT = TypeVar("ValueT", float, Array)


def next_vertex(layer: Layer, ratio: float, slope: ValueT, variance: ValueT, V: ValueT) -> ValueT:
    """V' = (n_l / n_{l-1}) chi_parallel^2 V + C_W^2 Var(s^2) with chi_parallel = C_W g' (5.109)."""
    return ratio * (layer.C_W * slope) ** 2 * V + layer.C_W**2 * variance


class Tangent(NamedTuple):
    """Everything about the tangent kernel of one input at one layer."""

    Theta: float
    D: float
    F: float
    A: float
    B: float
    H1: float


def tangent_flow(mlp: MLP, first: float, metric: dict[str, Array], C_W_1: Array) -> dict[str, Array]:
    """Theta, D, F, A, B and H1 at layers 1..L, from Theta of layer 1 and K, V, G1 of all layers; C_W_1 as for G1."""
    K, V, G1 = metric["K"], metric["V"], metric["G1"]
    values, tangents = shared_functions(mlp.activation), shared_tangent_functions(mlp.activation)
    kept = np.zeros((mlp.depth, len(Tangent._fields)))
    now = Tangent(first, 0.0, 0.0, 0.0, 0.0, 0.0)
    kept[0] = now
    with np.errstate(over="ignore", invalid="ignore"):  # a kernel that is not finite is refused by name
        for index, layer in enumerate(mlp.layers[1:], start=1):
            at = KernelValues(*values.fast(K[index - 1]))
            more = TangentValues(*tangents.fast(K[index - 1]))
            ratio = width_ratio(mlp, index)
            # Every tensor of the old layer counts n_{l-1}: with the ratio, it counts n_l.
            old = now._replace(**{name: ratio * getattr(now, name) for name in "DFAB"}, H1=ratio * now.H1)
            now = _next(layer, at, more, old, ratio * V[index - 1], ratio * G1[index - 1])
            now = now._replace(H1=now.H1 + C_W_1[index] * at.slope_square * old.Theta)
            kept[index] = now
    return {name: kept[:, column] for column, name in enumerate(Tangent._fields)}


def _next(layer: Layer, at: KernelValues, more: TangentValues, old: Tangent, V: float, G1: float) -> Tangent:
    """One layer on, with Omega = lambda_W s^2 + C_W Theta s'^2 (8.74) in the place of the NTK it will make."""
    C, rate, weight = layer.C_W, layer.lambda_W, layer.C_W * old.Theta
    growth = C * at.slope_square
    response = rate * at.square_slope + weight * at.slope_square_slope  # dOmega/dK
    slopes = more.mixed_fourth - at.square * at.slope_square  # Cov(s^2, s'^2)
    mixed = rate * (at.fourth - at.square**2) + weight * slopes  # Cov(s^2, Omega)
    variance = rate * mixed + weight * (rate * slopes + weight * (more.slope_fourth - at.slope_square**2))
    shift = rate * (at.square_slope * G1 + 0.5 * at.square_bend * V)
    shift += weight * (at.slope_square_slope * G1 + 0.5 * more.slope_square_bend * V)
    return Tangent(
        Theta=float(layer.lambda_b + rate * at.square + growth * old.Theta),  # (9.6)
        D=float(C * (mixed + at.square_slope * (response * V + growth * old.D))),  # (9.13)
        F=float(C**2 * (more.mixed_fourth * old.Theta + at.square_slope**2 * old.F)),  # (9.14)
        A=float(variance + response**2 * V + 2 * response * growth * old.D + growth**2 * old.A),  # (9.16)
        B=float(C**2 * more.slope_fourth * old.Theta**2 + growth**2 * old.B),  # (9.15)
        H1=float(shift + growth * old.H1 + C * at.slope_square_slope * (old.D + 2 * old.F)),
    )


class BendValues(NamedTuple):
    """What P and Q need, at some kernel values."""

    bend: Array  # <s'' s>
    bend_response: Array  # <d(s'' s')/dz>
    bend_fourth: Array  # <s'' s' s' s>


class SecondBendValues(NamedTuple):
    """What R, S, T and U need besides."""

    bend_square: Array  # <s'' s''>
    third_fourth: Array  # <s''' s'^3>
    bend_square_fourth: Array  # <s''^2 s'^2>


class BendFunctions(Tabulated):
    """The functions of :class:`BendValues`, tabulated; the activation must be continuous."""

    def __init__(self, activation: Activation, kinks: Kinks) -> None:
        super().__init__(activation)
        self._kinks = kinks

    def _rule(self) -> Callable[[Array], list[Array]]:
        """Scale-invariant activations have none of these (11.67)-(11.70)."""
        if self.activation.slopes is not None:
            return lambda K: [np.zeros_like(K) for _ in BendValues._fields]
        return self._smooth if self.activation.is_smooth else self._kinked

    def _smooth(self, K: Array) -> list[Array]:
        s = [factor(self.activation, order) for order in range(4)]
        return [
            self._mean([(1.0, s[2] * s[0])], K),
            self._mean([(1.0, s[3] * s[1]), (1.0, s[2] * s[2])], K),
            self._mean([(1.0, s[2] * s[1] * s[1] * s[0])], K),
        ]

    def _kinked(self, K: Array) -> list[Array]:
        """<d f/dz> = <z f> / K, whose limit stands in at K = 0."""
        s, slope, bend = (factor(self.activation, order) for order in range(3))
        if self._kinks == "almost_everywhere":
            bend = bend.pointwise()
        safe = np.maximum(K, 1e-30)
        return [
            self._mean([(1.0, bend * s)], safe),
            self._mean([(1.0, z * bend * slope)], safe) / safe,
            self._mean([(1.0, bend * slope**2 * s)], safe),
        ]


class SecondBendFunctions(Tabulated):
    """The functions of :class:`SecondBendValues`, tabulated; the slope of the activation must be continuous."""

    def _rule(self) -> Callable[[Array], list[Array]]:
        """The only scale-invariant activations with a continuous slope are linear."""
        if self.activation.slopes is not None:
            return lambda K: [np.zeros_like(K) for _ in SecondBendValues._fields]
        return self._any

    def _any(self, K: Array) -> list[Array]:
        slope, bend, third = (factor(self.activation, order) for order in (1, 2, 3))
        products: tuple[Factor, ...] = (bend * bend, third * slope**3, bend * bend * slope * slope)
        safe = K if self.activation.is_smooth else np.maximum(K, 1e-30)
        return [self._mean([(1.0, product)], safe) for product in products]


_bend_functions = lru_cache(maxsize=16)(BendFunctions)
_second_bend_functions = lru_cache(maxsize=16)(SecondBendFunctions)


def differential_flow(mlp: MLP, known: dict[str, Array], kinks: Kinks, *, second: bool) -> dict[str, Array]:
    """P and Q at layers 1..L, and with ``second`` R, S, T and U, from K, Theta, F and B of all layers."""
    act = mlp.activation
    functions, bends = shared_functions(act), _bend_functions(act, kinks)
    found = {name: np.zeros(mlp.depth) for name in ("PQRSTU" if second else "PQ")}
    with np.errstate(over="ignore", invalid="ignore"):  # a kernel that is not finite is refused by name
        for index, layer in enumerate(mlp.layers[1:], start=1):
            K, Theta, ratio = known["K"][index - 1], known["Theta"][index - 1], width_ratio(mlp, index)
            at, bent = KernelValues(*functions.fast(K)), BendValues(*bends.fast(K))
            # Tensors of the old layer, counted in n_l.
            old = {name: ratio * known[name][index - 1] for name in "FB"}
            old |= {name: ratio * values[index - 1] for name, values in found.items()}
            C = layer.C_W
            growth = C**2 * at.slope_square * at.square_slope  # chi_perp chi_parallel
            source = C**2 * bent.bend_fourth * Theta**2
            found["P"][index] = source + growth * old["P"] + C**2 * at.slope_square * bent.bend * old["B"]
            through = C**2 * bent.bend_response * at.square_slope * Theta * old["F"]
            found["Q"][index] = source + growth * old["Q"] + through
            if C:
                found["Q"][index] += layer.lambda_W / C * known["F"][index]
            if second:
                tangent = TangentValues(*shared_tangent_functions(act).fast(K))
                further = SecondBendValues(*_second_bend_functions(act).fast(K))
                for name, value in _next_second(layer, at, tangent, bent, further, Theta, old).items():
                    found[name][index] = value
    return found


def _next_second(
    layer: Layer,
    at: KernelValues,
    tangent: TangentValues,
    bent: BendValues,
    second: SecondBendValues,
    Theta: float,
    old: dict[str, float],
) -> dict[str, float]:
    """R', S', T' and U': M_0 and M_1 are the tilts by z_0 and z_1 of the rules of several inputs."""
    C, rate, weight = layer.C_W, layer.lambda_W, layer.C_W * Theta
    growth = C * at.slope_square
    M_0 = rate * bent.bend + weight * (bent.bend_response - second.bend_square)
    M_1 = rate * at.slope_square + weight * second.bend_square
    square = weight**2 * second.bend_square_fourth * Theta
    R = weight * (rate * bent.bend_fourth * Theta + weight * second.third_fourth * Theta)
    R += growth * (M_0 * (old["B"] + old["P"]) + M_1 * old["P"])
    S = weight * rate * tangent.slope_fourth * Theta + square + growth * M_1 * old["B"]
    T = rate**2 * tangent.mixed_fourth * Theta + 2 * weight * rate * bent.bend_fourth * Theta + square
    T += (M_0 + M_1) ** 2 * old["F"] + 2 * growth * (M_0 + M_1) * old["Q"]
    added = {"R": R, "S": S, "T": T, "U": square}
    return {name: float(growth**2 * old[name] + value) for name, value in added.items()}
