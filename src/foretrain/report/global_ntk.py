"""The global-state NTK for the eye: how its modes fall, where in time they live, which weights make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, SKY, new_mosaic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from foretrain.empirical.global_ntk.summary import GlobalSummary, View

    Array = NDArray[np.float64]

_MOST_BARS = 12  # parameters; the smaller ones of more are drawn together
_MOST_SAMPLES = 24  # thin lines of one mode


def global_ntk_figure(summary: GlobalSummary, title: str = "Global-state NTK") -> Figure:
    """Spectrum, ranks and weights, then for every member of the states its modes in time and its target's modes."""
    layout: list[Any] = [["spectrum", "ranks", "weights"]]
    for number, view in enumerate(summary.views.values()):
        last = f"modes {number}" if view.alignment is None else f"target {number}"
        layout.append([f"modes {number}", f"modes {number}", last])
    heights = [1.0] + [1.15] * len(summary.views)
    figure, panels = new_mosaic(title, layout, heights, (13.5, 3.4 + 4.0 * len(summary.views)))
    _spectrum(panels["spectrum"], summary)
    _ranks(panels["ranks"], summary)
    _weights(panels["weights"], summary)
    for number, view in enumerate(summary.views.values()):
        ending = f", {view.name}" if len(summary.views) > 1 else ""
        _modes(panels[f"modes {number}"], view, ending)
        if view.alignment is not None:
            _target(panels[f"target {number}"], view, ending)
    return figure


def _spectrum(axis: Axes, summary: GlobalSummary) -> None:
    """Shares of the trace by rank: of NTK_S, of the temporal kernels and of their cores."""
    from matplotlib.ticker import MaxNLocator

    curves: list[tuple[Array, str, str, str]] = [(summary.eigenvalue_shares, "all states", INK, "o-")]
    several = len(summary.views) > 1
    for color, (name, view) in zip(PALETTE, summary.views.items()):
        ending = f", {name}" if several else ""
        curves.append((view.temporal_shares, f"in {view.along}{ending}", color, ".-"))
        if len(view.core_shares):
            curves.append((view.core_shares, f"core V V*{ending}", color, "x:"))
    for values, label, color, style in curves:
        shown = np.where(values > 1e-7, values, np.nan)
        ranks = np.arange(1, len(values) + 1)
        axis.plot(ranks, shown, style, color=color, linewidth=1.3, markersize=4.5, label=label)
    axis.set_yscale("log")
    axis.set_ylim(top=1.5)
    axis.set_xlim(left=0.5)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("mode", fontsize=9)
    axis.set_title("Eigenvalues, share of the trace", fontsize=10, loc="left")
    axis.legend(frameon=False, fontsize=8)


def _ranks(axis: Axes, summary: GlobalSummary) -> None:
    """Effective ranks beside the largest they could be."""
    bars = [("all states", summary.effective_rank, summary.size, INK)]
    several = len(summary.views) > 1
    for name, view in summary.views.items():
        ending = f"\n{name}" if several else ""
        *places, units = view.axes.values()
        bars.append((f"in {view.along}{ending}", view.temporal_rank, int(np.prod(places)), BLUE))
        bars.append((f"in space{ending}", view.spatial_rank, units, ORANGE))
    at = np.arange(len(bars))
    axis.barh(at, [most for *_, most, _ in bars], color="#efefef", height=0.72)
    for place, (_, rank, most, color) in zip(at, bars):
        error = rank.standard_error if rank.standard_error > 0 else None
        axis.barh(place, rank.value, xerr=error, color=color, alpha=0.85, height=0.5, ecolor=FAINT)
        axis.annotate(
            f"{rank.value:.3g} of {most}",
            (most, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.set_xscale("log")
    axis.set_xlim(1.0, float(summary.size) ** 1.45)  # room for the words
    axis.set_yticks(at, [label for label, *_ in bars], fontsize=8)
    axis.invert_yaxis()
    axis.set_title("Effective ranks", fontsize=10, loc="left")


def _weights(axis: Axes, summary: GlobalSummary) -> None:
    """Every parameter's share of the trace and, where it is known, of the fall of the loss."""
    names, columns = _shares(summary)
    height = 0.8 / len(columns)
    for number, (color, (label, values)) in enumerate(zip((GREEN, *PALETTE[1::-1], SKY), columns.items())):
        at = np.arange(len(names)) + (number - (len(columns) - 1) / 2) * height
        axis.barh(at, 100 * values, height=0.92 * height, color=color, alpha=0.85, label=label)
    axis.set_yticks(np.arange(len(names)), names, fontsize=8)
    room = 0.2 * len(names) * (len(columns) - 1)  # below the bars, for the legend
    axis.set_ylim(len(names) - 0.5 + room, -0.5)
    axis.set_xlabel("percent", fontsize=9)
    axis.set_title("Share of each parameter", fontsize=10, loc="left")
    if len(columns) > 1:
        axis.legend(frameon=False, fontsize=8, loc="lower right")


def _shares(summary: GlobalSummary) -> tuple[list[str], dict[str, Array]]:
    """The largest parameters, the others together, and what each column says of them."""
    shares, several = summary.trace_shares, len(summary.views) > 1
    columns = {"of the trace": shares.values}
    for name, view in summary.views.items():
        if view.loss_decrease is not None:
            falls = np.array([view.loss_decrease.shares[key] for key in shares.names])
            columns[f"of the loss decrease{f', {name}' if several else ''}"] = falls
    names = list(shares.names)
    if len(names) > _MOST_BARS:
        kept = np.sort(np.argsort(-shares.values)[: _MOST_BARS - 1])
        names = [*(names[i] for i in kept), f"{len(names) - len(kept)} others"]
        columns = {
            label: np.append(values[kept], values.sum() - values[kept].sum())
            for label, values in columns.items()
        }
    return names, columns


def _modes(axis: Axes, view: View, ending: str) -> None:
    """One row for each mode: thin lines are samples, over time or whatever the last of the places is."""
    shape = view.temporal_modes.shape[1:]
    along = list(view.axes)[len(shape) - 1]
    modes = view.temporal_modes.reshape(len(view.temporal_modes), -1, shape[-1])
    style = "." if along == "batch" else "-"  # samples have no order
    picked = np.linspace(0, modes.shape[1] - 1, min(_MOST_SAMPLES, modes.shape[1])).astype(int)
    for row, (mode, share) in enumerate(zip(modes, view.temporal_shares)):
        color = PALETTE[row % len(PALETTE)]
        size = max(float(np.abs(mode).max()), 1e-300)
        axis.axhline(-row, color=FAINT, linewidth=0.6)
        axis.plot(
            mode[picked].T * 0.46 / size - row, style, color=color, linewidth=0.8, markersize=5, alpha=0.7
        )
        axis.text(
            1.005,
            -row,
            f"{100 * max(share, 0.0):.2g} %",
            transform=axis.get_yaxis_transform(),
            va="center",
            fontsize=8,
        )
    axis.set_yticks(-np.arange(len(modes)), [str(number + 1) for number in range(len(modes))], fontsize=9)
    axis.set_ylim(-len(modes) + 0.45, 0.55)
    axis.set_xlim(0, max(shape[-1] - 1, 1))
    axis.grid(False, axis="y")
    axis.set_ylabel("mode", fontsize=9)
    axis.set_xlabel(along, fontsize=9)
    lines = (
        f", {len(picked)} of {modes.shape[1]} samples" if len(picked) < modes.shape[1] else ", all samples"
    )
    heading = (
        f"Modes of the temporal kernel{ending}{lines if len(shape) > 1 else ''}; right: shares of its trace"
    )
    axis.set_title(heading, fontsize=10, loc="left")


def _target(axis: Axes, view: View, ending: str) -> None:
    """How fast every mode of the target changes, by NTK_S and by the core: 1 is a random direction."""
    found = view.alignment
    assert found is not None  # drawn only then
    at = np.arange(1, len(found.rayleigh) + 1)
    axis.bar(at - 0.2, found.rayleigh, 0.36, yerr=found.standard_error, color=BLUE, alpha=0.85, label="NTK")
    axis.bar(at + 0.2, found.proxy_rayleigh, 0.36, color=SKY, alpha=0.85, label="core V V*")
    axis.axhline(1.0, color=INK, linestyle="--", linewidth=1.0)
    axis.set_yscale("log")
    speeds = np.array([*found.rayleigh, *found.proxy_rayleigh, 1.0])
    lowest = max(0.4 * float(np.nanmin(speeds)), 1e-8)
    axis.set_ylim(
        lowest, float(np.nanmax(speeds)) * (np.nanmax(speeds) / lowest) ** 0.3
    )  # room for the legend
    for place, value, cosine in zip(at, found.rayleigh, found.cosine):
        axis.annotate(
            f"cos {cosine:.2f}",
            (place - 0.2, value),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    energies = found.singular_values**2
    axis.set_xticks(at, [f"{i}\n{share:.0%}" for i, share in zip(at, energies / energies.sum())], fontsize=8)
    axis.set_xlabel("mode of the target, and its part of the target", fontsize=9)
    axis.set_title(f"Speed of the target's modes{ending}", fontsize=10, loc="left")
    axis.legend(frameon=False, fontsize=8)
