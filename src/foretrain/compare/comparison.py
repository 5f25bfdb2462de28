"""Theory beside measurement: the entries of K, V, G1 and of the NTK's statistics, from networks of several widths.

Every entry is measured at each width and extrapolated to 1/n = 0 with a quadratic in 1/n, where the recursions of
the theory are exact. A z-score is (limit − theory) / standard error.

Entries of one ensemble are correlated, those of V strongly: one fluctuation shows in all of them, and the root mean
square of so many z-scores is no better known than that of ten. The verdict therefore rests on uncorrelated
combinations of them (:func:`foretrain.compare.agreement.decorrelated`); the largest |z| is judged among both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.compare.agreement import Judgement, decorrelated, judge
from foretrain.compare.ensembles import Ensemble
from foretrain.compare.estimators import DIFFERENTIAL, TANGENT, BatchValues, Entry, entries_of
from foretrain.compare.ladder import Ladder, plan, warn_if_too_deep
from foretrain.compare.measurement import measure, reader_bytes, theory, unit_of
from foretrain.compare.requests import check_observables, refuse_empty, refuse_kinks
from foretrain.compare.widths import extrapolation_weights
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.flow.entry import check_network

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

_EXACT, _EQUAL = 1e-9, 1e-6  # relative: what fluctuates less does not fluctuate, and is then compared to this


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Measured values at every width, their limit, the theory, and how far they are apart."""

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

    @cached_property
    def fluctuates(self) -> NDArray[np.bool_]:
        """Entries with noise; the others are the same in every network and are compared exactly."""
        return np.asarray(self.standard_error > _EXACT * self.unit)

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
        return bool((np.abs(self.limit - self.theory) <= _EQUAL * self.unit)[~self.fluctuates].all())

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


def compare(
    mlp: MLP,
    X: ArrayLike,
    observables: Sequence[str] | None = None,
    draws: int = 20_000,
    *,
    scales: Sequence[float] | None = None,
    method: str = "auto",
    estimator: str = "metric",
    seed: Seed = 0,
) -> Comparison:
    """Draw random torch networks of several widths and compare their statistics with the flow.

    Parameters
    ----------
    X
        Inputs (N, n_in); V, D, F, A, B and P to U need N ≤ 4, because their full tensors are compared.
    observables
        Any of ``K``, ``V``, ``G1`` (or ``kurtosis``, with estimator "neurons"), and for residual networks ``K``,
        ``V``, ``three_point``. By default all of these that the network, the estimator and the number of inputs
        allow. Statistics of the NTK and of its differentials are compared only if named, of networks without skip
        connections, with every weight drawn: ``Theta``, ``H1``, ``D``, ``F``, ``A``, ``B`` at a cost of n³ per layer,
        ``P``, ``Q`` (dNTK) and ``R``, ``S``, ``T``, ``U`` (ddNTKs) at about 400 n². Kinks count as automatic
        derivatives see them, with no second derivative.
    draws
        Networks per width, on average; they are shared out so that the limit is as sharp as their time allows.
    scales
        Multipliers of the hidden widths, at least three; by default (1/4, 1/2, 1), (1/2, 1, 2) or (1, 2, 4), the
        narrowest at least six times as wide as the network is deep if possible (four times for the NTK).
    method
        ``"weights"`` draws every weight of every network; ``"conditional"`` draws each layer from its law given
        the one before, the same statistics at a cost of n instead of n² per layer. ``"auto"`` draws weights
        unless that takes more than 10¹⁰ random numbers; the result says which was used.
    estimator
        ``"metric"`` averages over a layer's own weights exactly; ``"neurons"`` uses its preactivations only.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = ft.compare(ft.MLP("relu", depth=3, width=32, C_W=2.0), [[1.0, 0.5], [0.2, -1.0]], draws=1000)
    >>> found.agrees
    True
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    mlp = mlp.with_inputs(inputs)
    names = check_observables(mlp, len(inputs), observables, estimator)
    if {*names} & {*TANGENT, *DIFFERENTIAL}:
        refuse_kinks(mlp, inputs)
    ladder = plan(mlp, len(inputs), draws, scales, method, names)
    warn_if_too_deep(ladder)
    predicted = theory(mlp, inputs, names)
    entries = [
        entry
        for name in names
        for entry in entries_of(name, mlp, len(inputs))
        if not (estimator == "neurons" and name == "V" and mlp.widths[entry.layer] < 2)
    ]
    if observables is not None:
        refuse_empty(mlp, names, entries)
    units = np.array([unit_of(predicted, e) for e in entries])
    if not units.any():
        raise InputError(
            f"there is nothing to compare, since {', '.join(names)} is zero in theory and in every network: give "
            "inputs that are not zero and positive variances and learning rates."
        )
    found = []
    for network, count, own_seed in zip(ladder.networks, ladder.draws, spawn(seed, len(ladder.networks))):
        ensemble = Ensemble(
            network,
            inputs,
            count // ladder.batches,
            ladder.batches,
            ladder.method,
            own_seed,
            estimator == "neurons",
            reader_bytes(network, len(inputs), names),
        )
        found.append(measure(ensemble, predicted, estimator, entries))
    return Comparison(
        mlp,
        tuple(entries),
        ladder,
        estimator,
        " ".join(repr(seed).split()),
        np.array([predicted[e.observable][(e.layer - 1, *e.inputs)] for e in entries]),
        units,
        tuple(found),
    )
