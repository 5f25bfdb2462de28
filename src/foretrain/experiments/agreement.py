"""When many measured numbers agree with theory: spread and largest of their z-scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.registry import Row

LARGEST_SPREAD = 1.3
_LEVEL = 0.01


def largest_score_allowed(entries: int) -> float:
    """Šidák's bound: if theory is right, the largest of so many |z| exceeds it in 1 % of all runs."""
    from scipy.stats import norm

    return float(norm.isf(0.5 * (1.0 - (1.0 - _LEVEL) ** (1.0 / entries))))


def agreement_rows(scores: NDArray[np.float64]) -> tuple[Row, Row]:
    """Two lines of the table: the root mean square of the z-scores, and the largest one."""
    spread, largest = float(np.sqrt(np.mean(scores**2))), float(np.abs(scores).max())
    bound = largest_score_allowed(scores.size)
    return (
        Row(f"rms z of {scores.size} entries", 1.0, spread, agrees=spread <= LARGEST_SPREAD),
        Row(f"largest |z| of {scores.size} entries (bound)", bound, largest, agrees=largest <= bound),
    )
