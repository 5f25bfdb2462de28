"""How deep a critical network may be before an expansion in 1/n stops being one, and how large a step.

What has to be small are the dimensionless ratios of all tensors of order 1/n: V/(nK^2) of the preactivations, D, F, A
and B of the tangent kernel, P to U of its differentials (9.23)-(9.25), (11.62), (∞.21). They grow as depth over
width, those of half-stable activations faster, so one of them binds. With skip connections only V is known, and
layers that have one are followed (an output without one differs by a number that does not grow with depth).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.support.answers import Result, labelled
from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics import dimensionless_ratios
from foretrain.theory.finite_width import LARGE, SMALL
from foretrain.theory.flow import flow

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_FIRST = 32
_DEEPEST = 1024  # layers that are followed one by one; the rest by the slope of the last half
_DEEPEST_RESIDUAL = 64  # there the cost is the square of the depth


@dataclass(frozen=True, eq=False, repr=False)
class PerturbativeDepths(Result):
    """The largest depths at which no ratio exceeds 0.1 (``small``) and 0.3 (``large``), and which ratio is next.

    ``ratios`` are those of the recursion by layer, at this width, ``slopes`` their growth per layer at its end.
    """

    width: int
    small: int
    large: int
    small_criterion: str
    large_criterion: str
    ratios: xr.Dataset
    slopes: dict[str, float]

    def at(self, depth: int) -> tuple[str, float]:
        """The largest ratio of a network of this depth: its name and size."""
        sizes = {name: float(_extended(self, name, np.array([depth]))[0]) for name in self.slopes}
        worst = max(sizes, key=lambda name: sizes[name])
        return worst, sizes[worst]

    def largest(self, depths: Array) -> Array:
        """The size of the largest ratio at many depths."""
        return np.asarray(np.max([_extended(self, name, depths) for name in self.slopes], axis=0))


def perturbative_depths(
    act: Activation, width: int, first_kernel: float, nu: float, gamma: float = 0.0
) -> PerturbativeDepths:
    """Depths for a critical network with the rates of its class, whose input has K = ``first_kernel`` at layer 1.

    ``nu`` is the growth of V/(nK^2) with L/n far beyond the layers that are followed, where it has not settled yet.
    """
    deepest = _DEEPEST_RESIDUAL if gamma else _DEEPEST
    depth = min(_FIRST, deepest)
    while True:
        ratios = _ratios(act, depth, width, first_kernel, gamma)
        sizes = np.max([np.abs(ratios[name].values) for name in ratios], axis=0)
        if depth >= deepest or sizes[-1] > LARGE:
            break
        depth = min(deepest, 4 * depth)
    half = depth // 2
    slopes = {
        str(name): float((abs(ratios[name][-1]) - abs(ratios[name][half - 1])) / (depth - half))
        for name in ratios
    }
    slopes["V/(nK^2)"] = max(slopes["V/(nK^2)"], nu / width)
    bare = PerturbativeDepths(width, 0, 0, "", "", ratios, slopes)
    small, large = (_last_below(bare, sizes, limit) for limit in (SMALL, LARGE))
    first, second = (bare.at(last + 1)[0] for last in (small, large))
    return PerturbativeDepths(width, small, large, first, second, ratios, slopes)


def _ratios(act: Activation, depth: int, width: int, first_kernel: float, gamma: float) -> xr.Dataset:
    """All ratios by layer: those of a network that ends there, too, since its rates differ by a factor."""
    mlp = MLP.critical(act, depth + bool(gamma), width, n_in=1, gamma=gamma or None)
    x = math.sqrt(max(0.0, first_kernel - mlp.C_b[0]) / mlp.C_W[0])
    if not gamma:
        return dimensionless_ratios(mlp, [x])
    found = flow(mlp, [[x]], ["K", "V"])
    K, V = (found[name].values.ravel()[:depth] for name in ("K", "V"))
    return labelled({"V/(nK^2)": ("layer", V / (width * K**2))}, counted=("layer",))


def _extended(depths: PerturbativeDepths, name: str, layers: Array) -> Array:
    known = np.abs(depths.ratios[name].values)
    last = len(known)
    beyond = known[-1] + depths.slopes[name] * (layers - last)
    inside = known[np.clip(layers, 1, last).astype(int) - 1]
    return np.asarray(np.where(layers <= last, inside, np.maximum(beyond, known[-1])))


def _last_below(depths: PerturbativeDepths, sizes: Array, limit: float) -> int:
    """The last depth before the largest ratio first exceeds the limit."""
    above = np.flatnonzero(sizes > limit)
    if len(above):
        return int(above[0])
    last = len(sizes)
    rooms = [
        (limit - abs(float(depths.ratios[name][-1]))) / slope
        for name, slope in depths.slopes.items()
        if slope > 0
    ]
    return last + math.floor(min(rooms)) if rooms else last


LOSSES = ("squared_error", "mse", "cross_entropy")
_SHARE = 0.5  # of the largest stable step: there the steepest direction reaches its minimum at once


class StableStep(NamedTuple):
    """eta at which descent on all inputs together begins to diverge at infinite width, and half of it."""

    loss: str
    largest: float
    recommended: float
    eigenvalue: float  # the largest of Theta on the inputs
    inputs: int


def check_loss(loss: str, n_out: int) -> None:
    """An error for a loss that is not known, or not for one output."""
    if loss not in LOSSES:
        raise unknown_name("`loss`", str(loss), LOSSES)
    if loss == "cross_entropy" and n_out < 2:
        raise InputError("cross entropy needs two outputs or more: set n_out to the number of classes.")


def stable_step(mlp: MLP, X: ArrayLike, loss: str) -> StableStep:
    """2 / curvature, since a step multiplies errors by 1 - eta curvature: the top of Theta times that of the loss.

    ``squared_error`` is half the SUM of squares, ``mse`` the mean over inputs and outputs as torch has it, and
    ``cross_entropy`` the mean over inputs, with the largest second derivative 1/2 that a softmax has anywhere.
    """
    check_loss(loss, mlp.n_out)
    Theta = flow(mlp, X, ["Theta"])["Theta"].values[-1]
    inputs, top = len(Theta), float(np.linalg.eigvalsh(Theta)[-1])
    bend = {"squared_error": 1.0, "mse": 2 / (inputs * mlp.n_out), "cross_entropy": 0.5 / inputs}[loss]
    largest = 2 / (top * bend)
    return StableStep(loss, largest, _SHARE * largest, top, inputs)
