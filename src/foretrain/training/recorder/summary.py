"""What a recorder did, at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foretrain.support.answers import Answer, Result, Table


@dataclass(frozen=True)
class ObservableSummary:
    """How often an observable was recorded and left out, its seconds in all, and why it ended, if it did."""

    records: int
    skipped: int
    seconds: float
    failure: str | None = None


@dataclass(frozen=True, repr=False)
class RecorderSummary(Result):
    """Steps counted, records written, and the measured share of the time that recording took."""

    folder: str
    steps: int
    records: int
    seconds: float
    overhead: float
    budget: float | None
    bookkeeping_seconds: float
    setup_seconds: float
    closing_seconds: float
    observables: Mapping[str, ObservableSummary]

    def answer(self) -> Answer:
        """The whole recording in a sentence, and its cost by observable."""
        limit = "no limit" if self.budget is None else f"budget {self.budget:.3g}"
        whole = self.seconds or 1.0
        rows: list[tuple[str | int | None, ...]] = [
            (name, own.records, own.skipped, f"{own.seconds / whole:.2%}", own.failure)
            for name, own in self.observables.items()
        ]
        others = "protecting the training, writing, slower steps after it"
        rows.append((others, None, None, f"{self.bookkeeping_seconds / whole:.2%}", None))
        columns = ("observable", "recorded", "skipped", "share of the time", "ended")
        width = len(columns) if any(own.failure for own in self.observables.values()) else len(columns) - 1
        closing = (
            f", writing the dataset at the end {self.closing_seconds:.3g} s" if self.closing_seconds else ""
        )
        return Answer(
            f"Recorder in {self.folder}: {self.steps} steps, {self.records} records, overhead "
            f"{self.overhead:.2%} of {self.seconds:.3g} s ({limit}).",
            [
                Table(columns[:width], [row[:width] for row in rows]),
                f"Apart from this: first-time work before the start {self.setup_seconds:.3g} s{closing}.",
            ],
        )
