"""Slopes of escape times of ordinary networks (Rawal & DeWeese, figure 4 and its table of slopes).

He-normal tanh networks of depth 8 whose first r layers are multiplied by ε learn a single tanh unit. The law says
time ~ ε^-(r-2) for small ε; the published slopes are of windows where ε is not small. Here every network follows its
population gradient flow with adaptive steps, and stochastic gradient descent at the published rate and batch checks
one ε of each r. Times are learning rate × steps of the uniform flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray

from foretrain.experiments.judgements import claim_row, sampled
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.experiments.saddle_escape import escape_times as laws
from foretrain.experiments.saddle_escape.escape_times import fit, fit_over_seeds, over_seeds
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, Figure, log, names_axis
from foretrain.support.seeds import integer, spawn
from foretrain.theory.architecture import FloatArray

# Figure 4 of the paper: slopes with their errors by r, and how far other thresholds move them at most.
PUBLISHED = {3: (-1.22, 0.06), 5: (-2.74, 0.06), 8: (-5.42, 0.14)}
_PUBLISHED_SHIFT = 0.08
_WINDOWS = {3: (0.01, 0.3), 5: (0.06, 0.5), 8: (0.15, 0.5)}
_THRESHOLDS = (0.05, 0.02, 0.01)
_THRESHOLD = 0.02
_RATE, _BATCH, _BUDGET = 0.01, 512, 8000.0  # 800,000 steps
_ALLOWED = 2.0  # combined errors
_INTERVALS = (1, 25, 50)  # steps of the published rate between two looks at the loss
_COLORS = {3: BLUE, 5: ORANGE, 8: GREEN}
_NOT_MET = 5  # critical depth whose published slope depends on how often the loss was looked at


@dataclass(frozen=True)
class Plan:
    """Networks and work; ``points`` stand for the Gaussian law, ``descents`` is the number of seeds given to SGD."""

    depth: int
    width: int
    inputs: int
    epsilons: int
    seeds: int
    points: int
    tolerance: float
    descents: int
    longest_descent: float  # units of time


PLANS = plans(
    quick=Plan(8, 128, 16, 7, 5, 512, 1e-3, 3, 6.0), paper=Plan(8, 128, 16, 10, 20, 4096, 1e-4, 5, _BUDGET)
)


def saddle_slopes(plan: Plan, seed: int, parts: Parts) -> Result:
    """Fitted slopes of log escape time against log ε for r = 3, 5, 8 small layers, beside the published ones."""
    small, found = [r for r in PUBLISHED if r <= plan.depth], []

    def flow(r: int) -> xarray.Dataset:
        """Times (point, seed, threshold) over the published window; nan beyond the published budget of steps."""
        epsilons = np.geomspace(*_WINDOWS[r], plan.epsilons)
        times = _escapes(plan, r, epsilons, seed, plan.points, plan.tolerance)
        return times.assign(epsilon=("point", epsilons))

    def finer(r: int) -> xarray.Dataset:
        """The largest ε again, where the sample matters most: four times the points and a third of the error."""
        tolerance = max(plan.tolerance / 3, 2e-5)
        largest = _escapes(plan, r, np.array(_WINDOWS[r][1:]), seed, 4 * plan.points, tolerance)
        return largest.isel(point=0)[["time"]].rename(time="finer_time")

    flows = [parts.get(f"flow r={r}", partial(flow, r)) for r in small]
    again = [parts.get(f"finer r={r}", partial(finer, r)) for r in small]
    descents = [
        parts.get(f"descent r={r}", partial(_descent, plan, r, seed, flow))
        for r, flow in zip(small, flows, strict=True)
    ]
    index = xarray.Variable("small_layers", small)
    data = xarray.merge(
        [xarray.concat(each, dim=index, join="outer", coords="minimal") for each in (flows, again, descents)],
        combine_attrs="drop",
    ).assign_attrs(depth=plan.depth, width=plan.width, inputs=plan.inputs, points=plan.points)
    rows: list[Row] = []
    for r in small:
        own = data.sel(small_layers=r)
        rows += [_slope_row(own, r), *_shift_rows(own, r), *_other_rows(own, r)]
        line, (slope, error) = _fit(own), PUBLISHED[r]
        found.append(f"{line.slope:.2f} ± {line.error:.2f} (published {slope} ± {error})")
    shifts = [row for row in rows if "shift of the slope" in row.quantity]
    moved = sum(row.agrees is not True for row in shifts)
    verdict = (
        f"With r = {', '.join(map(str, small))} small layers the slopes are {', '.join(found)}; other thresholds "
        f"move them by more than {_PUBLISHED_SHIFT:g} in {moved} of {len(shifts)} cases."
    )
    return Result(verdict, tuple(rows), data, _draw)


def _fit(own: xarray.Dataset) -> laws.Fit:
    return fit_over_seeds(own["epsilon"].values, own["time"].sel(threshold=_THRESHOLD).values)


def _escapes(
    plan: Plan, r: int, epsilons: FloatArray, seed: int, points: int, tolerance: float
) -> xarray.Dataset:
    """Times in single precision, by a pair of low order: errors stay below the spread of seeds, which is checked."""
    import torch

    from foretrain.training import gradient_flow as flows

    problem = flows.Problem("tanh", depth=plan.depth, width=plan.width, inputs=plan.inputs)
    networks = flows.scaled_he(problem, r, list(epsilons), [integer(own) for own in spawn(seed, plan.seeds)])
    rules = flows.Integration(
        rtol=tolerance, dtype=torch.float32, method="bogacki_shampine", max_time=_BUDGET
    )
    sample = flows.gaussian_sample(problem, points)
    found = flows.escape(problem, networks, thresholds=_THRESHOLDS, sample=sample, integration=rules)
    shape, grid = (len(epsilons), plan.seeds), ("point", "seed")
    values = {name: (grid, found[name].values.reshape(shape)) for name in ("signal", "evaluations")}
    times = ((*grid, "threshold"), found["time"].values.reshape(*shape, -1))
    return xarray.Dataset({"time": times, **values}, coords={"threshold": list(_THRESHOLDS)})


def _descent(plan: Plan, r: int, seed: int, flow: xarray.Dataset) -> xarray.Dataset:
    """SGD at the published rate and batch, at the smallest ε whose flow escapes within the time allowed for it."""
    import torch

    from foretrain.training.gradient_flow import Problem, gaussian_sample, scaled_he, stochastic_escape

    slowest = flow["time"].sel(threshold=_THRESHOLD).max("seed").fillna(np.inf).values
    quick = np.flatnonzero(1.2 * slowest <= plan.longest_descent)
    place = int(quick[0]) if len(quick) else len(slowest) - 1
    problem = Problem("tanh", depth=plan.depth, width=plan.width, inputs=plan.inputs)
    seeds = [integer(own) for own in spawn(seed, plan.seeds)][: plan.descents]
    networks = scaled_he(problem, r, float(flow["epsilon"][place]), seeds)
    found = stochastic_escape(
        problem,
        networks,
        lr=_RATE,
        batch_size=_BATCH,
        steps=round(2 * min(slowest[place], _BUDGET) / _RATE),
        thresholds=(_THRESHOLD,),
        sample=gaussian_sample(problem, plan.points),
        every=1,
        dtype=torch.float32,
        seed=seed,
    )
    times = np.full(plan.seeds, np.nan)
    times[: plan.descents] = found["time"].values[:, 0]
    return xarray.Dataset({"descent_time": ("seed", times), "descent_point": place})


def checked_times(times: FloatArray, interval: int) -> FloatArray:
    """What escape times become when the loss is looked at every so many steps."""
    return np.asarray(np.ceil(times / (interval * _RATE)) * interval * _RATE)


def _slope_row(own: xarray.Dataset, r: int) -> Row:
    published, error = PUBLISHED[r]
    epsilon, times = own["epsilon"].values, own["time"].sel(threshold=_THRESHOLD).values
    found = _fit(own)
    late = int(np.isnan(times).sum())
    agrees = abs(found.slope - published) <= _ALLOWED * np.hypot(error, found.error)
    note = (
        f"Published ± {error:g}. The error here is that of the regression, where the bend counts as scatter, or that "
        f"of the seeds, {sampled(laws.seed_slopes(epsilon, times)).error:.3f}, if larger. "
        + (f"{late} of {times.size} networks did not escape" if late else "All networks escaped")
        + f" within 800,000 steps{' and are left out' if late else ''}."
    )
    if not agrees:
        note += (
            f" At the largest ε the escape takes {over_seeds(times)[-1] / _RATE:.0f} steps of the published rate: "
            "how often the loss was looked at, which we do not know, changes the slope by as much (rows below)."
        )
    title = f"r = {r}: slope, loss < {_THRESHOLD:g}"
    return Row(title, published, found.slope, found.error, bool(agrees), note, disputed=r == _NOT_MET)


def _shift_rows(own: xarray.Dataset, r: int) -> list[Row]:
    """Slopes at other thresholds less the one at 0.02, with the error of the difference over seeds."""
    epsilon, base, rows = own["epsilon"].values, own["time"].sel(threshold=_THRESHOLD).values, []
    for threshold in (t for t in _THRESHOLDS if t != _THRESHOLD):
        other = own["time"].sel(threshold=threshold).values
        shift, error = sampled(laws.seed_slopes(epsilon, other / base))
        seldom = fit(epsilon, over_seeds(checked_times(other, 25) / checked_times(base, 25))).slope
        note = f"Published: at most {_PUBLISHED_SHIFT:g}. Looked at every 25 steps: {seldom:.2f}."
        if threshold < linear_loss():
            note += (
                f" The best linear student of the teacher has loss {linear_loss():.4f}: below it the curvature of "
                "tanh must be learned too, a second stage whose time depends on ε in another way."
            )
        agrees = bool(abs(shift) <= _PUBLISHED_SHIFT + _ALLOWED * error)
        title = f"r = {r}: shift of the slope, loss < {threshold:g}"
        claim = f"|shift| <= {_PUBLISHED_SHIFT:g}"
        rows.append(Row(title, claim, shift, error, agrees, note, disputed=True))
    return rows


def linear_loss() -> float:
    """½ (E y² - E[g y]²): the least loss of students that are linear."""
    from foretrain.gaussian import expectation
    from foretrain.saddle import classify

    square = float(expectation(["tanh", "tanh"], [[1.0, 1.0], [1.0, 1.0]]).value)
    return 0.5 * (square - classify("tanh").h ** 2)


def _other_rows(own: xarray.Dataset, r: int) -> list[Row]:
    """Other ways to fit the same times, which the paper does not tell; the law; errors beside the spread of seeds."""
    epsilon, times = own["epsilon"].values, own["time"].sel(threshold=_THRESHOLD).values
    published, error = PUBLISHED[r]
    found = fit(epsilon, np.nanmean(times, axis=1))
    rows = [Row(f"r = {r}: slope of the mean time", published, found.slope, found.error)]
    for interval in _INTERVALS[1:]:
        seen = fit(epsilon, over_seeds(checked_times(times, interval)))
        distance = abs(seen.slope - published) / np.hypot(error, seen.error)
        note = (
            f"Were the loss looked at every {interval} steps only: fast escapes at large ε then seem slow. "
            f"{distance:.1f} combined errors from the published slope."
        )
        title = f"r = {r}: slope, looked at every {interval} steps"
        rows.append(Row(title, published, seen.slope, seen.error, note=note))
    rows.append(_sign_row(own, r))
    slopes = laws.local_slopes(epsilon, over_seeds(times))[1]
    note = (
        f"Inside the window it runs from {slopes.min():.2f} to {slopes.max():.2f}, which is not asymptotic."
    )
    title = f"r = {r}: local slope at the smallest ε (law as ε → 0)"
    rows.append(Row(title, float(2 - r), float(slopes[0]), note=note))
    spread = float(np.nanstd(np.log(times), axis=1, ddof=1).mean())
    finer = np.log(times[-1] / own["finer_time"].sel(threshold=_THRESHOLD).values)
    size, place = float(np.sqrt(np.mean(finer**2))), int(own["descent_point"])
    title = f"r = {r}: error of log time at the largest ε (bound: spread over seeds)"
    note = "Root mean square change with four times the sample and a finer tolerance."
    rows.append(claim_row(title, spread, size, size < spread, note))
    descent = np.log(own["descent_time"].values / times[place])
    descent = descent[np.isfinite(descent)]
    bias, count = float(descent.mean()), len(descent)
    title = f"r = {r}, ε = {float(epsilon[place]):.3g}: log time of SGD less that of the flow"
    note = f"Mean over {count} seeds, rate {_RATE:g}, batch {_BATCH}; the bound is the spread over seeds."
    scatter = sampled(descent).error if count > 1 else None
    return [*rows, Row(title, f"< {spread:.3f}", bias, scatter, abs(bias) < spread, note)]


def _sign_row(own: xarray.Dataset, r: int) -> Row:
    """Seeds by the sign of γ(0): the proof of Thm 11 covers positive ones."""
    slopes = laws.seed_slopes(own["epsilon"].values, own["time"].sel(threshold=_THRESHOLD).values)
    positive = own["signal"].isel(point=0).values > 0
    groups = [slopes[positive], slopes[~positive]]
    title = f"r = {r}: slope where γ(0) < 0 less slope where γ(0) > 0"
    told = f"{positive.sum()} of {len(slopes)} seeds have γ(0) > 0"
    if min(map(len, groups)) < 2:
        return Row(title, 0.0, "too few seeds", note=f"{told}.")
    difference = float(groups[1].mean() - groups[0].mean())
    error = float(np.sqrt(sum(group.var(ddof=1) / len(group) for group in groups)))
    note = (
        f"{told} (slope {groups[0].mean():.3f}); the others are not "
        f"covered by the proof (slope {groups[1].mean():.3f}), but escape too."
    )
    return Row(title, 0.0, difference, error, note=note)


def _draw(data: xarray.Dataset) -> Figure:
    """Above, the times for each number of small layers; below, local slopes, thresholds and looking intervals."""
    title = f"Escape of He-normal tanh networks, depth {data.depth}, width {data.width}, first r layers × ε"
    cases = {r: data.sel(small_layers=r) for r in data.small_layers.values.tolist()}
    above = "ABC"[: len(cases)]
    figure = Figure(title, layout=f"{above:.<3} DEF", size=(15, 8.5))
    for r, own in cases.items():
        _draw_times(figure, own, r)
    local = figure.panel(
        "The windows are not asymptotic", log("ε"), "slope between neighbours", legend_columns=2
    )
    levels = names_axis([f"{level:g}" for level in data.threshold.values], "loss that counts as escaped")
    shifted = figure.panel("Slopes depend on the threshold", levels, "fitted slope less that at 0.02")
    looks = names_axis(list(map(str, _INTERVALS)), "steps between two looks at the loss")
    title, y = "How often one looks matters too (combined errors)", "fitted slope less the published one"
    seldom = figure.panel(title, looks, y)
    shifted.region(None, -_PUBLISHED_SHIFT, _PUBLISHED_SHIFT, "published bound", alpha=0.3)
    seldom.level(y=0, color=INK)
    for place, (r, own) in enumerate(cases.items()):
        color, label, epsilon = _COLORS[r], f"r = {r}", own["epsilon"].values
        times, (slope, error) = own["time"].sel(threshold=_THRESHOLD).values, PUBLISHED[r]
        local.curve(*laws.local_slopes(epsilon, over_seeds(times)), "o-", label, color)
        local.curve(epsilon[[0, -1]], [2 - r] * 2, ":", "", color)
        local.curve(epsilon[[0, -1]], [slope] * 2, "--", "", color)
        # Points of different r stand side by side, so that their error bars can be told apart.
        shifts = [laws.seed_slopes(epsilon, each / times) for each in own["time"].values.transpose(2, 0, 1)]
        beside, errors = np.arange(3) + 0.08 * (place - 1), [sampled(each).error for each in shifts]
        shifted.curve(beside, np.mean(shifts, axis=1), "o", label, color, error=errors)
        fits = [fit(epsilon, over_seeds(checked_times(times, each))) for each in _INTERVALS]
        errors = [np.hypot(error, found.error) for found in fits]
        seldom.curve(beside, [found.slope - slope for found in fits], "o", label, color, error=errors)
    local.legend_entry("--", "published fit")
    local.legend_entry(":", "law 2 - r")
    return figure


def _draw_times(figure: Figure, own: xarray.Dataset, r: int) -> None:
    epsilon, times = own["epsilon"].values, own["time"].sel(threshold=_THRESHOLD).values
    mean, found, (slope, error) = over_seeds(times), _fit(own), PUBLISHED[r]
    x = log("ε", ticks={each: f"{each:.2g}" for each in epsilon[::2]})
    title, y = f"r = {r}: time until loss < {_THRESHOLD:g}", log("escape time, learning rate × steps")
    panel = figure.panel(title, x, y, legend="lower left")
    positive = own["signal"].isel(point=0).values > 0
    for place, (column, sign) in enumerate(zip(times.T, positive, strict=True)):
        shift = 1.02 ** (place - (len(positive) - 1) / 2)
        panel.curve(epsilon * shift, column, "o", "", _COLORS[r], hollow=not sign)
    centre = np.exp(np.log(epsilon).mean()), np.exp(np.log(mean).mean())
    panel.curve(epsilon, found.times(epsilon), "-", f"fit {found.slope:.2f} ± {found.error:.2f}", INK)
    line = centre[1] * (epsilon / centre[0]) ** slope
    panel.curve(epsilon, line, "--", f"published {slope} ± {error}", INK)
    panel.curve(epsilon, mean[0] * (epsilon / epsilon[0]) ** (2 - r), ":", f"law {2 - r}", FAINT)
    descent = own["descent_time"].values
    there = np.full(len(descent), epsilon[int(own["descent_point"])])
    panel.curve(there, descent, "x", f"SGD, rate {_RATE:g}, batch {_BATCH}", INK, size=8)
    panel.legend_entry("o", "flow, γ(0) > 0", _COLORS[r])
    panel.legend_entry("o", "flow, γ(0) < 0", _COLORS[r], hollow=True)
