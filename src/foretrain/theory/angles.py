"""The angle between two signals, layer by layer: cos psi = K_12 / sqrt(K_11 K_22) (section 5.5).

Scale-invariant activations have an exact recursion for the angle itself, at any norms, biases and skip
connections, written in sin^2(psi/2) and cos^2(psi/2) so that no digits are lost at small angles or near pi.
For any other activation the angle is read off the kernel of the two inputs, which resolves angles above 1e-4.

At criticality cos psi' = cos psi + rho (sin psi - psi cos psi) (5.162), with rho (1 - gamma^2) in place of rho
for a residual network, and psi = 3 / (rho l) - 9 log(l / l_0) / (2 rho l^2) + ... (5.166).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, Layer
from foretrain.theory.arguments import two_inputs
from foretrain.theory.asymptotics.kernel_laws import (
    FIT_DEPTH,
    is_deep_enough,
    log_depth_constant,
    reference_start,
)
from foretrain.theory.flow import flow

if TYPE_CHECKING:
    import xarray as xr


_MEANINGS = {
    "psi": "angle between the two signals",
    "K_11": "variance of the first signal",
    "K_22": "variance of the second signal",
    "K_2": "K_[2], a quarter of their mean squared distance (5.19)",
    "psi_asymptotic": "3 / (rho l) - 9 log(l / l_0) / (2 rho l^2), remainder O(log^2 l / l^3) (5.166)",
    "K_2_asymptotic": "(sqrt(K_11) - sqrt(K_22))^2 / 4 + 9 sqrt(K_11 K_22) / (4 rho^2 l^2), remainder of the "
    "second part relative O(log l / l) (5.168)",
}
_CLOSE = 1e-9
# 2k / (2k+1)!, the highest first: the series of sin x - x cos x, signs apart.
_EXCESS = tuple(2 * k / math.factorial(2 * k + 1) for k in range(8, 0, -1))


class _Rows(NamedTuple):
    """Angles and variances at layers 1..L, the variances in units 2^exponent."""

    psi: Array
    first: Array
    second: Array
    exponent: NDArray[np.int_]


class _Pair(NamedTuple):
    """Two variances in a common unit 2^exponent, and the angle."""

    first: float
    second: float
    psi: float
    exponent: int = 0


class _Slopes(NamedTuple):
    """A_2 and rho of a scale-invariant activation, and 2 - pi rho = (a_+ + a_-)^2 / (a_+^2 + a_-^2)."""

    A_2: float
    rho: float
    rest: float


def angle_flow(mlp: MLP, x_1: ArrayLike, x_2: ArrayLike) -> xr.Dataset:
    """Angle, variances and K_[2] of two inputs at every layer.

    Scale-invariant activations use the exact angle recursion (5.162), and where they are critical the dataset
    also has the asymptotic law, with l_0 and the crossover depth 3 / (rho psi^(1)) (5.169) as attributes.

    Examples
    --------
    >>> import foretrain as ft
    >>> angles = angle_flow(ft.MLP("relu", depth=10, width=100, C_W=2.0), [1.0, 0.0], [0.0, 1.0])
    >>> round(float(angles["psi"].sel(layer=10)), 6)
    0.545613
    """
    inputs = two_inputs(x_1, x_2)
    start = _first_angle(mlp, mlp.check_inputs(inputs))
    if mlp.activation.slopes is None:
        # Other activations: the angle is read off the kernel of the two inputs.
        K = flow(mlp, inputs)["K"].values
        one, two, cross = K[:, 0, 0], K[:, 1, 1], K[:, 0, 1]
        if not ((one > 0) & (two > 0)).all():
            raise InputError("a signal dies at some layer (its variance is 0): its angle is not defined.")
        norm = np.sqrt(one * two)
        lost = np.abs(norm - cross)[1:] < 1e-8 * norm[1:]
        if start.psi > 0 and lost.any():
            warn_user(
                f"from layer {2 + int(np.argmax(lost))} on an angle below 1e-4 drowns in the accuracy of the kernel: "
                "use foretrain.theory.nearby.nearby_flow."
            )
        psi = 2 * np.arctan2(np.sqrt(np.maximum(norm - cross, 0)), np.sqrt(np.maximum(norm + cross, 0)))
        psi[0] = start.psi
        return _dataset(
            mlp, _Rows(psi, one, two, np.zeros(len(psi), dtype=np.int_)), "from the kernel of the two inputs"
        )
    slopes, pair, pairs = _slopes(*mlp.activation.slopes), start, [start]
    for layer in track(mlp.layers[1:], "layers"):
        pair = _step(pair, slopes, layer)
        pairs.append(pair)
    first, second, psi, exponent = (np.array(column) for column in zip(*pairs))
    found = _dataset(mlp, _Rows(psi, first, second, exponent), "exact angle recursion (5.162)")
    # Add the asymptotic law where the network is critical and the angle shrinks.
    assert mlp.activation.slopes is not None
    slopes = _slopes(*mlp.activation.slopes)
    inner = mlp.layers[1:-1] if mlp.is_residual else mlp.layers[1:]
    skips = {layer.gamma for layer in inner}
    critical = all(
        layer.C_b == 0 and abs(slopes.A_2 * layer.C_W + layer.gamma**2 - 1) < _CLOSE for layer in inner
    )
    if not inner or not critical or len(skips) > 1 or start.psi == 0:
        return found
    rho = slopes.rho * (1 - skips.pop() ** 2)
    if rho < _CLOSE:
        return found.assign_attrs(rho=0.0, law="the angle stays what it is, for the activation is linear")
    log_l_0 = log_angle_constant(rho, start.psi)
    depth = found["layer"].values
    roots = math.sqrt(start.first), math.sqrt(start.second)
    laws = {
        "psi_asymptotic": angle_law(rho, log_l_0, depth),
        "K_2_asymptotic": (roots[0] - roots[1]) ** 2 / 4
        + 9 * roots[0] * roots[1] / (4 * rho**2 * depth**2.0),
    }
    with np.errstate(over="ignore"):
        constants = {"rho": rho, "l_0": float(np.exp(log_l_0)), "log_l_0": log_l_0}
    constants["crossover_depth"] = crossover_depth(rho, start.psi)
    return found.assign(
        {name: ("layer", value, {"meaning": _MEANINGS[name]}) for name, value in laws.items()}
    ).assign_attrs(constants)


def angle_recursion(rho: float, psi: float, depth: int) -> Array:
    """Angles at layers 1..depth of a critical scale-invariant network that starts with psi (5.162)."""
    if not 0 <= rho <= 2 / math.pi + 1e-15 or not 0 <= psi <= math.pi:
        raise InputError(f"rho is {rho!r} and psi {psi!r}: give 0 <= rho <= 2/pi and 0 <= psi <= pi.")
    if depth < 1:
        raise InputError(f"`depth` is {depth!r}: give a positive whole number.")
    slopes = _Slopes(1.0, rho, max(2 - math.pi * rho, 0.0))
    layer = Layer(2, 1, 0.0, 1.0, 1.0, 1.0, 0.0)
    angles, pair = [psi], _Pair(1.0, 1.0, psi)
    for _ in track(range(depth - 1), "layers"):
        pair = _step(pair, slopes, layer)
        angles.append(pair.psi)
    return np.array(angles)


def angle_law(rho: float, log_l_0: float, layers: ArrayLike) -> Array:
    """psi = 3 / (rho l) - 9 log(l / l_0) / (2 rho l^2), for rho > 0 (5.166)."""
    layer = np.asarray(layers, dtype=float)
    return np.asarray(3 / (rho * layer) - 4.5 * (np.log(layer) - log_l_0) / (rho * layer**2))


def log_angle_constant(rho: float, psi: float) -> float:
    """log l_0 of 1 / psi = (rho / 3) (l + (3/2) log(l / l_0)) for a start at psi > 0, from the exact recursion."""
    begin = psi if is_deep_enough(psi, rho / 3) else reference_start(rho / 3)
    return log_depth_constant(angle_recursion(rho, begin, FIT_DEPTH), psi, rho / 3, -1.5)


def crossover_depth(rho: float, psi: float) -> float:
    """Depth 3 / (rho psi^(1)) where the finite angle takes over from the infinitesimal one (5.169)."""
    return 3 / (rho * psi) if rho > 0 and psi > 0 else math.inf


def _first_angle(mlp: MLP, inputs: Array) -> _Pair:
    """Variances and angle at layer 1 from the angle between the inputs, stable for nearly parallel ones."""
    C_b, weight = mlp.C_b[0], mlp.C_W[0] / inputs.shape[1]
    norms = np.linalg.norm(inputs, axis=1)
    first, second = (C_b + weight * float(norm) ** 2 for norm in norms)
    if first <= 0 or second <= 0:
        raise InputError("an input has no signal at layer 1 (x = 0 with C_b = 0): its angle is not defined.")
    unit = inputs / np.where(norms > 0, norms, 1)[:, None]
    between = 2 * math.atan2(
        float(np.linalg.norm(unit[0] - unit[1])), float(np.linalg.norm(unit[0] + unit[1]))
    )
    product = weight * float(norms[0] * norms[1])
    gap = inputs[0] - inputs[1]
    determinant = C_b * weight * float(gap @ gap) + (product * math.sin(between)) ** 2
    return _Pair(first, second, math.atan2(math.sqrt(determinant), C_b + product * math.cos(between)))


def _slopes(minus: float, plus: float) -> _Slopes:
    square = minus**2 + plus**2
    if square == 0:
        raise InputError("the activation is zero: there is no signal after layer 1.")
    return _Slopes(square / 2, (plus - minus) ** 2 / square / math.pi, (plus + minus) ** 2 / square)


def _step(pair: _Pair, slopes: _Slopes, layer: Layer) -> _Pair:
    """One layer of K_12' = C_b + chi N [cos psi + rho (sin psi - psi cos psi)] + gamma^2 K_12, N = sqrt(K_11 K_22).

    Carried are apart = N' - K_12' and together = N' + K_12', sums of positive terms, so that
    psi' = 2 atan(sqrt(apart / together)) keeps its digits at both ends.
    """
    C_b, chi, skip = math.ldexp(layer.C_b, -pair.exponent), slopes.A_2 * layer.C_W, layer.gamma**2
    kappa, norm = chi + skip, math.sqrt(pair.first) * math.sqrt(pair.second)
    first, second = C_b + kappa * pair.first, C_b + kappa * pair.second
    if first <= 0 or second <= 0:
        raise InputError(f"C_W = 0 and C_b = 0 at layer {layer.number}: no signal is left, and no angle.")
    new_norm = math.sqrt(first) * math.sqrt(second)
    # N' - C_b - kappa N: what unequal norms lose to the bias.
    lag = (
        C_b * kappa * (math.sqrt(pair.first) - math.sqrt(pair.second)) ** 2 / (new_norm + C_b + kappa * norm)
    )
    apart = lag + norm * _opening(pair.psi, slopes, chi, skip)
    closing = 2 * kappa * math.cos(pair.psi / 2) ** 2 + chi * slopes.rho * sine_excess(pair.psi)
    together = 2 * C_b + lag + norm * closing
    psi = 2 * math.atan2(math.sqrt(max(apart, 0.0)), math.sqrt(together))
    shift = math.frexp(first + second)[1]
    if abs(shift) < 300:
        return _Pair(first, second, psi, pair.exponent)
    return _Pair(math.ldexp(first, -shift), math.ldexp(second, -shift), psi, pair.exponent + shift)


def _opening(psi: float, slopes: _Slopes, chi: float, skip: float) -> float:
    """kappa (1 - cos psi) - chi rho (sin psi - psi cos psi), around 0 or around pi."""
    if psi <= math.pi / 2:
        return 2 * (chi + skip) * math.sin(psi / 2) ** 2 - chi * slopes.rho * sine_excess(psi)
    phi = math.pi - psi
    turned = skip + chi * (slopes.rest - 1)
    flat = 2 * skip + chi * slopes.rest
    return flat - 2 * turned * math.sin(phi / 2) ** 2 - chi * slopes.rho * sine_excess(phi)


def sine_excess(psi: float) -> float:
    """sin psi - psi cos psi, by its series psi^3 / 3 - psi^5 / 30 + ... where the two terms cancel."""
    if psi > 0.5:
        return math.sin(psi) - psi * math.cos(psi)
    square, total = psi * psi, 0.0
    for coefficient in _EXCESS:
        total = coefficient - square * total
    return psi * square * total


def _dataset(mlp: MLP, rows: _Rows, method: str) -> xr.Dataset:
    roots = np.sqrt(rows.first), np.sqrt(rows.second)
    distance = (roots[0] - roots[1]) ** 2 / 4 + roots[0] * roots[1] * np.sin(rows.psi / 2) ** 2
    # Far off criticality the variances leave the range of doubles; the angle does not.
    with np.errstate(over="ignore", under="ignore"):
        norms = [np.ldexp(value, rows.exponent) for value in (rows.first, rows.second, distance)]
    values = dict(zip(("psi", "K_11", "K_22", "K_2"), [rows.psi, *norms]))
    return labelled(
        {name: ("layer", value, _MEANINGS[name]) for name, value in values.items()},
        {"activation": mlp.activation.label, "method": method},
        counted=("layer",),
    )
