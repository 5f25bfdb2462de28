"""Functions of a single kernel value that the differentials of the tangent kernel need besides (11.55)-(11.60).

With s the activation and <.> over one Gaussian variable of variance K. Second derivatives that stand in the forward
equation include the delta functions of kinks or not, as in kinks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import Factor, factor, z
from foretrain.theory.kernel_functions import TangentFunctions
from foretrain.theory.recursions.kinks import Kinks

Array = NDArray[np.float64]


class BendValues(NamedTuple):
    """What P and Q need, at some kernel values."""

    bend: Array  # <s'' s>
    bend_response: Array  # <d(s'' s')/dz>
    bend_fourth: Array  # <s'' s' s' s>


class SecondBendValues(NamedTuple):
    """What R, S, T and U need besides."""

    bend_square: Array  # <s'' s''>
    third_fourth: Array  # <s''' s'^3>
    bend_square_fourth: Array  # <s''^2 s'^2>


class BendFunctions(TangentFunctions):
    """The functions of :class:`BendValues`, tabulated; the activation must be continuous."""

    def __init__(self, activation: Activation, kinks: Kinks) -> None:
        super().__init__(activation)
        self._kinks = kinks

    def _rule(self) -> Callable[[Array], list[Array]]:
        """Scale-invariant activations have none of these (11.67)-(11.70)."""
        if self.activation.slopes is not None:
            return lambda K: [np.zeros_like(K) for _ in BendValues._fields]
        return self._smooth if self.activation.is_smooth else self._kinked

    def _smooth(self, K: Array) -> list[Array]:
        s = [factor(self.activation, order) for order in range(4)]
        return [
            self._mean([(1.0, s[2] * s[0])], K),
            self._mean([(1.0, s[3] * s[1]), (1.0, s[2] * s[2])], K),
            self._mean([(1.0, s[2] * s[1] * s[1] * s[0])], K),
        ]

    def _kinked(self, K: Array) -> list[Array]:
        """<d f/dz> = <z f> / K, whose limit stands in at K = 0."""
        s, slope, bend = (factor(self.activation, order) for order in range(3))
        if self._kinks == "almost_everywhere":
            bend = bend.pointwise()
        safe = np.maximum(K, 1e-30)
        return [
            self._mean([(1.0, bend * s)], safe),
            self._mean([(1.0, z * bend * slope)], safe) / safe,
            self._mean([(1.0, bend * slope**2 * s)], safe),
        ]


class SecondBendFunctions(TangentFunctions):
    """The functions of :class:`SecondBendValues`, tabulated; the slope of the activation must be continuous."""

    def _rule(self) -> Callable[[Array], list[Array]]:
        """The only scale-invariant activations with a continuous slope are linear."""
        if self.activation.slopes is not None:
            return lambda K: [np.zeros_like(K) for _ in SecondBendValues._fields]
        return self._any

    def _any(self, K: Array) -> list[Array]:
        slope, bend, third = (factor(self.activation, order) for order in (1, 2, 3))
        products: tuple[Factor, ...] = (bend * bend, third * slope**3, bend * bend * slope * slope)
        safe = K if self.activation.is_smooth else np.maximum(K, 1e-30)
        return [self._mean([(1.0, product)], safe) for product in products]


@lru_cache(maxsize=16)
def shared_bend_functions(activation: Activation, kinks: Kinks) -> BendFunctions:
    """The functions of an activation with a table that later flows use again."""
    return BendFunctions(activation, kinks)


@lru_cache(maxsize=16)
def shared_second_bend_functions(activation: Activation) -> SecondBendFunctions:
    """The same for :class:`SecondBendFunctions`."""
    return SecondBendFunctions(activation)
