"""Networks of layers z^(k) = b + W s^(k-1), s^(k) = σ(z^(k)): differentials of the NTK by rank-one changes.

A leg a = (i, δ) is output i at sample δ. With δ_a = dz_a/dz^(k) its gradient is δ_a ⊗ s_a in W and δ_a in b, so that
the change of weights along g_b = λ∇z_b acts on any vector as (λ_W δ_b)(s_b · v). Along g_b, layers change by ż
(forward), and the backward fields δ_a, ε_a = dz_a/ds^(k) by δ̇_ab, ε̇_ab (backward). Nothing larger than a layer times
(legs)² is formed, and by the 2n + 1 rule these first-order changes suffice for third derivatives.
With κ = λ_b + λ_W s · s of a layer, sums over layers of

    dH_abc    = κ_ab (δ̇_ac · δ_b) + λ_W (δ_a · δ_b)(s_b · ṡ_ac)                                              (11.8)
    ddII_abcd = κ_ab (δ̇_ac · δ̇_bd) + λ_W (δ_a · δ_b)(ṡ_ac · ṡ_bd) + λ_W (δ̇_ac · δ_b)(s_a · ṡ_bd) + [ac ↔ bd]  (∞.7)
    ddI_abcd  = ε_a · σ''' ż_b ż_c ż_d + ε̇_ab · σ'' ż_c ż_d + δ̇_ab · (Ẇ_c ṡ_d + Ẇ_d ṡ_c) + [b ↔ c] + [b ↔ d]   (∞.5)

where fields and signals of a are those at its sample, ṡ_ac is the change of s_a along c, Ẇ_c ṡ = λ_W δ_c (s_c · ṡ).
The third index of dH, all but the first of ddI, and the last two of ddII are directions. All tensors begin with an
axis of networks; those of layers end with the axis of neurons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.chain import Chain
from foretrain.support.answers import Answer, Result
from foretrain.support.errors import InputError


@dataclass(frozen=True)
class Rates:
    """Learning rates of the weights and of the biases of a layer; 0 for what is not trained."""

    weight: float
    bias: float


@dataclass(frozen=True, repr=False, eq=False)
class Stack(Result):
    """Networks with T layers at some samples; the last weights are the rows of the outputs."""

    signals: Sequence[Tensor]  # s^(0)..s^(T-1), (networks, samples, n)
    derivatives: Sequence[tuple[Tensor, Tensor, Tensor]]  # σ', σ'', σ''' at z^(1)..z^(T-1), like the signals
    weights: Sequence[Tensor]  # W^(2)..W^(T), (networks, n_k, n_{k-1})
    rates: Sequence[Rates]  # of layers 1..T
    directions: int | None = None  # along the gradients of how many of the outputs; None for all

    @property
    def samples(self) -> int:
        """How many."""
        return int(self.signals[0].shape[1])

    @property
    def outputs(self) -> int:
        """How many."""
        return int(self.weights[-1].shape[1]) if self.weights else 0

    def answer(self) -> Answer:
        """How many networks, of which widths."""
        widths = "-".join(map(str, (*(signal.shape[-1] for signal in self.signals), self.outputs)))
        return Answer(
            f"Stack of {len(self.signals[0])} networks of widths {widths} at {self.samples} samples"
        )


@dataclass(frozen=True, eq=False)
class Level:
    """Layer k < T: the signal before it, the fields at it, and their changes along the directions."""

    rates: Rates
    signal: Tensor  # s^(k-1), (networks, samples, n)
    signal_change: Tensor | None  # ṡ^(k-1), (networks, samples, directions, n); None where s does not change
    derivatives: tuple[Tensor, Tensor, Tensor]
    change: Tensor  # ż^(k), (networks, samples, directions, n)
    field: Tensor  # δ^(k), (networks, legs, n)
    backward: Tensor  # ε^(k), (networks, legs, n)
    field_change: Tensor  # δ̇^(k), (networks, legs, directions, n)
    backward_change: Tensor  # ε̇^(k), (networks, legs, directions, n)


@dataclass(frozen=True, eq=False)
class Top:
    """Layer T: the signal before it, and its change."""

    rates: Rates
    signal: Tensor
    signal_change: Tensor


def with_derivatives(
    function: Callable[[Tensor], Tensor], z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """σ, σ', σ'', σ''' of an elementwise function; zero from where autograd finds no dependence on z."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        found = [function(leaf)]
        for _ in range(3):
            slope = None
            if found[-1].requires_grad:
                (slope,) = torch.autograd.grad(found[-1].sum(), leaf, create_graph=True, allow_unused=True)
            found.append(torch.zeros_like(z) if slope is None else slope)
    value, one, two, three = (values.detach() for values in found)
    return value, one, two, three


def stack_of(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor] | None,
    x: Tensor,
    function: Callable[[Tensor], Tensor],
    rates: Sequence[Rates],
) -> Stack:
    """Networks z^(1) = b + W x, z^(k+1) = b + W σ(z^(k)) at samples x (N, n_0), or (networks, N, n_0).

    Parameters
    ----------
    weights, biases
        Of layers 1..T: (networks, n_k, n_{k-1}) and (networks, n_k); ``biases=None`` for none.
    function
        σ, elementwise, of torch tensors.
    rates
        Of every layer; in the convention of the theory ``Rates(lambda_W / n_{k-1}, lambda_b)``.
    """
    if len(weights) < 2 or any(weight.ndim != 3 for weight in weights):
        raise InputError("weights must be two or more tensors (networks, n_k, n_{k-1}), one for every layer.")
    sizes = [tuple(weight.shape) for weight in weights]
    fits = all(low[1] == high[2] and low[0] == high[0] for low, high in pairwise(sizes))
    if not fits or x.ndim not in (2, 3) or x.shape[-1] != sizes[0][2]:
        raise InputError(f"weights of sizes {sizes} do not follow each other and inputs of {tuple(x.shape)}.")
    if x.ndim == 3 and len(x) != sizes[0][0]:
        raise InputError(f"inputs are of {len(x)} networks, but weights of {sizes[0][0]}.")
    if biases is not None and [tuple(bias.shape) for bias in biases] != [size[:2] for size in sizes]:
        raise InputError("biases must be tensors (networks, n_k), one for every layer, or None.")
    if len(rates) != len(weights):
        raise InputError(f"there are {len(rates)} rates for {len(weights)} layers: give one for every layer.")
    signals = [x.expand(len(weights[0]), *x.shape[-2:])]
    derivatives: list[tuple[Tensor, Tensor, Tensor]] = []
    for number, weight in enumerate(weights[:-1]):
        z = signals[-1] @ weight.mT
        if biases is not None:
            z = z + biases[number][:, None]
        signal, one, two, three = with_derivatives(function, z)
        signals.append(signal)
        derivatives.append((one, two, three))
    return Stack(signals, derivatives, [weight.detach() for weight in weights[1:]], list(rates))


def stack_of_chain(chain: Chain, outputs: list[int], rates: Mapping[int, float]) -> Stack:
    """A chain that ends in a linear layer as one network, with some of its outputs; rates are by id of parameter."""
    derivatives = []
    for number in range(1, chain.depth):
        _, *found = with_derivatives(partial(chain.activate, number), chain.v(number))
        one, two, three = (values[None] for values in found)
        derivatives.append((one, two, three))
    last = chain.layer(chain.depth).weight[outputs]
    return Stack(
        signals=[chain.u(number)[None] for number in range(chain.depth)],
        derivatives=derivatives,
        weights=[*(chain.layer(number).weight[None] for number in range(2, chain.depth)), last[None]],
        rates=[
            Rates(rates.get(id(layer.module.weight), 0.0), rates.get(id(layer.module.bias), 0.0))
            for layer in chain.layers
        ],
    )


def overlap(rates: Rates, signal: Tensor) -> Tensor:
    """λ_b + λ_W s_a · s_b: (networks, samples, samples)."""
    return rates.bias + rates.weight * (signal @ signal.mT)


def of_legs(values: Tensor, legs: int, axis: int = 1) -> Tensor:
    """Values of samples along an axis, at the sample of every leg: outputs first, then samples."""
    repeats = [1] * values.ndim
    repeats[axis] = legs // values.shape[axis]
    return values.repeat(repeats)


def _fields(stack: Stack) -> tuple[list[Tensor], list[Tensor]]:
    """δ and ε of layers 1..T-1."""
    samples, rows = stack.samples, stack.weights[-1]
    legs = stack.outputs * samples
    backward = rows.repeat_interleave(samples, dim=1)
    fields: list[Tensor] = []
    backwards: list[Tensor] = []
    for k in reversed(range(len(stack.derivatives))):
        field = of_legs(stack.derivatives[k][0], legs) * backward
        fields.insert(0, field)
        backwards.insert(0, backward)
        if k:
            backward = field @ stack.weights[k - 1]
    return fields, backwards


def _changes(stack: Stack, fields: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """ż and ṡ of layers 1..T-1 along the directions."""
    samples, networks = stack.samples, len(fields[0])
    count = _directions(stack) * samples
    changes: list[Tensor] = []
    signal_changes: list[Tensor] = []
    for k, field in enumerate(fields):
        kernel = of_legs(overlap(stack.rates[k], stack.signals[k]), count, axis=2)
        change = kernel[..., None] * field[:, None, :count]
        if k:
            carried = signal_changes[-1].flatten(1, 2) @ stack.weights[k - 1].mT
            change = change + carried.view(networks, samples, count, -1)
        changes.append(change)
        signal_changes.append(stack.derivatives[k][0][:, :, None] * change)
    return changes, signal_changes


def _field_changes(
    stack: Stack, fields: list[Tensor], backwards: list[Tensor], changes: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """δ̇ and ε̇ of layers 1..T-1 along the directions."""
    networks, legs = fields[0].shape[:2]
    count = _directions(stack) * stack.samples
    gram = same_output(stack, fields[0])[:, :count].expand(networks, -1, -1)
    field_changes: list[Tensor] = []
    backward_changes: list[Tensor] = []
    for k in reversed(range(len(fields))):
        turned = (stack.rates[k + 1].weight * gram)[..., None]
        signal = of_legs(stack.signals[k + 1], count)[:, None]
        if field_changes:
            carried = field_changes[0].flatten(1, 2) @ stack.weights[k]
            backward_change = carried.view(networks, legs, count, -1).addcmul_(turned, signal)
        else:
            backward_change = turned * signal
        slope, bend, _ = (values[:, None, :, None] for values in stack.derivatives[k])
        by_output = (networks, stack.outputs, stack.samples)
        field_change = bend * backwards[k].view(*by_output, 1, -1) * changes[k][:, None]
        field_change.addcmul_(slope, backward_change.view(*by_output, count, -1))
        field_changes.insert(0, field_change.flatten(1, 2))
        backward_changes.insert(0, backward_change)
        gram = fields[k] @ fields[k][:, :count].mT
    return field_changes, backward_changes


def same_output(stack: Stack, like: Tensor) -> Tensor:
    """Whether two legs are of the same output: (legs, legs)."""
    number = torch.arange(stack.outputs, device=like.device).repeat_interleave(stack.samples)
    return (number[:, None] == number).to(like.dtype)


def _directions(stack: Stack) -> int:
    return stack.outputs if stack.directions is None else stack.directions


@dataclass(frozen=True, repr=False, eq=False)
class LayeredDifferentials(Result):
    """dH, ddI and ddII of a stack of networks, with an axis of networks first and one of legs for every index."""

    stack: Stack

    def answer(self) -> Answer:
        """Of which networks; nothing is computed."""
        return Answer(f"LayeredDifferentials of a {self.stack!r}: .first() dH, .second() ddII, .third() ddI")

    @cached_property
    def _layers(self) -> tuple[list[Level], Top]:
        """All fields and their changes, layer by layer."""
        stack = self.stack
        fields, backwards = _fields(stack)
        changes, signal_changes = _changes(stack, fields)
        field_changes, backward_changes = _field_changes(stack, fields, backwards, changes)
        found = [
            Level(
                stack.rates[k],
                stack.signals[k],
                signal_changes[k - 1] if k else None,
                stack.derivatives[k],
                changes[k],
                fields[k],
                backwards[k],
                field_changes[k],
                backward_changes[k],
            )
            for k in range(len(fields))
        ]
        return found, Top(stack.rates[-1], stack.signals[-1], signal_changes[-1])

    @cached_property
    def _legs(self) -> int:
        return self.stack.outputs * self.stack.samples

    @cached_property
    def _directions(self) -> int:
        return int(self._layers[1].signal_change.shape[2])

    @cached_property
    def _same_output(self) -> Tensor:
        return same_output(self.stack, self.stack.weights[-1])

    def first(self) -> Tensor:
        """dH_abc: (networks, legs, legs, directions)."""
        below, top = self._layers
        found = top.rates.weight * self._same_output[:, :, None] * self._signal_along(top)
        for level in below:
            found = found + self._kernel(level)[..., None] * self._mixed(level).transpose(2, 3)
            if level.signal_change is not None:
                gram = level.rates.weight * (level.field @ level.field.mT)
                found = found + gram[..., None] * self._signal_along(level)
        return found

    def second(self) -> Tensor:
        """ddII_abcd, of outputs with directions: (networks, directions, directions, directions, directions)."""
        below, top = self._layers
        size = self._directions
        same = self._same_output[:size, :size]
        found = top.rates.weight * same[:, :, None, None] * self._signal_gram(top)
        for level in below:
            field_change = level.field_change[:, :size]
            flat = field_change.flatten(1, 2)
            gram = (flat @ flat.mT).view(-1, size, size, size, size).transpose(2, 3)
            found = found + self._kernel(level)[:, :size, :size, None, None] * gram
            if level.signal_change is not None:
                field = level.field[:, :size]
                weight = level.rates.weight
                found = found + weight * (field @ field.mT)[..., None, None] * self._signal_gram(level)
                # (δ̇_ac · δ_b)(s_a · ṡ_bd) + [a ↔ b, c ↔ d]: (networks, a, b, c, d)
                mixed = self._mixed(level)[:, :size, :, :size].transpose(2, 3)
                along = self._signal_along(level)[:, :size, :size].transpose(1, 2)  # s_a · ṡ_bd as (a, b, d)
                crossed = mixed[..., None] * along[:, :, :, None]
                found = found + weight * (crossed + crossed.permute(0, 2, 1, 4, 3))
        return found

    def third(self) -> Tensor:
        """ddI_abcd, of outputs with directions: (networks, directions, directions, directions, directions)."""
        below, _ = self._layers
        return sum((self._curved(level) for level in below[1:]), self._curved(below[0]))

    def _kernel(self, level: Level) -> Tensor:
        """κ_ab of legs."""
        return of_legs(of_legs(overlap(level.rates, level.signal), self._legs), self._legs, axis=2)

    def _mixed(self, level: Level) -> Tensor:
        """δ̇_ac · δ_b: (networks, legs a, directions c, legs b)."""
        flat = level.field_change.flatten(1, 2) @ level.field.mT
        return flat.view(-1, self._legs, self._directions, self._legs)

    def _signal_along(self, level: Level | Top) -> Tensor:
        """s_b · ṡ_ac: (networks, legs a, legs b, directions c)."""
        assert level.signal_change is not None
        networks, samples, count, _ = level.signal_change.shape
        flat = level.signal @ level.signal_change.flatten(1, 2).mT
        by_samples = flat.view(networks, samples, samples, count).transpose(1, 2)
        return of_legs(of_legs(by_samples, self._legs), self._legs, axis=2)

    def _signal_gram(self, level: Level | Top) -> Tensor:
        """ṡ_ac · ṡ_bd: (networks, legs a, legs b, directions c, directions d)."""
        assert level.signal_change is not None
        networks, samples, count, _ = level.signal_change.shape
        flat = level.signal_change.flatten(1, 2)
        gram = (flat @ flat.mT).view(networks, samples, count, samples, count).transpose(2, 3)
        return of_legs(of_legs(gram, count), count, axis=2)

    def _curved(self, level: Level) -> Tensor:
        """What one layer adds to ddI."""
        size, samples = self._directions, self.stack.samples
        _, bend, third = level.derivatives
        change, networks = level.change, len(level.change)
        # ż_c ż_d, (networks, samples, c d, n).
        pairs = (change[:, :, :, None] * change[:, :, None]).flatten(2, 3)
        outputs = size // samples
        backward = level.backward[:, :size].view(networks, outputs, samples, -1).transpose(1, 2)
        backward_change = level.backward_change[:, :size].view(networks, outputs, samples, size, -1)
        three = backward[:, :, :, None] * third[:, :, None, None] * change[:, :, None]  # ε_a σ''' ż_b
        two = backward_change.transpose(1, 2) * bend[:, :, None, None]  # ε̇_ab σ''
        straight = _by_legs(three.flatten(2, 3) @ pairs.mT, size)
        bent = _by_legs(two.flatten(2, 3) @ pairs.mT, size)
        if level.signal_change is not None:
            mixed = self._mixed(level)[:, :size, :, :size]  # δ̇_ab · δ_c
            along = self._signal_along(level)[:, :size, :size]  # s_c · ṡ_ad as (a, c, d)
            turned = level.rates.weight * mixed[..., None] * along[:, :, None]
            bent = bent + turned + turned.transpose(3, 4)
        return straight + bent + bent.transpose(2, 3) + bent.transpose(2, 4)


def _by_legs(values: Tensor, size: int) -> Tensor:
    """(networks, samples, outputs × directions, directions²) as (networks, legs, and three times directions)."""
    networks, samples = values.shape[:2]
    split = values.view(networks, samples, -1, size, size, size)
    return split.transpose(1, 2).reshape(networks, size, size, size, size)
