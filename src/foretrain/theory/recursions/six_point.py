"""The six-point vertex of one input: n^2 times the third cumulant of the stochastic metric, layer by layer.

Given the metric G of layer l, the next one is a mean over n_l independent neurons. The law of total cumulance gives
U' = C_W^3 {kappa_3 + 3 r g' c_2' V + r^2 g'^3 U + 3 r^2 g'^2 g'' V^2}, r = n_l / n_{l-1}, with g = <s^2>,
c_2 = <s^4> - g^2 and kappa_3 = <s^6> - 3 <s^4> g + 2 g^3; for ReLU this is (epsilon.20).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian import Factor, expectation, factor, z
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track
from foretrain.theory.architecture import MLP
from foretrain.theory.kernel_functions import KernelFunctions, Tabulated
from foretrain.theory.recursions.expectations import width_ratio
from foretrain.theory.recursions.single_input import next_vertex

Array = NDArray[np.float64]

_FEW = 512  # more kernel values than this are interpolated
_TOLERANCE = 1e-12


def six_point_flow(mlp: MLP, first_kernel_diagonal: ArrayLike) -> Array:
    """U (L, N) at layers 1..L for each of N inputs by itself, from the diagonal of the kernel of layer 1.

    No 1/n is inside: the third cumulant of the metric, which is E[z_1^2 z_2^2 z_3^2] connected for three different
    neurons, is U / n_{l-1}^2.
    """
    if mlp.is_residual:
        raise NotSupportedError(
            "the six-point vertex is not offered for residual networks: leave `gamma` out."
        )
    first = _check_diagonal(first_kernel_diagonal)
    K = _kernels(mlp, first)
    # All layers and inputs at once: K is known before V and U, so that quadrature need not go layer by layer.
    distinct, where = np.unique(K[:-1], return_inverse=True)
    found = np.empty((5, len(distinct)))
    functions, tabled = CumulantFunctions(mlp.activation), (distinct > 0) & (len(distinct) > _FEW)
    if not tabled.all():
        found[:, ~tabled] = functions.at(distinct[~tabled])
    if tabled.any():
        found[:, tabled] = functions.interpolated(distinct[tabled])
    at = found[:, where.ravel()].reshape(5, *K[:-1].shape)
    V, U = np.zeros_like(K), np.zeros_like(K)
    for index, layer in enumerate(mlp.layers[1:], start=1):
        slope, bend, second, second_slope, third = (values[index - 1] for values in at)
        ratio, old_V, old_U = width_ratio(mlp, index), V[index - 1], U[index - 1]
        V[index] = next_vertex(layer, ratio, slope, second, old_V)
        U[index] = layer.C_W**3 * (
            third
            + 3 * ratio * slope * second_slope * old_V
            + ratio**2 * (slope**3 * old_U + 3 * slope**2 * bend * old_V**2)
        )
    return U


def metric_cumulants(mlp: MLP, first_kernel: float) -> Array:
    """Exact n Var(G) and n^2 kappa_3(G) at layers 1..L (L, 2), n = n_{l-1}, for scale-invariant activations.

    Given G, the next metric is C_b + C_W G w, with w the mean over n_l neurons of s(x)^2 at standard normal x: the
    moments of G and w multiply, at any width. ReLU at C_W = 2, C_b = 0: E[G^2] = K^2 (1 + 5/n)^(l-1) and
    E[G^3] = K^3 (1 + 15/n + 44/n^2)^(l-1).
    """
    slopes = mlp.activation.slopes
    if slopes is None or mlp.is_residual:
        raise NotSupportedError(
            "exact cumulants of the metric are offered for plain networks of scale-invariant activations only: "
            "use six_point_flow for the leading order."
        )
    (K,) = _check_diagonal(first_kernel)
    # <s^2>, <s^4>, <s^6> for a standard normal variable.
    one, two, three = (
        moment * (slopes[0] ** order + slopes[1] ** order) / 2
        for order, moment in ((2, 1.0), (4, 3.0), (6, 15.0))
    )
    moments = np.array([K, K**2, K**3])
    found = np.zeros((mlp.depth, 2))
    for index, layer in enumerate(mlp.layers[1:], start=1):
        n, c = mlp.hidden_widths[index - 1], layer.C_b
        second = ((n - 1) * one**2 + two) / n
        third = ((n - 1) * (n - 2) * one**3 + 3 * (n - 1) * one * two + three) / n**2
        w = np.array([one, second, third])  # moments of the mean over n neurons
        a, b, d = layer.C_W ** np.array([1, 2, 3]) * moments * w
        a, b, d = c + a, c**2 + 2 * c * a + b, c**3 + 3 * c**2 * a + 3 * c * b + d  # of G' = C_b + C_W G w
        moments = np.array([a, b, d])
        found[index] = n * (b - a**2), n**2 * (d - 3 * a * b + 2 * a**3)
    return found


def _check_diagonal(values: ArrayLike) -> Array:
    first = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if first.ndim != 1 or not (np.isfinite(first).all() and (first >= 0).all()):
        raise InputError("the diagonal of the first kernel must be a list of finite numbers, none negative.")
    return first


def _kernels(mlp: MLP, first: Array) -> Array:
    """K (L, N), each input alone."""
    functions = KernelFunctions(mlp.activation)
    K = np.empty((mlp.depth, len(first)))
    K[0] = first
    for index, layer in enumerate(track(mlp.layers[1:], "kernel"), start=1):
        K[index] = [layer.C_b + layer.C_W * functions.fast(value)[0] for value in K[index - 1]]
    return K


class CumulantFunctions(Tabulated):
    """g', g'', the variance c_2 of s^2, c_2' and the third cumulant kappa_3 of s^2, at many values of the kernel."""

    def at(self, K: Array) -> list[Array]:
        """Values at an array of kernel values K >= 0."""
        return self._exactly(K)

    def _rule(self) -> Callable[[Array], list[Array]]:
        return self._any

    def _any(self, K: Array) -> list[Array]:
        at = KernelFunctions(self.activation).at(K)
        g, fourth = at.square, at.fourth
        sixth = _mean(factor(self.activation) ** 6, K)
        # d<s^4>/dK = <6 s^2 s'^2 + 2 s^3 s''>, or 2 <z s^3 s'> / K, which kinks allow.
        s, slope = factor(self.activation), factor(self.activation, 1)
        if self.activation.is_smooth:
            fourth_slope = 6 * _mean(s**2 * slope**2, K) + 2 * _mean(s**3 * factor(self.activation, 2), K)
        else:
            safe = np.maximum(K, 1e-30)
            fourth_slope = 2 * _mean(z * s**3 * slope.pointwise(), safe) / safe
        second_slope = fourth_slope - 2 * g * at.square_slope
        third = sixth - 3 * fourth * g + 2 * g**3
        return [at.square_slope, at.square_bend, fourth - g**2, second_slope, third]


def _mean(f: Factor, K: Array) -> Array:
    return np.asarray(expectation([f], K[:, None, None], tolerance=_TOLERANCE).value)
