"""How much there is to specify and to train in linear and quadratic models (11.120)-(11.122)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.support.answers import Result
from foretrain.support.errors import InputError


@dataclass(frozen=True, repr=False)
class ModelCounts(Result):
    """Parameters, and functions of the input that somebody has to choose."""

    parameters: int
    linear_functions: int
    quadratic_functions: int


def counts(features: int, outputs: int = 1) -> ModelCounts:
    """For P = n_f + 1 features: P n_out parameters, P functions, and P + P (P + 1) / 2 functions."""
    if not all(isinstance(each, int | np.integer) and each >= 1 for each in (features, outputs)):
        raise InputError(f"features is {features} and outputs {outputs}: give whole numbers, at least one.")
    return ModelCounts(features * outputs, features, features + features * (features + 1) // 2)
