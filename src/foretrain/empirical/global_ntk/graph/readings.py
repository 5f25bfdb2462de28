"""Weights and biases read at all their uses in a graph: what they multiply, and where their products are.

A weight multiplies the rows v of its inputs, a bias that is added multiplies ones. Those whose products go into the
same sum and nowhere else share the sensitivities there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.sites import (
    Convolution,
    LeftFactor,
    ProductSite,
    Table,
    TransposedConvolution,
    UnreadableError,
    Use,
    is_product,
    product_site,
)
from foretrain.empirical.autograd_graph.structure import Block, Source, analyse
from foretrain.empirical.autograd_graph.tape import Edge, Probe, Tape

_ADDED_LAST = (
    ("AddBackward0", 0),
    ("AddBackward0", 1),
    ("AddmmBackward0", 0),
    ("LinearBackward0", 2),
    ("NativeLayerNormBackward0", 2),
    ("SubBackward0", 0),
    ("SubBackward0", 1),
)
_ADDED_TO_CHANNELS = (
    ("ConvolutionBackward0", 2),
    ("NativeBatchNormBackward0", 2),
    ("NativeGroupNormBackward0", 2),
)
_RESHAPED = ("ReshapeAliasBackward0", "UnsafeViewBackward0", "ViewBackward0")


class _Bias(ProductSite):
    """A bias: the weight of an input that is one."""

    inputs_first = True

    def inputs(self) -> Tensor:
        """Ones, times the number that the bias is multiplied by, where it is added."""
        shape = self.tape.shape_at((self.use.node, 0))
        like = self.tape.outputs.new_zeros(()).expand(shape)
        arranged = self.arranged(like)
        return arranged[:, :, :1].new_full((*arranged.shape[:2], 1, arranged.shape[3]), self._factor())

    def _factor(self) -> float:
        name, node, position = self.tape.names[self.use.node], self.use.node, self.use.position
        if name == "AddmmBackward0":
            return float(self.tape.saved(node, "beta"))
        if name in ("AddBackward0", "SubBackward0") and position == 1:
            return float(self.tape.saved(node, "alpha")) * (-1 if name.startswith("Sub") else 1)
        return 1.0


class LastAxisBias(_Bias):
    """Added along the last axis of a result."""

    def arranged(self, gradient: Tensor) -> Tensor:
        """The gradient, position by position."""
        features = self.shape[-1]
        after, rest = divmod(self.use.axis.after, features)
        if rest or gradient.shape[-1] != features:
            raise UnreadableError("the samples are not along the rows that it is added to")
        split = gradient.reshape(self.use.axis.before, self.samples, after, features)
        return split.permute(1, 3, 0, 2).reshape(1, self.samples, features, -1)


class ChannelBias(_Bias, Convolution):
    """Added along the channels of images; of a convolution in groups, group by group."""

    def __init__(self, tape: Tape, use: Use, shape: Sequence[int], samples: int) -> None:
        ProductSite.__init__(self, tape, use, shape, samples)
        plain = tape.names[use.node] == "ConvolutionBackward0" and not tape.saved(use.node, "transposed")
        self.groups = int(tape.saved(use.node, "groups")) if plain else 1


@dataclass(frozen=True)
class Reading:
    """A parameter, or a part of one, in all its uses, in the order of the forward pass."""

    parameter: str
    scale: float
    readers: Sequence[ProductSite]
    edges: tuple[Edge, ...]  # where the sensitivities of every use are found

    @property
    def groups(self) -> int:
        """Of channels that are multiplied apart."""
        return self.readers[0].groups

    @property
    def is_bias(self) -> bool:
        """Whether it is added and multiplies nothing."""
        return isinstance(self.readers[0], _Bias)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for readings whose sensitivities are the same numbers in the same order."""
        first = self.readers[0]
        kinds = (LeftFactor, TransposedConvolution, Convolution, Table)
        kind = next((known.__name__ for known in kinds if isinstance(first, known)), "rows")
        axes = tuple((reader.use.axis.before, reader.use.axis.after) for reader in self.readers)
        return kind, self.groups, first.samples, self.edges, axes

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the tensors at the edges, use by use."""
        return [self.readers[0].tape.shape_at(edge) for edge in self.edges]

    @cached_property
    def _products(self) -> list[tuple[int, ...]]:
        """Shapes of the products themselves, which have the same entries in the same order."""
        return [reader.tape.shape_at((reader.use.node, 0)) for reader in self.readers]

    def arranged(self, group: int, gradients: Sequence[Tensor]) -> Tensor:
        """Blocks of gradients (k, *shape) at the edges as (k, samples, positions of all uses, features)."""
        blocks = [block.reshape(len(block), *shape) for block, shape in zip(gradients, self._products)]
        if self._is_loop:
            return torch.stack(blocks, 2)
        each = [_arranged(reader, block)[:, group] for reader, block in zip(self.readers, blocks)]
        return torch.cat(each, -1).transpose(2, 3)

    def placed(self, group: int, changes: Tensor) -> list[Tensor]:
        """The transpose: changes (k, samples * positions * features) put at the edges, zeros in other groups."""
        count = len(changes)
        if self._is_loop:
            rows = changes.reshape(count, self.readers[0].samples, len(self.readers), -1)
            return [part.reshape(count, *shape) for part, shape in zip(rows.unbind(2), self.shapes)]
        places = [changes.new_zeros(count, *shape, requires_grad=True) for shape in self.shapes]
        with torch.enable_grad():
            found = self.arranged(group, places)
        return list(torch.autograd.grad(found, places, changes.reshape(found.shape)))

    @cached_property
    def _is_loop(self) -> bool:
        """Whether all uses are products (samples, features), as in a loop over time, which need no rearrangement."""
        kind, *_, axes = self.key
        samples, products = self.readers[0].samples, {*self._products}
        first = self._products[0]
        plain = len(products) == 1 and first[0] == samples and len(first) == 2 and {*axes} == {(1, first[1])}
        return bool(kind == "rows" and plain)

    def inputs(self, group: int) -> Tensor:
        """What the parameter multiplies, (samples, positions of all uses, columns)."""
        found = [reader.inputs() for reader in self.readers]
        if isinstance(self.readers[0], Table):
            # A column for every row of a table that occurs, one where it is looked up.
            looked_up = torch.cat(found, -1)
            distinct, place = torch.unique(looked_up, return_inverse=True)
            columns = self.readers[0].tape.outputs.new_zeros(*looked_up.shape, len(distinct))
            return columns.scatter_(-1, place[..., None], self.scale)
        rows = torch.cat([values[group] for values in found], -1).transpose(1, 2)
        return rows * self.scale if self.scale != 1 else rows


def _arranged(reader: ProductSite, block: Tensor) -> Tensor:
    if isinstance(reader, TransposedConvolution):  # reads the memory of each image in its own way
        return torch.stack([reader.arranged(gradient) for gradient in block])
    found: Tensor = torch.func.vmap(reader.arranged)(block)
    return found


def readings(tape: Tape, parameters: Mapping[str, Tensor], probe: Probe, states: Set[Edge]) -> list[Reading]:
    """All parameters of the graph that are weights of products or biases, as the samples of the probe show them.

    ``states``: where the graph of interest ends; what lies above serves the tape alone.
    """
    structure = analyse(tape, parameters, probe)
    unreadable = {*structure.unreadable}
    found: list[Reading] = []
    for block in structure.blocks:
        reading = _reading(tape, block, probe.samples, states)
        if reading is None:
            unreadable |= {*block.parameters}
        else:
            found.append(reading)
    return [reading for reading in found if reading.parameter not in unreadable]


def _reading(tape: Tape, block: Block, samples: int, states: Set[Edge]) -> Reading | None:
    """A block as a reading; None if it is anything but one weight or one bias."""
    if not block.direct:
        return None
    (source,) = block.sources
    assert source.scale is not None
    uses = sorted(source.uses, key=lambda use: tape.nodes[use.node]._sequence_nr())
    try:
        readers = [_reader(tape, use, source, samples) for use in uses]
    except UnreadableError:
        return None
    kinds = {(r.inputs_first, r.groups, isinstance(r, Table), isinstance(r, _Bias)) for r in readers}
    if len(kinds) > 1:
        return None
    edges = tuple(_last_sum(tape, (use.node, 0), states) for use in uses)
    return Reading(block.parameters[0], source.scale, readers, edges)


def _reader(tape: Tape, use: Use, source: Source, samples: int) -> ProductSite:
    place = tape.names[use.node], use.position
    if is_product(tape, use.node, use.position):
        return product_site(tape, use, source.shape, samples)
    if place in _ADDED_TO_CHANNELS:
        return ChannelBias(tape, use, source.shape, samples)
    if place in _ADDED_LAST and source.shape and source.shape[-1:] == tuple(s for s in source.shape if s > 1):
        return LastAxisBias(tape, use, source.shape, samples)
    raise UnreadableError("it is neither a weight nor a bias")


def _last_sum(tape: Tape, edge: Edge, states: Set[Edge]) -> Edge:
    """The last sum that a product goes into alone, as it is or in another shape: the gradient there is its own."""
    while True:
        users = tape.users.get(edge, ())
        if len(users) != 1 or edge in states:
            return edge
        ((node, position),) = users
        added = tape.names[node] == "AddBackward0" and tape.shape_at((node, 0)) == tape.shape_at(edge)
        plain = added and (position == 0 or tape.saved(node, "alpha") == 1)
        if not plain and tape.names[node] not in _RESHAPED:
            return edge
        edge = (node, 0)
