"""Two nearby inputs x_0 ± delta_x / 2: their kernel in the coincident limit, order by order in delta_x (section 5.2).

A symmetric 2 x 2 kernel is K_[0] (mean), K_[1] (half the difference of the variances) and K_[2] (a quarter of the
squared distance of the two signals) (5.16)-(5.20). Order by order K_[0] = K_00 + ddK_[0], K_[1] = dK_[1] and
K_[2] = ddK_[2], and each piece has its own recursion (5.46)-(5.48), made of functions of K_00 alone. Here K1, K2
and K0 stand for dK_[1], ddK_[2] and ddK_[0].

Smooth activations leave remainders of delta^4 in K_[0], delta^3 in K_[1] and delta^4 in K_[2]. Where the slope of the
activation jumps (ReLU) the distance also has a non-analytic part of order delta^3, (5.171) for any place of the kink
and any norms, which is included; it adds up with depth, and past the crossover depth only the finite-angle
recursion of :mod:`foretrain.theory.angles` holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.gaussian import Factor, expectation, z
from foretrain.gaussian.factors import as_factor
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track
from foretrain.theory.architecture import MLP, Layer
from foretrain.theory.kernel_functions import KernelFunctions, shared_functions

if TYPE_CHECKING:
    import xarray as xr


_MEANINGS = {
    "K00": "kernel at the midpoint x_0",
    "K1": "dK_[1]: half the difference of the variances of the two signals, to first order",
    "K2": "ddK_[2]: a quarter of the squared distance of the two signals, to second order",
    "K0": "ddK_[0]: second-order shift of the mean K_[0] from K_00",
    "chi_parallel": "factor of K1 in the step to the next layer (5.50)",
    "chi_perpendicular": "factor of K2 in the step to the next layer (5.51)",
    "h": "weight of K1^2 in the step of K2 to the next layer (5.52)",
    "distance": "root mean square distance of the two signals per neuron, sqrt(4 K2)",
    "angle": "angle between the two signals, cos = K_+- / sqrt(K_++ K_--)",
}


class Components(NamedTuple):
    """A symmetric 2 x 2 matrix in the basis gamma^[a] (5.16); each entry may be an array."""

    K0: Array
    K1: Array
    K2: Array


class Nearby(NamedTuple):
    """The kernel of two nearby inputs at one layer: K_00, dK_[1], ddK_[2] and ddK_[0]."""

    K00: float
    K1: float = 0.0
    K2: float = 0.0
    K0: float = 0.0


def components(K: ArrayLike) -> Components:
    """K_[0], K_[1], K_[2] of 2 x 2 kernels (..., 2, 2) (5.17)-(5.19).

    Examples
    --------
    >>> [float(part) for part in components([[3.0, 1.0], [1.0, 2.0]])]
    [1.75, 0.5, 0.75]
    """
    kernel = np.asarray(K, dtype=float)
    if kernel.shape[-2:] != (2, 2):
        raise InputError(f"the kernel has shape {kernel.shape}: give two inputs, shape (..., 2, 2).")
    plus, minus, cross = kernel[..., 0, 0], kernel[..., 1, 1], kernel[..., 0, 1]
    if (np.abs(cross - kernel[..., 1, 0]) > 1e-10 * np.maximum(np.abs(plus), np.abs(minus))).any():
        raise InputError("the kernel is not symmetric: give K_+- = K_-+.")
    return Components(
        (plus + minus + 2 * cross) / 4, (plus - minus) / 2, ((plus - cross) + (minus - cross)) / 4
    )


def from_components(K0: ArrayLike, K1: ArrayLike, K2: ArrayLike) -> Array:
    """The kernel (..., 2, 2) with these components: K_±± = K_[0] ± K_[1] + K_[2], K_+- = K_[0] - K_[2] (5.16)."""
    mean, difference, distance = np.broadcast_arrays(
        *(np.asarray(part, dtype=float) for part in (K0, K1, K2))
    )
    rows = [
        [mean + difference + distance, mean - distance],
        [mean - distance, mean - difference + distance],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def nearby_flow(mlp: MLP, x_0: ArrayLike, delta_x: ArrayLike) -> xr.Dataset:
    """Kernel components of the inputs x_0 ± delta_x / 2 at every layer (5.46)-(5.48), with distance and angle.

    Examples
    --------
    >>> import foretrain as ft
    >>> pair = nearby_flow(ft.MLP("tanh", depth=10, width=100), [1.0, 1.0], [0.1, -0.1])
    >>> [round(float(pair["distance"].sel(layer=layer)), 4) for layer in (1, 10)]
    [0.1, 0.0281]
    """
    return propagate(mlp, first_layer(mlp, x_0, delta_x))


def first_layer(mlp: MLP, x_0: ArrayLike, delta_x: ArrayLike) -> Nearby:
    """K_00 = C_b + C_W x_0^2 / n_0, K1 = C_W x_0·dx / n_0, K2 = C_W dx^2 / 4 n_0, and no shift of the mean."""
    midpoint, gap = (np.atleast_1d(real_array(*given)) for given in (("x_0", x_0), ("delta_x", delta_x)))
    if midpoint.ndim != 1 or midpoint.shape != gap.shape:
        raise InputError(
            f"x_0 has shape {midpoint.shape} and delta_x {gap.shape}: give two vectors of the same length."
        )
    mlp.check_inputs(np.stack([midpoint, gap]))
    weight = mlp.C_W[0] / len(midpoint)
    return Nearby(
        mlp.C_b[0] + weight * float(midpoint @ midpoint),
        weight * float(midpoint @ gap),
        weight * float(gap @ gap) / 4,
    )


def propagate(network: MLP, start: Nearby | Sequence[float]) -> xr.Dataset:
    """Carry the components (K00, K1, K2, K0) of layer 1 through all layers of a network.

    K00' = C_b + C_W g, K1' = chi_parallel K1, K2' = chi_perp K2 + h K1^2 (5.46)-(5.48), and for the mean
    K0' = chi_parallel K0 + C_W <s s''> K2 + C_W (d/dK <s s''>) K1^2 / 2. A skip connection adds gamma^2 times the
    same component.
    """
    functions = shared_functions(network.activation)
    # (place, jump of the slope) of the kinks; refused where the activation itself jumps.
    if not network.activation.is_continuous:
        raise NotSupportedError(
            f"{network.activation.label} jumps, so that nearby inputs part by a finite distance in one layer: use "
            "foretrain.theory.angles.angle_flow."
        )
    kinks = [(kink.location, kink.jump(1)) for kink in network.activation.kinks if kink.jump(1)]
    state = Nearby(*(float(value) for value in start))
    if not all(map(math.isfinite, state)) or state.K00 < 0 or state.K2 < 0:
        raise InputError(f"the start {state} needs finite numbers with K00 >= 0 and K2 >= 0.")
    states, factors = [state], []
    for layer in track(network.layers[1:], "layers"):
        state, used = _step(functions, kinks, state, layer)
        states.append(state)
        factors.append(used)
    # There is no step after the last layer.
    factors.append((math.nan,) * 3)
    return _dataset(network.activation, np.array(states), np.array(factors))


def _step(
    functions: KernelFunctions, kinks: list[tuple[float, float]], at: Nearby, layer: Layer
) -> tuple[Nearby, tuple[float, float, float]]:
    g, slope, bend, slope_square, slope_square_slope, _ = (float(value) for value in functions.fast(at.K00))
    skip, C_W = layer.gamma**2, layer.C_W
    parallel, perp, h = skip + C_W * slope, skip + C_W * slope_square, 0.5 * C_W * slope_square_slope
    # <s s''> = g' - <s'^2>, and the same for the derivatives with respect to K.
    curved, curved_slope = slope - slope_square, bend - slope_square_slope
    # Kinks lower K_+-, which enters K_[0] and K_[2] with opposite signs.
    straddling = C_W * _straddling(kinks, at)
    moved = Nearby(
        layer.C_b + C_W * g + skip * at.K00,
        parallel * at.K1,
        perp * at.K2 + h * at.K1**2 - straddling,
        parallel * at.K0 + C_W * (curved * at.K2 + 0.5 * curved_slope * at.K1**2) + straddling,
    )
    return moved, (parallel, perp, h)


def _straddling(kinks: list[tuple[float, float]], at: Nearby) -> float:
    """sum J^2 p(c) <|z_+ - z_-|^3> / 24 over jumps J of the slope at c: pairs on both sides of a kink (5.171).

    Given the midpoint c, the difference is normal with mean K1 c / K00 and variance 4 K2 - K1^2 / K00.
    """
    if not kinks or at.K00 <= 0 or at.K2 <= 0:
        return 0.0
    spread = math.sqrt(max(4 * at.K2 - at.K1**2 / at.K00, 0.0))
    total = 0.0
    for place, jump in kinks:
        density = math.exp(-(place**2) / (2 * at.K00)) / math.sqrt(2 * math.pi * at.K00)
        mean = at.K1 * place / at.K00
        cube = abs(mean) ** 3
        if spread:
            t = mean / spread
            peak = math.sqrt(2 / math.pi) * (2 + t * t) * math.exp(-t * t / 2)
            cube = spread**3 * (peak + (t**3 + 3 * t) * math.erf(t / math.sqrt(2)))
        total += jump**2 * density * cube / 24
    return total


def _dataset(act: Activation, states: Array, factors: Array) -> xr.Dataset:
    import xarray as xr

    K00, K1, K2, K0 = states.T
    mean = K00 + K0
    values = dict(
        zip(("K00", "K1", "K2", "K0", "chi_parallel", "chi_perpendicular", "h"), [*states.T, *factors.T])
    )
    values["distance"] = np.sqrt(4 * np.maximum(K2, 0))
    # sin^2 from 4 K_[0] K_[2] - K_[1]^2 = det K, which loses no digits at small angles.
    values["angle"] = np.arctan2(np.sqrt(np.maximum(4 * mean * K2 - K1**2, 0)), mean - K2)
    remainder = {"K00": "none", "K1": "delta^3", "K2": "delta^4", "K0": "delta^4"}
    return xr.Dataset(
        {
            name: ("layer", value, {"meaning": _MEANINGS[name], "remainder": remainder.get(name, "delta^3")})
            for name, value in values.items()
        },
        coords={"layer": np.arange(1, len(K00) + 1)},
        attrs={"law": "coincident limit (5.46)-(5.48)", "activation": act.label},
    )


def expectation_near(
    f: Any,
    g: Any,
    K00: ArrayLike,
    K1: ArrayLike = 0.0,
    K0: ArrayLike = 0.0,
    K2: ArrayLike = 0.0,
    *,
    tolerance: float = 1e-12,
) -> Array:
    """<f(z_+) g(z_-)> of nearby inputs to second order (5.39), remainder delta^3; lists f, g give the sum over i.

    Parameters
    ----------
    f, g
        What stands at the two inputs, as in :func:`foretrain.gaussian.expectation`, or lists of equal length for
        F = sum_i f_i(z_+) g_i(z_-).
    K00, K1, K0, K2
        K_00 > 0, dK_[1], ddK_[0] and ddK_[2], numbers or arrays.

    Examples
    --------
    >>> exact = [[1.01, 0.99], [0.99, 1.01]]
    >>> from foretrain.gaussian import expectation
    >>> abs(expectation_near("tanh", "tanh", 1.0, K2=0.01) - float(expectation(["tanh", "tanh"], exact))) < 1e-4
    np.True_
    """
    mean, K1, K0, K2 = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (K00, K1, K0, K2)))
    if not (np.isfinite(mean).all() and (mean > 0).all()):
        raise InputError("K00 must be finite and positive.")
    left, right = (list(side) if isinstance(side, list) else [side] for side in (f, g))
    if len(left) != len(right):
        raise InputError(f"f lists {len(left)} factors but g {len(right)}: give as many of each.")
    total = np.zeros(mean.shape)
    for first, second in zip(left, right):
        total += _second_order(as_factor(first), as_factor(second), mean, (K1, K0, K2), tolerance)
    return np.asarray(total[()])


def _second_order(
    f: Factor, g: Factor, K: Array, parts: tuple[Array, Array, Array], tolerance: float
) -> Array:
    for place in set(f.kinks) & set(g.kinks):
        sides = np.array([np.nextafter(place, -np.inf), np.nextafter(place, np.inf)])
        steps = [abs(float(np.diff(factor(sides))[0])) for factor in (f, g)]
        if min(steps) > 1e-9:
            raise NotSupportedError(
                f"{f!r} and {g!r} both jump at z = {place:g}: their product has a term of order |delta| there; "
                "use foretrain.gaussian.expectation at the two inputs."
            )
    K1, K0, K2 = parts

    def mean(terms: Sequence[tuple[float, Factor]], weight: Factor | None = None) -> Array:
        total = np.zeros(K.shape)
        for sign, term in terms:
            product = term if weight is None else weight * term
            total += sign * np.asarray(expectation([product], K[..., None, None], tolerance=tolerance).value)
        return total

    slopes, bends = [f.derivative(), g.derivative()], [_second(f), _second(g)]
    left = [slope * g for slope in slopes[0]]
    right = [f * slope for slope in slopes[1]]
    twice = [(1.0, bend * g) for bend in bends[0]] + [(1.0, f * bend) for bend in bends[1]]
    twice += [(-2.0, a * b) for a in slopes[0] for b in slopes[1]]
    difference = [(1.0, term) for term in left] + [(-1.0, term) for term in right]
    sum_ = [(1.0, term) for term in left + right]
    tilt = (K1 / (2 * K)) ** 2
    return np.asarray(
        mean([(1.0, f * g)])
        + K1 / (2 * K) * mean(difference, z)
        + K0 / (2 * K) * mean(sum_, z)
        + 0.5 * ((K2 - tilt * K) * mean(twice) + tilt * mean(twice, z * z))
    )


def _second(f: Factor) -> list[Factor]:
    return [bend for slope in f.derivative() for bend in slope.derivative()]
