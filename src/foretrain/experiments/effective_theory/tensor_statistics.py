"""Tensors of random networks against their recursions, and their ratios against depth: what two experiments share.

A measurement is a :func:`foretrain.compare.initial.entry.compare_initial` per activation. The ratios of one input are
carried to great depth by the recursions; their growth per layer, fitted with the corrections log(l)/l and 1/l, is put
beside the law of the universality class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.compare.comparison import Comparison
from foretrain.compare.initial import compare_initial
from foretrain.compare.judging.agreement import Judgement, judge
from foretrain.experiments.effective_theory.depth_laws import leading_coefficient
from foretrain.experiments.effective_theory.score_drawing import draw_scores
from foretrain.experiments.judgements import judgement_rows
from foretrain.experiments.registry import Result, Row
from foretrain.support.drawing import FAINT, INK, PALETTE, new_mosaic
from foretrain.support.progress import track
from foretrain.support.seeds import spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.learning_rates import recommended

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RATES = {"lambda_b": 0.5, "lambda_W": 0.5}
_SHOWN_LAYERS = 160
_FITTED = 0.1  # the share of the layers that a fit leaves out
_INPUTS = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])


@dataclass(frozen=True)
class Plan:
    """Which observables of which networks are measured, and how deep the ratios are followed."""

    observables: Mapping[str, tuple[str, ...]]  # by activation
    layers: int
    width: int
    draws: int
    depth: int  # of the ratios


def measure(plan: Plan, seed: int) -> dict[str, Comparison]:
    """Two inputs in critical networks of three widths, by activation."""
    tasks = list(zip(plan.observables.items(), spawn(seed, len(plan.observables)), strict=True))
    found = {}
    for (activation, names), own_seed in track(tasks, "random networks"):
        mlp = MLP.critical(activation, plan.layers, plan.width, n_in=_INPUTS.shape[1]).replace(**_RATES)
        found[activation] = compare_initial(mlp, _INPUTS, names, plan.draws, seed=own_seed)
    return found


def ratios(
    law: Callable[[MLP, Any], xarray.Dataset], activations: Sequence[str], depth: int
) -> xarray.Dataset:
    """Ratios over l/n by the recursion and, as ``coefficient``, by the law of the class, in great depth."""
    import xarray

    layers = np.unique(np.geomspace(2, depth, _SHOWN_LAYERS).round().astype(int))
    parts = []
    for activation in track(activations, "depth laws"):
        mlp = MLP.critical(activation, depth, width=1, n_in=1)
        rates = recommended(mlp, lambda_b=_RATES["lambda_b"], lambda_W=_RATES["lambda_W"])
        mlp = mlp.replace(lambda_b=list(rates.lambda_b), lambda_W=list(rates.lambda_W))
        found = law(mlp, [1.0]).sel(law="exact", layer=layers)
        names = [str(name) for name in found.data_vars if "/" in str(name)]
        growth = np.stack([(found[name] / found.layer).values for name in names])
        constants = [found.attrs.get(name, np.nan) for name in names]
        parts.append(
            xarray.Dataset(
                {"growth": (("ratio", "layer"), growth), "coefficient": ("ratio", constants)},
                coords={"ratio": names, "layer": layers},
            ).expand_dims(network=[activation])
        )
    return xarray.concat(parts, "network", join="outer")


def entry_table(found: Mapping[str, Comparison]) -> xarray.Dataset:
    """Every entry of every network in one long list."""
    import xarray

    whole = [(activation, each.rows()) for activation, each in found.items()]
    lines = [(activation, *row.values()) for activation, rows in whole for row in rows]
    names = [
        entry.observable for activation, _ in whole for entry in found[activation].entries
    ]  # in the order of the lines
    columns = [np.array(column) for column in zip(*lines, strict=True)]
    numbers = dict(zip(("theory", "limit", "standard_error", "z"), columns[3:7], strict=True))
    scores = {activation: each.independent_scores for activation, each in found.items()}
    return xarray.Dataset(
        {key: ("number", values.astype(float)) for key, values in numbers.items()}
        | {"score": ("independent", np.concatenate(list(scores.values())))},
        coords={
            "activation": ("number", columns[0]),
            "observable": ("number", names),
            "layer_of": ("number", columns[1].astype(int)),
            "entry": ("number", columns[2]),
            "score_of": ("independent", np.repeat(list(scores), [len(each) for each in scores.values()])),
        },
    )


def judgement_of(found: Mapping[str, Comparison]) -> Judgement:
    """All networks together."""
    return judge([(each.z[each.fluctuates], each.independent_scores) for each in found.values()])


def measured_rows(found: Mapping[str, Comparison]) -> list[Row]:
    """Spread and largest of all z-scores, then one entry of each observable in the last layer."""
    judgement = judgement_of(found)
    exact = all(each.exact_agrees for each in found.values())
    rows = [
        *judgement_rows(judgement, f"scores of {judgement.entries} entries"),
        Row("entries that do not fluctuate equal the theory", "yes", "yes" if exact else "no", agrees=exact),
    ]
    for activation, each in found.items():
        for place in _first_places(each):
            entry, z = each.entries[place], each.z[place]
            agrees = each.exact_agrees if np.isnan(z) else bool(abs(z) <= judgement.bound)
            error = None if np.isnan(z) else float(each.standard_error[place])
            title = f"{activation}: {entry.label} at layer {entry.layer}"
            rows.append(Row(title, float(each.theory[place]), float(each.limit[place]), error, agrees))
    return rows


def _first_places(each: Comparison) -> list[int]:
    """The first entry of each observable in the last layer: that of the first input alone."""
    found: dict[str, int] = {}
    for place, entry in enumerate(each.entries):
        if entry.layer == each.mlp.depth:
            found.setdefault(entry.observable, place)
    return list(found.values())


def law_rows(data: xarray.Dataset) -> list[Row]:
    """Growth of every ratio per layer against the law; what the fit leaves out is of order (log l / l)^2."""
    deep = data.sel(layer=slice(_FITTED * data.layer.values[-1], None))
    layer = deep.layer.values.astype(float)
    # Each of up to four powers of K and Theta brings corrections of its own.
    rest = 4 * (np.log(layer[0]) / layer[0]) ** 2
    rows = []
    for network in data.network.values:
        for ratio in data.ratio.values:
            one = deep.sel(network=network, ratio=ratio)
            expected = float(one.coefficient)
            if np.isnan(expected):
                continue
            here = leading_coefficient(layer, one.growth.values)
            agrees = abs(here - expected) <= max(rest * abs(expected), 1e-9)
            rows.append(Row(f"{network}: {ratio} per l/n", expected, here, agrees=bool(agrees)))
    return rows


def result(
    subject: str,
    found: Mapping[str, Comparison],
    deep: xarray.Dataset,
    draw: Callable[[xarray.Dataset], Figure],
) -> Result:
    """The two halves as one: entries of random networks, and ratios against depth."""
    import xarray

    rows = (*measured_rows(found), *law_rows(deep))
    data = xarray.merge([entry_table(found), deep]).assign_attrs(bound=judgement_of(found).bound)
    word = "agree" if all(row.agrees for row in rows) else "do NOT all agree"
    verdict = f"{subject} of random networks {word} with recursions and depth laws ({judgement_of(found)})."
    return Result(verdict, rows, data, partial(draw, data))


def draw_statistics(title: str, data: xarray.Dataset) -> Figure:
    """Entries of the last layer over theory, z-scores, and one panel of ratios for each network."""
    networks = [str(name) for name in data.network.values]
    width = len(networks)
    layout = [["entries"] * width + ["scores"] * width, [name for name in networks for _ in range(2)]]
    figure, panels = new_mosaic(title, layout, [1, 1], (15, 8.6))
    _draw_entries(panels["entries"], data)
    draw_scores(panels["scores"], data.score.values, f"{data.sizes['independent']} independent z-scores")
    for name in networks:
        _draw_ratios(panels[name], data.sel(network=name), name)
    return figure


def _draw_entries(panel: Axes, data: xarray.Dataset) -> None:
    """Measured over theory in the last layer; entries that vanish or are lost in noise are left to the z-scores."""
    last = int(data.layer_of.max())
    own = data.where((data.layer_of == last) & (np.abs(data.theory) > 3 * data.standard_error), drop=True)
    names = list(dict.fromkeys(str(name) for name in own.observable.values))
    activations = list(dict.fromkeys(str(name) for name in own.activation.values))
    for number, (activation, colour) in enumerate(zip(activations, PALETTE, strict=False)):
        some = own.where(own.activation == activation, drop=True)
        observables = [str(name) for name in some.observable.values]
        centre = np.array([names.index(name) for name in observables]) + 0.27 * (
            number - len(activations) / 2 + 0.5
        )
        rank = np.array([observables[:place].count(name) for place, name in enumerate(observables)])
        count = np.array([observables.count(name) for name in observables])
        panel.errorbar(
            centre + 0.2 * ((rank + 0.5) / count - 0.5),
            some.limit / some.theory,
            some.standard_error / np.abs(some.theory),
            fmt="o",
            color=colour,
            markersize=3.5,
            label=activation,
        )
    panel.axhline(1, color=INK, linewidth=0.9, linestyle="--")
    panel.set_xticks(range(len(names)), [name.replace("H1", "H¹").replace("Theta", "Θ") for name in names])
    panel.set(ylabel=r"measured at $n\to\infty$ / theory")
    panel.set_title(f"layer {last}: entries larger than three standard errors", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_ratios(panel: Axes, data: xarray.Dataset, name: str) -> None:
    """Ratios over l/n: lines of the recursion bend towards the dashed constants of the law."""
    for colour, ratio in zip((*PALETTE, FAINT), data.ratio.values, strict=False):
        one = data.sel(ratio=ratio)
        if not np.isfinite(one.growth.values).any():
            continue
        panel.semilogx(one.layer, one.growth, color=colour, label=_written(str(ratio)))
        if np.isfinite(float(one.coefficient)):
            panel.axhline(float(one.coefficient), color=colour, linestyle="--", linewidth=0.8)
    panel.set(xlabel="layer ℓ", ylabel="ratio / (ℓ/n)")
    panel.set_title(f"{name}: ratios against depth (dashed: law)", fontsize=11)
    panel.legend(frameon=False, fontsize=8, ncol=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _written(ratio: str) -> str:
    return ratio.replace("Theta", "Θ").replace("^2", "²").replace("^3", "³")
