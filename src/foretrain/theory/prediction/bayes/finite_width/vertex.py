"""The four-point vertex on chosen pairs of inputs, rows by columns, at every layer.

V^(l+1) = C_W^2 [Cov(s s, s s) + (n_l / n_{l-1}) M V^(l) M^T] (4.119), and row (a, b) of the response M has entries at
aa, ab and bb only: sets of pairs that contain aa and bb with every ab flow by themselves. The covariance is exact
(O(rows x columns) integrals over up to four inputs) or sampled, after its quadratic part in z has been taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import factor, products_at
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles.sampling import matrix_root
from foretrain.theory.recursions.expectations import PairExpectations, Step, next_kernel, refuse_exploded
from foretrain.theory.recursions.pairs import (
    JointCovariance,
    Pairs,
    Response,
    quadruples_between,
    sandwich,
)

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_CHUNK = 1024
_BYTES = 200  # for each entry of a block, of which most are its four inputs while equal ones are found


class Block(NamedTuple):
    """Which entries V_(row)(column) are wanted."""

    rows: Pairs
    columns: Pairs


class HiddenLayer(NamedTuple):
    """A hidden layer's expectations, and the step to the layer after it."""

    expectations: PairExpectations
    step: Step

    def response(self, pairs: Pairs) -> Response:
        """M = d<s s>/dK on a closed set of pairs, computed once."""
        return self.expectations.response_on(pairs)

    def means(self, pairs: Pairs) -> Array:
        """<s_a s_b>."""
        return pairs.vector(self.expectations.of(0, 0))


class Covariance(Protocol):
    """A way to find Cov(s_a s_b, s_c s_d) under z ~ N(0, K)."""

    def __call__(self, layer: HiddenLayer, blocks: Sequence[Block]) -> list[Array]:
        """One array (rows, columns) for each block."""


def between(size: int, left: Indices, right: Indices) -> Pairs:
    """All pairs of one input of ``left`` with one of ``right``, and their squares."""
    return Pairs.closure(size, *np.meshgrid(left, right, indexing="ij"))


def hidden_layers(mlp: MLP, X: Array) -> tuple[list[HiddenLayer], Array]:
    """The hidden layers on the inputs X, and the kernel of the output."""
    K, found = mlp.first_kernel(X), list[HiddenLayer]()
    for index, layer in enumerate(mlp.layers[1:], start=1):
        refuse_exploded(K.diagonal(), index)
        expectations = PairExpectations(mlp.activation, K)
        found.append(HiddenLayer(expectations, Step.into(mlp, index)))
        K = next_kernel(expectations, layer)
    return found, K


def vertices(
    layers: Sequence[HiddenLayer], blocks: Sequence[Block], covariance: Covariance
) -> Iterator[list[Array]]:
    """The blocks of V at layers 1..L (4.119), where V^(1) = 0."""
    require_memory(
        _BYTES * sum(len(block.rows) * len(block.columns) for block in blocks),
        f"the four-point vertex on {sum(len(b.rows) * len(b.columns) for b in blocks):,} pairs of pairs",
        "use fewer training inputs, or spread='variance' or 'none'",
    )
    joint = [JointCovariance(*block) for block in blocks]
    yield [block.values for block in joint]
    for layer in track(layers, "four-point vertex"):
        for block, fresh in zip(joint, covariance(layer, blocks), strict=True):
            block.step(layer.expectations, layer.step, _of_values(fresh))
        yield [block.values for block in joint]


def _of_values(covariance: Array) -> Callable[[int, int], Array]:
    """Cov(s s, s s), the only one that V needs."""
    return lambda first, second: covariance


def exact_covariance(layer: HiddenLayer, blocks: Sequence[Block]) -> list[Array]:
    """By integrals over up to four inputs, each different one once."""
    old = layer.expectations
    s = [factor(old.activation)] * 4
    requests = [(s, quadruples_between(*block)) for block in blocks]
    found = products_at(requests, old.K, tolerance=old.product_tolerance)
    return [
        np.asarray(item.value) - np.multiply.outer(layer.means(block.rows), layer.means(block.columns))
        for item, block in zip(found, blocks, strict=True)
    ]


class SampledCovariance:
    """Monte Carlo over z for what s_a s_b has beyond its projection on quadratic chaos, M (z z - K).

    The projections have the exact covariance M (K K + K K) M^T; the rest is orthogonal to them.
    """

    def __init__(self, draws: int, seed: Seed) -> None:
        self._draws, self._seed, self._calls = draws, seed, 0

    def __call__(self, layer: HiddenLayer, blocks: Sequence[Block]) -> list[Array]:
        """The exact part and the sampled rest, with fresh draws at every call."""
        K = layer.expectations.K
        total = []
        for block in blocks:  # Cov(z_a z_b, z_c z_d) = K_ac K_bd + K_ad K_bc
            (a, b), (c, d) = ((pairs.first[:, None], pairs.second[:, None]) for pairs in block)
            wick = K[a, c.T] * K[b, d.T] + K[a, d.T] * K[b, c.T]
            total.append(sandwich(layer.response(block.rows), wick, layer.response(block.columns)))
        root, used = matrix_root(K), {pairs for block in blocks for pairs in block}
        source = generator(spawn(self._seed, self._calls + 1)[-1])
        self._calls += 1
        for start in range(0, self._draws, _CHUNK):
            count = min(_CHUNK, self._draws - start)
            z = source.standard_normal((count, len(K))) @ root.T
            rest = {pairs: _rest(layer, z, pairs) for pairs in used}
            for place, block in enumerate(blocks):
                total[place] += rest[block.rows] @ rest[block.columns].T / self._draws
        return total


def _rest(layer: HiddenLayer, z: Array, pairs: Pairs) -> Array:
    """s_a s_b - <s_a s_b> - M (z z - K) of every draw: (pairs, draws)."""
    a, b = pairs.first, pairs.second
    s = np.asarray(layer.expectations.activation.value(z), dtype=np.float64)
    products = (s[:, a] * s[:, b]).T - layer.means(pairs)[:, None]
    chaos = (z[:, a] * z[:, b]).T - pairs.vector(layer.expectations.K)[:, None]
    return np.asarray(products - layer.response(pairs) @ chaos)
