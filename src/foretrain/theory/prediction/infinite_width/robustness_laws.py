"""How robust deep networks are to small changes of a training input, by universality class (section 10.3.1).

The robustness measure Theta_-+ / Theta_++ - 1 is what a network changes of its answer on the way from the training
input to a nearby one: near zero it repeats the answer, near -1 it forgets it. Laws are the leading order in depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from foretrain.support.answers import Result
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.criticality import Criticality, criticality

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
