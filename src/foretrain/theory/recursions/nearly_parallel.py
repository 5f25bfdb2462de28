"""H1 between nearly parallel inputs of an activation with a kink at zero, right at every angle psi.

Partial derivatives of <s'_a s'_b> grow as psi^-1 and psi^-3, and multiply combinations of V, D and F that vanish as
fast: in the basis of the inputs all digits cancel. Here everything is carried in the basis (z_a, w), with
w = z_b - c z_a of order psi and each scaled to variance one, where nothing is large and nothing cancels. Derivatives
are Hermite moments of two independent variables, <d d f> = <f (u u - 1)>, in polar coordinates, in which an
activation is smooth on each of four sectors.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian.covariance import difference_of_products
from foretrain.gaussian.nodes import gauss_laguerre, gauss_legendre, legendre_panels
from foretrain.support.progress import track
from foretrain.theory.recursions.contraction import derivative
from foretrain.theory.recursions.expectations import PairExpectations, Step

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_NEAR = {"closed form": 0.1, "quadrature": 0.3}  # sine of the angle, by how the inputs' own basis integrates
_TIED = 1e-13  # of sin^2: several layers of rounding
_NOTHING = 1e-11  # a spread of w that is rounding, relative to that of z_b
_POINTS = 100_000  # pairs times nodes at a time
_ANGLES = np.array([0.0, 0.02, 0.12, 0.5, 0.88, 0.98, 1.0])  # of a sector
_RADII = np.array([0.0, 0.03, 0.15, 0.6, 1.5, 3.5, 6.0, 10.0])


def is_covered(activation: Activation) -> bool:
    """Whether all kinks are at zero, so that sectors hold none."""
    return bool(activation.kinks) and all(kink.location == 0 for kink in activation.kinks)


def nearly_parallel(activation: Activation, K: Array, a: Indices, b: Indices) -> NDArray[np.bool_]:
    """Pairs of two inputs at so small an angle that the basis of the inputs loses digits."""
    limit = _NEAR["quadrature" if activation.slopes is None else "closed form"]
    product = K[a, a] * K[b, b]
    return np.asarray((a != b) & (product > 0) & (_determinant(K, a, b) <= limit**2 * product))


def _determinant(K: Array, a: Indices, b: Indices) -> Array:
    return np.maximum(difference_of_products(K[a, a], K[b, b], K[a, b], K[a, b]), 0.0)


@dataclass(frozen=True)
class Basis:
    """u_0 = z_a / first and u_1 = (z_b - slope z_a) / second, for every pair."""

    first: Array
    slope: Array
    second: Array

    def to(self, other: Basis) -> Array:
        """Matrices (Q, 2, 2) from these coordinates to others; a second one of no size is left out."""
        size = np.where(other.second > 0, other.second, np.inf)
        change = np.zeros((len(size), 2, 2))
        change[:, 0, 0] = self.first / other.first
        change[:, 1, 0] = (self.slope - other.slope) * self.first / size
        change[:, 1, 1] = self.second / size
        return change

    @classmethod
    def of_inputs(cls, count: int) -> Basis:
        """z_a and z_b themselves."""
        return cls(np.ones(count), np.zeros(count), np.ones(count))

    @classmethod
    def independent(cls, K: Array, a: Indices, b: Indices) -> Basis:
        """Two independent variables of variance one, or one where the inputs are tied."""
        variance, determinant = K[a, a], _determinant(K, a, b)
        apart = determinant > _TIED * variance * K[b, b]
        spread = np.where(apart, np.sqrt(determinant / variance), 0.0)
        return cls(np.sqrt(variance), K[a, b] / variance, spread)

    def after(self, C_b: Array, C_W: float) -> Basis:
        """Independent variables of the next layer, K' = C_b + C_W <s s>, from those of s: no angle is lost in K'."""
        grown = C_W * self.first**2
        variance = C_b + grown
        shared = grown * (self.slope - 1) ** 2 * C_b / variance  # of the biases, where the sizes differ
        return Basis(
            np.sqrt(variance), (C_b + grown * self.slope) / variance, np.sqrt(C_W * self.second**2 + shared)
        )

    def __getitem__(self, chosen: Indices | slice) -> Basis:
        return Basis(self.first[chosen], self.slope[chosen], self.second[chosen])

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class PairState:
    """What H1 of a pair (a, b) needs: G1 and D on (00, 01, 11), V between these, F_{i a j b}, i, j in {0, 1}, H1."""

    metric: Array
    vertex: Array
    mixed: Array
    cross: Array
    correction: Array

    def __getitem__(self, chosen: NDArray[np.bool_] | Indices | slice) -> PairState:
        return PairState(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def changed(self, change: Array) -> PairState:
        """The same in other coordinates (Q, 2, 2)."""
        (p, q), (r, s) = change[:, 0].T, change[:, 1].T
        rows = [[p * p, 2 * p * q, q * q], [p * r, p * s + q * r, q * s], [r * r, 2 * r * s, s * s]]
        twice = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)  # on the products 00, 01, 11
        return PairState(
            (twice @ self.metric[:, :, None])[:, :, 0],
            twice @ self.vertex @ twice.transpose(0, 2, 1),
            (twice @ self.mixed[:, :, None])[:, :, 0],
            change @ self.cross @ change.transpose(0, 2, 1),
            self.correction,
        )


class NearlyParallelPairs:
    """Follows the pairs that are nearly parallel, as long as they are."""

    def __init__(self) -> None:
        self._followed: _Followed | None = None

    def step(
        self, old: PairExpectations, step: Step, state: PairState, near: NDArray[np.bool_]
    ) -> tuple[Indices, Array]:
        """The numbers of the pairs ``near`` and their H1 in the next layer; ``state`` is that of all, by inputs."""
        where, followed = np.flatnonzero(near), self._followed
        self._followed = None
        if not len(where):
            return where, np.zeros(0)
        a, b = old.pairs.first[where], old.pairs.second[where]
        basis = Basis.independent(old.K, a, b)
        state = state[where].changed(Basis.of_inputs(len(where)).to(basis))
        if followed is not None:
            followed.replace(old, where, a, basis, state)
        Theta, parts = old.Theta[a, b], []
        for part in track(_parts(old.activation, len(where)), "nearly parallel inputs"):
            moments = _moments(old.activation, basis[part])
            parts.append((moments.basis, moments.next(state[part], Theta[part], step)))
        following, after = (list(each) for each in zip(*parts, strict=True))
        self._followed = _Followed(
            where, Basis(*_joined(following)), PairState(*_joined(after)), step.C_W, old.of(0, 0).diagonal()
        )
        return where, self._followed.state.correction


@dataclass(frozen=True)
class _Followed:
    """Pairs by their numbers, with what the last layer left: s in a basis, their state in it, <s^2> of all inputs."""

    where: Indices
    basis: Basis
    state: PairState
    C_W: float
    squares: Array

    def replace(
        self, layer: PairExpectations, where: Indices, a: Indices, basis: Basis, state: PairState
    ) -> None:
        """Put what is known of the pairs ``where`` of this layer into their basis and state."""
        _, mine, theirs = np.intersect1d(self.where, where, assume_unique=True, return_indices=True)
        inputs = a[theirs]
        C_b = np.maximum(layer.K.diagonal()[inputs] - self.C_W * self.squares[inputs], 0.0)
        new = self.basis[mine].after(C_b, self.C_W)
        kept = self.state[mine].changed(self.basis[mine].to(new))
        for target, source in ((basis, new), (state, kept)):
            for field in fields(target):
                getattr(target, field.name)[theirs] = getattr(source, field.name)


def _joined(parts: list[Basis] | list[PairState]) -> list[Array]:
    """Every field of all parts together."""
    return [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(parts[0])]


def _parts(activation: Activation, count: int) -> list[slice]:
    rule = _polar_rule(activation.slopes is not None)
    size = max(1, _POINTS // (2 * (len(rule.narrow[0]) + len(rule.wide[0])) * len(rule.radii[0])))
    return [slice(start, start + size) for start in range(0, count, size)]


@dataclass(frozen=True)
class _PairMoments:
    """Moments of f = (p_0 p_0, p_0 p_1, p_1 p_1, s'_a s'_b), p the next layer's variables before their weights."""

    basis: Basis  # of the next layer, scaled by <p p> = 1
    hermite: Array  # (Q, 4, 9): <f h>, h of degree none, then two (00, 01, 11), then four (0000, ..., 1111)
    products: Array  # (Q, 4, 4): <f f>
    left: Array  # (Q, 2, 2): <p_i s'_a u_k>
    right: Array  # (Q, 2, 2): <p_j s'_b u_l>

    def next(self, state: PairState, Theta: Array, step: Step) -> PairState:
        """(4.115), (4.119), (8.77), (8.79) and H1 as in pair_blocks, in these variables."""
        means = self.hermite[:, :, 0]
        covariance = self.products - means[:, :, None] * means[:, None, :]
        response = self.hermite[:, :, 1:4] * np.array([0.5, 1.0, 0.5])
        shift = self._shift(state, response)
        first, slope, second = self.basis.first, self.basis.slope, self.basis.second
        nothing, slopes = np.zeros_like(first), np.array([0.0, 0.0, 0.0, 1.0])
        values = np.stack([slope * first**2, first * second, nothing, nothing], axis=1)  # s_a s_b
        Omega = step.lambda_W * values + step.C_W * Theta[:, None] * slopes
        growth = step.C_W * means[:, 3]
        M, M_slopes = response[:, :3], response[:, 3]
        M_Omega = (Omega[:, None] @ response)[:, 0]
        V, D, F = state.vertex, state.mixed, state.cross
        inner = (V @ M_Omega[:, :, None])[:, :, 0] + growth[:, None] * D
        mixed = (covariance[:, :3] @ Omega[:, :, None])[:, :, 0]
        mixed += step.ratio * (M @ inner[:, :, None])[:, :, 0]
        both = self.products[:, :3, 3][:, [[0, 1], [1, 2]]] * Theta[:, None, None]
        correction = (Omega * shift).sum(axis=1) + growth * state.correction
        correction += step.C_W * ((M_slopes * D).sum(axis=1) + _paired(M_slopes, F))
        # A constant in every metric entry of the inputs, on the products of the next basis.
        vector = Basis.of_inputs(len(self.left)).to(self.basis).sum(axis=2)
        ones = np.stack([vector[:, 0] ** 2, vector[:, 0] * vector[:, 1], vector[:, 1] ** 2], axis=1)
        return PairState(
            step.ratio * step.C_W * shift[:, :3] + step.C_b_1 * ones + step.C_W_1 * means[:, :3],
            step.C_W**2 * (covariance[:, :3, :3] + step.ratio * M @ V @ M.transpose(0, 2, 1)),
            step.C_W * mixed,
            step.C_W**2 * (both + step.ratio * self.left @ F @ self.right.transpose(0, 2, 1)),
            step.ratio * correction + step.C_W_1 * means[:, 3] * Theta,
        )

    def _shift(self, state: PairState, response: Array) -> Array:
        """n times the shift of every <f> by G1 and V: <d d f> G1 / 2 + <d d d d f> V / 8."""
        V = state.vertex
        fourth = np.stack(
            [V[:, 0, 0], 4 * V[:, 0, 1], 2 * V[:, 0, 2] + 4 * V[:, 1, 1], 4 * V[:, 1, 2], V[:, 2, 2]], axis=1
        )
        by_metric = (response @ state.metric[:, :, None])[:, :, 0]
        return np.asarray(by_metric + (self.hermite[:, :, 4:] @ fourth[:, :, None])[:, :, 0] / 8)


def _paired(response: Array, F: Array) -> Array:
    """<d_i d_j f> F_ij from the response (1/2, 1, 1/2) <d d f> on 00, 01, 11."""
    return np.asarray(
        2 * response[:, 0] * F[:, 0, 0]
        + response[:, 1] * (F[:, 0, 1] + F[:, 1, 0])
        + 2 * response[:, 2] * F[:, 1, 1]
    )


def _moments(activation: Activation, basis: Basis) -> _PairMoments:
    """All moments of some pairs whose independent variables are given: arrays (Q, nodes) throughout."""
    along = basis.slope * basis.first
    angle = np.arctan2(basis.second, along)  # between the lines z_a = 0 and z_b = 0
    theta, radius, weight = _polar_rule(activation.slopes is not None).nodes(angle)
    u = np.stack([radius * np.cos(theta), radius * np.sin(theta)])
    z_a = basis.first[:, None] * u[0]
    z_b = np.hypot(along, basis.second)[:, None] * radius * np.cos(theta - angle[:, None])
    s_a, s_b = derivative(activation, z_a, 0), derivative(activation, z_b, 0)
    slopes = [derivative(activation, each, 1) for each in (z_a, z_b)]
    # The next variables: s_a and what s_b has besides, each scaled to mean square one; none where it is rounding.
    first = np.sqrt((weight * s_a**2).sum(axis=1))
    slope = (weight * s_a * s_b).sum(axis=1) / first**2
    rest = s_b - slope[:, None] * s_a
    second = np.sqrt((weight * rest**2).sum(axis=1))
    second[second <= _NOTHING * np.sqrt((weight * s_b**2).sum(axis=1))] = 0.0
    p = s_a / first[:, None], rest / np.where(second > 0, second, np.inf)[:, None]
    f = np.stack([p[0] * p[0], p[0] * p[1], p[1] * p[1], slopes[0] * slopes[1]], axis=1)
    weighted = f * weight[:, None]
    to_u = np.stack(list(u), axis=2)
    left, right = (np.stack([p[0] * each * weight, p[1] * each * weight], axis=1) @ to_u for each in slopes)
    # 1, then the Hermite polynomials of degree two and of degree four.
    (x, y), (x_2, y_2) = u, u**2 - 1
    of_degree_4 = [x**4 - 6 * x_2 - 3, (x_2 - 2) * x * y, x_2 * y_2, x * y * (y_2 - 2), y**4 - 6 * y_2 - 3]
    hermite = weighted @ np.stack([np.ones_like(x), x_2, x * y, y_2, *of_degree_4], axis=2)
    return _PairMoments(Basis(first, slope, second), hermite, weighted @ f.transpose(0, 2, 1), left, right)


@dataclass(frozen=True)
class _PolarRule:
    """Nodes and weights on [0, 1] for narrow and wide sectors, and on radii with r exp(-r^2 / 2)."""

    narrow: tuple[Array, Array]
    wide: tuple[Array, Array]
    radii: tuple[Array, Array]

    def nodes(self, angle: Array) -> tuple[Array, Array, Array]:
        """Angles, radii and weights (Q, nodes) for two lines that cross at ``angle``, in [0, pi]."""
        starts = np.stack([np.full_like(angle, -np.pi / 2), angle - np.pi / 2], axis=1)
        widths = np.stack([angle, np.pi - angle], axis=1)
        small = widths.argmin(axis=1)
        theta, share = [], []
        for which, (x, w) in ((small, self.narrow), (1 - small, self.wide)):
            start, width = (np.take_along_axis(each, which[:, None], 1) for each in (starts, widths))
            for turn in (0.0, np.pi):  # opposite sectors
                theta.append(start + turn + width * x)
                share.append(width * w / (2 * np.pi))
        r, v = self.radii
        angles, shares = np.concatenate(theta, axis=1), np.concatenate(share, axis=1)
        shape = (len(angle), -1)
        return (
            np.repeat(angles, len(r), axis=1),
            np.tile(r, angles.shape[1])[None],
            (shares[:, :, None] * v).reshape(shape),
        )


@lru_cache(maxsize=2)
def _polar_rule(homogeneous: bool) -> _PolarRule:
    """For a homogeneous activation all is a polynomial in r^2, of degree four; else graded panels."""
    if homogeneous:
        t, w = gauss_laguerre(4)
        return _PolarRule(gauss_legendre(12), gauss_legendre(32), (np.sqrt(2 * t), w))
    r, v = legendre_panels(_RADII, 12)
    return _PolarRule(gauss_legendre(12), legendre_panels(_ANGLES, 12), (r, v * r * np.exp(-(r**2) / 2)))
