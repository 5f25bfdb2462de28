"""Ranks of the global-state NTK of one attention block with an MLP, at initialization.

Three questions (figures 6, 9, 10 and section A.5 of Hazelden et al.): does the rank in time follow the dimension of
the input, do the ranks in space and in total follow the width while heads hardly matter, and do Fourier features lift
the rank of one-dimensional input. What the state is, and how ranks are measured, is said in ``measurement``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.global_ntk.attention_ranks.measurement import (
    Cell,
    log_slope,
    measured,
    modes_shown,
    spread,
)
from foretrain.experiments.global_ntk.attention_ranks.table import fourier_rows, input_rows, width_rows
from foretrain.experiments.global_ntk.attention_ranks.training import Course, trained
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Scale

if TYPE_CHECKING:
    import xarray

Found = dict[Cell, dict[str, NDArray[np.float64]]]

_N_X = (5, 10, 15)
_SHOWN = (1, 5, 100)  # dimensions of the input whose modes are shown, at n_x = 10
_WITH_PAIRS = (1, 10, 100)  # where the other contraction is taken too
_RANKS = ("temporal", "spatial", "total")
_MODEST = 8  # dimension of the input where the MLP's width is swept, and that the verdict speaks of
_KINDS = {
    "plain": Cell(1),
    "4 octaves": Cell(1, octaves=4, scale=0.25),
    "8 octaves": Cell(1, octaves=8, scale=0.25),
}


@dataclass(frozen=True)
class Plan:
    """Dimensions, widths, heads and Fourier features that are swept, and the training."""

    n_in: tuple[int, ...]
    inputs_of_widths: tuple[int, ...]  # n_in where widths and heads are swept
    attention: tuple[int, ...]
    mlp: tuple[int, ...]
    octaves: tuple[int, ...]
    scales: tuple[float, ...]
    course: Course
    draws: int
    heads: tuple[int, ...] = (1, 2, 4, 8)


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(
        n_in=(1, 2, 5, 10, 20, 50, 100),
        inputs_of_widths=(2, 8, 64),
        attention=(8, 16, 32, 64),
        mlp=(32, 64, 128),
        octaves=(1, 2, 4, 8, 16),
        scales=(0.3, 1.0, 3.0, 10.0),
        course=Course(steps=400, draws=4),
        draws=3,
    ),
    Scale.PAPER: Plan(
        n_in=(1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 50, 60, 70, 80, 90, 100),
        inputs_of_widths=(1, 2, 4, 8, 16, 32, 64, 128),
        attention=(8, 12, 16, 24, 32, 48, 64, 96, 128),
        mlp=(32, 64, 128, 256),
        octaves=(1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20),
        scales=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        course=Course(steps=1000, draws=8),
        draws=8,
    ),
}


def input_dimension(plan: Plan, seed: int, parts: Parts) -> Result:
    """The rank in time against the dimension of the input, for 5, 10 and 15 sequences; modes at 10."""
    from foretrain.experiments.global_ntk.attention_ranks.drawing import draw_input_dimension

    cells = [[Cell(n_in, n_x) for n_in in plan.n_in] for n_x in _N_X]
    of_ten = cells[_N_X.index(10)]
    with_pairs = [Cell(n_in) for n_in in _WITH_PAIRS]
    take = partial(measured, draws=plan.draws, seed=seed, parts=parts)
    found = take([cell for row in cells for cell in row], ["temporal", "sites"])
    data = _grid(found, ("temporal", "modes", "site_rank", "input"), cells, n_x=_N_X, n_in=plan.n_in)
    data = data.merge(_line(take(of_ten, ["mlp"]), ("temporal_mlp",), of_ten, n_in=plan.n_in))
    pairs = _line(take(with_pairs, ["pairs"]), ("temporal_pairs",), with_pairs, n_in_of_pairs=_WITH_PAIRS)
    data = data.merge(pairs).merge(_modes(seed, parts))
    places = ("n_x", "n_in")
    data["bound"] = (places, [[cell.site_bound for cell in row] for row in cells])
    data["sharper_bound"] = (places, [[cell.sharper_bound for cell in row] for row in cells])
    data["places"] = ("n_x", [row[0].n_x * row[0].steps for row in cells])
    ten = data.temporal.sel(n_x=10)
    slope = log_slope(plan.n_in, ten.values)
    verdict = (
        f"From n_in = {plan.n_in[0]} to {plan.n_in[-1]} the rank in time goes from {float(ten[0].mean()):.2f} to "
        f"{float(ten[-1].mean()):.1f} at n_x = 10, as n_in to the power {slope.mean:.3f} ± {slope.error:.3f}, and "
        f"rank(V V*) keeps the bound (A.5.3) in {int((data.site_rank <= data.bound).sum())} of "
        f"{data.site_rank.size} blocks."
    )
    return Result(verdict, input_rows(data), data, partial(draw_input_dimension, data))


def width_and_heads(plan: Plan, seed: int, parts: Parts) -> Result:
    """Ranks in time, in space and in total against the width of the attention, of the MLP, and the heads."""
    from foretrain.experiments.global_ntk.attention_ranks.drawing import draw_width_and_heads

    given = plan.inputs_of_widths
    take = partial(measured, draws=plan.draws, seed=seed, parts=parts)
    by_width = [[Cell(n_in, attention=width) for width in plan.attention] for n_in in given]
    by_heads = [[Cell(n_in, heads=heads) for heads in plan.heads] for n_in in given]
    found = take([cell for row in by_width + by_heads for cell in row], _RANKS)
    data = _grid(found, _RANKS, by_width, n_in=given, attention=plan.attention)
    heads = _grid(found, _RANKS, by_heads, n_in=given, heads=plan.heads)
    data = data.merge(heads.rename({name: f"{name}_by_heads" for name in _RANKS}))
    single = [Cell(1, heads=heads) for heads in plan.heads]
    lone = _line(take(single, ["temporal"]), ("temporal",), single, heads=plan.heads)
    by_mlp = [Cell(_MODEST, mlp=width) for width in plan.mlp]
    of_mlp = _line(take(by_mlp, ["spatial", "mlp"]), ("spatial", "spatial_mlp"), by_mlp, mlp=plan.mlp)
    data = data.merge(lone.rename(temporal="temporal_of_one_input"))
    data = data.merge(of_mlp.rename(spatial="spatial_by_mlp", spatial_mlp="mlp_spatial_by_mlp"))
    power = {name: log_slope(plan.attention, data[name].sel(n_in=_MODEST).values).mean for name in _RANKS}
    change = np.expm1(spread(data.temporal_by_heads.sel(n_in=_MODEST).values).mean)
    verdict = (
        f"At n_in = {_MODEST} the ranks in space and in total grow as n_attn to the power {power['spatial']:.2f} and "
        f"{power['total']:.2f}, that in time to the power {power['temporal']:.3f}; from {plan.heads[0]} to "
        f"{plan.heads[-1]} heads the rank in time changes by {change:.2%}."
    )
    return Result(verdict, width_rows(data), data, partial(draw_width_and_heads, data))


def fourier_features(plan: Plan, seed: int, parts: Parts) -> Result:
    """The rank in time of one-dimensional input with and without Fourier features, and what it does for learning."""
    from foretrain.experiments.global_ntk.attention_ranks.drawing import draw_fourier_features

    counts = (0, *plan.octaves)
    take = partial(measured, draws=plan.draws, seed=seed, parts=parts)
    cells = [[Cell(1, n_x, octaves=octaves) for octaves in counts] for n_x in _N_X]
    found = take([cell for row in cells for cell in row], ["temporal"])
    data = _grid(found, ("temporal", "modes"), cells, n_x=_N_X, octaves=counts)
    waves = [Cell(1, waves=64, scale=width) for width in plan.scales]
    random = _line(take(waves, ["temporal"]), ("temporal",), waves, scale=plan.scales)
    data = data.merge(random.rename(temporal="temporal_random"))
    data = data.merge(trained(_KINDS, plan.course, seed, parts).rename(draw="run"))
    ten = data.temporal.sel(n_x=10).mean("draw")
    left = data.loss.isel(step=-1).mean("run")
    verdict = (
        f"Eight octaves lift the rank in time from {float(ten.sel(octaves=0)):.2f} to "
        f"{float(ten.sel(octaves=8)):.1f} at n_x = 10, and {plan.course.steps} steps of gradient descent leave "
        f"{float(left.sel(kind='8 octaves')):.2f} of the target's mean square instead of "
        f"{float(left.sel(kind='plain')):.2f}."
    )
    return Result(verdict, fourier_rows(data), data, partial(draw_fourier_features, data))


def _modes(seed: int, parts: Parts) -> xarray.Dataset:
    """Spectra and leading modes at the dimensions shown."""
    import xarray

    shown = [parts.get(f"modes {n_in}", partial(modes_shown, Cell(n_in), seed)) for n_in in _SHOWN]
    return xarray.concat(shown, "shown").assign_coords(shown=list(_SHOWN))


def _grid(
    found: Found, names: Iterable[str], cells: Sequence[Sequence[Cell]], **places: Sequence[float]
) -> xarray.Dataset:
    """Quantities of a table of cells, by draw."""
    import xarray

    dims = (*places, "draw")
    values = {
        name: (dims, np.array([[found[cell][name] for cell in row] for row in cells])) for name in names
    }
    return xarray.Dataset(values, {name: list(where) for name, where in places.items()})


def _line(
    found: Found, names: Iterable[str], cells: Sequence[Cell], **places: Sequence[float]
) -> xarray.Dataset:
    """The same for one row of cells."""
    return _grid(found, names, [cells], row=[0], **places).isel(row=0, drop=True)
