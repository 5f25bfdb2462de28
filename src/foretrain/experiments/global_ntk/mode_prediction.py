"""Which target modes plain SGD learns within a budget, told from the initial NTK alone, then trained (Cor. 2).

GRU and vanilla networks of many gains get Memory-Pro, whose target has three modes: the fixation and the two
coordinates of the remembered angle. Before a step is made, the share of every mode that will be left after four
budgets of steps is forecast; a mode with less than half left counts as learned. Then the networks are trained. Gains,
rates, budgets and the threshold were fixed on networks of another seed (999), at the larger scale on a single one for
some gains, so that about half of all cases are learned: the shortest budget is one in which the fixation may or may
not be learned, the others are for the angle.

Hit rates stand beside two base rates: the best single answer for all cases, and the best answer for every cell, mode
and budget, given by somebody who has seen all the outcomes but not which network is asked about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from foretrain.experiments.judgements import sampled
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support import answers
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Axis, Figure, names_axis
from foretrain.support.seeds import generator, spawn
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    from foretrain.training.tasks.memory_pro import Cell


_THRESHOLD = 0.5
_LOOKS = 40  # intervals in which courses are recorded
_BUDGETS = (0.025, 0.25, 0.5, 1.0)  # of all steps
_ANGLES = 8  # evenly spread, where modes are seen
_BATCH = 8  # new random angles for every step
_SURE = 2.0  # standard errors that make a difference
_CELLS = {"gru": "GRU", "rnn": "vanilla RNN"}
_COLORS = {"linearised": PURPLE, "flow": BLUE, "rayleigh": ORANGE, "proxy": GREEN}
_NOTES = {
    "linearised": "steps of the frozen kernel; where lr is above its stable rate it says that nothing is learned",
    "flow": "the frozen kernel in small steps",
    "rayleigh": "each mode alone at its rate |(V* (x) I) adj|^2",
    "proxy": "V V* (x) R R* without propagation; a forward pass only",
}


@dataclass(frozen=True)
class _Setting:
    gains: tuple[float, ...]
    lr: float
    steps: int


@dataclass(frozen=True)
class Plan:
    """Size and number of the networks, the length of their task, and how each cell is trained."""

    units: int
    period: int  # steps of each of stimulus, memory, response
    draws: int  # networks for every gain
    cells: dict[Cell, _Setting]


_QUICK: dict[Cell, _Setting] = {
    "gru": _Setting((1.0, 1.4, 1.7, 2.0, 2.3, 2.6), 0.02, 400),
    "rnn": _Setting((0.8, 0.9, 1.0, 1.1, 1.2, 1.3), 0.005, 1200),
}
_PAPER: dict[Cell, _Setting] = {
    "gru": _Setting((1.6, 1.75, 1.85, 1.95, 2.05, 2.2), 0.004, 400),
    "rnn": _Setting((0.9, 1.0, 1.1, 1.2, 1.3, 1.4), 0.001, 800),
}
PLANS = plans(quick=Plan(64, 10, 4, _QUICK), paper=Plan(256, 30, 4, _PAPER))


def mode_prediction(plan: Plan, seed: int, parts: Parts) -> Result:
    """Hit rates of forecasts from the initial NTK, and where they miss."""
    cells = []
    for (cell, setting), source in zip(plan.cells.items(), spawn(seed, len(plan.cells)), strict=True):
        levels = [
            parts.get(f"{cell} gain {gain}", partial(_one_gain, plan, cell, gain, own))
            for gain, own in zip(setting.gains, spawn(source, len(setting.gains)), strict=True)
        ]
        cells.append(xarray.concat(levels, "level"))
    data = xarray.concat(cells, xarray.DataArray(list(plan.cells), dims="cell", name="cell"))
    data.attrs = {"units": plan.units, "period": plan.period, "threshold": _THRESHOLD}
    data = _scored(data)
    names, base, constant = data.predictor.values, float(data.base.mean()), float(data.constant.mean())
    note = "the rate above: the usual outcome for every cell, mode and budget, from the same networks"
    rows = [_hit_row(data, name) for name in names]
    rows.append(Row("base rate, one answer for all cases", "", constant, _error(data.constant), note=note))
    kinds: dict[str, Mapping[Any, str]] = {
        "cell": _CELLS,
        "mode": {1: "mode 1 (fixation)", 2: "mode 2 (angle)", 3: "mode 3 (angle)"},
        "budget": {part: f"budget of {part:.3g} of all steps" for part in _BUDGETS},
    }
    for dim, words in kinds.items():  # parts of the tested rates, for orientation
        for value in (each for each in words if each in data[dim].values):
            at = data.sel({dim: [value]})
            told = ", ".join(f"{name} {float(at.hit.sel(predictor=name).mean()):.3f}" for name in names)
            rows.append(Row(f"hit rates, {words[value]}", f"base rate {float(at.base.mean()):.3f}", told))
    rows += [_confusion_row(data, name) for name in names] + [_rank_row(data, name) for name in names]
    hits = {name: data.hit.sel(predictor=name) for name in names}
    rates = ", ".join(f"{name} {float(hit.mean()):.1%} ± {_error(hit):.1%}" for name, hit in hits.items())
    verdict = (
        f"From the initial NTK alone, whether SGD learns a mode within the budget (less than {_THRESHOLD:g} of it is "
        f"left when those steps are over) is foretold for {data.largest_rate.size} "
        f"networks with hit rates {rates}, against {base:.1%} for the usual outcome of cell, mode and "
        f"budget and {constant:.1%} for one answer to all {data.learned.size} cases."
    )
    return Result(verdict, (*rows, *_failure_rows(data)), data, _draw)


def _one_gain(plan: Plan, cell: Cell, gain: float, seed: np.random.SeedSequence) -> xarray.Dataset:
    """Forecasts of some networks with one gain, then what training makes of them."""
    import torch

    from foretrain.empirical.mode_prediction import PREDICTORS, predict_modes
    from foretrain.empirical.target_modes import target_modes
    from foretrain.experiments.global_ntk.stacked_training import Training
    from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent

    setting, task = plan.cells[cell], MemoryPro(plan.period, plan.period, plan.period)
    angles = task.angles(_ANGLES)
    x, y = task.inputs(angles, dtype=torch.float64), task.targets(angles, dtype=torch.float64)
    looks = np.linspace(0, setting.steps, _LOOKS + 1).astype(int).tolist()
    first, training = spawn(seed, 2)
    models = [Recurrent(3, plan.units, 3, cell, gain=gain, seed=own) for own in spawn(first, plan.draws)]
    found = [
        predict_modes(model.double(), x, y, setting.lr, looks, threshold=_THRESHOLD, accuracy=1e-4)
        for model in models
    ]
    budgets = [int(part * setting.steps) for part in _BUDGETS]
    run = Training(task, setting.lr, _BATCH, looks, [0, *budgets])
    target = target_modes(y.reshape(-1, 3).numpy())
    course = run.run(cell, [model.float() for model in models], target, training)
    forecast = np.stack([[each.residual[name] for name in PREDICTORS] for each in found])
    values = {
        "forecast": (("draw", "predictor", "mode", "progress"), forecast),
        "left": (("draw", "mode", "progress"), course.left),
        "growth": (("draw", "mode", "budget"), course.rates[..., 1:] / course.rates[..., :1]),
        "half_time": (("draw", "mode"), np.stack([each.half_time for each in found])),
        "largest_rate": ("draw", [each.largest_rate for each in found]),
    }
    labels = {"predictor": list(PREDICTORS), "mode": [1, 2, 3], "progress": np.linspace(0, 1, _LOOKS + 1)}
    data = xarray.Dataset(values, {**labels, "budget": list(_BUDGETS)})
    return data.assign(gain=gain, lr=setting.lr, steps=setting.steps)


def _scored(data: xarray.Dataset) -> xarray.Dataset:
    """What was foreseen and learned at the budgets, whether they agree, and the answers of both base rates."""
    learned, foreseen = (abs(_at_budgets(values)) < _THRESHOLD for values in (data.left, data.forecast))
    usual = learned.mean(("level", "draw")) >= 0.5
    constant = xarray.full_like(learned, bool(learned.mean() >= 0.5))
    return data.assign(
        learned=learned,
        foreseen=foreseen,
        hit=foreseen == learned,
        base=(usual == learned).transpose(*learned.dims),
        constant=constant == learned,
    )


def _at_budgets(values: xarray.DataArray) -> xarray.DataArray:
    """Of what is recorded in all looks."""
    found = values.isel(progress=[int(part * _LOOKS) for part in _BUDGETS]).rename(progress="budget")
    return found.assign_coords(budget=list(_BUDGETS))


def _hit_row(data: xarray.Dataset, predictor: str) -> Row:
    """Better or worse than the base rate by two standard errors over networks; undecided in between."""
    hit = data.hit.sel(predictor=predictor)
    better = hit.astype(float) - data.base
    gained, error = float(better.mean()), _error(better)
    agrees = True if gained > _SURE * error else False if gained < -_SURE * error else None
    said = f"{_NOTES[predictor]}; {gained:+.3f} ± {error:.3f} against the base rate by cell, mode and budget"
    expected = f"above the base rate {float(data.base.mean()):.3f}"
    return Row(f"hit rate, {predictor}", expected, float(hit.mean()), _error(hit), agrees, said)


def _error(cases: xarray.DataArray) -> float:
    """Standard error over networks, whose modes and budgets are not independent."""
    others = [dim for dim in cases.dims if dim not in ("cell", "level", "draw")]
    return sampled(np.asarray(cases.mean(others)).ravel()).error


def _confusion_row(data: xarray.Dataset, predictor: str) -> Row:
    foreseen, learned = data.foreseen.sel(predictor=predictor), data.learned
    cases = (foreseen & learned, ~foreseen & ~learned, foreseen & ~learned, ~foreseen & learned)
    counts = [int(case.sum()) for case in cases]
    told = "learned and foreseen {}, neither {}, foreseen only {}, learned only {}".format(*counts)
    return Row(f"cases, {predictor}", f"{data.learned.size} cases", told)


def _rank_row(data: xarray.Dataset, predictor: str) -> Row:
    """Mean over cells, modes 2 and 3 and budgets of the rank correlation over networks; error by resampling them."""
    at = data.sel(mode=[2, 3])
    order, networks = ("cell", "mode", "budget", "level", "draw"), data.sizes["level"] * data.sizes["draw"]
    told, found = (
        abs(_at_budgets(values)).transpose(*order).values.reshape(-1, networks)
        for values in (at.forecast.sel(predictor=predictor), at.left)
    )
    value = _rank_correlation(told, found)
    picks = generator(0).integers(networks, size=(400, networks))
    error = float(np.nanstd([_rank_correlation(told[:, pick], found[:, pick]) for pick in picks]))
    title = f"rank correlation of shares left, modes 2 and 3, {predictor}"
    return Row(title, "above 0", value, error, value > _SURE * error)


def _rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Spearman's, mean over rows without those whose values are all equal; nan if no row is left."""
    from scipy.stats import rankdata

    a, b = (rankdata(values, axis=1) for values in (np.nan_to_num(first, nan=np.inf), second))
    a, b = (values - values.mean(axis=1, keepdims=True) for values in (a, b))
    size = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    rows = size > 0
    return float(np.mean((a * b).sum(axis=1)[rows] / size[rows])) if rows.any() else float("nan")


def _failure_rows(data: xarray.Dataset) -> tuple[Row, ...]:
    """How much a mode's rate has grown by the end of the budget, where the frozen kernel missed and where not."""
    from scipy.stats import mannwhitneyu

    foreseen, learned = data.foreseen.sel(predictor="flow"), data.learned
    growth = {
        "learned but not foreseen": data.growth.where(learned & ~foreseen),
        "neither": data.growth.where(~learned & ~foreseen),
        "learned and foreseen": data.growth.where(learned & foreseen),
    }
    values = {name: each.values[np.isfinite(each.values)] for name, each in growth.items()}
    missed, still = values["learned but not foreseen"], values["neither"]
    chance = 1.0
    if missed.size and still.size:
        chance = float(mannwhitneyu(missed, still, alternative="greater").pvalue)
    rows = [
        Row(f"growth of a mode's rate <m, Theta m>, {name} (median)", "", float(np.median(each)))
        for name, each in values.items()
        if each.size
    ]
    title = "modes learned though not foreseen have a kernel that grew towards them"
    claim, here = "more than those not learned", f"chance {chance:.2g} by the rank-sum test"
    note = f"{missed.size} cases against {still.size}, flow; cases of one network are not independent"
    rows.append(Row(title, claim, here, None, True if chance < 0.01 else None, note))
    title = "networks whose learning rate is above the largest stable one of the frozen kernel"
    above = int((data.lr > data.largest_rate).sum())
    return (*rows, Row(title, "", f"{above} of {data.largest_rate.size}"))


def _draw(data: xarray.Dataset) -> Figure:
    """Forecast against outcome for two forecasts, hit rates, and courses of some networks of both cells."""
    size = f"{data.attrs['units']} units, {3 * data.attrs['period']} steps"
    title = f"Memory-Pro, {size}: modes learned by SGD, foretold from the initial NTK"
    figure = Figure(title, columns=3, size=(16, 9.5))
    _draw_scatter(figure, data.sel(predictor="flow"), "frozen NTK, gradient flow")
    _draw_scatter(figure, data.sel(predictor="rayleigh"), "each mode at its own rate (Cor. 2)")
    _draw_hits(figure, data)
    # The share of angle modes that are learned, against the gain's place among the gains.
    gains = zip(*(data.gain.sel(cell=cell).values for cell in data.cell.values))
    label = f"gain ({', below '.join(_CELLS[cell] for cell in data.cell.values)})"
    x = names_axis(["\n".join(f"{gain:g}" for gain in pair) for pair in gains], label)
    title, y = "angle modes learned, all budgets", "share of cases learned"
    panel = figure.panel(title, x, y, legend_columns=2)
    for cell, style in zip(data.cell.values, ("o-", "o--")):
        own = data.sel(cell=cell, mode=[2, 3])
        flow, rayleigh = (own.foreseen.sel(predictor=name) for name in ("flow", "rayleigh"))
        curves = {"SGD": (own.learned, INK), "flow": (flow, BLUE), "rayleigh": (rayleigh, ORANGE)}
        for name, (values, color) in curves.items():
            shares = values.mean(("draw", "mode", "budget"))
            panel.curve(np.arange(shares.size), shares, style, f"{_CELLS[cell]}: {name}", color)
    for (
        cell
    ) in data.cell.values:  # mode 2 of one network for some gains: trained, by flow, and at its own rate
        own = data.sel(cell=cell)
        title, axis = f"{_CELLS[cell]}: mode 2, one network per gain, and budgets", Axis("share left", low=0)
        panel = figure.panel(title, "step", axis, legend_columns=4)
        steps, colors = float(own.steps.max()) * data.progress, answers.shades(data.sizes["level"])
        for level in (each for each in (0, 2, 3, 4) if each < len(colors)):
            one = own.isel(level=level, draw=0).sel(mode=2)
            left, forecast = abs(one.left), abs(one.forecast)
            panel.curve(steps, left, "-", f"gain {float(one.gain):g}", colors[level], width=2)
            for name, style in (("flow", "--"), ("rayleigh", ":")):
                panel.curve(steps, forecast.sel(predictor=name), style, "", colors[level], width=1.3)
        for style, words in (("-", "SGD"), ("--", "flow"), (":", "own rate")):
            panel.legend_entry(style, words)
        panel.level(y=_THRESHOLD)
        for part in data.budget.values:
            panel.level(x=part * steps[-1])
    return figure


def _draw_scatter(figure: Figure, data: xarray.Dataset, title: str) -> None:
    """Shares left after half of the steps, coloured by gain."""
    x, y = Axis("share foretold to be left", low=0, high=1.13), Axis("share left by SGD", low=0, high=1.6)
    panel = figure.panel(f"{title}, half of the steps", x, y, legend="upper left", legend_columns=2)
    panel.region((0, _THRESHOLD), _THRESHOLD, 1.13, color="#f1f1f4", alpha=1)
    panel.region((_THRESHOLD, 1.13), 0, _THRESHOLD, color="#f1f1f4", alpha=1)
    panel.note(0.02, 0.55, "foretold, not learned", FAINT)
    panel.note(0.53, 0.04, "learned, not foretold", FAINT)
    panel.curve([0, 1.1], [0, 1.1], color=FAINT, width=1)
    colors = answers.shades(data.sizes["level"])
    for cell, marker in zip(data.cell.values, "o^"):
        at = data.sel(cell=cell).sel(progress=0.5, method="nearest")
        for level, color in enumerate(colors):
            for mode in at.mode.values:
                one = at.isel(level=level).sel(mode=mode)
                told, left = (np.minimum(abs(values), 1.1) for values in (one.forecast, one.left))
                panel.curve(told, left, marker, "", color, hollow=mode == 1)
        panel.legend_entry(marker, f"{_CELLS[cell]}, angle")
    panel.legend_entry("o", "fixation (open)", hollow=True)
    panel.legend_entry("o", "low gain", colors[0])
    panel.legend_entry("o", "high gain", colors[-1])


def _draw_hits(figure: Figure, data: xarray.Dataset) -> None:
    """Hit rates by predictor and budget, with the base rate of each budget."""
    budgets = names_axis([f"{100 * part:g} %" for part in data.budget.values], "budget, part of all steps")
    y = Axis("hit rate", low=0.2, high=1.3)
    panel = figure.panel("hit rate, error over networks", budgets, y, legend_columns=2)
    places = np.arange(data.sizes["budget"])
    for shift, name in enumerate(data.predictor.values):
        single = data.hit.sel(predictor=name).mean("mode").stack(network=("cell", "level", "draw"))
        error = single.std("network", ddof=1) / np.sqrt(single.sizes["network"])
        where = places + 0.2 * (shift - 1.5)
        panel.bars(where, single.mean("network"), name, _COLORS[name], error=error, width=0.19)
    ends = np.add.outer(places, [-0.42, 0.42, np.nan]).ravel()  # a line for each budget
    for values, dash, label in ((data.base, "-", "by cell and mode"), (data.constant, ":", "one answer")):
        rates = values.mean([dim for dim in values.dims if dim != "budget"])
        panel.curve(ends, np.repeat(rates, 3), dash, f"base rate, {label}", INK)
