"""When many measured numbers agree with theory: spread and largest of their z-scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.theory.architecture import FloatArray

LARGEST_SPREAD = 1.3
"""Largest root mean square of many z-scores that counts as agreement."""

_LEVEL = 0.01
_FAINTEST = 0.02
_SAMPLES_PER_DIRECTION = 8


def largest_score_allowed(entries: int) -> float:
    """Šidák's bound: if theory is right, the largest of so many |z| exceeds it in 1 % of all runs."""
    from scipy.stats import norm

    return float(norm.isf(0.5 * (1.0 - (1.0 - _LEVEL) ** (1.0 / entries))))


def largest_spread_allowed(scores: int) -> float:
    """Bound on the rms of so many independent z: 1.3, or more if chance alone passes 1.3 in over 1 % of runs.

    That is so for fewer than 31 of them; two pass 1.3 in every fifth run.
    """
    from scipy.stats import chi2

    return max(LARGEST_SPREAD, float(np.sqrt(chi2.isf(_LEVEL, scores) / scores)))


def decorrelated(scores: FloatArray, covariance: FloatArray, freedom: float) -> FloatArray:
    """z-scores along the principal directions of their correlation matrix: independent, with variance one.

    Directions with less than 2 % of the mean variance are left out, because what an extrapolation in 1/n neglects
    may be as large there. ``freedom`` is the number of independent samples behind the covariance: an eighth of it is
    the largest number of directions kept, and squared scores are larger by freedom / (freedom − size − 1) on average
    than with the true covariance (Hotelling), which is taken out.
    """
    if not scores.size:
        return scores
    deviation = np.sqrt(np.diagonal(covariance))
    variances, directions = np.linalg.eigh(covariance / np.outer(deviation, deviation))
    kept = (variances > _FAINTEST) & (
        np.arange(len(scores)) >= len(scores) - freedom / _SAMPLES_PER_DIRECTION
    )
    shrunk = np.sqrt(max(0.0, 1 - (int(kept.sum()) + 1) / freedom))
    return np.asarray(shrunk * (directions.T @ scores)[kept] / np.sqrt(variances[kept]))


@dataclass(frozen=True, repr=False)
class Judgement(Result):
    """The two numbers on which a verdict rests, and their bounds."""

    rms: float  # of the independent scores; 0 if there are none
    rms_bound: float
    largest: float  # |z| of an entry or of an independent combination
    bound: float  # on the largest
    entries: int
    independent: int

    @property
    def agrees(self) -> bool:
        """Whether both are within their bounds."""
        return self.rms <= self.rms_bound and self.largest <= self.bound

    def text(self, exact_agrees: bool) -> str:
        """In words, also about entries that do not fluctuate, which equal the theory or not."""
        if not self.entries:
            return f"no entry fluctuates, and {'all' if exact_agrees else 'not all'} equal the theory"
        return (
            f"{self.entries} entries, {self.independent} independent: rms z {self.rms:.2f} of at most "
            f"{self.rms_bound:.3g}, largest |z| {self.largest:.2f} of at most {self.bound:.2f}"
            f"{'' if exact_agrees else '; entries that do not fluctuate differ'}"
        )

    def answer(self) -> Answer:
        """The sentence, and the numbers in it."""
        return fields_answer(self, f"{self}.", holds=self.agrees)

    def __str__(self) -> str:
        return self.text(exact_agrees=True)

    def record(self) -> dict[str, float]:
        """The numbers by the names that documents give them."""
        return {
            "rms_z": self.rms,
            "rms_bound": self.rms_bound,
            "largest_z": self.largest,
            "bound": self.bound,
            "entries": self.entries,
            "independent": self.independent,
        }


def judge(parts: Iterable[tuple[FloatArray, FloatArray]]) -> Judgement:
    """The judgement on one or more comparisons, each as the z-scores of its entries and its independent scores.

    The bound counts entries and combinations of all parts, so that the whole errs in at most 1 % of all runs.
    """
    entries, independent = (np.concatenate(column) for column in zip(*parts, strict=True))
    everything = np.concatenate([entries, independent])
    return Judgement(
        float(np.sqrt(np.mean(independent**2))) if independent.size else 0.0,
        largest_spread_allowed(max(1, independent.size)),
        float(np.abs(everything).max(initial=0.0)),
        largest_score_allowed(max(1, everything.size)),
        entries.size,
        independent.size,
    )
