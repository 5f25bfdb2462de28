"""Pictures of the ranks of an attention block: against input, width and heads, and with Fourier features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    new_figure,
    new_mosaic,
)

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OF_N_X = {5: BLUE, 10: ORANGE, 15: GREEN}
_STATE = "one attention block (64) + 3 x 128 MLP at initialization, 50 steps"


def draw_input_dimension(data: xarray.Dataset) -> Figure:
    """Ranks and sites against n_in above, spectra and leading modes at n_x = 10 below."""
    layout = [["rank"] * 2, ["site"] * 2, ["spectrum"] * 2]
    top = [name for pair in layout for name in pair]
    places = data.shown.values.tolist()
    bottom = [f"{n_in} {mode}" for n_in in places for mode in (0, 1)]
    figure, panels = new_mosaic(
        f"The rank in time follows the dimension of the input: {_STATE}", [top, bottom], [1.6, 1], (15, 8)
    )
    _draw_ranks_by_input(panels["rank"], data)
    _draw_sites(panels["site"], data)
    for place, color in zip(places, (BLUE, ORANGE, GREEN), strict=True):
        share = data.share.sel(shown=place).values
        panels["spectrum"].plot(
            np.arange(1, len(share) + 1), share, color=color, label=f"$n_{{in}}$ = {place}"
        )
    panels["spectrum"].set(
        xlabel="mode", ylabel="share of the trace", yscale="log", ylim=(1e-5, 1.5), xscale="log"
    )
    panels["spectrum"].set_title("Spectrum of NTK_temp, $n_x$ = 10", fontsize=11)
    panels["spectrum"].legend(frameon=False, fontsize=9)
    for n_in in places:
        for mode in (0, 1):
            _draw_mode(panels[f"{n_in} {mode}"], data.sel(shown=n_in), n_in, mode)
    panels[bottom[0]].set_ylabel("sequence")
    return figure


def _draw_ranks_by_input(panel: Axes, data: xarray.Dataset) -> None:
    for n_x, color in _OF_N_X.items():
        own = data.sel(n_x=n_x)
        panel.plot(data.n_in, own.input.mean("draw"), "--", color=color, linewidth=1, alpha=0.7)
        _points(panel, data.n_in, own.temporal, color, f"all states, $n_x$ = {n_x}")
    _points(panel, data.n_in, data.temporal_mlp, PURPLE, "MLP's states only, $n_x$ = 10", "s")
    _points(panel, data.n_in_of_pairs, data.temporal_pairs, RED, "all pairs of units, $n_x$ = 10", "x")
    panel.plot([], [], "--", color=INK, linewidth=1, label="the inputs' own, X X*")
    panel.set(xlabel="dimension of the input $n_{in}$", ylabel="rank in time", xscale="log", yscale="log")
    panel.set_title("Participation ratio of NTK_temp", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_sites(panel: Axes, data: xarray.Dataset) -> None:
    largest = data.sel(n_x=15)
    panel.plot(data.n_in, largest.bound, color=INK, label="$3n_{in} + n_{attn} + (L-1)n_{mlp}$ (A.5.3)")
    panel.plot(
        data.n_in,
        largest.sharper_bound,
        ":",
        color=INK,
        label="$n_{in} + min(n_{in}, n_{attn}) + (L-1)n_{mlp}$",
    )
    for n_x, color in _OF_N_X.items():
        panel.axhline(float(data.places.sel(n_x=n_x)), color=color, linewidth=0.8, linestyle=(0, (1, 3)))
        panel.plot(
            data.n_in,
            data.site_rank.sel(n_x=n_x).mean("draw"),
            "o",
            color=color,
            label=f"found, $n_x$ = {n_x}",
        )
    panel.set(xlabel="dimension of the input $n_{in}$", ylabel="rank of V V*", xscale="log", ylim=(0, 1120))
    panel.set_title("Exact rank of the weight sites; batch x time dotted", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="upper left", ncols=1)


def _draw_mode(panel: Axes, data: xarray.Dataset, n_in: int, mode: int) -> None:
    shape = data.shape_of_mode.isel(leading=mode).values
    limit = float(np.abs(shape).max())
    panel.imshow(shape, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    panel.grid(False)
    panel.set_xlabel("time")
    panel.set_title(f"$n_{{in}}$ = {n_in}, mode {mode + 1}: {float(data.share[mode]):.1%}", fontsize=10)


def draw_width_and_heads(data: xarray.Dataset) -> Figure:
    """Three ranks against the attention's width above, against heads below; the MLP's width at the end."""
    figure, panels = new_figure(
        "Width sets the ranks in space and in total, heads hardly matter: $n_x$ = 10, at initialization",
        2,
        4,
        (17, 8),
    )
    titles = {"temporal": "rank in time", "spatial": "rank in space", "total": "total rank"}
    for column, (name, title) in enumerate(titles.items()):
        above, below = panels[column], panels[4 + column]
        for n_in, color in zip(data.n_in.values.tolist(), _shades(data.n_in.size), strict=True):
            own = data.sel(n_in=n_in)
            _points(above, data.attention, own[name], color, f"$n_{{in}}$ = {n_in}")
            _points(below, data.heads, own[f"{name}_by_heads"], color, f"$n_{{in}}$ = {n_in}")
        for panel, label in ((above, "width of the attention $n_{attn}$"), (below, "heads")):
            panel.set(xlabel=label, ylabel=title, xscale="log", yscale="log")
        above.set_title(f"{title.capitalize()} by width", fontsize=11)
        below.set_title(f"{title.capitalize()} by heads, $n_{{attn}}$ = 64", fontsize=11)
    _points(panels[4], data.heads, data.temporal_of_one_input, FAINT, "$n_{in}$ = 1")
    for above, below in zip(panels[:3], panels[4:7], strict=True):
        limits = [*above.get_ylim(), *below.get_ylim()]
        for panel in (above, below):
            panel.set_ylim(min(limits), max(limits))
    panels[1].legend(frameon=False, fontsize=9, loc="lower right")
    panels[4].legend(frameon=False, fontsize=9, ncols=2, loc="upper left", bbox_to_anchor=(0, 0.88))
    _points(panels[3], data.mlp, data.spatial_by_mlp, BLUE, "all states")
    _points(panels[3], data.mlp, data.mlp_spatial_by_mlp, PURPLE, "MLP's states only", "s")
    panels[3].set(xlabel="width of the MLP", ylabel="rank in space", xscale="log", yscale="log")
    panels[3].set_title("Rank in space by the MLP's width, $n_{in}$ = 8", fontsize=11)
    panels[3].legend(frameon=False, fontsize=9)
    _draw_changes(panels[7], data)
    for panel in panels[:7]:
        _plain_ticks(panel)
    return figure


def _draw_changes(panel: Axes, data: xarray.Dataset) -> None:
    """By which factor each rank changes over a sweep, the largest of all inputs."""
    names = ("temporal", "spatial", "total")
    sweeps = {
        "over $n_{in}$": (
            [data[f"{name}_by_heads"].sel(heads=1).mean("draw") for name in names],
            "n_in",
            GREEN,
        ),
        "over width": ([data[name].mean("draw") for name in names], "attention", BLUE),
        "over heads": ([data[f"{name}_by_heads"].mean("draw") for name in names], "heads", ORANGE),
    }
    for place, (label, (ranks, dim, color)) in enumerate(sweeps.items()):
        factors = [float((rank.max(dim) / rank.min(dim)).max()) for rank in ranks]
        panel.bar(np.arange(3) + 0.27 * (place - 1), factors, 0.25, color=color, label=label)
        for column, factor in enumerate(factors):
            panel.text(column + 0.27 * (place - 1), factor * 1.05, f"{factor:.3g}", ha="center", fontsize=8)
    panel.set(yscale="log", ylabel="largest over smallest", xticks=range(3), ylim=(0.9, 60))
    panel.set_xticklabels(["time", "space", "total"])
    panel.set_title("Largest change of each rank", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def draw_fourier_features(data: xarray.Dataset) -> Figure:
    """Ranks against octaves and against the frequency of random waves; losses of gradient descent."""
    title = f"Fourier features lift the rank of one-dimensional input: {_STATE}"
    figure, panels = new_figure(title, 1, 3, (15, 5))
    counts = data.octaves.values[1:]
    for n_x, color in _OF_N_X.items():
        own = data.temporal.sel(n_x=n_x)
        _points(panels[0], counts, own.isel(octaves=slice(1, None)), color, f"$n_x$ = {n_x}")
        panels[0].axhline(float(own.isel(octaves=0).mean()), color=color, linewidth=1, linestyle="--")
    panels[0].plot(counts, 2 * counts, ":", color=INK, label="number of features")
    panels[0].plot([], [], "--", color=INK, linewidth=1, label="without features")
    panels[0].set(xlabel="octaves of sin and cos", ylabel="rank in time", xscale="log", yscale="log")
    panels[0].set_title("Frequencies 1, 2, 4, ...", fontsize=11)
    _points(panels[1], data.scale, data.temporal_random, PURPLE, "$n_x$ = 10")
    plain = float(data.temporal.sel(n_x=10, octaves=0).mean())
    panels[1].axhline(plain, color=INK, linewidth=1, linestyle="--", label="without features")
    panels[1].set(
        xlabel="standard deviation of the frequency", ylabel="rank in time", xscale="log", yscale="log"
    )
    panels[1].set_title("64 random frequencies", fontsize=11)
    for kind, color in zip(data.kind.values.tolist(), PALETTE, strict=False):
        for place, run in enumerate(data.loss.sel(kind=kind).values):
            panels[2].plot(run, color=color, linewidth=1.1, label=kind if not place else None)
    panels[2].set(
        xlabel="step of gradient descent", ylabel="loss over mean square of the target", yscale="log"
    )
    panels[2].set_title("Learning a statistic of one-dimensional sequences", fontsize=11)
    for panel in panels:
        panel.legend(frameon=False, fontsize=9)
    for panel in panels[:2]:
        _plain_ticks(panel)
    return figure


def _points(
    panel: Axes, places: xarray.DataArray, values: xarray.DataArray, color: str, label: str, marker: str = "o"
) -> None:
    """Means over draws with their standard errors."""
    error = values.std("draw", ddof=1) / np.sqrt(values.sizes["draw"])
    panel.errorbar(
        places,
        values.mean("draw"),
        error,
        fmt=f"{marker}-",
        color=color,
        markersize=4,
        linewidth=1.3,
        label=label,
    )


def _plain_ticks(panel: Axes) -> None:
    """Numbers instead of powers of ten, halves of a decade apart or closer."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _shades(count: int) -> list[str]:
    """Colours from light to dark for a sweep."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.85 * place / max(1, count - 1))) for place in range(count)]
