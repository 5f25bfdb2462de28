"""The computations whose costs `python -m bench.scaling` fits: what is measured at which sizes."""

from __future__ import annotations

from bench.laws import random_networks, states, tangent_kernels, trainings
from bench.laws.law import Job, Law


def laws() -> list[Law]:
    """All of them: theory, kernels of torch models, their states, what is done with trainings."""
    return [*random_networks.laws(), *tangent_kernels.laws(), *states.laws(), *trainings.laws()]


__all__ = ["Job", "Law", "laws"]
