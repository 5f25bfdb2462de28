"""Posterior and evidence of a network of finite width, to order 1/n (6.79)-(6.89).

Training data enter through P = K_AA^-1, u = P y and M = sum_i u_i u_i^T - n_L P. Mean and covariance to order 1/n are
those of the kernel K + Q/n at first order in Q = G1 + (1/2) V:M - E with E_ab = V_(ac)(bd) P^cd (the residual form of
(6.88)): for a test input b, barred indices b - phi a with phi = K_BA P, the mean moves by Q_(bar b)a u^a / n and the
covariance of an output by Q_(bar b)(bar b') / n. Means of different networks scatter, which adds
V_(bar b a)(bar b' c) u_i^a u_j^c / n, the only covariance between outputs (6.89).
All this is linear in V: where V is sampled, independent runs give the standard error.

V^(l+1) = C_W^2 [Cov(s s, s s) + (n_l / n_{l-1}) M V^(l) M^T] (4.119), and row (a, b) of the response M has entries at
aa, ab and bb only: sets of pairs that contain aa and bb with every ab flow by themselves. The covariance is exact
(O(rows x columns) integrals over up to four inputs) or sampled, after its quadratic part in z has been taken out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian import factor, products_at
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import MOST_DRAWS, check_targets
from foretrain.theory.ensembles import matrix_root
from foretrain.theory.finite_width import LARGE
from foretrain.theory.prediction.bayes.evidence import evidence_scan
from foretrain.theory.prediction.bayes.posterior import inputs_like, log_density
from foretrain.theory.prediction.cholesky import CholeskyFactor, check_noise, factorise
from foretrain.theory.prediction.kernels import Spread, check_spread, kernel, training_blocks
from foretrain.theory.prediction.predicted_outputs import PredictedOutputs
from foretrain.theory.recursions.contraction import exact_seconds, on_pairs
from foretrain.theory.recursions.expectations import PairExpectations, Step, next_kernel, refuse_exploded
from foretrain.theory.recursions.pair_blocks import MetricCorrection
from foretrain.theory.recursions.pairs import JointCovariance, Pairs, Response, quadruples_between, sandwich

if TYPE_CHECKING:
    import xarray as xr


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


_MEANINGS = {
    "mean": "posterior mean to order 1/n",
    "infinite_mean": "posterior mean at infinite width (6.64)",
    "covariance": "covariance of one output given the metric, the same for every output, to order 1/n",
    "infinite_covariance": "posterior covariance at infinite width (6.57)",
    "variance_given_metric": "variance of one output given the metric, the same for every output, to order 1/n",
    "infinite_variance": "posterior variance at infinite width (6.57)",
    "wiring": "covariance of outputs by the scatter of their means over metrics, of order 1/n (6.89)",
    "variance": "variance of every output: given the metric, and by the scatter of means",
}
_SHIFTS = {
    "wiring": "by the targets of all outputs, V:(sum_k u_k u_k^T) u / 2",
    "rest": "by all but the wiring: trace, exchange and metric",
    "trace": "by the expected size of the outputs, -n_L V:P u / 2",
    "exchange": "by exchange of inputs between the pairs of V, -V_(ac)(bd) P^cd u^b",
    "metric": "by the 1/n part of the mean metric, G1 u",
}
_PAIRS, _OUTPUTS = ("test_1", "test_2"), ("test", "output")
_WIRING = {
    "covariance": ("test_1", "output_1", "test_2", "output_2"),
    "variance": ("test", "output_1", "output_2"),
}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FiniteBayesPrediction(PredictedOutputs):
    """What observing the training targets says about the outputs of a finite network on test inputs.

    ``mean`` (test, output) = ``infinite_mean`` + the ``terms``: ``wiring``, by which outputs learn from each other's
    targets, and the ``rest``, which ``rest_terms`` splits into ``trace``, ``exchange`` and ``metric`` (from G1). All
    contain their 1/n.
    The covariance of outputs i and j at two tests is ``covariance`` (test_1, test_2), where i = j, plus ``wiring``
    (test_1, output_1, test_2, output_2). ``variance`` (test, output) is that of every output,
    ``variance_given_metric`` (test,) without the wiring. With spread="variance" the wiring is (test, output_1,
    output_2) and there is no covariance; what was not asked for is None.
    ``expansion`` is the variance of the log density of the targets over networks: what must be small for an expansion
    in 1/n. ``standard_error`` has a variable for every array, where integrals were sampled, else it is None.
    """

    infinite_mean: xr.DataArray
    terms: dict[str, xr.DataArray]
    rest_terms: dict[str, xr.DataArray]
    infinite_covariance: xr.DataArray | None
    variance_given_metric: xr.DataArray | None
    infinite_variance: xr.DataArray | None
    wiring: xr.DataArray | None
    log_evidence: float
    infinite_log_evidence: float
    expansion: float
    standard_error: xr.Dataset | None
    noise: float

    def _parts(self) -> tuple[dict[str, xr.DataArray], dict[str, Any]]:
        found = {f"mean_{name}": part for name, part in (self.terms | self.rest_terms).items()}
        errors = {} if self.standard_error is None else self.standard_error.items()
        return found | {f"standard_error_of_{name}": part for name, part in errors}, {}

    def notes(self) -> list[str]:
        """Evidence, and whether the expansion can be trusted."""
        how = "exact integrals" if self.standard_error is None else "sampled integrals, see .standard_error"
        verdict = "small" if self.expansion < LARGE else "NOT small: widen the network"
        return [
            f"Log evidence of the training targets: {self.log_evidence:.6g}.",
            f"Variance of the log density over networks: {self.expansion:.3g} ({verdict}); {how}.",
        ]


def finite_bayes_prediction(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    *,
    noise: float = 0.0,
    spread: Spread = "covariance",
    draws: int | None = None,
    seed: Seed = 0,
) -> FiniteBayesPrediction:
    """Mean, covariance and evidence to order 1/n, given targets on training inputs (6.88), (6.89).

    Parameters
    ----------
    noise
        Variance of independent noise on every target (6.10).
    spread
        "covariance" of all pairs of test inputs, "variance" of each (for many of them), or "none".
    draws
        Integrals over four inputs, of which there are about N^4/24 for N training inputs, are exact where that takes
        half a minute at most, and with ``draws=0``; otherwise sampled with ``draws`` and ``seed``, which gives
        standard errors.

    Examples
    --------
    >>> import foretrain as ft
    >>> net = ft.MLP("relu", 3, 100, n_out=2, C_W=2.0)
    >>> found = finite_bayes_prediction(net, [[1.0, 0.0]], [[1.5, -1.0]], [[0.8, 0.6]])
    >>> (found.mean - found.infinite_mean).values.round(5), found.wiring.squeeze().values.round(4)
    (array([[ 0.00173, -0.00115]]), array([[ 0.0276, -0.0184],
           [-0.0184,  0.0123]]))
    """
    spread = check_spread(spread)
    data = observe(mlp, X_train, Y_train, noise)
    tests = data.test_inputs(X_test)
    value, error = shifts(data, tests, spread, draws, seed)
    expansion = data.inverse_width * float(value.fluctuation)
    warn_of_expansion(expansion)
    _, cross, own = training_blocks(mlp, data.inputs, tests, spread)
    leading = cross.T @ data.u
    white = data.factor.whiten(cross)
    bracket = None
    if own is not None:
        bracket = own - (white.T @ white if spread == "covariance" else (white**2).sum(axis=0))
    return _labelled(data, value, error, leading, bracket, spread, expansion)


def warn_of_expansion(expansion: float) -> None:
    """A warning where the log density of the targets varies much over networks."""
    if expansion >= LARGE:
        warn_user(
            f"the log density of what was observed has the variance {expansion:.2g} over networks of this width, so "
            "that the first order in 1/n is only a guide: widen the network, observe less, give a noise, or use "
            "importance_posterior."
        )


def _labelled(
    data: Observed,
    value: Shifts,
    error: Shifts | None,
    leading: Array,
    bracket: Array | None,
    spread: Spread,
    expansion: float,
) -> FiniteBayesPrediction:
    scale, width = data.inverse_width, data.mlp.hidden_widths[-1:]
    shift = {name: scale * part for name, part in zip(PARTS, value.mean, strict=True)}
    parts = {name: _named(f"mean_{name}", shift[name], _OUTPUTS) for name in _SHIFTS}
    return FiniteBayesPrediction(
        mean=_named("mean", leading + shift["total"], _OUTPUTS),
        infinite_mean=_named("infinite_mean", leading, _OUTPUTS),
        **_spreads(bracket, value, scale, spread),
        terms={name: parts[name] for name in ("wiring", "rest")},
        rest_terms={name: parts[name] for name in ("trace", "exchange", "metric")},
        log_evidence=data.infinite_log_evidence + scale * float(value.evidence),
        infinite_log_evidence=data.infinite_log_evidence,
        expansion=expansion,
        standard_error=None if error is None else _errors(error, scale, spread),
        statement=f"Bayesian inference to order 1/n, n = {width[0]}" if width else "Bayesian inference",
        noise=data.noise,
        jitter=data.factor.jitter,
    )


def _spreads(bracket: Array | None, value: Shifts, scale: float, spread: Spread) -> dict[str, Any]:
    """Covariances and variances with their labels; None for those that were not asked for."""
    names = (
        "covariance",
        "infinite_covariance",
        "variance_given_metric",
        "infinite_variance",
        "wiring",
        "variance",
    )
    found: dict[str, Any] = dict.fromkeys(names)
    if bracket is None:
        return found
    both = {"": bracket + scale * value.covariance, "infinite_": bracket}
    each = {name: np.diagonal(part) if part.ndim == 2 else part for name, part in both.items()}
    if bracket.ndim == 2:
        found |= {
            f"{name}covariance": _named(f"{name}covariance", part, _PAIRS) for name, part in both.items()
        }
    wiring = scale * value.wiring
    tests = np.arange(len(bracket))
    own = wiring[tests, tests] if wiring.ndim == 4 else wiring
    variance = each[""][:, None] + np.diagonal(own, axis1=1, axis2=2)
    return found | {
        "variance_given_metric": _named("variance_given_metric", each[""], ("test",)),
        "infinite_variance": _named("infinite_variance", each["infinite_"], ("test",)),
        "wiring": _named("wiring", _by_tests(wiring), _WIRING[spread]),
        "variance": _named("variance", variance, _OUTPUTS),
    }


def _named(name: str, values: Array, dims: tuple[str, ...]) -> xr.DataArray:
    import xarray as xr

    shift = _SHIFTS.get(name.removeprefix("mean_"))
    meaning = _MEANINGS.get(name, f"shift of the posterior mean {shift}, with its 1/n")
    return xr.DataArray(values, dims=dims, name=name, attrs={"meaning": meaning})


def _errors(error: Shifts, scale: float, spread: Spread) -> xr.Dataset:
    """Standard errors of everything that was sampled."""
    import xarray as xr

    found: dict[str, Any] = {
        f"mean_{name}": (_OUTPUTS, scale * part) for name, part in zip(PARTS, error.mean, strict=True)
    }
    found["mean"] = found.pop("mean_total")
    if spread != "none":
        given = ("covariance", _PAIRS) if spread == "covariance" else ("variance_given_metric", ("test",))
        found[given[0]] = given[1], scale * error.covariance
        found["wiring"] = _WIRING[spread], scale * _by_tests(error.wiring)
    numbers = {"log_evidence": error.evidence, "expansion": error.fluctuation}
    return xr.Dataset(found | {name: ((), scale * part) for name, part in numbers.items()})


def _by_tests(wiring: Array) -> Array:
    """(B, B, i, j) as (B, i, B, j); (B, i, j) stays."""
    return wiring.transpose(0, 2, 1, 3) if wiring.ndim == 4 else wiring


@dataclass(frozen=True, repr=False)
class FiniteEvidence(Result):
    """log p(y_A): ``value`` = ``infinite`` + ``correction`` (1/n included), ``standard_error`` 0 if not sampled.

    ``expansion`` is the variance of the log density over networks, which must be small.
    """

    also = ("value",)
    infinite: float
    correction: float
    expansion: float
    standard_error: float

    @property
    def value(self) -> float:
        """Both orders."""
        return self.infinite + self.correction

    def __float__(self) -> float:
        return self.value


def finite_log_evidence(
    mlp: MLP,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    noise: float = 0.0,
    draws: int | None = None,
    seed: Seed = 0,
) -> FiniteEvidence:
    """log p(y_A) of a network before training, to order 1/n; ``draws`` as in :func:`finite_bayes_prediction`.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = finite_log_evidence(ft.MLP("relu", depth=5, width=100, C_W=2.0), [[1.0]], [1.0])
    >>> round(found.value, 9), round(found.infinite, 9), round(found.correction, 9)
    (-1.509262123, -1.515512123, 0.00625)
    """
    found = _first_order_evidence(mlp, X, Y, noise, draws, seed)
    warn_of_expansion(found.expansion)
    return found


def _first_order_evidence(
    mlp: MLP, X: ArrayLike, Y: ArrayLike, noise: float, draws: int | None, seed: Seed
) -> FiniteEvidence:
    data = observe(mlp, X, Y, noise, "X")
    value, error = shifts(data, data.inputs[:0], "none", draws, seed)
    scale = data.inverse_width
    return FiniteEvidence(
        data.infinite_log_evidence,
        scale * float(value.evidence),
        scale * float(value.fluctuation),
        0.0 if error is None else scale * float(error.evidence),
    )


def finite_bayes_factor(
    first: MLP,
    second: MLP,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    noise: float = 0.0,
    draws: int | None = None,
    seed: Seed = 0,
) -> float:
    """log of the Bayes factor p(y | first) / p(y | second) to order 1/n (6.30): widths count, too."""
    mine, other = (
        finite_log_evidence(mlp, X, Y, noise=noise, draws=draws, seed=seed) for mlp in (first, second)
    )
    return float(mine) - float(other)


def finite_evidence_scan(
    mlp: MLP,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    C_b: ArrayLike | None = None,
    C_W: ArrayLike | None = None,
    depth: Sequence[int] | None = None,
    noise: float = 0.0,
    draws: int | None = None,
    seed: Seed = 0,
) -> xr.Dataset:
    """The evidence to order 1/n over (depth, C_b, C_W), beside :func:`evidence_scan` at infinite width.

    Variables: ``log_evidence``, ``infinite_log_evidence``, ``expansion``, and ``reliable`` where the latter is small.
    Points that infinite width cannot compute are nan. Hidden layers must have equal widths, to go to other depths.
    """
    whole = evidence_scan(mlp, X, Y, C_b=C_b, C_W=C_W, depth=depth, noise=noise)
    infinite = whole["log_evidence"]
    found = np.full((2, *infinite.shape), math.nan)
    for place in track(np.argwhere(np.isfinite(infinite.values)), "hypotheses"):
        point = infinite[tuple(int(index) for index in place)]
        other = mlp.replace(**{name: point[name].item() for name in ("depth", "C_b", "C_W")})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)  # the variable reliable tells
            evidence = _first_order_evidence(other, X, Y, noise, draws, seed)
        found[:, *place] = evidence.value, evidence.expansion
    return whole[[]].assign(
        log_evidence=infinite.copy(data=found[0]).assign_attrs(long_name="log p(targets) to order 1/n"),
        infinite_log_evidence=infinite,
        expansion=infinite.copy(data=found[1]).assign_attrs(
            long_name="variance of the log density over networks"
        ),
        reliable=infinite.copy(data=found[1] < LARGE).assign_attrs(
            long_name="whether 1/n is a small parameter"
        ),
    )
