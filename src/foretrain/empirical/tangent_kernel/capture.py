"""One chunk of samples: a backward pass per output, and from them the factors of the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod, sqrt
from typing import Literal

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.structure import Block, Source
from foretrain.empirical.autograd_graph.tape import Edge, Tape
from foretrain.empirical.tangent_kernel.collectors import (
    Collector,
    FormedGradients,
    GradientCollector,
    Sensitivities,
    Size,
    gradient_collectors,
)
from foretrain.empirical.tangent_kernel.factors import (
    Factor,
    Gradients,
    Grams,
    LateGradients,
    Pairs,
    separated,
)

Key = tuple[str, ...]
Way = Literal["gram", "pairs", "gradient", "sum", "derived", "per sample", "unused"]


@dataclass(frozen=True, eq=False)
class Counted:
    """The parameters that count, with the rate of each and the label under which its contribution is summed."""

    parameters: Mapping[str, Tensor]
    rates: Mapping[str, float]
    labels: Mapping[str, str]

    @cached_property
    def dtype(self) -> torch.dtype:
        """That of the kernel: the widest of the parameters, single at least, which sums of many products need."""
        return reduce(torch.promote_types, (value.dtype for value in self.parameters.values()), torch.float32)


@dataclass(frozen=True)
class Share:
    """A block of parameters, the way it takes, and which bias goes with it."""

    block: Block
    way: Way
    counted: Counted
    bias: str | None = None
    piece: int | None = None  # which part of a parameter that is used in parts
    late: bool = False  # per-sample gradients are formed when they are multiplied

    @property
    def keeps_sensitivities(self) -> bool:
        """Whether the sensitivities of all outputs are kept, not gradients formed of them."""
        return self.way in ("gram", "pairs") or self.late

    @property
    def key(self) -> Key:
        """What tells the share from others in every chunk; a parameter comes first."""
        name = self.block.parameters[0]
        return (name,) if self.piece is None else (name, f"part {self.piece}")

    @property
    def place(self) -> tuple[str, int | None]:
        """The first parameter and which part of it."""
        return self.block.parameters[0], self.piece

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters whose contribution is in the factor."""
        return self.block.parameters if self.bias is None else (*self.block.parameters, self.bias)

    def goes_with(self, other: Share) -> bool:
        """Whether the factors of another graph can be multiplied with mine."""
        mine, its = self.block, other.block
        layouts = [source.made for source in mine.sources], [source.made for source in its.sources]
        return (
            mine.parameters == its.parameters
            and mine.direct == its.direct
            and self.bias == other.bias
            and (not mine.direct or layouts[0] == layouts[1])
        )

    def formed(self) -> list[tuple[Key, str, int]]:
        """Key, parameter and entries of all gradients that are formed."""
        parameters = self.counted.parameters
        if self.way in ("gram", "pairs"):
            return []
        if not self.block.direct and not self.late:
            return [((name,), name, parameters[name].numel()) for name in self.block.parameters]
        found: list[tuple[Key, str, int]] = []
        if not self.late:
            found.append((self.key, self.block.parameters[0], prod(self.block.sources[0].shape)))
        if self.bias is not None:
            found.append(((self.bias,), self.bias, parameters[self.bias].numel()))
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
            if share.late:
                return self._late(self._kept.inputs, self._kept.values, trace)
            return {share.key: self._of_products(self._kept.inputs, self._kept.values, trace, many)}
        if not share.block.direct:
            return {(name,): self._rows(values, trace) for name, values in self._derived().items()}
        found: dict[Key, Factor] = {share.key: self._rows(self._direct(), trace)}
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

    def _late(self, inputs: Tensor, values: Tensor, trace: bool) -> dict[Key, Factor]:
        share, rows = self.share, 1 if trace else self._size.outputs
        root = self._root(share.block.parameters[0]) * self._scale()
        turned = inputs.transpose(2, 3).contiguous()
        found: dict[Key, Factor] = {share.key: LateGradients(turned, values, rows, root)}
        if share.bias is not None:
            groups, samples, outputs, q, _ = values.shape
            summed = values.sum(-1).permute(1, 2, 0, 3).reshape(samples, outputs, groups * q)
            found[share.bias,] = self._rows(summed * self._root(share.bias), trace)
        return found

    def _direct(self) -> Tensor:
        """The gradients of the only source, from all its uses."""
        found = [collector.gradient for _, collector in self._formed if collector.gradient is not None]
        if not found:
            return self._zeros(self.share.block.parameters[0], prod(self.share.block.sources[0].shape))
        total = found[0] if len(found) == 1 else torch.stack(found).sum(0)
        root = self._root(self.share.block.parameters[0]) * self._scale()
        return total if root == 1 else total.mul_(root)

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
    """One backward pass per output; its gradients go to all collectors that asked for them.

    Gives those of the ``silent`` edges where a gradient arrives after all.
    """
    heard: set[Edge] = set()
    takers = [collector for capture in captures for collector in capture.collected]
    edges = list(dict.fromkeys([*(edge for taker in takers for edge in taker.edges), *silent]))
    place = {edge: i for i, edge in enumerate(edges)}
    cotangents = (unit_cotangent(tape.outputs, slice(None), output) for output in outputs)
    for number, gradients in enumerate(tape.gradients_of_many(edges, cotangents)):
        for taker in takers:
            taker.take(number, [gradients[place[edge]] for edge in taker.edges])
        arrived = ((edge, gradients[place[edge]]) for edge in silent)
        heard |= {edge for edge, gradient in arrived if gradient is not None and bool(gradient.any())}
    return heard


def unit_cotangent(outputs: Tensor, samples: int | slice, output: int) -> Tensor:
    """The cotangent (samples, outputs) of one output of some samples."""
    cotangent = torch.zeros_like(outputs)
    cotangent[samples, output] = 1
    return cotangent
