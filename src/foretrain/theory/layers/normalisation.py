"""Normalisation over wide sets of channels, and the gains and shifts that follow it (architectures, section 6).

Statistics over many channels are numbers, and their own gradients vanish like 1/width: a norm subtracts a
number from S and divides S and Theta by numbers. Theta has nothing subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrain.theory.layers.fields import Field, Kernel, Tile, on_same_positions, weighted_sum
from foretrain.theory.layers.positions import Pairs


@dataclass(frozen=True, eq=False, kw_only=True)
class Normalised(Field):
    """The first input, with its channels and those of the other inputs brought to mean 0 and mean square 1 together.

    ``shares`` of all channels that each of the inputs after the first has; ``over_positions``: one statistic
    for all positions (GroupNorm), else one for each (LayerNorm); ``centred``: whether the mean is subtracted
    (RMSNorm does not).
    """

    shares: tuple[float, ...]
    epsilon: float
    centred: bool = True
    over_positions: bool = False

    @property
    def reads_points(self) -> bool:
        """The statistics."""
        return True

    @property
    def keeps_gains(self) -> bool:
        """The rates of gains stay what they are."""
        return bool(self.gains)

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """The same pairs."""
        return (wanted,) * len(self.inputs)

    def _statistics(self, tile: Tile) -> None:
        """Centre and scale at every point, from the inputs after the first."""
        axes = tuple(range(len(self.positions))) if self.over_positions else ()
        mean, square = tile.zeros(*self.positions, tile.size), tile.zeros(*self.positions, tile.size)
        for share, one in zip(self.shares, self.inputs[1:], strict=True):
            square += share * tile.second(one)
            if self.centred and not one.gaussian:
                mean += share * tile.mean(one)
        if axes:
            mean, square = (part.mean(axes) + 0 * part for part in (mean, square))
        tile.kept((self, "centre"), lambda: mean)
        tile.kept((self, "scale"), lambda: (square - mean**2 + self.epsilon) ** -0.5)

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """S' = r r' (S - mu m' - m mu' + mu mu'), Theta' = r r' Theta."""
        if tile.leaves_points:
            self._statistics(tile)
        scale = tile.rows((self, "scale"), pairs) * tile.columns((self, "scale"), pairs)
        S, Theta = (None if part is None else tile.split(part, pairs) for part in inputs[0])
        if self.centred and any(not one.gaussian for one in self.inputs):
            first = self.inputs[0]
            if tile.leaves_points:
                tile.mean(first)
            m, m_ = tile.rows((first, "mean"), pairs), tile.columns((first, "mean"), pairs)
            mu, mu_ = tile.rows((self, "centre"), pairs), tile.columns((self, "centre"), pairs)
            S = S - mu * m_ - m * mu_ + mu * mu_
        shape = inputs[0].S.shape
        return Kernel((S * scale).reshape(shape), None if Theta is None else (Theta * scale).reshape(shape))

    def mean(self, tile: Tile) -> Any:
        """r (m - mu)."""
        if self.gaussian:
            return super().mean(tile)
        mean = tile.mean(self.inputs[0])
        return tile.row_points[self, "scale"] * (mean - tile.row_points[self, "centre"])


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained(Field):
    """The same field with a gain and a shift of each channel that train; they are 1 and 0, or applied before.

    The shift adds its rate to Theta. The gain adds rate * S: a Gaussian field carries it as one of ``gains``.
    """

    shift_rate: float = 0.0
    gain_rate: float = 0.0  # of a field that is not Gaussian, or whose gain is 0
    own_position: bool = False

    @property
    def keeps_gains(self) -> bool:
        """Those of its input stay."""
        return self.gaussian

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """The same pairs."""
        return (wanted,) * len(self.inputs)

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """Theta' = Theta + gain_rate S + shift_rate."""
        S, Theta = inputs[0]
        more = self.gain_rate * inputs[-1].S + self.shift_rate
        if self.own_position:
            more = more * on_same_positions(pairs, S)
        return Kernel(S, more if Theta is None else Theta + more)

    def mean(self, tile: Tile) -> Any:
        """Unchanged."""
        return tile.mean(self.inputs[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixed(Field):
    """Channels of several fields side by side, as a linear map sees them: means over all channels."""

    shares: tuple[float, ...]

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Any) -> Kernel:
        """Kernels weighted by the shares of the channels."""
        return weighted_sum(self.shares, inputs)

    def mean(self, tile: Tile) -> Any:
        """Means weighted by the shares."""
        return sum(share * tile.mean(one) for share, one in zip(self.shares, self.inputs, strict=True))
