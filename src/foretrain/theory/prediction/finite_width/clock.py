"""Sums over the course of training, for steps and for gradient flow alike.

A product of errors along modes with eigenvalues a, b of the training kernel is multiplied by 1 - eta s in every step,
with the combined rate s = a + b - eta a b; eta = 0 is gradient flow, where it falls as exp(-s t). Training adds up
such factors over earlier and earlier steps: divided differences of x^t, or of exp, at the rates involved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import expm

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Clock:
    """Steps of size ``eta``, or gradient flow if it is zero, until ``time``; None is the end of training."""

    eta: float
    time: float | None = None

    def together(self, *rates: Array) -> Array:
        """The rate at which a product of errors falls: 1 - eta s = (1 - eta a)(1 - eta b).. ."""
        found = rates[0]
        for rate in rates[1:]:
            found = found + rate - self.eta * found * rate
        return found

    def left(self, rate: ArrayLike) -> Array:
        """What one step leaves of an error, 1 - eta s."""
        return np.asarray(1 - self.eta * np.asarray(rate, dtype=np.float64))

    def sums(self, output: float, *rates: Array) -> Array:
        """eta^m times the divided difference of x^t at 1 - eta s, for ``output`` and the m ``rates`` (broadcast).

        ``output`` is the rate at which the output that is looked at returns to its target: zero for a test output.
        """
        if self.time is None:
            return self._endless(output, *rates)
        knots = np.broadcast_arrays(np.float64(output), *rates)
        generator = np.zeros((*knots[0].shape, len(knots), len(knots)))
        for place, knot in enumerate(knots):
            generator[..., place, place] = -knot
            if place:
                generator[..., place - 1, place] = 1.0
        if self.eta:
            one = np.eye(len(knots))
            power = np.linalg.matrix_power(one + self.eta * generator, int(self.time))
        else:
            power = np.asarray(expm(self.time * generator))
        return np.asarray(power[..., 0, -1])

    def nested(self, output: float, *rates: Array) -> Array:
        """The same for sums that nest strictly: every earlier sum ends one step before the later."""
        found = self.sums(output, *rates)
        for rate in rates[:-1]:
            found = found * self.left(rate)
        return found

    def _endless(self, output: float, *rates: Array) -> Array:
        product = np.prod(np.broadcast_arrays(*rates), axis=0)
        return np.zeros_like(product) if output else np.asarray(1 / product)
