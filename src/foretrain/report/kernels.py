"""Tangent kernels for the eye: how eigenvalues fall, where they lie, which layers matter, where targets are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, GREEN, INK, ORANGE, SKY, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.empirical.kernel_analysis.summary import KernelSummary

_MOST_BARS = 16  # layers; the smaller ones of more are drawn together


def kernel_figure(summary: KernelSummary, title: str = "Tangent kernel") -> Figure:
    """Spectrum and density, and where they are known the layers' shares of the trace and the targets' energy."""
    panels = [_spectrum, _density]
    panels += [_layers] if summary.layer_shares else []
    panels += [_energies] if summary.alignment is not None else []
    columns = 2 if len(panels) in (2, 4) else 3
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(title, rows, columns, (4.6 * columns, 3.6 * rows + 0.5))
    for draw, axis in zip(panels, axes, strict=True):
        draw(axis, summary)
    return figure


def _spectrum(axis: Axes, summary: KernelSummary) -> None:
    """Eigenvalues by rank: those found one by one, then how many lie above each value."""
    density = summary.density
    known = density.known[density.known > density.rounding]
    edges = density.edges()
    above = density.counts([*edges, np.inf])
    ranks = np.cumsum(above.value[::-1])[::-1][:-1]
    errors = np.sqrt(np.cumsum(above.standard_error[::-1] ** 2))[::-1][:-1]
    lower = edges[:-1]
    rest = ranks > len(known)
    if rest.any():
        axis.fill_betweenx(
            lower[rest],
            np.maximum(ranks - errors, 1.0)[rest],
            (ranks + errors)[rest],
            color=SKY,
            alpha=0.35,
            linewidth=0,
        )
        axis.plot(ranks[rest], lower[rest], color=BLUE, linewidth=1.4, label="from random probes")
    axis.plot(np.arange(1, len(known) + 1), known, ".", color=INK, markersize=4, label="found one by one")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("rank", fontsize=9)
    axis.set_title("Eigenvalues", fontsize=10, loc="left")
    if rest.any():
        axis.legend(frameon=False, fontsize=8)


def _density(axis: Axes, summary: KernelSummary) -> None:
    data = summary.density.to_dataset()
    lower, upper, count = data["lower"].values, data["upper"].values, data["count"].values
    axis.bar(lower, count, width=upper - lower, align="edge", color=BLUE, alpha=0.75)
    error = data["count_error"].values
    shown = error > 0
    axis.errorbar(
        np.sqrt(lower * upper)[shown], count[shown], error[shown], fmt="none", ecolor=INK, elinewidth=0.8
    )
    axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=1.0)
    axis.set_ylim(bottom=0.0)
    axis.set_xlabel(f"eigenvalue ({max(data.attrs['below'], 0.0):.0f} are smaller)", fontsize=9)
    axis.set_title("How many lie where", fontsize=10, loc="left")


def _layers(axis: Axes, summary: KernelSummary) -> None:
    shares = dict(summary.layer_shares)
    if len(shares) > _MOST_BARS:
        largest = sorted(shares, key=lambda name: -shares[name])[: _MOST_BARS - 1]
        kept = {name: share for name, share in shares.items() if name in largest}
        shares = kept | {f"{len(shares) - len(kept)} others": 1.0 - sum(kept.values())}
    names = [name or "(whole model)" for name in shares]
    axis.barh(np.arange(len(shares)), 100 * np.array(list(shares.values())), color=GREEN, alpha=0.8)
    axis.set_yticks(np.arange(len(shares)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("percent", fontsize=9)
    axis.set_title("Share of each layer in the trace", fontsize=10, loc="left")


def _energies(axis: Axes, summary: KernelSummary) -> None:
    found = summary.alignment
    assert found is not None  # drawn only then
    modes = np.arange(1, len(found.energies) + 1)
    axis.bar(modes, found.energies, color=ORANGE, alpha=0.8, label="of each mode")
    axis.plot(modes, found.cumulative, color=INK, marker=".", linewidth=1.2, label="up to it")
    axis.set_ylim(0.0, min(1.05, 1.3 * float(found.cumulative[-1])))
    axis.set_xlabel("mode", fontsize=9)
    axis.set_title(f"Energy of the targets (alignment {found.alignment:.3g})", fontsize=10, loc="left")
    axis.legend(frameon=False, fontsize=8)
