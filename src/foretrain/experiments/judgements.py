"""Judgements on z-scores as rows of an experiment's table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import LARGEST_SPREAD, Judgement, largest_score_allowed
from foretrain.experiments.registry import Row


def agreement_rows(scores: NDArray[np.float64]) -> tuple[Row, Row]:
    """Of independent ones, two lines of the table: the root mean square of the z-scores, and the largest one."""
    spread, largest = float(np.sqrt(np.mean(scores**2))), float(np.abs(scores).max())
    bound = largest_score_allowed(scores.size)
    return (
        Row(f"rms z of {scores.size} entries", 1.0, spread, agrees=spread <= LARGEST_SPREAD),
        Row(f"largest |z| of {scores.size} entries (bound)", bound, largest, agrees=largest <= bound),
    )


def judgement_rows(judgement: Judgement, subject: str) -> list[Row]:
    """Of correlated ones, two lines: the root mean square of independent combinations, and the largest |z|."""
    spread, largest = judgement.rms <= judgement.rms_bound, judgement.largest <= judgement.bound
    return [
        Row(
            f"rms z of {judgement.independent} independent {subject}", 1.0, judgement.rms, agrees=bool(spread)
        ),
        Row("largest |z| (bound)", judgement.bound, judgement.largest, agrees=bool(largest)),
    ]


def measured_row(
    quantity: str, expected: float, here: float, error: float, bound: float, note: str = ""
) -> Row:
    """One measured number, which agrees within so many standard errors."""
    agrees = bool(abs(here - expected) <= bound * error)
    return Row(quantity, float(expected), float(here), float(error), agrees, note)


def computed_row(quantity: str, expected: float, here: float, allowed: float, note: str = "") -> Row:
    """One computed number, which agrees up to an absolute difference."""
    return Row(quantity, float(expected), float(here), None, bool(abs(here - expected) <= allowed), note)


def claim_row(
    quantity: str, expected: float | str, here: Any, holds: Any, note: str = "", *, disputed: bool = False
) -> Row:
    """One claim on a number or a text that is computed here; ``holds`` is None where nothing is tested."""
    shown = here if isinstance(here, str) else float(here)
    return Row(quantity, expected, shown, None, None if holds is None else bool(holds), note, disputed)
