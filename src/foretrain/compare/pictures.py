"""Pictures of comparisons, from data as ``to_dataset`` of a comparison labels them.

Functions whose names begin with ``add`` add one panel to a figure; ``heading`` begins its title.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import BLUE, FAINT, INK, ORANGE, PALETTE, RED, SKY, Axis, Figure, log
from foretrain.theory.architecture import FloatArray
from foretrain.theory.tensors import TENSORS

if TYPE_CHECKING:
    import xarray

_TITLES = {
    **{name: tensor.title for name, tensor in TENSORS.items()},
    "kurtosis": "excess of the fourth moment",
}
_SHOWN_LIMITS = 3
POSITIONS = ("position_train", "position_test")  # on the axis, where inputs are not numbers themselves
_KINDS = {"mean": ("mean", BLUE), "covariance": ("covariance", ORANGE), "between": ("between outputs", RED)}
_CURVES = 25  # of single networks
_SPREAD = 2.0  # standard deviations


def comparison_figure(datasets: Sequence[xarray.Dataset]) -> Figure:
    """One row of panels for each activation; the datasets are those of ``Comparison.to_dataset``."""
    figure, ends = Figure("Random networks (points) and theory (lines)"), [0]
    for data in datasets:
        for name, _, own in _by_observable(data):
            _add_layers(figure, own, name)
        figure.panels[ends[-1]].y = Axis(data.attrs["activation"])
        _add_limits(figure, data)
        _add_score_histogram(figure, data)
        ends.append(len(figure.panels))
    letters = [chr(ord("A") + place) for place in range(ends[-1])]
    rows = ["".join(letters[start:end]) for start, end in pairwise(ends)]
    columns = max(map(len, rows))
    figure.layout = " ".join(row.ljust(columns, ".") for row in rows)
    figure.size = (3.7 * columns, 3.4 * len(rows) + 0.4)
    return figure


def _add_layers(figure: Figure, data: xarray.Dataset, name: str) -> None:
    """The first few index sets of an observable over the layers."""
    panel = figure.panel(f"{_TITLES[name]}, $n\\to\\infty$", x=Axis("layer", whole=True))
    panel.level(y=0)
    for inputs, color in zip(dict.fromkeys(data.inputs.values.tolist()), PALETTE):
        own = data.isel(entry=data.inputs.values == inputs)
        label, error = _index_text(name, inputs), own.standard_error
        panel.curve(own.layer, own.theory, "-", color=color, width=1.3)
        panel.curve(own.layer, own.limit, "o", label, color, error=error, hollow=True, size=4.5)


def _index_text(observable: str, inputs: str) -> str:
    numbers = inputs.split()
    if observable in ("V", "A"):  # symmetric in both pairs of indices and under their exchange
        return f"({''.join(numbers[:2])})({''.join(numbers[2:])})"
    return "".join(numbers)


def _add_limits(figure: Figure, data: xarray.Dataset) -> None:
    """The last layer against 1/n: measured over theory, the quadratic, and its value at infinite width."""
    chosen = "V" if "V" in data.observable.values else str(data.observable.values[0])
    own = (data.observable.values == chosen) & np.isfinite(data.z.values) & (data.theory.values != 0)
    if not own.any():
        return
    last = data.isel(entry=own)
    layer = int(last.layer.values.max())
    last = last.isel(entry=last.layer.values == layer)
    last = last.isel(
        entry=np.argsort(-np.abs(last.theory.values / last.standard_error.values))[:_SHOWN_LIMITS]
    )
    names = {x: f"n = {n}" for x, n in zip(data.inverse_width.values.tolist(), data.width.values.tolist())}
    title = f"{chosen} over theory, layer {layer}, against $1/n$"
    panel = figure.panel(title, x=Axis(ticks={0.0: "∞", **names}))
    panel.level(y=1, color=INK, dash="--")
    grid = np.linspace(0, 1.05 * max(names), 60)
    for place, color in zip(range(last.sizes["entry"]), PALETTE):
        one = last.isel(entry=place)
        size = float(one.theory)
        values, errors = one.measured.values / size, one.measured_error.values / abs(size)
        fit = np.polyfit(one.inverse_width, values, 2, w=1 / errors)
        label = _index_text(chosen, str(one.inputs.values))
        panel.curve(grid, np.polyval(fit, grid), "-", color=color, width=1.2)
        panel.curve(one.inverse_width, values, "o", label, color, error=errors, hollow=True, size=4.5)
        limit, error = float(one.limit) / size, float(one.standard_error) / abs(size)
        panel.curve([0.04 * grid[-1] * place], [limit], "D", color=color, error=[error])


def _add_score_histogram(figure: Figure, data: xarray.Dataset) -> None:
    """Histogram of the independent scores against the standard normal density."""
    scores, bound = data.independent_score.values, float(data.attrs["bound"])
    panel = figure.panel(f"{scores.size} independent z-scores", x="(measured − theory) / standard error")
    if scores.size:
        edges = np.linspace(-bound, bound, 17)
        density, _ = np.histogram(np.clip(scores, -bound, bound), edges, density=True)
        panel.bars((edges[1:] + edges[:-1]) / 2, density, color=SKY, width=0.95 * (edges[1] - edges[0]))
    grid = np.linspace(-bound, bound, 201)
    panel.curve(grid, np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), "-", color=INK)
    word = "agrees" if data.attrs["agrees"] else "does NOT agree"
    note = f"{word}\nrms {data.attrs['rms_z']:.2f}\nlargest {data.attrs['largest_z']:.2f}\nbound {bound:.2f}"
    panel.note(0.03, 0.97, note, above=False, fraction=True)


def trained_figure(datasets: Sequence[xarray.Dataset]) -> Figure:
    """Outputs, deviations over the width and scores; one row for each dataset of ``TrainedComparison``."""
    figure = Figure("Trained networks beside the prediction", columns=3)
    for data in datasets:
        heading = f"{data.attrs['activation']}: "
        on_a_line = data.sizes["feature"] == 1 and data.sizes["test"] > 2 and data.sizes["output"] == 1
        (add_bands if on_a_line else add_outputs)(figure, data, heading)
        add_sizes(figure, data)
        _add_scores(figure, data, "limit of infinite width")
    return figure


def finite_figure(datasets: Sequence[xarray.Dataset]) -> Figure:
    """Changes over 1/n, all of them beside theory, and scores; one row for each dataset of ``FiniteComparison``."""
    figure = Figure("Trained networks beside the theory of order 1/n", columns=3)
    for data in datasets:
        # For each observable its clearest entry over 1/n, and where the widths lead.
        inverse = 1 / data.width.values.astype(float)
        panel = figure.panel(
            f"{data.attrs['activation']}: clearest entries, and their limits (diamonds)",
            x=Axis("1/n", ticks={0.0: "0", **{1 / n: f"1/{n}" for n in data.width.values.tolist()}}),
            y="n × change over theory",
        )
        panel.level(y=1, label="theory", color=INK, dash="--")
        for place, (_, color, own) in enumerate(_by_observable(data)):
            error = own.standard_error.values
            clear = np.abs(own.theory.values) / np.where(error > 0, error, np.inf)
            if not clear.any():
                continue
            one = own.isel(entry=int(np.argmax(clear)))
            size, aside = float(one.theory), 0.012 * place * inverse.max()
            values, bars = one.measured.values / size, one.measured_error.values / abs(size)
            panel.curve(inverse + aside, values, "o-", str(one.entry.values), color, error=bars, width=0.9)
            end, bar = float(one.limit) / size, float(one.standard_error) / abs(size)
            panel.curve([aside], [end], "D", color=color, error=[bar], size=6)
        # Limits of all entries against theory, each kind in units of its largest.
        panel = figure.panel(
            "n × what finite width changes, all entries",
            x="theory / largest of its kind",
            y="networks, extrapolated to 1/n = 0",
        )
        panel.curve([-1, 1], [-1, 1], "-", color=FAINT, width=1)
        for name, color, own in _by_observable(data):
            size = float(np.abs(own.theory.values).max()) or float(np.abs(own.limit.values).max()) or 1.0
            theory, limit, error = (own[key].values / size for key in ("theory", "limit", "standard_error"))
            panel.curve(theory, limit, "o", name, color, error=error, size=4)
        _add_scores(figure, data, "order 1/n")
    return figure


def positions(data: xarray.Dataset) -> tuple[str, FloatArray, FloatArray, NDArray[np.intp]]:
    """The name of the axis, training inputs on it, test inputs from left to right, and the order of the latter."""
    placed = POSITIONS[0] in data
    names = POSITIONS if placed else ("x_train", "x_test")
    trained, asked = (data[name].values.reshape(data[name].shape[0], -1)[:, 0] for name in names)
    order = np.argsort(asked)
    return "angle of the input" if placed else "input x", trained, asked[order], order


def means_of(data: xarray.Dataset, name: str, output: int = 0) -> FloatArray:
    """The entries of the mean of one output, for every test input: (widths, tests) or (tests,)."""
    chosen = (data.observable.values == "mean") & (data.output_of_entry.values == output)
    return np.asarray(data[name].isel(entry=chosen).values)


def add_bands(figure: Figure, data: xarray.Dataset, heading: str = "") -> None:
    """A function of one variable: the predicted band, and mean and spread of trained networks."""
    label, trained, x, order = positions(data)
    panel = figure.panel(f"{heading}prediction and networks", x=label, y="output")
    mean = data.predicted_mean.values[order, 0]
    spread = _SPREAD * np.sqrt(np.maximum(np.diagonal(data.predicted_covariance.values), 0.0))[order]
    panel.region(x, mean - spread, mean + spread, "predicted mean ± 2σ", SKY, alpha=0.3)
    if "network_output" in data:
        for outputs in data.network_output.values[:_CURVES, order]:
            panel.curve(x, outputs, "-", color=FAINT, width=0.5, alpha=0.7)
    panel.curve(x, mean, "-", color=BLUE, width=2)
    networks, found, deviation = _outputs(data)
    told = f"{networks}, mean ± 2σ"
    panel.curve(x, found[order], "o", told, ORANGE, error=_SPREAD * deviation[order], size=3.5)
    panel.curve(trained, data.y_train.values[:, 0], "s", "training data", INK, size=6)


def add_outputs(figure: Figure, data: xarray.Dataset, heading: str = "") -> None:
    """Mean and spread of trained outputs against the predicted mean, for every test input."""
    predicted = data.predicted_mean.values[:, 0]
    networks, found, spread = _outputs(data)
    title = f"{heading}outputs on {predicted.size} test inputs"
    panel = figure.panel(title, x="predicted mean output", y="output of trained networks")
    ends = np.array([predicted.min(), predicted.max()])
    panel.curve(ends, ends, "-", "prediction", INK, width=1)
    targets = data.network_target.values if "network_target" in data else np.zeros_like(predicted)
    for color, target in zip((BLUE, RED, ORANGE), np.unique(targets)):
        own = targets == target
        label = f"{networks}, mean ± σ" + (f", target {target:+g}" if not own.all() else "")
        panel.curve(predicted[own], found[own], "o", label, color, error=spread[own], size=3.5)


def _outputs(data: xarray.Dataset) -> tuple[str, FloatArray, FloatArray]:
    """Which networks, and mean and standard deviation of their outputs by test input."""
    if "network_output" in data:
        outputs = data.network_output.values
        networks = f"{len(outputs)} networks of width {data.attrs['shown_width']}"
        return networks, outputs.mean(axis=0), outputs.std(axis=0, ddof=1)
    own = int(np.argmin(np.abs(np.log(data.inverse_width.values))))
    alone = np.array([len(set(inputs.split())) == 1 for inputs in data.inputs.values.tolist()])
    variances = data.measured.isel(width=own, entry=(data.observable.values == "covariance") & alone).values
    spread = np.sqrt(np.maximum(variances, 0.0))
    return f"networks of width {int(data.width[own])}", means_of(data, "measured")[own], spread


def add_sizes(figure: Figure, data: xarray.Dataset, heading: str = "") -> None:
    """Root mean square deviations against the width, with a line of slope −1 through each."""
    n = data.width.values.astype(float)
    steps = dict.fromkeys(f"{count:.0f}" for count in (data.steps.values.min(), data.steps.values.max()))
    panel = figure.panel(
        f"{heading}deviations ({' to '.join(steps)} steps)",
        x=log("width n", ticks=n.tolist()),
        y=log("rms deviation from the prediction"),
    )
    alone = all(len(set(inputs.split())) == 1 for inputs in data.inputs.values.tolist())
    for kind in data.kind.values.tolist():
        own = data.sel(kind=kind)
        label, color = _KINDS[kind]
        label = label.replace("covariance", "variance") if alone else label
        size, error = own["size"].values, own.size_error.values
        seen = size > 0
        if not seen.any():
            continue
        power = f": $n^{{{float(own.power):.2f} ± {float(own.power_error):.2f}}}$"
        label += power if np.isfinite(own.power) else ": hidden by noise"
        bars = np.stack([np.minimum(error, 0.9 * size), error])[:, seen]
        panel.curve(n[seen], size[seen], "o", label, color, error=bars)
        weight = np.where(seen, size / np.maximum(error, 1e-300), 0.0) ** 2
        level = np.exp(np.sum(weight * np.log(np.where(seen, size * n, 1.0))) / weight.sum())
        panel.curve(n, level / n, "--", color=color, width=1)
    panel.legend_entry("--", "slope −1")


def _by_observable(data: xarray.Dataset) -> Iterator[tuple[str, str, xarray.Dataset]]:
    """Name, colour and entries of each."""
    for place, name in enumerate(dict.fromkeys(data.observable.values.tolist())):
        yield name, PALETTE[place % len(PALETTE)], data.isel(entry=data.observable.values == name)


def _add_scores(figure: Figure, data: xarray.Dataset, what: str) -> None:
    """z-scores of the limit, entry by entry, and the bound on the largest."""
    word = "agrees" if data.attrs["agrees"] else "does NOT agree"
    panel = figure.panel(
        f"{what}: {word}, rms z {data.attrs['rms_z']:.2f}",
        x=Axis("entry", whole=True),
        y=Axis("(limit − prediction) / standard error", room=0.2),
        legend_columns=3,
    )
    for level in (-1, 1):
        panel.level(y=level * float(data.attrs["bound"]), color=INK, dash="--")
    panel.level(y=0)
    place = 0
    for name, color, own in _by_observable(data):
        known = np.isfinite(own.z.values)
        panel.curve(place + np.flatnonzero(known), own.z.values[known], "o", name, color, size=4)
        place += known.size
