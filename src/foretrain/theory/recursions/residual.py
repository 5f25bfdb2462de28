"""Residual networks: four-point vertex and three-point function from layer to layer, at leading order in 1/n.

The variance of a neuron, given everything that the neurons share, is Q' = C_b + (C_W/n) sum_j s_j s_j + gamma^2 Q.
Its fluctuation obeys dQ' = X dQ + C_W e, with the response X = gamma^2 + C_W M, M = dF/dK, and the noise e of n
neurons around F. A neuron carries its past along, Cov(z^l, z^m) = (product of gamma) K^m, which shows twice: the
noises of different layers are correlated, and a neuron is correlated with the dQ that its own past helped to make.

* ``BookVertex``      (B.24), (B.25): keeps the part of that memory that is quadratic in z. Exact through layer 2, for
  linear activations, and asymptotically for K* = 0.
* ``CompleteVertex``  all of the leading order: S = n Var(dQ), R = n Cov(dQ, z z), V = S + R + R^T.

Tensors on pairs of inputs are matrices (P, P), no inverse of K occurs, and nothing carries a 1/n: the physical
covariance at layer l is V / n_{l-1}. A layer with gamma = 0 forgets the past of its neurons. Only there can the
width change; V counts n_{l-1}, so what comes from before it is multiplied by n_l / n_{l-1}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import expectations_at
from foretrain.gaussian.expectation import MOST_INPUTS, default_tolerance
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.theory.architecture import MLP
from foretrain.theory.recursions.expectations import PairExpectations, Step, next_kernel
from foretrain.theory.recursions.pairs import JointCovariance, Pairs, Side, quadruples_between

Array = NDArray[np.float64]

FORGOTTEN = 1e-9
"""Correlation of a neuron with its own past below which that past is dropped; c_2 is at most of this order."""


class BookVertex:
    """V' = C_W^2 Cov + X V X^T + C_W gamma^2 [<s s (z z - K)> + transpose] (B.24), (B.25), zero at layer 1."""

    def __init__(self, pairs: Pairs) -> None:
        self._joint = JointCovariance(pairs, pairs)

    @property
    def values(self) -> Array:
        """V (P, P) at the present layer."""
        return self._joint.values

    def step(self, expectations: PairExpectations, step: Step) -> None:
        """Go on to the next layer, given the expectations at the layer before it."""
        self._joint.step(expectations, step, expectations.covariance)
        if step.gamma:
            memory = step.C_W * _symmetrized(quadratic_part(expectations))
            self._joint.values = self.values + step.gamma**2 * memory


class CompleteVertex:
    """V = S + R + R^T with S' = X S X^T + C_W^2 c_2 + [X P + transpose] and R' = gamma^2 (X R + C_W <s s (z z - K)>).

    P = n Cov(dQ, C_W e) sums over the earlier layers of the same run of skip connections; rows of R are dQ.
    """

    def __init__(self, pairs: Pairs) -> None:
        self._shared = JointCovariance(pairs, pairs)
        self._own = np.zeros((len(pairs), len(pairs)))
        self._past = _Past(pairs)

    @property
    def values(self) -> Array:
        """V (P, P) at the present layer."""
        return self._shared.values + _symmetrized(self._own)

    def step(self, expectations: PairExpectations, step: Step) -> None:
        """Go on to the next layer, given the expectations at the layer before it."""
        X = Side(expectations, step, expectations.pairs)
        self._shared.step(expectations, step, expectations.covariance)
        if self._past:
            noise = step.C_W * self._past.noise_covariance(expectations)
            self._shared.values = self._shared.values + _symmetrized(X @ noise)
        if step.gamma:
            own = X @ self._own + step.C_W * quadratic_part(expectations)
            self._own = step.gamma**2 * own
        else:
            self._own = np.zeros_like(self._own)
        self._past.add(X)


class _Visited(NamedTuple):
    """A layer m behind the present one, in the same run of skip connections."""

    F: Array  # <s s> on pairs
    X: Side  # X = gamma^2 + C_W M (B.15) of the step from m to m + 1


class _Past:
    """The layers that the neurons of the present layer remember, oldest first."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._visited: list[_Visited] = []

    def __bool__(self) -> bool:
        return bool(self._visited)

    def add(self, X: Side) -> None:
        """Leave a layer by the step X; a step without skip connection erases everything."""
        F = self._pairs.vector(X.layer.of(0, 0))
        self._visited = [*self._visited, _Visited(F, X)] if X.step.gamma else []

    def noise_covariance(self, expectations: PairExpectations) -> Array:
        """n Cov(dQ, e) = sum_m X^(l-1) ... X^(m+1) C_W c_2(m, l) on pairs (P, P), rows dQ."""
        # Drop the oldest layers while their largest correlation with the present one is below ``FORGOTTEN``.
        present = np.maximum(np.diagonal(expectations.K), np.finfo(np.float64).tiny)
        memory = np.cumprod([visited.X.step.gamma for visited in reversed(self._visited)])[::-1]
        spread = np.array(
            [np.sqrt(np.diagonal(visited.X.layer.K) / present).max() for visited in self._visited]
        )
        remembered = np.flatnonzero(np.abs(memory) * spread >= FORGOTTEN)
        self._visited = self._visited[remembered[0] :] if remembered.size else []
        total = np.zeros((len(self._pairs), len(self._pairs)))
        if not self._visited:
            return total
        for visited, covariance in zip(self._visited, self._covariances(expectations), strict=True):
            total = visited.X @ total + visited.X.step.C_W * covariance
        return total

    def _covariances(self, expectations: PairExpectations) -> Array:
        """c_2(m, l) = Cov(s_a s_b at m, s_c s_d at l) for every remembered m: (layers, P, P)."""
        size, pairs, layers = len(expectations.K), self._pairs, len(self._visited)
        # Inputs of layer m are counted on from size * m, those of the present layer after all others.
        places = size * np.arange(layers)[:, None, None, None] * np.array([1, 1, 0, 0])
        places = places + size * layers * np.array([0, 0, 1, 1]) + quadruples_between(pairs, pairs)
        found = expectations_at(
            [expectations.activation] * 4,
            self._joint_kernel(expectations.K),
            places,
            tolerance=default_tolerance(min(2 * size, MOST_INPUTS)),
        )
        F = pairs.vector(expectations.of(0, 0))
        means = [visited.F[:, None] * F for visited in self._visited]
        return np.asarray(found.value) - np.reshape(means, found.value.shape)

    def _joint_kernel(self, K: Array) -> Array:
        """Covariance of one neuron's preactivations at all remembered layers and the present one."""
        kernels = np.stack([*(visited.X.layer.K for visited in self._visited), K])
        gammas = np.array([1.0, *(visited.X.step.gamma for visited in self._visited)])
        layers, size = len(kernels), len(K)
        memory = np.eye(layers)
        for early in range(layers):
            memory[early, early + 1 :] = memory[early + 1 :, early] = np.cumprod(gammas[early + 1 :])
        places = np.arange(layers)
        blocks = memory[:, :, None, None] * kernels[np.minimum.outer(places, places)]
        return np.asarray(blocks.transpose(0, 2, 1, 3).reshape(layers * size, layers * size))


class ThreePoint:
    """T = n E[z_i;a z_j;b z_j;c], i != j, as a matrix with rows (b, c) and columns a, zero at layer 1.

    T' = gamma (X T + C_W <z_a s_b s_c>): z_i shifts the variance that all neurons share, and keeps its own sign.
    """

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._values = np.zeros((len(pairs), pairs.size))

    @property
    def values(self) -> Array:
        """T (N, N, N), indices a, b, c."""
        return np.asarray(self._values.T[:, self._pairs.number])

    def step(self, expectations: PairExpectations, step: Step) -> None:
        """Go on to the next layer, given the expectations at the layer before it."""
        if not step.gamma:
            self._values = np.zeros_like(self._values)
            return
        X = Side(expectations, step, expectations.pairs)
        # <z_a s_b s_c> = K_ab <s'_b s_c> + K_ac <s_b s'_c>, rows (b, c).
        b, c, K, slope = self._pairs.first, self._pairs.second, expectations.K, expectations.of(1, 0)
        linear_part = slope[b, c][:, None] * K[b] + slope[c, b][:, None] * K[c]
        self._values = step.gamma * (X @ self._values + step.C_W * linear_part)


def quadratic_part(expectations: PairExpectations) -> Array:
    """<s_1 s_2 (z z - K)_34> = sum_B M_(12)B Cov(z z_B, z z_34), by Stein's identity and without K^-1: (P, P)."""
    K, a, b = expectations.K, expectations.pairs.first, expectations.pairs.second
    wick = K[np.ix_(a, a)] * K[np.ix_(b, b)] + K[np.ix_(a, b)] * K[np.ix_(b, a)]
    return expectations.response @ wick


def _symmetrized(matrix: Array) -> Array:
    return np.asarray(matrix + matrix.T)


METHODS: dict[str, type[BookVertex] | type[CompleteVertex]] = {
    "book": BookVertex,
    "complete": CompleteVertex,
}
OBSERVABLES = ("K", "V", "three_point")


def residual_flow(
    mlp: MLP,
    first_kernel: Array,
    method: str = "complete",
    wanted: Sequence[str] = ("K", "V"),
    tolerance: float = 1e-10,
) -> dict[str, Array]:
    """Observables at layers 1..L, by name: K (L, N, N), V (L, P, P) on pairs, three_point (L, N, N, N).

    ``three_point`` is T_a(bc) = n E[z_i;a z_j;b z_j;c] of two different neurons; networks without skip connections
    have none. "complete" costs P^2 four-input expectations for every layer that a neuron remembers.
    """
    if method not in METHODS:
        raise unknown_name("`method` for the vertex of residual networks", method, METHODS)
    for name in wanted:
        if name not in OBSERVABLES:
            raise unknown_name("observable of residual networks", name, OBSERVABLES, "wanted")
    K = np.asarray(first_kernel, dtype=np.float64)
    if K.ndim != 2 or K.shape[0] != K.shape[1]:
        raise InputError(f"the kernel of layer 1 must have shape (inputs, inputs), but has {K.shape}.")
    pairs = Pairs(len(K))
    strongest = max(map(abs, mlp.gamma))
    remembered = np.log(FORGOTTEN) / np.log(strongest) if 0 < strongest < 1 else mlp.depth * (strongest > 0)
    sizes = {"K": pairs.size**2, "V": len(pairs) ** 2, "three_point": pairs.size**3}
    working = 12 * len(pairs) ** 2 * (1 + min(remembered, mlp.depth)) if "V" in wanted else 0
    require_memory(
        8 * (mlp.depth * sum(sizes[name] for name in wanted) + working),
        f"{', '.join(wanted)} of {pairs.size} inputs at {mlp.depth} layers",
        "ask for fewer inputs",
    )
    vertex, three_point = METHODS[method](pairs), ThreePoint(pairs)
    kept: dict[str, list[Array]] = {name: [] for name in wanted}
    for index, layer in enumerate(track(mlp.layers, "layers")):
        if index:
            expectations = PairExpectations(mlp.activation, K, tolerance)
            if "V" in kept:
                vertex.step(expectations, Step.into(mlp, index))
            if "three_point" in kept:
                three_point.step(expectations, Step.into(mlp, index))
            K = next_kernel(expectations, layer)
        state = {"K": K, "V": vertex.values, "three_point": three_point.values}
        for name, values in kept.items():
            values.append(state[name])
    return {name: np.stack(values) for name, values in kept.items()}
