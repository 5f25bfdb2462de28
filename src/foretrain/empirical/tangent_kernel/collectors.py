"""What is kept of the backward passes, one output after the other: sensitivities, or the gradients formed of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

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
        return not self.is_table and self.positions < self.p


class Collector(ABC):
    """Takes the gradients of one output after the other at some edges."""

    edges: Sequence[Edge]

    @abstractmethod
    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Keep the gradients of an output at my edges; None where it does not arrive."""


class _Products(Collector):
    """All uses of one source in products of one kind, with their positions side by side."""

    def __init__(self, tape: Tape, source: Source, size: Size) -> None:
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

    def _arranged(self, gradients: Sequence[Tensor | None]) -> Tensor | None:
        """(groups, samples, q, T) of all uses, with zeros where no gradient arrives; None if none does."""
        found = [
            None if gradient is None else site.arranged(gradient).to(self.size.dtype)
            for site, gradient in zip(self._sites, gradients)
        ]
        like = next((values for values in found if values is not None), None)
        if like is None:
            return None
        return _side_by_side(
            [
                like.new_zeros(*like.shape[:3], positions) if values is None else values
                for values, positions in zip(found, self.positions)
            ]
        )


class Sensitivities(_Products):
    """Inputs and sensitivities (groups, samples, outputs, q, T) for products of Grams."""

    values: Tensor | None = None

    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Keep the sensitivities of an output."""
        found = self._arranged(gradients)
        if self.values is None:
            if found is None:
                return
            groups, samples, q, positions = found.shape
            # Products want the positions last, but turning many small parts takes longer.
            if len(self.positions) > 1 and _features_last(found):
                room = found.new_empty(groups, samples, self.size.outputs, positions, q).transpose(3, 4)
            else:
                room = found.new_empty(groups, samples, self.size.outputs, q, positions)
            self.values = room
            self.values[:, :, :output] = 0
        self.values[:, :, output] = 0 if found is None else found


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

    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Form the gradients of an output."""
        found = self._arranged(gradients)
        if found is None:
            if self.gradient is not None:
                self.gradient[:, output] = 0
            return
        groups, samples, q, _ = found.shape
        if self.gradient is None:
            self.gradient = found.new_empty(samples, self.size.outputs, prod(self.shape))
            self.gradient[:, :output] = 0
        self._form(found, self.gradient[:, output])
        if self._with_bias:
            if self.bias is None:
                self.bias = found.new_zeros(samples, self.size.outputs, groups * q)
            self.bias[:, output] = found.sum(-1).transpose(0, 1).reshape(samples, -1)

    def _form(self, sensitivities: Tensor, target: Tensor) -> None:
        """Sum over positions of (sensitivity) x (input), written into (samples, entries)."""
        groups, samples, q, _ = sensitivities.shape
        if self.is_table:
            rows = target.zero_().view(samples, self.shape[0], q)
            index = self.inputs[:, :, None].expand(-1, -1, q)
            rows.scatter_add_(1, index, sensitivities[0].transpose(1, 2))
            return
        for group in range(groups):
            mine, weights = sensitivities[group], self.inputs[group]
            into = target.view(samples, groups, -1)[:, group]
            if self._sites[0].inputs_first:
                shaped = into.view(samples, -1, q)
                torch.bmm(weights.transpose(1, 2), mine.transpose(1, 2), out=shaped)
            else:
                torch.bmm(mine, weights, out=into.view(samples, q, -1))


class Sums(GradientCollector):
    """Per-sample gradients of a source that is added, multiplied or copied, summed over its uses."""

    def __init__(self, tape: Tape, source: Source, size: Size) -> None:
        self.edges = [(use.node, 0) for use in source.uses]
        self._tape, self._source, self._size = tape, source, size

    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of an output."""
        size, shape = self._size, self._source.shape
        for use, gradient in zip(self._source.uses, gradients):
            if gradient is None:
                continue
            values = per_sample_sum(self._tape, use, shape, size.samples, gradient)
            if self.gradient is None:
                self.gradient = values.new_zeros(size.samples, size.outputs, prod(shape), dtype=size.dtype)
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
