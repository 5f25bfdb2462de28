"""Many random torch networks at once: parameters as stacks of matrices, one batched product per layer.

Two methods give the same law. "weights" draws every weight and bias of every network. "conditional" uses that,
given layer l, the neurons of layer l + 1 are independent and Gaussian with covariance
Ĝ = C_b + C_W/n Σ_j σ_j σ_j over inputs (4.69), (4.70): it draws the n_{l+1} rows from N(0, Ĝ) and holds no
weights, which costs n instead of n² random numbers per layer. A skip connection adds γ z^(l) to either.

Normal numbers are drawn with the resolution of float32, which is five times faster and cuts them at 5.8 standard
deviations; everything after that is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from foretrain.compare.torch_activation import torch_activation
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, spawn, torch_generator
from foretrain.support.threads import torch_over_cores
from foretrain.theory.architecture import MLP, FloatArray, Layer

T = TypeVar("T")

METHODS = ("weights", "conditional")

# A constant, not a share of the free memory: the same seed must give the same numbers on every machine.
_CHUNK_BYTES = 2**25


@dataclass(frozen=True)
class Parameters:
    """Weights (draws, n_l, n_{l-1}) and biases (draws, n_l, 1) of layers 1..L of many networks."""

    mlp: MLP
    weights: tuple[Tensor, ...] = field(repr=False)
    biases: tuple[Tensor, ...] = field(repr=False)

    def state_dict(self, draw: int) -> dict[str, Tensor]:
        """The parameters of one network, as the network that ``build`` makes loads them."""
        found: dict[str, Tensor] = {}
        for index, (weights, biases) in enumerate(zip(self.weights, self.biases, strict=True)):
            found[f"layers.{index}.weight"] = weights[draw]
            found[f"layers.{index}.bias"] = biases[draw, :, 0]
        return found


def sample_parameters(mlp: MLP, draws: int, seed: Seed = 0) -> Parameters:
    """Independent networks with E[b²] = C_b and E[W²] = C_W / fan-in (2.19)-(2.22)."""
    require_memory(8 * draws * mlp.parameter_count, f"the parameters of {draws} networks", "use fewer draws")
    return draw_parameters(mlp, draws, seed)


def draw_parameters(mlp: MLP, draws: int, seed: Seed) -> Parameters:
    """The networks of :func:`sample_parameters`, for callers that have made sure of the memory for many of these."""
    source = torch_generator(seed)
    weights, biases = [], []
    for layer in mlp.layers:
        numbers, bias, scale = _draw_layer(mlp, layer, draws, source)
        weights.append(numbers.mul_(scale))
        biases.append(bias)
    return Parameters(mlp, tuple(weights), tuple(biases))


def forward(parameters: Parameters, X: ArrayLike) -> list[Tensor]:
    """Preactivations of layers 1..L of every network, each (draws, n_l, inputs) (2.5), (B.3)."""
    mlp = parameters.mlp
    function = torch_activation(mlp.activation)
    found: list[Tensor] = []
    for layer, weights, biases in zip(mlp.layers, parameters.weights, parameters.biases, strict=True):
        incoming = function(found[-1]) if found else _first_signal(mlp.check_inputs(X), len(weights))
        found.append(_with_skip(layer, _apply(weights, biases, 1.0, incoming), found[-1] if found else None))
    return found


@dataclass(frozen=True, eq=False)
class LayerState:
    """One layer of some networks, given the layer before it."""

    layer: Layer
    metric: Tensor  # Ĝ, (draws, inputs, inputs): covariance of the fresh part of z
    previous: Tensor | None  # z^(l-1), (draws, n_{l-1}, inputs); None at layer 1
    preactivations: Tensor | None  # z^(l), (draws, n_l, inputs); None at the last layer unless asked for
    normals: Tensor | None = None  # W^(l) / √(C_W / n_{l-1}), (draws, n_l, n_{l-1}); None if not drawn


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Networks of one architecture on the rows of X, in numbered batches; each batch has a seed of its own.

    ``batch(i)`` may be called in any order and on any thread, and gives the same networks.
    """

    mlp: MLP
    X: FloatArray = field(repr=False)
    draws_per_batch: int
    batches: int
    method: str
    seed: Seed
    output: bool = False  # whether to draw the last layer's preactivations too, not only its metric
    reader_bytes: int = 0  # held by the reader of the layers for each network: fewer are then walked at once

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown_name("sampling `method`", self.method, METHODS)
        if self.draws_per_batch < 1 or self.batches < 2:
            raise InputError("an ensemble needs at least two batches of at least one network.")

    @property
    def draws(self) -> int:
        """Number of networks."""
        return self.draws_per_batch * self.batches

    @cached_property
    def _seeds(self) -> tuple[np.random.SeedSequence, ...]:
        return spawn(self.seed, self.batches)

    def batch(self, number: int) -> Iterator[list[LayerState]]:
        """The networks of one batch, a bounded number at a time, as their layers 1..L without weights."""
        for states in self.walks(number):
            yield [replace(state, normals=None) for state in states]

    def walks(self, number: int) -> Iterator[Iterator[LayerState]]:
        """The networks of one batch, a bounded number at a time; each walk must be finished before the next."""
        source = torch_generator(self._seeds[number])
        size = self.chunk_size
        for start in range(0, self.draws_per_batch, size):
            yield self._walk(min(size, self.draws_per_batch - start), source)

    def each_batch(self, read: Callable[[int], T]) -> list[T]:
        """What ``read`` finds in the batch of each number, in their order, on all cores."""
        return torch_over_cores(read, range(self.batches), f"networks of width {max(self.mlp.widths[1:])}")

    def probe_source(self, number: int) -> torch.Generator:
        """Random numbers that belong to a batch and are independent of its networks."""
        return torch_generator(spawn(self._seeds[number], 1)[0])

    @property
    def chunk_size(self) -> int:
        """Networks held at once: the largest weight matrix twice (float32 and float64), and all signals."""
        widths, inputs = self.mlp.widths, len(self.X)
        largest = max(n * fan_in for fan_in, n in pairwise(widths)) if self.method == "weights" else 0
        per_draw = 12 * largest + 8 * inputs * (sum(widths) + 4 * max(widths)) + self.reader_bytes
        return max(1, _CHUNK_BYTES // per_draw)

    def _walk(self, count: int, source: torch.Generator) -> Iterator[LayerState]:
        function = torch_activation(self.mlp.activation)
        incoming = _first_signal(self.X, count)
        previous: Tensor | None = None
        for layer in self.mlp.layers:
            metric = layer.C_b + layer.C_W / incoming.shape[1] * (incoming.mT @ incoming)
            z: Tensor | None = None
            normals: Tensor | None = None
            if self.output or layer.number < self.mlp.depth:
                fresh, normals = self._fresh(layer, count, incoming, metric, source)
                z = _with_skip(layer, fresh, previous)
            yield LayerState(layer, metric, previous, z, normals)
            if z is not None and layer.number < self.mlp.depth:
                previous, incoming = z, function(z)

    def _fresh(
        self, layer: Layer, count: int, incoming: Tensor, metric: Tensor, source: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """b + W σ and the normal numbers of W, or b + W σ alone from its law given σ."""
        if self.method == "weights":
            normals, biases, scale = _draw_layer(self.mlp, layer, count, source)
            return _apply(normals, biases, scale, incoming), normals
        root = _matrix_root(metric[:1] if layer.number == 1 else metric)
        return _normal((count, layer.width, metric.shape[-1]), source) @ root.mT, None


def _normal(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float32, generator=source).to(torch.float64)


def _draw_layer(mlp: MLP, layer: Layer, draws: int, source: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Standard normal weights, biases, and the factor √(C_W / fan-in) that belongs to the weights.

    The factor stays apart because the batched product applies it for nothing. Where C_b = 0 the biases are zero.
    """
    fan_in = mlp.widths[layer.number - 1]
    weights, scale = _normal((draws, layer.width, fan_in), source), (layer.C_W / fan_in) ** 0.5
    if not layer.C_b:
        return weights, torch.zeros((draws, layer.width, 1), dtype=torch.float64), scale
    return weights, _normal((draws, layer.width, 1), source).mul_(layer.C_b**0.5), scale


def _first_signal(X: FloatArray, draws: int) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(X.T)).expand(draws, -1, -1)


def _apply(weights: Tensor, biases: Tensor, scale: float, incoming: Tensor) -> Tensor:
    """b + scale W s for signals (draws, n_{l-1}, inputs)."""
    return torch.baddbmm(biases, weights, incoming, alpha=scale)


def _with_skip(layer: Layer, fresh: Tensor, previous: Tensor | None) -> Tensor:
    return fresh + layer.gamma * previous if layer.gamma and previous is not None else fresh


def _matrix_root(covariance: Tensor) -> Tensor:
    """A with A Aᵀ = covariance, for a stack of matrices that may be singular."""
    if covariance.shape[-1] == 1:
        return covariance.sqrt()
    variances, directions = torch.linalg.eigh(covariance)
    root: Tensor = directions * variances.clamp(min=0.0).sqrt()[..., None, :]
    return root
