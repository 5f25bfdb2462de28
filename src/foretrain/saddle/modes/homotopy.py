"""How much of an escape time is due to what: the homotopy identity (Prop. 23).

f_nu = (1 - nu) f_0 + nu f_1 leads from one field to another. With T(nu) the time at which a scale reaches its
threshold and p the adjoint, p' = -(df_nu/dx)^T p, p(T) = grad h / (grad h . f_nu):
T(1) - T(0) = int_0^1 A(nu) dnu, A(nu) = -int_0^T p . (f_1 - f_0) dt. Along the path p . f_nu = 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from foretrain.gaussian.nodes import gauss_legendre
from foretrain.saddle.modes.blocks import BlockLayout, BlockPath, follow
from foretrain.saddle.modes.closure import ModeField
from foretrain.saddle.parameters import Array
from foretrain.support.answers import Result
from foretrain.support.arguments import positive
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track

_TOLERANCE = 1e-9


@dataclass(frozen=True, repr=False)
class HomotopyTimes(Result):
    """Escape times at both ends by direct integration, in reduced time t, and the identity between them.

    ``shares`` splits the difference by what moves: the sums over nodes of -int p_i (f_1 - f_0)_i dt for the scales
    and for the off-diagonal entries of each layer. ``conservation`` is the largest |p . f_nu - 1| on the way.
    """

    also = ("difference", "predicted", "error")
    start: float
    end: float
    nodes: Array
    shares: Mapping[str, float]
    conservation: float

    @property
    def difference(self) -> float:
        """The sum of all shares: T(1) - T(0) by the identity."""
        return sum(self.shares.values())

    @property
    def predicted(self) -> float:
        """T(0) plus the sum of the shares."""
        return self.start + self.difference

    @property
    def error(self) -> float:
        """What the identity with these nodes misses of T(1) by direct integration."""
        return self.predicted - self.end


@dataclass(frozen=True, eq=False)
class _Family:
    """The fields f_nu, and the event: one scale X_1 reaches its threshold."""

    first: ModeField
    second: ModeField
    place: int
    level: float
    until: float

    def rates(self, nu: float, x: Array) -> Array:
        return (1 - nu) * self.first.rates(x) + nu * self.second.rates(x)

    def path(self, nu: float, start: Array) -> BlockPath:
        found = follow(
            lambda x: self.rates(nu, x),
            start,
            self.until,
            watch=lambda x: x[..., self.place : self.place + 1],
            levels=np.array([self.level]),
        )
        if not math.isfinite(found.crossings[0]):
            raise NotSupportedError(
                f"at nu = {nu:g} the mode does not reach {self.level:g} before the time {self.until:g}: raise until, "
                "or lower the threshold."
            )
        return found

    def shares(self, nu: float, start: Array, groups: Mapping[str, NDArray[np.intp]]) -> tuple[Array, float]:
        """-int p_i (f_1 - f_0)_i dt over each group of entries, and the largest |p . f_nu - 1|."""
        path = self.path(nu, start)
        T, size = float(path.crossings[0]), len(start)
        arrived = self.rates(nu, path.at(np.array([T]))[0])
        p = np.zeros(size)
        p[self.place] = 1 / arrived[self.place]

        def backward(rest: float, joint: Array) -> Array:
            x, covector = path.at(np.array([T - rest]))[0], joint[:size]
            turned = (1 - nu) * self.first.pullback(x, covector) + nu * self.second.pullback(x, covector)
            flux = covector * (self.second.rates(x) - self.first.rates(x))
            return np.concatenate([turned, [-flux[places].sum() for places in groups.values()]])

        found: Any = solve_ivp(
            backward,
            (0.0, T),
            np.concatenate([p, np.zeros(len(groups))]),
            method="LSODA",
            rtol=_TOLERANCE,
            atol=1e-3 * _TOLERANCE * abs(p[self.place]),
        )
        checked = np.linspace(0, len(found.t) - 1, 25).astype(int)
        fluxes = [found.y[:size, k] @ self.rates(nu, path.at(np.array([T - found.t[k]]))[0]) for k in checked]
        return found.y[size:, -1], float(np.abs(np.array(fluxes) - 1).max())


def homotopy(
    first: ModeField,
    second: ModeField,
    state: Array,
    *,
    mode: int = 0,
    threshold: float = 0.5,
    nodes: int = 4,
    until: float = 1e6,
) -> HomotopyTimes:
    """Escape times of a mode under two fields and the identity between them, by Gauss-Legendre nodes in nu.

    Times are reduced times t = s / N_B. The path starts at ``state`` for every nu.

    >>> from foretrain.saddle.modes import Decoupled, Exact, block_field
    >>> field = block_field("tanh", 3, (1.0, 0.5), 4)
    >>> start = field.layout.from_scales(np.full((3, 2), 0.3))
    >>> found = homotopy(Decoupled(field), Exact(field), start)
    >>> abs(found.predicted / found.end - 1) < 1e-5
    True
    """
    layout = first.layout
    if second.layout != layout or state.shape != (layout.size,):
        raise InputError(
            f"both fields and the state (of shape {state.shape}) must belong to the same depth and modes: make the "
            "state from scales (layers, modes) by field.layout.from_scales."
        )
    if not 0 <= mode < layout.modes or nodes < 1:
        raise InputError(
            f"mode is {mode} of {layout.modes} and nodes is {nodes}: give 0, 1, ... and 1 or more."
        )
    place = mode * (layout.modes + 1)
    family = _Family(first, second, place, positive("threshold", threshold), until)
    (points, weights), groups = gauss_legendre(nodes), channels(layout)
    found = [family.shares(float(nu), state, groups) for nu in track(points, "nodes of the homotopy")]
    total = weights @ np.array([shares for shares, _ in found])
    return HomotopyTimes(
        start=float(family.path(0.0, state).crossings[0]),
        end=float(family.path(1.0, state).crossings[0]),
        nodes=points,
        shares=dict(zip(groups, map(float, total))),
        conservation=max(error for _, error in found),
    )


def channels(layout: BlockLayout) -> dict[str, NDArray[np.intp]]:
    """What moves: the scales, the rotations of layer 1, and the off-block entries of each middle layer."""
    names = {1: "rotations"} | {layer: f"off-block {layer}" for layer in range(2, layout.depth)}
    return {"scales": layout.diagonal} | {name: layout.off_diagonal(layer) for layer, name in names.items()}
