"""What a comparison holds: entries measured at several widths, their limit, the theory, z-scores and a verdict.

Every entry is measured at each width and extrapolated to 1/n = 0 with a quadratic in 1/n, where the recursions of
the theory are exact. A z-score is (limit − theory) / standard error.

Entries of one ensemble are correlated, those of V strongly: one fluctuation shows in all of them, and the root mean
square of so many z-scores is no better known than that of ten. The verdict therefore rests on uncorrelated
combinations of them (:func:`foretrain.compare.judging.agreement.decorrelated`); the largest |z| is judged among both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import Judgement, decorrelated, judge
from foretrain.compare.judging.entries import BatchValues, Entry
from foretrain.compare.judging.ladder import Ladder
from foretrain.compare.judging.powers import Sizes, sizes_of
from foretrain.compare.judging.widths import extrapolation_weights
from foretrain.theory.architecture import MLP

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Measured values at every width, their limit, the theory, and how far they are apart."""

    still: ClassVar[float] = 1e-9  # of the natural size: what fluctuates less does not fluctuate
    equal: ClassVar[float] = 1e-6  # of the natural size: how near that must be to the theory

    mlp: MLP
    entries: tuple[Entry, ...]
    ladder: Ladder
    estimator: str
    seed: str
    theory: Array  # (entries,)
    unit: Array  # (entries,): natural size, from the kernel
    batches: tuple[BatchValues, ...]  # by width

    @cached_property
    def measured(self) -> Array:
        """(widths, entries)."""
        return np.stack([batch.estimate for batch in self.batches])

    @cached_property
    def measured_error(self) -> Array:
        """Standard errors (widths, entries)."""
        return np.stack([batch.standard_error for batch in self.batches])

    @cached_property
    def _weights(self) -> Array:
        return extrapolation_weights(self.ladder.inverse, self.measured_error)

    @cached_property
    def limit(self) -> Array:
        """Extrapolated to infinite width: (entries,)."""
        return np.asarray((self._weights * self.measured).sum(axis=0))

    @cached_property
    def covariance(self) -> Array:
        """Of the limits: (entries, entries)."""
        parts = [
            weight[:, None] * weight * batch.covariance for weight, batch in zip(self._weights, self.batches)
        ]
        return np.asarray(sum(parts))

    @cached_property
    def standard_error(self) -> Array:
        """Of the limits: (entries,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def observables(self) -> list[str]:
        """Those of the entries, in their order."""
        return list(dict.fromkeys(entry.observable for entry in self.entries))

    def of(self, observable: str) -> NDArray[np.bool_]:
        """Which entries belong to an observable."""
        return np.array([entry.observable == observable for entry in self.entries])

    def sizes(self, observable: str) -> Sizes:
        """Root mean square distance from the theory at each width, its noise taken out."""
        chosen = self.of(observable)
        covariances = [batch.covariance[np.ix_(chosen, chosen)] for batch in self.batches]
        return sizes_of((self.measured - self.theory)[:, chosen], covariances)

    @cached_property
    def fluctuates(self) -> NDArray[np.bool_]:
        """Entries with noise; the others are the same in every network and are compared exactly."""
        return np.asarray(self.standard_error > self.still * self.unit)

    @cached_property
    def z(self) -> Array:
        """(limit − theory) / standard error, nan where nothing fluctuates: (entries,)."""
        error = np.where(self.fluctuates, self.standard_error, np.nan)
        return np.asarray((self.limit - self.theory) / error)

    @cached_property
    def independent_scores(self) -> Array:
        """z-scores of the uncorrelated combinations on which the verdict rests."""
        chosen = self.fluctuates
        return decorrelated(self.z[chosen], self.covariance[np.ix_(chosen, chosen)], self._freedom)

    @cached_property
    def _freedom(self) -> float:
        """Degrees of freedom of the limits' covariance, after Welch and Satterthwaite; the mean over entries."""
        if not self.fluctuates.any():
            return np.inf
        parts = (self._weights * self.measured_error)[:, self.fluctuates] ** 2
        each = np.stack([batch.freedom[self.fluctuates] for batch in self.batches])
        return float(np.mean(parts.sum(axis=0) ** 2 / (parts**2 / each).sum(axis=0)))

    @cached_property
    def judgement(self) -> Judgement:
        """Spread and largest of the scores, with their bounds."""
        return judge([(self.z[self.fluctuates], self.independent_scores)])

    @property
    def exact_agrees(self) -> bool:
        """Whether entries that do not fluctuate equal the theory."""
        return bool((np.abs(self.limit - self.theory) <= self.equal * self.unit)[~self.fluctuates].all())

    @property
    def agrees(self) -> bool:
        """Whether the judgement is good and entries that do not fluctuate equal the theory."""
        return self.judgement.agrees and self.exact_agrees

    @property
    def verdict(self) -> str:
        """One sentence."""
        word = "agrees" if self.agrees else "does NOT agree"
        found = self.judgement.told(exact_agrees=self.exact_agrees)
        return f"{self.mlp.activation.label}: theory {word} with networks ({found})."

    @cached_property
    def own(self) -> int:
        """The number of the width nearest to the network's own."""
        return int(np.argmin(np.abs(np.log(self.ladder.inverse))))

    @cached_property
    def corrected(self) -> Array:
        """K + G1 / fan-in and Θ + H1 / fan-in, the means of theory at each width, else nan: (widths, entries)."""
        found = np.full_like(self.measured, np.nan)
        known = dict(zip(self.entries, self.theory))
        measured = {entry.observable for entry in self.entries}
        for column, entry in enumerate(self.entries):
            name = {"K": "G1", "Theta": "H1"}.get(entry.observable)
            if name in measured:
                fan_in = np.array([network.widths[entry.layer - 1] for network in self.ladder.networks])
                shift = known.get(Entry(name, entry.layer, entry.inputs), 0.0)
                found[:, column] = self.theory[column] + shift / fan_in
        return found

    def to_dataset(self) -> xarray.Dataset:
        """Every number, labelled; ``foretrain.save`` stores it."""
        from foretrain.compare.presentation import comparison_dataset

        return comparison_dataset(self)

    def rows(self) -> list[dict[str, object]]:
        """One dictionary per entry."""
        columns = zip(
            self.entries, self.theory, self.limit, self.standard_error, self.z, self.measured[self.own]
        )
        return [
            {
                "layer": entry.layer,
                "entry": entry.label,
                "theory": float(theory),
                "limit": float(limit),
                "standard_error": float(error),
                "z": None if np.isnan(z) else float(z),
                "own_width": float(own),
            }
            for entry, theory, limit, error, z, own in columns
        ]

    def __repr__(self) -> str:
        from foretrain.compare.presentation import comparison_text

        return comparison_text(self)
