"""Factors that bring the layers of a bottleneck to their natural scale, and what the scaling law says of them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import nn

from foretrain.compare.plateau.layers import Bottleneck


@dataclass(frozen=True)
class ScalingLaw:
    """Rawal & DeWeese (12): with r layers at ε the plateau lasts ~ ε^-(r-2); r = 2: log(1/ε); r = 1: bounded.

    ``halving`` is what the law says one half of ε does to the plateau, ``halving_here`` what this network's own
    flow does then (nan: not followed to its end).
    """

    small_layers: int
    epsilon: float
    halving_here: float
    applies: bool  # derived for layers in a row

    @property
    def exponent(self) -> int:
        """Power of 1/ε."""
        return max(0, self.small_layers - 2)

    @property
    def halving(self) -> float:
        """Factor of the plateau if ε is halved."""
        if self.small_layers == 2:
            return math.log(2 / self.epsilon) / math.log(1 / self.epsilon)
        return 2.0**self.exponent

    @property
    def exponent_here(self) -> float:
        """The local power of 1/ε of this network."""
        return math.log2(self.halving_here)

    @property
    def formula(self) -> str:
        """The law in symbols."""
        return {1: "bounded", 2: "~ log(1/ε)"}.get(self.small_layers, f"~ ε^-{self.exponent}")

    @property
    def statement(self) -> str:
        """What the law says, and what the network itself does."""
        own = f", {self.halving_here:.3g} times by this network's own flow"
        scope = " (derived for layers in a row, which these are not: trust the flow)"
        return (
            f"Scaling law for {self.small_layers} layers at ε = {self.epsilon:.3g}: plateau {self.formula} as ε → 0; "
            f"halving ε makes it {self.halving:.3g} times as long by the law"
            f"{own if math.isfinite(self.halving_here) else ''}{'' if self.applies else scope}."
        )


def factors_to_natural(bottleneck: Bottleneck) -> dict[str, float]:
    """By how much to multiply each small weight, by parameter name."""
    return {layer.name: 1 / layer.relative for layer in bottleneck.layers}


def rescaled(model: nn.Module, factors: dict[str, float]) -> nn.Module:
    """A copy of the model with some weights multiplied."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for name, factor in factors.items():
            changed.get_parameter(name).mul_(factor)
    return changed


def code_for(factors: dict[str, float]) -> str:
    """Lines that do it to the user's own model."""
    lines = [f'    model.get_parameter("{name}").mul_({factor:.4g})' for name, factor in factors.items()]
    return "\n".join(["with torch.no_grad():", *lines])
