"""What a law is: its values at every layer, its formula, where it is from, and how large what it leaves out is.

Data constants are what the asymptotics leave open and the exact recursion decides. A slow flow y' = y - s y^2 + ...
towards 0 has a coordinate 1 / (s y) + r log(1 / (s y)) - depth whose limit is a constant of the data, and whose
remainder is a power series in y, without logarithms: values at a few depths, extrapolated to y = 0 by a polynomial,
give it to many digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import polynomial

from foretrain.activations import Activation
from foretrain.support.arguments import Array
from foretrain.theory.architecture import MLP

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Law:
    """One quantity as a function of depth."""

    values: Array
    formula: str
    equation: str  # the source's number, or "derived"
    remainder: str

    def beside(self, exact: Array, meaning: str) -> tuple[tuple[str, str], Array, dict[str, str]]:
        """The exact values and the law as a variable over law and layer, with what is known of it."""
        about = {"formula": self.formula, "equation": self.equation, "remainder": self.remainder}
        return ("law", "layer"), np.stack([exact, self.values]), {"meaning": meaning, **about}


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

    def dataset(self, mlp: MLP, variables: Mapping[str, Any], constants: Mapping[str, float]) -> xr.Dataset:
        """Variables over law ("exact", "asymptotic") and layer = 1, 2, ... as a dataset that says what holds."""
        import xarray as xr

        about = {"universality_class": self.universality_class, "statement": self.statement}
        found = xr.Dataset(variables, attrs={"activation": mlp.activation.label, **about, **constants})
        layer = np.arange(1, found.sizes["layer"] + 1)
        return found.assign_coords(law=["exact", "asymptotic"], layer=layer)


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


FIT_DEPTH = 4096
_FRACTIONS = (1, 2, 3, 4, 6, 8)


def series_in(y: Array, values: Array) -> Array:
    """Power series of values in y along a flow of layers 1..L, through some of the last layers."""
    places = np.array([len(y) // fraction - 1 for fraction in _FRACTIONS])
    unit = y[places[0]]
    fitted = polynomial.polyfit(y[places] / unit, values[places], len(places) - 1)
    return np.asarray(fitted / unit ** np.arange(len(places)))


def extrapolated(y: Array, values: Array) -> float:
    """The limit y -> 0 of values along a flow of layers 1..L."""
    return float(series_in(y, values)[0])


def is_deep_enough(first: float, slope: float) -> bool:
    """Whether a flow that starts at ``first`` reaches its asymptotic regime within the depth of a fit."""
    return slope * first * FIT_DEPTH > 8


def reference_start(slope: float) -> float:
    """Where to start a flow that serves to find the constants of starts too small to flow far themselves."""
    return 0.05 / slope


def log_depth_constant(y: Array, first: float, slope: float, logarithm: float) -> float:
    """log l_0 of the law 1 / y = slope (l - logarithm log(l / l_0)) for a flow that starts at ``first`` in layer 1.

    ``y`` is a flow of layers 1..L with the same recursion: this one itself, or one that reaches small values sooner.
    """
    if logarithm == 0:
        return 0.0

    def coordinate(place: Array | float) -> Array:
        scale = 1 / (slope * np.asarray(place))
        return np.asarray(scale + logarithm * np.log(scale))

    series = series_in(y, coordinate(y) - np.arange(1, len(y) + 1))
    if y[0] == first:
        shift = float(series[0])
    else:
        shift = float(coordinate(first)) - 1 - float(polynomial.polyval(first, [0.0, *series[1:]]))
    return shift / logarithm
