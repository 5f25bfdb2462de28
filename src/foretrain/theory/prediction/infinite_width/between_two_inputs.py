"""Two training inputs x_± = x_0 ± delta_x / 2, test inputs on the line through them: x = s x_+ + (1 - s) x_- (10.99).

s in [0, 1] interpolates, any other extrapolates. Linear networks predict s y_+ + (1 - s) y_- exactly (10.104); the
tangent kernel of a smooth activation bends this by ddTheta_[0] / Theta_00, its inductive bias.

``on_the_line``          exact, at any distance
``tangent_series``       Theta of x_0 + e_1 delta_x / 2 and x_0 + e_2 delta_x / 2 to third order in e_1, e_2
``expanded_prediction``  the prediction to second order in delta_x, (10.113) corrected
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import convolve2d

from foretrain.activations import Activation
from foretrain.gaussian import expectation, factor
from foretrain.support.answers import Result
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import two_inputs
from foretrain.theory.prediction.infinite_width.gradient_descent import GradientDescent
from foretrain.theory.prediction.predicted_outputs import Prediction

_ORDER = 3
_HIGHEST = 2  # power of one variable alone that the coefficients asked for can see
_KEPT = np.fromfunction(lambda p, q: (p + q <= _ORDER) & (p <= _HIGHEST) & (q <= _HIGHEST), (_ORDER + 1,) * 2)


def on_the_line(
    mlp: MLP, x_plus: ArrayLike, x_minus: ArrayLike, y_plus: ArrayLike, y_minus: ArrayLike, s: ArrayLike
) -> Prediction:
    """Mean and covariance over networks at s x_+ + (1 - s) x_- after training on x_±, exact at infinite width."""
    train = two_inputs(x_plus, x_minus)
    places = np.atleast_1d(real_array("s", s))
    targets = np.stack(
        [np.atleast_1d(real_array(name, y)) for name, y in (("y_plus", y_plus), ("y_minus", y_minus))]
    )
    tests = places[:, None] * train[0] + (1 - places[:, None]) * train[1]
    return GradientDescent.of(mlp, train, targets, tests).end()


@dataclass(frozen=True, repr=False)
class TangentSeries(Result):
    """Theta of two points of the line, in powers of their places e_1, e_2 in units of delta_x / 2 (10.110)."""

    middle: float  # Theta_00
    first: float  # dTheta_[1]: twice the coefficient of e_1
    mean: float  # ddTheta_[0]: twice that of e_1^2
    distance: float  # ddTheta_[2]: that of e_1 e_2
    cubic: float  # that of e_1^2 e_2, which a determinant of second order brings to the order kept

    @property
    def curvature(self) -> float:
        """ddTheta_[0] / Theta_00: how predictions bend between training inputs of equal norms."""
        return self.mean / self.middle

    @property
    def determinant(self) -> float:
        """Theta_++ Theta_-- - Theta_+-^2 to leading order."""
        return 4 * self.middle * self.distance - self.first**2


def tangent_series(mlp: MLP, x_0: ArrayLike, delta_x: ArrayLike) -> TangentSeries:
    """The coefficients at the output of a network with a smooth activation, without differences of kernels."""
    if mlp.activation.kinks:
        raise NotSupportedError(
            f"{mlp.activation.label} has kinks, so that its tangent kernel has no power series: use on_the_line."
        )
    middle, gap = mlp.check_inputs(two_inputs(x_0, delta_x))
    overlap = np.zeros((_ORDER + 1,) * 2)
    overlap[0, 0], overlap[1, 1] = middle @ middle, gap @ gap / 4
    overlap[0, 1] = overlap[1, 0] = middle @ gap / 2
    overlap /= len(middle)
    one = np.zeros_like(overlap)
    one[0, 0] = 1.0
    K = mlp.C_b[0] * one + mlp.C_W[0] * overlap
    Theta = mlp.lambda_b[0] * one + mlp.lambda_W[0] * overlap
    for layer in track(mlp.layers[1:], "layers"):
        signal, slope = (_expectation(mlp.activation, order, K) for order in (0, 1))
        growth = layer.gamma**2 * one + layer.C_W * slope
        Theta = layer.lambda_b * one + layer.lambda_W * signal + _times(growth, Theta)
        K = layer.C_b * one + layer.C_W * signal + layer.gamma**2 * K
    return TangentSeries(
        float(Theta[0, 0]),
        2 * float(Theta[1, 0]),
        2 * float(Theta[2, 0]),
        float(Theta[1, 1]),
        float(Theta[2, 1]),
    )


def _times(a: Array, b: Array) -> Array:
    """Product of two series in e_1, e_2, cut where nothing that is kept depends on."""
    size = _ORDER + 1
    return np.asarray(np.where(_KEPT, convolve2d(a, b)[:size, :size], 0.0))


def _expectation(act: Activation, order: int, K: Array) -> Array:
    """<s_1 s_2> as a series, s the derivative of this order: Taylor's in K_11, K_12, K_22 around K_00.

    The coefficient of K_11^a K_12^b K_22^c is <s^(2a+b) s^(2c+b)> / (2^(a+c) a! b! c!), at one variance.
    """
    cross = K.copy()
    cross[0, 0] = 0.0
    alone = np.array([np.trace(np.fliplr(cross), offset=_ORDER - power) for power in range(_ORDER + 1)])
    first, second = np.zeros_like(K), np.zeros_like(K)
    first[:, 0], second[0, :] = alone, alone
    first, second = np.where(_KEPT, first, 0.0), np.where(_KEPT, second, 0.0)
    total = np.zeros_like(K)
    for a, b, c in np.ndindex(*(_ORDER + 1,) * 3):
        # e_1 alone to the third power is not kept, nor therefore a or c = 3.
        if a + b + c > _ORDER or max(a, c) > _HIGHEST:
            continue
        pair = factor(act, order + 2 * a + b) * factor(act, order + 2 * c + b)
        mean = float(expectation([pair], K[:1, :1], tolerance=1e-13).value)
        weight = 2.0 ** (a + c) * math.prod(math.factorial(k) for k in (a, b, c))
        monomial = np.zeros_like(K)
        monomial[0, 0] = 1.0
        for series in [first] * a + [cross] * b + [second] * c:
            monomial = _times(series, monomial)
        total += mean / weight * monomial
    return total


class TwoOutputs(NamedTuple):
    """Initial outputs of one network on x_+, x_- and on the test inputs; all zero gives the mean over networks."""

    plus: ArrayLike = 0.0
    minus: ArrayLike = 0.0
    test: ArrayLike = 0.0


_MEAN = TwoOutputs()


def expanded_prediction(
    series: TangentSeries,
    s: ArrayLike,
    y_plus: ArrayLike,
    y_minus: ArrayLike,
    outputs: TwoOutputs = _MEAN,
) -> Array:
    """Prediction at s to second order in delta_x, for y_+ - y_- of first order: (10.113) corrected.

    With D_± = z_± - y_±, t = dTheta_[1], c the cubic coefficient and det = 4 Theta_00 ddTheta_[2] - t^2:
    s (1 - s) / det {2 ddTheta_[0] [2 ddTheta_[2] (D_+ + D_-) - t (D_+ - D_-)]
                     + 4 c [2 Theta_00 (D_+ - D_-) - t (D_+ + D_-)]}
    is added to the linear interpolation of y and to what the initial outputs deviate from theirs.
    """
    if not series.determinant > 0:
        raise InputError(
            "the two training inputs coincide for the network: give a delta_x that moves the kernel."
        )
    places = np.asarray(real_array("s", s))
    plus, minus, test, up, down = (np.asarray(value, dtype=float) for value in (*outputs, y_plus, y_minus))
    total, difference = (plus - up) + (minus - down), (plus - up) - (minus - down)
    bent = 2 * series.mean * (2 * series.distance * total - series.first * difference)
    skewed = 4 * series.cubic * (2 * series.middle * difference - series.first * total)
    start = test - places * plus - (1 - places) * minus
    linear = places * up + (1 - places) * down
    return np.asarray(start + linear + places * (1 - places) / series.determinant * (bent + skewed))


def expanded_mean_as_printed(
    series: TangentSeries, s: ArrayLike, y_plus: ArrayLike, y_minus: ArrayLike
) -> Array:
    """(10.117) for equal norms with the printed prefactor 4 s (1 - s), four times too large."""
    places, up, down = (np.asarray(value, dtype=float) for value in (s, y_plus, y_minus))
    bend = 4 * places * (1 - places) * series.curvature * (up + down)
    return np.asarray(places * up + (1 - places) * down - bend)
