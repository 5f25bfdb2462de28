"""Nearly-Gaussian laws: correlators from the couplings of an action, to first order, and where that breaks down.

One variable with a quartic coupling g is integrated exactly and put beside (1.73), (1.74), (1.78): what first order
leaves out must fall by four when g is halved. Three variables with a tensor coupling are sampled. Further orders are
an asymptotic series: they help at first, then ruin any accuracy. With couplings of order epsilon and epsilon^2,
cumulants of order 2m are of order epsilon^(m-1) (1.83).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import decorrelated, judge
from foretrain.experiments.effective_theory.nearly_gaussian.drawing import draw
from foretrain.experiments.judgements import judgement_rows
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.gaussian import cumulants
from foretrain.gaussian.action import EvenAction, QuarticAction
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

QUANTITIES = ("Z / sqrt(2πK)", "two-point", "connected four-point / -g")
_HALVED = 2.0 ** -np.arange(1.0, 9.0)  # couplings in units of the first
_SERIES = (0.1, 0.2, 1.0)
_ORDERS = 24
_EPSILONS = np.array([0.0025, 0.005, 0.01, 0.02, 0.04])
_BATCHES = 200
_STRENGTH = 0.02  # of the coupling of three variables that is sampled
_WEAK = 0.002  # and of the one that is halved
_TENTH = 0.1  # the error at which first order counts as broken


@dataclass(frozen=True)
class Plan:
    """How many samples are drawn."""

    draws: int


PLANS: Mapping[Scale, Plan] = {Scale.QUICK: Plan(8_000_000), Scale.PAPER: Plan(100_000_000)}


def nearly_gaussian(plan: Plan, seed: int) -> Result:
    """First-order correlators against exact integrals and samples, and the range in which they hold."""
    import xarray

    sampled = _sampled(plan.draws, seed)
    data = xarray.merge([_one_variable(), _series(), _hierarchy(), sampled])
    broken = _broken(data)
    rows = (
        *_order_rows(data),
        *_hierarchy_rows(data),
        *_series_rows(data),
        *_sample_rows(data),
        *_inverse_rows(),
        Row(f"g at which first order is wrong by a tenth: {QUANTITIES[2]}", "none published", broken),
    )
    good = all(row.agrees is not False for row in rows)
    verdict = (
        f"First-order correlators {'agree' if good else 'do NOT agree'} with exact integrals and samples up to "
        f"errors of second order; the connected four-point is wrong by a tenth at a coupling of g K² = {broken:.2g}, "
        f"and at g = {_SERIES[-1]:g} no order of the series is better than "
        f"{float(data.series_error.sel(series_coupling=_SERIES[-1]).min()):.1g}."
    )
    return Result(verdict, rows, data, partial(draw, data))


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


def _one_variable() -> xarray.Dataset:
    """Exact and first-order Z, two-point and connected four-point of K = 1 against the coupling."""
    import xarray

    couplings = np.concatenate([_HALVED[::-1], [1.0, 2.0, 4.0]])
    exact, first = [], []
    for g in track(couplings, "couplings"):
        action = QuarticAction([[1.0]], g)
        second, fourth = cumulants.even_cumulants_from_moments(exact_moments(action, (2, 4)))
        exact.append([partition_ratio(g), second, -fourth / g])
        connected = -float(action.connected_four_point().item()) / g
        first.append([action.partition_ratio(), float(action.two_point().item()), connected])
    return xarray.Dataset(
        {
            "exact": (("coupling", "quantity"), np.array(exact)),
            "first_order": (("coupling", "quantity"), np.array(first)),
        },
        coords={"coupling": couplings, "quantity": list(QUANTITIES)},
    )


def _order_rows(data: xarray.Dataset) -> list[Row]:
    """The error at the smallest coupling against that at twice it; its next order is of the size of the coupling."""
    error = np.abs(data.exact - data.first_order)
    g = data.coupling.values
    rows = []
    for quantity in QUANTITIES:
        order = 2.0 if quantity != QUANTITIES[2] else 1.0  # the last was divided by g
        low, high = (float(error.sel(quantity=quantity, coupling=value)) for value in g[:2])
        power = math.log2(high / low)
        rows.append(
            Row(
                f"{quantity}: power of g that first order leaves",
                order,
                power,
                agrees=bool(abs(power - order) < 10 * g[1]),
            )
        )
    return rows


def _broken(data: xarray.Dataset) -> float:
    """The coupling at which the first order of the connected four-point is wrong by a tenth of the exact value."""
    one = data.sel(quantity=QUANTITIES[2])
    wrong = np.abs(one.first_order / one.exact - 1).values
    return float(np.exp(np.interp(np.log(_TENTH), np.log(wrong), np.log(data.coupling.values))))


def _series() -> xarray.Dataset:
    """Relative error of Z = sum_k (-g/24)^k (4k-1)!! / k! cut off at each order."""
    import xarray

    orders = np.arange(_ORDERS + 1)
    odd = np.array([math.prod(range(4 * k - 1, 0, -2)) / math.factorial(k) for k in orders])
    errors = [np.abs(np.cumsum((-g / 24) ** orders * odd) / partition_ratio(g) - 1) for g in _SERIES]
    return xarray.Dataset(
        {"series_error": (("series_coupling", "order"), np.stack(errors))},
        coords={"series_coupling": list(_SERIES), "order": orders},
    )


def _series_rows(data: xarray.Dataset) -> list[Row]:
    """Terms shrink until k ~ 3 / 2g; there the series is best."""
    rows = []
    for g in _SERIES:
        best = int(np.argmin(data.series_error.sel(series_coupling=g).values))
        expected = 3 / (2 * g)
        title = f"order at which the series of Z is best, g = {g:g} (3 / 2g)"
        rows.append(Row(title, expected, best, agrees=bool(abs(best - expected) <= 1)))
    return rows


def _hierarchy() -> xarray.Dataset:
    """Exact kappa_2, kappa_4, kappa_6 with a quartic coupling epsilon and a sextic one epsilon^2."""
    import xarray

    found = []
    for epsilon in _EPSILONS:
        action = EvenAction([[1.0]], {4: epsilon, 6: np.full((1,) * 6, epsilon**2)})
        found.append(cumulants.even_cumulants_from_moments(exact_moments(action, (2, 4, 6))))
    return xarray.Dataset(
        {"cumulant": (("epsilon", "points"), np.abs(np.array(found)))},
        coords={"epsilon": _EPSILONS, "points": [2, 4, 6]},
    )


def _hierarchy_rows(data: xarray.Dataset) -> list[Row]:
    rows = []
    for points in data.points.values:
        low, high = data.cumulant.sel(points=points).values[:2]
        power = math.log2(high / low)
        expected = points / 2 - 1.0
        agrees = abs(power - expected) < 20 * _EPSILONS[1]
        rows.append(
            Row(f"power of ε in the cumulant of {points} points", expected, power, agrees=bool(agrees))
        )
    return rows


def _example(strength: float) -> QuarticAction:
    """Three variables with a positive coupling that mixes all of them."""
    K = np.array([[1.0, 0.5, -0.2], [0.5, 0.8, 0.1], [-0.2, 0.1, 0.6]])
    directions = np.array([[1.0, 0.3, 0.0], [0.2, 1.0, -0.5], [0.0, 0.6, 1.0]])
    return QuarticAction(K, strength * np.einsum("na,nb,nc,nd->abcd", *(directions,) * 4))


def _sampled(draws: int, seed: Seed) -> xarray.Dataset:
    """Two-points and connected four-points of three variables: exact, first order, and from accepted samples."""
    import xarray

    action = _example(_STRENGTH)
    labels, exact, first, gaussian = _exact_correlators(action)
    values = _sample_correlators(action, draws, seed)
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(_BATCHES)
    return xarray.Dataset(
        {
            "sampled": ("correlator", mean),
            "standard_error": ("correlator", error),
            "integrated": ("correlator", exact),
            "perturbed": ("correlator", first),
            "gaussian": ("correlator", gaussian),
            "z": ("correlator", score := (mean - exact) / error),
            "independent": ("direction", decorrelated(score, np.cov(values.T), _BATCHES - 1)),
        },
        coords={"correlator": labels},
    )


_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
_FOURS = ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 2), (1, 1, 1, 1), (1, 1, 2, 2), (2, 2, 2, 2))


def _exact_correlators(action: QuarticAction) -> tuple[list[str], Array, Array, Array]:
    """Labels, and correlators by integration, to first order and without a coupling."""
    moment = cache(partial(exact_moment, action))
    labels = ["".join(str(i + 1) for i in indices) for indices in (*_PAIRS, *_FOURS)]
    four = [float(cumulants.joint_cumulant(moment, indices, even=True)) for indices in _FOURS]
    exact = np.array([*map(moment, _PAIRS), *four])
    two, connected = action.two_point(), action.connected_four_point()
    first = np.array([*(two[pair] for pair in _PAIRS), *(connected[indices] for indices in _FOURS)])
    gaussian = np.array([*(action.K[pair] for pair in _PAIRS), *np.zeros(len(_FOURS))])
    return labels, exact, first, gaussian


def _sample_correlators(action: QuarticAction, draws: int, seed: Seed) -> Array:
    """The same correlators in each of some batches; Gaussian draws are accepted with probability exp(-V z^4 / 24)."""
    source, root = generator(seed), np.linalg.cholesky(action.K)
    found = []
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
    return np.array(found)


def _sample_rows(data: xarray.Dataset) -> list[Row]:
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
    title = f"three variables: error of first order falls per halving, {fall.size} correlators"
    worst = float(fall[np.argmax(np.abs(fall - 4))])
    return [*rows, Row(f"{title} (the least like 4)", 4.0, worst, agrees=abs(worst - 4) < 0.2)]


def _inverse_rows() -> list[Row]:
    """From exact correlators back to the coupling: the error is of second order."""
    errors = []
    for g in _HALVED[-2:]:
        second, fourth = cumulants.even_cumulants_from_moments(
            exact_moments(QuarticAction([[1.0]], g), (2, 4))
        )
        found = QuarticAction.from_correlators([[second]], np.full((1,) * 4, fourth))
        errors.append(abs(found.coupling.item() - g))
    power = math.log2(errors[0] / errors[1])
    title = "coupling from measured correlators: power of g in the error"
    return [Row(title, 2.0, power, agrees=abs(power - 2) < 0.1)]
