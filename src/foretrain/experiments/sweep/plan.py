"""A sweep and its store together: what is wanted, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.experiments.sweep.points import Point, axes_of, points
from foretrain.experiments.sweep.spec import Spec, read_spec

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.journal import Contents


@dataclass(frozen=True)
class Plan:
    """What a file asks for, and the folder that it goes to."""

    spec: Spec
    store: Path

    @staticmethod
    def of(spec: str | Path, store: str | Path | None) -> Plan:
        """The store is beside the file, unless it is named."""
        found = read_spec(spec)
        chosen = Path(spec).with_suffix(".sweep") if store is None else Path(store)
        return Plan(found, chosen.expanduser().absolute())

    @cached_property
    def points(self) -> dict[str, Point]:
        """All of them by their keys."""
        return {point.key: point for point in points(self.spec)}

    def wanted(self, contents: Contents, *, retry_failed: bool) -> list[Point]:
        """Points that are still to be computed."""
        over = contents.done.keys() | (set() if retry_failed else contents.failed.keys())
        return [point for key, point in self.points.items() if key not in over]

    def dataset(self, contents: Contents) -> xarray.Dataset:
        """What is finished, labelled."""
        from foretrain.experiments.sweep.labelling import as_dataset

        return as_dataset(contents, axes_of(self.spec), self.points.values(), self.spec)
