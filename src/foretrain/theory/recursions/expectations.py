"""Expectations of one layer at its kernel, each computed when first asked for, and the kernels of the next layer.

Everything is the Taylor expansion of F_ab(K) = <sigma_a sigma_b>_K around the kernel, because z is Gaussian given
the stochastic metric, and integrated by parts: no inverse of K occurs, an entry depends on its own inputs only, and
repeated or dependent inputs are harmless. With s the activation and Omega_12 = lambda_W s_1 s_2 + C_W Theta_12 s'_1
s'_2 (8.74), three responses carry fluctuations from layer to layer: dF/dK, dOmega/dK, and the mixed <d(s_1 s'_2)/dz>
(:class:`MixedResponse`). Values carry no 1/n (the physical correction is value / n_{l-1}).

What becomes of the delta functions of activations whose slope jumps is said in ``kinks``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.gaussian import Expectation, Factor, expectation, factor, gram, products_at, z
from foretrain.gaussian.expectation import pair_tolerance
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP, Layer
from foretrain.theory.recursions.kinks import Kinks, slope_jumps
from foretrain.theory.recursions.pairs import Line, Pairs, Response, are_tied, quadruples_between

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Orders = tuple[int, int, int, int]
"""Orders of the derivatives of the activation in a product of four."""
KeyT = TypeVar("KeyT")

EXPLODED = 1e30
_VANISHED = 1e-60
_ONE_DIMENSION = 1e-13
_SAME_VARIANCE = 1e-12
_ALONG_A_LINE = (1e-13, 1e-9)  # of 1 - correlation^2, by order of the derivative: angles below 3e-7, 3e-5


class Step(NamedTuple):
    """What the step from layer l to l + 1 needs besides expectations; ``ratio`` is n_l / n_{l-1}.

    C_b_1 and C_W_1 are the order-1/n_l parts of C_b and C_W (5.138), (5.139); lambda_W is the learning rate of the
    weights (8.6); gamma that of the skip connection (B.11).
    """

    C_W: float
    ratio: float = 1.0
    C_b_1: float = 0.0
    C_W_1: float = 0.0
    lambda_W: float = 0.0
    gamma: float = 0.0

    @classmethod
    def into(cls, mlp: MLP, index: int, C_b_1: float = 0.0, C_W_1: float = 0.0) -> Step:
        """The step from layer l = ``index`` to the next."""
        layer = mlp.layers[index]
        return cls(layer.C_W, width_ratio(mlp, index), C_b_1, C_W_1, layer.lambda_W, layer.gamma)


def width_ratio(mlp: MLP, index: int) -> float:
    """n_l / n_{l-1} for the step from layer l = ``index`` to the next; never with n_0, where it multiplies zero."""
    return 1.0 if index < 2 else mlp.hidden_widths[index - 1] / mlp.hidden_widths[index - 2]


class PairExpectations:
    """Expectations of one layer, with its tangent kernel where ``Theta`` is given."""

    def __init__(
        self,
        activation: Activation,
        K: Array,
        tolerance: float = 1e-10,
        *,
        Theta: Array | None = None,
        kinks: Kinks = "delta",
    ) -> None:
        self.activation, self.K, self.tolerance, self.kinks = activation, K, tolerance, kinks
        self._Theta = Theta
        self._found: dict[tuple[Factor, Factor], Array] = {}
        self._fourfold: dict[tuple[int, int], Array] = {}
        self._responses: dict[tuple[Pairs, int], Response] = {}
        self._rows: dict[tuple[object, ...], tuple[Array, Array, Array]] = {}
        self._tables: dict[Orders, Array] = {}

    @property
    def Theta(self) -> Array:
        """The tangent kernel (N, N) of the layer."""
        assert self._Theta is not None
        return self._Theta

    def among(self, inputs: Indices) -> PairExpectations:
        """The same for some of the inputs only."""
        if np.array_equal(inputs, np.arange(len(self.K))):
            return self  # what one finds the other need not
        chosen = np.ix_(inputs, inputs)
        Theta = None if self._Theta is None else self._Theta[chosen]
        return PairExpectations(
            self.activation, self.K[chosen], self.tolerance, Theta=Theta, kinks=self.kinks
        )

    def derivative(self, order: int) -> Factor:
        """The derivative of the activation as it stands in the forward equation."""
        found = factor(self.activation, order)
        pointwise = order == 2 and self.kinks == "almost_everywhere" and bool(found.kinks)
        return found.pointwise() if pointwise else found

    @property
    def product_tolerance(self) -> float | None:
        """For products of four: what is asked for, or where kinks would make that slow the default."""
        return self.tolerance if self.activation.is_smooth else None

    # Two inputs

    def of(self, first: int, second: int) -> Array:
        """<sigma^(first)_a sigma^(second)_b> for all a, b: (N, N)."""
        return self.product(factor(self.activation, first), factor(self.activation, second))

    def product(self, first: Factor, second: Factor) -> Array:
        """<f(z_a) g(z_b)> for all a, b: (N, N)."""
        if (first, second) not in self._found:
            self._find_pairs([(first, second)])
        return self._found[first, second]

    def _find_pairs(self, missing: list[tuple[Factor, Factor]]) -> None:
        if not missing:
            return
        # Delta functions of dependent inputs may be infinite: such entries are not used (see pairs.Line).
        with np.errstate(invalid="ignore"):
            found = cast("list[Expectation]", gram(missing, self.K, tolerance=pair_tolerance(self.tolerance)))
        for (first, second), item in zip(missing, found, strict=True):
            value = np.asarray(item.value)
            self._found[first, second], self._found[second, first] = value, value.T

    @cached_property
    def pairs(self) -> Pairs:
        """All pairs of inputs."""
        return Pairs(len(self.K))

    @property
    def response(self) -> Response:
        """The derivative M of F with respect to K, on all pairs."""
        return self.response_on(self.pairs)

    def response_on(self, pairs: Pairs, order: int = 0) -> Response:
        """The derivative with respect to K of <s_a s_b> on a closed set, s the derivative of this order of sigma."""
        if (pairs, order) not in self._responses:
            self._responses[pairs, order] = Response(pairs, *self.rows(pairs.first, pairs.second, order))
        return self._responses[pairs, order]

    def rows(self, a: Indices, b: Indices, order: int = 0) -> tuple[Array, Array, Array]:
        """d<s_a s_b> with respect to K_aa, K_ab and K_bb, for every pair (a, b); s is sigma^(order).

        Where an activation with kinks meets inputs that are multiples of each other, partial derivatives may be
        infinite; there the derivative along the line on which the metric moves stands alone. At small angles psi,
        those of <s'_a s'_b> grow as 1 / psi and multiply what vanishes as psi^2: where the rounding of that, 1e-16 /
        psi^2 in a variance, exceeds the few percent of psi that the line leaves out, it stands alone as well.
        """
        key = a.shape, a.tobytes(), b.tobytes(), order
        if key not in self._rows:
            self._rows[key] = self._new_rows(a, b, order)
        return self._rows[key]

    def _new_rows(self, a: Indices, b: Indices, order: int) -> tuple[Array, Array, Array]:
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
            slope = line.slope()
            first[tied] = np.where(line.pivot_is_first, slope, 0.0)
            second[tied] = np.where(line.pivot_is_first, 0.0, slope)
            middle[tied] = 0.0
        return first, middle, second

    def tangent_rows(self, a: Indices, b: Indices, step: Step) -> tuple[Array, Array, Array]:
        """dOmega_ab with respect to K_aa, K_ab and K_bb, for every pair (a, b)."""
        weight = step.C_W * self.Theta[a, b]
        value, slope = self.rows(a, b), self.rows(a, b, 1)
        first, cross, second = (step.lambda_W * v + weight * s for v, s in zip(value, slope, strict=True))
        return first, cross, second

    def tangent_response(self, step: Step) -> Response:
        """dOmega/dK on all pairs."""
        return Response(self.pairs, *self.tangent_rows(self.pairs.first, self.pairs.second, step))

    @cached_property
    def mixed_response(self) -> MixedResponse:
        """<d(s_a s'_b)/dz> of all ordered pairs.

        Where the slope jumps, <s_a s''_b> of an input b that is always zero may be infinite, and all that it then
        multiplies vanishes with z_b.
        """
        bend = self.of(0, 2)
        if slope_jumps(self.activation):
            bend = np.where(np.diagonal(self.K) > 0, bend, 0.0)
        return MixedResponse(self.of(1, 1), bend)

    # Second derivatives of the forward equation

    @cached_property
    def twins(self) -> Indices:
        """For each input the first of its copies where the slope jumps, since delta functions of copies are one's."""
        inputs = np.arange(len(self.K))
        if not slope_jumps(self.activation):
            return inputs
        a, b = np.meshgrid(inputs, inputs, indexing="ij")
        tied, variance = are_tied(self.K, a, b), self.K.diagonal()
        near = np.abs(variance[a] - variance[b]) <= _SAME_VARIANCE * variance[a]
        copies = tied & near & ((self.K > 0) | (a == b))
        at_zero = any(kink.location == 0 for kink in self.activation.kinks)
        if self.kinks == "delta" and at_zero and ((tied & ~copies).any() or (variance == 0).any()):
            raise NotSupportedError(
                "inputs are zero or multiples of each other, where products of the delta functions and steps of "
                f'{self.activation.label} have no definite value: leave them out, or give kinks="almost_everywhere".'
            )
        return np.asarray(copies.argmax(axis=1), dtype=np.intp)

    @cached_property
    def bend(self) -> Array:
        """<s''_a s_b> with s'' of the forward equation: (N, N)."""
        return self.product(self.derivative(2), factor(self.activation))

    @cached_property
    def bend_response(self) -> MixedResponse:
        """<d(s''_a s'_b)/dz> with s'' of the forward equation; ``own`` for z_a.

        Where the slope jumps and a = b, the two parts have no value apart, but <z s'' s'> / K is their sum.
        """
        if not slope_jumps(self.activation):
            return MixedResponse(self.of(3, 1), self.of(2, 2))
        bend, slope = self.derivative(2), factor(self.activation, 1)
        with np.errstate(invalid="ignore"):
            own = sum((self.product(part, slope) for part in bend.derivative()), np.zeros_like(self.K))
            other = self.product(bend, factor(self.activation, 2)).copy()
        variance = self.K.diagonal()
        safe = np.where(variance > 0, variance, 1.0)
        weighted = expectation([z * bend * slope], safe[:, None, None], tolerance=_ONE_DIMENSION)
        np.fill_diagonal(own, np.where(variance > 0, np.asarray(weighted.value) / safe, 0.0))
        np.fill_diagonal(other, 0.0)
        return MixedResponse(own, other)

    # Four inputs

    def covariance(self, first: int = 0, second: int = 0) -> Array:
        """Cov(s_a s_b, t_c t_d), s and t derivatives of these orders of sigma, on pairs of pairs: (P, P)."""
        means = [self.pairs.vector(self.of(order, order)) for order in (first, second)]
        return np.asarray(self.fourfold(first, second) - np.multiply.outer(*means))

    def fourfold(self, first: int = 0, second: int = 0) -> Array:
        """<s_a s_b t_c t_d>, s and t derivatives of these orders of sigma, on pairs of pairs: (P, P)."""
        if (first, second) not in self._fourfold:
            self.find_together(fourfold=[(first, second)])
        return self._fourfold[first, second]

    def table(self, orders: Orders) -> Array:
        """<s_a s_b s_c s_d> with derivatives of these orders, for all inputs: (N, N, N, N)."""
        if orders not in self._tables:
            self.find_together(tables=[orders])
        return self._tables[orders]

    def has_table(self, orders: Orders) -> bool:
        """Whether :meth:`find_together` was asked for it."""
        return orders in self._tables

    def find_together(
        self,
        *,
        fourfold: Iterable[tuple[int, int]] = (),
        tables: Iterable[Orders] = (),
        pairs: Iterable[tuple[int, int]] = (),
    ) -> None:
        """All of these :meth:`fourfold`, :meth:`table` and :meth:`of` at once, which costs little more than one."""
        tables = [orders for orders in tables if orders not in self._tables]
        fourfold = {(max(two), min(two)) for two in fourfold if two not in self._fourfold}
        every = np.stack(np.meshgrid(*[np.arange(len(self.K))] * 4, indexing="ij"), axis=-1)
        between = quadruples_between(self.pairs, self.pairs)
        requests: dict[tuple[int, ...], tuple[Orders, Indices]] = {
            **{orders: (orders, every) for orders in tables},
            **{(i, j): ((i, i, j, j), between) for i, j in sorted(fourfold)},
        }
        found = self.products(requests, pairs)
        self._tables |= {orders: found[orders] for orders in tables}
        for i, j in fourfold:
            self._fourfold[i, j], self._fourfold[j, i] = found[i, j], found[i, j].T

    def products(
        self, requests: Mapping[KeyT, tuple[Orders, Indices]], pairs: Iterable[tuple[int, int]] = ()
    ) -> dict[KeyT, Array]:
        """Products of derivatives of these orders at index sets (..., 4), sharing their integrals.

        They are shared with :meth:`of` for all pairs of inputs, of the orders ``pairs``.
        """
        factors = {two: (factor(self.activation, two[0]), factor(self.activation, two[1])) for two in pairs}
        left = {two: both for two, both in factors.items() if both not in self._found}
        # What feels the angle between two inputs is for pairs of inputs, which know which of them are parallel.
        shared = [both for two, both in left.items() if not self._feels_angles(*two)]
        self._find_pairs([both for both in left.values() if both not in shared])
        # Those with second derivatives are taken at the first copies.
        places = {k: self.twins[legs] if 2 in orders else legs for k, (orders, legs) in requests.items()}
        asked: list[tuple[Sequence[Factor], Indices]] = [
            ([self.derivative(k) for k in orders], places[key]) for key, (orders, _) in requests.items()
        ]
        every = np.stack(np.meshgrid(*[np.arange(len(self.K))] * 2, indexing="ij"), axis=-1)
        asked += [(both, every) for both in shared]
        if not asked:
            return {}
        found = [np.asarray(x.value) for x in products_at(asked, self.K, tolerance=self.product_tolerance)]
        for (first, second), value in zip(shared, found[len(requests) :], strict=True):
            self._found[first, second], self._found[second, first] = value, value.T
        return dict(zip(requests, found, strict=False))

    def _feels_angles(self, first: int, second: int) -> bool:
        """Whether <s^(first) s^(second)> has delta functions, or steps of both at the same place."""
        if any(factor(self.activation, order).is_singular for order in (first, second)):
            return True
        return any(kink.jump(first) and kink.jump(second) for kink in self.activation.kinks)


@dataclass(frozen=True)
class MixedResponse:
    """<d_i (s_a s'_b)> for ordered pairs (a, b): ``own`` for i = a, ``other`` for i = b (they add up where a = b)."""

    own: Array
    other: Array

    def pull_back(self, forms: Array) -> Array:
        """From forms on the next layer to forms on this one: stacks of matrices (..., N, N)."""
        diagonal = (forms * self.other).sum(axis=-2)
        return np.asarray(forms * self.own + diagonal[..., None] * np.eye(len(self.own)))

    def blocks(self, a: Indices, b: Indices) -> Array:
        """Matrices (Q, 2, 2) that take tensor[a, b], tensor[b, b] to the same entries of the next layer.

        Where a = b the two are one entry: both then follow the second, lest their rounding grow apart.
        """
        apart = a != b
        result = np.zeros((len(a), 2, 2))
        result[:, 0, 0] = apart * self.own[a, b]
        result[:, 0, 1] = self.other[a, b] + ~apart * self.own[a, b]
        result[:, 1, 1] = self.own[b, b] + self.other[b, b]
        return result


def next_kernel(old: PairExpectations, layer: Layer) -> Array:
    """K of the next layer, (N, N)."""
    return grow_kernel(old.of(0, 0).copy(), old.K, layer)


def grow_kernel(signal: Array, K: Array, layer: Layer) -> Array:
    """K' = C_b + C_W <s s> + gamma^2 K (4.118), (B.11), written over <s s>.

    Of large kernels a new array costs more than the arithmetic.
    """
    signal *= layer.C_W
    signal += layer.C_b
    if layer.gamma:
        signal += layer.gamma**2 * K
    return signal


def refuse_exploded(variances: Array, layer: int) -> None:
    """An error for kernels that leave the range in which expectations can be computed; K_aa bounds all entries."""
    if not variances.max(initial=0.0) < EXPLODED:
        raise InputError(
            f"the kernel exceeds {EXPLODED:g} at layer {layer}: choose a smaller `C_W`, fewer layers or "
            "smaller inputs."
        )


def first_tangent_kernel(mlp: MLP, X: ArrayLike) -> Array:
    """Theta of layer 1: lambda_b + lambda_W x.x' / n_0 (8.23)."""
    inputs = mlp.check_inputs(X)
    kernel: Array = mlp.lambda_b[0] + mlp.lambda_W[0] * (inputs @ inputs.T) / inputs.shape[1]
    return kernel


def next_tangent_kernel(old: PairExpectations, Theta: Array, layer: Layer) -> Array:
    """Theta of the next layer, (N, N)."""
    grown = Theta.copy()
    grow_tangent_kernel(grown, old.of(0, 0), old.of(1, 1).copy(), layer)
    return grown


def grow_tangent_kernel(Theta: Array, signal: Array, slope: Array, layer: Layer) -> None:
    """Theta' = lambda_b + lambda_W <s s> + (gamma^2 + C_W <s' s'>) Theta (8.63), written over Theta and <s' s'>."""
    slope *= layer.C_W
    slope += layer.gamma**2
    Theta *= slope
    np.multiply(signal, layer.lambda_W, out=slope)
    Theta += slope
    Theta += layer.lambda_b
