"""Nearly-Gaussian laws p(z) ~ exp(-S(z)): even actions, and the quartic one to first order in its coupling.

A tensor coupling carries its small factor: ``coupling`` is epsilon V. Networks have a positive connected
four-point correlator, hence a negative coupling and no normalisable exp(-S): their action serves first-order
formulas only. :func:`physical_expectation` does without it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import check_covariance
from foretrain.gaussian.expectation import Expectation
from foretrain.gaussian.wick import gaussian_moment, pairings
from foretrain.support.errors import ForetrainWarning, InputError, NotSupportedError
from foretrain.support.user_warnings import warn_user

Array = NDArray[np.float64]

Observable = Callable[[Array], ArrayLike]

_RANGE = 10.0  # in standard deviations: beyond it the Gaussian weight is below 1e-21
_LARGEST_LATTICE = {1: 200_000, 2: 5_000_000, 3: 10_000_000}  # by rank
_CHUNK = 2**17


def lattice_mean(
    observable: Observable, root: Array, weight: Callable[[Array], Array], tolerance: float
) -> Expectation:
    """<weight O> / <weight> under z = root x with x standard normal.

    Unlike the rule of ``lattice.py``, whose error estimates presume a smooth integrand, this one takes observables
    with kinks at unknown places: there its changes fall by 4 at every halving, and the error quoted is the last
    change. ``observable`` maps points z (P, N) to P values, ``weight`` points x.
    """
    rank = root.shape[1]
    if rank not in _LARGEST_LATTICE:
        raise NotSupportedError(
            f"the covariance has rank {rank}, but a lattice is offered up to rank {max(_LARGEST_LATTICE)}: "
            "use the moments for polynomials, or sample."
        )
    values: list[float] = []
    error, points, step = math.inf, 0, 1.0
    while points * 2**rank <= _LARGEST_LATTICE[rank]:
        axis = np.arange(-math.floor(_RANGE / step), math.floor(_RANGE / step) + 1, dtype=np.float64) * step
        points, step = len(axis) ** rank, step / 2
        sums = np.zeros(2)
        for first in range(0, points, _CHUNK):
            places = np.arange(first, min(first + _CHUNK, points))
            x = np.asarray(axis[np.stack(np.unravel_index(places, (len(axis),) * rank), axis=-1)])
            mass = np.exp(-(x**2).sum(axis=1) / 2) * weight(x)
            sums += mass @ _values(observable, x @ root.T), mass.sum()
        values.append(float(sums[0] / sums[1]))
        if len(values) < 3:
            continue
        # The last change, times the rate at which changes fall if that is better than 4.
        change, before = abs(values[-1] - values[-2]), abs(values[-2] - values[-3])
        remaining = change * (min(1.0, 4 * change / before) if before else 1.0)
        # Of a mean over so many points: the rounding of one term, and of sums that err like a random walk.
        rounding = float(np.finfo(np.float64).eps) * (8 + math.sqrt(points) / 16)
        error = remaining + rounding * abs(values[-1])
        if error <= tolerance * max(1.0, abs(values[-1])):
            break
    else:
        warn_user(
            f"the lattice settled to {error:.1e} only, above the tolerance of {tolerance:.1e}: the observable "
            "has kinks or varies fast."
        )
    return Expectation(np.asarray(values[-1]), np.asarray(error), f"lattice of {points} points")


def _values(observable: Observable, z: Array) -> Array:
    values = np.asarray(observable(z), dtype=np.float64)
    if values.shape != (len(z),):
        raise InputError(
            f"the observable gave shape {values.shape} for {z.shape[0]} points of {z.shape[1]} variables: "
            "it must return one number per point."
        )
    if not np.isfinite(values).all():
        raise InputError("the observable is not finite everywhere: restrict it or bound it.")
    return values


class NegativeCouplingWarning(ForetrainWarning):
    """exp(-S) is not normalisable; first-order formulas stay meaningful, exact integration does not."""


class EvenAction:
    """S(z) = z K^-1 z / 2 + sum_m s_2m z^2m / (2m)! with totally symmetric tensors {2m: s_2m} (1.81)."""

    def __init__(self, K: ArrayLike, couplings: Mapping[int, ArrayLike]) -> None:
        self.K = check_covariance(np.atleast_2d(np.asarray(K)))
        if self.K.ndim != 2:
            raise InputError(f"an action has one covariance (N, N), but K has shape {self.K.shape}.")
        self.couplings = {
            order: _symmetric(tensor, order, len(self.K)) for order, tensor in sorted(couplings.items())
        }
        self._root = _root(self.K)
        lowest = {order: _lowest(tensor) for order, tensor in self.couplings.items()}
        highest = max(lowest, default=0)
        self.is_normalisable = all(value >= 0 for value in lowest.values()) or lowest[highest] > 0
        if not self.is_normalisable:
            warn_user(
                "the coupling is negative in some direction, so exp(-S) cannot be normalised: "
                "use first-order formulas only.",
                NegativeCouplingWarning,
            )

    def value(self, z: ArrayLike) -> Array:
        """S at the points z (..., N), up to its additive constant; infinite where a singular K forbids z."""
        point = np.asarray(z, dtype=np.float64)
        x = point @ _inverse(self._root).T
        forbidden = np.abs(x @ self._root.T - point).max(axis=-1) > 1e-8 * np.abs(point).max(axis=-1)
        total = 0.5 * (x**2).sum(axis=-1) + self._interaction(point)
        return np.asarray(np.where(forbidden, np.inf, total))

    def exact_expectation(self, observable: Observable, tolerance: float = 1e-10) -> Expectation:
        """E[observable] under exp(-S) itself, by a lattice; refused where exp(-S) is not normalisable.

        The observable maps points (P, N) to P values.
        """
        if not self.is_normalisable:
            raise NotSupportedError(
                "exp(-S) is not normalisable, so there is no exact expectation: use expectation (first order)."
            )

        def weight(x: Array) -> Array:
            return np.exp(-self._interaction(x @ self._root.T))

        return lattice_mean(observable, self._root, weight, tolerance)

    def _interaction(self, z: Array) -> Array:
        terms = (_form(s, z) / math.factorial(order) for order, s in self.couplings.items())
        return np.asarray(sum(terms, start=np.zeros(z.shape[:-1])))


class QuarticAction(EvenAction):
    """S(z) = z K^-1 z / 2 + epsilon V z^4 / 4! (1.71); ``coupling`` is epsilon V, results are first order in it."""

    def __init__(self, K: ArrayLike, coupling: ArrayLike) -> None:
        super().__init__(K, {4: coupling})
        self.coupling = self.couplings[4]

    @classmethod
    def from_correlators(cls, G: ArrayLike, c4: ArrayLike) -> Self:
        """The action with measured covariance G and connected four-point correlator c4, to first order."""
        covariance = check_covariance(np.atleast_2d(np.asarray(G)))
        inverse = _inverse(_root(covariance))
        connected = _supported(_symmetric(c4, 4, len(covariance)), covariance)
        whitened = _transform(connected, inverse)
        shift = np.einsum("abcc->ab", whitened) / 2
        if np.linalg.eigvalsh(np.eye(len(shift)) - shift)[0] <= 0:
            raise InputError(
                "the connected correlator is too large for a first-order action: its K would not be positive."
            )
        root = _root(covariance)
        return cls(covariance - root @ shift @ root.T, -_transform(whitened, inverse.T))

    @classmethod
    def of_neurons(cls, K: float, v: float, neurons: int) -> Self:
        """S = sum z_i^2 / 2K - v (sum z_i^2)^2 / 8, chapter 4's form for one input and the neurons kept."""
        return cls(K * np.eye(neurons), -v * three_pairings(neurons))

    def partition_ratio(self) -> float:
        """Z / sqrt|2 pi K| (1.73)."""
        return float(1 - np.einsum("abcd,ab,cd->", self.coupling, self.K, self.K) / 8)

    def two_point(self) -> Array:
        """E[z_a z_b] (1.74)."""
        return np.asarray(self.K - np.einsum("abcd,ma,nb,cd->mn", self.coupling, self.K, self.K, self.K) / 2)

    def connected_four_point(self) -> Array:
        """The connected E[z_a z_b z_c z_d] (1.78)."""
        return -_transform(self.coupling, self.K)

    def four_point_linear(self) -> Array:
        """E[z_a z_b z_c z_d], strictly linear in the coupling."""
        shift = self.two_point() - self.K
        mixed = _pairs_of(self.K, shift) + _pairs_of(shift, self.K)
        return _pairs_of(self.K, self.K) + mixed + self.connected_four_point()

    def four_point_from_two_points(self) -> Array:
        """E[z_a z_b z_c z_d] as products of the true two-point plus the connected part (1.77).

        Differs from :meth:`four_point_linear` at second order in the coupling.
        """
        return _pairs_of(self.two_point(), self.two_point()) + self.connected_four_point()

    def moment(self, powers: Sequence[int]) -> float:
        """E[prod z_i^powers[i]] to first order, by Wick's theorem."""
        plain = gaussian_moment(self.K, powers)
        total = 0.0
        for extra, weight in _monomials(self.coupling):
            joint = gaussian_moment(self.K, [p + q for p, q in zip(powers, extra)])
            total += weight * (joint - plain * gaussian_moment(self.K, extra))
        return float(plain - total / 24)

    def expectation(self, observable: Observable, tolerance: float = 1e-10) -> Expectation:
        """E[observable] to first order: <O> - (<O V z^4> - <O><V z^4>) / 24, by a lattice.

        The observable maps points (P, N) to P values; the rank of K must not exceed 3.
        """
        quartic = _transform(self.coupling, self._root.T)
        mean = 3 * np.einsum("aabb->", quartic)

        def weight(x: Array) -> Array:
            return np.asarray(1 - (_form(quartic, x) - mean) / 24)

        return lattice_mean(observable, self._root, weight, tolerance)


def physical_expectation(
    observable: Observable, G: ArrayLike, c4: ArrayLike, tolerance: float = 1e-10
) -> Expectation:
    """E[O] = <O>_G + c4 <d^4 O>_G / 24 from the true two-point and the connected four-point, to first order.

    The derivatives become Hermite polynomials, so O may have kinks; neither an action nor an inverse enters.
    The observable maps points (P, N) to P values; the rank of G must not exceed 3.
    """
    covariance = check_covariance(np.atleast_2d(np.asarray(G)))
    connected = _supported(_symmetric(c4, 4, len(covariance)), covariance)
    root = _root(covariance)
    quartic = _transform(connected, _inverse(root))
    quadratic = np.einsum("abcc->ab", quartic)

    def weight(x: Array) -> Array:
        hermite = _form(quartic, x) - 6 * _form(quadratic, x) + 3 * np.trace(quadratic)
        return np.asarray(1 + hermite / 24)

    return lattice_mean(observable, root, weight, tolerance)


def physical_moment(powers: Sequence[int], G: ArrayLike, c4: ArrayLike) -> float:
    """E[prod z_i^powers[i]] from the true two-point and the connected four-point, to first order."""
    covariance = check_covariance(np.atleast_2d(np.asarray(G)), len(powers))
    total = 0.0
    for removed, weight in _monomials(_symmetric(c4, 4, len(powers))):
        left = [p - q for p, q in zip(powers, removed)]
        if min(left) >= 0:
            total += weight * math.prod(map(math.perm, powers, removed)) * gaussian_moment(covariance, left)
    return float(gaussian_moment(covariance, powers) + total / 24)


def neuron_kernel(G: float, kappa_2: float, neurons: int) -> float:
    """K = G - kappa_2 (neurons + 2) / 2G: the kernel of the action of that many neurons, one input.

    The shift grows with the neurons kept in the marginal, so keep few compared with the width.
    """
    if neurons < 1 or G <= 0:
        raise InputError("the kernel of an action needs at least one neuron and a positive two-point G.")
    return G - kappa_2 * (neurons + 2) / (2 * G)


def three_pairings(neurons: int) -> Array:
    """delta_ij delta_kl + delta_ik delta_jl + delta_il delta_jk."""
    return _pairs_of(np.eye(neurons), np.eye(neurons))


def _pairs_of(first: Array, second: Array) -> Array:
    """sum over the three pairings of the points a, b, c, d of first times second."""
    labels = (",".join("abcd"[i] + "abcd"[j] for i, j in pairing) for pairing in pairings(4))
    return np.asarray(sum(np.einsum(f"{pair}->abcd", first, second) for pair in labels))


def _symmetric(tensor: ArrayLike, order: int, size: int) -> Array:
    if order < 4 or order % 2:
        raise InputError(f"an even action has couplings of order 4, 6, .., not {order}.")
    given = np.asarray(tensor, dtype=np.float64)
    if given.ndim == 0 and size == 1:
        given = given.reshape((1,) * order)
    if given.shape != (size,) * order:
        raise InputError(f"the tensor of order {order} must have shape {(size,) * order}, not {given.shape}.")
    if not np.isfinite(given).all():
        raise InputError(f"the tensor of order {order} has entries that are not finite.")
    gap = max(np.abs(given - np.swapaxes(given, axis, axis + 1)).max() for axis in range(order - 1))
    if gap > 1e-8 * np.abs(given).max():
        raise InputError(
            f"the tensor of order {order} is not totally symmetric (entries differ by {gap:.2g}): "
            "average it over permutations of its axes."
        )
    return given


def _root(K: Array) -> Array:
    """A with K = A A^T and as many columns as K has rank."""
    values, vectors = np.linalg.eigh(K)
    kept = values > 1e-13 * values[-1]
    kept[-1] = True  # a zero covariance keeps one direction, of length zero
    values = np.maximum(values, 0.0)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def _inverse(root: Array) -> Array:
    """The pseudo-inverse of a root: x = inverse z."""
    return np.asarray(np.linalg.pinv(root), dtype=np.float64)


def _transform(tensor: Array, matrix: Array) -> Array:
    """The tensor with ``matrix`` applied to each of its four axes."""
    return np.asarray(np.einsum("ijkl,ai,bj,ck,dl->abcd", tensor, *(matrix,) * 4, optimize=True))


def _supported(c4: Array, G: Array) -> Array:
    """The correlator, refused where it moves a direction that the covariance holds fixed."""
    root = _root(G)
    inside = _transform(c4, root @ _inverse(root))
    if np.abs(inside - c4).max() > 1e-6 * np.abs(c4).max():
        raise InputError(
            "the connected correlator moves a direction of zero variance: measure both on the same draws."
        )
    return c4


def _form(tensor: Array, x: Array) -> Array:
    """The homogeneous form T x..x at points (..., n)."""
    points = x.reshape(-1, x.shape[-1])
    result = np.tensordot(points, tensor, axes=1)
    while result.ndim > 1:
        result = np.einsum("p...a,pa->p...", result, points)
    return np.asarray(result.reshape(x.shape[:-1]))


def _lowest(tensor: Array) -> float:
    """The least value of the form on the unit sphere, or 0 where only rounding makes it negative."""
    from scipy import optimize

    n = tensor.shape[0]
    directions = np.random.default_rng(0).normal(size=(16 * n, n))
    starts = np.vstack([np.eye(n), directions / np.linalg.norm(directions, axis=1, keepdims=True)])

    def on_sphere(x: Array) -> float:
        return float(_form(tensor, x / np.linalg.norm(x)))

    values = _form(tensor, starts)
    lowest = float(values.min())
    if lowest >= 0 and n > 1:
        best = starts[np.argsort(values)[: 4 * n]]
        lowest = min(optimize.minimize(on_sphere, x).fun for x in best)
    return 0.0 if abs(lowest) < 1e-10 * np.abs(tensor).max() else lowest


def _monomials(tensor: Array) -> Iterator[tuple[list[int], float]]:
    """The nonzero monomials of a symmetric form as powers, each weighted with its number of orderings."""
    n = tensor.shape[0]
    for indices in combinations_with_replacement(range(n), tensor.ndim):
        if tensor[indices]:
            counts = Counter(indices)
            orderings = math.factorial(tensor.ndim) // math.prod(map(math.factorial, counts.values()))
            yield [counts[i] for i in range(n)], orderings * float(tensor[indices])
