"""Prediction as kernel regression with a kernel that training has moved (11.139)-(11.142).

The chapter's symmetric kernel (11.140), put into (11.142), does not give (11.132) at first order in ε: it lies
halfway between direct optimisation and the ridgeless end. The one-sided kernel Σ ½(φ + φ^E) φ does give (11.132).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from foretrain.theory.prediction.nearly_kernel.points import Array, Points
from foretrain.theory.prediction.nearly_kernel.solution import Solution


def symmetric_kernel_as_printed(solution: Solution, x1: Any, x2: Any) -> Array:
    """½ (k + k^E) as (11.140) is printed: (outputs, rows, rows)."""
    first, second = solution.model.points(x1), solution.model.points(x2)
    return 0.5 * (first.kernel(second) + solution.effective_kernel(x1, x2))


def one_sided_kernel(solution: Solution, x1: Any, x2: Any) -> Array:
    """Σ ½ (φ + φ^E)(x1) φ(x2) = k + ½ μ λ, which is not symmetric: (outputs, rows, rows)."""
    return _one_sided(solution, solution.model.points(x1), solution.model.points(x2))


def predict_as_printed(solution: Solution, x: Any) -> Array:
    """(11.142) with the symmetric kernel, which differs from (11.132) at first order in ε."""
    there, train = solution.model.points(x), solution.train
    moved = _one_sided(solution, there, train) + _one_sided(solution, train, there).swapaxes(1, 2)
    own = _one_sided(solution, train, train)
    return _regression(
        solution, x, moved - there.kernel(train), own + own.swapaxes(1, 2) - train.kernel(train)
    )


def predict_one_sided(solution: Solution, x: Any) -> Array:
    """Regression with the one-sided kernel: direct optimisation (11.132), up to second order in ε."""
    there, train = solution.model.points(x), solution.train
    return _regression(solution, x, _one_sided(solution, there, train), _one_sided(solution, train, train))


def _one_sided(solution: Solution, first: Points, second: Points) -> Array:
    half = 0.5 * first.shift(second, solution.train, solution.coefficients.T)
    return np.asarray(first.kernel(second) + half)


def _regression(solution: Solution, x: Any, kernel: Array, train_kernel: Array) -> Array:
    """k♯ (k̃♯)⁻¹ y for each output, plus the outputs before training."""
    targets = solution.targets
    jitter = solution.spectrum.jitter * np.eye(train_kernel.shape[1])
    dual = np.linalg.solve(train_kernel + jitter, targets.residual.T[:, :, None])
    found = targets.shaped((kernel @ dual)[:, :, 0].T, len(x))
    return targets.as_given(found + solution.model.start(x, targets.outputs))
