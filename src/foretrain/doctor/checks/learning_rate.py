"""Is the learning rate stable, and large enough?

Theory sets the scale: the largest stable rate of the network as it is. But curvature changes within the first steps:
it grows from small weights, and falls again where a loss climbs and comes down in flatter places ("catapult",
Lewkowycz et al. 2020; "edge of stability", Cohen et al. 2021). So a short real training at the given and at the
recommended rate decides how severe a rate is.

Measurements: ``loss`` (rate, step) of short trainings, over coordinates ``rate`` and ``step``; ``final_loss`` over
``tried_rate``, rates around the given one (none where that would take long); at the given rate
``rate_times_curvature`` and its ``limit``; ``largest_rate``, ``recommended``, ``given``; and ``half_time`` (steps at
the given rate until half of the error's energy is gone by linearised descent; nan if not asked for).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from foretrain.doctor.finding import Examination, Finding, Severity, Treatment, counted
from foretrain.doctor.output_kernel import output_kernel
from foretrain.doctor.setup import Case
from foretrain.doctor.short_training import seconds_of_step
from foretrain.doctor.stability import Edge, adaptive_edge, edge, rate_code
from foretrain.doctor.trials import LONG, STEPS, Trial, best_of, constant_loss, trial
from foretrain.support.errors import NotSupportedError

if TYPE_CHECKING:
    import xarray

_SOURCE = "Cohen et al. (2021), section 2: descent is stable while rate x curvature < 2 (1 + momentum)"
_OTHER_SOURCE = "measured: short trainings at several rates"
_ADAPTIVE_SOURCE = f"{_OTHER_SOURCE}; Cohen et al. (2022), section 2: Adam at its own edge of stability"
_FALLS = 0.01  # of the loss: a trial that falls by less has learned nothing
_DONE = 0.05  # of the loss of a constant: a trial that ends below has nothing to complain of
_MUCH_LESS = 0.5  # of what the recommended rate learns in a trial: much slower than it could be
_FAR_ABOVE = 2.0  # times the edge: beyond it a rate that learns less than the recommended one is no accident
_FAR_BELOW = 1 / 15  # of the recommended rate, about 1/30 of the edge
_HARDLY = 0.1  # of what the recommended rate learns in a trial
_LEARNS = 0.2  # of what there is to learn: a rate that takes so much in them is not small
_SLOW = 2000.0  # steps until half of the error is gone: longer than people wait for a first look
_HOPELESS = 2e5
_AROUND = (0.01, 0.1, 1.0, 10.0, 100.0)  # times the given rate
_SECONDS = 2.0  # that trainings at rates around the given one may take, counted
_OTHER_RATES = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)  # of the given, for optimizers without an edge
_LARGER = (10.0, 1e2, 1e3, 1e4, 1e5)  # the smallest that does: what is too large shows late


def check(case: Case) -> Examination:
    """Weigh the given rate against the edge of stability and against a short training at a better one."""
    return _descent(case, edge(case)) if case.recipe.is_descent else _other(case)


def _descent(case: Case, found: Edge) -> Examination:
    best_rate, best = found.best
    same = abs(np.log(best_rate / found.rate)) < 0.05
    given = best if same else trial(case.setup, best.steps)
    half = np.nan
    if case.recipe.chosen:
        finding = _good(
            found, best, f"No optimizer was given: plain descent at rate {best_rate:.3g} suits this network."
        )
    elif not same and _too_large(case, given, best, found) and not _is_done(case, given):
        finding = _above(case, found, given, best)
    elif (
        not _is_done(case, given)
        and found.rate < _FAR_BELOW * best_rate
        and given.drop < _HARDLY * best.drop
        and best.drop > 0
    ):
        try:  # by linearised descent; where there is no kernel, by the slope of the trial
            half = output_kernel(case).forecast.steps_until(0.5)
        except NotSupportedError:
            half = given.steps * given.start / (2 * given.drop) if given.drop > 0 else float("inf")
        finding = _below(case, found, given, best, half)
    elif found.ratio > 1:
        finding = Finding(
            Severity.NOTE,
            f"The learning rate {found.rate:.3g} is {found.ratio:.3g} times the largest stable one, and yet it "
            "works.",
            f"Rate x curvature is {found.product:.3g}, the limit {found.limit:.3g}, but in {given.steps} steps the "
            f"loss went from {given.start:.3g} to {given.end:.3g}: training moves to places where the loss is "
            "flatter.",
            "Lewkowycz et al. (2020); Cohen et al. (2021), section 3",
            "Watch the first hundred steps; if the loss jumps, lower the rate.",
            numbers=_numbers(found),
        )
    else:
        finding = _good(found, given, f"The learning rate {found.rate:.3g} is stable and large enough.")
    rates = [(found.rate, given)] if same else [(found.rate, given), (best_rate, best)]
    return Examination((finding,), _data(case, found, best_rate, rates, half))


def _too_large(case: Case, given: Trial, best: Trial, found: Edge) -> bool:
    if found.rate <= found.recommended:
        return False
    if _climbs(given):
        return True
    less = given.drop < _MUCH_LESS * best.drop or (found.ratio > _FAR_ABOVE and given.drop < best.drop)
    if not less:
        return False
    # A longer training may end lower at the given rate: rectifiers may leap to where the loss is flat.
    better = case.setup.with_recipe(case.recipe.scaled(found.recommended / found.rate))
    return not trial(case.setup, LONG).end < trial(better, LONG).end


def _climbs(given: Trial) -> bool:
    return not given.drop > -_FALLS * abs(given.start)


def _is_done(case: Case, given: Trial) -> bool:
    """Where almost nothing is left to learn, a loss that climbs a little is no fault of the rate."""
    return given.end < _DONE * constant_loss(case)


def _above(case: Case, found: Edge, given: Trial, best: Trial) -> Finding:
    hardly = _climbs(given) or given.drop < _HARDLY * best.drop
    times = found.rate / found.largest_rate
    where = f"{times:.3g} times the largest stable rate" if times > 1 else "more than the first steps bear"
    finding = Finding(
        Severity.CRITICAL if hardly else Severity.WARNING,
        f"The learning rate {found.rate:.3g} is too large: {where}.",
        f"Rate x curvature is {found.product:.3g} and must stay below {found.limit:.3g} ({found.samples} samples); "
        f"in {given.steps} steps the loss went from {given.start:.3g} to {_told(given.end)}, and at rate "
        f"{found.recommended:.3g} to {best.end:.3g}.",
        _SOURCE,
        numbers=_numbers(found),
    )
    return _treated(finding, case, found.recommended / found.rate)


def _below(case: Case, found: Edge, given: Trial, best: Trial, half: float) -> Finding:
    finding = Finding(
        Severity.GOOD,
        f"The learning rate {found.rate:.3g} is stable, with room above it.",
        f"Half of the error is gone after about {counted(half)} steps at this rate; in {given.steps} steps the loss "
        f"went from {given.start:.4g} to {given.end:.4g}, and at rate {found.recommended:.3g} to {best.end:.4g} "
        f"(stable up to {found.largest_rate:.3g}).",
        _SOURCE,
        numbers=_numbers(found) | {"half_time": half},
    )
    if half < _SLOW:
        return finding
    # Kernels grow, so that forecasts may be too slow: a real training at the given rate may get on.
    longer = trial(case.setup, LONG)
    if longer.drop > _LEARNS * (longer.start - min(best.end, longer.end)):
        return finding
    factor = found.recommended / found.rate
    finding = replace(
        finding,
        severity=Severity.CRITICAL if half > _HOPELESS else Severity.WARNING,
        title=f"The learning rate {found.rate:.3g} is {factor:,.3g} times smaller than it could be.",
    )
    return _treated(finding, case, factor)


def _good(found: Edge, given: Trial, title: str) -> Finding:
    bound = (
        f"{found.largest_rate:.3g}"
        if np.isfinite(found.largest_rate)
        else "no bound: the loss has no curvature"
    )
    return Finding(
        Severity.GOOD,
        title,
        f"Largest stable rate: {bound} ({found.samples} samples); in {given.steps} steps the loss went from "
        f"{given.start:.3g} to {_told(given.end)}.",
        _SOURCE,
        numbers=_numbers(found),
    )


def _other(case: Case) -> Examination:
    """No theory bounds the rate: try the given one, smaller ones, and larger ones where it hardly moves."""
    found, recipe, setup = edge(case), case.recipe, case.setup
    place, smaller = best_of([setup.with_recipe(recipe.scaled(f)) for f in _OTHER_RATES])
    factor, best = _OTHER_RATES[place], smaller
    given = best if factor == 1 else trial(setup, best.steps)
    if factor == 1 and given.drop < _FALLS * abs(given.start):
        place, larger = best_of([setup.with_recipe(recipe.scaled(f)) for f in _LARGER])
        if given.drop < _HARDLY * larger.drop:
            factor, best, given = _LARGER[place], larger, trial(setup, larger.steps)
    wrong = (factor < 1 and (_climbs(given) or given.drop < _MUCH_LESS * best.drop)) or factor > 1
    wrong = wrong and not _is_done(case, given)
    name = recipe.kind.__name__
    evidence = f"In {given.steps} steps the loss went from {given.start:.4g} to {_told(given.end)}"
    bound, curvature = adaptive_edge(case), f" No edge of stability is told: {found.reason}."
    if bound is not None:
        found = replace(found, product=bound.product, limit=bound.limit)
        curvature = (
            f" After {bound.steps} steps, rate x preconditioned curvature is {bound.product:.3g}; above "
            f"{bound.limit:.3g} the steepest direction grows until training moves to flatter places."
        )
    rates = [(recipe.rate, given)] + ([] if factor == 1 else [(recipe.rate * factor, best)])
    finding = Finding(
        Severity.GOOD,
        f"{name} lowers the loss at its rate {recipe.rate:.3g}.",
        f"{evidence}.{curvature}",
        _OTHER_SOURCE if bound is None else _ADAPTIVE_SOURCE,
        numbers={"rate": recipe.rate} | ({} if bound is None else {"rate_times_curvature": bound.product}),
    )
    if wrong:
        finding = replace(
            finding,
            severity=Severity.CRITICAL if factor < 1 and _climbs(given) else Severity.WARNING,
            title=f"The learning rate {recipe.rate:.3g} of {name} is too {'large' if factor < 1 else 'small'}.",
            evidence=f"{evidence}, and at rate {recipe.rate * factor:.3g} to {best.end:.4g}.{curvature}",
            numbers={**finding.numbers, "recommended": recipe.rate * factor},
        )
        finding = _treated(finding, case, factor)
    return Examination((finding,), _data(case, found, recipe.rate * factor, rates, np.nan))


def _treated(finding: Finding, case: Case, factor: float) -> Finding:
    """With advice, code and treatment: all rates times one number."""
    rounded = float(f"{factor:.3g}")
    several = len({group.rate for group in case.recipe.groups}) > 1
    return replace(
        finding,
        advice=f"Set the {'largest ' if several else ''}learning rate to about {case.recipe.rate * rounded:.2g}"
        + (" and all others in proportion." if several else "."),
        code=rate_code(rounded),
        vague=1,
        treatment=Treatment(
            f"learning rate x {rounded:.3g}",
            lambda setup: setup.with_recipe(setup.recipe.scaled(rounded)),
        ),
    )


def _numbers(found: Edge) -> dict[str, float]:
    return {
        "rate": found.rate,
        "largest_rate": found.largest_rate,
        "recommended": found.recommended,
        "rate_times_curvature": found.product,
        "limit": found.limit,
    }


def _told(loss: float) -> str:
    return f"{loss:.3g}" if np.isfinite(loss) else "no number at all"


def loss_by_rate(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Rates around the given one, and the loss after short trainings at each (nan: beyond all bounds).

    Empty where that would take long.
    """
    setup = case.setup
    steps = len(_AROUND) * STEPS * seconds_of_step(setup, setup.batch_size or len(setup.task.x))
    factors = np.array(_AROUND if steps < _SECONDS else ())
    trials = [trial(setup.with_recipe(setup.recipe.scaled(float(factor)))) for factor in factors]
    ends = np.array([one.end if np.isfinite(one.end) else np.nan for one in trials])
    return setup.recipe.rate * factors, ends


def _data(
    case: Case, found: Edge, recommended: float, rates: Sequence[tuple[float, Trial]], half: float
) -> xarray.Dataset:
    import xarray

    tried, ends = loss_by_rate(case)
    return xarray.Dataset(
        {
            "loss": (("rate", "step"), np.stack([one.losses for _, one in rates])),
            "final_loss": ("tried_rate", ends),
            "given": found.rate,
            "half_time": ((), half, {"units": "steps"}),
            "largest_rate": found.largest_rate,
            "recommended": recommended,
            "rate_times_curvature": found.product,
            "limit": found.limit,
        },
        {"rate": [rate for rate, _ in rates], "step": np.arange(rates[0][1].steps + 1), "tried_rate": tried},
        {"samples": found.samples},
    )
