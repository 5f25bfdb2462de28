"""Tensors of four inputs contracted with matrices, sum X_12 V_(12)(34) Y_34, without their N^4 entries.

V^(l+1) = S + (n_l / n_{l-1}) R V^(l) R^T: instead of pushing V forward, the matrices are pulled back through the
responses R, and every layer they pass adds one source X . S . Y. :class:`Contraction` does that for any tensor with a
:class:`PullBack`.

V, D and A are blocks of one covariance on pairs of inputs (:class:`JointPullBack`), whose source is the covariance of
two quadratic forms of s = sigma(z) and s'. F and B are contracted in the order in which they are stored: X with the
indices 1, 3 and Y with 2, 4 of (8.67), (8.82). Sources are exact where that is cheap (few inputs, diagonal matrices)
and sampled elsewhere, those of V, D and A after their quadratic part in z has been taken out exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import comb
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import factor
from foretrain.gaussian.closed_forms import closed_form
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.theory.ensembles import matrix_root
from foretrain.theory.recursions.expectations import PairExpectations, Step
from foretrain.theory.recursions.pairs import Pairs, Side
from foretrain.theory.recursions.tensors import PRODUCTS_ON_PAIRS

Array = NDArray[np.float64]
Forms = Mapping[int, Array]
"""Stacks (Q, P) of quadratic forms on pairs, by the order of the derivative of sigma whose products they weigh."""

_CHUNK = 1024
_AFFORDABLE = 10.0  # seconds that an exact contraction may take without having been asked for
_SECONDS = {"closed form": (3e-4, 5e-4), "smooth": (1e-3, 1.5e-2), "kinked": (0.15, 0.3)}
"""What a product takes at three and at four different inputs, by the rule that integrates it."""
_PRODUCTS = {**PRODUCTS_ON_PAIRS, "F": {(0, 1)}, "B": {(1, 1)}}
"""Orders of the derivatives s and t in the products <s s t t> that each tensor needs."""
PULLED_BACK = tuple(_PRODUCTS)
"""Tensors that have a contraction without their N^4 entries."""
_DRAWS = 16_384
_COSTLY_DRAWS = 1_024  # where a draw costs N^3


class Estimates(NamedTuple):
    """Values and the variances of their estimates."""

    value: Array
    variance: Array


def exactly(value: Array) -> Estimates:
    """Values without error."""
    return Estimates(value, np.zeros_like(value))


class PullBack(Protocol):
    """How a tensor's recursion acts on what it is contracted with: stacks (Q, ...) on either side."""

    def source(self, layer: PairExpectations, step: Step, left: Array, right: Array) -> Estimates:
        """What the step adds to the contraction: (Q,)."""

    def pull(self, layer: PairExpectations, step: Step, forms: Array) -> Array:
        """R^T on either side's forms."""


class Contraction:
    """Remembers the layers of a flow, then pulls both sides back from every layer to the first."""

    def __init__(self, left: Array, right: Array, rule: PullBack) -> None:
        """``left`` and ``right`` are stacks (C, ...) of what the tensor is contracted with."""
        self._sides = np.stack([left, right])
        self._rule = rule
        self._layers: list[tuple[PairExpectations, Step]] = []

    def now(self) -> dict[str, Array]:
        """Nothing yet: see :meth:`values`."""
        return {}

    def step(self, old: PairExpectations, step: Step) -> None:
        """Remember what the pull-back needs of the step from one layer to the next."""
        self._layers.append((old, step))

    def values(self) -> Estimates:
        """The contraction at layers 1..L, shape (L, C)."""
        depth, contractions, shape = len(self._layers) + 1, self._sides.shape[1], self._sides.shape[2:]
        value, variance = np.zeros((depth, contractions)), np.zeros((depth, contractions))
        forms = np.empty((2, 0, contractions, *shape))
        scale = np.empty(0)  # n_{target - 1} / n_l for every target layer
        for index in track(list(range(depth - 2, -1, -1)), "pulling back"):
            layer, step = self._layers[index]
            forms = np.concatenate([self._sides[:, None], forms], axis=1)
            scale = np.concatenate([[1.0], scale])
            left, right = forms.reshape(2, -1, *shape)
            found = self._rule.source(layer, step, left, right)
            value[index + 1 :] += scale[:, None] * found.value.reshape(-1, contractions)
            variance[index + 1 :] += scale[:, None] ** 2 * found.variance.reshape(-1, contractions)
            forms = self._rule.pull(layer, step, forms)
            scale = scale * step.ratio
        return Estimates(value, variance)


class Samples:
    """Draws of z ~ N(0, K), chunk by chunk, fresh at every call."""

    def __init__(self, draws: int, seed: Seed) -> None:
        self._chunks, self._seed = -(-draws // _CHUNK), seed
        self._calls = 0

    def means(self, K: Array, count: int, observables: Callable[[Array], Iterable[Array]]) -> Estimates:
        """Means of ``count`` observables, each a value per draw for z (draws, N), and their squared errors."""
        root = matrix_root(K)
        total, squares = np.zeros(count), np.zeros(count)
        (own,) = spawn(self._seed, self._calls + 1)[-1:]
        self._calls += 1
        for seed in track(spawn(own, self._chunks), "drawing"):
            z = generator(seed).standard_normal((_CHUNK, len(K))) @ root.T
            for q, values in enumerate(observables(z)):
                total[q] += values.sum()
                squares[q] += values @ values
        draws = self._chunks * _CHUNK
        value = total / draws
        return Estimates(value, (squares / draws - value**2) / draws)


Way = Literal["diagonal", "exact"] | Samples
"""How to find what a layer adds: two-input expectations, which diagonal matrices allow; all those of four inputs,
O(N^4) of them; or Monte Carlo over z."""


class JointPullBack:
    """V, or with ``tangents`` V, D and A together (4.119), (8.77), (8.97); forms (P,) or (2 P,) on all pairs."""

    def __init__(self, way: Way, tangents: slice) -> None:
        self._way, self._tangents = way, tangents

    def source(self, layer: PairExpectations, step: Step, left: Array, right: Array) -> Estimates:
        """Covariance of the forms of C_W s s and Omega = lambda_W s s + C_W Theta s' s'."""
        side = Side(layer, step, layer.pairs, self._tangents)
        return form_covariance(layer, side.weigh_back(left), side.weigh_back(right), self._way)

    def pull(self, layer: PairExpectations, step: Step, forms: Array) -> Array:
        """R^T."""
        return Side(layer, step, layer.pairs, self._tangents).pull_back(forms)


def choose_way(
    name: str, matrices: Array, activation: Activation, depth: int, draws: int | None, seed: Seed
) -> Way:
    """Exact where that is cheap or asked for with no draws, else sampled; ``matrices`` (..., N, N)."""
    inputs = matrices.shape[-1]
    if not (matrices * (1 - np.eye(inputs))).any():
        return "diagonal"
    if draws == 0 or (draws is None and exact_seconds(name, inputs, activation, depth) <= _AFFORDABLE):
        return "exact"
    return Samples(draws or (_COSTLY_DRAWS if name == "B" else _DRAWS), seed)


def exact_seconds(name: str, inputs: int, activation: Activation, depth: int) -> float:
    """About how long the exact contraction of a tensor takes, within a factor of a few.

    That is how many different products of activations at three and at four different inputs a layer needs, times what
    one takes, as a closed form or as an integral.
    """
    each_layer = 0.0
    for first, second in _PRODUCTS[name]:
        three, four = _SECONDS[_rule(activation, first, second)]
        # Two of each order can be told apart in 4 and in 6 ways.
        threes, fours = (1, 1) if first == second else (4, 6)
        each_layer += 3 * comb(inputs, 3) * threes * three + comb(inputs, 4) * fours * four
    return (depth - 1) * each_layer


def _rule(activation: Activation, first: int, second: int) -> str:
    """How products of four different inputs are integrated."""
    factors = [factor(activation, order) for order in (first, first, second, second)]
    if closed_form(factors, np.eye(4)[None], np.zeros((1, 4))) is not None:
        return "closed form"
    return "smooth" if activation.is_smooth else "kinked"


def contraction(name: str, left: Array, right: Array, way: Way) -> Contraction:
    """The contraction of V, D, F, A or B with matrices (C, N, N)."""
    if name in ("F", "B"):
        return Contraction(left, right, MixedPullBack(way) if name == "F" else CrossPullBack(way))
    first, second = (on_pairs(matrices, Pairs(matrices.shape[-1])) for matrices in (left, right))
    if name == "V":
        return Contraction(first, second, JointPullBack(way, slice(0, 0)))
    # The tangent kernel is on the right of D, and on both sides of A.
    nothing = np.zeros_like(first)
    first = np.concatenate([nothing, first] if name == "A" else [first, nothing], axis=-1)
    second = np.concatenate([nothing, second], axis=-1)
    return Contraction(first, second, JointPullBack(way, slice(None)))


def on_pairs(matrices: Array, pairs: Pairs) -> Array:
    """Matrices (..., N, N) as coefficients (..., P) of the unordered products s_a s_b."""
    both = matrices + np.swapaxes(matrices, -1, -2)
    coefficients = both[..., pairs.first, pairs.second]
    return np.asarray(np.where(pairs.first == pairs.second, 0.5, 1.0) * coefficients)


def form_covariance(layer: PairExpectations, left: Forms, right: Forms, way: Way) -> Estimates:
    """Cov(sum s^T A s, sum s^T B s) under z ~ N(0, K), s = sigma^(order), for stacks of symmetric forms."""
    if isinstance(way, Samples):
        return _sampled_covariance(layer, left, right, way)
    if way == "exact":
        return exactly(_bilinear(left, layer.covariance, right))
    alone = layer.pairs.number.diagonal()

    def squares(first: int, second: int) -> Array:
        s, t = (factor(layer.activation, order) ** 2 for order in (first, second))
        means = [layer.of(order, order).diagonal() for order in (first, second)]
        return np.asarray(layer.product(s, t) - np.outer(*means))

    A, B = ({order: form[:, alone] for order, form in forms.items()} for forms in (left, right))
    return exactly(_bilinear(A, squares, B))


def _bilinear(left: Forms, matrix: Callable[[int, int], Array], right: Forms) -> Array:
    """The sum over orders of A . S . B, for every form of the stacks."""
    total = np.zeros(len(next(iter(left.values()))))
    for first, A in left.items():
        for second, B in right.items():
            if A.any() and B.any():  # a matrix may be costly
                total += np.einsum("qp,pr,qr->q", A, matrix(first, second), B, optimize=True)
    return total


def _sampled_covariance(layer: PairExpectations, left: Forms, right: Forms, samples: Samples) -> Estimates:
    """Monte Carlo over z, for the part of the forms beyond their projection on quadratic chaos, A~ . (z z - K).

    The projections have the exact covariance 2 tr(A~ K B~ K); the rest is orthogonal to them, so that only its own
    covariance is sampled.
    """
    pairs = layer.pairs
    forms = {order: np.concatenate([left[order], right[order]]) for order in left}
    projected = [layer.response_on(pairs, order).pull_back(form) for order, form in forms.items()]
    bent = _matrices(np.sum(projected, axis=0), pairs)
    halves, count = bent @ layer.K, len(bent) // 2
    exact = 2 * np.einsum("qij,qji->q", halves[:count], halves[count:], optimize=True)
    means = [form @ pairs.vector(layer.of(order, order)) for order, form in forms.items()]
    centre = np.sum(means, axis=0) - np.einsum("qii->q", halves)
    matrices = {order: _matrices(form, pairs) for order, form in forms.items()}

    def products(z: Array) -> Iterator[Array]:
        """r_A r_B, r = sum s^T A s - z^T A~ z - centre, for each pair of forms in turn."""
        values = {order: derivative(layer.activation, z, order) for order in matrices}

        def rest(q: int) -> Array:
            whole = [_quadratic(values[order], matrices[order][q]) for order in matrices]
            return np.asarray(np.sum(whole, axis=0) - _quadratic(z, bent[q]) - centre[q])

        return (rest(q) * rest(q + count) for q in range(count))

    sampled = samples.means(layer.K, count, products)
    return Estimates(exact + sampled.value, sampled.variance)


def derivative(activation: Activation, z: Array, order: int) -> Array:
    """sigma^(order)(z), pointwise."""
    return np.asarray(activation.derivative(z, order) if order else activation.value(z), dtype=np.float64)


def _matrices(forms: Array, pairs: Pairs) -> Array:
    """Symmetric matrices (Q, N, N) with v^T A v = sum of coefficient times v_a v_b."""
    halved = np.where(pairs.first == pairs.second, 1.0, 0.5) * forms
    return np.asarray(halved[:, pairs.number])


def _quadratic(v: Array, A: Array) -> Array:
    """v^T A v for every row of v."""
    return np.asarray(np.einsum("ni,ni->n", v @ A, v))


class MixedPullBack:
    """F'_1324 = C_W^2 [<s_1 s_2 s'_3 s'_4> Theta_34 + r <d(s_1 s'_3)> <d(s_2 s'_4)> F] (8.79)."""

    def __init__(self, way: Way) -> None:
        self._way = way

    def source(self, layer: PairExpectations, step: Step, left: Array, right: Array) -> Estimates:
        """sum X_13 Y_24 <s_1 s_2 s'_3 s'_4> Theta_34; a draw costs N^2."""
        X, Y, Theta = step.C_W * left, step.C_W * right, layer.Theta
        if self._way == "diagonal":
            both = factor(layer.activation) * factor(layer.activation, 1)
            return exactly(_diagonal(X, layer.product(both, both) * Theta, Y))
        if self._way == "exact":
            products = layer.pairs.tensor(layer.fourfold(0, 1))
            return exactly(np.einsum("qac,abcd,cd,qbd->q", X, products, Theta, Y, optimize=True))

        def sampled(z: Array) -> Iterator[Array]:
            s, slope = (derivative(layer.activation, z, order) for order in (0, 1))
            for x, y in zip(X, Y, strict=True):
                yield np.einsum("nc,nc->n", (slope * (s @ x)) @ Theta, slope * (s @ y))

        return self._way.means(layer.K, len(X), sampled)

    def pull(self, layer: PairExpectations, step: Step, forms: Array) -> Array:
        """The transposed mixed response."""
        return step.C_W * layer.mixed_response.pull_back(forms)


class CrossPullBack:
    """B'_1324 = C_W^2 [<s'_1 s'_2 s'_3 s'_4> Theta_12 Theta_34 + r <s'_1 s'_3> <s'_2 s'_4> B] (8.89)."""

    def __init__(self, way: Way) -> None:
        self._way = way

    def source(self, layer: PairExpectations, step: Step, left: Array, right: Array) -> Estimates:
        """sum X_13 Y_24 <s'_1 s'_2 s'_3 s'_4> Theta_12 Theta_34; a draw costs N^3."""
        X, Y, Theta = step.C_W * left, step.C_W * right, layer.Theta
        if self._way == "diagonal":
            square = factor(layer.activation, 1) ** 2
            return exactly(_diagonal(X, layer.product(square, square) * Theta**2, Y))
        if self._way == "exact":
            products = layer.pairs.tensor(layer.fourfold(1, 1))
            return exactly(np.einsum("qac,abcd,ab,cd,qbd->q", X, products, Theta, Theta, Y, optimize=True))

        def sampled(z: Array) -> Iterator[Array]:
            slope = derivative(layer.activation, z, 1)
            for x, y in zip(X, Y, strict=True):
                scaled = ((u[:, None] * x * u, u[:, None] * y * u) for u in slope)
                yield np.array([np.vdot(Theta @ a @ Theta, b) for a, b in scaled])

        return self._way.means(layer.K, len(X), sampled)

    def pull(self, layer: PairExpectations, step: Step, forms: Array) -> Array:
        """Multiplies by C_W <s' s'>."""
        return step.C_W * layer.of(1, 1) * forms


def _diagonal(left: Array, matrix: Array, right: Array) -> Array:
    return np.asarray(np.einsum("qaa,ab,qbb->q", left, matrix, right, optimize=True))
