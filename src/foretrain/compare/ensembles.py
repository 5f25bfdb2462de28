"""Many random torch networks at once, in batches: one batched product per layer.

What is drawn, and how, is that of :class:`foretrain.theory.ensembles.Sampler`, with arrays of torch. Normal
numbers have the resolution of float32, which is five times faster and cuts them at 5.8 standard deviations;
everything after that is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.build import torch_activation
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed, spawn, torch_generator
from foretrain.support.threads import torch_over_cores
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import METHODS, LayerDraw, Sampler, Shape, draw_layer

T = TypeVar("T")
TorchLayer: TypeAlias = LayerDraw[Tensor]

# A constant, not a share of the free memory: the same seed must give the same numbers on every machine.
_CHUNK_BYTES = 2**25


def normal_numbers(shape: Shape, source: torch.Generator) -> Tensor:
    """In float64, with the resolution of float32."""
    return torch.randn(shape, dtype=torch.float32, generator=source).to(torch.float64)


def draw_weights(mlp: MLP, draws: int, seed: Seed) -> tuple[list[Tensor], list[Tensor]]:
    """Weights (draws, n_l, n_{l-1}) and biases (draws, n_l, 1) of layers 1..L of many networks (2.19)-(2.22)."""
    source = torch_generator(seed)
    weights, biases = [], []
    for number in range(1, mlp.depth + 1):
        units, bias, scale = draw_layer(mlp, number, draws, lambda shape: normal_numbers(shape, source))
        weights.append(units.mul_(scale))
        biases.append(bias[..., None])
    return weights, biases


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Networks of one architecture on the rows of X, in numbered batches; each batch has a seed of its own.

    ``walks(i)`` may be called in any order and on any thread, and gives the same networks.
    """

    mlp: MLP
    X: FloatArray = field(repr=False)
    draws_per_batch: int
    batches: int
    method: str
    seed: Seed
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

    def walks(self, number: int) -> Iterator[Iterator[TorchLayer]]:
        """The networks of one batch, a bounded number at a time; each walk must be finished before the next."""
        source = torch_generator(self._seeds[number])
        sampler = Sampler(
            self.mlp,
            self.method,
            torch.from_numpy(np.ascontiguousarray(self.X.T))[None],
            lambda shape: normal_numbers(shape, source),
            torch_activation(self.mlp.activation),
            _affine,
            torch.linalg.eigh,
            lambda values, count: values.expand(count, -1, -1),
        )
        size = self.chunk_size
        for start in range(0, self.draws_per_batch, size):
            yield sampler.walk(min(size, self.draws_per_batch - start))

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


def _affine(weights: Tensor, biases: Tensor, scale: float, incoming: Tensor) -> Tensor:
    """b + scale W s in one batched product."""
    return torch.baddbmm(biases[..., None], weights, incoming.expand(len(weights), -1, -1), alpha=scale)
