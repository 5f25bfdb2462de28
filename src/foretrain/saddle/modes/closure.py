"""Closures: what is between the modes, to first order in it, and when it feeds itself enough to grow.

On the diagonal manifold every mode is its own chain, but that manifold is not invariant: the teacher's other modes
turn the rows of a block (rotations eta, layer 1) and couple the blocks (off-block C, middle layers). Linearising the
exact flow F about the diagonal part d of a state, with off-diagonal part o, gives F(d) + DF(d) o.

The block matrix [[-A, B], [C, -D]], A and D diagonal and positive, B and C nonnegative, has a positive eigenvalue
exactly if the spectral radius of D^-1 C A^-1 B is above 1; the eigenvalue solves
rho((D + x)^-1 C (A + x)^-1 B) = 1 (56), (57), whose left side falls with x (Prop. 24, Thm 25).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from foretrain.gaussian.nodes import gauss_legendre
from foretrain.saddle.modes.blocks import BlockField, BlockLayout, block_field
from foretrain.saddle.parameters import Array
from foretrain.support.answers import Result
from foretrain.support.errors import InputError

_STEP = 1e-3  # of a fourth-order difference, in units where scales are of order one


class ModeField(Protocol):
    """A field on block states, per reduced time, with the product that its adjoint equation needs."""

    @property
    def layout(self) -> BlockLayout:
        """Where each number is in a state."""
        ...

    def rates(self, state: Array) -> Array:
        """The field at states."""
        ...

    def pullback(self, state: Array, covector: Array) -> Array:
        """The transposed derivative of the rates times a covector."""
        ...


@dataclass(frozen=True, eq=False)
class _OnBlocks:
    """What every field here has."""

    field: BlockField

    @property
    def layout(self) -> BlockLayout:
        """Where each number is in a state."""
        return self.field.layout


@dataclass(frozen=True, eq=False)
class Exact(_OnBlocks):
    """The block-symmetric flow itself; its derivative is symmetric."""

    def rates(self, state: Array) -> Array:
        """Minus the gradient of the loss."""
        return self.field.rates(state)

    def pullback(self, state: Array, covector: Array) -> Array:
        """Minus the Hessian times the covector."""
        return self.field.tangent(state, covector)


@dataclass(frozen=True, eq=False)
class Decoupled(_OnBlocks):
    """Every mode by itself: the scalar flow (4) of its scales, and nothing between the modes."""

    @cached_property
    def chains(self) -> tuple[BlockField, ...]:
        """The flow of each mode alone."""
        own = self.field
        return tuple(block_field(own.activation, own.depth, (beta,), own.block_width) for beta in own.betas)

    def rates(self, state: Array) -> Array:
        """The rates of the scales; zero elsewhere."""
        X = self.layout.scales(state)
        found = [chain.rates(X[..., mode]) for mode, chain in enumerate(self.chains)]
        return self.layout.from_scales(np.stack(found, axis=-1))

    def pullback(self, state: Array, covector: Array) -> Array:
        """Symmetric in each mode."""
        X, p = self.layout.scales(state), self.layout.scales(covector)
        found = [chain.tangent(X[..., mode], p[..., mode]) for mode, chain in enumerate(self.chains)]
        return self.layout.from_scales(np.stack(found, axis=-1))


@dataclass(frozen=True, eq=False)
class LinearClosure(_OnBlocks):
    """F(d) + DF(d) o with off-diagonal entries of chosen layers only: (1, 2) at L = 4, K = 3 has 24 variables."""

    layers: tuple[int, ...]

    @cached_property
    def between(self) -> NDArray[np.intp]:
        """Places of the off-diagonal entries that live."""
        return np.concatenate([self.layout.off_diagonal(layer) for layer in self.layers])

    def parts(self, state: Array) -> tuple[Array, Array]:
        """The diagonal part and the live off-diagonal part."""
        diagonal, between = np.zeros_like(state), np.zeros_like(state)
        diagonal[..., self.layout.diagonal] = state[..., self.layout.diagonal]
        between[..., self.between] = state[..., self.between]
        return diagonal, between

    def rates(self, state: Array) -> Array:
        """To first order in what is between the modes; other entries stay."""
        d, o = self.parts(state)
        return np.asarray(np.add(*self.parts(self.field.rates(d) + self.field.tangent(d, o))))

    def pullback(self, state: Array, covector: Array) -> Array:
        """DF is symmetric, so that only the diagonal part also needs D^2F(d)[o, p], a difference of tangents."""
        d, o = self.parts(state)
        p = np.add(*self.parts(covector))
        first = self.parts(self.field.tangent(d, p))
        size, bent = float(np.abs(o).max()), np.zeros_like(d)
        if size > 0:
            shifts = _STEP * np.array([-2.0, -1.0, 1.0, 2.0])
            weights = np.array([1.0, -8.0, 8.0, -1.0]) / (12 * _STEP)
            tangents = self.field.tangent(d + shifts[:, None] * (o / size), np.broadcast_to(p, (4, len(p))))
            bent = self.parts(np.asarray(size * weights @ tangents))[0]
        return np.asarray(first[0] + first[1] + bent)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """First-order dynamics of the off-diagonal entries o at given scales, per reduced time: o' = drive + response o.

    ``feedback`` o is what they add to the rates of the scales, (L K, entries); ``damping`` is minus the diagonal of
    ``response``, and ``steady`` = -response^-1 drive is where the entries would rest.
    """

    drive: Array
    response: Array
    feedback: Array

    @property
    def damping(self) -> Array:
        """How fast each entry decays by itself."""
        return -np.diagonal(self.response)

    @property
    def steady(self) -> Array:
        """The quasi-steady entries C*."""
        return np.asarray(-np.linalg.solve(self.response, self.drive), dtype=np.float64)


def coefficients(field: BlockField, scales: Array, layers: Sequence[int]) -> Coefficients:
    """The coefficients of the closures (62), (64) at scales (L, K), for off-diagonal entries of some layers."""
    state = field.layout.from_scales(scales)
    between = LinearClosure(field, tuple(layers)).between
    units = np.eye(field.layout.size)[between]
    columns = field.tangent(np.broadcast_to(state, units.shape), units)
    return Coefficients(
        drive=field.rates(state)[between],
        response=columns[:, between].T,
        feedback=columns[:, field.layout.diagonal].T,
    )


def duhamel(times: Array, damping: Array, drive: Array, start: float = 0.0) -> Array:
    """o(t) of o' = -damping(t) o + drive(t) from values at times (63), both linear in between."""
    steps = np.diff(times)
    if not len(times) == len(damping) == len(drive) or (steps < 0).any():
        raise InputError("give damping and drive at every time, and times in ascending order.")
    passed = np.concatenate([[0.0], np.cumsum(steps * (damping[1:] + damping[:-1]) / 2)])
    found = np.empty_like(passed)
    found[0] = start
    u, weights = gauss_legendre(8)
    for step, length in enumerate(steps):
        b = drive[step] + u * (drive[step + 1] - drive[step])
        a0, a1 = damping[step], damping[step + 1]
        left = length * ((1 - u) * a0 + (1 - u**2) * (a1 - a0) / 2)  # damping from u to the end of the step
        whole = passed[step + 1] - passed[step]
        found[step + 1] = found[step] * np.exp(-whole) + length * weights @ (b * np.exp(-left))
    return found


@dataclass(frozen=True, repr=False)
class SchurPerron(Result):
    """``gain`` is rho(D^-1 C A^-1 B); ``growth`` the positive eigenvalue, None where the gain is at most 1."""

    gain: float
    growth: float | None


def schur_perron(A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike) -> SchurPerron:
    """The test and the rate of growth, for dampings A (n) and D (m), couplings B (n, m) and C (m, n).

    >>> schur_perron([1.0], [[2.0]], [[2.0]], [1.0]).gain
    4.0
    """
    a, b, c, d = (np.array(values, dtype=float) for values in (A, B, C, D))
    _check_blocks(a, b, c, d)

    def gain(x: float) -> float:
        product = (c / (d + x)[:, None]) @ (b / (a + x)[:, None])
        return float(np.abs(np.linalg.eigvals(product)).max())

    start = gain(0.0)
    if start <= 1:
        return SchurPerron(start, None)
    high = float(np.sqrt(np.linalg.norm(b, 2) * np.linalg.norm(c, 2)))  # there the gain is below 1
    return SchurPerron(start, float(brentq(lambda x: gain(x) - 1, 0.0, high, xtol=1e-15 * high, rtol=1e-14)))


def truncated_growth(A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike) -> Array:
    """The positive eigenvalue when only the first 1, 2, ... amplitudes of the second group are kept; nan for none.

    Each one adds nonnegative couplings, so that the rates increase: a closure that leaves amplitudes out is too slow
    (Thm 25, strictly for irreducible couplings).
    """
    a, b, c, d = (np.array(values, dtype=float) for values in (A, B, C, D))
    _check_blocks(a, b, c, d)
    found = [schur_perron(a, b[:, :kept], c[:kept], d[:kept]).growth for kept in range(1, len(d) + 1)]
    return np.array([np.nan if rate is None else rate for rate in found])


def graded_example(size: int, decay: float = 0.5) -> tuple[Array, Array, Array, Array]:
    """A compact nonnegative graded matrix of our own, for showing that no truncation closes: not from a network.

    Two amplitudes of the first group couple to graded ones of the second with strengths decay^j and j-th dampings
    1 + j, so that each one left out matters less but never nothing.
    """
    if size < 1 or not 0 < decay < 1:
        raise InputError(f"size is {size} and decay {decay:g}: give 1 or more and a number between 0 and 1.")
    grades = np.arange(size, dtype=np.float64)
    falling: Array = decay**grades
    coupling: Array = np.stack([falling, 0.5 * falling])
    return np.array([1.0, 1.5]), 2 * coupling, 2 * coupling.T, 1.0 + grades


def _check_blocks(a: Array, b: Array, c: Array, d: Array) -> None:
    if a.ndim != 1 or d.ndim != 1 or b.shape != (len(a), len(d)) or c.shape != (len(d), len(a)) or not len(d):
        raise InputError(
            f"the shapes are {a.shape}, {b.shape}, {c.shape}, {d.shape}: give (n), (n, m), (m, n) and (m)."
        )
    if not all(np.isfinite(values).all() for values in (a, b, c, d)):
        raise InputError("the matrices must be finite.")
    if (a <= 0).any() or (d <= 0).any() or (b < 0).any() or (c < 0).any():
        raise InputError("dampings must be positive and couplings not negative.")
