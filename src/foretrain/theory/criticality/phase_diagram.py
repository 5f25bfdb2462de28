"""Phases of initialisation: for every (C_b, C_W), where the kernel ends and whether nearby inputs merge or part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import make_interp_spline

from foretrain.activations import activation as find_activation
from foretrain.support.answers import labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.theory.criticality.critical_points import criticality, weight_share
from foretrain.theory.criticality.fixed_points import (
    ONE,
    Scan,
    correlation_depth,
    scan,
    straight_end,
    straight_growth,
)
from foretrain.theory.kernel_functions import KernelFunctions, kernel_means

if TYPE_CHECKING:
    import xarray


PHASES = {
    "exploding": "kernel grows without bound",
    "cycling": "kernel ends in a cycle: chi_parallel < -1",
    "critical": "chi_perp = chi_parallel = 1",
    "edge": "chi_perp = 1, but not chi_parallel",
    "chaotic": "nearby inputs part: chi_perp > 1",
    "vanishing": "kernel flows to 0, where chi_perp < 1",
    "ordered": "nearby inputs merge: chi_perp < 1",
}
"""Names and what they mean; where several fit, the first."""
_LINES = ("perpendicular", "parallel")
_BISECTIONS = 60
_BURN_IN = 200


def phase_lines(activation: Any, K: ArrayLike, gamma: float = 0.0) -> xarray.Dataset:
    """(C_W, C_b) on the lines chi_perp = 1 and chi_parallel = 1, parametrised by the fixed point K (section 5.3.1).

    Dimensions ``line`` ("perpendicular", "parallel") and ``K``. C_b may be negative, which no network can have;
    nan where a susceptibility cannot be one.

    Examples
    --------
    >>> lines = phase_lines("tanh", [0.5])
    >>> lines["C_W"].values.ravel().round(4), lines["C_b"].values.ravel().round(4)
    (array([1.688 , 3.0804]), array([ 0.038, -0.343]))
    """
    act, share = find_activation(activation), weight_share(gamma)
    kernels = np.atleast_1d(np.asarray(K, dtype=float))
    if kernels.ndim != 1 or not (np.isfinite(kernels).all() and (kernels >= 0).all()):
        raise InputError("K must be one list of finite kernel values that are not negative.")
    found = np.full((3, len(kernels)), np.nan)  # g, g' and <s'^2>, with their limits at K = 0
    zero = kernels == 0
    if zero.any():
        limit = KernelFunctions(act).at(0.0)
        found[:, zero] = np.array([[limit.square], [limit.square_slope], [limit.slope_square]])
    if not zero.all():
        order = np.argsort(kernels)
        order = order[~zero[order]]
        means = kernel_means(act, kernels[order], 1e-12)
        # A user's function is resolved up to some kernel; the rest is nan.
        found[:, order[: len(means.square)]] = means.square, means.square_slope, means.slope_square
    C_W, C_b = _on_lines(share, kernels, *found)
    return labelled(
        {"C_W": ("line K", C_W), "C_b": ("line K", C_b)},
        {"activation": act.label, "gamma": float(gamma)},
        line=list(_LINES),
        K=kernels,
    )


def _on_lines(share: float, K: Array, g: Array, parallel: Array, perpendicular: Array) -> tuple[Array, Array]:
    """C_W that makes a susceptibility one at K, and C_b that makes K a fixed point (5.71), (5.72)."""
    slopes = np.stack([perpendicular, parallel])
    C_W = share / np.where(slopes > 0, slopes, np.nan)
    return C_W, share * K - C_W * g


def phase_diagram(
    activation: Any,
    C_b: tuple[float, float] = (0.0, 1.0),
    C_W: tuple[float, float] = (0.0, 4.0),
    points: int = 60,
    gamma: float = 0.0,
    start: float = 1.0,
) -> xarray.Dataset:
    """The phase of every (C_b, C_W) of a grid, with the kernel reached from K = ``start`` at infinite depth.

    Variables over (C_b, C_W): ``K``, ``chi_parallel``, ``chi_perpendicular``, ``depth_parallel`` and
    ``depth_perpendicular`` (layers, see :func:`correlation_depth`) and ``phase``, a key of ``PHASES``. Beside them
    ``line_C_W`` and ``line_C_b``, the lines of :func:`phase_lines`, ``explosion_C_b`` by C_W, above which the kernel
    grows without bound, and ``critical_C_b``, ``critical_C_W``, ``critical_K``, ``critical_kind`` of the critical
    points. The grid is good to about eight digits.
    """
    act, share = find_activation(activation), weight_share(gamma)
    if not act.is_continuous:
        raise NotSupportedError(
            f"{act.label} jumps, so that nearby inputs part at every C_W > 0 (chi_perp is infinite): there is one "
            "phase only, and nothing to draw."
        )
    ranges = [_axis(name, bounds, points) for name, bounds in (("C_b", C_b), ("C_W", C_W))]
    if not 1e-9 <= start <= 100:
        raise InputError(f"start is {start:g}: give a kernel value from 1e-9 to 100.")
    require_memory(8 * points * (40 * points + 1200), "the phase diagram", "use fewer points")
    bias, weight = np.meshgrid(*ranges, indexing="ij")
    if act.slopes is not None:
        parallel = perpendicular = straight_growth(act.slopes, weight, gamma)
        K = straight_end(parallel, bias, start)
    else:
        # The first root of the gap in the direction of the flow, row by row, on interpolated functions.
        skip = 1 - share
        start = float(start)
        scanned = scan(act)
        x = np.log(scanned.kernels)
        square, slope, slope_square = (
            make_interp_spline(x, values, k=5)
            for values in (scanned.square, scanned.square_slope, scanned.slope_square)
        )
        limit = scanned.functions.at(0.0)
        starts = np.full(bias.shape, start)
        if (scanned.square_slope < 0).any():
            # A map that turns around can jump over fixed points: its first steps are followed.
            for _ in range(_BURN_IN):
                starts = bias + weight * square(_log(starts, scanned.kernels)) + skip * starts
        rows = zip(bias[:, 0], weight, starts, strict=True)
        K = np.stack([_first_root(b, w, skip, k, scanned, square) for b, w, k in rows])
        inside, at_zero = np.isfinite(K) & (K > 0), K == 0
        where = _log(np.where(inside, K, 1.0), scanned.kernels)
        parallel = np.where(inside, slope(where), np.where(at_zero, float(limit.square_slope), np.nan))
        at_rest = np.where(at_zero, float(limit.slope_square), np.nan)
        perpendicular = np.where(inside, slope_square(where), at_rest)
        K, parallel, perpendicular = K, skip + weight * parallel, skip + weight * perpendicular
    gamma = float(gamma)
    start = float(start)
    grid, known, scanned = ("C_b", "C_W"), criticality(act, gamma), scan(act)
    line_C_W, line_C_b = _on_lines(
        weight_share(gamma), scanned.kernels, scanned.square, scanned.square_slope, scanned.slope_square
    )
    # Every step from the start on goes up if C_b exceeds all of (1 - gamma^2) K - C_W g(K).
    ahead = scanned.kernels >= start
    falls = weight_share(gamma) * scanned.kernels[ahead] - np.multiply.outer(ranges[1], scanned.square[ahead])
    critical = [point for point in (known.point, *known.others) if point is not None]
    numbers = [[p.C_b, p.C_W, np.nan if p.K_star is None else p.K_star] for p in critical]
    columns = np.array(numbers, dtype=float).reshape(-1, 3).T
    # Of every point the first of ``PHASES`` that fits: conditions are in their order, without that of the
    # last.
    neither_merge_nor_part = np.abs(perpendicular - 1) < ONE
    conditions = [
        np.isinf(K),
        parallel < -1,
        neither_merge_nor_part & (np.abs(parallel - 1) < ONE),
        neither_merge_nor_part,
        perpendicular > 1,
        K == 0,
    ]
    *names, otherwise = PHASES
    return labelled(
        {
            "K": (grid, K),
            "chi_parallel": (grid, parallel),
            "chi_perpendicular": (grid, perpendicular),
            "depth_parallel": (grid, correlation_depth(parallel)),
            "depth_perpendicular": (grid, correlation_depth(perpendicular)),
            "phase": (grid, np.select(conditions, names, otherwise)),
            "explosion_C_b": ("C_W", falls.max(axis=1)),
            "line_C_W": ("line line_K", line_C_W),
            "line_C_b": ("line line_K", line_C_b),
            "critical_C_b": ("critical_point", columns[0]),
            "critical_C_W": ("critical_point", columns[1]),
            "critical_K": ("critical_point", columns[2]),
            "critical_kind": ("critical_point", np.array([p.kind for p in critical], dtype="<U15")),
            "critical_stability": ("critical_point", np.array([p.stability for p in critical], dtype="<U19")),
        },
        {"activation": act.label, "gamma": gamma, "start": start},
        C_b=ranges[0],
        C_W=ranges[1],
        line=list(_LINES),
        line_K=scanned.kernels,
    )


def _axis(name: str, bounds: tuple[float, float], points: int) -> Array:
    low, high = bounds
    if not (np.isfinite([low, high]).all() and 0 <= low < high):
        raise InputError(f"`{name}` runs from {low:g} to {high:g}: give 0 <= low < high.")
    if points < 2:
        raise InputError(f"`points` is {points}: give 2 or more.")
    return np.linspace(low, high, points)


def _log(K: Array, kernels: Array) -> Array:
    """log K, kept to the range of the table."""
    return np.asarray(np.log(np.clip(K, kernels[0], kernels[-1])))


def _first_root(C_b: float, C_W: Array, skip: float, start: Array, found: Scan, square: Any) -> Array:
    """Where the flow from ``start`` ends, for all C_W at once: infinite above, 0 below all roots."""
    kernels = found.kernels
    gaps = C_b + C_W[:, None] * found.square - (1 - skip) * kernels
    rising = C_b + C_W * square(_log(start, kernels)) - (1 - skip) * start > 0
    ahead = np.where(rising[:, None], (start[:, None] < kernels) & (gaps <= 0), False)
    behind = np.where(rising[:, None], False, (start[:, None] > kernels) & (gaps >= 0))
    far = np.where(rising, np.argmax(ahead, axis=1), len(kernels) - 1 - np.argmax(behind[:, ::-1], axis=1))
    exists = (ahead | behind).any(axis=1)
    near = np.clip(far + np.where(rising, -1, 1), 0, len(kernels) - 1)
    nearest = kernels[near]
    low = _log(np.where(rising, np.maximum(nearest, start), kernels[far]), kernels)
    high = _log(np.where(rising, kernels[far], np.minimum(nearest, start)), kernels)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        positive = C_b + C_W * square(middle) - (1 - skip) * np.exp(middle) > 0
        low, high = np.where(positive, middle, low), np.where(positive, high, middle)
    return np.where(exists, np.exp((low + high) / 2), np.where(rising, np.inf, 0.0))
