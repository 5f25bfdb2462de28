"""Ranks of the global-state NTK of one attention block with an MLP, at initialization.

Three questions (figures 6, 9, 10 and section A.5 of Hazelden et al.): does the rank in time follow the dimension of
the input, do the ranks in space and in total follow the width while heads hardly matter, and do Fourier features lift
the rank of one-dimensional input. What the state is, and how ranks are measured, is said in ``attention_blocks``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray
from numpy.typing import NDArray

from foretrain.experiments.global_ntk import attention_blocks as blocks
from foretrain.experiments.global_ntk.attention_blocks import Cell, Course, log_slope, measured
from foretrain.experiments.global_ntk.attention_rows import fourier_rows, input_rows, width_rows
from foretrain.experiments.parts import Parts
from foretrain.experiments.pictures import coloured, draw_means
from foretrain.experiments.registry import Result, plans
from foretrain.support import answers
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, Axis, Figure, log

Found = dict[Cell, dict[str, NDArray[np.float64]]]

_N_X = (5, 10, 15)
_SHOWN = (1, 5, 100)  # dimensions of the input whose modes are shown, at n_x = 10
_WITH_PAIRS = (1, 10, 100)  # where the other contraction is taken too
_OF_N_X = dict(zip(_N_X, (BLUE, ORANGE, GREEN), strict=True))
_STATE = "one attention block (64) + 3 x 128 MLP at initialization, 50 steps"
_TITLES = {"temporal": "rank in time", "spatial": "rank in space", "total": "total rank"}
_RANKS = tuple(_TITLES)
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


PLANS = plans(
    quick=Plan(
        n_in=(1, 2, 5, 10, 20, 50, 100),
        inputs_of_widths=(2, 8, 64),
        attention=(8, 16, 32, 64),
        mlp=(32, 64, 128),
        octaves=(1, 2, 4, 8, 16),
        scales=(0.3, 1.0, 3.0, 10.0),
        course=Course(steps=400, draws=4),
        draws=3,
    ),
    paper=Plan(
        n_in=(1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 50, 60, 70, 80, 90, 100),
        inputs_of_widths=(1, 2, 4, 8, 16, 32, 64, 128),
        attention=(8, 12, 16, 24, 32, 48, 64, 96, 128),
        mlp=(32, 64, 128, 256),
        octaves=(1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20),
        scales=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        course=Course(steps=1000, draws=8),
        draws=8,
    ),
)


def input_dimension(plan: Plan, seed: int, parts: Parts) -> Result:
    """The rank in time against the dimension of the input, for 5, 10 and 15 sequences; modes at 10."""
    cells = [[Cell(n_in, n_x) for n_in in plan.n_in] for n_x in _N_X]
    of_ten = cells[_N_X.index(10)]
    with_pairs = [Cell(n_in) for n_in in _WITH_PAIRS]
    take = partial(measured, draws=plan.draws, seed=seed, parts=parts)
    found = take([cell for row in cells for cell in row], ["temporal", "sites"])
    data = _grid(found, ("temporal", "modes", "site_rank", "input"), cells, n_x=_N_X, n_in=plan.n_in)
    data = data.merge(_line(take(of_ten, ["mlp"]), ("temporal_mlp",), of_ten, n_in=plan.n_in))
    pairs = _line(take(with_pairs, ["pairs"]), ("temporal_pairs",), with_pairs, n_in_of_pairs=_WITH_PAIRS)
    shown = [parts.get(f"modes {n_in}", partial(blocks.modes_shown, Cell(n_in), seed)) for n_in in _SHOWN]
    data = data.merge(pairs).merge(xarray.concat(shown, "shown").assign_coords(shown=list(_SHOWN)))
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
    return Result(verdict, input_rows(data), data, _draw_input_dimension)


def width_and_heads(plan: Plan, seed: int, parts: Parts) -> Result:
    """Ranks in time, in space and in total against the width of the attention, of the MLP, and the heads."""
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
    change = np.expm1(blocks.spread(data.temporal_by_heads.sel(n_in=_MODEST).values).mean)
    verdict = (
        f"At n_in = {_MODEST} the ranks in space and in total grow as n_attn to the power {power['spatial']:.2f} and "
        f"{power['total']:.2f}, that in time to the power {power['temporal']:.3f}; from {plan.heads[0]} to "
        f"{plan.heads[-1]} heads the rank in time changes by {change:.2%}."
    )
    return Result(verdict, width_rows(data), data, _draw_width_and_heads)


def fourier_features(plan: Plan, seed: int, parts: Parts) -> Result:
    """The rank in time of one-dimensional input with and without Fourier features, and what it does for learning."""
    counts = (0, *plan.octaves)
    take = partial(measured, draws=plan.draws, seed=seed, parts=parts)
    cells = [[Cell(1, n_x, octaves=octaves) for octaves in counts] for n_x in _N_X]
    found = take([cell for row in cells for cell in row], ["temporal"])
    data = _grid(found, ("temporal", "modes"), cells, n_x=_N_X, octaves=counts)
    waves = [Cell(1, waves=64, scale=width) for width in plan.scales]
    random = _line(take(waves, ["temporal"]), ("temporal",), waves, scale=plan.scales)
    data = data.merge(random.rename(temporal="temporal_random"))
    data = data.merge(blocks.trained(_KINDS, plan.course, seed, parts).rename(draw="run"))
    ten = data.temporal.sel(n_x=10).mean("draw")
    left = data.loss.isel(step=-1).mean("run")
    verdict = (
        f"Eight octaves lift the rank in time from {float(ten.sel(octaves=0)):.2f} to "
        f"{float(ten.sel(octaves=8)):.1f} at n_x = 10, and {plan.course.steps} steps of gradient descent leave "
        f"{float(left.sel(kind='8 octaves')):.2f} of the target's mean square instead of "
        f"{float(left.sel(kind='plain')):.2f}."
    )
    return Result(verdict, fourier_rows(data), data, _draw_fourier_features)


def _grid(
    found: Found, names: Iterable[str], cells: Sequence[Sequence[Cell]], **places: Sequence[float]
) -> xarray.Dataset:
    """Quantities of a table of cells, by draw."""
    values = {name: np.array([[found[cell][name] for cell in row] for row in cells]) for name in names}
    labels = {name: list(where) for name, where in places.items()}
    return xarray.Dataset({name: ((*places, "draw"), each) for name, each in values.items()}, labels)


def _line(
    found: Found, names: Iterable[str], cells: Sequence[Cell], **places: Sequence[float]
) -> xarray.Dataset:
    """The same for one row of cells."""
    return _grid(found, names, [cells], row=[0], **places).isel(row=0, drop=True)


def _draw_input_dimension(data: xarray.Dataset) -> Figure:
    """Ranks and sites against n_in above, spectra and leading modes at n_x = 10 below."""
    title = f"The rank in time follows the dimension of the input: {_STATE}"
    figure = Figure(title, layout="AABBCC DEFGHI", heights=(1.6, 1), size=(15, 8))
    x = log("dimension of the input $n_{in}$")
    panel = figure.panel("Participation ratio of NTK$_{temp}$", x, log("rank in time"))
    sites = figure.panel(
        "Exact rank of the weight sites; batch x time dotted", x, Axis("rank of V V*", low=0)
    )
    most = data.sel(n_x=_N_X[-1])
    sites.curve(data.n_in, most.bound, "-", "$3n_{in} + n_{attn} + (L-1)n_{mlp}$ (A.5.3)", INK)
    sharper = "$n_{in} + min(n_{in}, n_{attn}) + (L-1)n_{mlp}$"
    sites.curve(data.n_in, most.sharper_bound, ":", sharper, INK)
    for n_x, color in _OF_N_X.items():
        own = data.sel(n_x=n_x)
        panel.curve(data.n_in, own.input.mean("draw"), "--", "", color, width=1, alpha=0.7)
        draw_means(panel, data.n_in, own.temporal, "draw", "o-", f"all states, $n_x$ = {n_x}", color)
        sites.level(y=own.places, color=color, dash=":")
        sites.curve(data.n_in, own.site_rank.mean("draw"), "o", f"found, $n_x$ = {n_x}", color)
    draw_means(panel, data.n_in, data.temporal_mlp, "draw", "s-", "MLP's states only, $n_x$ = 10", PURPLE)
    draw_means(
        panel, data.n_in_of_pairs, data.temporal_pairs, "draw", "x-", "all pairs of units, $n_x$ = 10", RED
    )
    panel.legend_entry("--", "the inputs' own, X X*")
    spectra = figure.panel(
        "Spectrum of NTK$_{temp}$, $n_x$ = 10", log("mode"), log("share of the trace", 1e-5, 1.5)
    )
    for place, own, color in coloured(data, "shown"):
        spectra.curve(np.arange(1, own.share.size + 1), own.share, "-", f"$n_{{in}}$ = {place}", color)
        for mode in (0, 1):
            title = f"$n_{{in}}$ = {place}, mode {mode + 1}: {float(own.share[mode]):.1%}"
            first = "" if len(figure.panels) > 3 else "sequence"
            shape = figure.panel(title, "time", Axis(first, reverse=True))
            shape.heat_map(own.shape_of_mode.isel(leading=mode), diverging=True)
    return figure


def _draw_width_and_heads(data: xarray.Dataset) -> Figure:
    """Three ranks against the attention's width above, against heads below; the MLP's width at the end."""
    title = "Width sets the ranks in space and in total, heads hardly matter: $n_x$ = 10, at initialization"
    figure = Figure(title, columns=4, size=(17, 8))
    sweeps = {
        "attention": ("width", "width of the attention $n_{attn}$", ""),
        "heads": ("heads", "heads", "_by_heads"),
    }
    colors = answers.shades(data.sizes["n_in"])
    for dim, (word, label, ending) in sweeps.items():
        for name, title in _TITLES.items():
            both = data[name], data[f"{name}_by_heads"]  # one scale for both rows
            low, high = min(float(each.min()) for each in both), max(float(each.max()) for each in both)
            given = ", $n_{attn}$ = 64" if dim == "heads" else ""
            x, y = log(label, ticks=data[dim].values), log(title, low / 2, 1.5 * high)
            legend = "best" if (dim, name) == ("attention", "spatial") else ""
            panel = figure.panel(f"{title.capitalize()} by {word}{given}", x, y, legend=legend)
            for n_in, color in zip(data.n_in.values.tolist(), colors, strict=True):
                values = data[f"{name}{ending}"].sel(n_in=n_in)
                draw_means(panel, data[dim], values, "draw", "o-", f"$n_{{in}}$ = {n_in}", color)
            if (dim, name) == ("heads", "temporal"):
                alone = data.temporal_of_one_input
                draw_means(panel, data.heads, alone, "draw", "o-", "$n_{in}$ = 1", FAINT)
                panel.note(2, float(alone.max()), "$n_{in}$ = 1", FAINT, above=True)
        if dim == "attention":
            title = "Rank in space by the MLP's width, $n_{in}$ = 8"
            panel = figure.panel(title, log("width of the MLP", ticks=data.mlp.values), log("rank in space"))
            draw_means(panel, data.mlp, data.spatial_by_mlp, "draw", "o-", "all states", BLUE)
            draw_means(panel, data.mlp, data.mlp_spatial_by_mlp, "draw", "s-", "MLP's states only", PURPLE)
    # By which factor each rank changes over a sweep, the largest of all inputs.
    x, y = answers.names_axis(["time", "space", "total"]), log("largest over smallest", 0.9)
    panel = figure.panel("Largest change of each rank", x, y)
    changes = {
        "over $n_{in}$": ([data[f"{name}_by_heads"].sel(heads=1) for name in _RANKS], "n_in", GREEN),
        "over width": ([data[name] for name in _RANKS], "attention", BLUE),
        "over heads": ([data[f"{name}_by_heads"] for name in _RANKS], "heads", ORANGE),
    }
    for place, (label, (ranks, dim, color)) in enumerate(changes.items()):
        means = [rank.mean("draw") for rank in ranks]
        factors = [float((mean.max(dim) / mean.min(dim)).max()) for mean in means]
        texts = [f"{factor:.3g}" for factor in factors]
        panel.bars(np.arange(3) + 0.27 * (place - 1), factors, label, color, width=0.25, texts=texts)
    return figure


def _draw_fourier_features(data: xarray.Dataset) -> Figure:
    """Ranks against octaves and against the frequency of random waves; losses of gradient descent."""
    title = f"Fourier features lift the rank of one-dimensional input: {_STATE}"
    figure, counts = Figure(title, columns=3, size=(15, 5)), data.octaves[1:]
    x, y = log("octaves of sin and cos", ticks=counts.values), log("rank in time")
    panel = figure.panel("Frequencies 1, 2, 4, ...", x, y)
    for n_x, color in _OF_N_X.items():
        own = data.temporal.sel(n_x=n_x)
        draw_means(panel, counts, own.isel(octaves=slice(1, None)), "draw", "o-", f"$n_x$ = {n_x}", color)
        panel.level(y=own.isel(octaves=0).mean(), color=color, dash="--")
    panel.curve(counts, 2 * counts, ":", "number of features", INK)
    panel.legend_entry("--", "without features")
    panel = figure.panel("64 random frequencies", log("standard deviation of the frequency"), y)
    draw_means(panel, data.scale, data.temporal_random, "draw", "o-", "$n_x$ = 10", PURPLE)
    plain = data.temporal.sel(n_x=10, octaves=0).mean()
    panel.level(y=plain, color=INK, dash="--", label="without features")
    title, y = "Learning a statistic of one-dimensional sequences", log("loss over mean square of the target")
    panel = figure.panel(title, "step of gradient descent", y)
    for kind, own, color in coloured(data, "kind"):
        for run in own.loss.values:
            panel.curve(np.arange(run.size), run, "-", kind, color, width=1.1)
    return figure
