"""The judgement on many z-scores as rows of an experiment's table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.agreement import LARGEST_SPREAD, largest_score_allowed
from foretrain.experiments.registry import Row

__all__ = ["LARGEST_SPREAD", "agreement_rows", "largest_score_allowed"]


def agreement_rows(scores: NDArray[np.float64]) -> tuple[Row, Row]:
    """Two lines of the table: the root mean square of the z-scores, and the largest one."""
    spread, largest = float(np.sqrt(np.mean(scores**2))), float(np.abs(scores).max())
    bound = largest_score_allowed(scores.size)
    return (
        Row(f"rms z of {scores.size} entries", 1.0, spread, agrees=spread <= LARGEST_SPREAD),
        Row(f"largest |z| of {scores.size} entries (bound)", bound, largest, agrees=largest <= bound),
    )
