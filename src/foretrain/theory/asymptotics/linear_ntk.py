"""Deep linear networks: statistics of the tangent kernel for one input, exact in the width.

With s = a z, q = |z|^2 / n, t = tr H / n, u = tr H^2 / n and s = z^T H z / n of a hidden layer, a Gaussian average
over the next weights closes on the five means below. c = lambda_b + lambda_W a^2 q is what the next layer's own
parameters add to its tangent kernel, and C = a^2 C_W.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import NotSupportedError
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
    import xarray as xr

    vector = one_input(x)
    slopes = mlp.activation.slopes
    if slopes is None or slopes[0] != slopes[1] or any(mlp.C_b) or mlp.is_residual:
        raise NotSupportedError(
            "the exact statistics are those of linear networks with C_b = 0 and no skip connections: for others use "
            "foretrain.flow, which is leading order in 1/n."
        )
    signal = float(np.mean(mlp.check_inputs(vector[None])[0] ** 2))
    rows = _layers(mlp, slopes[0] ** 2, signal)
    return xr.Dataset(
        {
            name: ("layer", np.array([row[place] for row in rows]), {"meaning": MEANINGS[name]})
            for place, name in enumerate(_NAMES)
        },
        coords={"layer": np.arange(1, mlp.depth + 1)},
        attrs={"network": repr(mlp)},
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
