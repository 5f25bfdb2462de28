"""What every layer and parameter group contributes to the tangent kernel of the output, and whether that is fair.

The infinite-width tangent kernel is a sum over layers and groups (9.28): biases of layer l give lambda_b P and its
weights lambda_W G P, with the signals G = <s s> of the layer before (x.x / n_0 at layer 1) and the growth
P = prod (gamma^2 + C_W <s' s'>) from layer l to the output, entry by entry in the inputs. The equivalence principle
asks that all of them be of the same order (section 9.4).

``shares``         the terms and their part of the whole
``equivalence``    how they scale with the layer, and a verdict
``gradients``      the factors of a gradient that may explode or vanish (9.87)-(9.93)
``diagonal``       G, P and both susceptibilities of each input with itself; ``contributions`` makes the terms of them
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.kernel_functions import shared_functions
from foretrain.theory.recursions.expectations import PairExpectations, next_kernel
from foretrain.theory.recursions.kinks import inputs_on_kinks, warn_of_kinks

if TYPE_CHECKING:
    import xarray as xr


GROUPS = ("bias", "weight")


class Factors(NamedTuple):
    """What the terms of (9.28) are made of, for layers 1..L and any shape of inputs after that."""

    kernels: Array  # K of every layer
    signals: Array  # G of the layer before: <s s>, or x.x / n_0
    growth: Array  # P from every layer to the output, 1 at the output itself


class Diagonal(NamedTuple):
    """The same for each input with itself (L, N), with what one layer multiplies (L-1, N)."""

    factors: Factors
    parallel: Array  # chi_parallel from layer l to l + 1 (B.15)
    perpendicular: Array  # chi_perp (B.16)


def shares(mlp: MLP, X: ArrayLike, tolerance: float = 1e-10) -> xr.Dataset:
    """Terms of (9.28), which add up to Theta of the output, for every layer, group and pair of inputs.

    ``contribution`` is the term, ``share`` its part of Theta (of no use for a pair whose Theta is near zero),
    ``growth`` the product P to the output and ``signal`` the G that multiplies lambda_W.

    Examples
    --------
    >>> found = shares(MLP("relu", depth=4, width=50, C_W=2.0), [[1.0]])
    >>> found["share"].sum("group").values.ravel()
    array([0.25, 0.25, 0.25, 0.25])
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    found = _pair_factors(mlp, inputs, tolerance)
    terms = contributions(mlp, found)
    total = terms.sum(axis=(0, 1))
    _refuse_no_kernel(np.diagonal(total))
    warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = terms / total
    pair = ("input_1", "input_2")
    return labelled(
        {
            "contribution": (("layer", "group", *pair), terms, "term of the tangent kernel (9.28)"),
            "share": (("layer", "group", *pair), parts, "contribution over Theta"),
            "Theta": (pair, total, "tangent kernel of the output at infinite width"),
            "growth": (("layer", *pair), found.growth, "prod (gamma^2 + C_W <s' s'>) to the output"),
            "signal": (("layer", *pair), found.signals, "<s s> of the layer before, x.x/n_0 at first"),
        },
        {"network": repr(mlp)},
        counted=("layer",),
        group=list(GROUPS),
    )


def _refuse_no_kernel(kernel: Array) -> None:
    """An error where the tangent kernel of an input with itself has no parts to speak of."""
    if not (np.isfinite(kernel) & (kernel > 0)).all():
        raise InputError(
            "the tangent kernel of some input is zero or not finite: give it a positive learning rate, or move C_W "
            "towards the critical value."
        )


def contributions(mlp: MLP, found: Factors) -> Array:
    """lambda_b P and lambda_W G P: (L, 2, ...) (9.28)."""
    shape = (-1,) + (1,) * (found.growth.ndim - 1)
    bias = np.reshape(mlp.lambda_b, shape) * found.growth
    weight = np.reshape(mlp.lambda_W, shape) * found.signals * found.growth
    return np.stack([bias, weight], axis=1)


def _pair_factors(mlp: MLP, inputs: Array, tolerance: float) -> Factors:
    """For all pairs of inputs (L, N, N)."""
    if len(inputs) == 1:
        own = diagonal(mlp, inputs).factors
        return Factors(*(values[:, :, None] for values in own))
    _refuse_jumps(mlp)
    size = len(inputs)
    require_memory(
        8 * 6 * mlp.depth * size**2,
        f"the shares of {size:,} inputs at {mlp.depth:,} layers",
        "use fewer inputs",
    )
    kernels, signals, steps = [mlp.first_kernel(inputs)], [inputs @ inputs.T / inputs.shape[1]], []
    for layer in track(mlp.layers[1:], "layers"):
        old = PairExpectations(mlp.activation, kernels[-1], tolerance)
        signals.append(old.of(0, 0))
        steps.append(layer.gamma**2 + layer.C_W * old.of(1, 1))
        kernels.append(next_kernel(old, layer))
    return Factors(np.stack(kernels), np.stack(signals), _to_output(np.reshape(steps, (-1, size, size))))


def diagonal(mlp: MLP, X: ArrayLike) -> Diagonal:
    """The factors of each input with itself, to any depth."""
    _refuse_jumps(mlp)
    signal = np.mean(mlp.check_inputs(X) ** 2, axis=1)
    kernel = mlp.C_b[0] + mlp.C_W[0] * signal
    functions = shared_functions(mlp.activation)
    kernels, signals = np.empty((mlp.depth, len(kernel))), np.empty((mlp.depth, len(kernel)))
    parallel, perpendicular = (np.empty((mlp.depth - 1, len(kernel))) for _ in range(2))
    kernels[0], signals[0] = kernel, signal
    for index, layer in enumerate(mlp.layers[1:], start=1):
        square, slope, _, slope_square, _, _ = np.transpose([functions.fast(K) for K in kernels[index - 1]])
        signals[index] = square
        kernels[index] = layer.C_b + layer.C_W * square + layer.gamma**2 * kernels[index - 1]
        parallel[index - 1] = layer.gamma**2 + layer.C_W * slope
        perpendicular[index - 1] = layer.gamma**2 + layer.C_W * slope_square
    return Diagonal(Factors(kernels, signals, _to_output(perpendicular)), parallel, perpendicular)


def _to_output(steps: Array) -> Array:
    """Products of the steps from every layer 1..L to the last."""
    last = np.ones((1, *steps.shape[1:]))
    return np.concatenate([steps, last])[::-1].cumprod(axis=0)[::-1]


def _refuse_jumps(mlp: MLP) -> None:
    if not mlp.activation.is_continuous:
        raise NotSupportedError(
            f"the tangent kernel of {mlp.activation.label} is infinite, since the activation jumps: choose a "
            "continuous one."
        )


_EXPONENTIAL = 3.0  # depth times the rate at the output; powers of depth that occur at criticality stay below


def gradients(mlp: MLP, X: ArrayLike) -> xr.Dataset:
    """The factors of a gradient (9.87)-(9.90) as mean squares over networks, for every layer and input.

    ``chain`` is the product of chi_perp from a layer to the output (9.93), the mean square of the derivative of one
    output along a random direction of the layer, times its width. ``signal`` is the mean square of the trivial factor
    of the weights (1 for biases). ``kernel`` of the last layer sizes the error factor. ``chi_parallel`` and
    ``chi_perpendicular`` are those of the step to the next layer. The attribute ``verdict`` says what explodes or
    vanishes.
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    found = diagonal(mlp, inputs)
    warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    pad = np.full((1, found.parallel.shape[1]), np.nan)
    parallel, perpendicular = (np.concatenate([chi, pad]) for chi in (found.parallel, found.perpendicular))
    where, (kernels, signals, growth) = "layer input", found.factors
    return labelled(
        {
            "chain": (where, growth, "prod chi_perp to the output (9.93)"),
            "signal": (where, signals, "mean square of the signal that enters the layer (9.90)"),
            "kernel": (where, kernels, "variance of a preactivation; of an output in the last layer (9.92)"),
            "chi_parallel": (where, parallel, "growth of norms to the next layer"),
            "chi_perpendicular": (where, perpendicular, "growth of distances to the next layer"),
        },
        {"verdict": _gradient_verdict(found)},
        counted=("layer",),
    )


def _gradient_verdict(found: Diagonal) -> str:
    """From the last step of all: what runs as a power of depth has a rate of order 1 / L there."""
    steps = len(found.perpendicular)
    if not steps:
        return "one layer: there is no chain of layers to explode or vanish."
    kernels = found.factors.kernels
    with np.errstate(divide="ignore", invalid="ignore"):
        chain = _last_rate(found.perpendicular)
        size = _last_rate(kernels[1:] / kernels[:-1])
    parts = []
    if abs(chain) * steps > _EXPONENTIAL:
        word = "explode" if chain > 0 else "vanish"
        parts.append(f"gradients of early layers {word}, by e every {1 / abs(chain):.3g} layers (chi_perp)")
    if size * steps > _EXPONENTIAL:
        parts.append(
            f"outputs and with them error factors grow by e every {1 / size:.3g} layers (chi_parallel)"
        )
    elif size * steps < -_EXPONENTIAL:
        parts.append(
            f"signals shrink by e every {-1 / size:.3g} layers and starve the weights (chi_parallel)"
        )
    if not parts:
        return "neither gradients nor signals change exponentially with depth."
    return "; ".join(parts) + ": take the critical C_b and C_W of foretrain.criticality."


def _last_rate(ratios: Array) -> float:
    """The mean over inputs of the logarithm of their last ratio (steps, inputs) that is a number.

    Inputs that are zero have none, and beyond what floats can hold there is none either.
    """
    usable = np.isfinite(ratios) & (ratios > 0)
    rates = [np.log(column[chosen][-1]) for column, chosen in zip(ratios.T, usable.T) if chosen.any()]
    return float(np.mean(rates)) if rates else 0.0


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
    _refuse_no_kernel(total)
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
    problems = []
    for name, group in both:
        if group.is_fair:
            continue
        if group.starved:
            problems.append(
                f"{name} of {_range(group.starved)} learn but contribute nothing, because no signal passes"
            )
        if not math.isnan(group.exponent):
            law = f"e^({group.rate:.2g} layer)" if group.is_exponential else f"layer^{group.exponent:.2g}"
            problems.append(
                f"shares of {name} run as {law} with largest over smallest {group.spread:.3g}, half of them in "
                f"{len(group.dominant)} of {depth} layers ({_range(group.dominant)})"
            )
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


def _range(layers: tuple[int, ...]) -> str:
    return f"layers {min(layers)} to {max(layers)}" if len(layers) > 1 else f"layer {layers[0]}"
