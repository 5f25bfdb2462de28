"""Named experiments: what each one reproduces, and where it is written.

A later room adds an experiment in three steps. In a module of the folder of its source, write a frozen dataclass
``Plan`` of all that depends on the scale, and ``PLANS = plans(quick=Plan(..), paper=Plan(..))``. Beside them, write
``def name(plan: Plan, seed: int) -> Result``. Add one line to ``experiments.toml``; listing experiments imports none
of those modules. What is a number, a text or a list of them in the plan is a setting for sweeps. One that runs for
long takes ``parts: Parts`` as a third argument, keeps with it what is finished, and says ``resumable``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from foretrain.experiments.experiment import Experiment, Result, Row, Scale, plans
from foretrain.support.errors import unknown_name

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
