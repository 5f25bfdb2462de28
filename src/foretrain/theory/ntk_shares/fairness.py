"""The equivalence principle put to a network: do all layers and groups contribute at one order (section 9.4)?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Result
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.ntk_shares.terms import contributions, diagonal, refuse_no_kernel
from foretrain.theory.recursions.kinks import inputs_on_kinks, warn_of_kinks

Array = NDArray[np.float64]

_FAIR_SPREAD = 10.0
_FAIR_EXPONENT = 0.25


@dataclass(frozen=True, repr=False)
class GroupScaling(Result):
    """How the contributions of one group, averaged over inputs, run with the layer."""

    also = ("is_fair",)
    total: float  # the group's part of Theta
    exponent: float  # of share ~ layer^exponent, fitted; nan with fewer than two layers that learn
    rate: float  # of share ~ e^(rate layer), fitted
    is_exponential: bool  # which of the two fits better
    spread: float  # largest over smallest share of the layers that learn; infinite if some are starved
    dominant: tuple[int, ...]  # fewest layers that together hold half of the group, in order of share
    starved: tuple[int, ...] = ()  # layers with a positive learning rate that contribute nothing

    @property
    def is_fair(self) -> bool:
        """Whether all layers contribute at one order: no power of the layer and no large spread."""
        return self.spread <= _FAIR_SPREAD and not abs(self.exponent) > _FAIR_EXPONENT


@dataclass(frozen=True, repr=False)
class Equivalence(Result):
    """The equivalence principle put to one network and its inputs (section 9.4)."""

    also = ("holds",)
    bias: GroupScaling
    weight: GroupScaling
    sentence: str

    @property
    def holds(self) -> bool:
        """Whether layers within each group, and both groups, contribute at one order."""
        return self.bias.is_fair and self.weight.is_fair and _groups_fair(self.bias, self.weight)


def equivalence(mlp: MLP, X: ArrayLike) -> Equivalence:
    """Whether every layer and group contributes to the tangent kernel at the same order, from its diagonal.

    Contributions are averaged over inputs. Layers whose learning rate is zero count as left out on purpose.

    Examples
    --------
    >>> equivalence(MLP.critical("tanh", depth=100, width=50), [[1.0]]).holds
    True
    >>> equivalence(MLP("tanh", depth=100, width=50), [[1.0]]).bias.dominant[0]
    100
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    terms = contributions(mlp, diagonal(mlp, inputs).factors)
    total = terms.sum(axis=(0, 1))
    refuse_no_kernel(total)
    warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    parts = terms.mean(axis=2) / total.mean()
    bias, weight = (_scaling(parts[:, g], rates) for g, rates in enumerate((mlp.lambda_b, mlp.lambda_W)))
    return Equivalence(bias, weight, _verdict(bias, weight, mlp.depth))


def _scaling(parts: Array, rates: Sequence[float]) -> GroupScaling:
    learning = np.flatnonzero(parts > 0)
    starved = tuple(int(layer) + 1 for layer in np.flatnonzero((parts == 0) & (np.asarray(rates) > 0)))
    total = float(parts.sum())
    if not learning.size:
        return GroupScaling(total, math.nan, math.nan, False, math.inf if starved else 1.0, (), starved)
    found, layers = parts[learning], learning.astype(np.float64) + 1
    exponent, off_power = _slope(np.log(layers), np.log(found))
    rate, off_exponential = _slope(layers, np.log(found))
    order = np.argsort(-parts, kind="stable")
    count = int(np.searchsorted(np.cumsum(parts[order]), total / 2 * (1 - 1e-12))) + 1
    dominant = tuple(int(layer) + 1 for layer in order[:count])
    spread = math.inf if starved else float(found.max() / found.min())
    return GroupScaling(total, exponent, rate, off_exponential < off_power, spread, dominant, starved)


def _slope(x: Array, y: Array) -> tuple[float, float]:
    """Slope of a straight line through points, and the sum of squares that it leaves."""
    if len(x) < 2:
        return math.nan, math.nan
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(np.sum((y - offset - slope * x) ** 2))


def _groups_fair(bias: GroupScaling, weight: GroupScaling) -> bool:
    totals = bias.total, weight.total
    return min(totals) == 0 or abs(math.log(bias.total / weight.total)) <= math.log(_FAIR_SPREAD)


def _verdict(bias: GroupScaling, weight: GroupScaling, depth: int) -> str:
    both = (("biases", bias), ("weights", weight))
    problems = [_unfair(name, group, depth) for name, group in both if not group.is_fair]
    if not _groups_fair(bias, weight):
        ahead, other = ("biases", weight) if bias.total > weight.total else ("weights", bias)
        problems.append(f"{ahead} leave the other group {other.total:.2g} of the tangent kernel")
    if not problems:
        return (
            f"all layers contribute at the same order (largest over smallest share: biases {bias.spread:.3g}, "
            f"weights {weight.spread:.3g}; of the tangent kernel biases have {bias.total:.0%}, weights "
            f"{weight.total:.0%})."
        )
    cure = "use foretrain.theory.learning_rates.recommended"
    if any(group.starved for _, group in both):
        cure = "leave out inputs that are zero, or take the critical C_b and C_W of foretrain.criticality"
    return "; ".join(problems) + f": {cure}."


def _unfair(name: str, group: GroupScaling, depth: int) -> str:
    parts = []
    if group.starved:
        parts.append(
            f"{name} of {_range(group.starved)} learn but contribute nothing, because no signal passes"
        )
    if not math.isnan(group.exponent):
        law = f"e^({group.rate:.2g} layer)" if group.is_exponential else f"layer^{group.exponent:.2g}"
        parts.append(
            f"shares of {name} run as {law} with largest over smallest {group.spread:.3g}, half of them in "
            f"{len(group.dominant)} of {depth} layers ({_range(group.dominant)})"
        )
    return "; ".join(parts)


def _range(layers: tuple[int, ...]) -> str:
    return f"layers {min(layers)} to {max(layers)}" if len(layers) > 1 else f"layer {layers[0]}"
