"""A judgement on correlated z-scores as rows of a table."""

from __future__ import annotations

from foretrain.compare.agreement import Judgement
from foretrain.experiments.registry import Row


def judgement_rows(judgement: Judgement, subject: str) -> list[Row]:
    """Two lines: the root mean square of the independent combinations, and the largest |z| beside its bound."""
    spread, largest = judgement.rms <= judgement.rms_bound, judgement.largest <= judgement.bound
    return [
        Row(
            f"rms z of {judgement.independent} independent {subject}", 1.0, judgement.rms, agrees=bool(spread)
        ),
        Row("largest |z| (bound)", judgement.bound, judgement.largest, agrees=bool(largest)),
    ]
