"""``effective_rank``: how many modes an operator has that count, by three definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from foretrain.operators.estimators.estimate import Estimate, Target, exact
from foretrain.operators.estimators.exactness import exact_moments, is_affordable
from foretrain.operators.estimators.moments import Array, tested_moments
from foretrain.operators.estimators.probes import Counted, ExactIsCheaperError, dense
from foretrain.operators.estimators.spectra import (
    Entropy,
    Measure,
    Participation,
    RankFunction,
    Share,
    measured,
)
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator

Kind: TypeAlias = Literal["participation", "entropy"]

_KINDS: dict[str, RankFunction] = {"participation": Participation(), "entropy": Entropy()}


def effective_rank(
    op: Operator,
    *,
    kind: Kind | str = "participation",
    share: float | None = None,
    accuracy: float | None = None,
    products: int | None = None,
    seed: Seed = 0,
) -> Estimate:
    """The participation ratio, or another rank, to a relative error of ``accuracy`` or with at most ``products``.

    With s the eigenvalues of a positive operator, and the singular values of any other (an eigenvalue's magnitude if
    it is symmetric):

    - ``kind="participation"``: (sum s)² / sum s², which is tr(A)² / tr(A²) of a positive operator;
    - ``kind="entropy"``: exp of the entropy of s / sum s, elsewhere named ``entropy_rank``;
    - ``share=0.95``: the number of largest modes that hold this share of sum s (the variance, if the operator is a
      covariance), with the one that reaches it. ``accuracy`` is that of the number interpolated within this mode; the
      stated error is also that of the step to a whole one.

    It is exact where that is affordable (see ``exactness``), or where an estimate would take as many products. The
    participation ratio of a positive operator takes both traces from the same tests against a Nyström approximation,
    at one product per probe, and the jackknife takes its ratio's bias away: w A² w = |A w|² makes tr A² free, and its
    variance 2 tr A⁴ / tr(A²)² is a fourth of that of the two-sided form (w A w')² on as many probes. Everything else
    is stochastic Lanczos quadrature outside the large modes, which a Krylov space finds first; what the probes see is
    then weighted so that its first two moments are the tested ones, which are known much better (see ``spectra``),
    and what the depth leaves out is part of the stated error.
    """
    target, function = Target.of(accuracy, products), _function(kind, share)
    smaller, by_moments = op.same_spectrum(), _needs_moments_alone(op, function)
    if is_affordable([smaller], products, accuracy, decomposed=not by_moments):
        return _exact(Counted(smaller), function, seed)
    counted = Counted(smaller, up_to_exact=products is None)
    try:
        found, interpolated_error = _estimated(counted, function, target, seed)
    except ExactIsCheaperError:
        return _exact(counted, function, seed)
    target.warn_unless_reached(replace(found, standard_error=interpolated_error), "effective rank")
    return found


def _exact(counted: Counted, function: RankFunction, seed: Seed) -> Estimate:
    if _needs_moments_alone(counted.operator, function):
        first, second = exact_moments(counted)
        return exact(first**2 / second if second else 0.0, counted.products, seed)
    matrix = dense(counted).cpu().numpy()
    if counted.operator.symmetric:
        values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[::-1]
    else:
        values = np.linalg.svd(matrix, compute_uv=False)
    measure = Measure(values, np.ones(len(values)), resolved=len(values))
    value, _ = function.stated(measure, function.smooth(measure), 0.0)
    return exact(value, counted.products, seed)


def _needs_moments_alone(op: Operator, function: RankFunction) -> bool:
    """tr(A)² / tr(A²) of a positive operator takes no eigenvalues."""
    return op.positive and isinstance(function, Participation)


def _estimated(
    counted: Counted, function: RankFunction, target: Target, seed: Seed
) -> tuple[Estimate, float]:
    """What is stated, and the error to which the target refers."""
    if _needs_moments_alone(counted.operator, function):
        value, error = tested_moments(counted, _participation, target, seed).estimate(_participation)
        stated, method = (value, error), "tested Nyström"
    else:
        stated, error = measured(counted, function, target, seed)
        method = "Lanczos quadrature"
    most = min(counted.size, counted.operator.codomain.size)
    possible = min(max(stated[0], 1.0), float(most)) if stated[0] else 0.0
    return Estimate(possible, stated[1], counted.products, seed, method), error


def _function(kind: str, share: float | None) -> RankFunction:
    if share is not None:
        if not 0 < share < 1:
            raise InputError(f"`share` is {share!r}, but it lies between 0 and 1: give 0.95 for 95 %.")
        return Share(float(share))
    if kind not in _KINDS:
        raise unknown_name("`kind` of effective rank", kind, _KINDS)
    return _KINDS[kind]


def _participation(first: Array, second: Array) -> Array:
    """Zero for the operator that is zero."""
    return np.divide(first**2, second, out=np.zeros_like(first), where=second > 0)
