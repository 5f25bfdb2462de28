"""Do signals and gradients keep their size through the blocks of any model?

Followed are differences between samples, forwards, and a random gradient, backwards, from the first block to the last
one before the output. MLPs are left to the check of the initialisation, which knows their theory.

Measurements (dimension block, in the order of the calls; each after that block):
``size``       root mean square of the signal
``distance``   root mean square difference between two samples
``alikeness``  mean cosine between two samples
``gradient``   norm of a gradient that starts with one at the last block
``forward_gain``, ``backward_gain``  of the block that ends here: distance and gradient over those of the block before
``branch_ratio`` (branch, by the name of its last weight)  size of a residual branch over that of its stream

Growth is a suspicion. With a skip connection of weight one chi_perp = 1 + C_W <s'^2> is above one (B.16), so that no
such stack is critical. But with rectifiers it multiplies the tangent kernel of all its blocks alike, which a smaller
rate bears; so the cure is proved like any other (foretrain.doctor.examine). Residual branches that are large
against their stream drown what came before them; they are faulted only if short real trainings with smaller ones do
much better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.plateau.layers import has_normalisation
from foretrain.doctor.blocks import Branch, Passage, branches_of, passage, shrinking_factors, without_in_place
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment, scaling_code
from foretrain.doctor.mlp_chain import chain_of
from foretrain.doctor.setup import Case
from foretrain.doctor.stability import LEARNED, at_its_best, edge, speed_up
from foretrain.doctor.trials import constant_loss, trial
from foretrain.doctor.units import unit_factors
from foretrain.support.answers import labelled
from foretrain.support.errors import ForetrainError, NotSupportedError

Array = NDArray[np.float64]

_SAMPLES = 64
# Learning of the first blocks lags behind by the square of (differences x gradients); below 0.005 it is more than
# four orders slower than at the end, below 0.0003 seven. Small convolutional networks as torch makes them reach 0.03.
_FALL_WARNING, _FALL_CRITICAL = 5e-3, 3e-4
_GROWTH_WARNING, _GROWTH_CRITICAL = 30.0, 1e3
# A normalisation undoes the size of signals, so that embeddings of size 0.02 may well grow 50-fold.
_NORMALISED_WARNING = 300.0
# Where only this share of a signal depends on the sample, a step that moves all outputs alike is so much stronger
# than one that tells samples apart.
_COLLAPSE_WARNING = 1e-2
_COLLAPSE_BY = 10.0  # and the blocks have lost it, not the data
# Branches should be at most of the order of their stream; torch's own reach 1.3, and 5 behind a small stem.
_BRANCH = 5.0
_LESS, _SOONER = 3.0, 2.0  # times: loss at the end, and steps for the same loss, with smaller branches
_BRANCH_SOURCE = "Roberts & Yaida, appendix B: residual hyperparameters"
_SOURCE = "Roberts & Yaida (9.92), (9.93), appendix B; Mishkin & Matas 2015"


def check(case: Case) -> Examination:
    """Accumulated forward and backward gains."""
    try:
        is_mlp = chain_of(case).whole
    except ForetrainError:
        is_mlp = False
    if is_mlp:
        raise NotSupportedError(
            "the model is an MLP, which the check of its initialisation follows by layer."
        )
    x = case.chosen(_SAMPLES).x
    try:
        found = passage(case.model, x, case.setup.seed)
    except RuntimeError as error:
        raise NotSupportedError(
            "gradients cannot be followed through this model, as where it overwrites tensors in place."
        ) from error
    if len(found.names) < 2:
        raise NotSupportedError("the model has too few blocks in a row for gains to add up.")
    normalised = has_normalisation(case.model)
    severity, branches = _severity(found, normalised), branches_of(without_in_place(case.model), x)
    if severity == Severity.GOOD:
        finding = _drowned(case, branches) or Finding(
            severity,
            f"Differences between samples keep {found.distance_ratio:.2g} and gradients {found.gradient_ratio:.2g} "
            f"of their size through {len(found.names)} blocks.",
            _evidence(found),
            _SOURCE,
            numbers=_numbers(found),
        )
    else:
        finding = _fault(found, severity, {} if normalised else unit_factors(case.model, x))
    backward = _gains(found.gradient[::-1])[::-1][:-1]
    data = {
        "size": ("block", found.size),
        "distance": ("block", found.distance),
        "alikeness": ("block", found.alikeness),
        "gradient": ("block", found.gradient),
        "forward_gain": ("block", _gains(found.distance)),
        "backward_gain": ("block", np.concatenate([[1.0], backward])),
    }
    places = {"block": list(found.names)}
    if branches:
        data["branch_ratio"] = ("branch", np.array([one.ratio for one in branches]))
        places["branch"] = [one.weights[0] for one in branches]
    return Examination((finding,), labelled(data, {"samples": _SAMPLES, "units": "none"}, **places))


def _drowned(case: Case, branches: list[Branch]) -> Finding | None:
    """Branches that are too large, if training says so too."""
    largest = max(branches, key=lambda one: one.ratio, default=None)
    if largest is None or largest.ratio < _BRANCH or not case.setup.fresh:
        return None
    factors = shrinking_factors(without_in_place(case.model), case.chosen(_SAMPLES).x)
    shrunk = case.setup.rescaled(factors)
    short = [edge(Case(one)).best[1] if one.recipe.is_descent else trial(one) for one in (case.setup, shrunk)]
    if not short[1].end < short[0].end:  # the long trainings cost much more
        return None
    given, better = at_its_best(case.setup), at_its_best(shrunk)
    worse = better.end < given.end / _LESS and speed_up(given, better) >= _SOONER
    if not worse or given.end < LEARNED * constant_loss(case):
        return None
    return Finding(
        Severity.WARNING,
        f"Residual branches are up to {largest.ratio:.2g} times as large as what they are added to.",
        f"Largest at {largest.weights[0]!r}, of {len(branches)} branches. In {given.steps} steps at its best rate "
        f"the loss went from {given.start:.3g} to {given.end:.3g}; with branches that add equal shares, from "
        f"{better.start:.3g} to {better.end:.3g}.",
        _BRANCH_SOURCE,
        "Multiply the last weights of the branches so that all of them together add about as much as the stream has.",
        scaling_code(factors),
        Treatment("residual branches of equal shares", lambda setup: setup.rescaled(factors)),
        {"branch_ratio": largest.ratio, "branches": float(len(branches))},
        largest.weights,
    )


def _fall(found: Passage) -> float:
    return float(np.sqrt(found.distance_ratio * found.gradient_ratio))


def _growth(found: Passage) -> float:
    return max(found.distance_ratio, found.gradient_ratio)


def _severity(found: Passage, normalised: bool) -> Severity:
    fall, growth = _fall(found), _growth(found)
    if not np.isfinite(fall) or (not normalised and (fall < _FALL_CRITICAL or growth > _GROWTH_CRITICAL)):
        return Severity.CRITICAL
    spread = found.spread
    collapsed = spread[-1] < _COLLAPSE_WARNING and spread[0] > _COLLAPSE_BY * spread[-1]
    too_large = growth > (_NORMALISED_WARNING if normalised else _GROWTH_WARNING)
    return Severity.WARNING if fall < _FALL_WARNING or too_large or collapsed else Severity.GOOD


def _evidence(found: Passage) -> str:
    worst = int(np.argmax(np.abs(np.log(np.maximum(_gains(found.distance), 1e-300)))[1:])) + 1
    return (
        f"From block {found.names[0]!r} to {found.names[-1]!r} the distance between samples is multiplied by "
        f"{found.distance_ratio:.2g} and, backwards, a gradient by {found.gradient_ratio:.2g}; the mean cosine "
        f"between samples goes from {found.alikeness[0]:.2g} to {found.alikeness[-1]:.4g}. The largest single change "
        f"is a factor {_gains(found.distance)[worst]:.2g} in {found.names[worst]!r}."
    )


def _numbers(found: Passage) -> dict[str, float]:
    return {
        "distance_ratio": found.distance_ratio,
        "gradient_ratio": found.gradient_ratio,
        "alikeness": float(found.alikeness[-1]),
        "blocks": float(len(found.names)),
    }


def _fault(found: Passage, severity: Severity, factors: dict[str, float]) -> Finding:
    treatment = Treatment("signals of size one", lambda setup: setup.rescaled(factors)) if factors else None
    advice = (
        "Rescale the weights block by block so that signals keep size one on the data, as in the code; or add skip "
        "connections or normalisation."
        if factors
        else "Look at the blocks named here: make their residual branches smaller or larger, or normalise after them."
    )
    blocks = f"through {len(found.names)} blocks"
    title = f"All samples look alike {blocks}: their mean cosine is {found.alikeness[-1]:.5g}."
    if _growth(found) > _GROWTH_WARNING and found.gradient_ratio > found.distance_ratio:
        title = f"Gradients grow {found.gradient_ratio:.2g}-fold {blocks}."
    elif _growth(found) > _GROWTH_WARNING:
        title = f"Differences between samples grow {found.distance_ratio:.2g}-fold {blocks}."
    elif _fall(found) < _FALL_WARNING:
        title = f"Differences between samples shrink to {found.distance_ratio:.2g} of their size {blocks}."
    return Finding(
        severity,
        title,
        _evidence(found),
        _SOURCE,
        advice,
        scaling_code(factors) if factors else "",
        treatment,
        _numbers(found),
        found.names,
    )


def _gains(values: Array) -> Array:
    """Each value over the one before."""
    before = np.concatenate([values[:1], values[:-1]])
    return np.asarray(values / np.where(before > 0, before, 1))
