"""One training input +, one test input -: how far the prediction is from y_+, and how it varies (section 10.3.1).

``one_training_input``      exact, for any two inputs (10.57), (10.58)
``nearby_training``         nearby inputs, order by order in their difference, at every layer (10.59)-(10.70)
``tangent_angles``          scale-invariant activations at any angle (10.83)-(10.91)
``robust_hyperparameters``  how robust deep networks are to small changes of a training input, by universality class

The robustness measure Theta_-+ / Theta_++ - 1 is what a network changes of its answer on the way from the training
input to a nearby one: near zero it repeats the answer, near -1 it forgets it. Laws are the leading order in depth.

Two training inputs x_± = x_0 ± delta_x / 2, test inputs on the line through them: x = s x_+ + (1 - s) x_- (10.99).

s in [0, 1] interpolates, any other extrapolates. Linear networks predict s y_+ + (1 - s) y_- exactly (10.104); the
tangent kernel of a smooth activation bends this by ddTheta_[0] / Theta_00, its inductive bias.

``on_the_line``          exact, at any distance
``tangent_series``       Theta of x_0 + e_1 delta_x / 2 and x_0 + e_2 delta_x / 2 to third order in e_1, e_2
``expanded_prediction``  the prediction to second order in delta_x, (10.113) corrected
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import convolve2d

from foretrain.activations import Activation
from foretrain.gaussian import expectation, factor
from foretrain.support.answers import Result
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track
from foretrain.theory.angles import angle_flow, sine_excess
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import two_inputs
from foretrain.theory.criticality import Criticality, criticality
from foretrain.theory.kernel_functions import KernelFunctions, KernelValues, shared_functions
from foretrain.theory.nearby import Nearby, first_layer, propagate
from foretrain.theory.prediction.infinite_width.gradient_descent import GradientDescent
from foretrain.theory.prediction.kernels import output_kernels
from foretrain.theory.prediction.predicted_outputs import Prediction

if TYPE_CHECKING:
    import xarray as xr


_MEANINGS = {
    "Theta00": "tangent kernel at the midpoint x_0",
    "Theta1": "dTheta_[1]: half the difference of the two diagonal entries, to first order (10.66)",
    "Theta0": "ddTheta_[0]: second-order shift of the mean from Theta00",
    "Theta2": "ddTheta_[2]: a quarter of Theta_++ + Theta_-- - 2 Theta_+-, to second order (10.70)",
    "robustness": "Theta_-+ / Theta_++ - 1, to second order (10.62), (10.64)",
    "variance": "of the trained output on the test input over networks, to second order (10.63), (10.65)",
}
_ANGLE_MEANINGS = {
    "psi": "angle between the two signals",
    "Theta_11": "tangent kernel of the training input (10.88)",
    "Theta_22": "tangent kernel of the test input",
    "cos_zeta": "Theta_12 / sqrt(Theta_11 Theta_22) (10.89)",
    "robustness": "Theta_12 / Theta_11 - 1 (10.57), which tends to -3/4 at equal norms (10.94)",
    "variance": "of the trained output on the test input over networks, which tends to 9 K / 16 (10.95)",
}


@dataclass(frozen=True, repr=False)
class OneTrainingInput(Result):
    """The prediction on one test input after training on one input."""

    robustness: float  # Theta_-+ / Theta_++ - 1
    variance: float

    def mean(self, y_train: float) -> float:
        """Prediction on the test input, averaged over networks."""
        return (1 + self.robustness) * y_train

    def bias(self, y_train: float, y_test: float) -> float:
        """Mean error (y_+ - y_-) + (Theta_-+ / Theta_++ - 1) y_+."""
        return y_train - y_test + self.robustness * y_train


def one_training_input(mlp: MLP, x_train: ArrayLike, x_test: ArrayLike) -> OneTrainingInput:
    """Robustness measure (10.57) and variance of the prediction on one test input, exact at infinite width.

    Examples
    --------
    >>> import foretrain as ft
    >>> round(one_training_input(ft.MLP("relu", depth=3, width=100, C_W=2.0), [1, 0], [0, 1]).robustness, 5)
    -0.50055
    """
    rows = two_inputs(x_train, x_test)
    kernels = output_kernels(mlp, rows[:1], rows[1:])
    if not kernels.Theta_train[0, 0] > 0:
        raise InputError(
            "the training input moves nothing (Theta is zero there): give positive learning rates."
        )
    ratio = float(kernels.Theta_cross[0, 0] / kernels.Theta_train[0, 0])
    K_train, K_cross, K_test = (float(kernels.joint[place]) for place in ((0, 0), (1, 0), (1, 1)))
    return OneTrainingInput(ratio - 1, K_test - 2 * ratio * K_cross + ratio**2 * K_train)


class SlopeFunctions(KernelFunctions):
    """:class:`KernelFunctions` with the slope s' in place of s; for smooth activations."""

    def _rule(self) -> Callable[[Array], list[Array]]:
        return self._of_slope

    def _of_slope(self, K: Array) -> list[Array]:
        """<s'^2>, its first two derivatives by K, <s''^2>, its derivative, and <s'^4>."""
        weights: list[list[tuple[float, int, int]]] = [
            [(1.0, 1, 1)],
            [(1.0, 2, 2), (1.0, 1, 3)],
            [(0.5, 1, 5), (2.0, 2, 4), (1.5, 3, 3)],
            [(1.0, 2, 2)],
            [(1.0, 3, 3), (1.0, 2, 4)],
        ]
        s = [factor(self.activation, order) for order in range(6)]
        found = [self._mean([(w, s[i] * s[j]) for w, i, j in parts], K) for parts in weights]
        return [*found, self._mean([(1.0, s[1] ** 4)], K)]


@lru_cache(maxsize=16)
def _slope_functions(act: Activation) -> SlopeFunctions:
    return SlopeFunctions(act)


class _Parts(NamedTuple):
    """A matrix of nearby inputs: value at the midpoint, and the parts [1], [0] and [2] of the rest."""

    middle: float
    first: float
    mean: float
    distance: float


def nearby_training(mlp: MLP, x_0: ArrayLike, delta_x: ArrayLike) -> xr.Dataset:
    """Kernel and tangent kernel of x_0 ± delta_x / 2 at every layer, with robustness and variance.

    The training input is x_0 + delta_x / 2. Activations must be smooth: with kinks the expansion is not analytic,
    and :func:`tangent_angles` has the exact answer.
    """
    start = first_layer(mlp, x_0, delta_x)
    # The first layer is linear in both, so that learning rates take the place of variances.
    tangent = first_layer(mlp.replace(C_b=list(mlp.lambda_b), C_W=list(mlp.lambda_W)), x_0, delta_x)
    return propagate_tangent(mlp, start, tangent)


def propagate_tangent(network: MLP, start: Nearby, tangent: Nearby) -> xr.Dataset:
    """Carry the components (00, [1], [2], [0]) of K and Theta of layer 1 through all layers (10.66)-(10.70)."""
    import xarray as xr

    if network.activation.kinks:
        raise NotSupportedError(
            f"{network.activation.label} has kinks, so that tangent kernels of nearby inputs have no expansion in "
            "their difference: use tangent_angles, or one_training_input."
        )
    kernel = propagate(network, start)
    values, slopes = shared_functions(network.activation), _slope_functions(network.activation)
    state = _Parts(tangent.K00, tangent.K1, tangent.K0, tangent.K2)
    states = [state]
    columns = [kernel[name].values for name in ("K00", "K1", "K0", "K2")]
    for place, layer in enumerate(track(network.layers[1:], "layers")):
        at = _Parts(*(float(column[place]) for column in columns))
        signal = _expectation(at, KernelValues(*values.fast(at.middle)))
        slope = _expectation(at, KernelValues(*slopes.fast(at.middle)))
        # Theta' = lambda_b + lambda_W <s s> + (gamma^2 + C_W <s' s'>) Theta, part by part.
        growth, rate, C_W = layer.gamma**2 + layer.C_W * slope.middle, layer.lambda_W, layer.C_W
        both = 0.5 * slope.first * state.first
        state = _Parts(
            layer.lambda_b + rate * signal.middle + growth * state.middle,
            rate * signal.first + growth * state.first + C_W * slope.first * state.middle,
            rate * signal.mean + growth * state.mean + C_W * (slope.mean * state.middle + both),
            rate * signal.distance + growth * state.distance + C_W * (slope.distance * state.middle + both),
        )
        states.append(state)
    middle, first, mean, distance = np.array(states).T
    tilt = first / middle
    K00, K1, K2 = (kernel[name].values for name in ("K00", "K1", "K2"))
    found = {
        "Theta00": middle,
        "Theta1": first,
        "Theta0": mean,
        "Theta2": distance,
        "robustness": -tilt - 2 * distance / middle + tilt**2,
        "variance": 4 * K2 - 2 * K1 * tilt + K00 * tilt**2,
    }
    added = {name: ("layer", value, {"meaning": _MEANINGS[name]}) for name, value in found.items()}
    return xr.merge([kernel[["K00", "K1", "K2", "K0"]], xr.Dataset(added)])


def _expectation(at: _Parts, f: KernelValues) -> _Parts:
    """<f f> of nearby inputs in parts, from functions of K_00 alone; f is s or s'."""
    square = 0.5 * at.first**2
    curved, curved_slope = f.square_slope - f.slope_square, f.square_bend - f.slope_square_slope
    return _Parts(
        float(f.square),
        float(f.square_slope) * at.first,
        float(f.square_slope * at.mean + curved * at.distance + curved_slope * square),
        float(f.slope_square * at.distance + f.slope_square_slope * square),
    )


def tangent_angles(mlp: MLP, x_train: ArrayLike, x_test: ArrayLike) -> xr.Dataset:
    """Tangent kernels of two inputs of a scale-invariant network at every layer, any norms, exact (10.88), (10.89).

    At criticality with an activation that is not linear, cos zeta tends to 1/4, whatever inputs and rates (10.93).
    """
    import xarray as xr

    if mlp.activation.slopes is None:
        raise NotSupportedError(
            f"{mlp.activation.label} is not scale-invariant: use one_training_input, or nearby_training."
        )
    angles = angle_flow(mlp, x_train, x_test)
    rows = two_inputs(x_train, x_test)
    overlap = mlp.lambda_b[0] + mlp.lambda_W[0] * (rows @ rows.T) / rows.shape[1]
    states = [np.array([overlap[0, 0], overlap[1, 1], overlap[0, 1]])]
    columns = [angles[name].values for name in ("psi", "K_11", "K_22")]
    minus, plus = mlp.activation.slopes
    A_2 = (minus**2 + plus**2) / 2
    rho = (plus - minus) ** 2 / (2 * math.pi * A_2)
    for place, layer in enumerate(track(mlp.layers[1:], "layers")):
        # <s s> and <s' s'> of (first, first), (second, second) and (first, second) (10.83)-(10.86).
        angle, K_11, K_22 = (float(column[place]) for column in columns)
        K_12 = math.sqrt(K_11 * K_22) * (math.cos(angle) + rho * sine_excess(angle))
        signal = A_2 * np.array([K_11, K_22, K_12])
        growth = layer.gamma**2 + layer.C_W * (A_2 * np.array([1.0, 1.0, 1 - rho * angle]))
        states.append(layer.lambda_b + layer.lambda_W * signal + growth * states[-1])
    first, second, cross = np.array(states).T
    psi, K_first, K_second = columns
    ratio, K_cross = cross / first, np.sqrt(K_first * K_second) * np.cos(psi)
    found = {
        "psi": psi,
        "Theta_11": first,
        "Theta_22": second,
        "cos_zeta": cross / np.sqrt(first * second),
        "robustness": ratio - 1,
        "variance": K_second - 2 * ratio * K_cross + ratio**2 * K_first,
    }
    labelled = {name: ("layer", value, {"meaning": _ANGLE_MEANINGS[name]}) for name, value in found.items()}
    return xr.Dataset(labelled, coords={"layer": np.arange(1, mlp.depth + 1)})


SCALE_INVARIANT_LIMITS = {"cos_zeta": 0.25, "robustness": -0.75, "variance / K": 9 / 16}  # (10.93)-(10.95)


class _Series(NamedTuple):
    """Derivatives of a K* = 0 activation at zero, and what they make."""

    slope: float
    bend: float
    a_1: float
    p_perpendicular: float


def class_robustness(
    activation: Any, depth: int, delta_squared: float, lambda_b: float = 1.0, lambda_W: float = 1.0
) -> float:
    """-2 ddTheta_[2] / Theta_00 of a critical K* = 0 network with the rates of the equivalence principle (10.78).

    ``delta_squared`` is the constant of ddK_[2] = delta^2 / l^p_perpendicular, which the inputs fix.
    """
    s = _series(activation)
    balance = lambda_b + lambda_W * s.slope**2 / -s.a_1
    if not balance > 0:
        raise InputError("lambda_b and lambda_W are both zero: nothing is learned; give a positive one.")
    inner = lambda_W * s.slope**2 / balance + (s.bend / s.slope) ** 2
    growth = math.pow(depth, 1 - s.p_perpendicular)
    return 2 * delta_squared / (s.p_perpendicular - 2) * inner * growth


def constant_rate_robustness(
    activation: Any, depth: int, delta_squared: float, lambda_b: float = 1.0, lambda_W: float = 1.0
) -> float:
    """The same for rates equal in all layers and an odd activation: -4 delta^2 / (lambda_b L) times [lambda_W s_1^2 +
    (-a_1) lambda_b / 2], the second term of which (10.80) and (10.81) lack."""
    s = _odd_series(activation, lambda_b)
    return -4 * delta_squared / (lambda_b * depth) * (lambda_W * s.slope**2 - s.a_1 * lambda_b / 2)


def constant_rate_robustness_as_printed(
    activation: Any, depth: int, delta_squared: float, lambda_b: float = 1.0, lambda_W: float = 1.0
) -> float:
    """(10.81) as printed, without the term of the biases: too small."""
    s = _odd_series(activation, lambda_b)
    return -4 * delta_squared / (lambda_b * depth) * lambda_W * s.slope**2


def linear_robustness(
    K: float, cos_psi: float, A_2: float = 1.0, lambda_b: float = 1.0, lambda_W: float = 1.0
) -> float:
    """cos zeta - 1 of a deep linear network at criticality (10.98): exact at every layer for equal rates in all."""
    weights = lambda_W * A_2 * K
    if not lambda_b + weights > 0:
        raise InputError("lambda_b and lambda_W are both zero: nothing is learned; give a positive one.")
    return (lambda_b + weights * cos_psi) / (lambda_b + weights) - 1


@dataclass(frozen=True, repr=False)
class RobustHyperparameters(Result):
    """What keeps a deep network of one activation robust to small changes of its inputs."""

    activation: str
    universality_class: str
    C_b: float
    C_W: float
    depth_power: float  # the robustness measure of nearby inputs changes like L to this power
    advice: str


def robust_hyperparameters(activation: Any) -> RobustHyperparameters:
    """Initialisation and learning rates for which nearby inputs get nearby answers at any depth.

    Examples
    --------
    >>> robust_hyperparameters("tanh").depth_power
    0.0
    """
    found = activation if isinstance(activation, Criticality) else criticality(activation)
    if found.point is None or found.C_b is None or found.C_W is None:
        raise NotSupportedError(
            f"{found.activation.label} has no critical initialisation, so that distances of nearby inputs grow or "
            "shrink exponentially with depth: choose another activation."
        )
    power, advice = _advice(found)
    return RobustHyperparameters(
        found.activation.label, found.universality_class, found.C_b, found.C_W, power, advice
    )


def _advice(found: Criticality) -> tuple[float, str]:
    if found.universality_class == "scale-invariant":
        assert found.activation.slopes is not None
        minus, plus = found.activation.slopes
        if minus == plus:
            return 0.0, "Linear: rates lambda / L, robust for lambda_b large against lambda_W A_2 K (10.98)"
        return 0.0, (
            "Rates lambda / L; past depth 3 / (rho psi) the measure is -3/4 for all inputs, whatever the rates: "
            "stay shallower to be robust (10.94)"
        )
    power = 1 - found.exponents["p_perpendicular"]
    if not math.isfinite(power):
        return power, "No power law: compare depths with nearby_training"
    if found.universality_class == "half-stable":
        return power, "The kernel stays near K* > 0: compare rates with nearby_training"
    if power == 0:
        return power, "Rates lambda_b / l and constant lambda_W: the same at any depth (9.95), (10.78)"
    return power, "Not odd, so that no rates of the equivalence principle stop the change with depth (10.78)"


def _series(activation: Any) -> _Series:
    found = activation if isinstance(activation, Criticality) else criticality(activation)
    if found.universality_class != "K*=0" or found.point is None:
        raise NotSupportedError(
            f"{found.activation.label} is of the class {found.universality_class}: this law is for K* = 0; for "
            "scale-invariant activations see tangent_angles and linear_robustness."
        )
    derivatives = found.activation.taylor(2)
    a_1 = found.point.coefficients["a_1"]
    return _Series(float(derivatives[1]), float(derivatives[2]), a_1, found.exponents["p_perpendicular"])


def _odd_series(activation: Any, lambda_b: float) -> _Series:
    s = _series(activation)
    if s.bend != 0:
        raise NotSupportedError("this law is for odd activations: iterate with nearby_training.")
    if not lambda_b > 0:
        raise InputError(f"`lambda_b` is {lambda_b!r}: Theta_00 = lambda_b L / 2 needs it positive.")
    return s


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
        signal, slope = (_series_of_expectation(mlp.activation, order, K) for order in (0, 1))
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


def _series_of_expectation(act: Activation, order: int, K: Array) -> Array:
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
