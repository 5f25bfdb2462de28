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
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import factor
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.theory.ensembles.sampling import matrix_root
from foretrain.theory.recursions.expectations import PairExpectations, Step
from foretrain.theory.recursions.pairs import Pairs, Side

Array = NDArray[np.float64]
Forms = Mapping[int, Array]
"""Stacks (Q, P) of quadratic forms on pairs, by the order of the derivative of sigma whose products they weigh."""

_CHUNK = 1024


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


class FormCovariance(Protocol):
    """A way to compute the covariance of two quadratic forms of sigma(z) and its derivatives."""

    def __call__(self, layer: PairExpectations, left: Forms, right: Forms) -> Estimates:
        """Cov(sum s^T A s, sum s^T B s) under z ~ N(0, K), s = sigma^(order), for stacks of symmetric forms."""


class JointPullBack:
    """V, or with ``tangents`` V, D and A together (4.119), (8.77), (8.97); forms (P,) or (2 P,) on all pairs."""

    def __init__(self, covariance: FormCovariance, tangents: slice) -> None:
        self._covariance, self._tangents = covariance, tangents

    def source(self, layer: PairExpectations, step: Step, left: Array, right: Array) -> Estimates:
        """Covariance of the forms of C_W s s and Omega = lambda_W s s + C_W Theta s' s'."""
        side = Side(layer, step, layer.pairs, self._tangents)
        return self._covariance(layer, side.weigh_back(left), side.weigh_back(right))

    def pull(self, layer: PairExpectations, step: Step, forms: Array) -> Array:
        """R^T."""
        return Side(layer, step, layer.pairs, self._tangents).pull_back(forms)


def joint_contraction(name: str, left: Array, right: Array, covariance: FormCovariance) -> Contraction:
    """The contraction of V, D or A with matrices (C, N, N)."""
    first, second = (on_pairs(matrices, Pairs(matrices.shape[-1])) for matrices in (left, right))
    if name == "V":
        return Contraction(first, second, JointPullBack(covariance, slice(0, 0)))
    # The tangent kernel is on the right of D, and on both sides of A.
    nothing = np.zeros_like(first)
    first = np.concatenate([nothing, first] if name == "A" else [first, nothing], axis=-1)
    second = np.concatenate([nothing, second], axis=-1)
    return Contraction(first, second, JointPullBack(covariance, slice(None)))


def on_pairs(matrices: Array, pairs: Pairs) -> Array:
    """Matrices (..., N, N) as coefficients (..., P) of the unordered products s_a s_b."""
    both = matrices + np.swapaxes(matrices, -1, -2)
    coefficients = both[..., pairs.first, pairs.second]
    return np.asarray(np.where(pairs.first == pairs.second, 0.5, 1.0) * coefficients)


def exact_covariance(layer: PairExpectations, left: Forms, right: Forms) -> Estimates:
    """Through all four-input expectations, O(N^4) of them: for few inputs."""
    return exactly(_bilinear(left, layer.covariance, right))


def diagonal_covariance(layer: PairExpectations, left: Forms, right: Forms) -> Estimates:
    """Forms sum_a A_aa s_a^2 only: two-input expectations, O(N^2)."""
    diagonal = layer.pairs.number.diagonal()

    def squares(first: int, second: int) -> Array:
        s, t = (factor(layer.activation, order) ** 2 for order in (first, second))
        means = [layer.of(order, order).diagonal() for order in (first, second)]
        return np.asarray(layer.product(s, t) - np.outer(*means))

    A, B = ({order: form[:, diagonal] for order, form in forms.items()} for forms in (left, right))
    return exactly(_bilinear(A, squares, B))


def _bilinear(left: Forms, matrix: Callable[[int, int], Array], right: Forms) -> Array:
    """The sum over orders of A . S . B, for every form of the stacks."""
    total = np.zeros(len(next(iter(left.values()))))
    for first, A in left.items():
        for second, B in right.items():
            if A.any() and B.any():  # a matrix may be costly
                total += np.einsum("qp,pr,qr->q", A, matrix(first, second), B, optimize=True)
    return total


class SampledCovariance:
    """Monte Carlo over z, for the part of the forms beyond their projection on quadratic chaos, A~ . (z z - K).

    The projections have the exact covariance 2 tr(A~ K B~ K); the rest is orthogonal to them, so that only its own
    covariance is sampled.
    """

    def __init__(self, draws: int, seed: Seed) -> None:
        self._samples = Samples(draws, seed)

    def __call__(self, layer: PairExpectations, left: Forms, right: Forms) -> Estimates:
        """Exact quadratic part plus the sampled rest, with the variance of the latter."""
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

        sampled = self._samples.means(layer.K, count, products)
        return Estimates(exact + sampled.value, sampled.variance)


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


class CrossSource(Protocol):
    """A way to compute what a layer adds to F or B, for stacks (Q, N, N) of matrices."""

    def __call__(self, layer: PairExpectations, left: Array, right: Array) -> Estimates:
        """What is added, (Q,)."""


class _CrossTerm:
    """The first term of F' or B', which a layer adds by itself."""

    def __init__(self, source: CrossSource) -> None:
        self._source = source

    def source(self, layer: PairExpectations, step: Step, left: Array, right: Array) -> Estimates:
        """C_W^2 times what the source computes."""
        return self._source(layer, step.C_W * left, step.C_W * right)


class CrossPullBack(_CrossTerm):
    """F'_1324 = C_W^2 [<s_1 s_2 s'_3 s'_4> Theta_34 + r <d(s_1 s'_3)> <d(s_2 s'_4)> F] (8.79)."""

    def pull(self, layer: PairExpectations, step: Step, forms: Array) -> Array:
        """The transposed mixed response."""
        return step.C_W * layer.mixed_response.pull_back(forms)


class CrossVariancePullBack(_CrossTerm):
    """B'_1324 = C_W^2 [<s'_1 s'_2 s'_3 s'_4> Theta_12 Theta_34 + r <s'_1 s'_3> <s'_2 s'_4> B] (8.89)."""

    def pull(self, layer: PairExpectations, step: Step, forms: Array) -> Array:
        """Multiplies by C_W <s' s'>."""
        return step.C_W * layer.of(1, 1) * forms


def exact_cross(layer: PairExpectations, left: Array, right: Array) -> Estimates:
    """sum X_13 Y_24 <s_1 s_2 s'_3 s'_4> Theta_34 through all four-input expectations: for few inputs."""
    products = layer.pairs.tensor(layer.fourfold(0, 1))
    found = np.einsum("qac,abcd,cd,qbd->q", left, products, layer.Theta, right, optimize=True)
    return exactly(found)


def exact_cross_variance(layer: PairExpectations, left: Array, right: Array) -> Estimates:
    """sum X_13 Y_24 <s'_1 s'_2 s'_3 s'_4> Theta_12 Theta_34, likewise."""
    products = layer.pairs.tensor(layer.fourfold(1, 1))
    Theta = layer.Theta
    found = np.einsum("qac,abcd,ab,cd,qbd->q", left, products, Theta, Theta, right, optimize=True)
    return exactly(found)


def diagonal_cross(layer: PairExpectations, left: Array, right: Array) -> Estimates:
    """For diagonal matrices: two-input expectations."""
    both = factor(layer.activation) * factor(layer.activation, 1)
    return exactly(_diagonal(left, layer.product(both, both) * layer.Theta, right))


def diagonal_cross_variance(layer: PairExpectations, left: Array, right: Array) -> Estimates:
    """For diagonal matrices: two-input expectations."""
    square = factor(layer.activation, 1) ** 2
    return exactly(_diagonal(left, layer.product(square, square) * layer.Theta**2, right))


def _diagonal(left: Array, matrix: Array, right: Array) -> Array:
    return np.asarray(np.einsum("qaa,ab,qbb->q", left, matrix, right, optimize=True))


class SampledCross:
    """Monte Carlo over z: one draw costs N^2."""

    def __init__(self, draws: int, seed: Seed) -> None:
        self._samples = Samples(draws, seed)

    def __call__(self, layer: PairExpectations, left: Array, right: Array) -> Estimates:
        """u^T Theta w with u_3 = s'_3 sum_1 X_13 s_1 and w_4 = s'_4 sum_2 Y_24 s_2."""

        def products(z: Array) -> Iterator[Array]:
            s, slope = (derivative(layer.activation, z, order) for order in (0, 1))
            for X, Y in zip(left, right, strict=True):
                yield np.einsum("nc,nc->n", (slope * (s @ X)) @ layer.Theta, slope * (s @ Y))

        return self._samples.means(layer.K, len(left), products)


class SampledCrossVariance:
    """Monte Carlo over z: one draw costs N^3."""

    def __init__(self, draws: int, seed: Seed) -> None:
        self._samples = Samples(draws, seed)

    def __call__(self, layer: PairExpectations, left: Array, right: Array) -> Estimates:
        """tr(Theta X~ Theta Y~^T), X~ and Y~ the matrices times s' s'."""

        def products(z: Array) -> Iterator[Array]:
            slope = derivative(layer.activation, z, 1)
            for X, Y in zip(left, right, strict=True):
                scaled = ((u[:, None] * X * u, u[:, None] * Y * u) for u in slope)
                yield np.array([np.vdot(layer.Theta @ x @ layer.Theta, y) for x, y in scaled])

        return self._samples.means(layer.K, len(left), products)
