"""What an experiment is: its scale, the rows of its table, its result, and its entry in the table of experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, cast

from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    import xarray
    from matplotlib.figure import Figure


class Scale(StrEnum):
    """How much work an experiment does: seconds on a laptop, or the size the source printed."""

    QUICK = "quick"
    PAPER = "paper"


@dataclass(frozen=True)
class Row:
    """One line of the comparison: a quantity, its published or theoretical value, and the one found here.

    Trends are told in words. ``note`` explains what the reader would ask: why a published trend is absent here,
    and at which size it appears.
    """

    quantity: str
    expected: float | str
    here: float | str
    standard_error: float | None = None  # None: computed, not sampled
    agrees: bool | None = None  # None: shown for orientation, no claim is tested
    note: str = ""
    disputed: bool = False  # a claim of the source that is known not to hold; the note says why

    @property
    def z(self) -> float | None:
        """Distance from the expected value in standard errors."""
        if not self.standard_error or isinstance(self.here, str) or isinstance(self.expected, str):
            return None
        return (self.here - self.expected) / self.standard_error


@dataclass(frozen=True)
class Result:
    """What an experiment hands back.

    ``verdict`` is one sentence; ``data`` holds every number behind the table and the picture; ``figure``
    draws the picture when it is called, so that matplotlib is imported only if somebody wants to see it.
    """

    verdict: str
    table: tuple[Row, ...]
    data: xarray.Dataset
    figure: Callable[[], Figure] | None = None

    @property
    def agrees(self) -> bool:
        """Whether every tested row agrees."""
        return all(row.agrees is not False for row in self.table)


@dataclass(frozen=True)
class Experiment:
    """An entry of the table: the experiment's name, what it shows, its source, and where its function is."""

    name: str
    title: str
    source: str
    address: str  # "module:function"
    resumable: bool = False  # its function takes the parts as a third argument
    seconds: float = 10.0  # of one core at quick scale, roughly: its share of the progress of a run of all

    def load(self) -> Callable[..., Result]:
        """Import the experiment's module and return its function."""
        module, function = self.address.split(":")
        return cast("Callable[..., Result]", getattr(import_module(module), function))

    def run(
        self, scale: Scale | str = Scale.QUICK, seed: int = 0, *, keep: str | Path | None = None
    ) -> Result:
        """Run the experiment; the same scale and seed give the same numbers.

        ``keep`` is a folder for the finished parts of a resumable experiment: a second run goes on from them.
        """
        if scale not in tuple(Scale):
            raise InputError(f"scale {scale!r} is not known: choose 'quick' or 'paper'.")
        if not self.resumable:
            if keep is not None:
                raise InputError(f"{self.name} has no parts that could be kept: leave that out.")
            return self.load()(Scale(scale), seed)
        from foretrain.experiments.parts import Parts

        parts = Parts(keep, {"experiment": self.name, "scale": str(scale), "seed": seed})
        try:
            return self.load()(Scale(scale), seed, parts)
        finally:
            parts.close()
