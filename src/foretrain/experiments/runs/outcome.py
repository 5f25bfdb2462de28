"""All records of a run together: its verdict, its document and its dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.experiments.experiment import Scale
from foretrain.experiments.runs.record import Record

if TYPE_CHECKING:
    import xarray

_COLUMNS = ("rows", "agree", "disagree", "explained", "seconds", "verdict", "error", "holds")


@dataclass(frozen=True, repr=False)
class Run:
    """How several experiments ended: one record for each, in their order.

    ``folder`` is where they are kept, or None; the folder of an experiment in it has the experiment's name.
    """

    records: tuple[Record, ...]
    scale: Scale
    seed: int
    folder: Path | None = None

    @property
    def holds(self) -> bool:
        """Whether every experiment came to its end, and every row that disagrees is explained."""
        return all(record.holds for record in self.records)

    @property
    def verdict(self) -> str:
        """One sentence."""
        agree, disagree, explained = (
            sum(getattr(record, key) for record in self.records) for key in ("agree", "disagree", "explained")
        )
        failed = sum(bool(record.error) for record in self.records)
        return (
            f"{agree} tested rows of {len(self.records)} experiments agree, {disagree} disagree"
            + (f" ({explained} of them with an explanation)" if disagree else "")
            + (f"; {failed} experiments failed." if failed else ".")
        )

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        experiments = [record.to_dict() for record in self.records]
        facts = {"scale": self.scale, "seed": self.seed, "verdict": self.verdict, "holds": self.holds}
        return {**facts, "experiments": experiments}

    def to_dataset(self) -> xarray.Dataset:
        """Counts, seconds and endings, labelled by experiment."""
        import xarray

        return xarray.Dataset(
            {key: ("experiment", [getattr(record, key) for record in self.records]) for key in _COLUMNS},
            coords={"experiment": [record.name for record in self.records]},
            attrs={"scale": str(self.scale), "seed": self.seed, "verdict": self.verdict},
        )

    def __repr__(self) -> str:
        lines = [f"{record.name}: {record.ending}" for record in self.records]
        return "\n".join([*lines, self.verdict])
