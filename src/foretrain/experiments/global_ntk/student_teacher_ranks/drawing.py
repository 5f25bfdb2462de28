"""The picture of figure 5: ranks against gain and input rank, gradients and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.experiments.global_ntk.student_teacher_ranks.trends import gain_sweep, input_sweep
from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {"partial trace": BLUE, "all pairs": ORANGE}
_STYLES = {"initial": ("-", "o", "at initialisation"), "trained": ("--", "s", "after training")}
_POINTS = 60  # of a curve of losses
_LOWEST = 0.7  # shown of a rank: one that is zero stands there


def draw(data: xarray.Dataset) -> Figure:
    """Eight panels: ranks in time and in space, by gain and by input rank; gradients; losses."""
    title = "Student and teacher: ranks of the global-state NTK against gain and input rank"
    figure, panels = new_figure(title, 2, 4, (19, 9))
    gains, inputs = gain_sweep(data), input_sweep(data)
    largest = int(data.input_rank.max())
    for panel, view in zip(panels, ("temporal", "spatial")):
        _draw_definitions(panel, gains.sel(view=view), "gain")
        panel.set_title(f"train W: {view} rank, input rank {largest}", fontsize=11)
        _by_gain(panel, gains)
    _tell_saturated(panels[1], gains)
    _draw_input_ranks(panels[2], data)
    _by_gain(panels[2], gains)
    _draw_definitions(panels[3], inputs.sel(view="temporal"), "input_rank")
    panels[3].set_title("train W_in: temporal rank, gain 1", fontsize=11)
    _by_input_rank(panels[3], inputs)
    _draw_gradients(panels[4], gains)
    _by_gain(panels[4], gains)
    _draw_modes(panels[5], gains)
    _by_gain(panels[5], gains)
    _draw_losses(panels[6], gains, "gain", "g = {:g}")
    panels[6].set_title(f"train W: who learns, input rank {largest}", fontsize=11)
    _draw_losses(panels[7], inputs, "input_rank", "input rank {:g}")
    panels[7].set_title("train W_in: who learns, gain 1", fontsize=11)
    return figure


def _draw_definitions(panel: Axes, sweep: xarray.Dataset, axis: str) -> None:
    """One colour for each definition of the rank, one style for each moment."""
    for definition, color in _COLORS.items():
        for moment, (style, marker, _) in _STYLES.items():
            ranks = sweep["rank"].sel(definition=definition, moment=moment)
            label = definition if moment == "initial" else None
            _line(panel, ranks, axis, linestyle=style, marker=marker, color=color, label=label)
    for style, marker, told in _STYLES.values():
        panel.plot([], [], linestyle=style, marker=marker, color=INK, markersize=4, label=told)
    panel.set(ylabel="participation ratio", yscale="log")
    panel.legend(frameon=False, fontsize=9)


def _line(panel: Axes, values: xarray.DataArray, axis: str, **looks: Any) -> None:
    """Means over seeds with their standard errors."""
    mean, error = values.mean("seed"), values.std("seed", ddof=1) / np.sqrt(values.sizes["seed"])
    panel.errorbar(
        values[axis],
        mean.clip(min=_LOWEST),
        error,
        markersize=4,
        linewidth=1.5,
        elinewidth=0.9,
        capsize=2,
        **looks,
    )


def _tell_saturated(panel: Axes, gains: xarray.Dataset) -> None:
    """Students that training has thrown into saturation, where the kernel is zero."""
    lost = (gains["rank"].sel(moment="trained", view="spatial", definition="partial trace") == 0).sum("seed")
    told = [f"{int(count)} of {gains.sizes['seed']} at g = {float(count.gain):g}" for count in lost if count]
    if told:
        text = f"rank 0 after training,\nall units saturated:\n{', '.join(told)}"
        panel.text(0.03, 0.4, text, transform=panel.transAxes, fontsize=9, color=INK)


def _by_gain(panel: Axes, gains: xarray.Dataset) -> None:
    """The axis of gains, shaded where gradients grow on their way back."""
    growth = gains.growth.sel(moment="initial").mean("seed")
    chaotic = gains.gain.values[growth.values > 1]
    panel.set_xlabel("gain g of the student's W")
    if len(chaotic):
        panel.axvspan(chaotic[0], 1.03 * gains.gain.values[-1], color="#f4ece0", zorder=0)
        panel.set_xlim(None, 1.03 * gains.gain.values[-1])


def _by_input_rank(panel: Axes, inputs: xarray.Dataset) -> None:
    ranks = inputs.input_rank.values
    panel.set(xlabel="input rank", xscale="log")
    panel.set_xticks(ranks, [str(rank) for rank in ranks])
    panel.minorticks_off()


def _draw_input_ranks(panel: Axes, data: xarray.Dataset) -> None:
    """Both ranks at initialisation as partial traces, for every input rank that the sweep of gains has."""
    measured = (
        data.sel(trainable="recurrent").dropna("input_rank", subset=["growth"], how="all").input_rank.values
    )
    for style, rank in zip((":", "-", "--", "-."), measured):
        sweep = gain_sweep(data, int(rank))["rank"].sel(moment="initial", definition="partial trace")
        for view, color in (("temporal", GREEN), ("spatial", PURPLE)):
            looks = {"color": color, "linestyle": style, "marker": "o", "label": f"{view}, input rank {rank}"}
            _line(panel, sweep.sel(view=view), "gain", **looks)
    panel.set_title("train W: by input rank, at initialisation", fontsize=11)
    panel.set(ylabel="participation ratio of the partial trace", yscale="log")
    panel.legend(frameon=False, fontsize=9)


def _draw_gradients(panel: Axes, gains: xarray.Dataset) -> None:
    positive = gains.growth.where(gains.growth > 0)
    for moment, (style, marker, told) in _STYLES.items():
        runs = positive.sel(moment=moment).transpose("gain", "seed")
        panel.plot(gains.gain, runs, marker, color=FAINT, markersize=3)
        panel.plot(
            gains.gain,
            runs.median("seed"),
            linestyle=style,
            marker=marker,
            color=INK,
            markersize=4,
            label=told,
        )
    panel.axhline(1, color=ORANGE, linewidth=1)
    panel.set_title("train W: gradient at the first step over the last", fontsize=11)
    panel.set(ylabel="growth on the way back", yscale="log", ylim=(1e-6, None))
    panel.legend(frameon=False, fontsize=9, title="shaded: gradients explode", title_fontsize=9)


def _draw_modes(panel: Axes, gains: xarray.Dataset) -> None:
    for view, color in (("temporal", GREEN), ("spatial", PURPLE)):
        for moment, (style, marker, told) in _STYLES.items():
            modes = gains.modes.sel(view=view, moment=moment)
            _line(panel, modes, "gain", linestyle=style, marker=marker, color=color, label=f"{view}, {told}")
    panel.set_title("train W: modes for 95 % of the partial trace", fontsize=11)
    panel.set(ylabel="modes", yscale="log")
    panel.legend(frameon=False, fontsize=9)


def _draw_losses(panel: Axes, sweep: xarray.Dataset, axis: str, name: str) -> None:
    """The median over seeds, in means over some steps."""
    from matplotlib import colormaps

    width = max(1, sweep.sizes["step"] // _POINTS)
    losses = sweep.loss.coarsen(step=width, boundary="trim").mean().median("seed")
    shades = colormaps["viridis"](np.linspace(0, 0.92, sweep.sizes[axis]))
    for value, color in zip(sweep[axis].values, shades):
        curve = losses.sel({axis: value})
        panel.plot(width * np.arange(curve.size), curve, color=color, linewidth=1.6, label=name.format(value))
    panel.set(xlabel="step", ylabel="mean squared error", yscale="log")
    low, high = panel.get_ylim()
    panel.set_ylim(low, high * (high / low) ** 0.35)  # room for the names
    panel.legend(frameon=False, fontsize=9, ncols=2, loc="upper left")
