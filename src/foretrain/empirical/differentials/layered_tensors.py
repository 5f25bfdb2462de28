"""Differentials of the NTK of layered networks, from the fields of their layers and how these change.

With κ = λ_b + λ_W s · s of a layer, sums over layers of

    dH_abc    = κ_ab (δ̇_ac · δ_b) + λ_W (δ_a · δ_b)(s_b · ṡ_ac)                                              (11.8)
    ddII_abcd = κ_ab (δ̇_ac · δ̇_bd) + λ_W (δ_a · δ_b)(ṡ_ac · ṡ_bd) + λ_W (δ̇_ac · δ_b)(s_a · ṡ_bd) + [ac ↔ bd]  (∞.7)
    ddI_abcd  = ε_a · σ''' ż_b ż_c ż_d + ε̇_ab · σ'' ż_c ż_d + δ̇_ab · (Ẇ_c ṡ_d + Ẇ_d ṡ_c) + [b ↔ c] + [b ↔ d]   (∞.5)

where fields and signals of a are those at its sample, ṡ_ac is the change of s_a along c, Ẇ_c ṡ = λ_W δ_c (s_c · ṡ).
The third index of dH, all but the first of ddI, and the last two of ddII are directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from foretrain.empirical.differentials.layered import (
    Level,
    Stack,
    Top,
    levels,
    of_legs,
    overlap,
    same_output,
)
from foretrain.support.answers import Answer, Result


@dataclass(frozen=True, repr=False, eq=False)
class LayeredDifferentials(Result):
    """dH, ddI and ddII of a stack of networks, with an axis of networks first and one of legs for every index."""

    stack: Stack

    def answer(self) -> Answer:
        """Of which networks; nothing is computed."""
        return Answer(f"LayeredDifferentials of a {self.stack!r}: .first() dH, .second() ddII, .third() ddI")

    @cached_property
    def _layers(self) -> tuple[list[Level], Top]:
        return levels(self.stack)

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
                found = found + weight * self._crossed(level)
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

    def _crossed(self, level: Level) -> Tensor:
        """(δ̇_ac · δ_b)(s_a · ṡ_bd) + [a ↔ b, c ↔ d]: (networks, a, b, c, d)."""
        size = self._directions
        mixed = self._mixed(level)[:, :size, :, :size].transpose(2, 3)
        along = self._signal_along(level)[:, :size, :size].transpose(1, 2)  # s_a · ṡ_bd as (a, b, d)
        one = mixed[..., None] * along[:, :, :, None]
        return one + one.permute(0, 2, 1, 4, 3)

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
