"""What a prediction at infinite width is: Gaussian outputs, independent and with one covariance for every output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_SHOWN = 5


@dataclass(frozen=True, repr=False, eq=False)
class Prediction:
    """Mean and covariance over initialisations of the outputs of trained networks, exact at infinite width.

    ``mean`` has dimensions (test, output), ``covariance`` (test_1, test_2); it is the same for every output, and
    different outputs are independent.
    """

    mean: xr.DataArray
    covariance: xr.DataArray
    statement: str  # of how the networks were trained
    eta: float | None = None  # the learning rate, where the answer depends on it
    time: float | None = None  # None: the end
    jitter: float = 0.0  # what had to be added to the diagonal of the tangent kernel

    @property
    def standard_deviation(self) -> Array:
        """Spread of each test output over networks: (tests,)."""
        return np.asarray(np.sqrt(np.maximum(np.diagonal(self.covariance.values), 0.0)))

    def to_dataset(self) -> xr.Dataset:
        """Both in one dataset, for saving."""
        import xarray as xr

        attributes = {"statement": self.statement, "jitter": self.jitter}
        return xr.Dataset({"mean": self.mean, "covariance": self.covariance}, attrs=attributes)

    def __repr__(self) -> str:
        tests, outputs = self.mean.shape
        rows = [
            "  " + "  ".join(f"{value:10.4g}" for value in row[:_SHOWN]) + f"   ± {spread:.3g}"
            for row, spread in zip(self.mean.values[:_SHOWN], self.standard_deviation)
        ]
        more = [f"  … {tests - _SHOWN} more"] if tests > _SHOWN else []
        head = f"Prediction at infinite width, {self.statement}: {tests} test inputs, {outputs} outputs"
        note = [f"  jitter of the tangent kernel {self.jitter:.3g}"] if self.jitter else []
        return "\n".join([head, "  mean of each output ± spread over networks", *rows, *more, *note])


def prediction(
    mean: Array,
    covariance: Array,
    statement: str,
    eta: float | None = None,
    time: float | None = None,
    jitter: float = 0.0,
) -> Prediction:
    """A prediction with labels, from a mean (tests, outputs) and a covariance (tests, tests)."""
    import xarray as xr

    return Prediction(
        xr.DataArray(
            mean,
            dims=("test", "output"),
            attrs={"meaning": "mean output over initialisations (10.40)"},
            name="mean",
        ),
        xr.DataArray(
            covariance,
            dims=("test_1", "test_2"),
            attrs={"meaning": "covariance of each output over initialisations (10.41)"},
            name="covariance",
        ),
        statement,
        eta,
        time,
        jitter,
    )
