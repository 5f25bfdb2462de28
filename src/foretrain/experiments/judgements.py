"""Numbers judged as rows of an experiment's table: z-scores, powers, means over draws, computed ones and claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import xarray
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import LARGEST_SPREAD, Judgement, largest_score_allowed
from foretrain.compare.judging.powers import Slope
from foretrain.experiments.registry import Row


class Sampled(NamedTuple):
    """A mean over draws with its standard error."""

    mean: float
    error: float


def sampled(values: NDArray[np.float64]) -> Sampled:
    """The mean of independent draws, and its standard error."""
    return Sampled(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))


def agreeing(rows: Sequence[Row]) -> str:
    """How many of the tested rows agree, as in ``12 of 13``."""
    tested = [row for row in rows if row.agrees is not None]
    return f"{sum(row.agrees is True for row in tested)} of {len(tested)}"


def agreement_rows(scores: NDArray[np.float64]) -> tuple[Row, Row]:
    """Of independent ones, two lines of the table: the root mean square of the z-scores, and the largest one."""
    spread, largest = float(np.sqrt(np.mean(scores**2))), float(np.abs(scores).max())
    bound = largest_score_allowed(scores.size)
    return (
        Row(f"rms z of {scores.size} entries", 1.0, spread, agrees=spread <= LARGEST_SPREAD),
        Row(f"largest |z| of {scores.size} entries (bound)", bound, largest, agrees=largest <= bound),
    )


def power_row(quantity: str, expected: float, power: Slope, note: str = "") -> Row:
    """One fitted power, which agrees within three standard errors."""
    return Row(quantity, expected, power.value, power.standard_error, power.agrees(expected), note)


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
    quantity: str, expected: float, here: float, error: float, bound: float, note: str = "", **more: bool
) -> Row:
    """One measured number, which agrees within so many standard errors; ``more`` are other fields of the row."""
    agrees = bool(abs(here - expected) <= bound * error)
    return Row(quantity, float(expected), float(here), float(error), agrees, note, **more)


def computed_row(
    quantity: str, expected: float, here: float, allowed: float, note: str = "", **more: bool
) -> Row:
    """One computed number, which agrees up to an absolute difference; ``more`` are other fields of the row."""
    agrees = bool(abs(here - expected) <= allowed)
    return Row(quantity, float(expected), float(here), None, agrees, note, **more)


def claim_row(
    quantity: str, expected: float | str, here: Any, holds: Any, note: str = "", *, disputed: bool = False
) -> Row:
    """One claim on a number or a text that is computed here; ``holds`` is None where nothing is tested."""
    shown = here if isinstance(here, str) else float(here)
    return Row(quantity, expected, shown, None, None if holds is None else bool(holds), note, disputed)


def limit_row(
    quantity: str,
    at: xarray.Dataset,
    bound: float,
    names: tuple[str, str, str] = ("theory", "limit", "standard_error"),
    note: str = "",
    **more: bool,
) -> Row:
    """One measured number from the variables of a dataset that hold what is expected, what is seen and its error."""
    expected, here, error = (float(at[name]) for name in names)
    return measured_row(quantity, expected, here, error, bound, note, **more)


def rows_of(subject: str, rows: Sequence[Row]) -> list[Row]:
    """The same rows with the subject before the quantities."""
    return [replace(row, quantity=f"{subject}: {row.quantity}") for row in rows]
