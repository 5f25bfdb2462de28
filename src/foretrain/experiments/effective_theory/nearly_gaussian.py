"""Nearly-Gaussian laws: correlators from the couplings of an action, to first order, and where that breaks down.

One variable with a quartic coupling g is integrated exactly and put beside (1.73), (1.74), (1.78): what first order
leaves out must fall by four when g is halved. Three variables with a tensor coupling are sampled. Further orders are
an asymptotic series: they help at first, then ruin any accuracy. With couplings of order epsilon and epsilon^2,
cumulants of order 2m are of order epsilon^(m-1) (1.83).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import decorrelated, judge
from foretrain.experiments.judgements import computed_row, judgement_rows
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.gaussian import cumulants
from foretrain.gaussian.action import EvenAction, QuarticAction
from foretrain.support.answers import BLUE, FAINT, INK, ORANGE, Axis, Figure, log, names_axis
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import FloatArray

_QUANTITIES = ("Z / sqrt(2πK)", "two-point", "connected four-point / -g")
_HALVED = 2.0 ** -np.arange(1.0, 9.0)  # couplings in units of the first
_SERIES = (0.1, 0.2, 1.0)
_ORDERS = 24
_EPSILONS = np.array([0.0025, 0.005, 0.01, 0.02, 0.04])
_BATCHES = 200
_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
_FOURS = ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 2), (1, 1, 1, 1), (1, 1, 2, 2), (2, 2, 2, 2))
_STRENGTH = 0.02  # of the coupling of three variables that is sampled
_WEAK = 0.002  # and of the one that is halved
_TENTH = 0.1  # the error at which first order counts as broken


@dataclass(frozen=True)
class Plan:
    """How many samples are drawn."""

    draws: int


PLANS = plans(quick=Plan(8_000_000), paper=Plan(100_000_000))


def nearly_gaussian(plan: Plan, seed: int) -> Result:
    """First-order correlators against exact integrals and samples, and the range in which they hold."""
    found = []  # exact kappa_2, kappa_4, kappa_6 with a quartic coupling epsilon and a sextic one epsilon^2
    for epsilon in _EPSILONS:
        action = EvenAction([[1.0]], {4: epsilon, 6: np.full((1,) * 6, epsilon**2)})
        found.append(cumulants.even_cumulants_from_moments(exact_moments(action, (2, 4, 6))))
    places = {"epsilon": _EPSILONS, "points": [2, 4, 6]}
    hierarchy = xr.Dataset({"cumulant": (("epsilon", "points"), np.abs(np.array(found)))}, places)
    data = xr.merge([_one_variable(), _series(), hierarchy, _correlators(plan.draws, seed)])
    # The coupling at which the first order of the connected four-point is wrong by a tenth of the exact value.
    one = data.sel(quantity=_QUANTITIES[2])
    wrong = np.abs(one.first_order / one.exact - 1).values
    broken = float(np.exp(np.interp(np.log(_TENTH), np.log(wrong), np.log(data.coupling.values))))
    title = f"g at which first order is wrong by a tenth: {_QUANTITIES[2]}"
    last = Row(title, "none published", broken)
    errors = []  # from exact correlators back to the coupling: the error is of second order
    for g in _HALVED[-2:]:
        moments = exact_moments(QuarticAction([[1.0]], g), (2, 4))
        second, fourth = cumulants.even_cumulants_from_moments(moments)
        inverse = QuarticAction.from_correlators([[second]], np.full((1,) * 4, fourth))
        errors.append(abs(inverse.coupling.item() - g))
    title = "coupling from measured correlators: power of g in the error"
    back = computed_row(title, 2.0, math.log2(errors[0] / errors[1]), 0.1)
    rows = (*_power_rows(data), *_sample_rows(data), back, last)
    good = all(row.agrees is not False for row in rows)
    verdict = (
        f"First-order correlators {'agree' if good else 'do NOT agree'} with exact integrals and samples up to "
        f"errors of second order; the connected four-point is wrong by a tenth at a coupling of g K² = {broken:.2g}, "
        f"and at g = {_SERIES[-1]:g} no order of the series is better than "
        f"{float(data.series_error.sel(series_coupling=_SERIES[-1]).min()):.1g}."
    )
    return Result(verdict, rows, data, _figure)


def exact_moments(action: EvenAction, orders: tuple[int, ...]) -> list[float]:
    """E[z^order] of one variable under exp(-S) itself."""
    return [exact_moment(action, (0,) * order) for order in orders]


def exact_moment(action: EvenAction, indices: tuple[int, ...]) -> float:
    """E[z_a z_b ..] under exp(-S) itself."""
    return float(action.exact_expectation(lambda z: z[:, list(indices)].prod(axis=1)))


def partition_ratio(coupling: float) -> float:
    """Z / sqrt(2 pi) of S = z^2 / 2 + g z^4 / 24, with a = 3 / 4g: e^a K_1/4(a) sqrt(a / 2 pi) 2."""
    from scipy.special import kve

    a = 3 / (4 * coupling)
    return float(kve(0.25, a) * math.sqrt(2 * a / math.pi))


def _one_variable() -> xr.Dataset:
    """Exact and first-order Z, two-point and connected four-point of K = 1 against the coupling."""
    couplings = np.concatenate([_HALVED[::-1], [1.0, 2.0, 4.0]])
    exact, first = [], []
    for g in track(couplings, "couplings"):
        action = QuarticAction([[1.0]], g)
        second, fourth = cumulants.even_cumulants_from_moments(exact_moments(action, (2, 4)))
        exact.append([partition_ratio(g), second, -fourth / g])
        connected = -float(action.connected_four_point().item()) / g
        first.append([action.partition_ratio(), float(action.two_point().item()), connected])
    dims = ("coupling", "quantity")
    return xr.Dataset(
        {"exact": (dims, np.array(exact)), "first_order": (dims, np.array(first))},
        coords={"coupling": couplings, "quantity": list(_QUANTITIES)},
    )


def _power_rows(data: xr.Dataset) -> list[Row]:
    """Powers between the two smallest couplings, and the order at which the series of Z is best."""
    rows, error = [], np.abs(data.exact - data.first_order)
    for quantity in _QUANTITIES:  # the next order of the error is of the size of the coupling
        order = 2.0 if quantity != _QUANTITIES[2] else 1.0  # the last was divided by g
        low, high = error.sel(quantity=quantity).values[:2]
        title = f"{quantity}: power of g that first order leaves"
        rows.append(computed_row(title, order, math.log2(high / low), 10 * data.coupling.values[1]))
    for points in data.points.values:
        low, high = data.cumulant.sel(points=points).values[:2]
        title = f"power of ε in the cumulant of {points} points"
        rows.append(computed_row(title, points / 2 - 1.0, math.log2(high / low), 20 * _EPSILONS[1]))
    for g in _SERIES:  # terms shrink until k ~ 3 / 2g; there the series is best
        best = int(np.argmin(data.series_error.sel(series_coupling=g).values))
        expected = 3 / (2 * g)
        title = f"order at which the series of Z is best, g = {g:g} (3 / 2g)"
        rows.append(Row(title, expected, best, agrees=bool(abs(best - expected) <= 1)))
    return rows


def _series() -> xr.Dataset:
    """Relative error of Z = sum_k (-g/24)^k (4k-1)!! / k! cut off at each order."""
    orders = np.arange(_ORDERS + 1)
    odd = np.array([math.prod(range(4 * k - 1, 0, -2)) / math.factorial(k) for k in orders])
    errors = [np.abs(np.cumsum((-g / 24) ** orders * odd) / partition_ratio(g) - 1) for g in _SERIES]
    return xr.Dataset(
        {"series_error": (("series_coupling", "order"), np.stack(errors))},
        coords={"series_coupling": list(_SERIES), "order": orders},
    )


def _example(strength: float) -> QuarticAction:
    """Three variables with a positive coupling that mixes all of them."""
    K = np.array([[1.0, 0.5, -0.2], [0.5, 0.8, 0.1], [-0.2, 0.1, 0.6]])
    directions = np.array([[1.0, 0.3, 0.0], [0.2, 1.0, -0.5], [0.0, 0.6, 1.0]])
    return QuarticAction(K, strength * np.einsum("na,nb,nc,nd->abcd", *(directions,) * 4))


def _correlators(draws: int, seed: Seed) -> xr.Dataset:
    """Two-points and connected four-points of three variables: exact, first order, and from accepted samples."""
    action = _example(_STRENGTH)
    labels, exact, first, gaussian = _exact_correlators(action)
    # The same in each of some batches; Gaussian draws are accepted with probability exp(-V z^4 / 24).
    source, root, found = generator(seed), np.linalg.cholesky(action.K), []
    for _ in track(range(_BATCHES), "samples"):
        z = source.normal(size=(draws // _BATCHES, 3)) @ root.T
        extra = action.value(z) - 0.5 * np.einsum("pi,ij,pj->p", z, np.linalg.inv(action.K), z)
        kept = z[source.random(len(z)) < np.exp(-extra)]
        two = kept.T @ kept / len(kept)
        four = []
        for a, b, c, d in _FOURS:
            product = two[a, b] * two[c, d] + two[a, c] * two[b, d] + two[a, d] * two[b, c]
            four.append(float((kept[:, a] * kept[:, b] * kept[:, c] * kept[:, d]).mean() - product))
        found.append([*(two[pair] for pair in _PAIRS), *four])
    values = np.array(found)
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(_BATCHES)
    score = (mean - exact) / error
    columns = {"sampled": mean, "standard_error": error, "integrated": exact, "perturbed": first}
    columns |= {"gaussian": gaussian, "z": score}
    data = xr.Dataset({name: ("correlator", column) for name, column in columns.items()})
    independent = decorrelated(score, np.cov(values.T), _BATCHES - 1)
    return data.assign(independent=("direction", independent)).assign_coords(correlator=labels)


def _exact_correlators(action: QuarticAction) -> tuple[list[str], FloatArray, FloatArray, FloatArray]:
    """Labels, and correlators by integration, to first order and without a coupling."""
    moment = cache(partial(exact_moment, action))
    labels = ["".join(str(i + 1) for i in indices) for indices in (*_PAIRS, *_FOURS)]
    four = [float(cumulants.joint_cumulant(moment, indices, even=True)) for indices in _FOURS]
    exact = np.array([*map(moment, _PAIRS), *four])
    two, connected = action.two_point(), action.connected_four_point()
    first = np.array([*(two[pair] for pair in _PAIRS), *(connected[indices] for indices in _FOURS)])
    gaussian = np.array([*(action.K[pair] for pair in _PAIRS), *np.zeros(len(_FOURS))])
    return labels, exact, first, gaussian


def _sample_rows(data: xr.Dataset) -> list[Row]:
    """Samples against exact integrals, and first order against them with a coupling that is halved."""
    judgement = judge([(data.z.values, data.independent.values)])
    rows = judgement_rows(judgement, "combinations of sampled correlators")
    for label in ("11", "12", "1111", "1122"):
        one = data.sel(correlator=label)
        exact, first = float(one.integrated), float(one.perturbed)
        title = f"three variables: {'two-point' if len(label) == 2 else 'connected'} {label}"
        rows.append(Row(f"{title}, samples", exact, float(one.sampled), float(one.standard_error)))
        rows.append(Row(f"{title}, first order (no coupling: {float(one.gaussian):.4g})", exact, first))
    errors = []
    for strength in (_WEAK, _WEAK / 2):
        _, integrated, perturbed, _ = _exact_correlators(_example(strength))
        errors.append(np.abs(integrated - perturbed))
    fall = errors[0] / errors[1]
    worst = fall[np.argmax(np.abs(fall - 4))]
    title = f"three variables: error of first order falls per halving, {fall.size} correlators"
    return [*rows, computed_row(f"{title} (the least like 4)", 4.0, worst, 0.2)]


def _figure(data: xr.Dataset) -> Figure:
    title = "Nearly-Gaussian laws: first order in the couplings, and its limits"
    figure, g = Figure(title, columns=3, size=(16, 9)), data.coupling.values
    title = "exact (points) and first order (dashed)"
    values = figure.panel(title, x=log("coupling g (K = 1)"), y=Axis("value", low=0, high=1.15))
    title = "what first order leaves out; grey: a tenth"
    errors = figure.panel(title, x=log("coupling g"), y=log("relative error of first order"))
    for quantity, one, color in coloured(data, "quantity"):
        values.curve(g, one.exact, "o-", quantity, color, size=4)
        values.curve(g, one.first_order, "--", "", color, width=1)
        errors.curve(g, np.abs(one.first_order / one.exact - 1), "o-", "", color, size=4)
    errors.curve(g[:6], 0.05 * g[:6] ** 2, ":", r"$\propto g^2$", INK, width=1.2)
    errors.curve(g[:6], 5 * g[:6], "-.", r"$\propto g$", INK, width=1.2)
    errors.level(y=_TENTH)
    title = "the series is asymptotic: more orders, then ruin"
    panel = figure.panel(title, x="last order of g kept", y=log("relative error of Z", 1e-14, 1e6))
    for coupling, one, color in coloured(data, "series_coupling"):
        panel.curve(data.order, one.series_error, "o-", f"g = {coupling:g}", color, size=4)
    epsilon, title = data.epsilon.values, r"hierarchy (1.83): dashed $\epsilon^{m-1}$"
    across = log("ε (couplings ε, ε²)", ticks=epsilon)
    panel = figure.panel(title, x=across, y=log("size of the cumulant"))
    for points, one, color in coloured(data, "points"):
        sizes = one.cumulant.values
        panel.curve(epsilon, sizes, "o", f"|κ| of {points} points", color)
        panel.curve(epsilon, sizes[0] * (epsilon / epsilon[0]) ** (points / 2 - 1), "--", "", color, width=1)
    _add_samples(figure, data.isel(correlator=slice(0, len(_PAIRS))), "two-points of three variables")
    _add_samples(figure, data.isel(correlator=slice(len(_PAIRS), None)), "connected four-points")
    return figure


def _add_samples(figure: Figure, data: xr.Dataset, title: str) -> None:
    panel = figure.panel(title, x=names_axis(data.correlator.values, "variables"), y="correlator")
    place = np.arange(data.sizes["correlator"])
    for values, label, color in (
        (data.gaussian, "Gaussian", FAINT),
        (data.perturbed, "first order", ORANGE),
        (data.integrated, "exact", INK),
    ):
        panel.curve(place, values, "_", label, color, size=22)
    panel.curve(place, data.sampled, "o", "samples", BLUE, error=data.standard_error, size=4)
