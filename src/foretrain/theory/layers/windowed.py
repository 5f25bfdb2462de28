"""Layers of few: maxima over windows, convolutions and norms in which few channels meet (architectures, 3, 4, 6).

What they give is not Gaussian, and what follows needs its law: each has a rule for its channels (a step, see
``channels``). The moments of a convolution of few channels are those of any convolution; the maximum of two
Gaussians has a closed form; all other moments are means over draws (see ``drawn``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from foretrain.activations import Activation, activation
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers.channels import (
    Node,
    Parameter,
    Place,
    Push,
    Step,
    added,
    cosines,
    node_of,
    per_channel,
    picked,
    step_of,
)
from foretrain.theory.layers.expressions import Apply, Elementwise, Expression, Leaf, Sum, leaves
from foretrain.theory.layers.fields import Field, Source
from foretrain.theory.layers.linear_maps import LinearMap, PositionMap
from foretrain.theory.layers.positions import Array, Indices, Taps, Weights
from foretrain.theory.layers.windows import together


@dataclass(frozen=True, eq=False, kw_only=True)
class WithoutMoments(Field):
    """A field that is known channel by channel: its moments have no rule of their own."""

    argument: Expression


@dataclass(frozen=True, eq=False, kw_only=True)
class MaxPooled(WithoutMoments):
    """The maximum of a law over windows; for each axis (members, outputs) positions, -1 for none."""

    windows: tuple[Indices, ...]
    sizes: tuple[int, ...]  # positions of what is pooled


@step_of.register
def _(of: MaxPooled, node: Node) -> Step:
    """The largest of a window; of equal ones the first, as in torch."""

    def run(place: Place, values: list[Array]) -> tuple[Array, Push]:
        local = place.local[0]
        assert local is not None
        best = picked(values[0], local[0], -np.inf)
        chosen = np.broadcast_to(local[0][:, None, :, None], best.shape).copy()
        for where in local[1:]:
            one = picked(values[0], where, -np.inf)
            larger = one > best
            np.copyto(chosen, where[:, None, :, None], where=larger)
            np.maximum(best, one, out=best)
        nowhere = chosen < 0  # a block may have fewer positions than the longest one
        best[nowhere] = 0.0
        lines = np.arange(chosen[..., 0, 0].size).reshape(*chosen.shape[:-2], 1, 1)
        chosen += values[0].shape[-2] * lines  # of all positions of all blocks

        def push(changes: list[Any], _: list[Any]) -> Any:
            draws = changes[0].shape[-1]
            where = chosen if draws == 1 else chosen * draws + np.arange(draws)
            found = changes[0].reshape(-1).take(where)
            found[nowhere] = 0.0
            return found

        return best, push

    return Step((node_of(of.argument, node.part),), run, (together(of.windows, of.sizes),), aligned=False)


def max_pooled(
    law: Expression, windows: Sequence[Indices], sizes: Sequence[int], name: str = "max pooling"
) -> Field:
    """The maximum of an expression over windows of each axis."""
    shared: dict[str, Any] = {
        "positions": tuple(one.shape[1] for one in windows),
        "name": name,
        "sources": frozenset[Source]().union(*(field.sources for field in leaves(law))),
    }
    pooled = MaxPooled(argument=law, windows=tuple(windows), sizes=tuple(sizes), **shared)
    members = prod(int((one >= 0).sum(axis=0).max()) for one in windows)
    field = law.field if isinstance(law, Leaf) and law.field.gaussian else None
    if members > 2 or field is None or any(gain.own_position for gain in field.gains):
        return pooled
    # max(x, y) = (x + y)/2 + |x - y|/2: the parts may count as independent, as their products are odd in z.
    counts = [(one >= 0).sum(axis=0).max() for one in windows]
    means, differences = [], []
    for one, size, count in zip(windows, sizes, counts, strict=True):
        ends = [np.eye(size)[column[column >= 0][[0, -1]]] for column in one.T]  # x = y where it is alone
        means.append(Weights.of([(x + y) / 2 for x, y in ends]))
        differences.append(Weights.of([x - y for x, y in ends]) if count == max(counts) else means[-1])
    mean, difference = (
        PositionMap(inputs=(field,), axes=tuple(axes), gaussian=True, gains=field.gains, **shared)
        for axes in (means, differences)
    )
    closed = Sum(((1.0, Leaf(mean)), (0.5, Apply(activation("abs"), Leaf(difference)))))
    return MaxOfPairs(inputs=(mean, difference), expression=closed, law=pooled, **shared)


def is_increasing(function: Activation) -> bool:
    """Whether a function never falls on [-20, 20], so that it may as well be applied to a maximum."""
    return bool((np.diff(function.value(np.linspace(-20.0, 20.0, 8001))) >= -1e-12).all())


@dataclass(frozen=True, eq=False, kw_only=True)
class MaxOfPairs(Elementwise):
    """The moments of the maximum of two Gaussians, by their closed form; ``law``: the maximum itself."""

    law: MaxPooled


@dataclass(frozen=True, eq=False, kw_only=True)
class Grouped(LinearMap):
    """A convolution of groups of few channels: ``group`` of them are read, and given, by each.

    Its moments are those of any convolution, but too few weights meet in it to make it Gaussian.
    """

    group: tuple[int, int] = (1, 1)
    own_sources: frozenset[Source] = frozenset()  # of its weights alone


@step_of.register
def _(of: Grouped, node: Node) -> Step:
    """z_c = sum over channels j of the group and taps t of w_cjt h_j(t) + b_c, with its own weights for each c."""
    if not of.shared or of.removed:
        raise NotSupportedError(
            f"{of.name}, whose few channels have weights of their own at each position: this has no rule. "
            "Measure it with ft.ensemble."
        )
    into = of.group[0]
    axes = [
        one.source if isinstance(one, Taps) else np.arange(size)[None]
        for one, size in zip(of.axes, of.inputs[0].positions, strict=True)
    ]
    reads, basis = together(axes, of.inputs[0].positions), cosines([len(one) for one in axes])
    taps = len(reads)

    def mixed(weights: Array, h: Array, local: Indices) -> Array:
        """Weights (channels, into x taps, blocks, draws) applied to channels of the groups."""
        groups = len(h) // into
        w = weights.reshape(groups, -1, into, taps, *weights.shape[2:])
        draws = max(w.shape[-1], h.shape[-1])
        total = np.zeros((groups, w.shape[1], *h.shape[1:-2], local.shape[-1], draws))
        product = np.empty_like(total)
        for t in range(taps):
            there = picked(h, local[t]).reshape(groups, 1, into, *h.shape[1:-2], -1, h.shape[-1])
            for j in range(into):
                np.multiply(w[:, :, j, t, None, :, None, None, :], there[:, :, j], out=product)
                total += product
        return total.reshape(-1, *total.shape[2:])

    def run(place: Place, values: list[Array]) -> tuple[Array, Push]:
        (h,), local = values, place.local[0]
        assert local is not None
        numbers = place.normals[:, : into * taps].reshape(
            len(place.normals), into, taps, *place.normals.shape[2:]
        )
        weights = np.sqrt(of.C_W / (into * taps)) * np.einsum("st,cjtbm->cjsbm", basis, numbers)
        weights = weights.reshape(len(weights), -1, *weights.shape[3:])
        bias = np.sqrt(of.C_b) * per_channel(place.normals[:, -1:])
        value = mixed(weights, h, local) + bias

        def push(changes: list[Any], own: list[Any]) -> Any:
            found = None if changes[0] is None else mixed(weights, changes[0], local)
            found = added(found, None if own[0] is None else mixed(own[0], h, local))
            return added(found, None if own[1] is None else per_channel(own[1]) * np.ones_like(value))

        return value, push

    return Step(
        (node_of(of.inputs[0], node.part),),
        run,
        (reads,),
        aligned=False,
        group=of.group,
        ranks=(*list(range(taps)) * into, 1),
        parameters=(Parameter(of.lambda_W / (into * taps), into, basis), Parameter(of.lambda_b)),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class NormOfFew(WithoutMoments):
    """Groups of few channels brought to mean 0 and mean square 1 over their positions (InstanceNorm: of 1 channel).

    Statistics of few channels do not settle: they are a part of the law.
    """

    channels: int
    epsilon: float


@step_of.register
def _(of: NormOfFew, node: Node) -> Step:
    """y = r (x - m), dy = r (dx - <dx> - y <y dx>): means over the channels of a group and their positions."""
    everywhere = np.arange(prod(of.positions))[:, None].repeat(prod(of.positions), axis=1)

    def run(place: Place, values: list[Array]) -> tuple[Array, Push]:
        def apart(x: Array) -> Array:
            return x.reshape(-1, of.channels, *x.shape[1:])

        def mean(x: Array) -> Array:
            return np.asarray(x.mean(axis=(1, -2), keepdims=True))

        def there(x: Array) -> Array:
            return picked(x.reshape(-1, *x.shape[2:]), place.positions)  # all positions are at hand, in order

        x = apart(values[0])
        x = x - mean(x)
        scale = 1 / np.sqrt(mean(x * x) + of.epsilon)
        y = scale * x

        def push(changes: list[Any], _: list[Any]) -> Any:
            change = apart(changes[0])
            return there(scale * (change - mean(change) - y * mean(y * change)))

        return there(y), push

    group = (of.channels, of.channels)
    return Step((node_of(of.argument, node.part),), run, (everywhere,), aligned=False, group=group)
