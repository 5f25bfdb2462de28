"""What is compared: numbers that theory and measurement share, and their values in batches of networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from foretrain.theory.architecture import FloatArray


@dataclass(frozen=True, order=True)
class Entry:
    """One number that theory and measurement share: an observable, a layer and indices of inputs."""

    observable: str
    layer: int
    inputs: tuple[int, ...]

    @property
    def label(self) -> str:
        """For example ``V_(00)(01)``."""
        numbers = [str(i) for i in self.inputs]
        if self.observable in ("V", "A"):
            return f"{self.observable}_({''.join(numbers[:2])})({''.join(numbers[2:])})"
        return f"{self.observable}_{''.join(numbers)}"


@dataclass(frozen=True)
class BatchValues:
    """One value per batch and entry: their mean is the estimate, their scatter its error."""

    values: FloatArray = field(repr=False)  # (batches, entries)

    @classmethod
    def jackknife(
        cls, function: Callable[[dict[str, FloatArray]], FloatArray], means: Mapping[str, FloatArray]
    ) -> BatchValues:
        """Pseudo-values of a function of means over networks, from named means over each batch (batches, ...).

        The function takes means with any leading axis. Leaving out one batch at a time gives one pseudo-value per
        batch, whose mean is the estimate, freed of its bias of order 1 / networks.
        """
        batches = len(next(iter(means.values())))
        everything = {name: column.mean(axis=0)[None] for name, column in means.items()}
        without_one = {name: (column.sum(axis=0) - column) / (batches - 1) for name, column in means.items()}
        return cls(batches * function(everything) - (batches - 1) * function(without_one))

    @property
    def estimate(self) -> FloatArray:
        """(entries,)."""
        return np.asarray(self.values.mean(axis=0))

    @property
    def covariance(self) -> FloatArray:
        """(entries, entries), of the estimates."""
        return np.atleast_2d(np.cov(self.values, rowvar=False)) / len(self.values)

    @property
    def freedom(self) -> FloatArray:
        """(entries,): of how many normal samples a variance would be as well known as that of these batches.

        The variance of a sample variance is (2 + excess kurtosis) / samples, relatively.
        """
        batches = len(self.values)
        centred = self.values - self.values.mean(axis=0)
        deviation = centred.std(axis=0)
        unit = centred / np.where(deviation > 0, deviation, 1.0)
        excess = np.maximum((unit**4).mean(axis=0) - 3, 0.0)
        return np.asarray((batches - 1) / (1 + excess / 2))

    @property
    def standard_error(self) -> FloatArray:
        """(entries,)."""
        return np.asarray(self.values.std(axis=0, ddof=1) / np.sqrt(len(self.values)))
