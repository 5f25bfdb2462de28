"""What is kept of the backward passes, one output after the other: sensitivities, or the gradients formed of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.broadcasts import per_sample_sum
from foretrain.empirical.autograd_graph.sites import ProductSite, Table, Use, is_product, product_site
from foretrain.empirical.autograd_graph.structure import Source
from foretrain.empirical.autograd_graph.tape import Edge, Tape
from foretrain.empirical.tangent_kernel.routes import Site


class Collector(ABC):
    """Takes the gradients of one output after the other at some edges."""

    edges: Sequence[Edge]

    @abstractmethod
    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Keep the gradients of an output at my edges; None where it does not arrive."""


class _Products(Collector):
    """All uses of one source in products of one kind, with their positions side by side."""

    def __init__(self, tape: Tape, source: Source, samples: int, outputs: int, dtype: torch.dtype) -> None:
        self._sites = [product_site(tape, use, source.shape, samples) for use in source.uses]
        self.edges = [(use.node, 0) for use in source.uses]
        self.shape, self.samples, self.outputs = source.shape, samples, outputs
        found = [site.inputs() for site in self._sites]
        together = torch.cat(found, -1) if found[0].ndim == 2 else _side_by_side(found)
        self.inputs = together.to(dtype) if together.is_floating_point() else together
        self.dtype = dtype
        self.positions = [values.shape[-1] for values in found]
        self.is_table = isinstance(self._sites[0], Table)  # of vectors that are looked up
        groups, p = (1, self.shape[0]) if self.is_table else (self.inputs.shape[0], self.inputs.shape[2])
        q = prod(self.shape) // (groups * p)
        self.site = Site(groups, p, q, sum(self.positions), self.is_table)  # sizes, for the choice of a way

    def _filled(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        """Zeros where no gradient arrives."""
        like = next(values for values in found if values is not None)
        return [
            like.new_zeros(*like.shape[:3], positions) if values is None else values
            for values, positions in zip(found, self.positions)
        ]

    def _arranged(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        pairs = zip(self._sites, gradients)
        return [
            None if gradient is None else site.arranged(gradient).to(self.dtype) for site, gradient in pairs
        ]


class Sensitivities(_Products):
    """Inputs and sensitivities (groups, samples, outputs, q, T) for products of Grams."""

    def __init__(self, tape: Tape, source: Source, samples: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__(tape, source, samples, outputs, dtype)
        self.values: Tensor | None = None

    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Keep the sensitivities of an output."""
        found = self._arranged(gradients)
        if self.values is None:
            like = next((values for values in found if values is not None), None)
            if like is None:
                return
            self.values = self._room(like)
            self.values[:, :, :output] = 0
        if any(values is not None for values in found):
            self.values[:, :, output] = _side_by_side(self._filled(found))
        else:
            self.values[:, :, output] = 0

    def _room(self, like: Tensor) -> Tensor:
        """Space for all outputs. Products want the positions last, but turning many small parts takes longer."""
        groups, samples, q, _ = like.shape
        positions = sum(self.positions)
        if len(self.positions) > 1 and _features_last(like):
            return like.new_empty(groups, samples, self.outputs, positions, q).transpose(3, 4)
        return like.new_empty(groups, samples, self.outputs, q, positions)


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

    @abstractmethod
    def gradient(self) -> Tensor | None:
        """(samples, outputs, entries); None if no gradient arrived."""


class FormedGradients(_Products, GradientCollector):
    """Per-sample gradients, formed in every backward pass so that no sensitivity needs to be kept.

    ``with_bias``: also those of a bias that is added to the same products.
    """

    def __init__(
        self,
        tape: Tape,
        source: Source,
        samples: int,
        outputs: int,
        dtype: torch.dtype,
        with_bias: bool = False,
    ) -> None:
        super().__init__(tape, source, samples, outputs, dtype)
        if not self.is_table:
            # (groups, samples, T, p): products run faster.
            self.inputs = self.inputs.transpose(2, 3).contiguous()
        self._with_bias = with_bias
        self._values: Tensor | None = None
        self.bias: Tensor | None = None

    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Form the gradients of an output."""
        found = self._arranged(gradients)
        like = next((values for values in found if values is not None), None)
        if like is None:
            if self._values is not None:
                self._values[:, output] = 0
            return
        groups, samples, q, _ = like.shape
        sensitivities = _side_by_side(self._filled(found))
        if self._values is None:
            self._values = like.new_empty(samples, self.outputs, prod(self.shape))
            self._values[:, :output] = 0
        self._form(sensitivities, self._values[:, output])
        if self._with_bias:
            if self.bias is None:
                self.bias = like.new_zeros(samples, self.outputs, groups * q)
            self.bias[:, output] = sensitivities.sum(-1).transpose(0, 1).reshape(samples, -1)

    def _form(self, sensitivities: Tensor, target: Tensor) -> None:
        """Sum over positions of (sensitivity) x (input), written into (samples, entries)."""
        groups, samples, q, _ = sensitivities.shape
        if self.is_table:
            rows = target.zero_().view(samples, self.shape[0], q)
            index = self.inputs[:, :, None].expand(-1, -1, q)
            rows.scatter_add_(1, index, sensitivities[0].transpose(1, 2))
            return
        inputs_first = self._sites[0].inputs_first
        for group in range(groups):
            mine, weights = sensitivities[group], self.inputs[group]
            into = target.view(samples, groups, -1)[:, group]
            if inputs_first:
                shaped = into.view(samples, -1, q)
                torch.bmm(weights.transpose(1, 2), mine.transpose(1, 2), out=shaped)
            else:
                torch.bmm(mine, weights, out=into.view(samples, q, -1))

    def gradient(self) -> Tensor | None:
        """(samples, outputs, entries); None if no gradient arrived."""
        return self._values


class Sums(GradientCollector):
    """Per-sample gradients of a source that is added, multiplied or copied, summed over its uses."""

    def __init__(self, tape: Tape, source: Source, samples: int, outputs: int, dtype: torch.dtype) -> None:
        self.edges = [(use.node, 0) for use in source.uses]
        self._tape, self._source, self._samples, self._outputs = tape, source, samples, outputs
        self._dtype = dtype
        self._sum: Tensor | None = None

    def take(self, output: int, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of an output."""
        for use, gradient in zip(self._source.uses, gradients):
            if gradient is None:
                continue
            values = per_sample_sum(self._tape, use, self._source.shape, self._samples, gradient)
            if self._sum is None:
                shape = (self._samples, self._outputs, prod(self._source.shape))
                self._sum = values.new_zeros(shape, dtype=self._dtype)
            self._sum[:, output] += values

    def gradient(self) -> Tensor | None:
        """(samples, outputs, entries); None if no gradient arrived."""
        return self._sum


def gradient_collectors(
    tape: Tape,
    source: Source,
    samples: int,
    outputs: int,
    dtype: torch.dtype,
    with_bias: bool = False,
) -> list[GradientCollector]:
    """Collectors for all uses of a source; uses of the same kind share one."""
    products: dict[tuple[type[ProductSite], int], list[Use]] = {}
    sums = []
    for use in source.uses:
        if is_product(tape, use.node, use.position):
            site = product_site(tape, use, source.shape, samples)
            products.setdefault((type(site), site.groups), []).append(use)
        else:
            sums.append(use)
    found: list[GradientCollector] = [
        FormedGradients(tape, replace(source, uses=uses), samples, outputs, dtype, with_bias)
        for uses in products.values()
    ]
    if sums:
        found.append(Sums(tape, replace(source, uses=sums), samples, outputs, dtype))
    return found
