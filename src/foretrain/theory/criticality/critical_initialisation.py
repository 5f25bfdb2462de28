"""A network at criticality: C_b, C_W and learning rates of every layer, and whether given inputs suit it.

Layers without a skip connection, the first and the output, take the plain critical values, so that they keep the
size of signals like the others. Learning rates follow the equivalence principle (``learning_rates``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality.critical_points import Criticality, CriticalPoint, criticality, weight_share
from foretrain.theory.criticality.fixed_points import fixed_points, flows_to
from foretrain.theory.learning_rates import balanced_rates, class_rates


def critical_network(
    mlp: MLP,
    X: ArrayLike | None = None,
    tuned: bool = False,
    lambda_b: float = 1.0,
    lambda_W: float = 1.0,
) -> MLP:
    """A network with critical variances and rates in place of its own; ``MLP.critical`` says what arguments mean."""
    plain = criticality(mlp.activation)
    point = _existing(plain)
    mlp = mlp if X is None else mlp.with_inputs(X)
    shares = np.array([weight_share(coupling) for coupling in mlp.gamma])
    enlarged = 1 + _relative_corrections(plain, mlp) if tuned else np.ones(mlp.depth)
    mlp = mlp.replace(C_b=list(point.C_b * shares), C_W=list(point.C_W * shares * enlarged))
    suited = None
    if X is not None:
        side = critical_side(mlp, X)
        if not side.attracted.all():
            warn_user(side.sentence)
        suited = mlp.check_inputs(X)[side.attracted]
    if plain.universality_class == "half-stable" and suited is not None and len(suited):
        # The kernel creeps to K* and has no law of its own on the way, so the inputs themselves say what balances.
        return balanced_rates(mlp, suited, lambda_b, lambda_W).on(mlp)
    return class_rates(plain, mlp.depth, lambda_b, lambda_W).on(mlp)


def critical_unless_given(
    activation: Any,
    depth: int,
    width: int | Sequence[int],
    C_b: float | None = None,
    C_W: float | None = None,
    gamma: float = 0.0,
    **others: Any,
) -> MLP:
    """A network with the variances and other arguments that are given, else those of a critical one.

    Where both variances are given, the activation need not have a critical initialisation, and rates are 1.
    """
    known = {name: value for name, value in others.items() if value is not None}
    sizes: dict[str, Any] = {"depth": depth, "width": width, "gamma": gamma or None}
    if C_b is not None and C_W is not None:
        return MLP(activation, **sizes, C_b=C_b, C_W=C_W, **known)
    given = {name: value for name, value in (("C_b", C_b), ("C_W", C_W)) if value is not None}
    return MLP.critical(activation, **sizes).replace(**given, **known)


def _existing(found: Criticality) -> CriticalPoint:
    if found.point is not None:
        return found.point
    act = found.activation
    at_zero = float(act.value(0.0))
    if found.others:
        near = found.others[0]
        advice = f"set C_b={near.C_b:.6g}, C_W={near.C_W:.6g} yourself if its {near.stability} point will do"
    elif at_zero and criticality(lambda z: act.value(z) - at_zero).exists:
        advice = f"subtract its value {at_zero:.6g} at 0, after which there is one"
    else:
        advice = "use another activation, such as tanh, relu or gelu"
    raise NotSupportedError(f"{act.label} has no critical initialisation, since {found.reason}: {advice}.")


def _relative_corrections(plain: Criticality, mlp: MLP) -> Array:
    """C_W_1 / (C_W n_{l-1}) of every layer; none in the first, whose fan-in is not a width (5.138), (5.142)."""
    couplings = set(mlp.gamma[1:-1]) or {0.0}
    if len(couplings) > 1:
        raise NotSupportedError(
            "corrections of order 1/n are known for one gamma in all hidden layers: leave out `tuned`, or use one."
        )
    found = criticality(plain.activation, couplings.pop())
    # What has to be cancelled is relative to the kernel, so the output layer needs the same share as the others.
    relative = found.tuned(1)[1] / _existing(found).C_W - 1
    return relative / np.array([math.inf, *mlp.hidden_widths])


@dataclass(frozen=True, repr=False)
class CriticalSide(Result):
    """Whether inputs start where the flow of the kernel leads to the critical fixed point, one entry per input."""

    K_star: float | None
    kernels: Array  # K of the first layer
    ends: Array  # where the kernel flows, infinity included
    attracted: NDArray[np.bool_]
    factors: Array  # multiply an input by this to start at K*; nan where none does
    sentence: str


def critical_side(network: MLP | Criticality, X: ArrayLike) -> CriticalSide:
    """Which inputs flow to the critical fixed point K*, and by what factor the others would have to be scaled.

    The kernel of the first layer is that of the network, or of a plain critical layer for a :class:`Criticality`;
    the layers after it are taken at criticality. A skip connection slows the flow and does not turn it.
    """
    point = _existing(criticality(network.activation))
    mlp = network if isinstance(network, MLP) else MLP(network.activation, 1, C_b=point.C_b, C_W=point.C_W)
    kernels = np.diag(mlp.first_kernel(X)).copy()
    if point.K_star is None:
        ones = np.ones(len(kernels))
        told = "Every kernel value is a fixed point: all inputs suit."
        return CriticalSide(None, kernels, kernels, ones > 0, ones, told)
    ends = flows_to(mlp.activation, point.C_b, point.C_W, kernels)
    attracted = np.abs(ends - point.K_star) <= 1e-6 * point.K_star
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = (point.K_star - mlp.C_b[0]) / (kernels - mlp.C_b[0])
        factors = np.where(np.isfinite(squares) & (squares > 0), np.sqrt(np.abs(squares)), np.nan)
    strayed = ~attracted
    if not strayed.any():
        told = f"All {len(kernels)} inputs flow to K* = {point.K_star:.6g}."
    else:
        cure, usable = "choose other C_b and C_W for the first layer", factors[strayed & np.isfinite(factors)]
        if len(usable):
            cure = (
                f"multiply them by {_span(usable)} so that they start at K*, or C_W of layer 1 by "
                f"{_span(usable**2)}"
            )
        told = (
            f"{strayed.sum()} of {len(kernels)} inputs start at K = {_span(kernels[strayed])}, on the side of "
            f"K* = {point.K_star:.6g} that repels, and {_destination(mlp.activation, point, ends[strayed])}: "
            f"{cure}."
        )
    return CriticalSide(point.K_star, kernels, ends, attracted, factors, told)


def _destination(act: Activation, point: CriticalPoint, ends: Array) -> str:
    if not np.isfinite(ends).all():
        return "grow without bound"
    target = float(ends[0])
    reached = next(
        p
        for p in fixed_points(act, point.C_b, point.C_W)
        if p.K is not None and math.isclose(p.K, target, rel_tol=1e-9)
    )
    verb = "merge" if reached.chi_perpendicular < 1 else "part"
    return (
        f"drift to K = {target:.6g}, where nearby inputs {verb} over {reached.depth_perpendicular:.3g} layers"
    )


def _span(values: Array) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if math.isclose(low, high, rel_tol=1e-3) else f"{low:.4g} to {high:.4g}"
