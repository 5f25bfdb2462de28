"""One chunk of samples: a backward pass per output, and from them the factors of the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.structure import Block, Source
from foretrain.empirical.autograd_graph.tape import Edge, Tape
from foretrain.empirical.tangent_kernel.collectors import (
    Collector,
    FormedGradients,
    GradientCollector,
    Sensitivities,
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
from foretrain.empirical.tangent_kernel.routes import Way

Key = tuple[str, ...]


@dataclass(frozen=True)
class Share:
    """A block of parameters, the way it takes, the rate of each parameter, and which bias goes with it."""

    block: Block
    way: Way
    rates: Mapping[str, float]
    dtype: torch.dtype  # of the kernel
    bias: str | None = None
    piece: int | None = None  # which part of a parameter that is used in parts
    late: bool = False  # per-sample gradients are formed when they are multiplied

    @property
    def key(self) -> Key:
        """What tells the share from others in every chunk; a parameter comes first."""
        name = self.block.parameters[0]
        return (name,) if self.piece is None else (name, f"part {self.piece}")

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

    def formed(self, parameters: Mapping[str, Tensor]) -> list[tuple[Key, str, int]]:
        """Key, parameter and entries of all gradients that are formed."""
        bias: list[tuple[Key, str, int]] = []
        if self.bias is not None:
            bias.append(((self.bias,), self.bias, parameters[self.bias].numel()))
        if self.way in ("gram", "pairs"):
            return []
        if self.late:
            return bias
        if not self.block.direct:
            return [((name,), name, parameters[name].numel()) for name in self.block.parameters]
        return [(self.key, self.block.parameters[0], prod(self.block.sources[0].shape)), *bias]

    @property
    def place(self) -> tuple[str, int | None]:
        """The first parameter and which part of it."""
        return self.block.parameters[0], self.piece

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters whose contribution is in the factor."""
        return self.block.parameters if self.bias is None else (*self.block.parameters, self.bias)


class BlockCapture:
    """All that a block needs of a chunk, and its factors once the backward passes are done."""

    def __init__(
        self, tape: Tape, share: Share, parameters: Mapping[str, Tensor], samples: int, outputs: int
    ) -> None:
        self.share = share
        self._tape, self._parameters = tape, parameters
        self._samples, self._outputs = samples, outputs
        self._kept: Sensitivities | None = None
        self._formed: list[tuple[Source, GradientCollector]] = []
        if share.way in ("gram", "pairs") or share.late:
            self._kept = Sensitivities(tape, share.block.sources[0], samples, outputs, share.dtype)
        else:
            self._formed = [
                (source, collector)
                for source in share.block.sources
                for collector in gradient_collectors(
                    tape, source, samples, outputs, share.dtype, with_bias=share.bias is not None
                )
            ]

    @property
    def collected(self) -> Sequence[Collector]:
        """The collectors of all sources."""
        return [collector for _, collector in self._formed] if self._kept is None else [self._kept]

    def factors(self, trace: bool, many: bool = False) -> dict[Key, Factor]:
        """The block's factors; a block where no gradient arrives may have none.

        ``many``: the chunk meets so many samples that it pays to look for outputs that can be summed before.
        """
        if self._kept is not None and self.share.late:
            return self._late(self._kept, trace)
        if self._kept is not None:
            kept = self._of_products(self._kept, trace, many)
            return {} if kept is None else {self.share.key: kept}
        if not self.share.block.direct:
            return {(name,): self._rows(values, trace) for name, values in self._derived().items()}
        found: dict[Key, Factor] = {self.share.key: self._rows(self._direct(), trace)}
        if self.share.bias is not None:
            found[self.share.bias,] = self._rows(self._bias(), trace)
        return found

    def _of_products(self, kept: Sensitivities, trace: bool, many: bool) -> Factor | None:
        values = kept.values
        if values is None:
            return None
        outputs = None
        is_gram = self.share.way == "gram"
        if trace and many and is_gram and (apart := separated(values.squeeze(-1))) is not None:
            own, outputs = apart
            values = own[..., None]
        elif trace:  # outputs count as features
            groups, samples, count, q, positions = values.shape
            values = values.reshape(groups, samples, 1, count * q, positions)
        if self.share.way == "pairs":
            return Pairs(kept.inputs, values, self._rate(), self._scale())
        bias_rate = 0.0 if self.share.bias is None else self.share.rates[self.share.bias]
        inputs = kept.inputs.squeeze(-1)
        return Grams(inputs, values.squeeze(-1), self._rate(), bias_rate, self._scale(), outputs)

    def _late(self, kept: Sensitivities, trace: bool) -> dict[Key, Factor]:
        values = kept.values
        if values is None:
            return {}
        rows = 1 if trace else self._outputs
        inputs = kept.inputs.transpose(2, 3).contiguous()
        found: dict[Key, Factor] = {
            self.share.key: LateGradients(inputs, values, rows, sqrt(self._rate()) * self._scale())
        }
        if self.share.bias is not None:
            groups, samples, outputs, q, _ = values.shape
            summed = values.sum(-1).permute(1, 2, 0, 3).reshape(samples, outputs, groups * q)
            found[self.share.bias,] = self._rows(summed * sqrt(self.share.rates[self.share.bias]), trace)
        return found

    def _rows(self, gradients: Tensor, trace: bool) -> Gradients:
        rows = 1 if trace else self._outputs
        return Gradients(gradients.reshape(self._samples * rows, -1), rows)

    def _rate(self) -> float:
        (name,) = self.share.block.parameters
        return self.share.rates[name]

    def _scale(self) -> float:
        (source,) = self.share.block.sources
        assert source.scale is not None
        return source.scale

    def _direct(self) -> Tensor:
        found = [values for _, c in self._formed if (values := c.gradient()) is not None]
        if not found:
            return self._zeros(prod(self.share.block.sources[0].shape))
        total = found[0] if len(found) == 1 else torch.stack(found).sum(0)
        root = sqrt(self._rate()) * self._scale()
        return total if root == 1 else total.mul_(root)

    def _bias(self) -> Tensor:
        assert self.share.bias is not None
        ((_, collector),) = self._formed
        assert isinstance(collector, FormedGradients)
        if collector.bias is None:
            return self._zeros(self._parameters[self.share.bias].numel())
        return collector.bias * sqrt(self.share.rates[self.share.bias])

    def _derived(self) -> dict[str, Tensor]:
        """Gradients at the sources, carried down to the parameters they are made of."""
        names = self.share.block.parameters
        totals = {name: self._zeros(self._parameters[name].numel()) for name in names}
        for source, collector in self._formed:
            gradient = collector.gradient()
            if gradient is None:
                continue
            cotangents = gradient.reshape(-1, *source.shape).to(self._tape.dtype_at(source.edges[0]))
            pulled = self._tape.pull_back(source.edges[0], [self._parameters[n] for n in names], cotangents)
            for name, part in zip(names, pulled):
                if part is not None:
                    totals[name] += part.reshape(totals[name].shape)
        return {name: totals[name] * sqrt(self.share.rates[name]) for name in names}

    def _zeros(self, entries: int) -> Tensor:
        shape = (self._samples, self._outputs, entries)
        return self._tape.outputs.new_zeros(shape, dtype=self.share.dtype)


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
    cotangents = (_unit(tape.outputs, output) for output in outputs)
    for number, gradients in enumerate(tape.gradients_of_many(edges, cotangents)):
        for taker in takers:
            taker.take(number, [gradients[place[edge]] for edge in taker.edges])
        arrived = ((edge, gradients[place[edge]]) for edge in silent)
        heard |= {edge for edge, gradient in arrived if gradient is not None and bool(gradient.any())}
    return heard


def _unit(outputs: Tensor, output: int) -> Tensor:
    """The cotangent of one output of all samples."""
    cotangent = torch.zeros_like(outputs)
    cotangent[:, output] = 1
    return cotangent
