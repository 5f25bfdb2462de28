"""One chunk of samples: a forward pass, a backward pass per output, and from them the factors of the kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor

from foretrain.empirical.tangent_kernel.broadcasts import per_sample_sum
from foretrain.empirical.tangent_kernel.factors import Factor, Gradients, Grams, Pairs
from foretrain.empirical.tangent_kernel.routes import Site, Way
from foretrain.empirical.tangent_kernel.sites import (
    ProductSite,
    Table,
    Use,
    is_product,
    per_sample_gradient,
    per_sample_rows,
    product_site,
)
from foretrain.empirical.tangent_kernel.structure import Block, Source
from foretrain.empirical.tangent_kernel.tape import Edge, Tape


@dataclass(frozen=True)
class Share:
    """A block of parameters, the way it takes, the rate of each parameter, and which bias goes with it."""

    block: Block
    way: Way
    rates: Mapping[str, float]
    bias: str | None = None
    piece: int | None = None  # which part of a parameter that is used in parts

    @property
    def key(self) -> tuple[str, ...]:
        """What tells the share from others in every chunk."""
        return self.parameters if self.piece is None else (*self.parameters, f"part {self.piece}")

    @property
    def place(self) -> tuple[str, int | None]:
        """The first parameter and which part of it."""
        return self.block.parameters[0], self.piece

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters whose contribution is in the factor."""
        return self.block.parameters if self.bias is None else (*self.block.parameters, self.bias)


class _Collector(ABC):
    """Takes the gradients of one output after the other at some edges."""

    edges: Sequence[Edge]

    @abstractmethod
    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Keep the gradients of an output at my edges."""


class ProductCollector(_Collector):
    """Inputs and sensitivities of all uses of one source in products, positions side by side."""

    def __init__(self, tape: Tape, source: Source, samples: int, outputs: int) -> None:
        self.sites = [product_site(tape, use, source.shape, samples) for use in source.uses]
        self.edges = [(use.node, 0) for use in source.uses]
        self.rows = source.shape[0]
        found = [site.inputs() for site in self.sites]
        self.inputs = found[0] if len(found) == 1 else torch.cat(found, -1)
        self.positions = [values.shape[-1] for values in found]
        self._outputs = outputs
        self.sensitivities: Tensor | None = None

    @property
    def kind(self) -> type[ProductSite]:
        """How the source is used."""
        return type(self.sites[0])

    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Keep the gradients of an output at my edges."""
        start = 0
        for site, positions, gradient in zip(self.sites, self.positions, gradients):
            if gradient is not None:
                values = site.arranged(gradient)
                buffer = self._buffer(values)
                buffer[:, :, output, :, start : start + positions] = values
            start += positions

    def _buffer(self, like: Tensor) -> Tensor:
        if self.sensitivities is None:
            groups, samples, q, _ = like.shape
            self.sensitivities = like.new_zeros(groups, samples, self._outputs, q, sum(self.positions))
        return self.sensitivities

    def gradient(self) -> Tensor | None:
        """Per-sample gradients in the source's own layout (samples, outputs, entries)."""
        if self.sensitivities is None:
            return None
        if issubclass(self.kind, Table):
            return per_sample_rows(self.rows, self.inputs, self.sensitivities)
        return per_sample_gradient(self.kind, self.inputs, self.sensitivities)


class SumCollector(_Collector):
    """Per-sample gradients of a source that is added, multiplied or copied, summed over its uses."""

    def __init__(self, tape: Tape, source: Source, samples: int, outputs: int) -> None:
        self.edges = [(use.node, 0) for use in source.uses]
        self._tape, self._source, self._samples, self._outputs = tape, source, samples, outputs
        self._sum: Tensor | None = None

    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Keep the gradients of an output at my edges."""
        for use, gradient in zip(self._source.uses, gradients):
            if gradient is None:
                continue
            values = per_sample_sum(self._tape, use, self._source.shape, self._samples, gradient)
            if self._sum is None:
                self._sum = values.new_zeros(self._samples, self._outputs, prod(self._source.shape))
            self._sum[:, output] += values

    def gradient(self) -> Tensor | None:
        """Per-sample gradients (samples, outputs, entries)."""
        return self._sum


Collector = ProductCollector | SumCollector


def collectors(tape: Tape, source: Source, samples: int, outputs: int) -> list[Collector]:
    """Collectors for all uses of a source; uses of the same kind share one."""
    products: dict[tuple[type[ProductSite], int], list[Use]] = {}
    sums = []
    for use in source.uses:
        if is_product(tape, use.node, use.position):
            site = product_site(tape, use, source.shape, samples)
            products.setdefault((type(site), site.groups), []).append(use)
        else:
            sums.append(use)
    found: list[Collector] = [
        ProductCollector(tape, _with_uses(source, uses), samples, outputs) for uses in products.values()
    ]
    if sums:
        found.append(SumCollector(tape, _with_uses(source, sums), samples, outputs))
    return found


def _with_uses(source: Source, uses: list[Use]) -> Source:
    return Source(source.edges, source.shape, source.scale, uses)


def site_of(collected: ProductCollector, source: Source) -> Site:
    """Sizes of a weight site, for the choice of a way."""
    if issubclass(collected.kind, Table):
        return Site(1, source.shape[0], source.shape[1], sum(collected.positions), is_table=True)
    groups, _, p, positions = collected.inputs.shape
    return Site(groups, p, prod(source.shape) // (groups * p), positions)


class BlockCapture:
    """All that a block needs of a chunk, and its factor once the backward passes are done."""

    def __init__(
        self, tape: Tape, share: Share, parameters: Mapping[str, Tensor], samples: int, outputs: int
    ) -> None:
        self.share = share
        self._tape, self._parameters = tape, parameters
        self._samples, self._outputs = samples, outputs
        self._collected = [
            (source, collector)
            for source in share.block.sources
            for collector in collectors(tape, source, samples, outputs)
        ]

    @property
    def collected(self) -> list[Collector]:
        """The collectors of all sources."""
        return [collector for _, collector in self._collected]

    def factor(self, trace: bool) -> Factor | None:
        """None if the block contributes nothing: no gradient arrives at its uses."""
        way = self.share.way
        if way == "gram" or way == "pairs":
            return self._gram(trace) if way == "gram" else self._pairs(trace)
        gradients = self._direct() if self.share.block.direct else self._derived()
        rows = 1 if trace else self._outputs
        return Gradients(gradients.reshape(self._samples * rows, -1), rows)

    def _gram(self, trace: bool) -> Factor | None:
        collector = self._only_product()
        if collector.sensitivities is None:
            return None
        sensitivities = collector.sensitivities.squeeze(-1)
        groups = len(sensitivities)
        bias_rate = 0.0 if self.share.bias is None else self.share.rates[self.share.bias]
        return Grams(
            collector.inputs.squeeze(-1),
            sensitivities.reshape(groups, self._samples, 1, -1) if trace else sensitivities,
            self._weight_rate(),
            bias_rate,
        )

    def _pairs(self, trace: bool) -> Factor | None:
        collector = self._only_product()
        sensitivities = collector.sensitivities
        if sensitivities is None:
            return None
        if trace:
            groups, positions = len(sensitivities), sensitivities.shape[-1]
            sensitivities = sensitivities.reshape(groups, self._samples, 1, -1, positions)
        return Pairs(collector.inputs, sensitivities, self._weight_rate())

    def _only_product(self) -> ProductCollector:
        (collector,) = self.collected
        assert isinstance(collector, ProductCollector)
        return collector

    def _weight_rate(self) -> float:
        (name,), (source,) = self.share.block.parameters, self.share.block.sources
        assert source.scale is not None
        return self.share.rates[name] * source.scale**2

    def _direct(self) -> Tensor:
        found = [gradient for c in self.collected if (gradient := c.gradient()) is not None]
        if not found:
            return self._zeros(prod(self.share.block.sources[0].shape))
        total = found[0] if len(found) == 1 else torch.stack(found).sum(0)
        root = sqrt(self._weight_rate())
        return total if root == 1 else total * root

    def _derived(self) -> Tensor:
        """Gradients at the sources, carried down to the parameters they are made of."""
        names = self.share.block.parameters
        totals = {name: self._zeros(self._parameters[name].numel()) for name in names}
        for source, collector in self._collected:
            gradient = collector.gradient()
            if gradient is None:
                continue
            cotangents = gradient.reshape(-1, *source.shape)
            pulled = self._tape.pull_back(source.edges[0], [self._parameters[n] for n in names], cotangents)
            for name, part in zip(names, pulled):
                if part is not None:
                    totals[name] += part.reshape(totals[name].shape)
        return torch.cat([totals[name] * sqrt(self.share.rates[name]) for name in names], -1)

    def _zeros(self, entries: int) -> Tensor:
        return self._tape.outputs.new_zeros(self._samples, self._outputs, entries)


def backward_passes(tape: Tape, captures: Sequence[BlockCapture], outputs: Sequence[int]) -> None:
    """One backward pass per output; its gradients go to all collectors that asked for them."""
    takers = [collector for capture in captures for collector in capture.collected]
    edges = list(dict.fromkeys(edge for taker in takers for edge in taker.edges))
    place = {edge: i for i, edge in enumerate(edges)}
    for number, output in enumerate(outputs):
        cotangent = torch.zeros_like(tape.outputs)
        cotangent[:, output] = 1
        gradients = tape.gradients(edges, cotangent)
        for taker in takers:
            taker.take(number, [gradients[place[edge]] for edge in taker.edges])
