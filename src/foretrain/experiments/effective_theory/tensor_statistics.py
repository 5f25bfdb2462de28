"""Tensors of random networks against their recursions, and their ratios against depth (chapters 4, 8, 9, 11, ∞.1).

``layer_statistics`` K, V and G1 of two inputs, layer by layer: (4.118), (4.119) and (4.115)
``ntk_statistics``   Theta, H1, D, F, A and B of two inputs, and the ratios (9.23)-(9.25) of one
``dntk_statistics``  P and Q of the dNTK and R, S, T, U of the ddNTKs, and the ratios (11.62), (∞.21); of activations
                     whose slope jumps the ddNTKs are left out

Critical networks of three widths are extrapolated to infinite width by
:func:`foretrain.compare.initial.compare_initial`, one activation at a time. The ratios of one input are carried to
great depth by the recursions; their growth per layer, fitted with the corrections log(l)/l and 1/l, is put beside the
law of the universality class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from foretrain.compare.comparison import Comparison
from foretrain.compare.initial import compare_initial
from foretrain.compare.judging.agreement import Judgement, judge
from foretrain.experiments.effective_theory.criticality import (
    fitted_layers,
    leading_coefficient,
    shown_layers,
)
from foretrain.experiments.judgements import computed_row, judgement_rows
from foretrain.experiments.pictures import add_scores, coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import FAINT, INK, PALETTE, Axis, Figure, log, names_axis
from foretrain.support.progress import track
from foretrain.support.seeds import with_seeds
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics import dntk_laws, ntk_laws
from foretrain.theory.learning_rates import recommended

Laws = Callable[[MLP, Any], xr.Dataset]

_RATES = {"lambda_b": 0.5, "lambda_W": 0.5}
_INPUTS = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])


@dataclass(frozen=True)
class Plan:
    """Which observables of which networks are measured, and how deep the ratios are followed."""

    observables: Mapping[str, tuple[str, ...]]  # by activation
    layers: int
    width: int
    draws: int
    depth: int  # of the ratios


_NTK = ("Theta", "H1", "D", "F", "A", "B")
_DNTK, _BOTH = ("P", "Q"), ("P", "Q", "R", "S", "T", "U")
PLANS: dict[str, Any] = {
    "ntk_statistics": plans(
        quick=Plan(dict.fromkeys(("relu", "tanh", "gelu"), _NTK), 4, 32, 7_000, 3_000),
        paper=Plan(dict.fromkeys(("relu", "tanh", "sin", "gelu", "swish"), _NTK), 5, 48, 60_000, 10_000),
    ),
    "dntk_statistics": plans(
        quick=Plan({"relu": _DNTK, "tanh": _BOTH, "gelu": _BOTH}, 3, 32, 3_000, 3_000),
        paper=Plan({"relu": _DNTK, **dict.fromkeys(("tanh", "sin", "gelu"), _BOTH)}, 4, 48, 20_000, 10_000),
    ),
}


def ntk_statistics(plan: Plan, seed: int) -> Result:
    """Theta, H1, D, F, A, B against random networks, and depth laws of their ratios."""
    title = "The tangent kernel of random networks: mean, shift, fluctuations, and their growth with depth"
    return _statistics("Θ, H1, D, F, A and B", title, plan, seed, ntk_laws, ("linear", "relu", "tanh", "sin"))


def dntk_statistics(plan: Plan, seed: int) -> Result:
    """P, Q and R to U against random networks, and depth laws of their ratios."""
    title = "Differentials of the tangent kernel: random networks, and growth with depth"
    return _statistics("P, Q and R to U", title, plan, seed, dntk_laws, ("relu", "linear", "tanh", "sin"))


def ratios(law: Laws, activations: Sequence[str], depth: int) -> xr.Dataset:
    """Ratios over l/n by the recursion and, as ``coefficient``, by the law of the class, in great depth."""
    layers = shown_layers(2, depth, 160)
    parts = []
    for activation in track(activations, "depth laws"):
        mlp = MLP.critical(activation, depth, width=1, n_in=1)
        found = law(recommended(mlp, None, None, **_RATES).on(mlp), [1.0]).sel(law="exact", layer=layers)
        names = [str(name) for name in found.data_vars if "/" in str(name)]
        growth = np.stack([(found[name] / found.layer).values for name in names])
        constants = [found.attrs.get(name, np.nan) for name in names]
        part = xr.Dataset(
            {"growth": (("ratio", "layer"), growth), "coefficient": ("ratio", constants)},
            coords={"ratio": names, "layer": layers},
        )
        parts.append(part.expand_dims(network=[activation]))
    return xr.concat(parts, "network", join="outer")


def entry_table(found: Mapping[str, Comparison]) -> xr.Dataset:
    """Every entry of every network in one long list."""
    lines = [
        (activation, entry.observable, *row.values())
        for activation, each in found.items()
        for entry, row in zip(each.entries, each.rows(), strict=True)
    ]
    activations, observables, layers, entries, *columns = (
        np.array(column) for column in zip(*lines, strict=True)
    )
    numbers = dict(zip(("theory", "limit", "standard_error", "z"), columns))
    scores = {activation: each.independent_scores for activation, each in found.items()}
    return xr.Dataset(
        {key: ("number", values.astype(float)) for key, values in numbers.items()}
        | {"score": ("independent", np.concatenate(list(scores.values())))},
        coords={
            "activation": ("number", activations),
            "observable": ("number", observables),
            "layer_of": ("number", layers.astype(int)),
            "entry": ("number", entries),
            "score_of": ("independent", np.repeat(list(scores), [len(each) for each in scores.values()])),
        },
    )


def judgement_of(found: Mapping[str, Comparison]) -> Judgement:
    """All networks together."""
    return judge([(each.z[each.fluctuates], each.independent_scores) for each in found.values()])


def entry_row(name: str, each: Comparison, place: int, bound: float) -> Row:
    """One entry of a network; where nothing fluctuates, as in G1 of one ReLU input, it must be exact."""
    entry, z = each.entries[place], each.z[place]
    agrees = bool(abs(z) <= bound) if each.fluctuates[place] else each.exact_agrees
    error = float(each.standard_error[place]) if each.fluctuates[place] else None
    title = f"{name}: {entry.label} at layer {entry.layer}"
    return Row(title, float(each.theory[place]), float(each.limit[place]), error, agrees)


def measured_rows(found: Mapping[str, Comparison]) -> list[Row]:
    """Spread and largest of all z-scores, then one entry of each observable in the last layer."""
    judgement = judgement_of(found)
    exact = all(each.exact_agrees for each in found.values())
    rows = [
        *judgement_rows(judgement, f"scores of {judgement.entries} entries"),
        Row("entries that do not fluctuate equal the theory", "yes", "yes" if exact else "no", agrees=exact),
    ]
    for activation, each in found.items():
        # Of each observable in the last layer the first entry: that of the first input alone.
        first: dict[str, int] = {}
        for place, entry in enumerate(each.entries):
            if entry.layer == each.mlp.depth:
                first.setdefault(entry.observable, place)
        rows += [entry_row(activation, each, place, judgement.bound) for place in first.values()]
    return rows


def law_rows(data: xr.Dataset) -> list[Row]:
    """Growth of every ratio per layer against the law; what the fit leaves out is of order (log l / l)^2."""
    deep, layer, rest = fitted_layers(data)
    rows = []
    for network, ratio in product(data.network.values, data.ratio.values):
        one = deep.sel(network=network, ratio=ratio)
        expected = float(one.coefficient)
        if not np.isnan(expected):
            here = leading_coefficient(layer, one.growth.values)
            allowed = max(4 * rest * abs(expected), 1e-9)  # up to four powers of K and Theta bring their own
            rows.append(computed_row(f"{network}: {ratio} per l/n", expected, here, allowed))
    return rows


def _statistics(
    subject: str, title: str, plan: Plan, seed: int, law: Laws, activations: Sequence[str]
) -> Result:
    """Entries of random networks, and ratios against depth for other activations."""
    deep, found = ratios(law, activations, plan.depth), {}
    for (activation, names), own in track(with_seeds(plan.observables.items(), seed), "random networks"):
        mlp = MLP.critical(activation, plan.layers, plan.width, n_in=_INPUTS.shape[1]).replace(**_RATES)
        found[activation] = compare_initial(mlp, _INPUTS, names, plan.draws, seed=own)
    judgement = judgement_of(found)
    rows = (*measured_rows(found), *law_rows(deep))
    data = xr.merge([entry_table(found), deep]).assign_attrs(bound=judgement.bound)
    word = "agree" if all(row.agrees for row in rows) else "do NOT all agree"
    verdict = f"{subject} of random networks {word} with recursions and depth laws ({judgement})."
    return Result(verdict, rows, data, partial(_figure, title=title))


def _figure(data: xr.Dataset, title: str) -> Figure:
    """Entries of the last layer over theory, z-scores, and one panel of ratios for each network.

    Entries that vanish or are lost in noise are left to the z-scores.
    """
    count, last = data.sizes["network"], int(data.layer_of.max())
    below = "".join(2 * chr(ord("C") + place) for place in range(count))
    figure = Figure(title, layout=f"{'A' * count}{'B' * count} {below}", size=(15, 8.6))
    own = data.where((data.layer_of == last) & (np.abs(data.theory) > 3 * data.standard_error), drop=True)
    names, activations = (
        list(dict.fromkeys(own[key].values.tolist())) for key in ("observable", "activation")
    )
    panel = figure.panel(
        f"layer {last}: entries larger than three standard errors",
        x=names_axis([name.replace("H1", "$H^{\\{1\\}}$").replace("Theta", "Θ") for name in names]),
        y=r"measured at $n\to\infty$ / theory",
    )
    for number, (activation, color) in enumerate(zip(activations, PALETTE)):
        some = own.where(own.activation == activation, drop=True)
        observables = some.observable.values.tolist()
        # Beside each other: activations, and within each the entries of an observable.
        rank = np.array([observables[:place].count(name) for place, name in enumerate(observables)])
        share = (rank + 0.5) / [observables.count(name) for name in observables] - 0.5
        centre = np.array([names.index(name) for name in observables])
        x = centre + 0.27 * (number - len(activations) / 2 + 0.5) + 0.2 * share
        error = some.standard_error / np.abs(some.theory)
        panel.curve(x, some.limit / some.theory, "o", activation, color, error=error, size=3.5)
    panel.level(y=1, color=INK, dash="--")
    add_scores(figure, data.score.values, f"{data.sizes['independent']} independent z-scores")
    # Ratios over l/n: lines of the recursion bend towards the dashed constants of the law.
    for name, deep in ((name, data.sel(network=name)) for name in data.network.values):
        heading, y = f"{name}: ratios against depth (dashed: law)", "ratio / (ℓ/n)"
        panel = figure.panel(heading, x=log("layer ℓ"), y=y, legend="below", legend_columns=3)
        for color, ratio in zip((*PALETTE, FAINT), data.ratio.values):
            one = deep.sel(ratio=ratio)
            if np.isfinite(one.growth.values).any():
                label = str(ratio).replace("Theta", "Θ").replace("^2", "²").replace("^3", "³")
                panel.curve(one.layer, one.growth, "-", label, color)
                if np.isfinite(float(one.coefficient)):
                    panel.level(y=one.coefficient, color=color, dash="--")
    return figure


_DEPTH, _WIDTH, _SCALES = 5, 64, (0.5, 1.0, 2.0)
_SHOWN = ("K_00", "V_(00)(00)", "V_(00)(11)", "V_(01)(01)", "G1_00", "G1_01")


@dataclass(frozen=True)
class LayerPlan:
    """Which networks are drawn, how many of them, and how."""

    activations: tuple[str, ...]
    draws: int
    method: str


PLANS["layer_statistics"] = plans(
    quick=LayerPlan(("tanh", "gelu"), 6_000, "weights"),
    paper=LayerPlan(("tanh", "relu", "gelu", "sin", "swish"), 100_000, "weights"),
)


def layer_statistics(plan: LayerPlan, seed: int) -> Result:
    """K, V and G1 of random critical networks of depth 5 against the recursions, entry by entry."""
    found, parts, scores = {}, [], []
    for name, own_seed in track(with_seeds(plan.activations, seed), "networks"):
        mlp = MLP.critical(name, depth=_DEPTH, width=_WIDTH, n_in=_INPUTS.shape[1])
        found[name] = compare_initial(
            mlp, _INPUTS, draws=plan.draws, scales=_SCALES, method=plan.method, seed=own_seed
        )
        dataset = found[name].to_dataset().drop_vars(["batch_value", "batch"])
        scores.append(dataset.independent_score.values)
        parts.append(dataset.drop_dims("score").drop_attrs().expand_dims(activation=[name]))
    data = xr.concat(parts, "activation", coords="minimal", compat="override")
    # Scores that are independent differ in number and keep to themselves.
    data["independent_score"] = ("score", np.concatenate(scores))
    owner = np.repeat(list(found), [len(values) for values in scores])
    names = [str(name) for name in data.activation.values]
    data = data.assign_coords(score_of=("score", owner), activation=names)
    judgement = judgement_of(found)
    rows = judgement_rows(judgement, "scores")
    for name, each in found.items():
        own = each.judgement
        rows.append(Row(f"{name}: rms z", 1.0, own.rms))
        rows.append(Row(f"{name}: largest |z| (bound)", own.bound, own.largest))
        labels = [(entry.layer, entry.label) for entry in each.entries]
        rows += [entry_row(name, each, labels.index((_DEPTH, label)), judgement.bound) for label in _SHOWN]
    exact = all(each.exact_agrees for each in found.values())
    word = "agree" if judgement.agrees and exact else "do not agree"
    verdict = f"K, V and G1 of random networks of depth {_DEPTH} {word} with the recursions ({judgement})."
    return Result(verdict, tuple(rows), data, partial(_layer_figure, judgement=judgement))


def _layer_figure(data: xr.Dataset, judgement: Judgement) -> Figure:
    title = f"Random networks of depth {_DEPTH} against the recursions of K, V and G1"
    figure = Figure(title, layout="ABC DDC", heights=(3, 2), size=(15, 7.2))
    _add_widths(figure, data, "four-point vertex", "V_(00)(00)", "V_{(00)(00)}")
    _add_widths(figure, data, "next-to-leading metric", "G1_01", r"G^{\{1\}}_{01}")
    scores = data.independent_score.values
    label = f"rms {judgement.rms:.2f}\nlargest {judgement.largest:.2f}\n1 % bound {judgement.bound:.2f}"
    add_scores(figure, scores, f"{scores.size} independent scores", label)
    # z of every entry, in the order layer by layer within K, V and G1.
    bound, place, observables = judgement.bound, np.arange(data.sizes["entry"]), data.observable.values
    ticks = {float(number): f"ℓ={layer}" for number, layer in zip(place[::3], data.layer.values[::3])}
    x, y = Axis(low=-1, high=place[-1] + 1, ticks=ticks), Axis("z", low=-1.1 * bound, high=1.1 * bound)
    panel = figure.panel("every entry: (limit − theory) / standard error", x, y, legend="")
    for end in (bound, 1.0):
        panel.region(low=-end, high=end)
    for _, own, color in coloured(data, "activation"):
        panel.curve(place, own.z, "o", "", color, size=4, alpha=0.85)
    for name in dict.fromkeys(observables):
        first = place[observables == name][0]
        panel.level(x=first - 0.5)
        panel.note(first - 0.4, 0.97 * bound, str(name), above=False, size=10)
    return figure


def _add_widths(figure: Figure, data: xr.Dataset, name: str, entry: str, symbol: str) -> None:
    """Measured over theory against 1/n: the theory is the point (0, 1)."""
    panel = figure.panel(f"{name}, layer {_DEPTH}", x="1 / width", y=f"${symbol}$, measured / theory")
    inverse = 1 / data.width.values
    grid = np.linspace(0, inverse.max(), 60)
    chosen = data.sel(entry=f"layer {_DEPTH} {entry}")
    for number, (activation, one, color) in enumerate(coloured(chosen, "activation")):
        theory, shift = float(one.theory), 0.012 * (number - (data.sizes["activation"] - 1) / 2)
        draw_limit(panel, one, activation, color, unit=theory, shift=shift)
        fit = np.polynomial.Polynomial.fit([0, *inverse], [float(one.limit), *one.measured.values], 2)
        panel.curve(grid + shift * inverse.max(), fit(grid) / theory, "-", "", color, width=1, alpha=0.6)
    panel.level(y=1, color=INK, dash="--")
    panel.level(x=0)
    panel.legend_entry("D", r"extrapolated to $n\to\infty$")
