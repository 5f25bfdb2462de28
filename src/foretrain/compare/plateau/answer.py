"""What is known about a plateau as one answer: verdict, layers, law, advice, steps, and real descent beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.compare.plateau.descent import step_text
from foretrain.support.answers import Answer, Code, Column, Figure, Part, Table, picked
from foretrain.support.answers.figure import BLUE, FAINT, INK, ORANGE, log, names_axis

if TYPE_CHECKING:
    import xarray

    from foretrain.compare.plateau import Plateau, PlateauVerification

_MEMORIES = 50  # of momentum, in which it follows its own average well
_COARSE = 0.25  # of the largest stable rate: above, descent and flow differ by tens of percent
_COLOURS = {"given": BLUE, "rescaled": ORANGE}


def plateau_answer(found: Plateau, trained: PlateauVerification | None = None) -> Answer:
    """The forecast and the advice; with ``trained`` also what real descent did."""
    small = {layer.name for layer in found.bottleneck.layers}
    columns = ("weight matrix", "norm", "natural norm", "share", "at the bottleneck", "multiply by")
    layers = [
        (one.name, one.norm, one.natural, one.relative, one.name in small, found.factors.get(one.name))
        for one in found.layers
    ]
    steps: list[list[str | float | None]] = []
    for name, flow in found.forecasts.items():
        steps.append([name, round(flow.length, 1), round(flow.escape, 1)])
        if trained is not None:
            one = trained.networks[name]
            error = None if math.isnan(one.standard_error) else round(one.standard_error, 2)
            steps[-1] += [round(one.measured, 1), error]
    below = f"loss < {found.forecast.threshold:.4g}"
    told: list[str | Column] = ["network", "steps on the plateau", f"predicted step of {below}"]
    if trained is not None:
        told += [Column("real descent", error="± over runs"), "± over runs"]
    runs = {} if trained is None else trained.networks
    parts: list[Part] = [
        Table(columns, layers),
        *([found.law.statement] if found.law is not None else []),
        *_advice(found),
        *_cautions(found),
        Table(told, steps),
        *(f"{name}: {one.statement}." for name, one in runs.items()),
        lambda: plateau_figure(found.to_dataset(), None if trained is None else trained.to_dataset()),
    ]
    return Answer(found.verdict, parts, lambda: _dataset(found, trained), _record(found, trained))


def _dataset(found: Plateau, trained: PlateauVerification | None) -> xarray.Dataset:
    if trained is None:
        return found.to_dataset()
    names = {"loss": "descent_loss", "escape": "descent_escape", "predicted": "descent_predicted"}
    return found.to_dataset().merge(trained.to_dataset().rename(names), combine_attrs="override")


def _advice(found: Plateau) -> list[Part]:
    """Which layers to rescale, with the lines that do it, and the plateau that is left."""
    after = found.rescaled_forecast
    if after is None:
        return ["No rescaling is advised."] if found.forecast.has_plateau else []
    if not math.isfinite(after.escape):
        gain = f"then the loss is {after.losses[-1]:.4g} after {after.followed:,.0f} steps ({after.status})"
    else:
        left = f"{step_text(after.length)} steps of plateau are left"
        word = left if after.has_plateau else "the plateau is gone"
        gain = f"then {word}: the loss is below {after.threshold:.4g} at step {step_text(after.escape)}"
        if math.isfinite(found.speedup):
            gain += f", {found.speedup:.3g} times sooner"
    return [Code(found.code, f"Bring {', '.join(found.factors)} to the natural scale; {gain}.")]


def _cautions(found: Plateau) -> list[Part]:
    """Where descent cannot follow the flow."""
    cautions: list[Part] = []
    for name, flow in found.forecasts.items():
        if flow.stability >= _COARSE * flow.stability_limit:
            word = "coarse" if flow.stable else "too large"
            cautions.append(
                f"The learning rate is {word} for the {name} network: rate × curvature is {flow.stability:.2g} at "
                f"the end of its flow, which descent follows well only far below {flow.stability_limit:.2g}."
            )
    memory = 1 / (1 - found.descent.momentum)
    if found.descent.momentum and found.forecast.escape < _MEMORIES * memory:
        cautions.append(
            f"Momentum {found.descent.momentum:g} remembers about {memory:.3g} steps: predictions are good for "
            f"plateaus of more than {_MEMORIES} times that, and too short here."
        )
    return cautions


def _record(found: Plateau, trained: PlateauVerification | None) -> dict[str, Any]:
    flows, runs = found.forecasts, None if trained is None else trained.networks
    law = "exponent exponent_here halving halving_here applies"
    return {
        "verdict": found.verdict,
        "plateau": found.forecast.has_plateau,
        "batch_size": found.batch_size,
        "loss": found.task.loss_name,
        **picked(found.forecast, "level threshold"),
        "small_layers": found.bottleneck.count,
        "epsilon": found.bottleneck.epsilon if found.bottleneck.count else None,
        "layers": [picked(layer, "name norm natural relative") for layer in found.layers],
        "law": None if found.law is None else picked(found.law, law),
        "factors": found.factors,
        "code": found.code,
        "predicted": {
            name: {
                "plateau": flow.length,
                **picked(flow, "escape status"),
                "rate_times_curvature": flow.stability,
            }
            for name, flow in flows.items()
        },
        "measured": runs
        and {
            name: {
                "escape": one.measured,
                **picked(one, "standard_error error diverged"),
                "steps": float(one.steps[-1]),
            }
            for name, one in runs.items()
        },
    }


def plateau_figure(found: xarray.Dataset, trained: xarray.Dataset | None = None) -> Figure:
    """Losses and layers; data are those of ``Plateau.to_dataset`` and ``PlateauVerification.to_dataset``."""
    figure = Figure("Plateau of a small initialisation", layout="AAB", size=(12, 4.8))
    panel = figure.panel(
        "flow (lines) and real descent (points)",
        x=log("step"),
        y=f"loss over all data ({found.attrs['loss']})",
    )
    panel.level(y=found.attrs["level"], label="loss at the saddle", dash="--")
    panel.level(y=found.attrs["threshold"], label="escaped below", color=INK, dash=":")
    for name in map(str, found.network.values):
        colour = _COLOURS[name]
        steps, losses = found[f"{name}_step"].values, found[f"{name}_loss"].values
        shown = np.append(1.0, steps[steps > 1])  # the axis is logarithmic
        panel.curve(shown, np.interp(shown, steps, losses), "-", f"{name}: predicted", colour)
        escape = float(found.escape.sel(network=name))
        if np.isfinite(escape):
            panel.level(x=max(escape, 1), color=colour, dash=":")
        if trained is not None and name in trained.network.values:
            runs = trained.sel(network=name)
            steps = runs.step.values
            known = np.flatnonzero(steps >= 1)
            # Thinned to what can be told apart on a logarithmic axis, and at the end, where the fall is.
            last = max(steps[known[-1]], 2)
            wanted = np.concatenate([np.geomspace(1, last, 30), np.linspace(1, last, 30)])
            shown = known[np.unique(np.searchsorted(steps[known], wanted).clip(max=len(known) - 1))]
            label = f"{name}: real descent"
            for losses in runs.loss.values:
                panel.curve(steps[shown], losses[shown], "o", label, colour, size=4, hollow=True)
    # Scales of all layers, and where the rescaling that is advised brings them.
    relative, factor = found.relative_scale.values, found.factor.values
    panel = figure.panel(
        "weight matrices" + (", and the advice" if (factor != 1).any() else ""),
        x=log("norm over natural norm", 0.7 * min(relative.min(), 0.5), max(2.0, 1.2 * relative.max())),
        y=names_axis(found.layer.values, low=-0.6, high=len(relative) - 0.5, reverse=True),
        legend="",
    )
    panel.level(x=1, color=INK, dash=":")
    for place, (scale, by) in enumerate(zip(relative, factor, strict=True)):
        if by != 1:
            panel.curve([scale, scale * by], [place, place], "-", color=ORANGE)
            panel.curve([scale * by], [place], "D", color=ORANGE)
            panel.note(scale * by**0.5, place, f"× {by:.3g}", ORANGE, align="center", above=True)
        panel.curve([scale], [place], "o", color=BLUE if found.at_bottleneck.values[place] else FAINT, size=6)
    return figure
