"""``effective_rank``: how many modes an operator has that count, by three definitions."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from foretrain.operators.estimators.estimate import SMALL, Estimate, Target, exact
from foretrain.operators.estimators.moments import tested_moments
from foretrain.operators.estimators.nystrom import Array
from foretrain.operators.estimators.probes import Counted, OperatorLike, dense
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

Kind: TypeAlias = Literal["participation", "entropy"]

_KINDS: dict[str, RankFunction] = {"participation": Participation(), "entropy": Entropy()}


def effective_rank(
    op: OperatorLike,
    *,
    kind: Kind | str = "participation",
    share: float | None = None,
    accuracy: float = 0.01,
    products: int | None = None,
    seed: Seed = 0,
) -> Estimate:
    """An effective rank, to a relative standard error of ``accuracy`` or with at most ``products`` products.

    With s the eigenvalues of a positive operator, and the singular values of any other (an eigenvalue's magnitude if
    it is symmetric):

    - ``kind="participation"``: (sum s)² / sum s², which is tr(A)² / tr(A²) of a positive operator;
    - ``kind="entropy"``: exp of the entropy of s / sum s;
    - ``share=0.95``: the number of largest modes that hold this share of sum s (the variance, if the operator is a
      covariance). It is whole where those modes were resolved one by one, and interpolated otherwise.

    Small operators (see ``trace``) are exact. The participation ratio of a positive operator takes both traces from
    the same tests against a Nyström approximation, at one product per probe, and the jackknife takes its ratio's bias
    away: w A² w = |A w|² makes tr A² free, and its variance 2 tr A⁴ / tr(A²)² is a fourth of that of the two-sided
    form (w A w')² on as many probes. Everything else is stochastic Lanczos quadrature outside the large modes, which
    a Krylov space finds first; what the probes see is then weighted so that its first two moments are the tested
    ones, which are known much better (see ``spectra``), and what the depth leaves out is part of the stated error.
    """
    target, counted = Target.of(accuracy, products), Counted(op)
    function = _function(kind, share)
    if counted.size <= (SMALL if products is None else products):
        measure = _all_values(counted)
        return exact(function.stated(measure, function.smooth(measure)), counted.products, seed)
    if op.positive and isinstance(function, Participation):
        value, error = tested_moments(counted, _participation, target, seed).estimate(_participation)
        method = "tested Nyström"
    else:
        value, error = measured(counted, function, target, seed)
        method = "Lanczos quadrature"
    found = Estimate(value, error, counted.products, seed, method)
    return target.warn_unless_reached(found, "effective rank")


def _function(kind: str, share: float | None) -> RankFunction:
    if share is not None:
        if not 0 < share < 1:
            raise InputError(f"share is {share!r}, but it lies between 0 and 1: give 0.95 for 95 %.")
        return Share(float(share))
    if kind not in _KINDS:
        raise unknown_name("kind of effective rank", kind, _KINDS)
    return _KINDS[kind]


def _participation(first: Array, second: Array) -> Array:
    """Zero for the operator that is zero."""
    return np.divide(first**2, second, out=np.zeros_like(first), where=second > 0)


def _all_values(counted: Counted) -> Measure:
    matrix = dense(counted).cpu().numpy()
    values = np.linalg.svd(matrix, compute_uv=False)
    return Measure(values, np.ones(len(values)), resolved=len(values))
