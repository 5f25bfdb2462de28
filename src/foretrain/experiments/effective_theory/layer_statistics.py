"""Kernel, four-point vertex and next-to-leading metric of random networks, layer by layer (sections 4.2, 4.3, 5.4).

Networks of three widths at criticality; every entry of K, V and G1 for two inputs is extrapolated to infinite width
and put beside the recursions (4.118), (4.119) and (4.115).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.compare.comparison import Comparison
from foretrain.compare.initial import compare_initial
from foretrain.compare.judging.agreement import Judgement
from foretrain.experiments.effective_theory.score_drawing import draw_scores
from foretrain.experiments.effective_theory.tensor_statistics import judgement_of
from foretrain.experiments.judgements import judgement_rows
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import FAINT, INK, PALETTE, new_mosaic
from foretrain.support.progress import track
from foretrain.support.seeds import spawn
from foretrain.theory.architecture import MLP

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DEPTH, _WIDTH, _SCALES = 5, 64, (0.5, 1.0, 2.0)
_INPUTS = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])
_SHOWN = ("K_00", "V_(00)(00)", "V_(00)(11)", "V_(01)(01)", "G1_00", "G1_01")
_DRAWN = {"V": "V_(00)(00)", "G1": "G1_01"}


@dataclass(frozen=True)
class Plan:
    """Which networks are drawn, how many of them, and how."""

    activations: tuple[str, ...]
    draws: int
    method: str


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(("tanh", "gelu"), 6_000, "weights"),
    Scale.PAPER: Plan(("tanh", "relu", "gelu", "sin", "swish"), 100_000, "weights"),
}


def layer_statistics(plan: Plan, seed: int) -> Result:
    """K, V and G1 of random critical networks of depth 5 against the recursions, entry by entry."""
    tasks = list(zip(plan.activations, spawn(seed, len(plan.activations)), strict=True))
    found = {}
    for name, own_seed in track(tasks, "networks"):
        mlp = MLP.critical(name, depth=_DEPTH, width=_WIDTH, n_in=_INPUTS.shape[1])
        found[name] = compare_initial(
            mlp, _INPUTS, draws=plan.draws, scales=_SCALES, method=plan.method, seed=own_seed
        )
    data = _dataset(found)
    judgement = judgement_of(found)
    exact = all(each.exact_agrees for each in found.values())
    word = "agree" if judgement.agrees and exact else "do not agree"
    verdict = f"K, V and G1 of random networks of depth {_DEPTH} {word} with the recursions ({judgement})."
    return Result(verdict, _table(judgement, found), data, partial(_draw, data, judgement))


def _dataset(found: dict[str, Comparison]) -> xarray.Dataset:
    """All comparisons side by side; scores that are independent differ in number and keep to themselves."""
    import xarray

    parts, scores = [], []
    for name, each in found.items():
        dataset = each.to_dataset().drop_vars(["batch_value", "batch"])
        scores.append(dataset.independent_score.values)
        parts.append(dataset.drop_dims("score").drop_attrs().expand_dims(activation=[name]))
    data = xarray.concat(parts, "activation", coords="minimal", compat="override")
    owner = np.repeat(list(found), [len(values) for values in scores])
    data["independent_score"] = ("score", np.concatenate(scores))
    return data.assign_coords(
        score_of=("score", owner), activation=[str(name) for name in data.activation.values]
    )


def _table(judgement: Judgement, found: dict[str, Comparison]) -> tuple[Row, ...]:
    rows = judgement_rows(judgement, "scores")
    for name, each in found.items():
        own = each.judgement
        rows.append(Row(f"{name}: rms z", 1.0, own.rms))
        rows.append(Row(f"{name}: largest |z| (bound)", own.bound, own.largest))
        rows += [_entry_row(name, each, label, judgement.bound) for label in _SHOWN]
    return tuple(rows)


def _entry_row(name: str, each: Comparison, label: str, bound: float) -> Row:
    """One entry of the last layer; where nothing fluctuates, as in G1 of one ReLU input, it must be exact."""
    place = [(entry.layer, entry.label) for entry in each.entries].index((_DEPTH, label))
    title = f"{name}: {label} at layer {_DEPTH}"
    theory, limit = float(each.theory[place]), float(each.limit[place])
    if not each.fluctuates[place]:
        return Row(title, theory, limit, agrees=each.exact_agrees)
    agrees = bool(abs(each.z[place]) <= bound)
    return Row(title, theory, limit, float(each.standard_error[place]), agrees=agrees)


def _draw(data: xarray.Dataset, judgement: Judgement) -> Figure:
    title = f"Random networks of depth {_DEPTH} against the recursions of K, V and G1"
    layout = [["V", "G1", "scores"], ["pulls", "pulls", "scores"]]
    figure, panels = new_mosaic(title, layout, [3, 2], (15, 7.2))
    for name, label in _DRAWN.items():
        _draw_widths(panels[name], data, label)
    panels["V"].set_title(f"four-point vertex, layer {_DEPTH}", fontsize=11)
    panels["G1"].set_title(f"next-to-leading metric, layer {_DEPTH}", fontsize=11)
    panels["V"].plot([], [], "D", color=INK, markersize=5, label=r"extrapolated to $n\to\infty$")
    panels["V"].legend(frameon=False, fontsize=9, loc="best")
    _draw_pulls(panels["pulls"], data, judgement.bound)
    scores = data.independent_score.values
    note = f"rms {judgement.rms:.2f}\nlargest {judgement.largest:.2f}\n1 % bound {judgement.bound:.2f}"
    draw_scores(panels["scores"], scores, f"{scores.size} independent scores", note)
    return figure


def _draw_widths(panel: Axes, data: xarray.Dataset, label: str) -> None:
    """Measured over theory against 1/n: the theory is the point (0, 1)."""
    place = f"layer {_DEPTH} {label}"
    inverse = 1 / data.width.values
    for index, (color, name) in enumerate(zip(PALETTE, data.activation.values, strict=False)):
        entry = data.sel(activation=name, entry=place)
        shift = 0.012 * inverse.max() * (index - (data.sizes["activation"] - 1) / 2)
        size = abs(float(entry.theory))
        theory = float(entry.theory)
        panel.errorbar(
            inverse + shift,
            entry.measured / theory,
            entry.measured_error / size,
            fmt="o",
            color=color,
            markersize=5,
            markerfacecolor="white",
            label=str(name),
        )
        fit = np.polynomial.Polynomial.fit([0, *inverse], [float(entry.limit), *entry.measured.values], 2)
        grid = np.linspace(0, inverse.max(), 60)
        panel.plot(grid + shift, fit(grid) / theory, color=color, linewidth=1, alpha=0.6)
        panel.errorbar(
            [shift],
            [float(entry.limit) / theory],
            [float(entry.standard_error) / size],
            fmt="D",
            color=color,
            markersize=5,
            elinewidth=1.6,
        )
    panel.axhline(1, color=INK, linewidth=0.9, linestyle="--")
    panel.axvline(0, color=FAINT, linewidth=0.8)
    symbol = label.replace("G1_", r"G^{\{1\}}_").replace("_01", "_{01}").replace("_(00)(00)", "_{(00)(00)}")
    panel.set(xlabel="1 / width", ylabel=f"${symbol}$, measured / theory")


def _draw_pulls(panel: Axes, data: xarray.Dataset, bound: float) -> None:
    """z of every entry, in the order layer by layer within K, V and G1."""
    for limit, shade in ((bound, "#f2f2f2"), (1.0, "#dddddd")):
        panel.axhspan(-limit, limit, color=shade, zorder=0)
    position = np.arange(data.sizes["entry"])
    for color, name in zip(PALETTE, data.activation.values, strict=False):
        panel.plot(position, data.z.sel(activation=name), "o", color=color, markersize=4, alpha=0.85)
    observables = data.observable.values
    for name in dict.fromkeys(observables):
        own = position[observables == name]
        panel.axvline(own[0] - 0.5, color=FAINT, linewidth=0.8)
        panel.text(own[0], 0.92 * bound, str(name), fontsize=10, va="top", color=INK)
    panel.set_xticks(position[::3], [f"ℓ={layer}" for layer in data.layer.values[::3]], fontsize=8)
    panel.set(ylabel="z", ylim=(-1.1 * bound, 1.1 * bound), xlim=(-1, position[-1] + 1))
    panel.set_title("every entry: (limit − theory) / standard error", fontsize=11)
