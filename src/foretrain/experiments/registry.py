"""Named experiments: what each one reproduces, and where it is written.

A later room adds an experiment in two steps: write ``def run(scale: Scale, seed: int) -> Result`` in a module
of the folder of its source, and add one line to the ``catalogue`` there. Listing them imports none of those modules.
One that runs for long takes ``parts: Parts`` as a third argument, keeps with it what is finished, and says
``resumable``.
"""

from __future__ import annotations

from foretrain.experiments.collective_fields import catalogue as collective_fields
from foretrain.experiments.effective_theory import catalogue as effective_theory
from foretrain.experiments.experiment import Experiment, Result, Row, Scale
from foretrain.experiments.global_ntk import catalogue as global_ntk
from foretrain.experiments.saddle_escape import catalogue as saddle_escape
from foretrain.support.errors import unknown_name

__all__ = ["Experiment", "Result", "Row", "Scale", "get", "names"]

_TABLE: tuple[Experiment, ...] = (
    *effective_theory.EXPERIMENTS,
    *global_ntk.EXPERIMENTS,
    *collective_fields.EXPERIMENTS,
    *saddle_escape.EXPERIMENTS,
)
_BY_NAME = {entry.name: entry for entry in _TABLE}


def names() -> tuple[str, ...]:
    """Names of all experiments, in the order of the sources."""
    return tuple(_BY_NAME)


def get(name: str) -> Experiment:
    """The experiment with this name."""
    if name not in _BY_NAME:
        raise unknown_name("experiment", name, _BY_NAME)
    return _BY_NAME[name]
