"""What a prediction at infinite width is: Gaussian outputs, independent and with one covariance for every output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.prediction.result import PredictedOutputs, labelled_mean, labelled_spread

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False, eq=False)
class Prediction(PredictedOutputs):
    """Mean and covariance over initialisations of the outputs of trained networks, exact at infinite width."""

    eta: float | None = None  # the learning rate, where the answer depends on it
    time: float | None = None  # None: the end

    def _numbers(self) -> dict[str, Any]:
        return {name: value for name in ("eta", "time") if (value := getattr(self, name)) is not None}


def prediction(
    mean: Array,
    spread: Array | None,
    statement: str,
    eta: float | None = None,
    time: float | None = None,
    jitter: float = 0.0,
) -> Prediction:
    """A prediction with labels, from a mean (tests, outputs) and a covariance (tests, tests) or variance (tests,)."""
    covariance, variance = labelled_spread(spread, "covariance over initialisations (10.41)")
    return Prediction(
        labelled_mean(mean, "mean output over initialisations (10.40)"),
        covariance,
        variance,
        f"Networks of infinite width {statement}",
        jitter,
        eta,
        time,
    )
