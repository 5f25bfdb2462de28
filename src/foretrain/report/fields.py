"""Collective fields for the eye: who drives the kernel, who is active together, and how metric and gradient align."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.support.drawing import BLUE, FAINT, INK, ORANGE, PALETTE, RED, new_figure

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.empirical.fields import Fields, StepReport

Array = NDArray[np.float64]


def training_figure(record: xr.Dataset, title: str = "Fields during training") -> Figure:
    """What ``record_fields`` saw: loss, layer shares of the kernel, their effect on the residual, alignment."""
    panels = (_loss, _shares, _drives, _alignments)
    figure, axes = new_figure(title, 2, 2, (10.0, 7.2))
    for draw, axis in zip(panels, axes, strict=True):
        draw(axis, record)
        _along_training(axis, record)
    return figure


def layer_contributions_figure(
    record: xr.Dataset, title: str = "Layer contributions to the kernel"
) -> Figure:
    """Shares of tr K by layer over training, stacked, as ``record_fields`` saw them."""
    figure, (axis,) = new_figure(title, 1, 1, (6.4, 4.2))
    _shares(axis, record)
    _along_training(axis, record)
    return figure


def alignment_figure(record: xr.Dataset, title: str = "Metric and gradient") -> Figure:
    """Alignment of G_l with the gradient of the loss by u_l over training: one line for each layer."""
    figure, (axis,) = new_figure(title, 1, 1, (6.4, 4.2))
    _alignments(axis, record)
    _along_training(axis, record)
    return figure


def _along_training(axis: Axes, record: xr.Dataset) -> None:
    axis.set_xlabel("training step", fontsize=9)
    axis.set_xlim(float(record["step"][0]), float(record["step"][-1]))


def coactivation_figure(found: Fields, title: str = "Co-activation of inputs") -> Figure:
    """A^l of all pairs of inputs, one panel for each layer: the mean over units of the product of slopes."""
    from matplotlib.ticker import MaxNLocator

    # A last layer without activation has slope 1 everywhere.
    plain = found.depth > 1 and found.state.has_plain_output
    layers = range(1, found.depth + (not plain))
    columns = min(4, len(layers))
    rows = -(-len(layers) // columns)
    figure, axes = new_figure(title, rows, columns, (3.1 * columns + 0.8, 3.0 * rows + 0.5))
    unit = 1 if found.normalized else np.array([found.widths[layer] for layer in layers])
    values = np.stack([found.coactivation(layer).values for layer in layers])
    means = values / np.reshape(unit, (-1, 1, 1))
    top = float(np.abs(means).max()) or 1.0
    for layer, axis, matrix in zip(layers, axes, means):
        signed = bool(means.min() < 0)
        image = axis.imshow(
            matrix, cmap="RdBu" if signed else "Blues", vmin=-top if signed else 0.0, vmax=top
        )
        axis.grid(False)
        axis.set_title(f"layer {layer}", fontsize=10, loc="left")
        axis.set_xlabel("input", fontsize=9)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    for spare in axes[len(layers) :]:
        spare.set_axis_off()
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("mean product of slopes", fontsize=9)
    return figure


def step_report_figure(report: StepReport, title: str = "One step: predicted against real") -> Figure:
    """Change, error, error with frozen masks and flip part against the learning rate, of residuals, u and b."""
    figure, axes = new_figure(title, 1, 3, (13.0, 4.0))
    data = report.data.sel(norm="rms")
    names = data["field"].values
    panels = (
        ("residual", "residual r"),
        ("u_", "activations u, largest layer"),
        ("b_", "conjugate fields b, largest layer"),
    )
    lines = (
        ("change", "real change", INK, "-"),
        ("error", "error", RED, "-"),
        ("frozen_error", "without mask flips", BLUE, "--"),
        ("flip_part", "mask flips", ORANGE, ":"),
        ("roundoff", "round-off", FAINT, "-"),
    )
    for axis, (start, heading) in zip(axes, panels, strict=True):
        chosen = data.isel(field=[str(name).startswith(start) for name in names])
        for key, label, color, style in lines:
            values = chosen[key].max("field").values
            shown = np.where(values > 0, values, np.nan)
            axis.loglog(data["lr"].values, shown, color=color, linestyle=style, marker=".", label=label)
        axis.set_title(heading, fontsize=10, loc="left")
        axis.set_xlabel("learning rate", fontsize=9)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _loss(axis: Axes, record: xr.Dataset) -> None:
    loss = record["loss"].values
    axis.plot(record["step"].values, loss, color=INK, linewidth=1.8)
    if loss.min() > 0 and loss.max() > 20 * loss.min():
        axis.set_yscale("log")
    axis.set_title("Loss", fontsize=10, loc="left")


def _shares(axis: Axes, record: xr.Dataset) -> None:
    traces = record["kernel_trace"]
    shares = (traces / traces.sum("layer")).transpose("layer", "step").values
    labels = [f"layer {layer}" for layer in record["layer"].values]
    axis.stackplot(record["step"].values, shares, labels=labels, colors=_colors(len(labels)), alpha=0.85)
    axis.set_ylim(0.0, 1.0)
    axis.set_title("Share of each layer in tr K", fontsize=10, loc="left")
    axis.legend(facecolor="white", framealpha=0.85, edgecolor="none", fontsize=8, loc="upper left")


def _drives(axis: Axes, record: xr.Dataset) -> None:
    for layer, color in zip(record["layer"].values, _colors(record.sizes["layer"])):
        values = record["kernel_drive"].sel(layer=layer).values
        axis.plot(record["step"].values, values, color=color, linewidth=1.6, label=f"layer {layer}")
    axis.set_title("Drive on the residual, rᵀK r / rᵀr", fontsize=10, loc="left")
    axis.set_ylim(bottom=0.0)
    axis.legend(frameon=False, fontsize=8)


def _alignments(axis: Axes, record: xr.Dataset) -> None:
    steps = record["step"].values
    for layer, color in zip(record["metric_layer"].values, _colors(record.sizes["metric_layer"])):
        values = record["metric_alignment"].sel(metric_layer=layer).transpose("step", "followed").values
        axis.plot(steps, values, color=color, linewidth=0.6, alpha=0.5)
        axis.plot(steps, _mean(values), color=color, linewidth=2.0, label=f"G of layer {layer}")
    axis.set_ylim(0.0, 1.02)
    axis.set_title("Alignment of G with the gradient, gᵀG g / (|g|² λ_max)", fontsize=10, loc="left")
    axis.legend(frameon=False, fontsize=8)


def _mean(values: Array) -> Array:
    """Mean over inputs of those that have a gradient."""
    known = np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _colors(count: int) -> list[str]:
    return [PALETTE[index % len(PALETTE)] for index in range(count)]
