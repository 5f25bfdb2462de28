"""The flow of a network's statistics for the eye: kernels, correlations and fluctuations by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.drawing import BLUE, FAINT, INK, ORANGE, PALETTE, RED, new_figure
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.finite_width import LARGE, SMALL

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.theory.architecture import MLP
    from foretrain.theory.flow import Flow

Array = NDArray[np.float64]

_DEEP = 50  # layers from which on depth has a logarithmic axis
_WIDE = 20.0  # ratio of the largest to the smallest value from which on an axis is logarithmic
_NAMED = 4  # lines with a legend; more are drawn thin
_WIDTHS = (3.6, 2.2, 1.3, 0.7)


MEASURES = {
    "D": ("D/(nKΘ)", -1, -1),
    "F": ("F/(nKΘ)", -1, -1),
    "A": ("A/(nΘ²)", 0, -2),
    "B": ("B/(nΘ²)", 0, -2),
    "P": ("P/(nΘ²)", 0, -2),
    "Q": ("Q/(nΘ²)", 0, -2),
    **{name: (f"{name}K/(nΘ³)", 1, -3) for name in "RSTU"},
}
"""Dimensionless sizes of tensors (9.24), (11.62), (∞.21): the name, and powers of K and Theta that go with each."""


def measures(found: Flow) -> dict[str, Array]:
    """The sizes of the tensors of input 0 alone at every layer, with their 1/n, where Theta was asked for."""
    if "Theta" not in found:
        return {}
    depth, fan_in = found.mlp.depth, np.array(found.mlp.widths[:-1], dtype=float)
    K, Theta = (found[name].values.reshape(depth, -1)[:, 0] for name in ("K", "Theta"))
    sizes = {}
    for name, (label, of_K, of_Theta) in MEASURES.items():
        if name in found:
            value = found[name].values.reshape(depth, -1)[:, 0] / fan_in
            with np.errstate(divide="ignore", invalid="ignore"):
                sizes[label] = np.asarray(value * K ** float(of_K) * Theta ** float(of_Theta))
    return sizes


def flow_summary(found: Flow) -> xr.Dataset:
    """What people look at, by layer: K and correlations; V / (n K^2) and G1 / n where V and G1 were asked for.

    ``correlation`` has the dimensions (layer, input, other); the other variables (layer, input). V may be on
    quadruples if the first N of them are (a, a, a, a).
    """
    import xarray as xr

    mlp, names, K = found.mlp, set(found), np.asarray(found["K"].values)
    kernel = np.einsum("laa->la", K)
    fan_in = np.array(mlp.widths[:-1], dtype=float)[:, None]
    safe = np.where(kernel > 0, kernel, 1.0)
    size = np.sqrt(safe)
    variables: dict[str, Any] = {
        "kernel": (("layer", "input"), kernel, {"meaning": "K of every input"}),
        "correlation": (
            ("layer", "input", "other"),
            np.clip(K / (size[:, :, None] * size[:, None, :]), -1.0, 1.0),
            {"meaning": "K of two inputs over the root of the product of their own"},
        ),
    }
    if "V" in names:
        relative = _alone(found["V"], kernel.shape[1]) / fan_in / safe**2
        variables["fluctuation"] = (("layer", "input"), relative, {"meaning": "V / (n K^2)"})
    if "G1" in names:
        shift = np.einsum("laa->la", found["G1"].values) / fan_in
        variables["correction"] = (("layer", "input"), shift, {"meaning": "G1 / n, n the fan-in"})
    coordinates = {"layer": found["K"]["layer"].values, "input": np.arange(kernel.shape[1])}
    return xr.Dataset(variables, coords=coordinates, attrs={"activation": mlp.activation.label})


def with_laws(summary: xr.Dataset, mlp: MLP, x: Array) -> xr.Dataset:
    """The summary with the asymptotic laws of its first input x beside the exact numbers, as ``..._law`` by layer.

    The attribute ``statement`` says what holds, or why no law is known.
    """
    from foretrain.theory.asymptotics import asymptotics

    try:
        laws = asymptotics(mlp, x)
    except (NotSupportedError, InputError) as error:
        return summary.assign_attrs(statement=f"no law is known ({str(error).partition(': ')[0]})")
    fan_in = float(mlp.hidden_widths[-1])
    sources = {"kernel": ("K", 1.0), "fluctuation": ("fluctuation", 1.0), "correction": ("G1", fan_in)}
    added = {
        f"{name}_law": (laws[source].sel(law="asymptotic", drop=True) / scale)
        .reindex(layer=summary["layer"])
        .assign_attrs({key: laws[source].attrs[key] for key in ("formula", "equation", "remainder")})
        for name, (source, scale) in sources.items()
        if name in summary and source in laws
    }
    statement = laws.attrs["statement"]
    if abs(summary["kernel"].values[0, 0] - laws.attrs.get("K_star", 0.0)) > laws.attrs.get("reach", np.inf):
        statement += f", too far off for its law, which reaches K* ± {laws.attrs['reach']:.3g}"
    return summary.assign(added).assign_attrs(
        statement=statement, universality_class=laws.attrs["universality_class"]
    )


def flow_figure(summary: xr.Dataset, title: str) -> Figure:
    """Kernels of all inputs, their correlations, V / (n K^2), and the first kernel with its 1/n band."""
    panels = [_kernels]
    panels += [_correlations] if summary.sizes["input"] > 1 else []
    panels += [_fluctuations] if "fluctuation" in summary else []
    panels += [_band] if "fluctuation" in summary and "correction" in summary else []
    rows, columns = (2, 2) if len(panels) == 4 else (1, len(panels))
    figure, axes = new_figure(title, rows, columns, (5.0 * columns, 3.4 * rows + 0.4))
    for draw, axis in zip(panels, axes, strict=True):
        draw(axis, summary)
        _depth_axis(axis, summary["layer"].values)
    return figure


def _alone(V: xr.DataArray, inputs: int) -> Array:
    """V_(aa)(aa) by layer and input."""
    if "quadruple" in V.dims:
        return np.asarray(V.values[:, :inputs])
    return np.asarray(np.einsum("laaaa->la", V.values))


def _kernels(axis: Axes, summary: xr.Dataset) -> None:
    values = summary["kernel"].values
    _value_axis(axis, values)
    _lines(axis, summary["layer"].values, values, [f"input {i}" for i in summary["input"].values])
    _law(axis, summary, "kernel_law", "law of input 0")
    axis.set_title("Kernel K of each input", fontsize=10, loc="left")
    _legend(axis)


def _correlations(axis: Axes, summary: xr.Dataset) -> None:
    first, second = np.triu_indices(summary.sizes["input"], 1)
    names = [f"inputs {a}, {b}" for a, b in zip(first, second)]
    values = summary["correlation"].values[:, first, second]
    _lines(axis, summary["layer"].values, values, names)
    if values.max() > 0.9:
        axis.axhline(1.0, color=FAINT, linewidth=0.8, linestyle=":")
    axis.set_title("Correlation between inputs", fontsize=10, loc="left")
    _legend(axis)


def _fluctuations(axis: Axes, summary: xr.Dataset) -> None:
    values = summary["fluctuation"].values
    positive = values[values > 0]
    if _value_axis(axis, positive):
        values = np.where(values > 0, values, np.nan)  # layer 1 does not fluctuate
    _lines(axis, summary["layer"].values, values, [f"input {i}" for i in summary["input"].values])
    _law(axis, summary, "fluctuation_law", "law of input 0")
    _shade(axis, float(positive.max(initial=0.0)))
    axis.set_title("Relative variance of the metric, V / (n K²)", fontsize=10, loc="left")
    _legend(axis)


def _shade(axis: Axes, top: float) -> None:
    """Colour where the first order in 1/n begins to fail, as far as the values reach."""
    low, high = axis.get_ylim()
    high = max(high, 1.1 * top)
    words = (("next order noticeable", ORANGE), ("first order not enough", RED))
    for start, stop, (word, color) in zip((SMALL, LARGE), (LARGE, np.inf), words):
        if top > start:
            axis.axhspan(start, min(stop, high), color=color, alpha=0.12, linewidth=0, label=word)
    axis.set_ylim(low, high)


def _band(axis: Axes, summary: xr.Dataset) -> None:
    """E[z²] = K + G1/n of the first input, and one standard deviation of the metric around it."""
    layer = summary["layer"].values
    one = summary.isel(input=0)
    K = one["kernel"].values
    mean, spread = K + one["correction"].values, K * np.sqrt(np.maximum(one["fluctuation"].values, 0.0))
    logarithmic = _value_axis(axis, np.concatenate([K, mean + spread]))
    floor = 0.1 * float(K.min()) if logarithmic else 0.0
    low, high = np.maximum(mean - spread, floor), mean + spread
    axis.fill_between(
        layer, low, high, color=BLUE, alpha=0.18, linewidth=0, label="± deviation of the metric"
    )
    axis.plot(layer, mean, color=BLUE, linewidth=1.8, label="K + G1/n, this width")
    axis.plot(layer, K, color=INK, linewidth=1.2, linestyle=(0, (1, 1.5)), label="K, infinite width")
    axis.set_title("E[z²] of input 0 across networks", fontsize=10, loc="left")
    _legend(axis)


def _lines(axis: Axes, layer: Array, values: Array, names: list[str]) -> None:
    """One line for each column: named and coloured if they are few, else thin with their median."""
    marker = "." if len(layer) < 4 else None
    if values.shape[1] > _NAMED:
        axis.plot(
            layer, values, color=BLUE, linewidth=0.7, alpha=max(0.2, 2 / values.shape[1]), marker=marker
        )
        axis.plot(
            layer, np.median(values, axis=1), color=ORANGE, linewidth=2.0, label="median", marker=marker
        )
        return
    for index, name in enumerate(names):
        # Ever thinner, so that lines which lie on each other all stay visible.
        width = _WIDTHS[index] if len(names) > 1 else 1.8
        axis.plot(layer, values[:, index], color=PALETTE[index], linewidth=width, label=name, marker=marker)


def _law(axis: Axes, summary: xr.Dataset, name: str, label: str) -> None:
    if name in summary:
        values = summary[name].values
        if axis.get_yscale() == "log":
            values = np.where(values > 0, values, np.nan)
        axis.plot(
            summary["layer"].values, values, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), label=label
        )


def _depth_axis(axis: Axes, layer: Array) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel("layer", fontsize=9)
    if len(layer) >= _DEEP:
        axis.set_xscale("log")
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlim(layer[0], layer[-1] if len(layer) > 1 else layer[0] + 1)


def _value_axis(axis: Axes, values: Array) -> bool:
    """A logarithmic axis where positive values span a wide range; whether it was chosen."""
    finite = values[np.isfinite(values)]
    wide = bool(finite.size and finite.min() > 0 and finite.max() > _WIDE * finite.min())
    if wide:
        axis.set_yscale("log")
    elif finite.size and finite.min() >= 0:
        axis.set_ylim(0.0, 1.08 * float(finite.max()) or 1.0)
    return wide


def _legend(axis: Axes) -> None:
    axis.legend(frameon=False, fontsize=8)
