"""Kernel K, four-point vertex V and next-to-leading metric G1: one layer to the next, at leading order in 1/n.

Everything is the Taylor expansion of F_ab(K) = <sigma_a sigma_b>_K around the kernel, because z is Gaussian given
the stochastic metric: no inverse of K occurs, and repeated or dependent inputs are harmless. Tensors on pairs of
inputs are matrices (P, P); values carry no 1/n (the physical correction is value / n_{l-1}).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import Expectation, Factor, expectation, factor, gram, products_at
from foretrain.support.errors import InputError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import Layer
from foretrain.theory.recursions.pairs import Line, Pairs, are_tied

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

EXPLODED = 1e30
_VANISHED = 1e-60
_ONE_DIMENSION = 1e-13
_NEARLY_PARALLEL = (1e-10, 1e-7)  # of 1 - correlation^2, by order of the derivative: angles below 1e-5, 3e-4

_ALONG_A_LINE = (1e-13, 1e-9)  # the same for rows of a response: angles below 3e-7, 3e-5


class Step(NamedTuple):
    """What the step from layer l to l + 1 needs besides expectations; ``ratio`` is n_l / n_{l-1}.

    C_b_1 and C_W_1 are the order-1/n_l parts of C_b and C_W (5.138), (5.139); lambda_W is the learning rate of the
    weights (8.6).
    """

    C_W: float
    ratio: float = 1.0
    C_b_1: float = 0.0
    C_W_1: float = 0.0
    lambda_W: float = 0.0


class PairExpectations:
    """Two-input expectations of one layer, each computed when first asked for."""

    def __init__(self, activation: Activation, K: Array, tolerance: float = 1e-10) -> None:
        self.activation, self.K, self.tolerance = activation, K, tolerance
        self._found: dict[tuple[int, int], Array] = {}
        self._fourfold: dict[tuple[int, int], Array] = {}
        self._responses: dict[int, Response] = {}

    def of(self, first: int, second: int) -> Array:
        """<sigma^(first)_a sigma^(second)_b> for all a, b: (N, N)."""
        if (first, second) not in self._found:
            pair = (factor(self.activation, first), factor(self.activation, second))
            # Delta functions of dependent inputs may be infinite: such entries are not used (see tied_pairs).
            with np.errstate(invalid="ignore"):
                (value,) = _values(gram([pair], self.K, tolerance=self.tolerance))
            self._found[first, second], self._found[second, first] = value, value.T
        return self._found[first, second]

    def among(self, inputs: NDArray[np.intp]) -> PairExpectations:
        """The same for some of the inputs only."""
        return PairExpectations(self.activation, self.K[np.ix_(inputs, inputs)], self.tolerance)

    def powers(self, first: int, second: int) -> Array:
        """<sigma_a^first sigma_b^second> for all a, b: (N, N)."""
        return self.product(factor(self.activation) ** first, factor(self.activation) ** second)

    def product(self, first: Factor, second: Factor) -> Array:
        """<f(z_a) g(z_b)> for all a, b: (N, N)."""
        (value,) = _values(gram([(first, second)], self.K, tolerance=self.tolerance))
        return value

    def covariance(self, first: int = 0, second: int = 0) -> Array:
        """Cov(s_a s_b, t_c t_d), s and t derivatives of these orders of sigma, on pairs of pairs: (P, P)."""
        pairs = self.response.pairs
        means = [pairs.vector(self.of(order, order)) for order in (first, second)]
        return np.asarray(self.fourfold(first, second) - np.multiply.outer(*means))

    def fourfold(self, first: int = 0, second: int = 0) -> Array:
        """<s_a s_b t_c t_d>, s and t derivatives of these orders of sigma, on pairs of pairs: (P, P)."""
        self.find_fourfold([(first, second)])
        return self._fourfold[first, second]

    def find_fourfold(self, orders: Iterable[tuple[int, int]]) -> None:
        """All of these :meth:`fourfold` at once, which costs little more than one."""
        missing = [two for two in orders if two not in self._fourfold]
        if not missing:
            return
        pairs = self.response.pairs
        two = np.stack([pairs.first, pairs.second], axis=1)
        shape = (len(pairs), len(pairs), 2)
        quadruples = np.concatenate(
            [np.broadcast_to(two[:, None], shape), np.broadcast_to(two[None], shape)], axis=-1
        )
        products = [[factor(self.activation, k) for k in (i, i, j, j)] for i, j in missing]
        requests = [(factors, quadruples) for factors in products]
        found = products_at(requests, self.K, tolerance=self.product_tolerance)
        alone = pairs.number.diagonal()
        for (first, second), factors, result in zip(missing, products, found, strict=True):
            value = np.asarray(result.value)
            # Entries of one input alone are one-dimensional integrals: to all digits what one input would give.
            product = factors[0] * factors[1] * factors[2] * factors[3]
            variance, tolerance = self.K.diagonal()[:, None, None], min(self.tolerance, _ONE_DIMENSION)
            value[alone, alone] = expectation([product], variance, tolerance=tolerance).value
            self._fourfold[first, second], self._fourfold[second, first] = value, value.T

    @property
    def product_tolerance(self) -> float | None:
        """For products of four: what is asked for, or where kinks would make that slow the default."""
        return self.tolerance if self.activation.is_smooth else None

    @property
    def response(self) -> Response:
        """The derivative M of F with respect to K."""
        return self.response_of(0)

    def response_of(self, order: int) -> Response:
        """The derivative with respect to K of <s_a s_b>, s the derivative of this order of sigma."""
        if order not in self._responses:
            pairs = Pairs(len(self.K))
            self._responses[order] = Response(pairs, *self.rows(pairs.first, pairs.second, order))
        return self._responses[order]

    def rows(self, a: Indices, b: Indices, order: int = 0) -> tuple[Array, Array, Array]:
        """d<s_a s_b> with respect to K_aa, K_ab and K_bb, for every pair (a, b); s is sigma^(order).

        Where an activation with kinks meets inputs that are multiples of each other, partial derivatives may be
        infinite; there the derivative along the line on which the metric moves stands alone. At small angles psi,
        those of <s'_a s'_b> grow as 1 / psi and multiply what vanishes as psi^2: where the rounding of that, 1e-16 /
        psi^2 in a variance, exceeds the few percent of psi that the line leaves out, it stands alone as well.
        """
        bend, cross = self.of(2 + order, order), self.of(1 + order, 1 + order)
        first, middle, second = 0.5 * bend[a, b], cross[a, b], 0.5 * bend[b, a]
        if not self.activation.is_smooth:
            variance = self.K.diagonal()
            if (variance[variance > 0] < _VANISHED).any():  # delta functions leave the range of floats
                raise InputError(
                    f"a kernel fell below {_VANISHED:g}, where fluctuations of an activation with kinks cannot be "
                    "resolved: choose a larger `C_W` or fewer layers, or ask for K alone."
                )
            tied = are_tied(self.K, a, b, _ALONG_A_LINE[order])
            line = Line(self.activation, self.K, a[tied], b[tied], order)
            first[tied] = np.where(line.pivot_is_first, line.slope(), 0.0)
            second[tied] = np.where(line.pivot_is_first, 0.0, line.slope())
            middle[tied] = 0.0
        return first, middle, second


def _values(found: Expectation | list[Expectation]) -> list[Array]:
    return [np.asarray(item.value) for item in (found if isinstance(found, list) else [found])]


@dataclass(frozen=True)
class Response:
    """M = dF/dK on pairs: row (a, b) has entries at (a, a), (a, b) and (b, b) only (they add up where a = b)."""

    pairs: Pairs
    first: Array
    cross: Array
    second: Array

    def __matmul__(self, v: Array) -> Array:
        """M v for vectors (P,) or matrices (P, Q)."""
        extra = (slice(None),) + (None,) * (v.ndim - 1)
        return np.asarray(
            self.first[extra] * v[self.pairs.first_twice]
            + self.cross[extra] * v
            + self.second[extra] * v[self.pairs.second_twice]
        )

    def pull_back(self, v: Array) -> Array:
        """M^T v for vectors (P,)."""
        result = self.cross * v
        np.add.at(result, self.pairs.first_twice, self.first * v)
        np.add.at(result, self.pairs.second_twice, self.second * v)
        return np.asarray(result)

    def sandwich(self, V: Array) -> Array:
        """M V M^T for a symmetric matrix on pairs."""
        half = self @ V
        return self @ half.T


def next_kernel(old: PairExpectations, layer: Layer) -> Array:
    """K' = C_b + C_W <sigma sigma>_K + gamma^2 K (4.118), (B.11).

    Sums are in place: of large kernels a new array costs more than the arithmetic.
    """
    K: Array = layer.C_W * old.of(0, 0)
    K += layer.C_b
    if layer.gamma:
        K += layer.gamma**2 * old.K
    return K


def refuse_exploded(variances: Array, layer: int) -> None:
    """An error for kernels that leave the range in which expectations can be computed; K_aa bounds all entries."""
    if not variances.max(initial=0.0) < EXPLODED:
        raise InputError(
            f"the kernel exceeds {EXPLODED:g} at layer {layer}: choose a smaller `C_W`, fewer layers or "
            "smaller inputs."
        )


def next_vertex(layer: PairExpectations, V: Array, step: Step) -> Array:
    """V' = C_W^2 [Cov + (n_l / n_{l-1}) M V M^T] (4.119)."""
    grown = layer.covariance()
    if V.any():
        grown = grown + step.ratio * layer.response.sandwich(V)
    return np.asarray(step.C_W**2 * grown)


def next_metric_correction(layer: PairExpectations, G1: Array, blocks: Array, step: Step) -> Array:
    """G1' = (n_l / n_{l-1}) C_W [M G1 + V.d^2F/dK^2 / 2] + C_b_1 + C_W_1 F (4.115), (5.140), for vectors on pairs.

    V enters through its blocks as in :func:`curvature`.
    """
    grown = np.full_like(G1, step.C_b_1)
    if blocks.any() or G1.any():
        grown += step.ratio * step.C_W * (layer.response @ G1 + curvature(layer, blocks))
    if step.C_W_1:
        grown += step.C_W_1 * layer.response.pairs.vector(layer.of(0, 0))
    return grown


def curvature(layer: PairExpectations, blocks: Array, order: int = 0) -> Array:
    """(1/8) <d_i d_j d_k d_l (s_a s_b)> V_(ij)(kl), summed over i, j, k, l in {a, b}; s is sigma^(order).

    ``blocks`` (P, 3, 3) holds V between the pairs aa, ab and bb of every pair (a, b): nothing else enters.
    """
    pairs = layer.response.pairs
    a, b = pairs.first, pairs.second
    smooth = layer.activation.is_smooth
    if smooth:  # pairs of one and the same input, or of copies, whose F depends on a single variance
        sizes = layer.K[a, a] + layer.K[b, b]
        same = (sizes - 2 * layer.K[a, b] <= 1e-14 * sizes) | (a == b)
    else:
        same = _are_one_line(layer.K, a, b, order)
    apart = ~same
    result = np.zeros(len(pairs))
    if apart.any():
        result[apart] = curvature_apart(layer, a[apart], b[apart], blocks[apart], order)
    if smooth:
        # d^2<s^2>/dK^2 = <d^4 s^2> / 4
        s, variance = [factor(layer.activation, order + k) for k in range(5)], layer.K[a, a][same, None, None]
        parts = ((2, s[0] * s[4]), (8, s[1] * s[3]), (6, s[2] * s[2]))
        bend = np.asarray(sum(0.25 * weight * expectation([f], variance).value for weight, f in parts))
        result[same] = 0.5 * bend * blocks[same, 0, 0]
    else:
        line = Line(layer.activation, layer.K, a[same], b[same], order)
        pivot = np.where(line.pivot_is_first, blocks[same, 0, 0], blocks[same, 2, 2])
        result[same] = 0.5 * line.bend() * pivot
    return result


def _are_one_line(K: Array, a: Indices, b: Indices, order: int) -> NDArray[np.bool_]:
    """Pairs of a kinked activation that are tied, or at so small an angle psi that rounding would exceed what the
    limit psi -> 0 leaves out: of order psi^2, and psi for derivatives of the activation.
    """
    nearly = are_tied(K, a, b, _NEARLY_PARALLEL[order])
    if order and (nearly & ~are_tied(K, a, b)).any():
        warn_user(
            "inputs are nearly parallel: between them H1 of an activation with kinks is good to three digits only."
        )
    return nearly


def curvature_apart(layer: PairExpectations, a: Indices, b: Indices, v: Array, order: int) -> Array:
    """The same for pairs of different inputs, by partial derivatives."""
    four, three, two = (layer.of(order + k, order + 4 - k) for k in (4, 3, 2))
    total = (
        four[a, b] * v[:, 0, 0]
        + 4 * three[a, b] * v[:, 0, 1]
        + two[a, b] * (2 * v[:, 0, 2] + 4 * v[:, 1, 1])
        + 4 * three[b, a] * v[:, 1, 2]
        + four[b, a] * v[:, 2, 2]
    )
    return np.asarray(total / 8)
