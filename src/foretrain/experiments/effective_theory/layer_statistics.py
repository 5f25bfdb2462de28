"""Kernel, four-point vertex and next-to-leading metric of random networks, layer by layer (sections 4.2, 4.3, 5.4).

Networks of three widths at criticality; every entry of K, V and G1 for two inputs is extrapolated to infinite width
and put beside the recursions (4.118), (4.119) and (4.115).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

from foretrain.compare.initial import compare_initial
from foretrain.compare.judging.agreement import Judgement
from foretrain.experiments.effective_theory.tensor_statistics import entry_row, judgement_of
from foretrain.experiments.judgements import judgement_rows
from foretrain.experiments.pictures import add_scores, coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, Axis, Figure
from foretrain.support.progress import track
from foretrain.support.seeds import with_seeds
from foretrain.theory.architecture import MLP

_DEPTH, _WIDTH, _SCALES = 5, 64, (0.5, 1.0, 2.0)
_INPUTS = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])
_SHOWN = ("K_00", "V_(00)(00)", "V_(00)(11)", "V_(01)(01)", "G1_00", "G1_01")


@dataclass(frozen=True)
class Plan:
    """Which networks are drawn, how many of them, and how."""

    activations: tuple[str, ...]
    draws: int
    method: str


PLANS = plans(
    quick=Plan(("tanh", "gelu"), 6_000, "weights"),
    paper=Plan(("tanh", "relu", "gelu", "sin", "swish"), 100_000, "weights"),
)


def layer_statistics(plan: Plan, seed: int) -> Result:
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
    return Result(verdict, tuple(rows), data, partial(_figure, judgement=judgement))


def _figure(data: xr.Dataset, judgement: Judgement) -> Figure:
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
