"""Recurrent matrices with 0, 1, 2 and 3 added fixed points: what h <- W tanh(h) does from random starts (figure 8).

Two families of points with orthogonal images: k e_i, one unit each as in the source, and k times orthogonal vectors of
signs, where every unit takes part. The gain is the spectral radius of the random part W_perp. From h near 0 the
overlap with a point grows by k / tanh(k) per step and the rest by the gain, so the law to test is that sign points
are reached up to the gain k / tanh(k); with k e_i all other units rest at 0, and W_perp takes over at gain 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.drawing import BLUE, FAINT, GREEN, INK, ORANGE, RED, new_mosaic
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.progress import track
from foretrain.support.seeds import spawn

if TYPE_CHECKING:
    import torch
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.training.fixed_points import FixedPointWeights

Array = NDArray[np.float64]

_UNITS = 256
_SIZE = 1.5  # k
_FAMILIES = ("basis", "signs")
_ADDED = (0, 1, 2, 3)
_SHOWN = {"basis": 0.9, "signs": 1.25}  # gains of the trajectories in the picture
_SETTLED = 1e-8  # largest change of a unit in one step at which a network has come to rest
_SAME = 1e-3  # largest distance of a unit within one attractor
_TANGENT_STEPS = 200
_COLORS = {0: INK, 1: BLUE, 2: ORANGE, 3: GREEN}
_ATTRACTORS = {"basis": (1, 2, 4, 8), "signs": (1, 2, 4, 6)}  # 2^added and 2 added; the origin without points


@dataclass(frozen=True)
class _Plan:
    gains: tuple[float, ...]
    sizes: tuple[float, ...]  # k of the gains at which points are lost
    starts: int
    draws: int  # random matrices
    steps: int
    halvings: int
    units: int = _UNITS


_PLANS = {
    Scale.QUICK: _Plan((0.5, 0.7, 0.9, 1.1, 1.25, 1.4, 1.55, 1.75, 1.9, 2.1), (1.0, 1.5, 2.0), 64, 3, 800, 5),
    Scale.PAPER: _Plan(
        (
            0.4,
            0.5,
            0.6,
            0.7,
            0.8,
            0.9,
            0.95,
            1.05,
            1.1,
            1.2,
            1.25,
            1.3,
            1.4,
            1.5,
            1.55,
            1.6,
            1.7,
            1.8,
            1.9,
            2.0,
            2.2,
        ),
        (0.5, 1.0, 1.5, 2.0, 2.5),
        256,
        8,
        2000,
        7,
    ),
}


def fixed_point_initialisation(scale: Scale, seed: int) -> Result:
    """Attractors, settling and Lyapunov exponents against the gain, for 0 to 3 added fixed points."""
    plan = _PLANS[scale]
    sweeping, losing, showing = spawn(seed, 3)
    data = _sweep(plan, sweeping).merge(_losses(plan, losing)).merge(_trajectories(plan, showing))
    data.attrs |= {"units": plan.units, "size": _SIZE, "starts": plan.starts, "draws": plan.draws}
    rows = _table(data)
    return Result(_verdict(data), rows, data, partial(_draw, data))


def _weights(
    family: str, added: int, gain: float, plan: _Plan, seed: np.random.SeedSequence, size: float = _SIZE
) -> FixedPointWeights:
    from foretrain.training.fixed_points import basis_points, fixed_point_weights, sign_points

    # The first vector of signs is that of ones, which is left out: the others are balanced.
    points = (
        basis_points(plan.units, added, size)
        if family == "basis"
        else sign_points(plan.units, added + 1, size)[1:]
    )
    return fixed_point_weights(points, gain=gain, seed=seed)


def _starts(count: int, units: int, seed: np.random.SeedSequence) -> torch.Tensor:
    import torch

    from foretrain.support.seeds import torch_generator

    return torch.randn(count, units, dtype=torch.float64, generator=torch_generator(seed))


def _run(matrix: torch.Tensor, h: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The last states, and which of them rest; stops when all do."""
    import torch

    change = torch.full((len(h),), math.inf)
    for _ in range(steps):
        after = torch.tanh(h) @ matrix.t()
        change, h = (after - h).abs().amax(1), after
        if float(change.max()) < _SETTLED:
            break
    return h, change < _SETTLED


def _attractors(ends: torch.Tensor) -> list[torch.Tensor]:
    """The different states among those at rest."""
    found: list[torch.Tensor] = []
    for end in ends:
        if all(float((end - other).abs().max()) > _SAME for other in found):
            found.append(end)
    return found


def _lyapunov(matrix: torch.Tensor, h: torch.Tensor) -> float:
    """The largest exponent per step: the mean growth of a small change along the way, over all states."""
    import torch

    change, grown = torch.ones_like(h), []
    for _ in range(_TANGENT_STEPS):
        shown = torch.tanh(h)
        change = (change * (1 - shown**2)) @ matrix.t()
        length = change.norm(dim=1, keepdim=True)
        change, h = change / length, shown @ matrix.t()
        grown.append(float(length.log().mean()))
    return float(np.mean(grown[_TANGENT_STEPS // 4 :]))


def _sweep(plan: _Plan, seed: np.random.SeedSequence) -> xarray.Dataset:
    """For every family, number of added points, gain and random matrix: what random starts come to."""
    import xarray

    shape = (len(_FAMILIES), len(_ADDED), len(plan.gains), plan.draws)
    names = ("attractors", "settled", "lyapunov", "residual", "radius", "to_point", "to_sum")
    found = {name: np.full(shape, np.nan) for name in names}
    places = [place for place in np.ndindex(*shape) if place[1] or not place[0]]  # no points, no family
    draws = spawn(seed, plan.draws)
    for place in track(places, "gains and points"):
        family, added, gain, draw = _FAMILIES[place[0]], _ADDED[place[1]], plan.gains[place[2]], place[3]
        for name, value in _measured(
            _weights(family, added, gain, plan, draws[draw]), plan, draws[draw]
        ).items():
            found[name][place] = value
    for values in found.values():
        values[1:, 0] = values[:1, 0]
    dims = ("family", "added", "gain", "draw")
    coords = {"family": list(_FAMILIES), "added": list(_ADDED), "gain": list(plan.gains)}
    return xarray.Dataset({name: (dims, values) for name, values in found.items()}, coords)


def _measured(weights: FixedPointWeights, plan: _Plan, seed: np.random.SeedSequence) -> dict[str, float]:
    ends, rests = _run(weights.matrix, _starts(plan.starts, plan.units, spawn(seed, 1)[0]), plan.steps)
    attractors = _attractors(ends[rests])
    has_points = bool(len(weights.points))
    return {
        "attractors": len(attractors),
        "settled": float(rests.double().mean()),
        "lyapunov": _lyapunov(weights.matrix, ends[:16]),
        "residual": float(weights.residuals.max()) if has_points else 0.0,
        "radius": _radius(weights) if has_points else math.nan,
        "to_point": _furthest(attractors, weights.points),
        "to_sum": _furthest(attractors, _sums(weights.points)),
    }


def _radius(weights: FixedPointWeights) -> float:
    """The spectral radius at the first point: the others are alike."""
    from foretrain.training.fixed_points import spectral_radii

    return float(spectral_radii(weights.matrix, weights.points[:1], weights.activation)[0])


def _sums(points: torch.Tensor) -> torch.Tensor:
    """All sums of plus or minus every point; the list holds the points and then their mirror images."""
    half = points[: len(points) // 2]
    return half.new_tensor(list(product((1.0, -1.0), repeat=len(half)))) @ half


def _furthest(attractors: list[torch.Tensor], expected: torch.Tensor) -> float:
    """How far the attractors are from the nearest of the expected states, at most."""
    if not attractors or not len(expected):
        return math.nan
    return max(float((expected - end).abs().amax(1).min()) for end in attractors)


def _losses(plan: _Plan, seed: np.random.SeedSequence) -> xarray.Dataset:
    """The gain from which on most starts no longer come to rest, by bisection, with two points added."""
    import xarray

    shape = (len(_FAMILIES), len(plan.sizes), plan.draws)
    found, draws = np.empty(shape), spawn(seed, plan.draws)
    for place in track(list(np.ndindex(*shape)), "gains at which points are lost"):
        family, size, draw = _FAMILIES[place[0]], plan.sizes[place[1]], draws[place[2]]
        low, high = (factor * _predicted_loss(family, size) for factor in (0.7, 1.4))
        for _ in range(plan.halvings):
            middle = (low + high) / 2
            matrix = _weights(family, 2, middle, plan, draw, size).matrix
            _, rests = _run(matrix, _starts(16, plan.units, spawn(draw, 1)[0]), plan.steps)
            low, high = (middle, high) if float(rests.double().mean()) > 0.5 else (low, middle)
        found[place] = (low + high) / 2
    predicted = [[_predicted_loss(family, size) for size in plan.sizes] for family in _FAMILIES]
    return xarray.Dataset(
        {"loss_gain": (("family", "size", "draw"), found), "predicted_loss": (("family", "size"), predicted)},
        {"size": list(plan.sizes)},
    )


def _predicted_loss(family: str, size: float) -> float:
    return 1.0 if family == "basis" else size / math.tanh(size)


def _trajectories(
    plan: _Plan, seed: np.random.SeedSequence, count: int = 24, steps: int = 60
) -> xarray.Dataset:
    """Coordinates along the first two points, 1 at the point: for 0, 1 and 2 added ones."""
    import torch
    import xarray

    matrix_seed, start_seed = spawn(seed, 2)
    found = np.empty((len(_FAMILIES), 3, count, steps + 1, 2))
    for place, family in enumerate(_FAMILIES):
        both = _weights(family, 2, 0.0, plan, matrix_seed).points[:2]
        for added in range(3):
            matrix = _weights(family, added, _SHOWN[family], plan, matrix_seed).matrix
            h = _starts(count, plan.units, start_seed)
            for step in range(steps + 1):
                found[place, added, :, step] = (h @ both.t() / both.square().sum(1)).numpy()
                h = torch.tanh(h) @ matrix.t()
    return xarray.Dataset({"trajectory": (("family", "shown_added", "start", "step", "direction"), found)})


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    residual = float(data.residual.max())
    rows = [Row("largest |W tanh(h) - h| at the added points", 0.0, residual, agrees=residual < 1e-12)]
    weak, strong = float(data.gain[data.gain < 1].max()), float(data.gain.max())
    rows += [_count_row(data, family, added, weak) for family in _FAMILIES for added in _ADDED]
    rows.append(_chaos_row(data, strong))
    within = _SHOWN["signs"]
    rows += [_count_row(data, family, added, within) for family in ("signs", "basis") for added in (1, 2)]
    rows += [_place_row(data, family, weak) for family in _FAMILIES]
    rows += [_radius_row(data, weak)]
    rows += [_loss_row(data, family, float(size)) for family in _FAMILIES for size in data["size"]]
    return tuple(rows)


def _count_row(data: xarray.Dataset, family: str, added: int, gain: float) -> Row:
    """Attractors that random starts find: one published number for 0, 1, 2 points, and the next one."""
    own = data.sel(family=family, added=added, gain=gain)
    counts, expected = own.attractors.values, _ATTRACTORS[family][added]
    here: float | str = float(counts.mean())
    agrees: bool | None = bool((counts == expected).all())
    note = ""
    if added == 3:
        note = "Not published: with k e_i the attractors are the 2^m sums of the points, with signs the 2 m points."
    if gain > 1 and family == "basis":
        here = f"none, {1 - float(own.settled.mean()):.0%} of the starts never rest"
        agrees = None
        note = (
            "The source's gains go from 1 to 2 without saying of what. As a spectral radius above 1 no k e_i survives; "
            "as a factor of torch's own recurrent draw (radius 1/sqrt 3) the claim holds up to sqrt 3 = 1.73."
        )
    title = "collapse to the origin" if added == 0 else f"{added} added"
    return Row(
        f"{_told(family)}, gain {gain:g}, {title}: attractors", expected, here, agrees=agrees, note=note
    )


def _chaos_row(data: xarray.Dataset, gain: float) -> Row:
    values = data.lyapunov.sel(family="basis", added=0, gain=gain).values
    error = _standard_error(values)
    settled = float(data.settled.sel(family="basis", added=0, gain=gain).max())
    return Row(
        f"no points, gain {gain:g}: chaos, Lyapunov exponent above",
        0.0,
        float(values.mean()),
        error,
        agrees=bool(values.mean() > 3 * error and settled == 0),
        note="Between gain 1 and about 1.3 networks of 256 units move without rest, but with an exponent near 0.",
    )


def _place_row(data: xarray.Dataset, family: str, gain: float) -> Row:
    own = data.sel(family=family, added=2, gain=gain)
    at_points, at_sums = float(own.to_point.max()) < _SAME, float(own.to_sum.max()) < _SAME
    here = "the points" if at_points else "sums of the points" if at_sums else "elsewhere"
    expected = {"basis": "sums of the points", "signs": "the points"}[family]
    note = ""
    if family == "basis":
        note = (
            "Units of different points do not feel each other: both may be on, and then the network is at rest. The "
            "added points themselves are saddles, so four attractors are not the four fixed points that were added."
        )
    return Row(
        f"{_told(family)}, 2 added: where the four attractors are",
        expected,
        here,
        agrees=here == expected,
        note=note,
    )


def _radius_row(data: xarray.Dataset, gain: float) -> Row:
    found = float(data.radius.sel(family="basis", added=2, gain=gain).mean())
    expected = _predicted_loss("signs", _SIZE)
    return Row(
        f"{_told('basis')}, 2 added, gain {gain:g}: spectral radius at an added point, k / tanh k",
        expected,
        found,
        agrees=abs(found - expected) < 1e-9,
    )


def _loss_row(data: xarray.Dataset, family: str, size: float) -> Row:
    own = data.sel(family=family, size=size)
    values, expected = own.loss_gain.values, float(own.predicted_loss)
    error = _standard_error(values)
    finite = expected / math.sqrt(data.attrs["units"])
    return Row(
        f"{_told(family)}, k = {size:g}: gain at which W_perp takes over",
        expected,
        float(values.mean()),
        error,
        agrees=bool(abs(values.mean() - expected) <= 2 * error + finite),
        note="Not published: a law of many units, tested to one over their root." if size == _SIZE else "",
    )


def _standard_error(values: Array) -> float:
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.inf


def _told(family: str) -> str:
    return {"basis": "points k e_i", "signs": "points k × signs"}[family]


def _verdict(data: xarray.Dataset) -> str:
    weak = float(data.gain[data.gain < 1].max())
    counts = [int(data.attractors.sel(family="signs", added=added, gain=weak).median()) for added in (1, 2)]
    lost = {family: float(data.loss_gain.sel(family=family, size=_SIZE).mean()) for family in _FAMILIES}
    return (
        f"Without added points networks collapse below gain 1 and never rest above; one added point gives {counts[0]} "
        f"attractors, two give {counts[1]}, until W_perp takes over at gain {lost['basis']:.2f} for points k e_i, whose "
        f"attractors are the sums of the points, and at {lost['signs']:.2f} for k = {_SIZE} times signs."
    )


def _draw(data: xarray.Dataset) -> Figure:
    layout = [[f"{family} {added}" for added in range(3)] for family in _FAMILIES]
    layout.append(["counts basis", "counts signs", "lyapunov"])
    title = f"Added fixed points of h ← W tanh(h), {data.attrs['units']} units, k = {_SIZE}"
    figure, panels = new_mosaic(title, layout, [1, 1, 1], (13, 11.5))
    for family in _FAMILIES:
        for added in range(3):
            _draw_trajectories(panels[f"{family} {added}"], data, family, added)
        _draw_counts(panels[f"counts {family}"], data, family)
    _draw_exponents(panels["lyapunov"], data)
    return figure


def _draw_trajectories(panel: Axes, data: xarray.Dataset, family: str, added: int) -> None:
    paths = data.trajectory.sel(family=family).isel(shown_added=added).values
    for path in paths:
        panel.plot(path[:, 0], path[:, 1], color=_COLORS[added], linewidth=0.7, alpha=0.45)
    panel.plot(*paths[:, -1].T, "o", color=RED, markersize=5, zorder=3, label="after 60 steps")
    points = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[[[], [0, 1], [0, 1, 2, 3]][added]]
    panel.plot(
        *points.reshape(-1, 2).T, "x", color=INK, markersize=9, markeredgewidth=2, label="added points"
    )
    reach = 1.15 * max(1.1, float(np.abs(paths[:, 10:]).max()))
    panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    panel.set(xlabel="along point 1", ylabel="along point 2")
    panel.set_title(f"{_told(family)}, gain {_SHOWN[family]:g}: {added} added", fontsize=11)
    if added == 2:
        panel.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_counts(panel: Axes, data: xarray.Dataset, family: str) -> None:
    own = data.sel(family=family)
    for added in _ADDED:
        counts = own.attractors.sel(added=added).mean("draw")
        panel.plot(own.gain, counts, "o-", color=_COLORS[added], markersize=4, label=f"{added} added")
    predicted = _predicted_loss(family, _SIZE)
    name = "1" if family == "basis" else "k / tanh k"
    panel.axvline(predicted, color=FAINT, linestyle="--", linewidth=1, label=f"gain {name}")
    panel.set(xlabel="gain: spectral radius of W_perp", ylabel="attractors found", ylim=(-0.4, 8.6))
    panel.set_title(f"{_told(family)}: attractors", fontsize=11)
    panel.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_exponents(panel: Axes, data: xarray.Dataset) -> None:
    for family, style in zip(_FAMILIES, ("o-", "s--"), strict=True):
        for added in (0, 1, 2) if family == "basis" else (1, 2):
            values = data.lyapunov.sel(family=family, added=added)
            name = "no points" if not added else f"{added}, {'k e_i' if family == 'basis' else 'signs'}"
            panel.errorbar(
                data.gain,
                values.mean("draw"),
                values.std("draw"),
                fmt=style,
                color=_COLORS[added],
                markersize=4,
                linewidth=1.2,
                label=name,
            )
    panel.axhline(0, color=FAINT, linewidth=1)
    panel.set(xlabel="gain: spectral radius of W_perp", ylabel="largest Lyapunov exponent per step")
    panel.set_title("rest (below 0) or chaos (above)", fontsize=11)
    panel.legend(frameon=False, fontsize=8)
