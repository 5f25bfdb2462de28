"""Tensors of four inputs contracted with matrices, sum X_12 V_(12)(34) Y_34, without their N^4 entries.

V^(l+1) = S + (n_l / n_{l-1}) R V^(l) R^T: instead of pushing V forward, the matrices are pulled back through the
responses R, and every layer they pass adds one source X . S . Y. :class:`Contraction` does that for any tensor with a
:class:`PullBack`; :class:`VertexPullBack` is the one of the four-point vertex, whose source is the covariance of two
quadratic forms of s = sigma(z). That is exact where it is cheap (few inputs, diagonal matrices) and sampled
elsewhere, after its quadratic part in z has been taken out exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import factor
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.theory.ensembles.sampling import matrix_root
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.preactivation import PairExpectations, Response, Step

Array = NDArray[np.float64]
Forms = Mapping[int, Array]
"""Stacks (Q, P) of quadratic forms on pairs, by the order of the derivative of sigma whose products they weigh."""
LayerT = TypeVar("LayerT", bound=PairExpectations)
LayerT_contra = TypeVar("LayerT_contra", bound=PairExpectations, contravariant=True)

_CHUNK = 1024


class Estimates(NamedTuple):
    """Values and the variances of their estimates."""

    value: Array
    variance: Array


def exactly(value: Array) -> Estimates:
    """Values without error."""
    return Estimates(value, np.zeros_like(value))


class PullBack(Protocol[LayerT_contra]):
    """How a tensor's recursion acts on what it is contracted with: stacks (Q, ...) on either side."""

    def source(self, layer: LayerT_contra, step: Step, left: Array, right: Array) -> Estimates:
        """What the step adds to the contraction: (Q,)."""

    def pull(self, layer: LayerT_contra, step: Step, forms: Array) -> Array:
        """R^T on either side's forms."""


class Contraction(Generic[LayerT]):
    """Remembers the layers of a flow, then pulls both sides back from every layer to the first."""

    def __init__(self, left: Array, right: Array, rule: PullBack[LayerT]) -> None:
        """``left`` and ``right`` are stacks (C, ...) of what the tensor is contracted with."""
        self._sides = np.stack([left, right])
        self._rule = rule
        self._layers: list[tuple[LayerT, Step]] = []

    def now(self) -> dict[str, Array]:
        """Nothing yet: see :meth:`values`."""
        return {}

    def step(self, old: LayerT, step: Step) -> None:
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


class VertexPullBack:
    """V' = C_W^2 [Cov(s s, s s) + (n_l / n_{l-1}) M V M^T] (4.119), forms (P,) on pairs."""

    def __init__(self, covariance: FormCovariance) -> None:
        self._covariance = covariance

    def source(self, layer: PairExpectations, step: Step, left: Array, right: Array) -> Estimates:
        """C_W^2 Cov(s^T X s, s^T Y s)."""
        return self._covariance(layer, {0: step.C_W * left}, {0: step.C_W * right})

    def pull(self, layer: PairExpectations, step: Step, forms: Array) -> Array:
        """C_W M^T."""
        return step.C_W * pulled_back(layer.response, forms)


def on_pairs(matrices: Array, pairs: Pairs) -> Array:
    """Matrices (..., N, N) as coefficients (..., P) of the unordered products s_a s_b."""
    both = matrices + np.swapaxes(matrices, -1, -2)
    coefficients = both[..., pairs.first, pairs.second]
    return np.asarray(np.where(pairs.first == pairs.second, 0.5, 1.0) * coefficients)


def pulled_back(response: Response, forms: Array) -> Array:
    """M^T v for stacks (..., P)."""
    flat = forms.reshape(-1, forms.shape[-1])
    return np.array([response.pull_back(v) for v in flat]).reshape(forms.shape)


def exact_covariance(layer: PairExpectations, left: Forms, right: Forms) -> Estimates:
    """Through all four-input expectations, O(N^4) of them: for few inputs."""
    return exactly(_bilinear(left, layer.covariance, right))


def diagonal_covariance(layer: PairExpectations, left: Forms, right: Forms) -> Estimates:
    """Forms sum_a A_aa s_a^2 only: two-input expectations, O(N^2)."""
    diagonal = layer.response.pairs.number.diagonal()

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
        pairs = layer.response.pairs
        forms = {order: np.concatenate([left[order], right[order]]) for order in left}
        projected = [pulled_back(layer.response_of(order), form) for order, form in forms.items()]
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
