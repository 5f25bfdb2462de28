"""Random networks in bounded memory: preactivations and stochastic metrics, chunk by chunk.

:class:`Sampler` is the one that draws, for numpy here and for torch in ``foretrain.compare``.

Two methods give the same law. "weights" draws every weight matrix and works for every weight law.
"conditional" uses that, for Gaussian parameters and given layer l, the neurons of layer l + 1 are
independent and Gaussian with covariance Ĝ = C_b + C_W/n Σ_j σ_j σ_j over inputs (2.34), (4.69), (4.70): it
costs n N² + N³ per layer instead of n² N and holds no weights. A skip connection adds gamma z^(l) to either.

Convolution layers (2.8) are not offered: every sampler here takes a fully connected :class:`MLP`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.theory.architecture import MLP, FloatArray, Layer
from foretrain.theory.ensembles.networks import (
    Array,
    Shape,
    activity,
    check_draws,
    check_layers,
    draw_layer,
    weight_law,
)

if TYPE_CHECKING:
    import xarray


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
        return self._stream(check_layers(self.mlp, layers), lambda state: state.preactivations)

    def metrics(self, layers: Sequence[int] | None = None) -> Iterator[dict[int, FloatArray]]:
        """Chunks {layer: (some draws, inputs, inputs)} of Ĝ, a layer's covariance given the one before."""
        return self._stream(check_layers(self.mlp, layers), lambda state: state.metric)

    def _stream(
        self, wanted: tuple[int, ...], read: Callable[[LayerDraw[FloatArray]], FloatArray]
    ) -> Iterator[dict[int, FloatArray]]:
        size = self._chunk_size()
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

    def _chunk_size(self) -> int:
        """Draws per chunk so that it stays near the byte limit even if every layer is kept.

        It must not depend on the layers asked for: one seed means one set of networks.
        """
        widths, inputs = self.mlp.widths, len(self.X)
        signals = (sum(widths[1:]) + 3 * max(widths[1:])) * inputs
        weights = max(n * fan_in for fan_in, n in pairwise(widths)) if self.method == "weights" else 0
        per_draw = signals + (self.mlp.depth + 2) * inputs**2 + weights
        return max(1, min(self.draws, _CHUNK_BYTES // (8 * per_draw)))


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
    kept = check_layers(mlp, layers)
    neurons = sum(ensemble.mlp.widths[layer] for layer in kept)
    size = 8 * ensemble.draws * neurons * len(ensemble.X)
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
    kept = check_layers(mlp, layers)
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
