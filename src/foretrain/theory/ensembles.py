"""Ensembles of random networks: parameters, preactivations, metrics, correlators and diagnostics.

Start with :func:`sample_preactivations` for plain samples, :func:`correlator` and
:func:`connected_correlator` for moments with error bars, :func:`diagnose` for a summary by layer.
Fully connected networks only; convolution layers (2.8) are not offered.

Many networks at once, as explicit weights and biases, and the laws that these are drawn from.

At leading order in the width only the variance of a law matters; its excess kurtosis k_4 enters at 1/n.

Random networks in bounded memory: preactivations and stochastic metrics, chunk by chunk.

:class:`Sampler` is the one that draws, for numpy here and for torch in ``foretrain.compare``.

Two methods give the same law. "weights" draws every weight matrix and works for every weight law.
"conditional" uses that, for Gaussian parameters and given layer l, the neurons of layer l + 1 are
independent and Gaussian with covariance Ĝ = C_b + C_W/n Σ_j σ_j σ_j over inputs (2.34), (4.69), (4.70): it
costs n N² + N³ per layer instead of n² N and holds no weights. A skip connection adds gamma z^(l) to either.

Convolution layers (2.8) are not offered: every sampler here takes a fully connected :class:`MLP`.

Moments of preactivations with neuron structure, read off a chunk of draws in two ways.

A moment is written as one tuple of inputs per neuron: ((0, 1), (2, 2)) is E[z_{i;0} z_{i;1} z_{j;2} z_{j;2}]
with i ≠ j. Neurons are exchangeable, so only this pattern matters.

Draws are split into equal batches. Leaving out one at a time (the jackknife) gives the standard error of a
nonlinear function of the means and removes its bias of order 1 / draws; it is known to about 1 / √(2 batches).

Correlators of preactivations of random networks, with standard errors, and how far from Gaussian they are.

Neurons are named by a pattern with one letter per leg, equal letters for the same neuron and different
letters for different ones: "11" is the two-point function of one neuron, "1122" the four-point function of
two, and "112233" the six-point function of three. Two estimators have the same mean. "neurons" averages over
the neurons of the layer and holds for every network. "wick" does the average over the layer's own weights
exactly, so it has less noise and needs no neurons to spare, but only holds for Gaussian parameters without a
skip connection into the layer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from itertools import chain, pairwise, product
from math import factorial, perm, prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from foretrain.gaussian.wick import set_partitions
from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.theory.architecture import MLP, FloatArray, Layer
from foretrain.theory.arguments import MOST_DRAWS

if TYPE_CHECKING:
    import xarray


Shape = tuple[int, ...]
Array = TypeVar("Array", bound=Any)  # of numpy here, of torch in foretrain.compare.ensembles

_CUT = 2.0  # parent deviations at which the usual truncated normal initialiser cuts


@dataclass(frozen=True)
class WeightLaw:
    """A symmetric law of unit variance: its excess kurtosis and a function that draws from it."""

    name: str
    excess_kurtosis: float
    draw: Callable[[np.random.Generator, Shape], FloatArray]


def weight_law(name: str) -> WeightLaw:
    """The law "gaussian", "uniform" or "truncated_normal" (cut at two parent deviations, then rescaled)."""
    if name not in _LAWS:
        raise unknown_name("weight `law`", name, _LAWS)
    return _LAWS[name]


def truncated_normal_moments(cut: float) -> tuple[float, float]:
    """Variance and excess kurtosis of a standard normal restricted to ±cut."""
    density = math.exp(-0.5 * cut * cut) / math.sqrt(2.0 * math.pi)
    edge = 2.0 * cut * density / math.erf(cut / math.sqrt(2.0))
    variance = 1.0 - edge
    return variance, (3.0 * variance - cut * cut * edge) / variance**2 - 3.0


def framework_default(mlp: MLP) -> MLP:
    """The network with C_W = 1/3 and C_b = 1/(3 fan-in) in every layer.

    Drawn with the law "uniform" this is what frameworks do by default: U(±1/√fan-in) for weights and biases.
    """
    return mlp.replace(C_W=1.0 / 3.0, C_b=[1.0 / (3.0 * fan_in) for fan_in in mlp.widths[:-1]])


def _draw_truncated_normal(generator: np.random.Generator, shape: Shape) -> FloatArray:
    scale = 1.0 / math.sqrt(truncated_normal_moments(_CUT)[0])
    tail = special.ndtr(-_CUT)
    values: FloatArray = scale * special.ndtri(generator.uniform(tail, 1.0 - tail, shape))
    return values


_LAWS = {
    law.name: law
    for law in (
        WeightLaw("gaussian", 0.0, np.random.Generator.standard_normal),
        WeightLaw("uniform", -6.0 / 5.0, lambda source, shape: source.uniform(-(3**0.5), 3**0.5, shape)),
        WeightLaw("truncated_normal", truncated_normal_moments(_CUT)[1], _draw_truncated_normal),
    )
}


def check_draws(draws: object) -> int:
    """The number of networks as a whole number of at least 2, since a standard error needs two."""
    count = whole_number("draws", draws, least=2)
    if count > MOST_DRAWS:
        raise InputError(f"`draws` is {count:,}: give at most {MOST_DRAWS:,}.")
    return count


def _check_layers(mlp: MLP, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The layers asked for, in order; None means all of 1..L."""
    if layers is None:
        return tuple(range(1, mlp.depth + 1))
    chosen = tuple(sorted({mlp.check_layer(layer) for layer in layers}))
    if not chosen:
        raise InputError(f"layers is empty: choose from 1 to {mlp.depth}, or leave it out for all.")
    return chosen


@dataclass(frozen=True, repr=False)
class Parameters(Result):
    """Weights (draws, n_l, n_{l-1}) and biases (draws, n_l) of layers 1..L of many networks."""

    mlp: MLP
    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]


def sample_parameters(mlp: MLP, draws: int, law: str = "gaussian", seed: Seed = 0) -> Parameters:
    """Independent parameters with E[b²] = C_b and E[W²] = C_W / fan-in (2.19)-(2.22)."""
    count, draw = check_draws(draws), partial(weight_law(law).draw, generator(seed))
    require_memory(8 * count * mlp.parameter_count, f"the parameters of {count} networks", "use fewer draws")
    return draw_parameters(mlp, count, draw)


def draw_parameters(mlp: MLP, draws: int, draw: Callable[[Shape], FloatArray]) -> Parameters:
    """The same from a function that draws independent numbers of unit variance."""
    layers = [draw_layer(mlp, number, draws, draw) for number in range(1, mlp.depth + 1)]
    return Parameters(mlp, *zip(*((scale * weights, biases) for weights, biases, scale in layers)))


def draw_layer(
    mlp: MLP, number: int, draws: int, draw: Callable[[Shape], Array]
) -> tuple[Array, Array, float]:
    """Weights (draws, n_l, n_{l-1}) of unit variance, biases (draws, n_l) and √(C_W / fan-in) of one layer.

    The last is the factor of the weights, kept apart because some products apply it for nothing. ``draw`` gives
    arrays of any library, of a law with unit variance; where C_b = 0 it is not asked for biases, which are zero.
    """
    fan_in, width = mlp.widths[number - 1 : number + 1]
    C_b, C_W = mlp.C_b[number - 1], mlp.C_W[number - 1]
    weights = draw((draws, width, fan_in))
    biases: Array = draw((draws, width)) * math.sqrt(C_b) if C_b else weights[..., 0] * 0
    return weights, biases, math.sqrt(C_W / fan_in)


def activity(mlp: MLP, preactivations: FloatArray) -> FloatArray:
    """σ(z), which feeds the next layer."""
    return np.asarray(mlp.activation.value(preactivations), dtype=np.float64)


def forward(parameters: Parameters, X: ArrayLike) -> dict[int, FloatArray]:
    """Preactivations of every layer of every network, {layer: (draws, n_l, inputs)} (2.5), (B.3)."""
    mlp = parameters.mlp
    incoming = mlp.check_inputs(X).T
    draws = len(parameters.biases[0])
    size = 8 * draws * incoming.shape[1] * sum(mlp.widths[1:])
    require_memory(size, f"the preactivations of {draws} networks", "use fewer networks or inputs")
    result: dict[int, FloatArray] = {}
    for layer, weights, biases in zip(mlp.layers, parameters.weights, parameters.biases, strict=True):
        preactivations = weights @ incoming + biases[..., None]
        if layer.gamma:
            preactivations += layer.gamma * result[layer.number - 1]
        result[layer.number] = preactivations
        if layer.number < mlp.depth:
            incoming = activity(mlp, preactivations)
    return result


# A constant, not a share of the free memory: the same seed must give the same numbers on every machine.
_CHUNK_BYTES = 2**24
_BYTES_PER_SEED = 500
METHODS = ("weights", "conditional")


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble(Result):
    """What to sample: networks of one architecture, evaluated on the rows of ``X``, all from one seed."""

    mlp: MLP
    X: Any  # (inputs, n_in): made from anything like it
    draws: int
    _: KW_ONLY
    method: str = "conditional"
    law: str = "gaussian"
    seed: Seed = 0

    def __post_init__(self) -> None:
        weight_law(self.law)
        if self.method not in METHODS:
            raise unknown_name("sampling `method`", self.method, METHODS)
        if self.method == "conditional" and self.law != "gaussian":
            raise InputError(
                f"method 'conditional' needs Gaussian parameters: use `method='weights'` for law {self.law!r}."
            )
        inputs = self.mlp.check_inputs(self.X)
        checked = {"mlp": self.mlp.with_inputs(inputs), "X": inputs, "draws": check_draws(self.draws)}
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def labels(self) -> dict[str, str | int]:
        """How the networks were drawn, to be stored beside results."""
        seed = int(self.seed) if isinstance(self.seed, int | np.integer) else repr(self.seed)
        return {"draws": self.draws, "method": self.method, "law": self.law, "seed": seed}

    def preactivations(self, layers: Sequence[int] | None = None) -> Iterator[dict[int, FloatArray]]:
        """Chunks {layer: (some draws, n_l, inputs)} that together make up all draws."""
        return self._stream(_check_layers(self.mlp, layers), lambda state: state.preactivations)

    def metrics(self, layers: Sequence[int] | None = None) -> Iterator[dict[int, FloatArray]]:
        """Chunks {layer: (some draws, inputs, inputs)} of Ĝ, a layer's covariance given the one before."""
        return self._stream(_check_layers(self.mlp, layers), lambda state: state.metric)

    def _stream(
        self, wanted: tuple[int, ...], read: Callable[[LayerDraw[FloatArray]], FloatArray]
    ) -> Iterator[dict[int, FloatArray]]:
        # Draws per chunk so that it stays near the byte limit even if every layer is kept.
        widths, inputs = self.mlp.widths, len(self.X)
        signals = (sum(widths[1:]) + 3 * max(widths[1:])) * inputs
        weights = max(n * fan_in for fan_in, n in pairwise(widths)) if self.method == "weights" else 0
        per_draw = signals + (self.mlp.depth + 2) * inputs**2 + weights
        size = max(1, min(self.draws, _CHUNK_BYTES // (8 * per_draw)))
        chunks = -(-self.draws // size)
        require_memory(_BYTES_PER_SEED * chunks, f"the seeds of {self.draws:,} draws", "use fewer draws")
        for index, seeds in enumerate(spawn(self.seed, chunks)):
            count = min(size, self.draws - index * size)
            yield {
                state.layer.number: read(state)
                for state in self.sampler(generator(seeds)).walk(count, wanted[-1])
                if state.layer.number in wanted
            }

    def sampler(self, source: np.random.Generator) -> Sampler[FloatArray]:
        """Draws the networks with numpy, in float64."""
        return Sampler(
            self.mlp,
            self.method,
            self.X.T[None],
            partial(weight_law(self.law).draw, source),
            partial(activity, self.mlp),
            _affine,
            np.linalg.eigh,
            lambda values, count: np.broadcast_to(values, (count, *values.shape[1:])),
        )


@dataclass(frozen=True, eq=False)
class Sampler(Generic[Array]):
    """Draws random networks of one architecture layer by layer, with what one library has of arrays and functions.

    For numpy it is made by :meth:`Ensemble.sampler`, for torch in :mod:`foretrain.compare.ensembles`.
    """

    mlp: MLP
    method: str
    inputs: Array  # (1, n_0, inputs)
    draw: Callable[[Shape], Array]  # independent numbers of unit variance
    activity: Callable[[Array], Array]  # σ(z), which feeds the next layer
    affine: Callable[
        [Array, Array, float, Array], Array
    ]  # b + scale W s from weights, biases, scale and signals
    eigh: Callable[[Array], tuple[Array, Array]]
    repeat: Callable[[Array, int], Array]  # values (1 or count, ...) as (count, ...)

    def walk(self, count: int, last: int | None = None) -> Iterator[LayerDraw[Array]]:
        """The layers 1..last of ``count`` networks, each given the one before."""
        last = last or self.mlp.depth
        incoming, previous = self.inputs, None
        for layer in self.mlp.layers[:last]:
            drawn = LayerDraw(self, layer, count, incoming, previous)
            yield drawn
            if layer.number < last:
                previous = drawn.preactivations
                incoming = self.activity(previous)


@dataclass(frozen=True, eq=False)
class LayerDraw(Generic[Array]):
    """One layer of some networks, given the layer before; drawn only if somebody looks, or when the walk goes on."""

    sampler: Sampler[Array]
    layer: Layer
    count: int
    incoming: Array  # (draws or 1, n_{l-1}, inputs): the inputs, or the activations of the layer before
    previous: Array | None  # its preactivations

    @cached_property
    def metric(self) -> Array:
        """Ĝ = C_b + C_W/n Σ_j σ_j σ_j, of shape (draws, inputs, inputs) (4.70)."""
        gram = self.incoming.swapaxes(-1, -2) @ self.incoming
        metric = self.layer.C_b + (self.layer.C_W / self.incoming.shape[-2]) * gram
        return self.sampler.repeat(metric, self.count)

    @cached_property
    def parameters(self) -> tuple[Array, Array, float] | None:
        """Weights of unit variance, biases and the factor of the weights; None where no weights are drawn."""
        if self.sampler.method == "conditional":
            return None
        return draw_layer(self.sampler.mlp, self.layer.number, self.count, self.sampler.draw)

    @cached_property
    def preactivations(self) -> Array:
        """z of shape (draws, n_l, inputs), skip connection included."""
        if self.parameters is None:
            # Layer 1 has one metric for all draws: factor it once.
            metric = self.metric if self.layer.number > 1 else self.metric[:1]
            normals = self.sampler.draw((self.count, self.layer.width, metric.shape[-1]))
            fresh: Array = normals @ matrix_root(metric, self.sampler.eigh).swapaxes(-1, -2)
        else:
            fresh = self.sampler.affine(*self.parameters, self.incoming)
        if self.layer.gamma and self.previous is not None:
            fresh += self.layer.gamma * self.previous
        return fresh


def _affine(weights: FloatArray, biases: FloatArray, scale: float, incoming: FloatArray) -> FloatArray:
    """b + scale W s; weights are multiplied in place, since a copy costs as much as the product."""
    weights *= scale
    return np.asarray(weights @ incoming + biases[..., None])


def matrix_root(covariance: Array, eigh: Callable[[Any], Any] = np.linalg.eigh) -> Array:
    """A with A Aᵀ = covariance, for a stack of matrices that may be singular."""
    root: Array
    if covariance.shape[-1] == 1:
        root = covariance**0.5
    else:
        variances, directions = eigh(covariance)
        root = directions * (variances.clip(0.0) ** 0.5)[..., None, :]
    return root


def sample_preactivations(
    mlp: MLP,
    X: ArrayLike,
    draws: int,
    *,
    method: str = "conditional",
    law: str = "gaussian",
    layers: Sequence[int] | None = None,
    seed: Seed = 0,
) -> dict[int, FloatArray]:
    """Preactivations {layer: (draws, n_l, inputs)} of random networks; ``layers`` None keeps every layer.

    To average over more draws than fit in memory, loop over ``Ensemble(...).preactivations()``.
    """
    ensemble = Ensemble(mlp, X, draws, method=method, law=law, seed=seed)
    kept = _check_layers(mlp, layers)
    size = 8 * ensemble.draws * sum(ensemble.mlp.widths[layer] for layer in kept) * len(ensemble.X)
    require_memory(size, f"the preactivations of {draws} networks", "use fewer draws or layers")
    return _concatenate(ensemble.preactivations(kept))


def sample_metric(
    mlp: MLP,
    X: ArrayLike,
    draws: int,
    *,
    method: str = "conditional",
    law: str = "gaussian",
    layers: Sequence[int] | None = None,
    seed: Seed = 0,
) -> xarray.DataArray:
    """Stochastic metric Ĝ^(l) of every draw (4.70), dims (draw, layer, input_1, input_2).

    It is the covariance of the layer's preactivations given the layer before it. In a layer with a skip
    connection these also have the mean gamma z^(l-1), which is not part of the metric.
    """
    import xarray

    ensemble = Ensemble(mlp, X, draws, method=method, law=law, seed=seed)
    kept = _check_layers(mlp, layers)
    size = 16 * ensemble.draws * len(kept) * len(ensemble.X) ** 2
    require_memory(size, f"the metrics of {draws} networks", "use fewer draws or layers")
    metrics = _concatenate(ensemble.metrics(kept))
    return xarray.DataArray(
        np.stack([metrics[layer] for layer in kept], axis=1),
        dims=("draw", "layer", "input_1", "input_2"),
        coords={"layer": list(kept)},
        name="metric",
        attrs=ensemble.labels,
    )


def _concatenate(chunks: Iterator[dict[int, FloatArray]]) -> dict[int, FloatArray]:
    collected = list(chunks)
    return {layer: np.concatenate([chunk[layer] for chunk in collected]) for layer in collected[0]}


BATCHES = 200


class BatchSums:
    """Running sums of per-draw statistics, one row per batch of consecutive draws."""

    def __init__(self, draws: int, shape: tuple[int, ...], batches: int = BATCHES) -> None:
        self._draws = draws
        self._seen = 0
        self._sums = np.zeros((min(batches, draws), *shape))
        self._counts = np.zeros(len(self._sums))

    def add(self, statistics: FloatArray) -> None:
        """Add the next draws, stacked along the first axis."""
        labels = (np.arange(self._seen, self._seen + len(statistics)) * len(self._sums)) // self._draws
        starts = np.flatnonzero(np.diff(labels, prepend=-1))
        self._sums[labels[starts]] += np.add.reduceat(statistics, starts, axis=0)
        self._counts += np.bincount(labels, minlength=len(self._counts))
        self._seen += len(statistics)

    def estimate(self, function: Callable[[FloatArray], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Value and standard error of ``function(means)``, which must act on any leading batch axis."""
        batches = len(self._sums)
        weights = self._counts.reshape(-1, *[1] * (self._sums.ndim - 1))
        total, count = self._sums.sum(axis=0), self._counts.sum()
        everything = function((total / count)[None])[0]
        without_one = function((total - self._sums) / (count - weights))
        value: FloatArray = batches * everything - (batches - 1) * without_one.mean(axis=0)
        error: FloatArray = np.sqrt((batches - 1) * without_one.var(axis=0))
        return value, error


Moment = tuple[tuple[int, ...], ...]


def _canonical(blocks: Sequence[Sequence[int]]) -> Moment:
    """The moment of these blocks of inputs, in the order that makes equal moments equal."""
    return tuple(sorted(tuple(sorted(block)) for block in blocks if block))


def _sign_weight(parts: int) -> int:
    """(-1)^(k-1) (k-1)!: weight of a partition into k parts in a cumulant, and of k indices made equal."""
    return factorial(parts - 1) * (1 if parts % 2 else -1)


class NeuronAverages:
    """Averages over all tuples of distinct neurons of the layer, from preactivations (draws, n, inputs)."""

    def __init__(self, preactivations: FloatArray) -> None:
        self._by_input = np.ascontiguousarray(np.moveaxis(preactivations, -1, 0))
        self._sums: dict[tuple[int, ...], FloatArray] = {}

    def read(self, moment: Moment) -> FloatArray:
        """Mean over distinct neurons, by inclusion and exclusion; nan if the layer has too few of them."""
        draws, neurons = self._by_input.shape[1:]
        if neurons < len(moment):
            return np.full(draws, np.nan)
        total = np.zeros(draws)
        for partition in set_partitions(len(moment)):
            weight = prod(_sign_weight(len(part)) for part in partition)
            merged = [tuple(sorted(chain(*(moment[block] for block in part)))) for part in partition]
            total += weight * np.prod([self._sum(inputs) for inputs in merged], axis=0)
        return total / perm(neurons, len(moment))

    def _sum(self, inputs: tuple[int, ...]) -> FloatArray:
        """Σ_i of the product of neuron i's preactivations on these inputs."""
        if inputs not in self._sums:
            product = self._by_input[inputs[0]]
            for index in inputs[1:]:
                product = product * self._by_input[index]
            self._sums[inputs] = product.sum(axis=-1)
        return self._sums[inputs]


class MetricContractions:
    """The same moments from Ĝ (draws, inputs, inputs): the average over the layer's own weights is exact.

    Given Ĝ the neurons are independent Gaussians (4.71), so a moment is a product of one Wick sum per neuron.
    """

    def __init__(self, metric: FloatArray) -> None:
        self._metric = np.ascontiguousarray(np.moveaxis(metric, 0, -1))
        self._sums: dict[tuple[int, ...], FloatArray] = {}

    def read(self, moment: Moment) -> FloatArray:
        """Product over neurons of their Wick sums."""
        result: FloatArray = np.prod([self._wick(inputs) for inputs in moment], axis=0)
        return result

    def _wick(self, inputs: tuple[int, ...]) -> FloatArray:
        """Sum over pairings of the inputs of products of Ĝ (1.45)."""
        if not inputs:
            return np.ones(self._metric.shape[-1])
        if len(inputs) % 2:
            return np.zeros(self._metric.shape[-1])
        if inputs not in self._sums:
            first, rest = inputs[0], inputs[1:]
            self._sums[inputs] = np.sum(
                [
                    self._metric[first, other] * self._wick(rest[:index] + rest[index + 1 :])
                    for index, other in enumerate(rest)
                ],
                axis=0,
            )
        return self._sums[inputs]


Inputs = tuple[int, ...]
Terms = dict[tuple[Moment, ...], int]  # a polynomial in moments: coefficient of each product

_LONGEST = 8
_MOST_ENTRIES = 100_000
_ESTIMATORS = ("wick", "neurons")


def correlator(
    ensemble: Ensemble,
    neurons: str,
    *,
    layers: Sequence[int] | None = None,
    inputs: Sequence[Sequence[int]] | None = None,
    estimator: str = "wick",
) -> xarray.Dataset:
    """Full correlator E[z z ...]: ``value`` and ``standard_error`` for a pattern of neurons such as "1122".

    ``inputs`` lists the entries wanted, one row of input numbers each (result dims: layer, entry); None gives
    all (dims: layer, input_1, ...).
    """

    def terms(pattern: str, entry: Inputs) -> Terms:
        return {(_canonical(_blocks(pattern, entry)),): 1}

    return _measure(ensemble, neurons, layers, inputs, estimator, terms)


def connected_correlator(
    ensemble: Ensemble,
    neurons: str,
    *,
    layers: Sequence[int] | None = None,
    inputs: Sequence[Sequence[int]] | None = None,
    estimator: str = "wick",
) -> xarray.Dataset:
    """Connected correlator, the joint cumulant of the legs (1.56); arguments as in :func:`correlator`.

    The lower correlators it subtracts are those of the same sample, which has the smaller variance.
    """
    even = not ensemble.mlp.is_residual

    def terms(pattern: str, entry: Inputs) -> Terms:
        return _connected_terms(pattern, entry, even)

    return _measure(ensemble, neurons, layers, inputs, estimator, terms)


def moment_sums(
    ensemble: Ensemble, layers: tuple[int, ...], moments: Sequence[Moment], estimator: str
) -> BatchSums:
    """Many moments in one pass over all draws, as batch sums of shape (layers, moments).

    A moment is one tuple of inputs per neuron, like ((0, 1), (2, 2)); ``.estimate(function)`` gives the value
    and standard error of any function of the means.
    """
    sums = BatchSums(ensemble.draws, (len(layers), len(moments)))
    with Progress("networks", total=ensemble.draws) as bar:
        exact = estimator == "wick"
        for chunk in ensemble.metrics(layers) if exact else ensemble.preactivations(layers):
            readers = [(MetricContractions if exact else NeuronAverages)(chunk[layer]) for layer in layers]
            by_layer = [np.stack([reader.read(moment) for moment in moments], axis=-1) for reader in readers]
            sums.add(np.stack(by_layer, axis=1))
            bar.advance(len(by_layer[0]))
    return sums


def _measure(
    ensemble: Ensemble,
    neurons: str,
    layers: Sequence[int] | None,
    inputs: Sequence[Sequence[int]] | None,
    estimator: str,
    expand: Callable[[str, Inputs], Terms],
) -> xarray.Dataset:
    kept = _check_layers(ensemble.mlp, layers)
    if not 2 <= len(neurons) <= _LONGEST:
        raise InputError(
            f"neurons is {neurons!r}: give 2 to {_LONGEST} letters like '1122', equal for the same neuron."
        )
    if estimator not in _ESTIMATORS:
        raise unknown_name("`estimator`", estimator, _ESTIMATORS)
    if estimator == "neurons":
        needed = len(set(neurons))
        for layer in kept:
            if ensemble.mlp.widths[layer] < needed:
                raise InputError(
                    f"pattern {neurons!r} needs {needed} neurons but layer {layer} has "
                    f"{ensemble.mlp.widths[layer]}: leave the layer out or use `estimator='wick'`."
                )
    elif ensemble.law != "gaussian" or any(ensemble.mlp.gamma[layer - 1] for layer in kept):
        raise InputError(
            "estimator 'wick' needs Gaussian parameters and layers without a skip connection: "
            "use `estimator='neurons'`."
        )
    entries = _entries(neurons, inputs, len(ensemble.X))
    # Entries that differ by a symmetry of the pattern share their polynomial and are computed once.
    keys = [_canonical(_blocks(neurons, entry)) for entry in entries]
    distinct = {key: expand(neurons, entry) for key, entry in zip(keys, entries, strict=True)}
    moments = sorted({moment for terms in distinct.values() for part in terms for moment in part})
    sums = moment_sums(ensemble, kept, moments, estimator)
    value, error = sums.estimate(_evaluator(list(distinct.values()), moments))
    column = {key: index for index, key in enumerate(distinct)}
    columns = [column[key] for key in keys]
    labels = {"neurons": neurons, "estimator": estimator, **ensemble.labels}
    shape = None if inputs is not None else (len(ensemble.X),) * len(neurons)
    return _dataset(value[:, columns], error[:, columns], kept, entries, shape, labels)


def _evaluator(polynomials: list[Terms], moments: list[Moment]) -> Callable[[FloatArray], FloatArray]:
    """The function that turns means of moments (..., moments) into values of polynomials (..., entries)."""
    index = {moment: position for position, moment in enumerate(moments)}
    compiled = [
        [(weight, [index[moment] for moment in part]) for part, weight in terms.items()]
        for terms in polynomials
    ]

    def evaluate(means: FloatArray) -> FloatArray:
        columns = [
            sum(
                (weight * means[..., part].prod(axis=-1) for weight, part in terms),
                np.zeros(means.shape[:-1]),
            )
            for terms in compiled
        ]
        return np.stack(columns, axis=-1)

    return evaluate


def _connected_terms(neurons: str, entry: Inputs, even: bool) -> Terms:
    """Joint cumulant in terms of moments; lower moments that vanish by symmetry are left out.

    A single leg has mean zero. Without skip connections each neuron's law is even by itself.
    """
    terms: Counter[tuple[Moment, ...]] = Counter()
    for partition in set_partitions(len(entry)):
        parts = [
            _blocks("".join(neurons[leg] for leg in legs), tuple(entry[leg] for leg in legs))
            for legs in partition
        ]
        vanishes = any(
            sum(map(len, blocks)) == 1 or (even and any(len(block) % 2 for block in blocks))
            for blocks in parts
        )
        if len(parts) == 1 or not vanishes:
            terms[tuple(sorted(_canonical(blocks) for blocks in parts))] += _sign_weight(len(parts))
    return dict(terms)


def _blocks(neurons: str, entry: Inputs) -> list[list[int]]:
    """Inputs of each neuron of the pattern."""
    blocks: dict[str, list[int]] = {}
    for name, index in zip(neurons, entry, strict=True):
        blocks.setdefault(name, []).append(index)
    return list(blocks.values())


def _entries(neurons: str, inputs: Sequence[Sequence[int]] | None, count: int) -> list[Inputs]:
    legs = len(neurons)
    if inputs is None:
        if count**legs > _MOST_ENTRIES:
            raise InputError(
                f"{count} inputs give {count**legs:,} entries: list the wanted ones in `inputs=`."
            )
        return list(product(range(count), repeat=legs))
    rows = np.asarray(inputs)
    if rows.ndim != 2 or rows.shape[1] != legs or not len(rows) or not np.issubdtype(rows.dtype, np.integer):
        raise InputError(f"inputs has shape {rows.shape}: give rows of {legs} input numbers, one per leg.")
    if rows.min() < 0 or rows.max() >= count:
        raise InputError(f"inputs names {rows.min()}..{rows.max()}: X has inputs 0 to {count - 1}.")
    return [tuple(int(index) for index in row) for row in rows]


def _dataset(
    value: FloatArray,
    error: FloatArray,
    layers: tuple[int, ...],
    entries: list[Inputs],
    shape: tuple[int, ...] | None,
    labels: dict[str, str | int],
) -> xarray.Dataset:
    """Value and standard error by layer, and by input for a full table or by entry for a list of them."""
    legs = [f"input_{leg + 1}" for leg in range(len(entries[0]))]
    coords: dict[str, Any]
    if shape is None:
        dims = ["layer", "entry"]
        coords = {leg: ("entry", [entry[index] for entry in entries]) for index, leg in enumerate(legs)}
    else:
        dims, coords = ["layer", *legs], {}
        value, error = (array.reshape(len(layers), *shape) for array in (value, error))
    variables = {"value": (dims, value), "standard_error": (dims, error)}
    return labelled(variables, labels, layer=list(layers), **coords)


_NAMES = ("second_moment", "excess_kurtosis", "neuron_correlation")


def diagnose(
    mlp: MLP, X: ArrayLike, draws: int = 10_000, *, law: str = "gaussian", seed: Seed = 0
) -> xarray.Dataset:
    """Departure from a Gaussian with independent neurons, for every layer and input, with standard errors.

    ``second_moment`` is E[z²], ``excess_kurtosis`` is κ_4/κ_2² of one neuron, ``neuron_correlation`` is the
    correlation of z_i² and z_j² of two neurons. ``inverse_width`` is Σ 1/n over the hidden layers before, the
    scale of both; the attribute ``depth_to_width`` is that of the whole network. For Gaussian parameters
    without skip connections the average over each layer's own weights is exact; otherwise it runs over the
    layer's neurons, and a layer with one neuron has no correlation (nan).
    """
    exact = law == "gaussian" and not mlp.is_residual
    method = "conditional" if law == "gaussian" else "weights"
    ensemble = Ensemble(mlp, X, draws, method=method, law=law, seed=seed)
    layers = _check_layers(mlp, None)
    estimator = "wick" if exact else "neurons"
    # For each input: z² of one neuron, z⁴ of one neuron, z² z² of two neurons.
    moments: list[Moment] = []
    for a in range(len(ensemble.X)):
        moments += [((a, a),), ((a,) * 4,), ((a, a), (a, a))]
    value, error = moment_sums(ensemble, layers, moments, estimator).estimate(_statistics)
    before = np.concatenate([[0.0], np.cumsum([1.0 / n for n in mlp.hidden_widths])])
    variables = {"inverse_width": ("layer", before)}
    for index, name in enumerate(_NAMES):
        variables[name] = ("layer input", value[..., index])
        variables[f"{name}_standard_error"] = ("layer input", error[..., index])
    notes = {"depth_to_width": mlp.depth_to_width, "estimator": estimator, **ensemble.labels}
    return labelled(variables, notes, layer=list(layers))


def _statistics(means: FloatArray) -> FloatArray:
    second, fourth, pair = np.moveaxis(means.reshape(*means.shape[:-1], -1, 3), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):  # a layer that is identically zero has neither
        kurtosis = fourth / second**2 - 3.0
        correlation = (pair - second**2) / (fourth - second**2)
    return np.stack([second, kurtosis, correlation], axis=-1)
