"""A flow for people: numbers by layer beside their laws in depth, what they mean, and the picture."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import (
    BLUE,
    INK,
    ORANGE,
    RED,
    Answer,
    Axis,
    Figure,
    Panel,
    Part,
    Table,
    labelled,
    scale_for,
)
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.tensors import DNTK_MEASURES, FAMILIES, NTK_MEASURES, TENSORS

if TYPE_CHECKING:
    import xarray as xr

    from foretrain.theory.architecture import MLP
    from foretrain.theory.flow.layers import Flow

Array = NDArray[np.float64]

_SHOWN = 24  # layers; of deeper networks the table shows about so many
_ENTRIES = 8  # columns for quadruples that were asked for
_DEEP = 50  # layers from which on depth has a logarithmic axis
_WIDE = 20.0  # ratio of the largest to the smallest value from which on an axis is logarithmic
_NAMED = 4  # lines with a legend; more are drawn thin
_DRAWN = 12  # lines at most; of more, the band in which they lie
_DOTTED = 4  # layers from which on a line needs no dots
_SIGNS = str.maketrans({"^": None, "2": "²", "3": "³"})


def flow_answer(
    found: Flow, layers: Sequence[int] | None = None, origin: str = "", asked: int | None = None
) -> Answer:
    """What a flow says about some layers, by default all or about two dozen.

    ``origin`` says where the inputs are from; ``asked`` is how many of the last quadruples are shown one by one.
    """
    mlp, summary = found.mlp, found.summary
    every = np.arange(1, mlp.depth + 1)
    some = every if mlp.depth <= _SHOWN else np.unique(np.geomspace(1, mlp.depth, _SHOWN).round().astype(int))
    shown = np.array(layers) if layers else some
    others, sizes, verdict = _others(found), _measures(found), _verdict(mlp, summary)
    partial = {name: found[name] for name in found if "quadruple" in found[name].dims}
    single = {
        name: tensor[:, tensor.shape[1] - (tensor.shape[1] if asked is None else asked) :]
        for name, tensor in partial.items()
    }
    entries = {
        f"V_({a},{b})({c},{d})" if name == "V" else f"{name}_{a},{b},{c},{d}": column
        for name, tensor in single.items()
        for (a, b, c, d), column in zip(_legs(tensor)[: asked or _ENTRIES], tensor.values.T)
    }
    parts: list[Part] = [f"Inputs: {origin}."] if origin else []
    if "K" in found:
        parts.append(_by_layer(_main_columns(summary), shown))
    parts += [_by_layer(columns, shown) for columns in (entries, others) if columns]
    if sizes:
        parts += [
            "Over n, in units of K and Theta, of input 0 (small compared with 1 where the first order is enough):",
            _by_layer(sizes, shown),
        ]
    parts.append(f"In depth: {summary.attrs['statement'].rstrip('.')}.")
    if asked == 0 and partial:
        parts.append(
            f"Of {', '.join(partial)} only entries of each input alone were computed: name others in --quadruples."
        )
    parts.append(lambda: flow_figure(found))
    rows = summary.sel(layer=shown)
    record: dict[str, Any] = {
        "activation": mlp.activation.label,
        **{name: getattr(mlp, name) for name in ("depth", "hidden_widths", "C_b", "C_W", "gamma")},
        "inputs": found.inputs,
        "inputs_from": origin,
        "depth_to_width": mlp.depth_to_width,
        "verdict": verdict,
        "statement": summary.attrs["statement"],
        "laws": {name: dict(rows[name].attrs) for name in rows if str(name).endswith("_law")},
        "others": {name: values[shown - 1] for name, values in others.items()},
        "measures": {name: values[shown - 1] for name, values in sizes.items()},
        "layers": [
            {"layer": int(layer), **{str(name): rows[name].values[place] for name in rows}}
            for place, layer in enumerate(shown)
        ],
    }
    if entries:
        chosen = {name: tensor.values[shown - 1] for name, tensor in single.items()}
        record["quadruples"] = {"inputs": _legs(next(iter(single.values()))), **chosen}
    return Answer(
        f"{mlp.headline}\n{verdict}",
        parts,
        data=lambda: summary.assign({name: found[name] for name in found}).assign_attrs(network=repr(mlp)),
        record=record,
    )


def layer_summary(found: Flow) -> xr.Dataset:
    """What people look at, by layer: K and correlations; V / (n K^2) and G1 / n where V and G1 were asked for.

    ``correlation`` has the dimensions (layer, input, other), the other variables (layer, input). Beside them are the
    asymptotic laws of input 0 as ``..._law`` by layer; the attribute ``statement`` says what holds, or why no law is
    known.
    """
    mlp = found.mlp
    layer = np.arange(1, mlp.depth + 1)
    about = {"activation": mlp.activation.label, "statement": "K was not asked for"}
    if "K" not in found:
        return labelled({}, about, layer=layer)
    K, inputs = found["K"].values, len(found.inputs)
    kernel = np.einsum("laa->la", K)
    fan_in = np.array(mlp.widths[:-1], dtype=float)[:, None]
    safe = np.where(kernel > 0, kernel, 1.0)
    size = np.sqrt(safe)
    correlation = np.clip(K / (size[:, :, None] * size[:, None, :]), -1.0, 1.0)
    meaning = "K of two inputs over the root of the product of their own"
    variables = {
        "kernel": ("layer input", kernel, "K of every input"),
        "correlation": ("layer input other", correlation, meaning),
    }
    alone = _alone(found["V"], inputs) if "V" in found else None
    if alone is not None:
        variables["fluctuation"] = ("layer input", alone / fan_in / safe**2, "V / (n K^2)")
    if "G1" in found:
        shift = np.einsum("laa->la", found["G1"].values) / fan_in
        variables["correction"] = ("layer input", shift, "G1 / n, n the fan-in")
    summary = labelled(variables, about, layer=layer, input=np.arange(inputs))
    return _with_laws(summary, mlp, found.inputs[0])


def _with_laws(summary: xr.Dataset, mlp: MLP, x: Array) -> xr.Dataset:
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


def _legs(tensor: xr.DataArray) -> NDArray[Any]:
    return np.stack([tensor[f"leg_{place}"].values for place in range(1, 5)], axis=1)


def _alone(tensor: xr.DataArray, inputs: int) -> Array | None:
    """V_(aa)(aa) by layer and input; None where it was not computed for all of them."""
    if "quadruple" in tensor.dims:
        places = [np.flatnonzero((_legs(tensor) == a).all(axis=1)) for a in range(inputs)]
        known = all(len(place) for place in places)
        return np.asarray(tensor.values[:, [place[0] for place in places]]) if known else None
    return np.asarray(np.einsum("laaaa->la", tensor.values)) if tensor.ndim == 5 else None


def _of_first_input(tensor: xr.DataArray) -> bool:
    if "quadruple" in tensor.dims:
        return bool(tensor.sizes["quadruple"]) and not _legs(tensor)[0].any()
    return any(str(dim).startswith("input_") for dim in tensor.dims)


def _first_entry(tensor: xr.DataArray) -> Array:
    return np.asarray(tensor.values.reshape(len(tensor), -1)[:, 0])


def _measures(found: Flow) -> dict[str, Array]:
    """The sizes of the tensors of input 0 alone at every layer, with their 1/n, where Theta was asked for."""
    if not {"K", "Theta"} <= {*found}:
        return {}
    fan_in = np.array(found.mlp.widths[:-1], dtype=float)
    sizes = {}
    measures = NTK_MEASURES | DNTK_MEASURES
    for label, measure in sorted(measures.items(), key=lambda each: [*TENSORS].index(each[1].tensor)):
        name = measure.tensor
        if name != "V" and name in found and _of_first_input(found[name]):  # V has a column of its own
            values = {each: _first_entry(found[each]) for each in ("K", "Theta", name)}
            with np.errstate(divide="ignore", invalid="ignore"):
                sizes[label.translate(_SIGNS).replace("Theta", "Θ")] = measure.of(values, fan_in)
    return sizes


def _others(found: Flow) -> dict[str, Array]:
    """Tensors without a column of their own, by one entry; all entries are in the data."""
    shown = {"kernel": "K", "fluctuation": "V", "correction": "G1"}
    known = {tensor for name, tensor in shown.items() if name in found.summary}
    return {
        name + (" of input 0" if _of_first_input(tensor) else ", contracted"): _first_entry(tensor)
        for name, tensor in found.items()
        if name not in known and ("quadruple" not in tensor.dims or _of_first_input(tensor))
    }


def _main_columns(summary: xr.Dataset) -> list[tuple[str, Array]]:
    """What belongs to one input is that of input 0."""

    def law(name: str) -> list[tuple[str, Array]]:
        return [("its law", summary[name].values)] if name in summary else []

    several = summary.sizes["input"] > 1
    kernel = summary["kernel"].values
    columns = [("K of input 0" if several else "K", kernel[:, 0]), *law("kernel_law")]
    if several:
        if np.ptp(kernel, axis=1).max() > 1e-9 * kernel.max():
            columns += [("lowest K", kernel.min(axis=1)), ("highest K", kernel.max(axis=1))]
        correlation = _pair_correlations(summary)
        mean = "" if correlation.shape[1] == 1 else "mean "
        columns.append((f"{mean}correlation", correlation.mean(axis=1)))
        columns.append((f"{mean}angle", np.degrees(np.arccos(correlation)).mean(axis=1)))
    for name, label in (("fluctuation", "V/(nK²)"), ("correction", "G1/n")):
        if name in summary:
            columns += [(label, summary[name].values[:, 0]), *law(f"{name}_law")]
    return columns


def _by_layer(columns: Sequence[tuple[str, Array]] | Mapping[str, Array], shown: NDArray[np.intp]) -> Table:
    """One row per layer; what is not finite leaves its place empty."""
    pairs = list(columns.items()) if isinstance(columns, Mapping) else columns
    rows = [
        [int(layer), *(float(v[layer - 1]) if np.isfinite(v[layer - 1]) else None for _, v in pairs)]
        for layer in shown
    ]
    return Table(("layer", *(heading for heading, _ in pairs)), rows)


def _pair_correlations(summary: xr.Dataset) -> Array:
    first, second = np.triu_indices(summary.sizes["input"], 1)
    return np.asarray(summary["correlation"].values[:, first, second])


def _verdict(mlp: MLP, summary: xr.Dataset) -> str:
    from foretrain.theory.finite_width import expansion_parameter, verdict_on

    if "fluctuation" not in summary:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)  # the verdict says the same
            found = expansion_parameter(mlp)
        return f"L/n = {found.depth_to_width:.4g}: {found.verdict}."
    worst = float(summary["fluctuation"].isel(layer=-1).max())
    return f"L/n = {mlp.depth_to_width:.4g}, V/(nK²) of the output = {worst:.4g}: {verdict_on(worst)}."


def flow_figure(found: Flow) -> Figure:
    """Kernels of all inputs, their correlations, V / (n K^2), the first kernel with its band, and other tensors."""
    summary = found.summary
    has_band = {"fluctuation", "correction"} <= {*summary}
    families = _families(
        found, {"K", *(["V"] if "fluctuation" in summary else []), *(["G1"] if has_band else [])}
    )
    several = "K" in found and summary.sizes["input"] > 1
    panels = ("K" in found) + several + ("fluctuation" in summary) + has_band + len(families)
    columns = 2 if panels == 4 else min(panels, 3)
    figure = Figure(
        found.mlp.headline, columns=columns, size=(5.0 * columns, 3.4 * -(-panels // columns) + 0.4)
    )
    if "K" in found:
        values = summary["kernel"].values
        kernels = _panel(figure, summary, "Kernel K of each input", values)
        _lines(kernels, summary, values, _input_names(summary), "inputs")
        _law(kernels, summary, "kernel_law")
    if several:
        values = _pair_correlations(summary)
        names = [f"inputs {a}, {b}" for a, b in zip(*np.triu_indices(summary.sizes["input"], 1))]
        panel = figure.panel("Correlation between inputs", x=_depth_axis(summary))
        _lines(panel, summary, values, names, "pairs of inputs")
        if values.max() > 0.9:
            panel.level(1.0, dash=":")
    if "fluctuation" in summary:
        _fluctuations(figure, summary)
    if has_band:
        _first_kernel_band(figure, summary)
    for title, members in families.items():
        _family(figure, summary, title, members)
    return figure


def _families(found: Flow, drawn: set[str]) -> dict[str, dict[str, Array]]:
    """Tensors that are not ``drawn`` yet, by layer: one panel for those of the same order."""
    families = {}
    for title in FAMILIES:
        members: dict[str, Array] = {}
        for name in (name for name in TENSORS if TENSORS[name].family == title):
            if name not in found or name in drawn:
                continue
            tensor = found[name]
            if "quadruple" in tensor.dims and not _of_first_input(tensor):
                entries = zip(_legs(tensor)[:_NAMED], tensor.values.T)
                members |= {f"{name}_{','.join(map(str, legs))}": column for legs, column in entries}
            else:
                word = name if _of_first_input(tensor) else f"{name}, contracted"
                members[word] = _first_entry(tensor)
        if members:
            families[title + (" of input 0" if {*members} <= {*found} else "")] = members
    return families


def _family(figure: Figure, summary: xr.Dataset, title: str, members: Mapping[str, Array]) -> None:
    """One curve for each tensor; where signs differ and sizes are far apart, the axis is linear around 0 only."""
    values = np.stack([*members.values()])
    positive = values[values > 0]
    if values.min() >= 0:
        panel = _panel(figure, summary, title, positive)
    else:
        panel = _panel(figure, summary, title, values)
        largest = np.abs(values).max(axis=1)
        largest = largest[np.isfinite(largest) & (largest > 0)]
        if largest.size and largest.max() > _WIDE * largest.min():
            threshold = 10.0 ** np.floor(np.log10(largest.min()))
            panel.y = Axis(scale="symlog", threshold=float(threshold))
    for name, column in members.items():
        shown = np.where(column > 0, column, np.nan) if panel.y.scale == "log" else column
        panel.curve(summary["layer"].values, shown, ".-" if len(column) < _DOTTED else "-", name)


def _depth_axis(summary: xr.Dataset) -> Axis:
    """The layers, logarithmic where there are many, with room for the dots where there are few."""
    layer = summary["layer"].values
    if len(layer) >= _DEEP:
        return Axis("layer", "log", layer[0], layer[-1])
    room = 0.5 if len(layer) == 1 else 0.08 * (len(layer) - 1) if len(layer) < _DOTTED else 0.0
    ticks = [1] if len(layer) == 1 else None
    return Axis("layer", low=layer[0] - room, high=layer[-1] + room, ticks=ticks, whole=True)


def _panel(figure: Figure, summary: xr.Dataset, title: str, values: Array) -> Panel:
    """Depth across, values upright; both axes are logarithmic where they span much."""
    scale, top = scale_for(values, _WIDE), float(np.max(values, initial=0.0))
    upright = Axis(scale=scale)
    if scale == "linear" and top > 0 and np.min(values) >= 0:
        upright = Axis(low=0.0, room=0.06)
    return figure.panel(title, x=_depth_axis(summary), y=upright)


def _input_names(summary: xr.Dataset) -> list[str]:
    return [f"input {number}" for number in summary["input"].values]


def _fluctuations(figure: Figure, summary: xr.Dataset) -> None:
    """V / (n K^2), shaded where the first order in 1/n begins to fail, as far as the values reach."""
    from foretrain.theory.finite_width import LARGE, SMALL

    values = summary["fluctuation"].values
    positive = values[values > 0]
    panel = _panel(figure, summary, "Relative variance of the metric, V / (n K²)", positive)
    if panel.y.scale == "log":
        values = np.where(values > 0, values, np.nan)  # layer 1 does not fluctuate
    top = 1.1 * float(positive.max(initial=0.0))
    words = ((SMALL, LARGE, "next order noticeable", ORANGE), (LARGE, np.inf, "first order not enough", RED))
    for start, stop, word, color in words:
        if top > 1.1 * start:
            panel.region(low=start, high=min(stop, top), label=word, color=color, alpha=0.12)
    _lines(panel, summary, values, _input_names(summary), "inputs")
    _law(panel, summary, "fluctuation_law")


def _first_kernel_band(figure: Figure, summary: xr.Dataset) -> None:
    """E[z²] = K + G1/n of the first input, and one standard deviation of the metric around it."""
    layer, one = summary["layer"].values, summary.isel(input=0)
    K = one["kernel"].values
    mean, spread = K + one["correction"].values, K * np.sqrt(np.maximum(one["fluctuation"].values, 0.0))
    panel = _panel(figure, summary, "E[z²] of input 0 across networks", np.concatenate([K, mean + spread]))
    floor = 0.1 * float(K.min()) if panel.y.scale == "log" else 0.0
    low = np.maximum(mean - spread, floor)
    panel.region(layer, low, mean + spread, "± deviation of the metric", BLUE)
    panel.curve(layer, mean, "-", "K + G1/n, this width", BLUE)
    panel.curve(layer, K, ":", "K, infinite width", INK)


def _lines(panel: Panel, summary: xr.Dataset, values: Array, names: Sequence[str], what: str) -> None:
    """One line for each column: named if they are few, else thin with their median, else the band they lie in."""
    layer = summary["layer"].values
    style = ".-" if len(layer) < _DOTTED else "-"
    if len(names) > _NAMED:
        single = values.T
        if len(names) > _DRAWN:
            low, high = np.fmin.reduce(values, axis=1), np.fmax.reduce(values, axis=1)
            panel.region(layer, low, high, "lowest to highest", BLUE)
            single = values.T[np.linspace(0, len(names) - 1, _NAMED).round().astype(int)]
            panel.caption = f"{len(names)} {what}: lowest to highest, median, and {_NAMED} single ones."
        for column in single:
            panel.curve(layer, column, style, color=BLUE, width=0.7, alpha=max(0.2, 2 / len(single)))
        panel.curve(layer, np.median(values, axis=1), style, "median", ORANGE, width=2.0)
        return
    # Ever thinner, so that lines which lie on each other all stay visible.
    widths = (3.6, 2.2, 1.3, 0.7) if len(names) > 1 else (1.8,)
    for name, column, width in zip(names, values.T, widths):
        panel.curve(layer, column, style, name, width=width)


def _law(panel: Panel, summary: xr.Dataset, name: str) -> None:
    if name in summary:
        values = summary[name].values
        shown = np.where(values > 0, values, np.nan) if panel.y.scale == "log" else values
        panel.curve(summary["layer"].values, shown, "--", "law of input 0", INK, width=1.1)
