"""The checks, in the order in which causes come before their consequences.

A check is a file of this package with a function ``check(case: Case) -> Examination``. What it cannot judge it says
by raising NotSupportedError. Stages say when its treatments are carried out: checks of a later stage look again at
what the earlier treatments have made of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretrain.doctor.finding import Examination
    from foretrain.doctor.setup import Case


class Stage(IntEnum):
    """What a treatment changes."""

    DATA = 0
    WEIGHTS = 1
    OPTIMIZER = 2
    RATE = 3
    NONE = 4  # no treatment, or one that only the user can carry out


class Effort(IntEnum):
    """What a check does. Where time is short, those that do less come first."""

    OUTCOME = 0  # what the others go by
    LOOK = 1  # a few passes
    THEORY = 2  # kernels, flows and curvatures
    TRAINING = 3  # the network is trained again, in other ways


@dataclass(frozen=True)
class Check:
    """A question about the network; ``name`` is also its file.

    ``steps`` is about how many steps of a training it takes as long as.
    """

    name: str
    question: str
    stage: Stage
    effort: Effort = field(default=Effort.LOOK, kw_only=True)
    steps: float = field(default=20, kw_only=True)
    treats_descent_only: bool = field(default=False, kw_only=True)  # another optimizer needs no treatment

    @property
    def function(self) -> Callable[[Case], Examination]:
        """The check itself; its file is read now."""
        found: Callable[[Case], Examination] = import_module(f"{__name__}.{self.name}").check
        return found


CHECKS = (
    Check("loss", "Does the loss ask for what is wanted, and can the outputs give it?", Stage.DATA),
    Check("samples", "Does each answer come from its own sample?", Stage.DATA),
    Check("gradients", "Does a gradient reach every parameter, and does the optimizer move it?", Stage.DATA),
    Check("layers", "What is lost, copied or left straight between inputs and outputs?", Stage.WEIGHTS),
    Check("sequence", "Do answers see the positions that matter?", Stage.WEIGHTS),
    Check("inputs", "Are inputs and targets on one scale?", Stage.DATA, effort=Effort.THEORY, steps=40),
    Check(
        "initialisation",
        "Is every layer at its critical initialisation?",
        Stage.WEIGHTS,
        effort=Effort.THEORY,
        steps=60,
    ),
    Check(
        "gains",
        "Do signals and gradients keep their size through the blocks?",
        Stage.WEIGHTS,
        effort=Effort.THEORY,
        steps=60,
    ),
    Check("dead_units", "Do all units answer to the data?", Stage.WEIGHTS),
    Check("plateau", "Will the loss wait on a plateau?", Stage.WEIGHTS, effort=Effort.THEORY, steps=200),
    Check("aspect_ratio", "Is the network wide enough for its depth?", Stage.NONE, effort=Effort.THEORY),
    Check(
        "layer_shares",
        "Do all layers take part in learning?",
        Stage.OPTIMIZER,
        effort=Effort.THEORY,
        steps=30,
    ),
    Check(
        "states", "What can change in the states over time?", Stage.OPTIMIZER, effort=Effort.THEORY, steps=300
    ),
    Check(
        "conditioning",
        "How unequal are the directions that are learned?",
        Stage.NONE,
        effort=Effort.THEORY,
        steps=200,
    ),
    Check(
        "modes",
        "Which parts of the target are learned, and how fast?",
        Stage.OPTIMIZER,
        effort=Effort.THEORY,
        steps=220,
        treats_descent_only=True,
    ),
    Check(
        "learning_rate",
        "Is the learning rate stable, and large enough?",
        Stage.RATE,
        effort=Effort.THEORY,
        steps=80,
    ),
    Check(
        "interventions",
        "Which part, made standard, lets it learn?",
        Stage.RATE,
        effort=Effort.TRAINING,
        steps=600,
    ),
    Check("outcome", "Does it learn, beside simple learners?", Stage.NONE, effort=Effort.OUTCOME, steps=300),
)
