"""Learning rates by the equivalence principle: every layer and parameter group moves the output at the same order.

``class_rates``     powers of the layer, one law for each universality class (9.94)-(9.96)
``balanced_rates``  numbers that make the contributions exactly equal for given inputs, critical or not
``recommended``     the one that fits what is known

Both are normalised so that the tangent kernel of the output is of order one, whatever the depth: the actual step of a
bias is eta lambda_b^(l), that of a weight eta lambda_W^(l) / n_{l-1} (8.6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result
from foretrain.support.arguments import Array, whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import Criticality, criticality
from foretrain.theory.ntk_shares import diagonal

_SAME = 1e-6


@dataclass(frozen=True, repr=False, eq=False)
class Rates(Result):
    """lambda_b and lambda_W of layers 1..L, and the rule they follow."""

    lambda_b: Array
    lambda_W: Array
    rule: str

    def on(self, mlp: MLP) -> MLP:
        """The same network with these learning rates."""
        return mlp.replace(lambda_b=list(self.lambda_b), lambda_W=list(self.lambda_W))


def recommended(
    network: MLP | Criticality,
    X: ArrayLike | None = None,
    depth: int | None = None,
    lambda_b: float = 1.0,
    lambda_W: float = 1.0,
) -> Rates:
    """Learning rates of every layer: the law of the class, or with inputs ``X`` those that balance them exactly.

    ``network`` is an MLP, or a :class:`Criticality` with a ``depth``; away from criticality there is no law, so an
    MLP that is not critical needs ``X``. ``lambda_b`` and ``lambda_W`` are the overall rates of the two groups.

    Examples
    --------
    >>> recommended(MLP.critical("tanh", depth=4, width=100)).lambda_b.round(4)
    array([1.    , 0.5   , 0.3333, 0.25  ])
    >>> tuned = recommended(MLP("tanh", depth=4, width=100, C_W=1.5), X=[[1.0]])
    >>> tuned.lambda_W.round(4)
    array([0.5975, 0.7557, 0.8478, 0.9171])
    """
    if isinstance(network, Criticality):
        if depth is None or X is not None:
            raise InputError(
                "for a Criticality give `depth=` and no X; to balance inputs give the network, such as "
                "MLP.critical(..., depth, width)."
            )
        return class_rates(network, whole_number("depth", depth), lambda_b, lambda_W)
    if not isinstance(network, MLP):
        raise InputError(f"the network is {network!r}: give an MLP, or ft.criticality(...) with a depth.")
    if depth not in (None, network.depth):
        raise InputError(f"`depth` is {depth} but the network has {network.depth} layers: leave `depth` out.")
    if X is not None:
        return balanced_rates(network, X, lambda_b, lambda_W)
    found = criticality(network.activation)
    if not _is_critical(network, found):
        raise InputError(
            "C_b and C_W of this network are not critical, so that no law says how its layers compare: give inputs "
            "X, or use MLP.critical."
        )
    return class_rates(found, network.depth, lambda_b, lambda_W)


def class_rates(found: Criticality, depth: int, lambda_b: float = 1.0, lambda_W: float = 1.0) -> Rates:
    """The laws (9.94)-(9.96), from the two overall rates.

    A layer's share of the tangent kernel is lambda_b (l/L)^p_perp for biases, and the same times K ~ l^(-p_0) for
    weights; each is made lambda / L. At a half-stable K* > 0 nothing runs with depth, and weights are divided by
    g(K*), so that a signal at K* has Theta = lambda_b + lambda_W.
    """
    _check_overall(lambda_b, lambda_W)
    layers = np.arange(1, depth + 1, dtype=float)
    if found.universality_class == "scale-invariant":
        return Rates(np.full(depth, lambda_b / depth), np.full(depth, lambda_W / depth), "lambda / L (9.94)")
    if found.universality_class == "half-stable":
        point = found.point
        assert point is not None
        assert point.K_star is not None
        # g(K*) from K* (1 - gamma^2) = C_b + C_W g(K*).
        signal = (point.K_star * (1 - found.gamma**2) - point.C_b) / point.C_W
        weight = lambda_W / (depth * signal)
        return Rates(
            np.full(depth, lambda_b / depth), np.full(depth, weight), "lambda_b / L, lambda_W / (L g(K*))"
        )
    if found.universality_class == "none":
        raise NotSupportedError(
            f"{found.activation.label} has no critical initialisation, hence no law of learning rates: give a "
            "network and inputs X."
        )
    p_0, p_perpendicular = found.exponents["p_0"], found.exponents["p_perpendicular"]
    if not math.isfinite(p_perpendicular):
        raise NotSupportedError(
            f"no power of depth balances the layers of {found.activation.label}, whose perpendicular perturbations "
            "change faster than any power: give a network with the critical C_b and C_W, and inputs X."
        )
    shared = depth ** (p_perpendicular - 1)
    return Rates(
        lambda_b * shared * layers**-p_perpendicular,
        lambda_W * shared * layers ** (p_0 - p_perpendicular),
        f"lambda_b l^(-{p_perpendicular:g}), lambda_W l^({p_0 - p_perpendicular:g}) (9.95), (9.96)",
    )


def balanced_rates(
    mlp: MLP,
    X: ArrayLike,
    lambda_b: float = 1.0,
    lambda_W: float = 1.0,
    wanted: ArrayLike | None = None,
) -> Rates:
    """Rates at which the terms of (9.28), averaged over inputs, are what is wanted of every layer.

    ``wanted`` are relative contributions of layers 1..L, equal by default; those of the biases add up to lambda_b
    and those of the weights to lambda_W, so that the mean diagonal of Theta is their sum. The network's own learning
    rates play no part.
    """
    _check_overall(lambda_b, lambda_W)
    parts = np.ones(mlp.depth) if wanted is None else np.asarray(wanted, dtype=float)
    if parts.shape != (mlp.depth,) or not np.isfinite(parts).all() or (parts < 0).any() or not parts.any():
        raise InputError(
            f"wanted must list {mlp.depth} contributions, one per layer, none negative and not all zero."
        )
    parts = parts / parts.sum()
    found = diagonal(mlp, X).factors
    bias, weight = found.growth.mean(axis=1), (found.signals * found.growth).mean(axis=1)
    for name, unit in (("biases", bias), ("weights", weight)):
        if not (np.isfinite(unit) & (unit > 0)).all():
            layer = int(np.argmin(np.isfinite(unit) & (unit > 0))) + 1
            raise InputError(
                f"{name} of layer {layer} move the output by {unit[layer - 1]:g} on average, which no learning rate "
                "balances: move C_W towards the critical value, or give inputs that are not zero."
            )
    return Rates(
        lambda_b * parts / bias, lambda_W * parts / weight, f"balanced for {found.growth.shape[1]} inputs"
    )


def _check_overall(lambda_b: float, lambda_W: float) -> None:
    for name, value in (("lambda_b", lambda_b), ("lambda_W", lambda_W)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"`{name}` is {value!r}: give one finite number, zero or positive.")


def _is_critical(mlp: MLP, found: Criticality) -> bool:
    """Whether C_b and C_W are 1 - gamma^2 times the critical ones in all layers, up to corrections of order 1/n."""
    point = found.point
    if point is None:
        return False
    fan_ins = np.array([math.inf, *mlp.hidden_widths])
    room = _SAME + 2 * abs(point.corrections.get("C_W_1", 0.0)) / point.C_W / fan_ins
    share = 1 - np.array(mlp.gamma) ** 2
    C_b, C_W = np.array(mlp.C_b), np.array(mlp.C_W)
    close_b = np.abs(C_b - share * point.C_b) <= _SAME * max(point.C_b, _SAME)
    return bool((close_b & (np.abs(C_W / (share * point.C_W) - 1) <= room)).all())
