"""The exact flow of block-symmetric networks: a network of one neuron per mode on K Gaussian inputs.

f = sqrt(N_B) A_L sigma(A_{L-1} ... sigma(A_1 g)), y = sum_k beta_k sigma(g_k). In the normalized metric (rate 1 for
W_1, 1/N_B above) every A_l obeys dA_l/ds = -(1/N_B) dLoss/dA_l: the metric's factors cancel the numbers of neurons.
Rates here are per reduced time t = s / N_B, where the flow is plain: dA/dt = -dLoss/dA.

A row of W_1 in block k is sum_m A_1[k, m] v_m, an entry of a middle W_l between blocks is A_l[k, k'] / N_B and an
entry of W_L in block k is A_L[k] / sqrt(N_B). The diagonals are the scales X_l of the modes, off-diagonal entries
of A_1 are rotations eta, those of the middle layers off-block entries C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import LSODA
from scipy.optimize import brentq

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.saddle.modes.gaussian_grid import GaussianGrid, gaussian_grid
from foretrain.saddle.parameters import Array, check_beta, check_choice
from foretrain.saddle.scalar_flow import smallest_scale
from foretrain.support.answers import labelled
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    import xarray as xr

RELATIVE_TOLERANCE = 1e-10
_MOST_STEPS = 100_000

Watch = Callable[[Array], Array]


@dataclass(frozen=True)
class BlockLayout:
    """How the matrices A_1 .. A_L (the last one row) lie in one vector, for depth L and K modes."""

    depth: int
    modes: int

    @property
    def size(self) -> int:
        """(L - 1) K^2 + K numbers."""
        return (self.depth - 1) * self.modes**2 + self.modes

    def matrices(self, state: Array) -> list[Array]:
        """A_1 .. A_{L-1} (..., K, K) and A_L (..., 1, K), as views of states (..., size)."""
        K = self.modes
        square = state[..., : -K or None].reshape(*state.shape[:-1], self.depth - 1, K, K)
        return [*np.moveaxis(square, -3, 0), state[..., None, -K:]]

    def joined(self, matrices: list[Array]) -> Array:
        """The vector (..., size) of matrices A_1 .. A_L."""
        return np.concatenate([matrix.reshape(*matrix.shape[:-2], -1) for matrix in matrices], axis=-1)

    def from_scales(self, scales: ArrayLike) -> Array:
        """The vector of diagonal matrices with X_l of every mode: (..., L, K) to (..., size)."""
        X = np.asarray(scales, dtype=float)
        if X.shape[-2:] != (self.depth, self.modes) or not np.isfinite(X).all():
            raise InputError(
                f"scales have shape {X.shape}: give finite numbers for {self.depth} layers and {self.modes} modes."
            )
        middle = X[..., :-1, :, None] * np.eye(self.modes)
        return np.concatenate([middle.reshape(*X.shape[:-2], -1), X[..., -1, :]], axis=-1)

    def scales(self, state: Array) -> Array:
        """X_l of every mode (..., L, K): the diagonals."""
        return state[..., self.diagonal].reshape(*state.shape[:-1], self.depth, self.modes)

    @property
    def diagonal(self) -> NDArray[np.intp]:
        """Places of the scales X, layer by layer."""
        K = self.modes
        square = np.arange((self.depth - 1) * K * K).reshape(self.depth - 1, K, K)
        last = np.arange(K) + square.size
        return np.concatenate([np.diagonal(square, axis1=1, axis2=2).ravel(), last])

    def off_diagonal(self, layer: int) -> NDArray[np.intp]:
        """Places of the off-diagonal entries of A_layer: rotations for layer 1, off-block entries above."""
        if not 1 <= layer < self.depth:
            raise InputError(
                f"layer is {layer}: layers 1 to {self.depth - 1} of {self.depth} have entries between the modes."
            )
        K = self.modes
        inside = np.arange(K * K).reshape(K, K)[~np.eye(K, dtype=bool)]
        return np.asarray(inside + (layer - 1) * K * K)


class Passage(NamedTuple):
    """One pass: h_0 .. h_{L-1} and sigma'(z_1) .. (..., K, points), sqrt(N_B) w (f - y) (..., 1, points), loss."""

    hidden: list[Array]
    inputs: list[Array]
    slopes: list[Array]
    error: Array
    loss: Array


@dataclass(frozen=True, eq=False)
class BlockField:
    """The right side of the block-symmetric flow, for states (..., size) as ``layout`` orders them."""

    activation: Activation
    depth: int
    block_width: int
    betas: tuple[float, ...]
    grid: GaussianGrid

    @property
    def layout(self) -> BlockLayout:
        """Where each number is in a state."""
        return BlockLayout(self.depth, len(self.betas))

    @cached_property
    def teacher(self) -> Array:
        """Y at the points, (1, points)."""
        signals = np.asarray(self.activation.value(self.grid.points), dtype=np.float64)
        return (np.array(self.betas) @ signals)[None]

    def passage(self, state: Array) -> Passage:
        """Forward through all layers."""
        matrices = self.layout.matrices(state)
        hidden, inputs, slopes = [self.grid.points], [], []
        for matrix in matrices[:-1]:
            inputs.append(matrix @ hidden[-1])
            hidden.append(np.asarray(self.activation.value(inputs[-1]), dtype=np.float64))
            slopes.append(np.asarray(self.activation.derivative(inputs[-1], 1), dtype=np.float64))
        scale = math.sqrt(self.block_width)
        residual = scale * (matrices[-1] @ hidden[-1]) - self.teacher
        weighted = residual * self.grid.weights
        loss = 0.5 * (residual * weighted).sum(axis=(-2, -1))
        return Passage(hidden, inputs, slopes, scale * weighted, loss)

    def rates(self, state: Array) -> Array:
        """dA/dt = -dLoss/dA per reduced time."""
        way, matrices = self.passage(state), self.layout.matrices(state)
        delta, found = way.error, []
        for layer in range(self.depth - 1, 0, -1):
            found.append(-delta @ way.hidden[layer].mT)
            delta = (matrices[layer].mT @ delta) * way.slopes[layer - 1]
        found.append(-delta @ way.hidden[0].mT)
        return self.layout.joined(found[::-1])

    def matrix_rates(self, state: Array) -> Array:
        """The same per matrix time s = N_B t."""
        return self.rates(state) / self.block_width

    def tangent(self, state: Array, direction: Array) -> Array:
        """The derivative of the rates along a direction; minus the Hessian of the loss, hence symmetric."""
        way = self.passage(state)
        matrices, moves = self.layout.matrices(state), self.layout.matrices(direction)
        hidden, bends = [np.zeros_like(self.grid.points)], []
        for layer in range(self.depth - 1):
            moved = moves[layer] @ way.hidden[layer] + matrices[layer] @ hidden[-1]
            bends.append(self.activation.derivative(way.inputs[layer], 2) * moved)
            hidden.append(way.slopes[layer] * moved)
        change = moves[-1] @ way.hidden[-1] + matrices[-1] @ hidden[-1]
        delta, shift, found = way.error, self.block_width * change * self.grid.weights, []
        for layer in range(self.depth - 1, 0, -1):
            found.append(-shift @ way.hidden[layer].mT - delta @ hidden[layer].mT)
            pulled = matrices[layer].mT @ delta
            moved = moves[layer].mT @ delta + matrices[layer].mT @ shift
            shift = moved * way.slopes[layer - 1] + pulled * bends[layer - 1]
            delta = pulled * way.slopes[layer - 1]
        found.append(-shift @ way.hidden[0].mT)
        return self.layout.joined(found[::-1])

    def loss(self, state: Array) -> Array:
        """E[(f - y)^2] / 2."""
        return self.passage(state).loss

    def alignments(self, state: Array) -> Array:
        """|W_1 v_k| / sqrt(N) of every mode (..., K): how much of it the first layer sees, in any block."""
        return np.asarray(np.sqrt(np.mean(self.layout.matrices(state)[0] ** 2, axis=-2)))


def block_field(
    activation: Any, depth: int, betas: Sequence[float], block_width: int, grid: GaussianGrid | None = None
) -> BlockField:
    """The flow of a network of K = len(betas) blocks of ``block_width`` neurons, on the usual grid unless given.

    >>> field = block_field("tanh", depth=4, betas=(1.0, 0.3, 0.08), block_width=20)
    >>> field.layout.size
    30
    """
    act, strengths = find_activation(activation), tuple(check_beta(beta) for beta in betas)
    if not strengths:
        raise InputError("betas are empty: give the strength of at least one mode of the teacher.")
    chosen = gaussian_grid(act, len(strengths)) if grid is None else grid
    if len(chosen.points) != len(strengths):
        raise InputError(f"the grid is for {len(chosen.points)} modes, but there are {len(strengths)} betas.")
    return BlockField(
        act, whole_number("depth", depth, 2), whole_number("width", block_width), strengths, chosen
    )


@dataclass(frozen=True, eq=False)
class BlockPath:
    """The steps of the integrator; ``crossings`` are the times at which each watched number rose to its level."""

    times: Array
    states: Array
    crossings: Array  # nan where the flow ended before
    pieces: list[Any] = field(default_factory=list, repr=False)

    def at(self, times: Array) -> Array:
        """The states at times, between the steps too."""
        if len(self.times) == 1:
            return np.tile(self.states[0], (len(times), 1))
        place = np.clip(np.searchsorted(self.times[1:], times), 0, len(self.pieces) - 1)
        return np.array([self.pieces[k](time) for k, time in zip(place, times)])


def follow(
    rates: Callable[[Array], Array],
    start: Array,
    until: float,
    *,
    watch: Watch,
    levels: Array,
    tolerance: float = RELATIVE_TOLERANCE,
) -> BlockPath:
    """The flow from time 0 until every watched number has risen to its level, or until a time."""
    before = watch(start)
    crossings = np.where(before >= levels, 0.0, math.nan)
    if until == 0:  # the integrator cannot make a step of no length
        return BlockPath(np.zeros(1), start[None], crossings)
    absolute = 0.01 * tolerance * smallest_scale(start)
    solver = LSODA(lambda _, x: rates(x), 0.0, start, until, rtol=tolerance, atol=absolute)
    times, states, pieces = [0.0], [start], []
    while times[-1] < until and np.isnan(crossings).any():
        message = solver.step()  # None while all is well
        if message is not None or len(times) > _MOST_STEPS or not np.isfinite(solver.y).all():
            raise NotSupportedError(f"the flow could not be followed beyond {solver.t:g} ({message}).")
        piece, after = solver.dense_output(), watch(solver.y)
        for mode in np.flatnonzero(np.isnan(crossings) & (after >= levels)):
            crossings[mode] = _crossing(piece, watch, int(mode), float(levels[mode]), times[-1], solver.t)
        times.append(float(solver.t))
        states.append(solver.y.copy())
        pieces.append(piece)
    return BlockPath(np.array(times), np.array(states), crossings, pieces)


def _crossing(piece: Any, watch: Watch, mode: int, level: float, begin: float, end: float) -> float:
    """Where a watched number is at its level inside one step."""

    def gap(time: float) -> float:
        return float(watch(piece(time))[mode] - level)

    if gap(begin) >= 0:  # the interpolant may be above the level by rounding
        return begin
    return float(brentq(gap, begin, end, xtol=1e-14 * end, rtol=1e-14))


Observable = Literal["amplitude", "alignment"]

OBSERVABLES = {
    "amplitude": "X_1 of the mode, in its own block",
    "alignment": "|W_1 v_k| / sqrt(N), over all blocks",
}


def block_escape(
    activation: Any,
    scales: ArrayLike,
    betas: Sequence[float],
    block_width: int,
    *,
    threshold: float = 0.5,
    observable: Observable = "amplitude",
    until: float = 1e6,
    grid: GaussianGrid | None = None,
) -> xr.DataArray:
    """When each mode's amplitude or alignment rises to the threshold, with all modes flowing together.

    ``scales`` are X_l (layers, modes) on the ansatz, or a stack (flows, layers, modes). Times are matrix times s
    (learning rate of the first layer times steps); nan where ``until`` came first.

    >>> found = block_escape("tanh", [[0.2], [0.2], [0.2]], (1.0,), 16, threshold=0.3)
    >>> found.dims
    ('mode',)
    """
    import xarray as xr

    X = _scales(scales)
    if not until > 0:
        raise InputError(f"until is {until}: give a positive time at which to stop.")
    if X.ndim not in (2, 3):
        raise InputError(f"scales have shape {X.shape}: give (layers, modes) or (flows, layers, modes).")
    field = block_field(activation, X.shape[-2], betas, block_width, grid)
    starts = field.layout.from_scales(X if X.ndim == 3 else X[None])
    check_choice(observable, "`observable`", list(OBSERVABLES))

    def watch(state: Array) -> Array:
        """The numbers of the modes whose passing of a threshold is called their escape."""
        return field.alignments(state) if observable == "alignment" else field.layout.scales(state)[..., 0, :]

    levels = np.full(len(field.betas), positive("threshold", threshold))
    times = np.array(
        [follow(field.matrix_rates, start, until, watch=watch, levels=levels).crossings for start in starts]
    )
    dims = ("flow", "mode") if X.ndim == 3 else ("mode",)
    return xr.DataArray(
        times if X.ndim == 3 else times[0],
        dims=dims,
        coords={"mode": np.arange(1, len(field.betas) + 1)},
        name="time",
        attrs={"time_unit": "matrix time s", "observable": OBSERVABLES[observable], "threshold": threshold},
    )


def block_flow(
    activation: Any,
    scales: ArrayLike,
    betas: Sequence[float],
    block_width: int,
    times: ArrayLike,
    *,
    grid: GaussianGrid | None = None,
) -> xr.Dataset:
    """Loss, alignments, scales X and all matrices A along the exact flow, at matrix times s."""
    record = np.atleast_1d(np.asarray(times, dtype=float))
    if not record.size or not np.isfinite(record).all() or (record < 0).any() or (np.diff(record) < 0).any():
        raise InputError("times must be one or more finite numbers, not negative and in ascending order.")
    X = _scales(scales)
    if X.ndim != 2:
        raise InputError(f"scales have shape {X.shape}: give one number for each layer and mode.")
    field = block_field(activation, X.shape[0], betas, block_width, grid)
    start = field.layout.from_scales(X)
    levels = np.full(len(field.betas), math.inf)
    path = follow(field.matrix_rates, start, float(record[-1]), watch=field.alignments, levels=levels)
    states = path.at(record)
    matrices = field.layout.matrices(states)
    modes = np.arange(1, len(field.betas) + 1)
    return labelled(
        {
            "loss": ("time", field.loss(states)),
            "alignment": ("time mode", field.alignments(states)),
            "X": ("time layer mode", field.layout.scales(states)),
            "A": ("time inner_layer block mode", np.stack(matrices[:-1], axis=1)),
        },
        {"time_unit": "matrix time s", "betas": list(field.betas), "block_width": block_width},
        counted=("layer",),
        time=record,
        mode=modes,
        block=modes,
        inner_layer=np.arange(1, field.depth),
    )


def _scales(scales: ArrayLike) -> Array:
    try:
        return np.asarray(scales, dtype=float)
    except (TypeError, ValueError):
        raise InputError("scales are no table of numbers: give one for each layer and mode.") from None
