"""The four-point vertex contracted with matrices, sum A_12 V_(12)(34) B_34, without its N^4 entries.

A . V^(l+1) . B = C_W^2 [Cov(s^T A s, s^T B s) + (n_l / n_{l-1}) (M^T A) . V^(l) . (M^T B)]: instead of pushing V
forward, the matrices are pulled back through the responses M, and every layer they pass adds one covariance of two
quadratic forms of s = sigma(z). That covariance is exact where it is cheap (few inputs, diagonal matrices) and
sampled elsewhere, after its quadratic part in z has been taken out exactly.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.theory.ensembles.sampling import matrix_root
from foretrain.theory.pairs import Pairs
from foretrain.theory.recursions.preactivation import PairExpectations, Response, Step, source

Array = NDArray[np.float64]

_CHUNK = 1024


class Covariances(NamedTuple):
    """Covariances of pairs of quadratic forms and the variances of their estimates."""

    value: Array
    variance: Array


class FormCovariance(Protocol):
    """A way to compute the covariance of two quadratic forms of s = sigma(z)."""

    def __call__(self, layer: PairExpectations, A: Array, B: Array) -> Covariances:
        """Cov(s^T A s, s^T B s) under z ~ N(0, K), for stacks (Q, P) of symmetric forms given on pairs."""


class ContractedVertices:
    """Remembers the layers of a flow, then pulls pairs of matrices back from every layer to the first."""

    def __init__(self, matrices: Array, covariance: FormCovariance) -> None:
        """``matrices`` has shape (C, 2, N, N): C pairs of matrices."""
        self._pairs = Pairs(matrices.shape[-1])
        self._forms = _on_pairs(matrices, self._pairs)
        self._covariance = covariance
        self._layers: list[tuple[PairExpectations, Step]] = []

    def now(self) -> dict[str, Array]:
        """Nothing yet: see :meth:`values`."""
        return {}

    def step(self, old: PairExpectations, step: Step) -> None:
        """Remember what the pull-back needs of the step from one layer to the next."""
        self._layers.append((old, step))

    def values(self) -> Covariances:
        """A . V . B at layers 1..L, shape (L, C), with variances of the estimates."""
        depth, contractions = len(self._layers) + 1, len(self._forms)
        value, variance = np.zeros((depth, contractions)), np.zeros((depth, contractions))
        forms = np.empty((0, contractions, *self._forms.shape[1:]))
        scale = np.empty(0)  # n_{target - 1} / n_l for every target layer
        for index in track(list(range(depth - 2, -1, -1)), "pulling back"):
            layer, step = self._layers[index]
            forms = step.C_W * np.concatenate([self._forms[None], forms])
            scale = np.concatenate([[1.0], scale])
            A, B = (forms[:, :, side].reshape(-1, len(self._pairs)) for side in (0, 1))
            found = self._covariance(layer, A, B)
            value[index + 1 :] += scale[:, None] * found.value.reshape(-1, contractions)
            variance[index + 1 :] += scale[:, None] ** 2 * found.variance.reshape(-1, contractions)
            forms = _pulled_back(layer.response, forms)
            scale = scale * step.ratio
        return Covariances(value, variance)


def _on_pairs(matrices: Array, pairs: Pairs) -> Array:
    """Matrices (..., N, N) as coefficients (..., P) of the unordered products s_a s_b."""
    both = matrices + np.swapaxes(matrices, -1, -2)
    coefficients = both[..., pairs.first, pairs.second]
    return np.asarray(np.where(pairs.first == pairs.second, 0.5, 1.0) * coefficients)


def _pulled_back(response: Response, forms: Array) -> Array:
    """M^T v for stacks (..., P)."""
    flat = forms.reshape(-1, forms.shape[-1])
    return np.stack([response.pull_back(v) for v in flat]).reshape(forms.shape)


def exact_covariance(layer: PairExpectations, A: Array, B: Array) -> Covariances:
    """Through all four-input expectations, O(N^4) of them: for few inputs."""
    S = source(layer, layer.response.pairs)
    value = np.einsum("qp,pr,qr->q", A, S, B, optimize=True)
    return Covariances(value, np.zeros_like(value))


def diagonal_covariance(layer: PairExpectations, A: Array, B: Array) -> Covariances:
    """Forms sum_a A_aa s_a^2 only: two-input expectations, O(N^2)."""
    pairs = layer.response.pairs
    diagonal = pairs.number.diagonal()
    means = layer.of(0, 0).diagonal()
    S = layer.powers(2, 2) - np.outer(means, means)
    value = np.einsum("qa,ab,qb->q", A[:, diagonal], S, B[:, diagonal], optimize=True)
    return Covariances(value, np.zeros_like(value))


class SampledCovariance:
    """Monte Carlo over z, for the part of the forms beyond their projection M^T A . (z z - K) on quadratic chaos.

    The projections have the exact covariance 2 tr(A~ K B~ K); the rest is orthogonal to them, so that only its own
    covariance is sampled.
    """

    def __init__(self, draws: int, seed: Seed) -> None:
        self._draws, self._seed = draws, seed
        self._calls = 0

    def __call__(self, layer: PairExpectations, A: Array, B: Array) -> Covariances:
        """Exact quadratic part plus the sampled rest, with the variance of the latter."""
        pairs = layer.response.pairs
        forms = np.concatenate([A, B])
        bent = _matrices(_pulled_back(layer.response, forms), pairs)
        halves = bent @ layer.K
        count = len(A)
        exact = 2 * np.einsum("qij,qji->q", halves[:count], halves[count:], optimize=True)
        means = forms @ pairs.vector(layer.of(0, 0)) - np.einsum("qii->q", halves)
        sampled = self._rest(layer.activation, layer.K, _matrices(forms, pairs), bent, means)
        return Covariances(exact + sampled.value, sampled.variance)

    def _rest(self, activation: Activation, K: Array, forms: Array, bent: Array, means: Array) -> Covariances:
        """E[r_A r_B], r = s^T A s - z^T A~ z - mean, and its squared standard error."""
        root, count = matrix_root(K), len(forms) // 2
        total, squares = np.zeros(count), np.zeros(count)
        chunks = -(-self._draws // _CHUNK)
        (own,) = spawn(self._seed, self._calls + 1)[-1:]
        self._calls += 1
        for seed in spawn(own, chunks):
            z = generator(seed).standard_normal((_CHUNK, len(K))) @ root.T
            s = np.asarray(activation.value(z), dtype=np.float64)
            rest = [
                _quadratic(s, A) - _quadratic(z, a) - m for A, a, m in zip(forms, bent, means, strict=True)
            ]
            for q in range(count):
                products = rest[q] * rest[q + count]
                total[q] += products.sum()
                squares[q] += products @ products
        draws = chunks * _CHUNK
        value = total / draws
        return Covariances(value, (squares / draws - value**2) / draws)


def _matrices(forms: Array, pairs: Pairs) -> Array:
    """Symmetric matrices (Q, N, N) with v^T A v = sum of coefficient times v_a v_b."""
    halved = np.where(pairs.first == pairs.second, 1.0, 0.5) * forms
    return np.asarray(halved[:, pairs.number])


def _quadratic(v: Array, A: Array) -> Array:
    """v^T A v for every row of v."""
    return np.asarray(np.einsum("ni,ni->n", v @ A, v))
