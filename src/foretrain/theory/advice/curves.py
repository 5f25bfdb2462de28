"""Information between the two halves of the output against depth over width: the truncated series and the truth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.advice.result import Advice
from foretrain.theory.architecture import MLP
from foretrain.theory.information import (
    Estimate,
    complete_information,
    log_normal_law,
    mixture_information,
    printed_information,
    sampled_law,
)

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_REACH = 2.5  # in units of r*
_POINTS = 61
_NETWORKS = 6  # depths at which networks are drawn
_WORK = 6e7  # normal numbers to draw
_NARROWEST = 8


def information_curves(advice: Advice, draws: int = 3000, seed: Seed = 0) -> xr.Dataset:
    """``printed`` (A.71) and ``complete`` series by r = L/n up to 2.5 r*, and the exact information.

    Scale-invariant networks have the exact law of the limit n, L -> infinity, ``exact`` by r. Others are drawn, at
    the width of the advice or the largest affordable one (``drawn_width``): ``drawn`` by depth with its error.
    """
    import xarray as xr

    half, kind = advice.n_out / 2, advice.criticality.universality_class
    r = np.linspace(0, _REACH * advice.best_ratio, _POINTS)
    spread = advice.nu * r
    found = {"printed": ("r", printed_information(half, half, spread))}
    if kind != "half-stable":
        found["complete"] = ("r", complete_information(half, half, spread, kind))
    data = xr.Dataset(found, coords={"r": r}, attrs={"best_ratio": advice.best_ratio, "n_out": advice.n_out})
    if kind == "scale-invariant":
        exact = [
            mixture_information(log_normal_law(float(y)), half, half).value
            for y in track(spread, "exact law")
        ]
        return data.assign(exact=("r", exact))
    drawn = _drawn(advice, half, draws, seed)
    return data.merge(drawn).assign_attrs(data.attrs | drawn.attrs)


def _drawn(advice: Advice, half: float, draws: int, seed: Seed) -> xr.Dataset:
    import xarray as xr

    width = _affordable_width(advice, draws)
    least = 3 if advice.gamma else 2
    deepest = max(least, round(_REACH * advice.best_ratio * width))
    depths = np.unique(np.linspace(least, deepest, _NETWORKS).round().astype(int))
    x = math.sqrt((advice.first_kernel - advice.network.C_b[0]) / advice.network.C_W[0])
    tasks = list(zip(depths, spawn(seed, len(depths)), strict=True))
    values = [_one(advice, int(depth), width, x, half, draws, own) for depth, own in track(tasks, "networks")]
    return xr.Dataset(
        {
            "drawn": ("depth", [value.value for value in values]),
            "drawn_error": ("depth", [value.standard_error for value in values]),
        },
        coords={"depth": depths},
        attrs={"drawn_width": width, "draws": draws},
    )


def _one(advice: Advice, depth: int, width: int, x: float, half: float, draws: int, seed: Seed) -> Estimate:
    mlp = MLP.critical(advice.network.activation, depth, width, n_in=1, gamma=advice.gamma or None)
    return mixture_information(sampled_law(mlp, [x], draws, seed=seed), half, half)


def _affordable_width(advice: Advice, draws: int) -> int:
    """Depths add up to about half of the number of networks times the deepest."""
    largest = math.sqrt(2 * _WORK / (_NETWORKS * draws * _REACH * advice.best_ratio))
    return max(_NARROWEST, min(advice.width, int(largest)))
