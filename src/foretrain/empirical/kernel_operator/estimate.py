"""What random probes say of a kernel, with its standard error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.seeds import Seed, integer


@dataclass(frozen=True, repr=False, eq=False)
class KernelEstimate:
    """A mean over random probes with its standard error: a number, or one entry per (sample, output).

    Without probes it is exact.
    """

    value: Any
    standard_error: Any
    probes: int
    seed: int

    def __repr__(self) -> str:
        drawn = f"{self.probes} random-sign probes, seed {self.seed}" if self.probes else "exact"
        if np.ndim(self.value) == 0:
            return f"KernelEstimate({float(self.value):.6g} ± {float(self.standard_error):.2g}; {drawn})"
        return f"KernelEstimate(shape {np.shape(self.value)}, .value ± .standard_error; {drawn})"


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
