"""What random probes say of a kernel, with its standard error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Answer, Result, labelled
from foretrain.support.seeds import Seed, integer


@dataclass(frozen=True, repr=False, eq=False)
class KernelEstimate(Result):
    """A mean over random probes with its standard error: a number, or one entry per (sample, output).

    Without probes it is exact.
    """

    value: Any
    standard_error: Any
    probes: int
    seed: int

    def answer(self) -> Answer:
        """The number with its error, or how many there are and between which ends they lie."""
        value, error = np.asarray(self.value, dtype=float), np.asarray(self.standard_error, dtype=float)
        drawn = f"{self.probes} random-sign probes, seed {self.seed}" if self.probes else "exact"
        said = f"{float(value):.6g} ± {float(error):.2g}" if value.ndim == 0 else f"shape {value.shape}"
        if value.size > 1:
            said += f", from {value.min():.6g} to {value.max():.6g}, errors up to {error.max():.2g}"
        axes = ("sample", "output")[: value.ndim]
        data = labelled({"value": (axes, value), "value_error": (axes, error)})
        return Answer(f"KernelEstimate({said}; {drawn})", data=data, record=vars(self))


def estimate(draws: NDArray[Any], seed: int) -> KernelEstimate:
    """Mean of independent draws along the first axis, and its standard error."""
    mean, error = draws.mean(0), standard_error(draws)
    if mean.ndim == 0:
        return KernelEstimate(float(mean), float(error), len(draws), seed)
    return KernelEstimate(mean, error, len(draws), seed)


def standard_error(draws: NDArray[Any]) -> Any:
    """Of the mean of independent draws along the first axis."""
    return np.std(draws, axis=0, ddof=1) / np.sqrt(len(draws))


def stated_seed(seed: Seed) -> int:
    """A number that gives the same probes again: the seed itself, or one that is drawn from it."""
    return int(seed) if isinstance(seed, int | np.integer) else integer(seed)
