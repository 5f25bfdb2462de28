"""Orthant probabilities and moments E[prod z_i^k_i theta(z_i)]: the exact engine for piecewise polynomials.

Integration by parts, E[z_i g] = sum_j K_ij E[dg/dz_j], lowers the powers; where it meets a step it conditions
on z_j = 0. What remains are probabilities: angles between vectors, and for four variables one integral.

Variables are unit vectors, z_i = scale_i a_i.x with x standard normal; given z_j = 0, a_j is projected out of the
others. Singular covariances are the limit of K + eta 1: a vector that a projection annihilates survives as its
direction in the perturbation, so that equal, opposite and dependent variables need no case of their own.

Equal, opposite and linearly dependent variables are exact too; correlations within 4e-15 of +-1 are such.
A variable of zero variance is 0, with theta(0) = 1. Errors count rounding and quadrature, and for bare steps
of nearly parallel variables also what rounding of K itself does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import check_covariance, difference_of_products
from foretrain.gaussian.nodes import gauss_legendre
from foretrain.gaussian.wick import lowered
from foretrain.support.errors import InputError, NotSupportedError

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
_SMALLEST_PIVOT = 16 * EPS
_SHORTEST = 1e-12  # well above the rounding that inner products of equal inputs come with


class Projection(NamedTuple):
    """The vectors once those of some variables are projected out."""

    vectors: Array  # (B, n, n); exactly 0 where a vector lies in the span of those projected out
    relations: Array  # (B, n, n); what was subtracted, in terms of the original vectors: the perturbation
    lengths: Array  # (B, n)
    units: Array  # (B, n, 2n); normalised vectors, or normalised relations for those that vanished
    noise: Array  # (B, n); rounding error of the vectors
    turned: Array  # (B, n); rounding error of the units


def unit_vectors(correlations: Array) -> Array:
    """Unit vectors (B, n, n) with the given correlations: a Cholesky factor, largest pivot first.

    A direction is given up when no variable has more than rounding left in it; until then every variable
    keeps its share, however small, since moments of positive power feel it.
    """
    batch, n, _ = correlations.shape
    rows = np.arange(batch)
    rest = np.clip(correlations, -1.0, 1.0)
    rest[:, np.arange(n), np.arange(n)] = 1.0
    vectors = np.zeros_like(rest)
    for column in range(n):
        pivot = np.argmax(np.diagonal(rest, axis1=1, axis2=2), axis=1)
        largest = rest[rows, pivot, pivot]
        alive = largest > _SMALLEST_PIVOT
        safe = np.where(alive, largest, 1.0)[:, None]
        step = np.where(alive[:, None], rest[rows, pivot], 0.0)
        vectors[:, :, column] = step / np.sqrt(safe)
        shares = difference_of_products(rest, safe[:, :, None], step[:, :, None], step[:, None, :])
        rest = shares / safe[:, :, None]
        # The pivot itself is used up, whatever rounding says.
        rest[rows, pivot], rest[rows, :, pivot] = 0.0, 0.0
    return np.asarray(vectors / np.linalg.norm(vectors, axis=2, keepdims=True))


def start(vectors: Array) -> Projection:
    """The vectors (B, n, n) before anything is projected out."""
    relations = np.broadcast_to(np.eye(vectors.shape[1]), vectors.shape)
    return _sort(vectors, relations, np.full(vectors.shape[:2], EPS))


def project_out(base: Projection, path: Sequence[tuple[int, Projection]]) -> Projection:
    """Condition on z_j = 0 for every j of the path; with each j comes the projection of those before it."""
    vectors, relations = base.vectors, base.relations
    for j, _ in path:
        # Nearly parallel vectors are subtracted first, which is exact, and their small difference projected.
        signs = np.sign(np.einsum("bnv,bv->bn", base.vectors, base.vectors[:, j]))[:, :, None]
        difference = base.vectors - signs * base.vectors[:, None, j]
        nearer = (np.linalg.norm(difference, axis=2) < np.linalg.norm(vectors, axis=2))[:, :, None]
        vectors = np.where(nearer, difference, vectors)
        relations = np.where(nearer, base.relations - signs * base.relations[:, None, j], relations)
    noise = EPS * np.linalg.norm(vectors, axis=2)
    for _ in range(2):  # the second pass removes what rounding left of the first
        for j, before in path:
            direction, length = before.units[:, j, : vectors.shape[2]], before.lengths[:, j, None]
            along = np.einsum("bnv,bv->bn", vectors, direction)
            shares = along / np.where(length > 0, length, 1.0)
            vectors = vectors - along[:, :, None] * direction[:, None]
            relations = relations - shares[:, :, None] * before.relations[:, None, j]
            noise = noise + np.abs(along) * before.turned[:, j, None]
    return _sort(vectors, relations, noise)


def _sort(vectors: Array, relations: Array, noise: Array) -> Projection:
    """Tell the vectors that are left from those that lie in the span of what was projected out."""
    lengths = np.linalg.norm(vectors, axis=2)
    gone = lengths < np.maximum(32 * noise, _SHORTEST)
    noise = np.where(gone, lengths, noise)
    lengths = np.where(gone, 0.0, lengths)
    vectors = np.where(gone[:, :, None], 0.0, vectors)
    size = np.linalg.norm(relations, axis=2)
    perturbed = np.where(gone[:, :, None], relations / np.where(size > 0, size, 1.0)[:, :, None], 0.0)
    safe = np.where(gone, 1.0, lengths)
    units = np.concatenate([vectors / safe[:, :, None], perturbed], axis=2)
    return Projection(vectors, relations, lengths, units, noise, np.where(gone, 0.0, noise / safe))


def angle_between(u: Array, v: Array) -> Array:
    """The angle between unit vectors, to full precision also near 0 and pi."""
    return np.asarray(2 * np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1)))


Subset = tuple[int, ...]
Powers = tuple[int, ...]
Terms = dict[tuple[Powers, Subset], float]

_LARGEST_ORTHANT = 4
_LARGEST_ORDER = 100
_BATCH = 8192  # covariances at a time: bounds the memory of the quadrature
_PANEL = 2.5  # length of a panel in units in which every branch point is pi/2 away from the real axis


class Bounded(NamedTuple):
    """Values and honest estimates of their absolute errors (rounding and quadrature)."""

    value: Array
    error: Array


def orthant_probability(K: ArrayLike) -> Array:
    """P(all z_i >= 0) for covariances (..., n, n), n <= 4."""
    return orthant_moment(K, [0] * (np.shape(K)[-1] if np.ndim(K) else 0))


def orthant_moment(K: ArrayLike, powers: Sequence[int], steps: Sequence[int] | None = None) -> Array:
    """E[prod_i z_i^powers[i] prod_(i in steps) theta(z_i)] for covariances (..., n, n).

    ``steps`` names the variables under a step function, at most four; all of them unless told otherwise.
    """
    return orthant_moment_with_error(K, powers, steps).value


def orthant_moment_with_error(
    K: ArrayLike, powers: Sequence[int], steps: Sequence[int] | None = None
) -> Bounded:
    """As :func:`orthant_moment`, with an estimate of the absolute error."""
    covariance = check_covariance(K, len(powers))
    if any(power < 0 or power != int(power) for power in powers):
        raise InputError(f"the powers {tuple(powers)} must be whole numbers from 0 on, one per variable.")
    chosen = tuple(sorted(set(range(len(powers)) if steps is None else steps)))
    if any(not 0 <= step < len(powers) for step in chosen):
        raise InputError(f"the steps {chosen} must lie within the {len(powers)} variables, counted from 0.")
    value, error = _evaluate(covariance, [{(tuple(int(power) for power in powers), chosen): 1.0}])
    return Bounded(value[0], error[0])


Pieces = Sequence[tuple[Sequence[float], Sequence[float]]]


def piecewise_polynomial_moment(pieces: Pieces, K: ArrayLike) -> Bounded:
    """E[prod_i f_i(z_i)], where f_i is one polynomial for z < 0 and another for z >= 0.

    ``pieces[i]`` holds their coefficients, lowest power first: ReLU is ``([0], [0, 1])``. At most four
    factors may have two different polynomials.
    """
    value, error = piecewise_polynomial_moments([pieces], K)
    return Bounded(value[0], error[0])


def piecewise_polynomial_moments(products: Sequence[Pieces], K: ArrayLike) -> Bounded:
    """The same of several products (P, ...), which share what they have in common."""
    covariance = check_covariance(K, len(products[0]))
    return _evaluate(
        covariance,
        [_terms(tuple((tuple(below), tuple(above)) for below, above in pieces)) for pieces in products],
    )


@lru_cache(maxsize=256)
def _terms(pieces: Pieces) -> Terms:
    """The product as a sum of powers and steps."""
    factors: list[list[tuple[int, float, bool]]] = []
    for index, (below, above) in enumerate(pieces):
        both = np.zeros((2, max(len(below), len(above), 1)))
        both[0, : len(below)] = below
        both[1, : len(above)] = above
        if not np.isfinite(both).all():
            raise InputError(f"the pieces of factor {index} have coefficients that are not finite.")
        # f = below + (above - below) theta as a list of (power, coefficient, under a step).
        plain = [(k, float(c), False) for k, c in enumerate(both[0]) if c]
        step = [(k, float(c), True) for k, c in enumerate(both[1] - both[0]) if c]
        factors.append(plain + step)
    terms: Terms = {}
    for choice in itertools.product(*factors):
        powers = tuple(power for power, _, _ in choice)
        steps = tuple(index for index, (_, _, stepped) in enumerate(choice) if stepped)
        terms[powers, steps] = terms.get((powers, steps), 0.0) + math.prod(weight for _, weight, _ in choice)
    return terms


def _evaluate(K: Array, several: Sequence[Terms]) -> Bounded:
    """Each sum of terms for every covariance of the batch: (sums, ...)."""
    steps = max((len(steps) for terms in several for _, steps in terms), default=0)
    order = max((sum(powers) for terms in several for powers, _ in terms), default=0)
    if order > _LARGEST_ORDER:
        raise NotSupportedError(
            f"a moment of order {order} exceeds {_LARGEST_ORDER}, the highest that is offered."
        )
    if steps > _LARGEST_ORTHANT:
        raise NotSupportedError(
            f"{steps} variables have a step, but orthants are offered up to {_LARGEST_ORTHANT}: "
            "use fewer kinked factors or sample."
        )
    flat = K.reshape(-1, *K.shape[-2:])
    value, error = np.zeros((2, len(several), len(flat)))
    dead = np.diagonal(flat, axis1=1, axis2=2) <= 0
    for pattern in np.unique(dead, axis=0):
        members = np.flatnonzero((dead == pattern).all(axis=1))
        alive = np.flatnonzero(~pattern)
        # Every other variable is 0, where its step is 1 and its positive powers vanish.
        place = {int(old): new for new, old in enumerate(alive)}
        for first in range(0, len(members), _BATCH):
            batch = members[first : first + _BATCH]
            part = flat[batch][:, alive][:, :, alive]
            scale = np.sqrt(np.diagonal(part, axis1=1, axis2=2))
            moments = _Moments(part / (scale[:, :, None] * scale[:, None, :]))
            for number, terms in enumerate(several):
                for (powers, stepped), weight in terms.items():
                    if any(power for index, power in enumerate(powers) if index not in place):
                        continue
                    left = tuple(powers[index] for index in place)
                    under = tuple(place[s] for s in stepped if s in place)
                    term, doubt = moments.moment((), left, under)
                    size = weight * np.prod(scale ** np.array(left, dtype=float), axis=1)
                    value[number, batch] += size * term
                    rounding = EPS * np.abs(term) + moments.sensitivity(left, under)
                    error[number, batch] += np.abs(size) * (doubt + rounding)
    shape = (len(several), *K.shape[:-2])
    return Bounded(value.reshape(shape)[()], error.reshape(shape)[()])


class _Moments:
    """Moments of unit-variance variables, batched over correlation matrices (B, n, n); everything is kept."""

    def __init__(self, correlations: Array) -> None:
        self._projections: dict[Subset, Projection] = {(): start(unit_vectors(correlations))}
        self._moments: dict[tuple[Subset, Powers, Subset], tuple[Array, Array]] = {}

    def moment(self, given: Subset, powers: Powers, steps: Subset) -> tuple[Array, Array]:
        """E[prod x_i^powers[i] prod_steps theta(x_i) | x_given = 0] and its error."""
        key = given, powers, steps
        if key not in self._moments:
            evaluate = self._lower if any(powers) else self._probability
            self._moments[key] = evaluate(given, powers, steps)
        return self._moments[key]

    def sensitivity(self, powers: Powers, steps: Subset) -> Array:
        """What rounding of correlations does to bare steps of nearly parallel variables (Price's theorem)."""
        units = self.projection(()).units
        order = sum(powers)
        bound = 2 ** (order / 2) * math.gamma((order + 1) / 2) / math.sqrt(math.pi)
        total = np.zeros(len(units))
        for i, j in itertools.combinations([step for step in steps if not powers[step]], 2):
            sine = np.sin(angle_between(units[:, i], units[:, j]))
            total += np.where(sine > 32 * EPS, 4 * EPS / np.maximum(sine, math.sqrt(EPS)), 0.0)
        return total * bound / (2 * math.pi)

    def _lower(self, given: Subset, powers: Powers, steps: Subset) -> tuple[Array, Array]:
        """Integration by parts on the variable with the highest power."""
        i = max(range(len(powers)), key=lambda index: (powers[index], index not in steps))
        rest = lowered(powers, i)
        here = self.projection(given)
        value, error = np.zeros(len(here.vectors)), np.zeros(len(here.vectors))
        for j, power in enumerate(rest):
            if power:
                child = self.moment(given, lowered(rest, j), steps)
                weight = power * np.einsum("bv,bv->b", here.vectors[:, i], here.vectors[:, j])
                rounding = power * (here.noise[:, i] + here.noise[:, j])
            elif j in steps:
                others = tuple(step for step in steps if step != j)
                child = self.moment(tuple(sorted((*given, j))), rest, others)
                unit = here.units[:, j, : len(powers)]
                weight = np.einsum("bv,bv->b", here.vectors[:, i], unit) / math.sqrt(2 * math.pi)
                rounding = here.noise[:, i] + here.lengths[:, i] * here.turned[:, j]
            else:
                continue
            value += weight * child[0]
            error += np.abs(weight) * child[1] + rounding * np.abs(child[0])
        return value, error

    def _probability(self, given: Subset, powers: Powers, steps: Subset) -> tuple[Array, Array]:
        here = self.projection(given)
        units = here.units[:, list(steps)]
        rounding = EPS + here.turned[:, list(steps)].sum(axis=1) / math.pi
        if len(steps) < 2:
            return np.full(len(units), 0.5 ** len(steps)), np.zeros(len(units))
        if len(steps) == _LARGEST_ORTHANT:
            # Plackett's integral along the path that turns the first vector from a right angle into its place. With
            # t = cos(y) and T = tan(y) the integrand is elementary in T and branches at T = +-i d, where d are the
            # distances of the first vector from the spans of the others.
            first, *others = steps
            three, doubt = self.moment((), (0,) * self.projection(()).vectors.shape[1], tuple(others))
            faces = [self._face(first, j, others) for j in others]
            value = three / 2 + sum((math.pi / 2 - face.angle) / (4 * math.pi) for face in faces)
            fine, coarse = _integrate(faces, 24), _integrate(faces, 20)
            return np.maximum(value - fine, 0.0), doubt + np.abs(fine - coarse) + rounding
        angles = sum(
            angle_between(units[:, a], units[:, b]) for a, b in itertools.combinations(range(len(steps)), 2)
        )
        return np.maximum(0.5 - angles / (2 * math.pi * (len(steps) - 1)), 0.0), rounding

    def _face(self, first: int, j: int, others: Sequence[int]) -> _Face:
        """Everything in one term of the integrand that does not depend on the path."""
        here, base = self.projection((j,)), self.projection(())
        edge, other = (here.units[:, index] for index in others if index != j)
        top = here.vectors[:, first]
        opening = angle_between(edge, other)
        cosine, sine = np.cos(opening), np.sin(opening)
        upright = np.where(sine[:, None] > 0, other - cosine[:, None] * edge, 0.0)
        upright /= np.maximum(np.linalg.norm(upright, axis=1, keepdims=True), np.finfo(float).tiny)
        n = top.shape[1]
        along, across = (np.einsum("bv,bv->b", top, v[:, :n]) for v in (edge, upright))
        above = top - along[:, None] * edge[:, :n] - across[:, None] * upright[:, :n]
        return _Face(
            angle=angle_between(base.units[:, first], base.units[:, j]),
            cosine=cosine,
            sine=sine,
            length=here.lengths[:, first],
            from_edge=across,
            from_other=cosine * across - sine * along,
            height=np.linalg.norm(above, axis=1),
        )

    def projection(self, given: Subset) -> Projection:
        """The vectors of all variables with those of ``given`` projected out."""
        if given not in self._projections:
            path = [(j, self.projection(given[:place])) for place, j in enumerate(given)]
            self._projections[given] = project_out(self.projection(()), path)
        return self._projections[given]


class _Face(NamedTuple):
    """One vector j of the other three, seen from its orthogonal complement: k and l span a plane there."""

    angle: Array  # between the first vector and j
    cosine: Array  # of the angle between k and l
    sine: Array
    length: Array  # of the first vector
    from_edge: Array  # in-plane distance of the first vector from k
    from_other: Array  # and from l, both with sign
    height: Array  # of the first vector above the plane

    def scales(self) -> tuple[Array, ...]:
        """The distances of the first vector from the spans of j, k and l."""
        sides = (np.hypot(self.height, side) for side in (self.from_edge, self.from_other))
        return self.height, self.length, *sides


def _integrate(faces: Sequence[_Face], nodes: int) -> Array:
    """(1 / 4 pi^2) int dy sum_j cos(angle_j) T / sqrt(T^2 + length^2) times the dihedral angle, T = tan y."""
    x, w = gauss_legendre(nodes)
    inverse = np.tan(x * math.pi / 4)[None, :]
    total = (_integrand(faces, np.ones(1), inverse) * (w * math.pi / 4)).sum(axis=1)
    scales = np.stack([scale for face in faces for scale in face.scales()])
    nearest = np.min(np.where(scales > 4 * EPS, scales, 1.0), axis=0)
    reach = np.arcsinh(1 / nearest)
    panels = np.ceil(reach / _PANEL).astype(int)
    for count in np.unique(panels):
        members = np.flatnonzero(panels == count)
        position = ((np.arange(count)[:, None] + x) / count).ravel()
        weight = np.tile(w / count, count)
        s = reach[members, None] * position
        T = nearest[members, None] * np.sinh(s)
        measure = reach[members, None] * weight * nearest[members, None] * np.cosh(s) / (1 + T**2)
        chosen = [_Face(*(entry[members] for entry in face)) for face in faces]
        total[members] += (_integrand(chosen, T, np.ones(1)) * measure).sum(axis=1)
    return np.asarray(total)


def _integrand(faces: Sequence[_Face], top: Array, bottom: Array) -> Array:
    """The integrand at T = top / bottom, in a form that holds for T = 0 and for infinite T."""
    total = np.zeros(np.broadcast_shapes((len(faces[0].angle), 1), top.shape, bottom.shape))
    for face in faces:
        cosine, sine, length, from_edge, from_other, height = (entry[:, None] for entry in face[1:])
        raised = top**2 + (height * bottom) ** 2
        stretched = np.sqrt(top**2 + (length * bottom) ** 2)
        dihedral = np.arctan2(
            sine * np.sqrt(raised) * stretched, cosine * raised + from_edge * from_other * bottom**2
        )
        total += np.cos(face.angle)[:, None] * top / stretched * dihedral
    return total / (4 * math.pi**2)
