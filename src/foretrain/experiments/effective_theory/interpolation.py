"""Between and beyond two training inputs: how trained networks bend the line through their targets (section 10.3.2).

Deep linear networks answer with the straight line (10.104), each of them and at any width. Smooth activations bend it
by the curvature of the tangent kernel: the expansion in the distance of the inputs is put beside the exact answer,
corrected and as printed (10.117). Real tanh networks are trained on two inputs, and their mean answer along the line
is extrapolated to infinite width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from foretrain.experiments.judgements import computed_row, measured_row
from foretrain.experiments.pictures import draw_guide
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, GREEN, INK, ORANGE, RED, Axis, Figure, log
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction.infinite_width import (
    expanded_mean_as_printed,
    expanded_prediction,
    on_the_line,
    output_kernels,
    tangent_series,
)

if TYPE_CHECKING:
    from foretrain.compare.trained import TrainedComparison


_MIDDLE = np.array([1.0, 0.3, -0.5])
_APART = {"unequal norms": np.array([0.2, 1.0, 0.3]), "equal norms": np.array([0.2, 1.0, 1.0])}
_PUBLISHED = {  # per unit of the distance, unequal norms
    "Θ_00": ("middle", 1.068533059, 5e-10),
    "δΘ_[1]": ("first", 0.0427432, 1e-6),  # from differences of kernels
    "δδΘ_[0]": ("mean", -0.1316000, 1e-6),
    "δδΘ_[2]": ("distance", 0.1624190, 1e-6),
    "cubic coefficient e": ("cubic", -0.0091102, 1e-6),
}
_DISTANCES = 0.4 * 0.5 ** np.arange(5.0)
_PLACES = np.array([-0.5, 0.25, 0.5, 1.5])
_POWER_ERROR = 0.15  # of powers between the two smallest distances: the next order is as small as they
_TRAINED_PLACES = np.array([-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5])  # on the line, at distance one
_ASKED = _TRAINED_PLACES[(_TRAINED_PLACES != 0) & (_TRAINED_PLACES != 1)]
_TARGETS = (0.9, 0.4)


@dataclass(frozen=True)
class Plan:
    """How many tanh and linear networks of which widths are trained."""

    draws: int
    linear_draws: int
    widths: tuple[int, ...] = (32, 64, 128)
    linear_width: int = 4


PLANS = plans(quick=Plan(800, 20), paper=Plan(20_000, 200))


def interpolation(plan: Plan, seed: int) -> Result:
    """Straight lines of linear networks, bent ones of smooth networks: expansion, exact, and trained."""
    from foretrain.compare.trained import compare_trained

    smooth, linear = spawn(seed, 2)
    (train, tests), targets = _line(_ASKED), np.array(_TARGETS)[:, None]
    mlp, how = _network(plan.widths[0]), {"widths": plan.widths, "draws": plan.draws}
    found = compare_trained(mlp, train, targets, tests, seed=smooth, **how)  # type: ignore[arg-type]
    data = xr.merge([_expansions(), _train_linear(plan, linear), _trained_table(found)])
    series = tangent_series(_network(), _MIDDLE, _apart("unequal norms", 1.0))
    rows = [
        computed_row(f"tanh, L = 3: {name}", value, float(getattr(series, key)), 1.01 * digits)
        for name, (key, value, digits) in _PUBLISHED.items()
    ]
    rows += _power_rows(data)
    title = f"{plan.linear_draws} linear networks, L = 4, width {plan.linear_width}, trained"
    note = "(10.104), exact for each network; training stops at a relative error of 1e-8"
    furthest = float(data.straight_error.max())
    rows.append(computed_row(f"{title}: distance from the line", 0.0, furthest, 1e-5, note))
    judgement = found.judgement
    title = "tanh networks trained on two inputs: rms z of means and variances (bound)"
    rows.append(Row(title, judgement.rms_bound, judgement.rms, agrees=bool(found.agrees)))
    for s, place in zip(_ASKED, np.flatnonzero(found.of("mean")), strict=True):
        straight = s * _TARGETS[0] + (1 - s) * _TARGETS[1]
        theory, limit, error = found.theory[place], found.limit[place], found.standard_error[place]
        title = f"trained tanh networks: bend at s = {s:g}"
        rows.append(measured_row(title, theory - straight, limit - straight, error, judgement.bound))
    good = [row.agrees for row in rows if not row.disputed]
    verdict = (
        f"Linear networks answer with the straight line to {furthest:.0e}; the corrected "
        f"expansion and trained tanh networks {'agree' if False not in good else 'do NOT agree'} "
        "with the exact bend, of which (10.117) as printed has four times as much."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _network(width: int = 1) -> MLP:
    return MLP("tanh", 3, width, n_in=3, C_b=0.1, C_W=1.3, lambda_b=0.2, lambda_W=0.8)


def _apart(norms: str, distance: float) -> FloatArray:
    """Equal norms: at right angles to the middle."""
    direction = _APART[norms]
    if norms == "equal norms":
        direction = direction - direction @ _MIDDLE / (_MIDDLE @ _MIDDLE) * _MIDDLE
    return distance * direction


def _pair(gap: FloatArray) -> tuple[FloatArray, FloatArray]:
    return _MIDDLE + gap / 2, _MIDDLE - gap / 2


def _expansions() -> xr.Dataset:
    """Largest errors of the expansion and of the straight line, and the largest variance, against the distance."""
    names = ("corrected", "printed", "straight", "variance")
    found, middle = np.full((len(_APART), len(names), len(_DISTANCES)), np.nan), sum(_TARGETS) / 2
    for row, norms in enumerate(_APART):
        for column, distance in enumerate(_DISTANCES):
            # Targets differ by what is of the order of the distance, as the expansion supposes.
            half = distance * (_TARGETS[0] - _TARGETS[1]) / 2
            gap, targets = _apart(norms, distance), (middle + half, middle - half)
            exact = on_the_line(_network(), *_pair(gap), *targets, _PLACES)
            assert exact.variance is not None
            mean, series = exact.mean.values[:, 0], tangent_series(_network(), _MIDDLE, gap)
            straight = _PLACES * targets[0] + (1 - _PLACES) * targets[1]
            answers = [
                expanded_prediction(series, _PLACES, *targets),
                expanded_mean_as_printed(series, _PLACES, *targets),
                straight,
            ]
            found[row, :3, column] = [np.abs(each - mean).max() for each in answers]
            found[row, 3, column] = exact.variance.values.max()
    return xr.Dataset(
        {name: (("norms", "distance"), found[:, place]) for place, name in enumerate(names)},
        coords={"norms": list(_APART), "distance": _DISTANCES},
    )


def _power(values: xr.DataArray) -> float:
    """Of the distance, between the two smallest ones."""
    return float(np.log2(values[-2] / values[-1]))


def _power_rows(data: xr.Dataset) -> list[Row]:
    """The expansion is to second order: what it leaves is of third."""
    rows = []
    for norms in data.norms.values:
        one, title = data.sel(norms=norms), f"tanh, {norms}: power of the distance"
        rows.append(computed_row(f"{title} in the bend", 2.0, _power(one.straight), _POWER_ERROR))
        title = f"{title} left by the corrected expansion"
        rows.append(computed_row(title, 3.0, _power(one.corrected), _POWER_ERROR))
    one, title = data.sel(norms="equal norms"), "tanh, equal norms: power of the distance"
    note = "its prefactor 4 s (1 - s) should be s (1 - s): three times the bend is left, of second order"
    printed = f"{title} left by (10.117) as printed"
    rows.append(computed_row(printed, 3.0, _power(one.printed), _POWER_ERROR, note, disputed=True))
    note = "(10.116) claims the third order at least; the exact covariance has the fourth"
    return [*rows, computed_row(f"{title} in the variance", 4.0, _power(one.variance), _POWER_ERROR, note)]


def _line(places: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Training inputs x_+ and x_-, and inputs at these places of the line through them."""
    train = np.stack(_pair(_apart("unequal norms", 1.0)))
    return train, places[:, None] * train[0] + (1 - places[:, None]) * train[1]


def _train_linear(plan: Plan, seed: Seed) -> xr.Dataset:
    """Distance of narrow deep linear networks, really trained, from the straight line: (networks,)."""
    from foretrain.compare.trained import Training, train_ensemble

    mlp = MLP("linear", 4, plan.linear_width, n_in=3, C_b=0.1, C_W=1.0, lambda_b=0.2, lambda_W=0.8)
    train, tests = _line(_TRAINED_PLACES)
    largest = float(np.linalg.eigvalsh(output_kernels(mlp, train).Theta_train)[-1])
    training = Training(np.array(_TARGETS)[:, None], 0.3 / largest)
    ensemble = train_ensemble(mlp, train, tests, training, plan.linear_draws, seed=seed)
    straight = _TRAINED_PLACES * _TARGETS[0] + (1 - _TRAINED_PLACES) * _TARGETS[1]
    error = np.abs(ensemble.end[:, len(train) :, 0] - straight).max(axis=1)
    return xr.Dataset({"straight_error": ("linear_network", error)})


def _trained_table(found: TrainedComparison) -> xr.Dataset:
    """Means less the straight line, measured and exact, and the exact ones on a fine grid."""
    fine = np.linspace(-0.7, 1.7, 97)
    pair = _pair(_apart("unequal norms", 1.0))
    places = np.flatnonzero(found.of("mean"))

    def bend(s: FloatArray, mean: FloatArray) -> FloatArray:
        return np.asarray(mean - s * _TARGETS[0] - (1 - s) * _TARGETS[1])

    exact = on_the_line(_network(), *pair, *_TARGETS, fine).mean.values[:, 0]
    series = tangent_series(_network(), _MIDDLE, pair[0] - pair[1])
    return xr.Dataset(
        {
            "trained_bend": ("place", bend(_ASKED, found.limit[places])),
            "trained_error": ("place", found.standard_error[places]),
            "exact_bend": ("fine", bend(fine, exact)),
            "expanded_bend": ("fine", bend(fine, expanded_prediction(series, fine, *_TARGETS))),
            "printed_bend": ("fine", bend(fine, expanded_mean_as_printed(series, fine, *_TARGETS))),
        },
        coords={"place": _ASKED, "fine": fine},
    )


def _figure(data: xr.Dataset) -> Figure:
    figure = Figure("Between and beyond two training inputs", size=(13, 5.2))
    reach = 1.6 * float(np.abs(data.exact_bend).max())
    bend = Axis("mean answer less the straight line", low=-reach, high=reach)
    panel = figure.panel("tanh, L = 3: the tangent kernel bends the answer", x="place s on the line", y=bend)
    panel.level(y=0, label="straight line: linear networks")
    panel.curve(data.fine, data.exact_bend, "-", "infinite width, exact", INK)
    panel.curve(data.fine, data.expanded_bend, "--", "expansion, corrected", BLUE)
    panel.curve(data.fine, data.printed_bend, ":", "expansion as printed (10.117)", RED)
    networks = "trained networks, n → ∞"
    panel.curve(data.place, data.trained_bend, "o", networks, ORANGE, error=data.trained_error)
    panel.curve([0, 1], [0, 0], "s", "", INK, size=7)
    panel.note(0, 0, "$x_-$", align="right", above=True, size=11)
    panel.note(1, 0, "$x_+$", above=True, size=11)
    own, distance = data.sel(norms="equal norms"), data.distance.values
    title = "equal norms: what is left, and its power of the distance"
    x = log("distance of the training inputs", ticks=distance)
    panel = figure.panel(title, x=x, y=log("largest over s"))
    panel.curve(distance, own.straight, "o-", "bend of the exact answer", INK)
    panel.curve(distance, own.printed, "o-", "left by the printed expansion", RED)
    panel.curve(distance, own.corrected, "o-", "left by the corrected expansion", BLUE)
    panel.curve(distance, own.variance, "o-", "variance over networks", GREEN)
    for values, power in ((own.straight, 2), (own.corrected, 3)):
        draw_guide(panel, distance, 0.6 * float(values[0]), power, f"power {power}", -2, above=False)
    return figure
