"""Recurrent matrices with 0, 1, 2 and 3 added fixed points: what h <- W tanh(h) does from random starts (figure 8).

Attractors are counted by running many random starts until they rest and telling the ends apart; for what never rests
there is the Lyapunov exponent. The gain is raised until the random part of the matrix takes over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.global_ntk.fixed_point_initialisation.drawing import draw
from foretrain.experiments.global_ntk.fixed_point_initialisation.dynamics import (
    ADDED,
    FAMILIES,
    SAME,
    SHOWN_GAIN,
    SIZE,
    measured,
    predicted_loss,
    random_starts,
    run_to_rest,
    told,
    weights_of,
)
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.progress import track
from foretrain.support.seeds import spawn

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

_UNITS = 256
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


_PAPER_GAINS = tuple(round(0.4 + 0.05 * step, 2) for step in range(37))
PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan((0.5, 0.7, 0.9, 1.1, 1.25, 1.4, 1.55, 1.75, 1.9, 2.1), (1.0, 1.5, 2.0), 64, 3, 800, 5),
    Scale.PAPER: Plan(_PAPER_GAINS, (0.5, 1.0, 1.5, 2.0, 2.5), 256, 6, 1500, 7),
}


def fixed_point_initialisation(plan: Plan, seed: int) -> Result:
    """Attractors, settling and Lyapunov exponents against the gain, for 0 to 3 added fixed points."""
    sweeping, losing, showing = spawn(seed, 3)
    data = _sweep(plan, sweeping).merge(_losses(plan, losing)).merge(_trajectories(plan, showing))
    data.attrs |= {"units": plan.units, "size": SIZE, "starts": plan.starts, "draws": plan.draws}
    rows = _table(data)
    return Result(_verdict(data), rows, data, partial(draw, data))


def _sweep(plan: Plan, seed: np.random.SeedSequence) -> xarray.Dataset:
    """For every family, number of added points, gain and random matrix: what random starts come to."""
    import xarray

    shape = (len(FAMILIES), len(ADDED), len(plan.gains), plan.draws)
    names = ("attractors", "settled", "lyapunov", "residual", "radius", "to_point", "to_sum")
    found = {name: np.full(shape, np.nan) for name in names}
    places = [place for place in np.ndindex(*shape) if place[1] or not place[0]]  # no points, no family
    draws = spawn(seed, plan.draws)
    for place in track(places, "gains and points"):
        family, added, gain, draw = FAMILIES[place[0]], ADDED[place[1]], plan.gains[place[2]], place[3]
        weights = weights_of(family, added, gain, plan.units, draws[draw])
        for name, value in measured(weights, plan.starts, plan.steps, draws[draw]).items():
            found[name][place] = value
    for values in found.values():
        values[1:, 0] = values[:1, 0]
    dims = ("family", "added", "gain", "draw")
    coords = {"family": list(FAMILIES), "added": list(ADDED), "gain": list(plan.gains)}
    return xarray.Dataset({name: (dims, values) for name, values in found.items()}, coords)


def _losses(plan: Plan, seed: np.random.SeedSequence) -> xarray.Dataset:
    """The gain from which on most starts no longer come to rest, by bisection, with two points added."""
    import xarray

    shape = (len(FAMILIES), len(plan.sizes), plan.draws)
    found, draws = np.empty(shape), spawn(seed, plan.draws)
    for place in track(list(np.ndindex(*shape)), "gains at which points are lost"):
        family, size, draw = FAMILIES[place[0]], plan.sizes[place[1]], draws[place[2]]
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
    import xarray

    matrix_seed, start_seed = spawn(seed, 2)
    found = np.empty((len(FAMILIES), 3, count, steps + 1, 2))
    for place, family in enumerate(FAMILIES):
        both = weights_of(family, 2, 0.0, plan.units, matrix_seed).points[:2]
        for added in range(3):
            matrix = weights_of(family, added, SHOWN_GAIN[family], plan.units, matrix_seed).matrix
            h = random_starts(count, plan.units, start_seed)
            for step in range(steps + 1):
                found[place, added, :, step] = (h @ both.t() / both.square().sum(1)).numpy()
                h = torch.tanh(h) @ matrix.t()
    return xarray.Dataset({"trajectory": (("family", "shown_added", "start", "step", "direction"), found)})


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    residual = float(data.residual.max())
    rows = [Row("largest |W tanh(h) - h| at the added points", 0.0, residual, agrees=residual < 1e-12)]
    weak, within = SHOWN_GAIN["basis"], SHOWN_GAIN["signs"]
    rows += [_count_row(data, "basis", 0, weak), _chaos_row(data, float(data.gain.max()))]
    rows += [_count_row(data, family, added, weak) for family in FAMILIES for added in ADDED[1:]]
    rows += [_count_row(data, family, added, within) for family in ("signs", "basis") for added in (1, 2)]
    rows += [_place_row(data, family, weak) for family in FAMILIES]
    rows += [_radius_row(data, weak)]
    rows += [_loss_row(data, family, float(size)) for family in FAMILIES for size in data["size"]]
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
            "The source's gains go from 1 to 2 without saying of what. As a spectral radius above 1 no k e_i "
            "survives; as a factor of torch's own recurrent draw, whose radius is 1 / sqrt 3, all do up to 1.73."
        )
    if not added:
        return Row(f"no points, gain {gain:g}: attractors, the origin", expected, here, agrees=agrees)
    return Row(
        f"{told(family)}, gain {gain:g}, {added} added: attractors", expected, here, agrees=agrees, note=note
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
    at_points, at_sums = float(own.to_point.max()) < SAME, float(own.to_sum.max()) < SAME
    here = "the points" if at_points else "sums of the points" if at_sums else "elsewhere"
    expected = {"basis": "sums of the points", "signs": "the points"}[family]
    note = ""
    if family == "basis":
        note = (
            "Units of different points do not feel each other: both may be on, and then the network is at rest. The "
            "added points themselves are saddles, so four attractors are not the four fixed points that were added."
        )
    return Row(
        f"{told(family)}, 2 added: where the four attractors are",
        expected,
        here,
        agrees=here == expected,
        note=note,
    )


def _radius_row(data: xarray.Dataset, gain: float) -> Row:
    found = float(data.radius.sel(family="basis", added=2, gain=gain).mean())
    expected = predicted_loss("signs", SIZE)
    return Row(
        f"{told('basis')}, 2 added, gain {gain:g}: spectral radius at an added point, k / tanh k",
        expected,
        found,
        agrees=abs(found - expected) < 1e-9,
    )


def _loss_row(data: xarray.Dataset, family: str, size: float) -> Row:
    own = data.sel(family=family, size=size)
    values, expected = own.loss_gain.values, float(own.predicted_loss)
    error = _standard_error(values)
    return Row(
        f"{told(family)}, k = {size:g}: gain at which W_perp takes over",
        expected,
        float(values.mean()),
        error,
        note=_LOSS_NOTES[family] if size == SIZE else "",
    )


def _standard_error(values: Array) -> float:
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.inf


def _verdict(data: xarray.Dataset) -> str:
    weak = SHOWN_GAIN["basis"]
    counts = [int(data.attractors.sel(family="signs", added=added, gain=weak).median()) for added in (1, 2)]
    lost = {family: float(data.loss_gain.sel(family=family, size=SIZE).mean()) for family in FAMILIES}
    return (
        f"Without added points networks collapse below gain 1 and never rest above; one point gives {counts[0]} "
        f"attractors, two give {counts[1]}, until W_perp takes over at gain {lost['basis']:.2f} for points k e_i "
        f"(the attractors are then sums of the points) and at {lost['signs']:.2f} for k = {SIZE} times signs."
    )
