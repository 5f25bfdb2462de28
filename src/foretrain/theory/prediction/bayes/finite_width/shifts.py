"""Order 1/n of the posterior and of the evidence, from the four-point vertex.

Training data enter through P = K_AA^-1, u = P y and M = sum_i u_i u_i^T - n_L P. Mean and covariance to order 1/n are
those of the kernel K + Q/n at first order in Q = G1 + (1/2) V:M - E with E_ab = V_(ac)(bd) P^cd (the residual form of
(6.88)): for a test input b, barred indices b - phi a with phi = K_BA P, the mean moves by Q_(bar b)a u^a / n and the
covariance of an output by Q_(bar b)(bar b') / n. Means of different networks scatter, which adds
V_(bar b a)(bar b' c) u_i^a u_j^c / n, the only covariance between outputs (6.89).
All this is linear in V: where V is sampled, independent runs give the standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import MOST_DRAWS, check_targets
from foretrain.theory.prediction.bayes.finite_width.vertex import (
    Block,
    Covariance,
    SampledCovariance,
    between,
    exact_covariance,
    hidden_layers,
    vertices,
)
from foretrain.theory.prediction.bayes.posterior import inputs_like, log_density
from foretrain.theory.prediction.cholesky import CholeskyFactor, check_noise, factorise
from foretrain.theory.prediction.kernels import Spread, kernel
from foretrain.theory.recursions.contraction import exact_seconds, on_pairs
from foretrain.theory.recursions.pair_blocks import MetricCorrection
from foretrain.theory.recursions.pairs import Pairs

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Observed:
    """Training inputs A with targets (A, outputs), and the factor of their kernel, noise included."""

    mlp: MLP
    inputs: Array
    targets: Array
    noise: float
    factor: CholeskyFactor

    @property
    def inverse_width(self) -> float:
        """1 / n_{L-1}; zero without a hidden layer, where infinite width is exact."""
        return 1.0 / self.mlp.hidden_widths[-1] if self.mlp.hidden_widths else 0.0

    @cached_property
    def P(self) -> Array:
        """The inverse of the kernel: (A, A)."""
        inverse = self.factor.solve(np.eye(len(self.inputs)))
        return np.asarray((inverse + inverse.T) / 2)

    @cached_property
    def u(self) -> Array:
        """P y: (A, outputs)."""
        return self.factor.solve(self.targets)

    @cached_property
    def M(self) -> Array:
        """Twice the gradient of the infinite-width log evidence with respect to the kernel: (A, A)."""
        return np.asarray(self.u @ self.u.T - self.mlp.n_out * self.P)

    @property
    def infinite_log_evidence(self) -> float:
        """log p(y_A) at infinite width (6.34)."""
        return log_density(self.factor, self.targets)

    def test_inputs(self, X: ArrayLike) -> Array:
        """Test inputs with as many components as the training inputs, or an error."""
        return inputs_like(self.inputs, self.mlp, X)


def observe(mlp: MLP, X: ArrayLike, Y: ArrayLike, noise: float, name: str = "X_train") -> Observed:
    """Checked training data, with their kernel factorised; errors call the inputs ``name``, X or X_train."""
    check_plain(mlp)
    inputs = mlp.check_inputs(X, name)
    targets, noise = check_targets(Y, len(inputs), mlp.n_out, name.replace("X", "Y")), check_noise(noise)
    found = Observed(mlp, inputs, targets, noise, factorise(kernel(mlp, inputs), noise))
    with np.errstate(over="ignore", invalid="ignore"):  # corrections contain fourth powers of targets
        finite = np.isfinite(np.sum(found.M**2))
    if not finite:
        raise InputError(
            f"targets up to {np.abs(targets).max():.1g} are too large for a density of finite numbers: rescale "
            "them, or leave out training inputs that are nearly alike."
        )
    return found


def check_plain(mlp: MLP) -> None:
    """An error if the network is none, or has skip connections."""
    check_network(mlp)
    if mlp.is_residual:
        raise NotSupportedError(
            "Bayesian learning at finite width is known for networks without skip connections only: use "
            "bayes_prediction for infinite width, or leave `gamma` out."
        )


PARTS = ("wiring", "trace", "exchange", "metric", "rest", "total")
"""Of Q: V:(sum_i u_i u_i^T) / 2, -n_L V:P / 2, -E and G1; the sum of the last three, and of all four."""
RUNS = 16
_AFFORDABLE = 30.0  # seconds that exact integrals may take without having been asked for
_DRAWS = 32_768
_TOGETHER = 16  # test inputs, where they need not know each other


class Shifts(NamedTuple):
    """Coefficients of 1/n for some test inputs B, or their standard errors.

    ``mean`` (parts, B, outputs); ``covariance`` (B, B) or (B,) and ``wiring`` (B, B, outputs, outputs) or
    (B, outputs, outputs), empty if not asked for; ``evidence``; ``fluctuation``, the variance of log p(y | metric).
    """

    mean: Array
    covariance: Array
    wiring: Array
    evidence: Array
    fluctuation: Array


class Legs(NamedTuple):
    """Q between inputs (parts, a, b), and V_(ac)(bd) u_i^c u_j^d as (a, b, i, j)."""

    kernel: Array
    means: Array


def shifts(
    data: Observed, tests: Array, spread: Spread, draws: int | None, seed: Seed
) -> tuple[Shifts, Shifts | None]:
    """Values and, where V was sampled, standard errors, for all test inputs; chunk by chunk if that is possible."""
    ways = choose_covariances(data, len(tests), spread, draws, seed)
    together = len(tests) if spread == "covariance" else _TOGETHER
    chunks = [tests[start : start + together] for start in range(0, max(1, len(tests)), max(1, together))]
    found = []
    for chunk in track(chunks, "test inputs"):
        questions = _Questions(data, chunk, spread)
        found.append([questions.answer(way) for way in ways])
    value = _joined([Shifts(*(np.mean(part, axis=0) for part in zip(*runs, strict=True))) for runs in found])
    if len(ways) == 1:
        return value, None
    errors = [
        Shifts(*(np.std(part, axis=0, ddof=1) / np.sqrt(RUNS) for part in zip(*runs, strict=True)))
        for runs in found
    ]
    return value, _joined(errors)


def choose_covariances(
    data: Observed, tests: int, spread: Spread, draws: int | None, seed: Seed
) -> list[Covariance]:
    """One exact way to find covariances of activations, or several sampled ones."""
    if draws is not None and (
        isinstance(draws, bool)
        or not isinstance(draws, int | np.integer)
        or not (draws == 0 or 2 * RUNS <= draws <= MOST_DRAWS)
    ):
        raise InputError(
            f"`draws` is {draws!r}: give a whole number from {2 * RUNS} to {MOST_DRAWS:,}, or 0 for exact integrals."
        )
    if draws == 0 or (draws is None and integral_seconds(data, tests, spread) <= _AFFORDABLE):
        return [exact_covariance]
    each = (draws or _DRAWS) // RUNS
    return [SampledCovariance(each, own) for own in spawn(seed, RUNS)]


def integral_seconds(data: Observed, tests: int, spread: Spread) -> float:
    """About how long exact integrals take: all sets of four with at most one test input, or two of them."""
    mlp, size = data.mlp, len(data.inputs)
    none, one, two = (exact_seconds("V", size + k, mlp.activation, mlp.depth) for k in range(3))
    pairs = tests * (tests - 1) // 2 if spread == "covariance" else 0
    return none + tests * (one - none) + pairs * (two - 2 * one + none)


def _joined(chunks: Sequence[Shifts]) -> Shifts:
    """Chunks of tests one after the other; the evidence is that of the first."""
    mean = np.concatenate([chunk.mean for chunk in chunks], axis=1)
    covariance, wiring = (np.concatenate([chunk[place] for chunk in chunks], axis=0) for place in (1, 2))
    return Shifts(mean, covariance, wiring, chunks[0].evidence, chunks[0].fluctuation)


class _Questions:
    """Training inputs A and some test inputs B, and the blocks of V that they need.

    (AA)(AA), (BA)(AA), then (BA)(BA) and (BB)(AA) for all tests together, or (bA)(bA) for each of them.
    """

    def __init__(self, data: Observed, tests: Array, spread: Spread) -> None:
        self._data, self._spread = data, spread
        size = len(data.inputs) + len(tests)
        self._layers, self._K = hidden_layers(data.mlp, np.concatenate([data.inputs, tests]))
        carried = MetricCorrection(Pairs(size))
        for layer in self._layers:
            carried.step(layer.expectations, layer.step)
        self._G1 = carried.now()["G1"]  # of the output (4.115)
        self._A, self._B = np.arange(len(data.inputs)), np.arange(len(data.inputs), size)
        training, mixed = between(size, self._A, self._A), between(size, self._B, self._A)
        self._blocks = [Block(training, training), Block(mixed, training)]
        if spread == "covariance":
            self._blocks += [Block(mixed, mixed), Block(between(size, self._B, self._B), training)]
        elif spread == "variance":
            alone = [between(size, b, self._A) for b in self._B[:, None]]
            self._blocks += [Block(pairs, pairs) for pairs in alone]

    def answer(self, way: Covariance) -> Shifts:
        """All shifts from one vertex."""
        data, A, B = self._data, self._A, self._B
        *_, V = vertices(self._layers, self._blocks, way)
        known, half = self._legs(V, 0, A, A), self._legs(V, 1, B, A)
        evidence, fluctuation = _evidence(data, known.kernel)
        phi = data.factor.solve(self._K[np.ix_(A, B)]).T
        parts = (half.kernel - phi @ known.kernel) @ data.u
        mean = np.concatenate([parts, parts[None, 1:].sum(axis=1), parts[None].sum(axis=1)])
        if self._spread == "none":
            return Shifts(mean, np.empty(0), np.empty(0), evidence, fluctuation)
        if self._spread == "covariance":
            own, barred = self._legs(V, 2, B, B, whole=3), _barred_pairs
        else:
            each = [self._legs(V, 2 + k, b, b, whole=1) for k, b in enumerate(B[:, None])]
            kernel = np.concatenate([legs.kernel for legs in each], axis=1)
            own, barred = Legs(kernel, np.concatenate([legs.means for legs in each])), _barred_alone
        first, second, third = (legs.kernel.sum(axis=0)[..., None, None] for legs in (known, half, own))
        covariance = barred(first, second, third, phi)[..., 0, 0]
        wiring = barred(known.means, half.means, own.means, phi)
        return Shifts(mean, covariance, wiring, evidence, fluctuation)

    def _legs(self, V: Sequence[Array], place: int, left: Indices, right: Indices, whole: int = -1) -> Legs:
        """Contractions between inputs; ``whole`` is the block of their own pairs by training pairs, if another."""
        data, block = self._data, self._blocks[place]
        inner, columns = (
            pairs.number[np.ix_(side, self._A)] for pairs, side in zip(block, (left, right), strict=True)
        )
        exchange = np.empty((len(left), len(right)))
        means = np.empty((len(left), len(right), data.mlp.n_out, data.mlp.n_out))
        for a, rows in enumerate(inner):  # (c, b, d) of one a at a time, since all would be N^4
            slab = V[place][rows][:, columns]
            exchange[a] = np.einsum("cbd,cd->b", slab, data.P, optimize=True)
            means[a] = np.einsum("cbd,ci,dj->bij", slab, data.u, data.u, optimize=True)
        outer = place if whole < 0 else whole
        traced = (V[outer] @ self._forms().T).T
        traced = traced[:, self._blocks[outer].rows.number[np.ix_(left, right)]]
        return Legs(np.concatenate([traced, -exchange[None], self._G1[np.ix_(left, right)][None]]), means)

    def _forms(self) -> Array:
        """sum_i u_i u_i^T / 2 and -n_L P / 2 on pairs of training inputs: (2, pairs)."""
        data = self._data
        forms = np.stack([0.5 * data.u @ data.u.T, -0.5 * data.mlp.n_out * data.P])
        return on_pairs(forms, Pairs(len(self._A)))


def _evidence(data: Observed, Q: Array) -> tuple[Array, Array]:
    """Shift of log p(y_A), and the variance of log p(y_A | metric) = V:M:M / 4."""
    wiring, trace, exchange, metric = Q
    fluctuation = 0.5 * np.sum((wiring + trace) * data.M)
    squares = data.u @ data.u.T - 0.5 * data.mlp.n_out * data.P
    shift = 0.5 * np.sum(metric * data.M) + 0.5 * fluctuation + 0.5 * np.sum(exchange * squares)
    return np.asarray(shift), np.asarray(fluctuation)


def _barred_pairs(training: Array, mixed: Array, own: Array, phi: Array) -> Array:
    """(a - phi .) on both sides of tensors (a, b, i, j), for all pairs of tests: (B, B, i, j)."""
    once = np.einsum("ca,baij->bcij", phi, mixed, optimize=True)
    twice = np.einsum("ba,cd,adij->bcij", phi, phi, training, optimize=True)
    return np.asarray(own - once - once.transpose(1, 0, 3, 2) + twice)


def _barred_alone(training: Array, mixed: Array, own: Array, phi: Array) -> Array:
    """The same for every test with itself: (B, i, j)."""
    once = np.einsum("ba,baij->bij", phi, mixed, optimize=True)
    twice = np.einsum("ba,bd,adij->bij", phi, phi, training, optimize=True)
    return np.asarray(own[:, 0] - once - once.transpose(0, 2, 1) + twice)
