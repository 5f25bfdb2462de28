"""Deep linear networks: tangent kernel of one input, exact in the width, and closed forms of its differentials.

With s = a z, q = |z|^2 / n, t = tr H / n, u = tr H^2 / n and s = z^T H z / n of a hidden layer, a Gaussian average
over the next weights closes on the five means below. c = lambda_b + lambda_W a^2 q is what the next layer's own
parameters add to its tangent kernel, and C = a^2 C_W.

A deep linear network is linear in its input but not in its parameters, so that Q, S and T do not vanish: it learns
representations, while a network of one layer does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import labelled
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP, Layer
from foretrain.theory.arguments import one_input
from foretrain.theory.flow import MEANINGS

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

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


class _Own(NamedTuple):
    """Means of c = lambda_b + lambda_W a^2 q with itself and the rest."""

    c: float
    q_c: float
    c_t: float
    c_c: float


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
        own = _own(means, layer, square)
        rows.append(_tensors(means, own, square * layer.C_W, n))
        means = _step(means, own, square * layer.C_W, n, layer.width)
        n = layer.width
    return rows


def _own(old: _Means, layer: Layer, square: float) -> _Own:
    b, w = layer.lambda_b, layer.lambda_W * square
    return _Own(
        b + w * old.q,
        b * old.q + w * old.q_q,
        b * old.t + w * old.q_t,
        b**2 + 2 * b * w * old.q + w**2 * old.q_q,
    )


def _tensors(old: _Means, own: _Own, C: float, n: int) -> tuple[float, ...]:
    """Of the layer that follows a hidden layer of width n."""
    mean = own.c + C * old.t
    V = n * C**2 * (old.q_q - old.q**2)
    D = n * C * (own.q_c + C * old.q_t - old.q * mean)
    A = n * (own.c_c + 2 * C * own.c_t + C**2 * old.t_t - mean**2)
    return C * old.q, V, mean, D, C**2 * old.s, A, C**2 * old.u


def _step(old: _Means, own: _Own, C: float, n: int, width: int) -> _Means:
    """To the next hidden layer, of this width."""
    follow = (width + 1) / n
    both = own.c_c + 2 * C * own.c_t
    return _Means(
        C * old.q,
        C**2 * (1 + 2 / width) * old.q_q,
        own.c + C * old.t,
        C * own.q_c + C**2 * (old.q_t + 2 / (n * width) * old.s),
        both + C**2 * (old.t_t + 2 / (n * width) * old.u),
        C * own.q_c + C**2 * (old.q_t + follow * old.s),
        both + C**2 * (old.t_t + follow * old.u),
    )


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
