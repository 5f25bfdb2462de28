"""What every prediction tells: mean and spread of the outputs on test inputs, labelled and printable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_SHOWN = 5


@dataclass(frozen=True, repr=False, eq=False)
class PredictedOutputs:
    """Outputs on test inputs, over networks or under a posterior.

    ``mean`` has the dimensions (test, output). ``covariance`` (test_1, test_2) and ``variance`` (test,) are those of
    every output alike; what was not asked for is None.
    """

    mean: xr.DataArray
    covariance: xr.DataArray | None
    variance: xr.DataArray | None
    statement: str  # of how the outputs came about
    jitter: float = 0.0  # what had to be added to the diagonal of a kernel that was singular to rounding

    @property
    def standard_deviation(self) -> xr.DataArray | None:
        """The root of the variance of each test output: (test,)."""
        return None if self.variance is None else (self.variance**0.5).rename("standard_deviation")

    def to_dataset(self) -> xr.Dataset:
        """Everything in one dataset, for saving."""
        import xarray as xr

        found = {name: part for name, part in self._arrays().items() if part is not None}
        return xr.Dataset(
            found, attrs={"statement": self.statement, "jitter": self.jitter, **self._numbers()}
        )

    def _arrays(self) -> dict[str, xr.DataArray | None]:
        return {"mean": self.mean, "covariance": self.covariance, "variance": self.variance}

    def _numbers(self) -> dict[str, Any]:
        """What a dataset keeps besides arrays."""
        return {}

    def _notes(self) -> list[str]:
        """Lines of the text after the numbers."""
        return [f"jitter {self.jitter:.3g} on the diagonal of the kernel"] if self.jitter else []

    def __repr__(self) -> str:
        tests, outputs = self.mean.shape
        spread = self.standard_deviation
        told = [""] * tests if spread is None else [f"   ± {value:.3g}" for value in spread.values[:_SHOWN]]
        rows = [
            "  ".join(f"{value:10.4g}" for value in row[:_SHOWN]) + end
            for row, end in zip(self.mean.values[:_SHOWN], told, strict=False)
        ]
        rows += [f"… {tests - _SHOWN} more"] if tests > _SHOWN else []
        heading = "mean of each output" + ("" if spread is None else " ± standard deviation")
        parts = [f".{name}" for name, part in self._arrays().items() if part is not None]
        lines = [heading, *rows, *self._notes(), f"{', '.join(parts)}: labelled arrays"]
        inputs = f"{tests} test input{'s' * (tests != 1)}, {outputs} output{'s' * (outputs != 1)}"
        return "\n  ".join([f"{self.statement}: {inputs}", *lines])


def labelled_mean(values: Array, meaning: str) -> xr.DataArray:
    """Means (tests, outputs) with their labels."""
    import xarray as xr

    return xr.DataArray(values, dims=("test", "output"), name="mean", attrs={"meaning": meaning})


def labelled_tests(name: str, values: Array, meaning: str) -> xr.DataArray:
    """Numbers of test inputs (tests,), or of pairs of them (tests, tests), with their labels."""
    import xarray as xr

    dimensions = ("test",) if values.ndim == 1 else ("test_1", "test_2")
    return xr.DataArray(values, dims=dimensions, name=name, attrs={"meaning": meaning})


def labelled_spread(values: Array | None, meaning: str) -> tuple[xr.DataArray | None, xr.DataArray | None]:
    """Covariance and variance with their labels, from a covariance (tests, tests), a variance (tests,) or nothing.

    A variance that rounding made negative is zero.
    """
    if values is None:
        return None, None
    told = f"{meaning}, the same for every output"
    whole = values.ndim == 2
    covariance = labelled_tests("covariance", values, told) if whole else None
    alone = np.diagonal(values) if whole else values
    return covariance, labelled_tests("variance", np.maximum(alone, 0.0), told)
