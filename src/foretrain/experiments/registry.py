"""Experiments by their names: what each one reproduces, where it is written, its scale, its rows and its result.

A later room adds an experiment in three steps. In a module of the folder of its source, write a frozen dataclass
``Plan`` of all that depends on the scale, and ``PLANS = plans(quick=Plan(..), paper=Plan(..))``, or a table of these
by function where it has several experiments. Beside them, write ``def name(plan: Plan, seed: int) -> Result``. Add
one line to ``experiments.toml``; listing experiments imports none of those modules. What is a number, a text or a
list of them in the plan is a setting for sweeps; any other plan of its type can be run too. One that runs for long
takes ``parts: Parts`` as a third argument, keeps with it what is finished, and says ``resumable``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from foretrain.support import answers
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    import xarray


P = TypeVar("P")

KNOWN = "no, known"  # a claim of the source that is known not to hold
_COLUMNS = ("quantity", "expected", "here", "standard_error", "z", "agrees", "note")


class Scale(StrEnum):
    """How much work an experiment does: seconds on a laptop, or the size the source printed."""

    QUICK = "quick"
    PAPER = "paper"


def plans(quick: P, paper: P) -> Mapping[Scale, P]:
    """What an experiment does at each scale."""
    return {Scale.QUICK: quick, Scale.PAPER: paper}


@dataclass(frozen=True)
class Row:
    """One line of the comparison: a quantity, the value that is expected of it, and the one that is found here.

    What is expected is printed in the source, follows from theory, or is a reference value of our own; only the first
    is called published. Trends are told in words. ``note`` explains what the reader would ask: why a published trend
    is absent here, and at which size it appears.
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

    def record(self) -> dict[str, Any]:
        """The row for machines."""
        return {**asdict(self), "z": self.z}


@dataclass(frozen=True, repr=False)
class Result(answers.Result):
    """What an experiment hands back.

    ``verdict`` is one sentence; ``data`` holds every number behind the table and the picture, which ``draw`` makes of
    it alone.
    """

    verdict: str
    table: tuple[Row, ...]
    data: xarray.Dataset
    draw: Callable[[xarray.Dataset], answers.Figure] | None = None

    @property
    def figure(self) -> Callable[[], answers.Figure] | None:
        """Makes the picture when it is called, so that nobody pays for one that is not looked at."""
        return None if self.draw is None else partial(self.draw, self.data)

    @property
    def agrees(self) -> bool:
        """Whether every tested row agrees."""
        return all(row.agrees is not False for row in self.table)

    def answer(self) -> answers.Answer:
        """The rows as a table, the verdict, the picture and the data."""
        pictures = [] if self.figure is None else [self.figure]
        rows = [row.record() for row in self.table]
        record = {"verdict": self.verdict, "agrees": self.agrees, "rows": rows}
        return answers.Answer(self.verdict, [rows_table(rows), *pictures], self.data, record, self.agrees)


def rows_table(records: Sequence[Mapping[str, Any]]) -> answers.Table:
    """Rows of an experiment as a table for people; columns in which nothing stands are left out."""
    shown = [
        {
            **row,
            "z": None if row["z"] is None else round(row["z"], 2),
            "agrees": KNOWN if row["disputed"] and row["agrees"] is False else row["agrees"],
        }
        for row in records
    ]
    used = [key for key in _COLUMNS if any(row[key] not in (None, "") for row in shown)]
    rows = [[row[key] for key in used] for row in shown]
    return answers.Table([key.replace("_", " ") for key in used], rows)


@dataclass(frozen=True)
class Experiment:
    """An entry of the table: the experiment's name, what it shows, its source, and where its function is."""

    name: str
    title: str
    source: str
    address: str  # "module:function"
    resumable: bool = False  # its function takes the parts as a third argument, after plan and seed
    seconds: float = 10.0  # of one core at quick scale, roughly: its share of the progress of a run of all

    def load(self) -> Callable[..., Result]:
        """Import the experiment's module and return its function."""
        module, function = self.address.split(":")
        return cast("Callable[..., Result]", getattr(import_module(module), function))

    @property
    def plans(self) -> Mapping[str, Any]:
        """What is done at each scale: two plans of one type, a frozen dataclass."""
        module, function = self.address.split(":")
        found = cast("Mapping[str, Any]", import_module(module).PLANS)
        return cast("Mapping[str, Any]", found.get(function, found))

    def run(
        self,
        scale: Scale | str = Scale.QUICK,
        seed: int = 0,
        *,
        plan: Any = None,
        keep: str | Path | None = None,
    ) -> Result:
        """Run the experiment; the same scale, seed and plan give the same numbers.

        ``plan`` is run in place of that of the scale: ``dataclasses.replace(experiment.plans["quick"], draws=100)``.
        ``keep`` is a folder for the finished parts of a resumable experiment: a second run goes on from them.
        """
        if scale not in tuple(Scale):
            raise InputError(f"scale {scale!r} is not known: choose 'quick' or 'paper'.")
        own = self.plans[scale]
        identity: dict[str, str | int] = {"experiment": self.name, "scale": str(scale), "seed": seed}
        if plan is None:
            plan = own
        elif isinstance(plan, type(own)):
            identity["plan"] = repr(plan)
        else:
            raise InputError(
                f"a plan of {self.name} is a {type(own).__qualname__}, this is a {type(plan).__qualname__}: "
                f"change one of its plans by dataclasses.replace."
            )
        if not self.resumable:
            if keep is not None:
                raise InputError(f"{self.name} has no parts that could be kept: leave that out.")
            return self.load()(plan, seed)
        from foretrain.experiments.parts import Parts

        parts = Parts(keep, identity)
        try:
            return self.load()(plan, seed, parts)
        finally:
            parts.close()


__all__ = ["Experiment", "Result", "Row", "Scale", "get", "names", "plans"]


def _entries() -> Iterator[Experiment]:
    """Read the table of experiments; function and module are called like the experiment unless it names others."""
    table = tomllib.loads(Path(__file__).with_name("experiments.toml").read_text(encoding="utf-8"))
    for folder, entries in table.items():
        source = entries.pop("source")
        for name, entry in entries.items():
            function = name.replace("-", "_")
            module = entry.get("module", function)
            address = f"foretrain.experiments.{folder}.{module if ':' in module else f'{module}:{function}'}"
            place, resumable = f"{source}, {entry['place']}", entry.get("resumable", False)
            yield Experiment(name, entry["title"], place, address, resumable, entry["seconds"])


_BY_NAME = {entry.name: entry for entry in _entries()}


def names() -> tuple[str, ...]:
    """Names of all experiments, in the order of the sources."""
    return tuple(_BY_NAME)


def get(name: str) -> Experiment:
    """The experiment with this name."""
    if name not in _BY_NAME:
        raise unknown_name("experiment", name, _BY_NAME, "name")
    return _BY_NAME[name]
