"""Recurrent matrices with 0, 1, 2 and 3 added fixed points: what h <- W tanh(h) does from random starts (figure 8).

Attractors are counted by running many random starts until they rest and telling the ends apart; for what never rests
there is the Lyapunov exponent. The gain is raised until the random part of the matrix takes over.

Two families of points with orthogonal images: k e_i, one unit each as in the source ("basis"), and k times orthogonal
vectors of signs, where every unit takes part ("signs"). The gain is the spectral radius of the random part W_perp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import xarray

from foretrain.experiments.judgements import claim_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, GREEN, INK, ORANGE, RED, Axis, Figure
from foretrain.support.progress import track
from foretrain.support.seeds import spawn, torch_generator
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch

    from foretrain.training.dynamics import FixedPointWeights


SIZE = 1.5  # k
ADDED = (0, 1, 2, 3)
FAMILIES = {"basis": "points k e_i", "signs": "points k × signs"}
_SHOWN_GAIN = {"basis": 0.9, "signs": 1.25}  # of the trajectories in the picture
_SAME = 1e-3  # largest distance of a unit within one attractor
_SETTLED = 1e-8  # largest change of a unit in one step at which a network has come to rest
_TANGENT_STEPS = 200
_FOLLOWED = 16  # states whose Lyapunov exponents are averaged
_UNITS = 256
_TYPESET = {"basis": "points $k e_i$", "signs": "points k × signs"}
_COLORS = {0: INK, 1: BLUE, 2: ORANGE, 3: GREEN}  # by number of added points
_ATTRACTORS = {"basis": (1, 2, 4, 8), "signs": (1, 2, 4, 6)}  # 2^added and 2 added; the origin without points

_LOSS_NOTES = {
    "basis": "Not published, for orientation. At 256 units the spectral radius is about 5 % above the gain.",
    "signs": "Not published: a law of many units, for orientation; at 1024 units 1.658 ± 0.008 is measured.",
}


@dataclass(frozen=True)
class Plan:
    """Gains, random matrices and starts, and how long they are followed."""

    gains: tuple[float, ...]
    sizes: tuple[float, ...]  # k of the gains at which points are lost
    starts: int
    draws: int  # random matrices
    steps: int
    halvings: int
    units: int = _UNITS


_QUICK_GAINS = (0.5, 0.7, 0.9, 1.1, 1.25, 1.4, 1.55, 1.75, 1.9, 2.1)
_PAPER_GAINS = tuple(round(0.4 + 0.05 * step, 2) for step in range(37))
PLANS = plans(
    quick=Plan(_QUICK_GAINS, (1.0, 1.5, 2.0), 64, 3, 800, 5),
    paper=Plan(_PAPER_GAINS, (0.5, 1.0, 1.5, 2.0, 2.5), 256, 6, 1500, 7),
)


def fixed_point_initialisation(plan: Plan, seed: int) -> Result:
    """Attractors, settling and Lyapunov exponents against the gain, for 0 to 3 added fixed points."""
    sweeping, losing, showing = spawn(seed, 3)
    data = _sweep(plan, sweeping).merge(_losses(plan, losing)).merge(_trajectories(plan, showing))
    data.attrs |= {"units": plan.units, "size": SIZE, "starts": plan.starts, "draws": plan.draws}
    rows, weak = _table(data), _SHOWN_GAIN["basis"]
    counts = [int(data.attractors.sel(family="signs", added=added, gain=weak).median()) for added in (1, 2)]
    lost = {family: float(data.loss_gain.sel(family=family, size=SIZE).mean()) for family in FAMILIES}
    verdict = (
        f"Without added points networks collapse below gain 1 and never rest above; one point gives {counts[0]} "
        f"attractors, two give {counts[1]}, until W_perp takes over at gain {lost['basis']:.2f} for points k e_i "
        f"(the attractors are then sums of the points) and at {lost['signs']:.2f} for k = {SIZE} times signs."
    )
    return Result(verdict, rows, data, _draw)


def weights_of(
    family: str, added: int, gain: float, units: int, seed: np.random.SeedSequence, size: float = SIZE
) -> FixedPointWeights:
    """The matrix with this number of points of a family."""
    from foretrain.training.dynamics import basis_points, fixed_point_weights, sign_points

    # The first vector of signs is that of ones, which is left out: the others are balanced.
    signs = sign_points(units, added + 1, size)[1:]
    points = basis_points(units, added, size) if family == "basis" else signs
    return fixed_point_weights(points, gain=gain, seed=seed)


def random_starts(count: int, units: int, seed: np.random.SeedSequence) -> torch.Tensor:
    """States with independent standard normal entries, (count, units)."""
    import torch

    return torch.randn(count, units, dtype=torch.float64, generator=torch_generator(seed))


def run_to_rest(matrix: torch.Tensor, h: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The last states, and which of them rest; stops when all do."""
    import torch

    change = torch.full((len(h),), math.inf)
    for _ in range(steps):
        after = torch.tanh(h) @ matrix.t()
        change, h = (after - h).abs().amax(1), after
        if float(change.max()) < _SETTLED:
            break
    return h, change < _SETTLED


def attractors_among(ends: torch.Tensor) -> list[torch.Tensor]:
    """The different states among those at rest."""
    found: list[torch.Tensor] = []
    for end in ends:
        if all(float((end - other).abs().max()) > _SAME for other in found):
            found.append(end)
    return found


def lyapunov_exponent(matrix: torch.Tensor, h: torch.Tensor) -> float:
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


def measured(
    weights: FixedPointWeights, starts: int, steps: int, seed: np.random.SeedSequence
) -> dict[str, float]:
    """What random starts come to: numbers of attractors, shares, exponents, and distances from the points."""
    from foretrain.training.dynamics import spectral_radii

    h = random_starts(starts, len(weights.matrix), spawn(seed, 1)[0])
    ends, rests = run_to_rest(weights.matrix, h, steps)
    attractors, points, radius = attractors_among(ends[rests]), weights.points, math.nan
    if len(points):  # at the first one: the others are alike
        radius = float(spectral_radii(weights.matrix, points[:1], weights.activation)[0])
    return {
        "attractors": len(attractors),
        "settled": float(rests.double().mean()),
        "lyapunov": lyapunov_exponent(weights.matrix, ends[:_FOLLOWED]),
        "residual": float(weights.residual.max()) if len(points) else 0.0,
        "radius": radius,
        "to_point": _furthest(attractors, points),
        "to_sum": _furthest(attractors, _sums(points)),
    }


def _sums(points: torch.Tensor) -> torch.Tensor:
    """All sums of plus or minus every point; the list holds the points and then their mirror images."""
    half = points[: len(points) // 2]
    return half.new_tensor(list(product((1.0, -1.0), repeat=len(half)))) @ half


def _furthest(attractors: list[torch.Tensor], expected: torch.Tensor) -> float:
    """How far the attractors are from the nearest of the expected states, at most."""
    if not attractors or not len(expected):
        return math.nan
    return max(float((expected - end).abs().amax(1).min()) for end in attractors)


def predicted_loss(family: str, size: float) -> float:
    """The gain at which W_perp takes over.

    Near h = 0 the overlap with a point grows by k / tanh(k) per step and the rest by the gain: sign points are
    reached up to where both are equal. With k e_i all other units rest at 0, where W_perp alone decides.
    """
    return 1.0 if family == "basis" else size / math.tanh(size)


def _sweep(plan: Plan, seed: np.random.SeedSequence) -> xarray.Dataset:
    """For every family, number of added points, gain and random matrix: what random starts come to."""
    families = list(FAMILIES)
    shape = (len(families), len(ADDED), len(plan.gains), plan.draws)
    names = ("attractors", "settled", "lyapunov", "residual", "radius", "to_point", "to_sum")
    found = {name: np.full(shape, np.nan) for name in names}
    places = [place for place in np.ndindex(*shape) if place[1] or not place[0]]  # no points, no family
    draws = spawn(seed, plan.draws)
    for place in track(places, "gains and points"):
        family, added, gain, own = families[place[0]], ADDED[place[1]], plan.gains[place[2]], draws[place[3]]
        weights = weights_of(family, added, gain, plan.units, own)
        for name, value in measured(weights, plan.starts, plan.steps, own).items():
            found[name][place] = value
    for values in found.values():
        values[1:, 0] = values[:1, 0]
    dims = ("family", "added", "gain", "draw")
    coords = {"family": families, "added": list(ADDED), "gain": list(plan.gains)}
    return xarray.Dataset({name: (dims, values) for name, values in found.items()}, coords)


def _losses(plan: Plan, seed: np.random.SeedSequence) -> xarray.Dataset:
    """The gain from which on most starts no longer come to rest, by bisection, with two points added."""
    shape = (len(FAMILIES), len(plan.sizes), plan.draws)
    found, draws = np.empty(shape), spawn(seed, plan.draws)
    for place in track(list(np.ndindex(*shape)), "gains at which points are lost"):
        family, size, draw = list(FAMILIES)[place[0]], plan.sizes[place[1]], draws[place[2]]
        low, high = (factor * predicted_loss(family, size) for factor in (0.7, 1.4))
        for _ in range(plan.halvings):
            middle = (low + high) / 2
            matrix = weights_of(family, 2, middle, plan.units, draw, size).matrix
            _, rests = run_to_rest(matrix, random_starts(16, plan.units, spawn(draw, 1)[0]), plan.steps)
            low, high = (middle, high) if float(rests.double().mean()) > 0.5 else (low, middle)
        found[place] = (low + high) / 2
    predicted = [[predicted_loss(family, size) for size in plan.sizes] for family in FAMILIES]
    return xarray.Dataset(
        {"loss_gain": (("family", "size", "draw"), found), "predicted_loss": (("family", "size"), predicted)},
        {"size": list(plan.sizes)},
    )


def _trajectories(
    plan: Plan, seed: np.random.SeedSequence, count: int = 24, steps: int = 60
) -> xarray.Dataset:
    """Coordinates along the first two points, 1 at the point: for 0, 1 and 2 added ones."""
    import torch

    matrix_seed, start_seed = spawn(seed, 2)
    found = np.empty((len(FAMILIES), 3, count, steps + 1, 2))
    for place, family in enumerate(FAMILIES):
        both = weights_of(family, 2, 0.0, plan.units, matrix_seed).points[:2]
        for added in range(3):
            matrix = weights_of(family, added, _SHOWN_GAIN[family], plan.units, matrix_seed).matrix
            h = random_starts(count, plan.units, start_seed)
            for step in range(steps + 1):
                found[place, added, :, step] = (h @ both.t() / both.square().sum(1)).numpy()
                h = torch.tanh(h) @ matrix.t()
    return xarray.Dataset({"trajectory": (("family", "shown_added", "start", "step", "direction"), found)})


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    residual = float(data.residual.max())
    rows = [Row("largest |W tanh(h) - h| at the added points", 0.0, residual, agrees=residual < 1e-12)]
    weak, within, largest = _SHOWN_GAIN["basis"], _SHOWN_GAIN["signs"], float(data.gain.max())
    rows.append(_count_row(data, "basis", 0, weak))
    own = data.sel(family="basis", added=0, gain=largest)
    mean, error = float(own.lyapunov.mean()), _standard_error(own.lyapunov.values)
    title = f"no points, gain {largest:g}: chaos, Lyapunov exponent above"
    note = (
        "Between gain 1 and about 1.3 networks of 256 units move without rest, but with an exponent near 0."
    )
    rows.append(Row(title, 0.0, mean, error, bool(mean > 3 * error and own.settled.max() == 0), note))
    rows += [_count_row(data, family, added, weak) for family in FAMILIES for added in ADDED[1:]]
    rows += [_count_row(data, family, added, within) for family in ("signs", "basis") for added in (1, 2)]
    saddles = (
        "Units of different points do not feel each other: both may be on, and then the network is at rest. The "
        "added points themselves are saddles, so four attractors are not the four fixed points that were added."
    )
    wanted = {"basis": ("sums of the points", saddles), "signs": ("the points", "")}
    for family, (claim, note) in wanted.items():
        own = data.sel(family=family, added=2, gain=weak)
        at_points, at_sums = float(own.to_point.max()) < _SAME, float(own.to_sum.max()) < _SAME
        here = "the points" if at_points else "sums of the points" if at_sums else "elsewhere"
        title = f"{FAMILIES[family]}, 2 added: where the four attractors are"
        rows.append(claim_row(title, claim, here, here == claim, note))
    radius = data.radius.sel(family="basis", added=2, gain=weak).mean()
    expected = predicted_loss("signs", SIZE)
    title = f"{FAMILIES['basis']}, 2 added, gain {weak:g}: spectral radius at an added point, k / tanh k"
    rows.append(claim_row(title, expected, radius, abs(radius - expected) < 1e-9))
    for family, size in product(FAMILIES, data["size"].values.tolist()):
        own = data.sel(family=family, size=size)
        mean, error = float(own.loss_gain.mean()), _standard_error(own.loss_gain.values)
        title, note = (
            f"{FAMILIES[family]}, k = {size:g}: gain at which W_perp takes over",
            _LOSS_NOTES[family],
        )
        predicted = float(own.predicted_loss)
        rows.append(Row(title, predicted, mean, error, note=note if size == SIZE else ""))
    return tuple(rows)


def _count_row(data: xarray.Dataset, family: str, added: int, gain: float) -> Row:
    """Attractors that random starts find: one published number for 0, 1, 2 points, and the next one."""
    own, expected = data.sel(family=family, added=added, gain=gain), _ATTRACTORS[family][added]
    counts, name = own.attractors.values, FAMILIES[family]
    title = f"{name}, gain {gain:g}, {added} added: attractors"
    if gain > 1 and family == "basis":
        note = (
            "The source's gains go from 1 to 2 without saying of what. As a spectral radius above 1 no k e_i "
            "survives; as a factor of torch's own recurrent draw, whose radius is 1 / sqrt 3, all do up to 1.73."
        )
        none = f"none, {1 - float(own.settled.mean()):.0%} of the starts never rest"
        return claim_row(title, expected, none, None, note)
    note = (
        "Not published: with k e_i the attractors are the 2^m sums of the points, with signs the 2 m points."
    )
    if not added:
        title = f"no points, gain {gain:g}: attractors, the origin"
    return claim_row(title, expected, counts.mean(), (counts == expected).all(), note if added == 3 else "")


def _standard_error(values: FloatArray) -> float:
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.inf


def _draw(data: xarray.Dataset) -> Figure:
    """Trajectories for 0, 1 and 2 added points, attractors and Lyapunov exponents against the gain."""
    title = f"Added fixed points of h ← W tanh(h), {data.attrs['units']} units, k = {SIZE}"
    figure = Figure(title, columns=3, size=(13, 11.5))
    for family, added in product(FAMILIES, range(3)):
        paths = data.trajectory.sel(family=family).isel(shown_added=added).values
        strength, reach = _SHOWN_GAIN[family], 1.15 * max(1.1, float(np.abs(paths[:, 10:]).max()))
        rests = " (never rests)" if not added and strength > 1 else ""
        title = f"{_TYPESET[family]}, gain {strength:g}: {added} added{rests}"
        axes = (Axis(f"along point {number}", low=-reach, high=reach) for number in (1, 2))
        legend = "best" if added == 1 and family == "signs" else ""
        panel = figure.panel(title, *axes, equal=True, legend=legend)
        for path in paths:
            panel.curve(path[:, 0], path[:, 1], "-", "", _COLORS[added], width=0.7, alpha=0.45)
        points = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[: 2 * added]
        panel.curve(points[:, 0], points[:, 1], "x", "added points", INK, size=9)
        panel.curve(paths[:, -1, 0], paths[:, -1, 1], "o", f"after {paths.shape[1] - 1} steps", RED)
    gain = r"gain: spectral radius of $W_\perp$"
    for family, name in _TYPESET.items():
        panel = figure.panel(f"{name}: attractors", gain, Axis("attractors found", low=-0.4))
        for added, color in _COLORS.items():
            counts = data.attractors.sel(family=family, added=added).mean("draw")
            panel.curve(data.gain, counts, "o-", f"{added} added", color, size=4)
        label = "gain 1" if family == "basis" else "gain k / tanh k"
        panel.level(x=predicted_loss(family, SIZE), label=label, dash="--")
    panel = figure.panel("rest (below 0) or chaos (above)", gain, "largest Lyapunov exponent per step")
    curves = (
        ("basis", 0, "-", INK, "no points"),
        ("basis", 2, "o", ORANGE, "2 points $k e_i$"),
        ("signs", 1, "s--", BLUE, "1 point of signs"),
        ("signs", 2, "D--", ORANGE, "2 points of signs"),
    )
    for family, added, style, color, label in curves:
        values = data.lyapunov.sel(family=family, added=added)
        mean, spread = values.mean("draw"), values.std("draw")
        panel.curve(data.gain, mean, style, label, color, error=spread, hollow=True)
    panel.level(y=0)
    return figure
