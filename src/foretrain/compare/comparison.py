"""What a comparison holds: entries measured at several widths, their limit, the theory, z-scores and a verdict.

Every entry is measured at each width and extrapolated to 1/n = 0 with a quadratic in 1/n, where the recursions of
the theory are exact. A z-score is (limit − theory) / standard error.

Entries of one ensemble are correlated, those of V strongly: one fluctuation shows in all of them, and the root mean
square of so many z-scores is no better known than that of ten. The verdict therefore rests on uncorrelated
combinations of them (:func:`foretrain.compare.judging.agreement.decorrelated`); the largest |z| is judged among both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import Judgement, decorrelated, judge
from foretrain.compare.judging.ladder import Asked, BatchValues, Entry, Extrapolated, Ladder
from foretrain.compare.judging.powers import Sizes, sizes_of
from foretrain.compare.pictures import comparison_figure
from foretrain.support.answers import Answer, Column, Figure, Part, Result, Table, labelled, picked
from foretrain.support.seeds import Seed, seed_text
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, FloatArray

if TYPE_CHECKING:
    import xarray

# Of the narrowest network: beyond it a quadratic in 1/n does not suffice.
_TRUSTED_DEPTH_TO_WIDTH = 0.25


class Case(Protocol):
    """What a kind of comparison supplies to the course that all have in common, :meth:`Comparison.run`."""

    @property
    def entries(self) -> Sequence[Entry]:
        """What is compared."""

    @property
    def estimator(self) -> str:
        """How it is measured, in a word."""

    def values(self) -> FloatArray:
        """What the theory says, by entry."""

    def units(self) -> FloatArray:
        """Natural sizes, by entry."""

    def measure(self, mlp: MLP, draws: int, batches: int, seed: Seed, /) -> tuple[BatchValues, float]:
        """Batch values of networks of one width, and their mean number of steps of training (nan without)."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Extrapolated, Result):
    """Measured values at every width, their limit, the theory, and how far they are apart."""

    compared: ClassVar[tuple[str, str]] = ("theory", "networks")
    rows_have_widths: ClassVar[bool] = False  # whether ``rows`` tell what was measured at every width
    still: ClassVar[float] = 1e-9  # of the natural size: what fluctuates less does not fluctuate
    equal: ClassVar[float] = 1e-6  # of the natural size: how near that must be to the theory

    mlp: MLP
    entries: tuple[Entry, ...]
    ladder: Ladder
    estimator: str
    seed: str
    theory: FloatArray  # (entries,)
    unit: FloatArray  # (entries,): natural size, from the kernel
    batches: tuple[BatchValues, ...]  # by width
    steps: FloatArray  # (widths,), mean number of steps of training; nan where nothing is trained

    @classmethod
    def run(cls, mlp: MLP, case: Case, ladder: Ladder, asked: Asked, seed: Seed, **own: Any) -> Self:
        """Measure every width of a ladder and put the theory beside it; ``own`` are fields of the subclass."""
        ratio = ladder.networks[0].depth_to_width
        if ratio > _TRUSTED_DEPTH_TO_WIDTH:
            warn_user(
                f"the narrowest network has depth over width {ratio:.2g}: a quadratic in 1/n may not reach the "
                "limit, so give wider networks or larger `scales`."
            )
        theory, unit = case.values(), case.units()
        batches, steps = ladder.measure(case.measure, seed, asked.keeper)
        said = case.estimator, seed_text(asked.seed)
        return cls(mlp, tuple(case.entries), ladder, *said, theory, unit, batches, steps, **own)

    @property
    def inverse_widths(self) -> FloatArray:
        """1/n of every width, in units of the own one."""
        return self.ladder.inverse

    @cached_property
    def standard_error(self) -> FloatArray:
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
    def z(self) -> FloatArray:
        """(limit − theory) / standard error, nan where nothing fluctuates: (entries,)."""
        error = np.where(self.fluctuates, self.standard_error, np.nan)
        return np.asarray((self.limit - self.theory) / error)

    @cached_property
    def independent_scores(self) -> FloatArray:
        """z-scores of the uncorrelated combinations on which the verdict rests."""
        chosen = self.fluctuates
        freedom = np.inf
        if chosen.any():  # of the limits' covariance, after Welch and Satterthwaite; the mean over entries
            parts = (self._weights * self.measured_error)[:, chosen] ** 2
            each = np.stack([batch.freedom[chosen] for batch in self.batches])
            freedom = float(np.mean(parts.sum(axis=0) ** 2 / (parts**2 / each).sum(axis=0)))
        return decorrelated(self.z[chosen], self.covariance[np.ix_(chosen, chosen)], freedom)

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
        theory, networks = self.compared
        word = "agrees" if self.agrees else "does NOT agree"
        return f"{self.mlp.activation.label}: {theory} {word} with {networks} ({self._found()})."

    def _found(self) -> str:
        return self.judgement.text(self.exact_agrees)

    @cached_property
    def own(self) -> int:
        """The number of the width nearest to the network's own."""
        return int(np.argmin(np.abs(np.log(self.ladder.inverse))))

    @cached_property
    def corrected(self) -> FloatArray:
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
        """Every number, labelled: dimensions ``entry``, ``width`` (from narrow to wide), ``batch`` and ``score``."""
        single, both = "theory limit standard_error z", "measured measured_error corrected"
        return labelled(
            {
                **{name: ("entry", values) for name, values in picked(self, single).items()},
                **{name: ("width entry", values) for name, values in picked(self, both).items()},
                "batch_value": ("width batch entry", np.stack([batch.values for batch in self.batches])),
                "independent_score": ("score", self.independent_scores),
            },
            {
                "activation": self.mlp.activation.label,
                "network": repr(self.mlp),
                "method": self.ladder.method,
                **self.judgement.record(),
                **picked(self, "estimator seed agrees verdict"),
            },
            entry=[f"layer {e.layer} {e.label}" for e in self.entries],
            observable=("entry", [e.observable for e in self.entries]),
            layer=("entry", [e.layer for e in self.entries]),
            inputs=("entry", [" ".join(map(str, e.inputs)) for e in self.entries]),
            width=[network.hidden_widths[0] for network in self.ladder.networks],
            scale=("width", list(self.ladder.scales)),
            inverse_width=("width", self.ladder.inverse),
            draws=("width", list(self.ladder.draws)),
            batch=np.arange(self.ladder.batches),
            score=np.arange(self.independent_scores.size),
        )

    def rows(self) -> list[dict[str, object]]:
        """One dictionary per entry."""
        numbers = picked(self, "theory limit standard_error z") | {"own_width": self.measured[self.own]}
        rows: list[dict[str, object]] = []
        for place, entry in enumerate(self.entries):
            here = {name: float(values[place]) for name, values in numbers.items()}
            known = {name: None if np.isnan(value) else value for name, value in here.items()}
            rows.append({"layer": entry.layer, "entry": entry.label, **known})
            if self.rows_have_widths:
                by_width = picked(self, "measured measured_error")
                widths = {name: values[:, place].tolist() for name, values in by_width.items()}
                rows[-1] |= {"observable": entry.observable, **widths}
        return rows

    def answer(self) -> Answer:
        """The verdict, the networks, the entries of the last layer and what there is besides, and the picture."""
        networks = f"Networks: {self.ladder.description}, extrapolated with a quadratic in 1/n."
        return Answer(
            self.verdict,
            [networks, *self._parts(), self.figure],
            self.to_dataset,
            self._record(),
            self.agrees,
        )

    def figure(self) -> Figure:
        """Measured and predicted numbers, and their scores."""
        return self.draw([self.to_dataset()])

    draw = staticmethod(comparison_figure)  # of several comparisons, each as its dataset

    def _parts(self) -> list[Part]:
        depth = self.mlp.depth
        layers = np.array([entry.layer for entry in self.entries])
        scores: list[list[str | float | None]] = []
        for name in self.observables:
            each = [
                self.z[(layers == layer) & self.of(name) & self.fluctuates] for layer in range(2, depth + 1)
            ]
            scores.append(
                [name, *(round(float(np.sqrt(np.mean(z**2))), 2) if z.size else None for z in each)]
            )
        kinked = [name for name in ("P", "Q") if name in self.observables and self.mlp.activation.kinks]
        kinks = (
            f"{' and '.join(kinked)} without a second derivative at the kinks of {self.mlp.activation.label}, as "
            "automatic differentiation has it, in theory and in the networks."
        )
        return [
            self._entries_table(f"layer {depth}"),
            Table(("rms z", *(f"layer {layer}" for layer in range(2, depth + 1))), scores),
            *([kinks] if kinked else []),
            *self._own_width_table(),
        ]

    def _entries_table(self, heading: str, by_width: Sequence[str] = (), most: int | None = None) -> Table:
        """The entries of the last layer; with headings ``by_width`` also what was measured at each width."""
        last = max(entry.layer for entry in self.entries)
        limit = Column("measured limit", error="standard error")
        rows = []
        for place, entry in enumerate(self.entries):
            if entry.layer != last:
                continue
            same = abs(self.limit[place] - self.theory[place]) <= self.equal * self.unit[place]
            score = (
                round(float(self.z[place]), 2) if self.fluctuates[place] else "exact" if same else "differs"
            )
            widths = self.measured[:, place].tolist() if by_width else ()
            found = float(self.limit[place]), float(self.standard_error[place])
            rows.append((entry.label, float(self.theory[place]), *widths, *found, score))
        left = len(rows) - (most or len(rows))
        caption = f"The first {most} of {len(rows)} entries; rows() has all of them." if left > 0 else ""
        columns: list[str | Column] = [heading, "theory", *by_width, limit, "standard error", "z"]
        return Table(columns, rows[:most], caption)

    def _own_width_table(self) -> list[Table]:
        """K and Theta of the last layer at the own width, where the theory knows their 1/n correction."""
        last, own = max(entry.layer for entry in self.entries), self.own
        known = [
            place
            for place, entry in enumerate(self.entries)
            if entry.layer == last and np.isfinite(self.corrected[own, place])
        ]
        columns: dict[str | Column, Any] = {
            f"at width {self.ladder.networks[own].hidden_widths[0]}": [self.entries[i].label for i in known],
            "theory, n = infinity": self.theory[known],
            "theory with 1/n": self.corrected[own, known],
            Column("measured", error="standard error"): self.measured[own, known],
            "standard error": self.measured_error[own, known],
        }
        return [Table.of(columns)] if known else []

    def _record(self) -> dict[str, Any]:
        return {
            "activation": self.mlp.activation.label,
            **picked(self.mlp, "C_b C_W gamma depth"),
            "method": self.ladder.method,
            "widths": [network.hidden_widths[0] for network in self.ladder.networks],
            "draws": list(self.ladder.draws),
            "rms_z": self.judgement.rms,
            "largest_z": self.judgement.largest,
            "verdict": self.verdict,
            "entries": self.rows(),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Comparisons(Result):
    """Comparisons of one kind, of several activations, judged together."""

    each: tuple[Comparison, ...]
    seed: int

    def answer(self) -> Answer:
        """The common verdict, every comparison, and an overview; of one comparison that itself."""
        judgement = judge([(one.z[one.fluctuates], one.independent_scores) for one in self.each])
        exact = all(one.exact_agrees for one in self.each)
        agrees = judgement.agrees and exact
        single = [one.answer() for one in self.each]
        numbers = {"agrees": agrees, **judgement.record()}
        record = {**numbers, "seed": self.seed, "comparisons": [one.record for one in single]}
        if len(single) == 1:
            return replace(single[0], record=record)
        theory, networks = self.each[0].compared
        word = "agrees" if agrees else "does NOT agree"
        statement = f"{theory[0].upper()}{theory[1:]} {word} with {networks}: {judgement.text(exact)}."
        datasets = [one.to_dataset() for one in self.each]
        parts = [replace(one, parts=one.parts[:-1]) for one in single]  # pictures share one figure
        figure = partial(self.each[0].draw, datasets)
        judgements = [one.judgement for one in self.each]
        overview = Table.of(
            {
                "activation": [one.mlp.activation.label for one in self.each],
                "C_b of layer 2": [one.mlp.C_b[1] for one in self.each],
                "C_W of layer 2": [one.mlp.C_W[1] for one in self.each],
                "entries": [one.entries for one in judgements],
                "independent": [one.independent for one in judgements],
                "rms z": [round(one.rms, 2) for one in judgements],
                "largest |z|": [round(one.largest, 2) for one in judgements],
            }
        )
        return Answer(statement, [*parts, overview, figure], partial(_joined, datasets), record, agrees)


def _joined(datasets: Sequence[xarray.Dataset]) -> xarray.Dataset:
    """One dataset along a dimension ``activation``, with the verdicts as a coordinate."""
    import xarray

    names, verdicts = ([data.attrs[key] for data in datasets] for key in ("activation", "verdict"))
    parts = [data.drop_attrs() for data in datasets]
    whole = xarray.concat(parts, "activation", join="outer", combine_attrs="drop")
    return whole.assign_coords(activation=names, verdict=("activation", verdicts))
