"""What a recorder did, at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ObservableSummary:
    """How often an observable was recorded and left out, its seconds in all, and why it ended, if it did."""

    records: int
    skipped: int
    seconds: float
    failure: str | None = None


@dataclass(frozen=True, repr=False)
class RecorderSummary:
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

    def __repr__(self) -> str:
        limit = "no limit" if self.budget is None else f"budget {self.budget:.3g}"
        lines = [
            f"Recorder in {self.folder}: {self.steps} steps, {self.records} records, overhead "
            f"{self.overhead:.2%} of {self.seconds:.3g} s ({limit})"
        ]
        width = max(len(name) for name in self.observables)
        for name, own in self.observables.items():
            share = own.seconds / self.seconds if self.seconds else 0.0
            ended = f"; ended: {own.failure}" if own.failure else ""
            lines.append(
                f"  {name:<{width}}  {own.records} recorded, {own.skipped} skipped, {share:.2%}{ended}"
            )
        share = self.bookkeeping_seconds / self.seconds if self.seconds else 0.0
        lines.append(f"  {'':<{width}}  protecting the training, writing, slower steps after it, {share:.2%}")
        apart = f"  apart from this: first-time work before the start {self.setup_seconds:.3g} s"
        closing = (
            f", writing the dataset at the end {self.closing_seconds:.3g} s" if self.closing_seconds else ""
        )
        return "\n".join([*lines, apart + closing])
