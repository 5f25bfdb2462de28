"""A network written as what happens to its signal: the description that infinite-width kernels are computed from.

    x = data((8, 8))                                  # images of 8 x 8 positions, any number of channels
    h = x.convolution(3, padding=1, C_W=2).activation("relu")
    h = h + h.convolution(3, padding=1, C_W=2)        # a skip
    kernels(h.mean().linear(C_W=1), X)                # X: (N, 8, 8, channels)

Every method gives a new signal. What has no deterministic limit, or no rule, is refused where it is written down.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.layers import windows
from foretrain.theory.layers.channels import program
from foretrain.theory.layers.expressions import (
    Apply,
    Expression,
    Leaf,
    combination,
    evaluated,
    leaves,
    product,
)
from foretrain.theory.layers.fields import Field, Gain, Source
from foretrain.theory.layers.laws import (
    collapsed,
    has_formula,
    in_each_field,
    meet,
    moments,
    sorted_out,
    substituted,
    total,
    with_formulas,
)
from foretrain.theory.layers.linear_maps import (
    Arranged,
    ChannelPart,
    Data,
    Embedded,
    Joined,
    LinearMap,
    PositionMap,
    Superposed,
    Table,
)
from foretrain.theory.layers.normalisation import Mixed, Normalised, Trained
from foretrain.theory.layers.positions import Array, AxisMap, Indices, Weights
from foretrain.theory.layers.tiles import in_order, kernel_of
from foretrain.theory.layers.windowed import Grouped, NormOfFew, is_increasing, max_pooled

_numbers = itertools.count()
Sizes = int | Sequence[int]


def data(positions: Sizes = (), name: str = "input") -> Signal:
    """The input of a network: N inputs at these positions, with any number of channels."""
    return _signal(Data(positions=_sizes(positions), name=name))


def tokens(
    positions: Sizes, *, variance: float = 1.0, rate: float | None = None, padding: int | None = None
) -> Signal:
    """Tokens looked up in a table of Gaussian vectors; ``padding``: a token whose row is zero and stays so."""
    rate = variance if rate is None else rate
    field = Embedded(
        positions=_sizes(positions),
        name="embedding",
        variance=variance,
        rate=rate,
        padding=padding,
        gaussian=True,
        sources=_fresh(),
    )
    return _signal(field)


def table(
    positions: Sizes, *, variance: float = 0.0, rate: float | None = None, values: Any = None
) -> Signal:
    """Numbers that all inputs share: random parameters, or fixed ``values`` (positions..., channels)."""
    rate = (variance if values is None else 0.0) if rate is None else rate
    kept = None if values is None else np.asarray(values, dtype=np.float64)
    field = Table(
        positions=_sizes(positions),
        name="table",
        variance=variance,
        rate=rate,
        values=kept,
        gaussian=kept is None,
        sources=_fresh() if kept is None else frozenset(),
    )
    return _signal(field)


@dataclass(frozen=True)
class Block:
    """Some of the channels: their share of all, and what they hold; blocks of one ``mixture`` lie interleaved."""

    share: float
    law: Expression
    mixture: Hashable = None


@dataclass(frozen=True, eq=False)
class Signal:
    """What a layer holds: blocks of channels, each an expression of Gaussian fields, at some positions."""

    blocks: tuple[Block, ...]
    positions: tuple[int, ...]

    # Linear maps over channels

    def linear(
        self,
        *,
        C_W: float = 1.0,
        C_b: float = 0.0,
        lambda_W: float | None = None,
        lambda_b: float | None = None,
        name: str = "linear",
    ) -> Signal:
        """A linear layer over channels, the same at every position. Rates are C_W and C_b if not given."""
        return self.mapped(
            [None] * len(self.positions), C_W=C_W, C_b=C_b, lambda_W=lambda_W, lambda_b=lambda_b, name=name
        )

    def convolution(
        self,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes | Sequence[tuple[int, int]] = 0,
        dilation: Sizes = 1,
        mode: str = "zeros",
        name: str = "convolution",
        **law: Any,
    ) -> Signal:
        """A convolution over all axes of positions; law: C_W, C_b, lambda_W, lambda_b, shared, group."""
        each = [_each(value, len(self.positions)) for value in (kernel, stride, dilation)]
        sides = [(p, p) if isinstance(p, int) else p for p in _each(padding, len(self.positions))]
        axes = [
            windows.convolution(size, k, stride=s, padding=pad, dilation=d, mode=mode)
            for size, k, s, d, pad in zip(self.positions, *each, sides, strict=True)
        ]
        return self.mapped(axes, name=name, **law)

    def transposed_convolution(
        self,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        output_padding: Sizes = 0,
        name: str = "transposed convolution",
        **law: Any,
    ) -> Signal:
        """A transposed convolution; C_W counts a fan-in of channels times taps."""
        each = [
            _each(value, len(self.positions)) for value in (kernel, stride, padding, dilation, output_padding)
        ]
        axes = [
            windows.transposed_convolution(size, k, stride=s, padding=p, dilation=d, output_padding=o)
            for size, k, s, p, d, o in zip(self.positions, *each, strict=True)
        ]
        return self.mapped(axes, name=name, **law)

    def flatten(self, name: str = "flatten and linear", **law: Any) -> Signal:
        """Positions become channels of the linear layer that follows: one weight for every position and channel."""
        return self.mapped(
            [windows.flattened(size) for size in self.positions], removed="all", name=name, **law
        )

    def mapped(
        self,
        axes: Sequence[AxisMap | None],
        *,
        C_W: float = 1.0,
        C_b: float = 0.0,
        lambda_W: float | None = None,
        lambda_b: float | None = None,
        shared: bool = True,
        group: int | tuple[int, int] | None = None,
        removed: str | Sequence[int] = (),
        name: str = "linear",
    ) -> Signal:
        """Fresh weights over channels and taps.

        ``group``: how many channels each group reads, and how many it gives if these are not as many, where they
        stay few; 1 for a depthwise convolution.
        """
        gone = tuple(range(len(axes))) if removed == "all" else tuple(int(k) for k in removed)
        positions = _after(self.positions, axes, gone)
        options: dict[str, Any] = {
            "axes": tuple(axes),
            "removed": gone,
            "positions": positions,
            "name": name,
            "C_W": C_W,
            "C_b": C_b,
            "lambda_W": C_W if lambda_W is None else lambda_W,
            "lambda_b": C_b if lambda_b is None else lambda_b,
            "shared": shared,
        }
        if group is None:
            return _signal(LinearMap(inputs=(self._read(),), gaussian=True, sources=_fresh(), **options))

        def one(law: Expression) -> Expression:
            field, own = self._held(collapsed(law)), _fresh()
            sources: dict[str, Any] = {"own_sources": own, "sources": own | field.sources}
            both = (group, group) if isinstance(group, int) else group
            return Leaf(Grouped(inputs=(field,), group=both, **sources, **options))

        return self._each(one, positions)

    # Maps over positions

    def over_positions(
        self, axes: Sequence[Weights | None], removed: Sequence[int] = (), name: str = "pooling"
    ) -> Signal:
        """A fixed map along each axis of positions, the same for all channels."""
        gone = tuple(removed)

        def one(field: Field) -> Field:
            gaussian = field.gaussian and not any(gain.own_position for gain in field.gains)
            return PositionMap(
                inputs=(field,),
                axes=tuple(axes),
                removed=gone,
                positions=_after(self.positions, axes, gone),
                name=name,
                gaussian=gaussian,
                gains=field.gains if gaussian else (),
                sources=field.sources,
            )

        # A map that only picks positions, or fills some with zeros that a nonlinearity keeps, may as well act before
        # the nonlinearity, whose law then stays known.
        matrices = [axis.matrix_of_positions for axis in axes if axis is not None]
        counts = np.concatenate([[1], *(np.diff(matrix.indptr) for matrix in matrices)])
        picks = counts.max() == 1 and all((matrix.data == 1).all() for matrix in matrices)
        totals = [
            np.asarray(matrix.sum(axis=1)).ravel() for matrix in matrices
        ]  # what becomes of a one everywhere

        def change(law: Expression) -> Expression:
            if not leaves(law) and all(np.allclose(one, one[0], rtol=1e-12) for one in totals):
                return combination([(float(prod(one[0] for one in totals)), law)])
            zero = dict.fromkeys(leaves(law), np.zeros(1))
            inside = picks and (counts.min() == 1 or not np.any(evaluated(law, zero)[0]))
            return in_each_field(one)(law) if inside else Leaf(one(self._held(collapsed(law))))

        return self._each(change, _after(self.positions, axes, gone))

    def average_pool(
        self,
        kernel: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        name: str = "average pooling",
        **options: Any,
    ) -> Signal:
        """Means over windows; options: ceil_mode, count_include_pad, divisor, as torch has them."""
        strides = kernel if stride is None else stride
        each = [_each(value, len(self.positions)) for value in (kernel, strides, padding)]
        axes = [
            windows.average(size, k, stride=s, padding=p, **options)
            for size, k, s, p in zip(self.positions, *each, strict=True)
        ]
        return self.over_positions(axes, name=name)

    def max_pool(
        self,
        kernel: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        name: str = "max pooling",
    ) -> Signal:
        """Maxima over windows, as torch has them; an activation may stand before or after."""
        strides = kernel if stride is None else stride
        each = [_each(value, len(self.positions)) for value in (kernel, strides, padding, dilation)]
        found = [
            windows.maxima(size, k, s, p, d, ceil_mode)
            for size, k, s, p, d in zip(self.positions, *each, strict=True)
        ]
        return self.maxima(found, name)

    def maxima(self, found: Sequence[Indices], name: str = "max pooling") -> Signal:
        """Maxima over windows (k, outputs) of each axis; -1 for places that hold no position."""
        if all(len(one) == 1 for one in found):  # only picks positions: the law stays known
            axes = [windows.chosen(size, one[0]) for size, one in zip(self.positions, found, strict=True)]
            return self.over_positions(axes, name=name)

        def one(law: Expression) -> Expression:
            if not leaves(law):
                return law
            inner, functions = collapsed(law), list[Activation]()
            while isinstance(inner, Apply) and is_increasing(inner.activation):  # may as well follow
                functions, inner = [inner.activation, *functions], inner.inner
            pooled: Leaf | Apply = Leaf(max_pooled(inner, found, self.positions, name))
            for function in functions:
                pooled = Apply(function, pooled)
            return _drawable(pooled, f"{name} reads")

        return self._each(one, tuple(one.shape[1] for one in found))

    def mean(self, axes: Sequence[int] | None = None, name: str = "mean over positions") -> Signal:
        """The mean over some axes of positions, or all."""
        which = tuple(range(len(self.positions))) if axes is None else tuple(axes)
        maps = [windows.total(n, 1 / n) if k in which else None for k, n in enumerate(self.positions)]
        return self.over_positions(maps, which, name)

    def sum(self, axes: Sequence[int] | None = None, name: str = "sum over positions") -> Signal:
        """The sum over some axes of positions, or all."""
        which = tuple(range(len(self.positions))) if axes is None else tuple(axes)
        maps = [windows.total(n) if k in which else None for k, n in enumerate(self.positions)]
        return self.over_positions(maps, which, name)

    def take(self, axis: int, positions: int | Sequence[int], name: str = "some positions") -> Signal:
        """One position along an axis, which then goes, or several in the order given."""
        maps: list[Weights | None] = [None] * len(self.positions)
        size = self.positions[axis]
        wanted = [positions] if isinstance(positions, int) else positions
        maps[axis] = windows.chosen(size, np.array([k + size if k < 0 else k for k in wanted]))
        return self.over_positions(maps, (axis,) if isinstance(positions, int) else (), name)

    def broadcast(self, positions: Sizes) -> Signal:
        """The same at more positions: leading axes are new, axes of size 1 grow."""
        wanted = _sizes(positions)
        if wanted == self.positions:
            return self
        new = len(wanted) - len(self.positions)
        grown = self.arranged(tuple(range(len(self.positions))), (0,) * new + (1,) * len(self.positions))
        sizes = (1,) * new + self.positions
        maps = [None if a == b else Weights.of(np.ones((b, 1))) for a, b in zip(sizes, wanted, strict=True)]
        if any(a not in (1, b) for a, b in zip(sizes, wanted)):
            raise InputError(f"positions {self.positions} cannot be broadcast to {wanted}.")
        return grown.over_positions(maps, name="broadcast")

    def arranged(
        self, order: Sequence[int], groups: Sequence[int], split: Sequence[int] | None = None
    ) -> Signal:
        """Axes of positions in another order, then merged: each new axis holds so many of them (0: one of size 1).

        With ``split`` (sizes), each axis of the new order is split instead into as many axes as ``groups`` says.
        """
        order, groups = tuple(order), tuple(groups)
        sizes = iter([self.positions[k] for k in order])
        merged = (
            tuple(prod(next(sizes) for _ in range(count)) for count in groups)
            if split is None
            else tuple(split)
        )
        if order == tuple(range(len(order))) and merged == self.positions:
            return self

        def one(field: Field) -> Field:
            return Arranged(
                inputs=(field,),
                order=order,
                groups=groups,
                split=split is not None,
                positions=merged,
                name=field.name,
                gaussian=field.gaussian,
                gains=field.gains,
                sources=field.sources,
            )

        return self._each(in_each_field(one), merged)

    # Nonlinearities, sums, products

    def activation(self, function: Any) -> Signal:
        """A nonlinearity: a name, an activation, or a callable."""
        found = find_activation(function)
        if found.name == "linear":
            return self

        def one(law: Expression) -> Expression:
            if not leaves(law):  # a number, as gains of 0 or u - u leave it
                return combination([], float(found.value(evaluated(law, {})[0])))
            return _drawable(Apply(found, collapsed(law)), f"{found.label} follows")

        return self._each(one)

    def __add__(self, other: Signal | float) -> Signal:
        if not isinstance(other, Signal):
            return self._each(lambda law: combination([(1.0, law)], float(other)))
        first, second = _aligned(self, other)
        blocks = [
            replace(a, law=_added(a.law, b.law)) for a, b in zip(first.blocks, second.blocks, strict=True)
        ]
        return Signal(tuple(blocks), first.positions)

    def __mul__(self, other: Signal | float) -> Signal:
        if not isinstance(other, Signal):
            return self._each(lambda law: combination([(float(other), law)]))
        first, second = _aligned(self, other)
        blocks = [
            replace(a, law=_multiplied(a.law, b.law))
            for a, b in zip(first.blocks, second.blocks, strict=True)
        ]
        return Signal(tuple(blocks), first.positions)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Signal:
        return -1.0 * self

    def __sub__(self, other: Signal | float) -> Signal:
        return self + (-1.0) * other

    # Normalisation

    def layer_norm(self, *, epsilon: float = 1e-5, over_positions: bool = False, **rates: Any) -> Signal:
        """LayerNorm over channels; ``over_positions``: over channels and positions together (one group of GroupNorm).

        rates: gain, shift (rates of the trained gain and shift), own_position (one of each for every position).
        """
        return self._normalised(epsilon, True, over_positions)._with_rates(**rates)

    def group_norm(self, channels: int = 1, *, epsilon: float = 1e-5, **rates: Any) -> Signal:
        """A norm of groups of so many channels over their positions, where they stay few: InstanceNorm has 1."""

        def one(law: Expression) -> Expression:
            if not leaves(law):
                return combination([])
            argument = collapsed(law)
            sources = frozenset[Source]().union(*(field.sources for field in leaves(argument)))
            shared: dict[str, Any] = {"positions": self.positions, "name": "norm of few channels"}
            normed = NormOfFew(
                argument=argument, channels=channels, epsilon=epsilon, sources=sources, **shared
            )
            return _drawable(Leaf(normed), "a norm of few channels reads")

        return self._each(one)._with_rates(**rates)

    def rms_norm(self, *, epsilon: float = 1e-5, **rates: Any) -> Signal:
        """RMSNorm over channels: nothing is subtracted."""
        return self._normalised(epsilon, False, False)._with_rates(**rates)

    def batch_norm(
        self,
        *,
        epsilon: float = 1e-5,
        mean: float = 0.0,
        variance: float = 1.0,
        weight: float = 1.0,
        bias: float = 0.0,
        **rates: Any,
    ) -> Signal:
        """BatchNorm in eval mode, with statistics that are equal in all channels."""
        scale = 1 / np.sqrt(variance + epsilon)
        centred = scale * (self + (-mean)) if mean else float(scale) * self
        return centred.trained(weight, **rates) + bias if bias else centred.trained(weight, **rates)

    def _with_rates(
        self,
        *,
        weight: float = 1.0,
        bias: float = 0.0,
        gain: float = 0.0,
        shift: float = 0.0,
        own_position: bool = False,
    ) -> Signal:
        trained = self.trained(weight, gain=gain, shift=shift, own_position=own_position)
        return trained + bias if bias else trained

    def trained(
        self, weight: float = 1.0, *, gain: float = 0.0, shift: float = 0.0, own_position: bool = False
    ) -> Signal:
        """Times gains of the channels, all ``weight`` but trained at the rate ``gain``; shifts at ``shift``."""
        if not (gain or shift):
            return self if weight == 1 else weight * self

        def one(law: Expression) -> Expression:
            before = self._held(collapsed(law))
            field = moments(collapsed(combination([(weight, Leaf(before))]))) if weight else _zero(before)
            gaussian = field.gaussian
            coupled = gaussian and bool(gain) and bool(weight)
            gains = (*field.gains, *([Gain(gain / weight**2, own_position)] if coupled else []))
            return Leaf(
                Trained(
                    inputs=(field, before),
                    positions=field.positions,
                    name="gains",
                    gaussian=gaussian,
                    gains=gains if gaussian else (),
                    sources=field.sources,
                    shift_rate=shift,
                    gain_rate=0.0 if coupled else gain,
                    own_position=own_position,
                )
            )

        return self._each(one)

    def _normalised(self, epsilon: float, centred: bool, over_positions: bool) -> Signal:
        fields = [self._held(collapsed(block.law)) for block in self.blocks]
        gaussian = all(field.gaussian for field in fields)

        def one(field: Field) -> Field:
            return Normalised(
                inputs=(field, *fields),
                shares=tuple(block.share for block in self.blocks),
                positions=field.positions,
                name="norm",
                epsilon=epsilon,
                centred=centred,
                over_positions=over_positions,
                gaussian=gaussian,
                gains=field.gains if gaussian else (),
                sources=field.sources,
            )

        return replace(
            self, blocks=tuple(replace(b, law=Leaf(one(f))) for b, f in zip(self.blocks, fields, strict=True))
        )

    # Channels

    def channels(self, start: float, stop: float) -> Signal:
        """The channels from ``start`` to ``stop``, as shares of all: one half of a layer that is split in two."""
        found, edge = [], 0.0
        for blocks in self._segments():
            share = sum(block.share for block in blocks)
            first, last = max(start, edge), min(stop, edge + share)
            inside = (round((first - edge) / share, 12), round((last - edge) / share, 12))
            for block in blocks if last - first > 1e-12 else ():
                law = (
                    block.law
                    if inside == (0.0, 1.0)
                    else substituted(with_formulas(block.law), lambda one, i=inside: _part(one, *i))
                )
                weight = (last - first) / share / (stop - start)
                found.append(replace(block, share=weight * block.share, law=law))
            edge += share
        return Signal(tuple(found), self.positions)

    def _segments(self) -> list[list[Block]]:
        """Blocks that lie one after another, those that lie interleaved together."""
        numbered = itertools.groupby(enumerate(self.blocks), lambda one: one[1].mixture or (one[0],))
        return [[block for _, block in some] for _, some in numbered]

    def shuffled(self, groups: int) -> Signal:
        """The first channels of so many groups, then the second ones, and so on."""
        if len(self.blocks) == 1:
            return self
        parts = [self.channels(k / groups, (k + 1) / groups) for k in range(groups)]
        if not parts or any(len(part._segments()) > 1 for part in parts):
            raise NotSupportedError(
                "channels of different layers change their order: this has no rule. Measure it with ft.ensemble."
            )
        mixture = (next(_numbers),)
        blocks = [replace(b, share=b.share / groups, mixture=mixture) for part in parts for b in part.blocks]
        return Signal(tuple(blocks), self.positions)

    def _each(self, change: Any, positions: tuple[int, ...] | None = None) -> Signal:
        """Every block changed in the same way."""
        blocks = tuple(replace(block, law=change(block.law)) for block in self.blocks)
        return Signal(blocks, self.positions if positions is None else positions)

    def _read(self) -> Field:
        """The field whose moments a linear map reads."""
        fields = tuple(self._held(block.law) for block in self.blocks)
        if len(fields) == 1:
            return fields[0]
        return Mixed(
            inputs=fields,
            shares=tuple(block.share for block in self.blocks),
            positions=self.positions,
            name="concatenation",
            sources=frozenset().union(*(field.sources for field in fields)),
        )

    def _held(self, law: Expression) -> Field:
        """The field that holds the moments of an expression, which may be a number."""
        if leaves(law):
            return moments(law)
        return table(self.positions, values=np.full((*self.positions, 1), evaluated(law, {})[0])).field

    @property
    def field(self) -> Field:
        """What the signal is at the end of a network."""
        return self._read()

    @property
    def as_outputs(self) -> Signal:
        """The same signal, as one Gaussian field if it is one in each channel and all have the same kernel."""
        laws = [collapsed(block.law) for block in self.blocks]
        found = [law.field for law in laws if isinstance(law, Leaf)]
        if len(found) == len(laws) and all(_same_kernel(found[0], one) for one in found):
            return _signal(found[0])
        blocks = (replace(block, law=law) for block, law in zip(self.blocks, laws, strict=True))
        return Signal(tuple(blocks), self.positions)

    def inputs(self, x: Any) -> dict[Field, NDArray[Any]]:
        """Arrays (N, positions..., channels), or tokens (N, positions...), for the one input of the network."""
        fields = [one for one in in_order(self.field) if isinstance(one, Data | Embedded)]
        values = np.asarray(x)
        if len(fields) != 1:
            raise InputError(f"the network has {len(fields)} inputs: it must have one.")
        trailing = fields[0].positions if isinstance(fields[0], Embedded) else (*fields[0].positions, None)
        if values.ndim != 1 + len(trailing) or any(
            want not in (None, n) for n, want in zip(values.shape[1:], trailing)
        ):
            wanted = ", ".join("channels" if want is None else str(want) for want in trailing)
            raise InputError(f"`x` has shape {values.shape}, but the network takes (N, {wanted}).")
        return {fields[0]: values if values.dtype.kind in "iu" else values.astype(np.float64)}


def concatenated(parts: Sequence[Signal], shares: Sequence[float] | None = None) -> Signal:
    """Channels of several signals side by side; ``shares``: how many channels each has, or in which proportion."""
    weights = np.ones(len(parts)) if shares is None else np.asarray(shares, dtype=np.float64)
    weights = weights / weights.sum()
    blocks = [
        replace(b, share=float(w) * b.share, mixture=b.mixture and (number, b.mixture))
        for number, (w, part) in enumerate(zip(weights, parts, strict=True))
        for b in part.blocks
    ]
    return Signal(tuple(blocks), parts[0].positions)


def joined(parts: Sequence[Signal], axis: int = 0) -> Signal:
    """Signals one after another along an axis of positions, such as a class token before the others."""
    fields = [part._read() for part in parts]
    if any(
        meet(a, b) for a, b in itertools.combinations(fields, 2)
    ):  # the sum of all, each with zeros around it
        ends = np.cumsum([0] + [part.positions[axis] for part in parts])
        padded = []
        for part, start, stop in zip(parts, ends, ends[1:]):
            order = np.where((there := np.arange(ends[-1]) - start) < stop - start, there, -1)
            maps: list[Weights | None] = [None] * len(part.positions)
            maps[axis] = windows.chosen(stop - start, np.maximum(order, -1))
            padded.append(part.over_positions(maps, name="concatenation"))
        return sum(padded[1:], start=padded[0])
    positions = list(fields[0].positions)
    positions[axis] = sum(field.positions[axis] for field in fields)
    return _signal(
        Joined(
            inputs=tuple(fields),
            axis=axis,
            positions=tuple(positions),
            name="concatenation",
            gaussian=all(field.gaussian and not field.gains for field in fields),
            sources=frozenset().union(*(field.sources for field in fields)),
        )
    )


def _drawable(law: Leaf | Apply, what: str) -> Expression:
    """The expression; refused if its moments have no formula, and its channels are not known either."""
    if not has_formula(law):
        try:
            program(law)
        except NotSupportedError as error:
            raise NotSupportedError(f"{what} {error}") from None
    return law


def _signal(field: Field) -> Signal:
    return Signal((Block(1.0, Leaf(field)),), field.positions)


def _fresh() -> frozenset[Source]:
    return frozenset({Source(next(_numbers))})


def _sizes(value: Sizes) -> tuple[int, ...]:
    return (int(value),) if isinstance(value, int) else tuple(int(one) for one in value)


def _each(value: Any, count: int) -> list[Any]:
    """One value for each axis."""
    values = [value] * count if isinstance(value, int | str) else list(value)
    if len(values) != count:
        raise InputError(f"{count} axes of positions need {count} numbers, not {values}.")
    return values


def _after(
    positions: tuple[int, ...], axes: Sequence[AxisMap | None], removed: Sequence[int]
) -> tuple[int, ...]:
    """Positions after a map of each axis."""
    found = []
    for k, (size, one) in enumerate(zip(positions, axes, strict=True)):
        if one is not None:
            if one.size != size:
                raise InputError(f"a map of {one.size} positions meets {size}.")
            size = one.matrix_of_positions.shape[0] if isinstance(one, Weights) else one.source.shape[1]
        if k not in removed:
            found.append(int(size))
    return tuple(found)


def _zero(field: Field) -> Field:
    """A field of zeros with the positions of another: what a gain of 0 leaves."""
    return Superposed(
        inputs=(field,),
        weights=(0.0,),
        positions=field.positions,
        name=field.name,
        gaussian=True,
        sources=field.sources,
    )


@lru_cache(maxsize=8192)
def _part(field: Field, start: float, stop: float) -> Field:
    """Some of the channels of a field."""
    sources = frozenset(
        Source(s.layer, s.start + start * (s.stop - s.start), s.start + stop * (s.stop - s.start))
        for s in field.sources
    )
    return ChannelPart(
        inputs=(field,),
        positions=field.positions,
        name=field.name,
        gaussian=field.gaussian,
        gains=field.gains,
        sources=sources,
    )


def _same_kernel(a: Field, b: Field) -> bool:
    """Whether two Gaussian fields differ in nothing but their random numbers."""
    if a is b:
        return True
    if type(a) is not type(b) or not isinstance(a, LinearMap | Superposed | ChannelPart):
        return False
    for name in {one.name for one in fields(a)} - {"name", "sources"}:
        one, two = (value if isinstance(value := getattr(part, name), tuple) else (value,) for part in (a, b))
        if len(one) != len(two) or not all(_same(x, y) for x, y in zip(one, two, strict=True)):
            return False
    return True


def _same(x: Any, y: Any) -> bool:
    """Whether two settings of a field, or fields that it reads, are the same for its kernel."""
    if isinstance(x, Field) and isinstance(y, Field):
        return _same_kernel(x, y)
    return x is y or (isinstance(x, int | float) and x == y)


def _added(first: Expression, second: Expression) -> Expression:
    """The sum of two expressions, of which one may be a number."""
    both = leaves(first) and leaves(second)
    return total(first, second) if both else collapsed(combination([(1.0, first), (1.0, second)]))


def _multiplied(first: Expression, second: Expression) -> Expression:
    """The product of two expressions; branches that start at zero are numbers."""
    for one, other in ((first, second), (second, first)):
        if not leaves(one):
            return combination([(float(evaluated(one, {})[0]), other)])
    return sorted_out(product([first, second]))


def _aligned(first: Signal, second: Signal) -> tuple[Signal, Signal]:
    """Both at the same positions, and with the same blocks of channels."""
    positions = np.broadcast_shapes(first.positions, second.positions)
    first, second = first.broadcast(positions), second.broadcast(positions)
    edges = sorted({round(edge, 12) for one in (first, second) for edge in _edges(one)})
    same = [(b.share, b.mixture) for b in first.blocks] == [(b.share, b.mixture) for b in second.blocks]
    if same:
        return first, second
    if any(block.mixture for block in (*first.blocks, *second.blocks)):
        raise NotSupportedError(
            "interleaved channels meet others: this has no rule. Measure it with ft.ensemble."
        )
    cut = []
    for one in (first, second):
        parts = [one.channels(a, b) for a, b in itertools.pairwise(edges)]
        shares = [b - a for a, b in itertools.pairwise(edges)]
        cut.append(concatenated(parts, shares))
    return cut[0], cut[1]


def _edges(signal: Signal) -> list[float]:
    return [0.0, *np.cumsum([block.share for block in signal.blocks]).tolist()]


def kernels(output: Signal, x: Any, x2: Any = None) -> Array:
    """NNGP and NTK of a signal, stacked: (2, pairs of positions..., N, N2)."""
    found = kernel_of(output.field, output.inputs(x), None if x2 is None else output.inputs(x2))
    return np.stack([found.S, found.Theta])
