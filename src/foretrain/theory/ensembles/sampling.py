"""Random networks in bounded memory: preactivations and stochastic metrics, chunk by chunk.

Two methods give the same law. "weights" draws every weight matrix and works for every weight law.
"conditional" uses that, for Gaussian parameters and given layer l, the neurons of layer l + 1 are
independent and Gaussian with covariance Ĝ = C_b + C_W/n Σ_j σ_j σ_j over inputs (2.34), (4.69), (4.70): it
costs n N² + N³ per layer instead of n² N and holds no weights. A skip connection adds gamma z^(l) to either.

Convolution layers (2.8) are not offered: every sampler here takes a fully connected :class:`MLP`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator, spawn
from foretrain.theory.architecture import MLP, FloatArray, Layer
from foretrain.theory.ensembles.networks import (
    activity,
    apply_layer,
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
_METHODS = ("conditional", "weights")


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Ensemble(Result):
    """What to sample: networks of one architecture, evaluated on the rows of ``X``, all from one seed."""

    mlp: MLP
    X: FloatArray
    draws: int
    method: str
    law: str
    seed: Seed

    def __init__(
        self,
        mlp: MLP,
        X: ArrayLike,
        draws: int,
        *,
        method: str = "conditional",
        law: str = "gaussian",
        seed: Seed = 0,
    ) -> None:
        weight_law(law)
        if method not in _METHODS:
            raise unknown_name("sampling `method`", method, _METHODS)
        if method == "conditional" and law != "gaussian":
            raise InputError(
                f"method 'conditional' needs Gaussian parameters: use `method='weights'` for law {law!r}."
            )
        fields = {
            "mlp": mlp.with_inputs(X),
            "X": mlp.check_inputs(X),
            "draws": check_draws(draws),
            "method": method,
            "law": law,
            "seed": seed,
        }
        for name, value in fields.items():
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
        self, wanted: tuple[int, ...], read: Callable[[LayerDraw], FloatArray]
    ) -> Iterator[dict[int, FloatArray]]:
        size = self._chunk_size()
        chunks = -(-self.draws // size)
        require_memory(_BYTES_PER_SEED * chunks, f"the seeds of {self.draws:,} draws", "use fewer draws")
        for index, seeds in enumerate(spawn(self.seed, chunks)):
            count = min(size, self.draws - index * size)
            yield {
                state.layer.number: read(state)
                for state in _walk(self, count, generator(seeds), wanted[-1])
                if state.layer.number in wanted
            }

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
class LayerDraw:
    """One layer of a chunk of networks, given the layer before it; drawn only if somebody looks."""

    ensemble: Ensemble
    layer: Layer
    count: int
    incoming: FloatArray  # (draws or 1, n_{l-1}, inputs): the inputs, or the activations of the layer before
    previous: FloatArray | None  # its preactivations
    source: np.random.Generator

    @cached_property
    def metric(self) -> FloatArray:
        """Ĝ = C_b + C_W/n Σ_j σ_j σ_j, of shape (draws, inputs, inputs) (4.70)."""
        fan_in, inputs = self.incoming.shape[-2:]
        gram = np.swapaxes(self.incoming, -1, -2) @ self.incoming
        metric = self.layer.C_b + (self.layer.C_W / fan_in) * gram
        return np.broadcast_to(metric, (self.count, inputs, inputs))

    @cached_property
    def preactivations(self) -> FloatArray:
        """z of shape (draws, n_l, inputs), skip connection included."""
        if self.ensemble.method == "conditional":
            # Layer 1 has one metric for all draws: factor it once.
            metric = self.metric if len(self.incoming) > 1 else self.metric[:1]
            normals = self.source.standard_normal((self.count, self.layer.width, metric.shape[-1]))
            fresh: FloatArray = normals @ np.swapaxes(matrix_root(metric), -1, -2)
        else:
            law = weight_law(self.ensemble.law)
            weights, biases = draw_layer(self.ensemble.mlp, self.layer.number, self.count, law, self.source)
            fresh = apply_layer(weights, biases, self.incoming)
        if self.layer.gamma and self.previous is not None:
            fresh += self.layer.gamma * self.previous
        return fresh


def matrix_root(covariance: FloatArray) -> FloatArray:
    """A with A Aᵀ = covariance, for a stack of matrices that may be singular."""
    if covariance.shape[-1] == 1:
        return np.sqrt(covariance)
    variances, directions = np.linalg.eigh(covariance)
    root: FloatArray = directions * np.sqrt(np.clip(variances, 0.0, None))[..., None, :]
    return root


def _walk(ensemble: Ensemble, count: int, source: np.random.Generator, last: int) -> Iterator[LayerDraw]:
    """The layers 1..last of ``count`` networks, each given the one before."""
    incoming = ensemble.X.T[None]
    previous: FloatArray | None = None
    for layer in ensemble.mlp.layers[:last]:
        state = LayerDraw(ensemble, layer, count, incoming, previous, source)
        yield state
        if layer.number < last:
            previous = state.preactivations
            incoming = activity(ensemble.mlp, previous)


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
