"""One chunk of samples: what is kept of a backward pass per output, and the factors of the kernel made of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.sites import (
    ProductSite,
    Table,
    Use,
    is_product,
    per_sample_sum,
    product_site,
)
from foretrain.empirical.autograd_graph.structure import Source
from foretrain.empirical.autograd_graph.tape import Edge, Tape
from foretrain.empirical.tangent_kernel.factors import (
    Factor,
    Gradients,
    Grams,
    LateGradients,
    Pairs,
    separated,
)
from foretrain.support.threads import one_thread_of_torch, over_cores

if TYPE_CHECKING:
    from foretrain.empirical.tangent_kernel.planning import Share

Key = tuple[str, ...]


@dataclass(frozen=True)
class Size:
    """Of a chunk: its samples, the outputs that go backward, and the dtype of what is kept."""

    samples: int
    outputs: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Site:
    """Sizes of a weight site: groups of (p inputs, q results) at T positions per sample; a table has p rows."""

    groups: int
    p: int
    q: int
    positions: int
    is_table: bool = False

    @property
    def forms_late(self) -> bool:
        """Whether keeping the sensitivities takes less memory than the gradients."""
        return self.positions < self.p


class Collector(ABC):
    """Takes the gradients of all outputs at some edges; several threads may bring them."""

    edges: Sequence[Edge]

    def __init__(self) -> None:
        self._making_room = Lock()
        self._absent: list[int] = []

    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Keep the gradients of an output at my edges; None where it does not arrive."""
        if all(gradient is None for gradient in gradients):
            self._absent.append(output)
        else:
            self.keep(output, gradients)

    @abstractmethod
    def keep(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """The same where one of them arrives."""

    @abstractmethod
    def clear(self, output: int) -> None:
        """Zeros for an output that arrives nowhere, if others do."""

    def end(self) -> None:
        """All outputs have been taken."""
        for output in self._absent:
            self.clear(output)


class _Products(Collector):
    """All uses of one source in products of one kind, with their positions side by side."""

    def __init__(self, tape: Tape, source: Source, size: Size) -> None:
        super().__init__()
        self._sites = [product_site(tape, use, source.shape, size.samples) for use in source.uses]
        self.edges = [(use.node, 0) for use in source.uses]
        self.shape, self.size = source.shape, size
        found = [site.inputs() for site in self._sites]
        together = torch.cat(found, -1) if found[0].ndim == 2 else _side_by_side(found)
        self.inputs = together.to(size.dtype) if together.is_floating_point() else together
        self.positions = [values.shape[-1] for values in found]
        self.is_table = isinstance(self._sites[0], Table)  # of vectors that are looked up
        groups, p = (1, self.shape[0]) if self.is_table else (self.inputs.shape[0], self.inputs.shape[2])
        q = prod(self.shape) // (groups * p)
        self.site = Site(groups, p, q, sum(self.positions), self.is_table)  # for the choice of a way

    def _arranged(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """(groups, samples, q, T) of every use, with zeros where no gradient arrives."""
        found = [
            None if gradient is None else site.arranged(gradient).to(self.size.dtype)
            for site, gradient in zip(self._sites, gradients)
        ]
        like = next(values for values in found if values is not None)
        return [
            like.new_zeros(*like.shape[:3], positions) if values is None else values
            for values, positions in zip(found, self.positions)
        ]


class Sensitivities(_Products):
    """Inputs and sensitivities (groups, samples, outputs, q, T) for products of Grams."""

    values: Tensor | None = None

    def keep(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Keep the sensitivities of an output."""
        parts = self._arranged(gradients)
        if self.size.outputs == len(parts) == 1:  # as they come
            self.values = parts[0][:, :, None]
            return
        with self._making_room:
            if self.values is None:
                groups, samples, q, _ = parts[0].shape
                positions = sum(self.positions)
                if _features_last(parts[0]):
                    room = (
                        parts[0].new_empty(groups, samples, self.size.outputs, positions, q).transpose(3, 4)
                    )
                else:
                    room = parts[0].new_empty(groups, samples, self.size.outputs, q, positions)
                self.values = room
        # Written to their place at once: a copy on the way costs memory that the system clears every time.
        torch.cat(parts, 3, out=self.values[:, :, output])

    def clear(self, output: int) -> None:
        """Zeros for an output that does not arrive."""
        if self.values is not None:
            self.values[:, :, output] = 0


def _features_last(values: Tensor) -> bool:
    """Whether the features of (groups, samples, q, T) are neighbours in memory."""
    return values.stride(2) == 1


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """(groups, samples, q, T) with the positions of all parts, laid out in memory as they are."""
    if len(parts) == 1:
        return parts[0]
    if _features_last(parts[0]):
        return torch.cat([part.transpose(2, 3) for part in parts], 2).transpose(2, 3)
    return torch.cat(list(parts), 3)


class GradientCollector(Collector):
    """A collector that ends with per-sample gradients in the source's own layout."""

    gradient: Tensor | None = None  # (samples, outputs, entries); None if none arrived

    def clear(self, output: int) -> None:
        """Zeros for an output that does not arrive."""
        if self.gradient is not None:
            self.gradient[:, output] = 0


class FormedGradients(_Products, GradientCollector):
    """Per-sample gradients, formed in every backward pass so that no sensitivity needs to be kept.

    ``with_bias``: also those of a bias that is added to the same products.
    """

    bias: Tensor | None = None

    def __init__(self, tape: Tape, source: Source, size: Size, with_bias: bool = False) -> None:
        super().__init__(tape, source, size)
        if not self.is_table:
            # (groups, samples, T, p): products run faster.
            self.inputs = self.inputs.transpose(2, 3).contiguous()
        self._with_bias = with_bias

    def keep(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Form the gradients of an output."""
        found = _side_by_side(self._arranged(gradients))
        groups, samples, q, _ = found.shape
        with self._making_room:
            if self.gradient is None:
                self.gradient = found.new_empty(samples, self.size.outputs, prod(self.shape))
                if self._with_bias:
                    self.bias = found.new_zeros(samples, self.size.outputs, groups * q)
        # The sum over positions of (sensitivity) x (input).
        target = self.gradient[:, output]
        if self.is_table:
            index = self.inputs[:, :, None].expand(-1, -1, q)
            table = target.zero_().view(samples, self.shape[0], q)
            table.scatter_add_(1, index, found[0].transpose(1, 2))
        else:
            for group, (mine, weights) in enumerate(zip(found, self.inputs)):
                into = target.view(samples, groups, -1)[:, group]
                if self._sites[0].inputs_first:
                    shaped = into.view(samples, -1, q)
                    torch.bmm(weights.transpose(1, 2), mine.transpose(1, 2), out=shaped)
                else:
                    torch.bmm(mine, weights, out=into.view(samples, q, -1))
        if self.bias is not None:
            self.bias[:, output] = found.sum(-1).transpose(0, 1).reshape(samples, -1)


class Sums(GradientCollector):
    """Per-sample gradients of a source that is added, multiplied or copied, summed over its uses."""

    def __init__(self, tape: Tape, source: Source, size: Size) -> None:
        super().__init__()
        self.edges = [(use.node, 0) for use in source.uses]
        self._tape, self._source, self._size = tape, source, size

    def keep(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of an output."""
        size, shape = self._size, self._source.shape
        for use, gradient in zip(self._source.uses, gradients):
            if gradient is None:
                continue
            values = per_sample_sum(self._tape, use, shape, size.samples, gradient)
            with self._making_room:
                if self.gradient is None:
                    self.gradient = values.new_zeros(
                        size.samples, size.outputs, prod(shape), dtype=size.dtype
                    )
            self.gradient[:, output] += values


def gradient_collectors(
    tape: Tape, source: Source, size: Size, with_bias: bool = False
) -> list[GradientCollector]:
    """Collectors for all uses of a source; uses of the same kind share one."""
    products: dict[tuple[str, type[ProductSite], int], list[Use]] = {}
    sums = []
    for use in source.uses:
        if is_product(tape, use.node, use.position):
            site = product_site(tape, use, source.shape, size.samples)
            products.setdefault((tape.names[use.node], type(site), site.groups), []).append(use)
        else:
            sums.append(use)
    found: list[GradientCollector] = [
        FormedGradients(tape, replace(source, uses=uses), size, with_bias) for uses in products.values()
    ]
    if sums:
        found.append(Sums(tape, replace(source, uses=sums), size))
    return found


class BlockCapture:
    """All that a block needs of a chunk, and its factors once the backward passes are done."""

    def __init__(self, tape: Tape, share: Share, samples: int, outputs: int) -> None:
        self.share, self._tape = share, tape
        self._size = size = Size(samples, outputs, share.counted.dtype)
        self._kept: Sensitivities | None = None
        self._formed: list[tuple[Source, GradientCollector]] = []
        if share.keeps_sensitivities:
            self._kept = Sensitivities(tape, share.block.sources[0], size)
        else:
            self._formed = [
                (source, collector)
                for source in share.block.sources
                for collector in gradient_collectors(tape, source, size, share.bias is not None)
            ]

    @property
    def collected(self) -> Sequence[Collector]:
        """The collectors of all sources."""
        return [collector for _, collector in self._formed] if self._kept is None else [self._kept]

    def factors(self, trace: bool, many: bool = False) -> dict[Key, Factor]:
        """The block's factors; a block where no gradient arrives may have none.

        ``many``: the chunk meets so many samples that it pays to look for outputs that can be summed before.
        """
        share = self.share
        if self._kept is not None:
            if self._kept.values is None:
                return {}
            inputs, values = self._kept.inputs, self._kept.values
            if not share.late:
                return {share.key: self._of_products(inputs, values, trace, many)}
            rows = 1 if trace else self._size.outputs
            root = self._root(share.block.parameters[0]) * self._scale()
            inputs = inputs.transpose(2, 3).contiguous() if inputs.ndim > 2 else inputs
            found: dict[Key, Factor] = {share.key: LateGradients(inputs, values, rows, root).shortened()}
            if share.bias is not None:
                summed = values.sum(-1).permute(1, 2, 0, 3).flatten(2)
                found[share.bias,] = self._rows(summed * self._root(share.bias), trace)
            return found
        if not share.block.direct:
            return {(name,): self._rows(values, trace) for name, values in self._derived().items()}
        # The gradients of the only source, from all its uses.
        arrived = [collector.gradient for _, collector in self._formed if collector.gradient is not None]
        if arrived:
            total = arrived[0] if len(arrived) == 1 else torch.stack(arrived).sum(0)
            root = self._root(share.block.parameters[0]) * self._scale()
            total = total if root == 1 else total.mul_(root)
        else:
            total = self._zeros(share.block.parameters[0], prod(share.block.sources[0].shape))
        found = {share.key: self._rows(total, trace)}
        if share.bias is not None:
            ((_, collector),) = self._formed
            assert isinstance(collector, FormedGradients)
            values = self._zeros(share.bias) if collector.bias is None else collector.bias
            found[share.bias,] = self._rows(values * self._root(share.bias), trace)
        return found

    def _of_products(self, inputs: Tensor, values: Tensor, trace: bool, many: bool) -> Factor:
        share, outputs = self.share, None
        is_gram = share.way == "gram"
        if trace and many and is_gram and (apart := separated(values.squeeze(-1))) is not None:
            own, outputs = apart
            values = own[..., None]
        elif trace:  # outputs count as features
            groups, samples, count, q, positions = values.shape
            values = values.reshape(groups, samples, 1, count * q, positions)
        rate = share.counted.rates[share.block.parameters[0]]
        if not is_gram:
            return Pairs(inputs, values, rate, self._scale())
        bias_rate = 0.0 if share.bias is None else share.counted.rates[share.bias]
        return Grams(inputs.squeeze(-1), values.squeeze(-1), rate, bias_rate, self._scale(), outputs)

    def _derived(self) -> dict[str, Tensor]:
        """Gradients at the sources, carried down to the parameters they are made of."""
        parameters = {name: self.share.counted.parameters[name] for name in self.share.block.parameters}
        totals = {name: self._zeros(name) for name in parameters}
        for source, collector in self._formed:
            if collector.gradient is None:
                continue
            cotangents = collector.gradient.reshape(-1, *source.shape)
            cotangents = cotangents.to(self._tape.dtype_at(source.edges[0]))
            pulled = self._tape.pull_back(source.edges[0], list(parameters.values()), cotangents)
            for name, part in zip(parameters, pulled):
                if part is not None:
                    totals[name] += part.reshape(totals[name].shape)
        return {name: total * self._root(name) for name, total in totals.items()}

    def _rows(self, gradients: Tensor, trace: bool) -> Gradients:
        rows = 1 if trace else self._size.outputs
        return Gradients(gradients.reshape(self._size.samples * rows, -1), rows)

    def _root(self, name: str) -> float:
        return sqrt(self.share.counted.rates[name])

    def _scale(self) -> float:
        (source,) = self.share.block.sources
        assert source.scale is not None
        return source.scale

    def _zeros(self, name: str, entries: int | None = None) -> Tensor:
        """Gradients of a parameter, or of a part of it, where none arrive."""
        count = self.share.counted.parameters[name].numel() if entries is None else entries
        shape = (self._size.samples, self._size.outputs, count)
        return self._tape.outputs.new_zeros(shape, dtype=self._size.dtype)


def backward_passes(
    tape: Tape, captures: Sequence[BlockCapture], outputs: Sequence[int], silent: Sequence[Edge]
) -> set[Edge]:
    """One backward pass per output, on cores of their own; the gradients go to all collectors that asked for them.

    Gives those of the ``silent`` edges where a gradient arrives after all.
    """
    takers = [collector for capture in captures for collector in capture.collected]
    edges = list(dict.fromkeys([*(edge for taker in takers for edge in taker.edges), *silent]))
    place = {edge: i for i, edge in enumerate(edges)}

    def go_back(numbers: Sequence[int]) -> set[Edge]:
        arriving: set[Edge] = set()
        cotangents = (unit_cotangent(tape.outputs, slice(None), outputs[number]) for number in numbers)
        for number, gradients in zip(numbers, tape.gradients_of_many(edges, cotangents)):
            for taker in takers:
                taker.take(number, [gradients[place[edge]] for edge in taker.edges])
            arrived = ((edge, gradients[place[edge]]) for edge in silent)
            arriving |= {edge for edge, gradient in arrived if gradient is not None and bool(gradient.any())}
        return arriving

    everything, cores = range(len(outputs)), torch.get_num_threads()
    if 1 < cores <= len(outputs) and tape.bears_threads(edges):
        with one_thread_of_torch():
            heard = over_cores(go_back, [everything[core::cores] for core in range(cores)])
    else:
        heard = [go_back(everything)]
    for taker in takers:
        taker.end()
    return set().union(*heard)


def unit_cotangent(outputs: Tensor, samples: int | slice, output: int) -> Tensor:
    """The cotangent (samples, outputs) of one output of some samples."""
    cotangent = torch.zeros_like(outputs)
    cotangent[samples, output] = 1
    return cotangent
