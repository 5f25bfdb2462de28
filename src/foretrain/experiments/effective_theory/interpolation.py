"""Between and beyond two training inputs: how trained networks bend the line through their targets (section 10.3.2).

Deep linear networks answer with the straight line (10.104), each of them and at any width. Smooth activations bend it
by the curvature of the tangent kernel: the expansion in the distance of the inputs is put beside the exact answer,
corrected and as printed (10.117). Real tanh networks are trained on two inputs, and their mean answer along the line
is extrapolated to infinite width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.judgements import computed_row, measured_row
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.prediction.infinite_width import (
    expanded_mean_as_printed,
    expanded_prediction,
    on_the_line,
    tangent_series,
)

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.compare.trained import TrainedComparison

Array = NDArray[np.float64]

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
_TRAINED_DISTANCE = 1.0
_TRAINED_PLACES = np.array([-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5])
_TARGETS = (0.9, 0.4)


@dataclass(frozen=True)
class Plan:
    """How many tanh and linear networks of which widths are trained."""

    draws: int
    linear_draws: int
    widths: tuple[int, ...] = (32, 64, 128)
    linear_width: int = 4


PLANS: Mapping[Scale, Plan] = {Scale.QUICK: Plan(800, 20), Scale.PAPER: Plan(20_000, 200)}


def interpolation(plan: Plan, seed: int) -> Result:
    """Straight lines of linear networks, bent ones of smooth networks: expansion, exact, and trained."""
    import xarray

    smooth, linear = spawn(seed, 2)
    found, straight = _trained(plan, smooth), _straight(plan, linear)
    data = xarray.merge([_expansions(), straight, _trained_table(found)])
    rows = (*_published_rows(), *_power_rows(data), _straight_row(data, plan), *_trained_rows(found))
    good = [row.agrees for row in rows if not row.disputed]
    verdict = (
        f"Linear networks answer with the straight line to {float(data.straight_error.max()):.0e}; the corrected "
        f"expansion and trained tanh networks {'agree' if False not in good else 'do NOT agree'} "
        "with the exact bend, of which (10.117) as printed has four times as much."
    )
    return Result(verdict, rows, data, partial(_draw, data))


def _network(width: int = 1) -> MLP:
    return MLP("tanh", 3, width, n_in=3, C_b=0.1, C_W=1.3, lambda_b=0.2, lambda_W=0.8)


def _apart(norms: str, distance: float) -> Array:
    """Equal norms: at right angles to the middle."""
    direction = _APART[norms]
    if norms == "equal norms":
        direction = direction - direction @ _MIDDLE / (_MIDDLE @ _MIDDLE) * _MIDDLE
    return distance * direction


def _pair(gap: Array) -> tuple[Array, Array]:
    return _MIDDLE + gap / 2, _MIDDLE - gap / 2


def _targets(distance: float) -> tuple[float, float]:
    """Whose difference is of the order of the distance, as the expansion supposes."""
    mean, half = (_TARGETS[0] + _TARGETS[1]) / 2, (_TARGETS[0] - _TARGETS[1]) / 2
    return mean + distance * half, mean - distance * half


def _expansions() -> xarray.Dataset:
    """Largest errors of the expansion and of the straight line, and the largest variance, against the distance."""
    import xarray

    names = ("corrected", "printed", "straight", "variance")
    found = np.full((len(_APART), len(names), len(_DISTANCES)), np.nan)
    for row, norms in enumerate(_APART):
        for column, distance in enumerate(_DISTANCES):
            gap, targets = _apart(norms, distance), _targets(distance)
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
    return xarray.Dataset(
        {name: (("norms", "distance"), found[:, place]) for place, name in enumerate(names)},
        coords={"norms": list(_APART), "distance": _DISTANCES},
    )


def _published_rows() -> list[Row]:
    series = tangent_series(_network(), _MIDDLE, _apart("unequal norms", 1.0))
    return [
        computed_row(f"tanh, L = 3: {name}", value, float(getattr(series, key)), 1.01 * digits)
        for name, (key, value, digits) in _PUBLISHED.items()
    ]


def _power(values: xarray.DataArray) -> float:
    """Of the distance, between the two smallest ones."""
    return float(np.log2(values[-2] / values[-1]))


def _power_rows(data: xarray.Dataset) -> list[Row]:
    """The expansion is to second order: what it leaves is of third."""
    rows = []
    for norms in data.norms.values:
        one = data.sel(norms=norms)
        title = f"tanh, {norms}: power of the distance"
        rows.append(computed_row(f"{title} in the bend", 2.0, _power(one.straight), _POWER_ERROR))
        rows.append(
            computed_row(f"{title} left by the corrected expansion", 3.0, _power(one.corrected), _POWER_ERROR)
        )
    one = data.sel(norms="equal norms")
    printed = _power(one.printed)
    rows.append(
        Row(
            "tanh, equal norms: power of the distance left by (10.117) as printed",
            3.0,
            printed,
            agrees=abs(printed - 3.0) <= _POWER_ERROR,
            note="its prefactor 4 s (1 - s) should be s (1 - s): three times the bend is left, of second order",
            disputed=True,
        )
    )
    note = "(10.116) claims the third order at least; the exact covariance has the fourth"
    rows.append(
        computed_row(
            "tanh, equal norms: power of the distance in the variance",
            4.0,
            _power(one.variance),
            _POWER_ERROR,
            note,
        )
    )
    return rows


def _straight(plan: Plan, seed: Seed) -> xarray.Dataset:
    """Distance of narrow deep linear networks, really trained, from the straight line: (networks,)."""
    import xarray

    from foretrain.compare.trained import train_ensemble

    mlp = MLP("linear", 4, plan.linear_width, n_in=3, C_b=0.1, C_W=1.0, lambda_b=0.2, lambda_W=0.8)
    train, tests, targets = _line(_apart("unequal norms", _TRAINED_DISTANCE))
    ensemble = train_ensemble(
        mlp, train, tests, _training(mlp, train, targets, 0.3), plan.linear_draws, seed=seed
    )
    straight = _TRAINED_PLACES * targets[0] + (1 - _TRAINED_PLACES) * targets[1]
    error = np.abs(ensemble.end[:, len(train) :, 0] - straight).max(axis=1)
    return xarray.Dataset({"straight_error": ("linear_network", error)})


def _training(mlp: MLP, train: Array, targets: tuple[float, float], rate: float) -> Any:
    """To the end, with a learning rate in units of the largest eigenvalue of Theta."""
    from foretrain.compare.trained import Training
    from foretrain.theory.prediction.infinite_width import output_kernels

    largest = float(np.linalg.eigvalsh(output_kernels(mlp, train).Theta_train)[-1])
    return Training(np.array(targets)[:, None], rate / largest)


def _line(gap: Array) -> tuple[Array, Array, tuple[float, float]]:
    """Training inputs x_+ and x_-, inputs on the line through them, targets."""
    train = np.stack(_pair(gap))
    places = _TRAINED_PLACES[:, None]
    return train, places * train[0] + (1 - places) * train[1], _TARGETS


def _straight_row(data: xarray.Dataset, plan: Plan) -> Row:
    worst = float(data.straight_error.max())
    return Row(
        f"{plan.linear_draws} linear networks, L = 4, width {plan.linear_width}, trained: distance from the line",
        0.0,
        worst,
        agrees=worst < 1e-5,
        note="(10.104), exact for each network; training stops at a relative error of 1e-8",
    )


def _trained(plan: Plan, seed: Seed) -> TrainedComparison:
    from foretrain.compare.trained import compare_trained

    train, tests, targets = _line(_apart("unequal norms", _TRAINED_DISTANCE))
    mlp = _network(plan.widths[0])
    inner = (_TRAINED_PLACES != 0) & (_TRAINED_PLACES != 1)
    return compare_trained(
        mlp,
        train,
        np.array(targets)[:, None],
        tests[inner],
        widths=plan.widths,
        draws=plan.draws,
        seed=seed,
    )


def _trained_rows(found: TrainedComparison) -> list[Row]:
    judgement = found.judgement
    rows = [
        Row(
            "tanh networks trained on two inputs: rms z of means and variances (bound)",
            judgement.rms_bound,
            judgement.rms,
            agrees=bool(found.agrees),
        )
    ]
    inner = _TRAINED_PLACES[(_TRAINED_PLACES != 0) & (_TRAINED_PLACES != 1)]
    for s, place in zip(inner, np.flatnonzero(found.of("mean")), strict=True):
        straight = s * _TARGETS[0] + (1 - s) * _TARGETS[1]
        theory, limit, error = (
            float(values[place]) for values in (found.theory, found.limit, found.standard_error)
        )
        title = f"trained tanh networks: bend at s = {s:g}"
        rows.append(measured_row(title, theory - straight, limit - straight, error, judgement.bound))
    return rows


def _trained_table(found: TrainedComparison) -> xarray.Dataset:
    """Means less the straight line, measured and exact, and the exact ones on a fine grid."""
    import xarray

    fine = np.linspace(-0.7, 1.7, 97)
    pair = _pair(_apart("unequal norms", _TRAINED_DISTANCE))
    places = np.flatnonzero(found.of("mean"))
    inner = _TRAINED_PLACES[(_TRAINED_PLACES != 0) & (_TRAINED_PLACES != 1)]

    def bend(s: Array, mean: Array) -> Array:
        return np.asarray(mean - s * _TARGETS[0] - (1 - s) * _TARGETS[1])

    exact = on_the_line(_network(), *pair, *_TARGETS, fine).mean.values[:, 0]
    series = tangent_series(_network(), _MIDDLE, pair[0] - pair[1])
    return xarray.Dataset(
        {
            "trained_bend": ("place", bend(inner, found.limit[places])),
            "trained_error": ("place", found.standard_error[places]),
            "exact_bend": ("fine", bend(fine, exact)),
            "expanded_bend": ("fine", bend(fine, expanded_prediction(series, fine, *_TARGETS))),
            "printed_bend": ("fine", bend(fine, expanded_mean_as_printed(series, fine, *_TARGETS))),
        },
        coords={"place": inner, "fine": fine},
    )


def _draw(data: xarray.Dataset) -> Figure:
    title = "Between and beyond two training inputs"
    figure, (bends, powers) = new_figure(title, 1, 2, (13, 5.2))
    _draw_bends(bends, data)
    _draw_powers(powers, data.sel(norms="equal norms"))
    return figure


def _draw_bends(panel: Axes, data: xarray.Dataset) -> None:
    panel.axhline(0, color=FAINT, linewidth=1, label="straight line: linear networks")
    for name, style, colour, label in (
        ("exact_bend", "-", INK, "infinite width, exact"),
        ("expanded_bend", "--", PALETTE[0], "expansion, corrected"),
        ("printed_bend", ":", PALETTE[5], "expansion as printed (10.117)"),
    ):
        panel.plot(data.fine, data[name], style, color=colour, linewidth=1.8, label=label)
    panel.errorbar(
        data.place,
        data.trained_bend,
        data.trained_error,
        fmt="o",
        color=PALETTE[1],
        label="trained networks, n → ∞",
    )
    for s, name in ((0.0, "$x_-$"), (1.0, "$x_+$")):
        panel.plot([s], [0], "s", color=INK, markersize=7)
        panel.annotate(name, (s, 0), (6, 8), textcoords="offset points", fontsize=11)
    reach = 1.6 * float(np.abs(data.exact_bend).max())
    panel.set(xlabel="place s on the line", ylabel="mean answer less the straight line", ylim=(-reach, reach))
    panel.set_title("tanh, L = 3: the tangent kernel bends the answer", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_powers(panel: Axes, data: xarray.Dataset) -> None:
    for name, colour, label in (
        ("straight", INK, "bend of the exact answer"),
        ("printed", PALETTE[5], "left by the printed expansion"),
        ("corrected", PALETTE[0], "left by the corrected expansion"),
        ("variance", PALETTE[2], "variance over networks"),
    ):
        panel.loglog(data.distance, data[name], "o-", color=colour, label=label)
    for name, power in (("straight", 2), ("corrected", 3)):
        guide = 0.6 * float(data[name][0]) * (data.distance / data.distance[0]) ** power
        panel.loglog(data.distance, guide, "--", color=FAINT, linewidth=1)
        panel.annotate(f"power {power}", (float(data.distance[-2]), float(guide[-2])), color=FAINT)
    panel.set_xticks(data.distance.values, [f"{value:g}" for value in data.distance.values])
    panel.minorticks_off()
    panel.set(xlabel="distance of the training inputs", ylabel="largest over s")
    panel.set_title("equal norms: what is left, and its power of the distance", fontsize=11)
    panel.legend(frameon=False, fontsize=9)
