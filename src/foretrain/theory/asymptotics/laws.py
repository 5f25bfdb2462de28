"""What a law is: its values at every layer, its formula, where it is from, and how large what it leaves out is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.theory.architecture import MLP

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """One quantity as a function of depth."""

    values: Array
    formula: str
    equation: str  # the source's number, or "derived"
    remainder: str


@dataclass(frozen=True)
class LawSet:
    """The laws of one network and input, with the data constants in them."""

    universality_class: str
    statement: str
    laws: dict[str, Law]
    constants: dict[str, float] = field(default_factory=dict)

    def without(self, *names: str) -> LawSet:
        """The same set without some quantities."""
        return replace(self, laws={name: law for name, law in self.laws.items() if name not in names})


@dataclass(frozen=True)
class Uniform:
    """Hyperparameters common to all layers after the first."""

    C_b: float
    C_W: float
    gamma: float

    @property
    def remaining(self) -> float:
        """1 - gamma^2: what the weights must supply at criticality (B.20), (B.21)."""
        return 1 - self.gamma**2

    def network(self, act: Activation, depth: int) -> MLP:
        """A network with this many equal layers, and an output layer, which has no skip connection, after them."""
        return MLP(act, depth + 1, width=1, C_b=self.C_b, C_W=self.C_W, gamma=self.gamma or None)
