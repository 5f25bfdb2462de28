"""Named experiments: what each one reproduces, and where it is written.

A later room adds an experiment in three steps. In a module of the folder of its source, write a frozen dataclass
``Plan`` of all that depends on the scale, and the table ``PLANS: Mapping[Scale, Plan]``. Beside them, write
``def name(plan: Plan, seed: int) -> Result``. Add one entry to the ``catalogue`` of the folder; listing experiments
imports none of those modules. What is a number, a text or a list of them in the plan is a setting for sweeps.
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
