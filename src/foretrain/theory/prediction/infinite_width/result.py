"""What a prediction at infinite width is: Gaussian outputs, independent and with one covariance for every output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False, eq=False)
class Prediction:
    """Mean and covariance over initialisations of the outputs of trained networks, exact at infinite width."""

    mean: Array  # (tests, outputs)
    covariance: Array  # (tests, tests), the same for every output; different outputs are independent
    statement: str  # of how the networks were trained
    eta: float | None = None  # the learning rate, where the answer depends on it
    time: float | None = None  # None: the end
    shift: float = 0.0  # what had to be added to the diagonal of the kernel

    @property
    def standard_deviation(self) -> Array:
        """Spread of each test output over networks: (tests,)."""
        return np.sqrt(np.maximum(np.diagonal(self.covariance), 0.0))

    def to_dataset(self) -> xr.Dataset:
        """Both with labels, for saving."""
        import xarray as xr

        covariance = {"meaning": "covariance of each output over initialisations (10.41)"}
        return xr.Dataset(
            {
                "mean": (("test", "output"), self.mean, {"meaning": "mean over initialisations (10.40)"}),
                "covariance": (("test_1", "test_2"), self.covariance, covariance),
            },
            attrs={"statement": self.statement, "shift": self.shift},
        )

    def __repr__(self) -> str:
        tests, outputs = self.mean.shape
        rows = [
            "  " + "  ".join(f"{value:10.4g}" for value in row) + f"   ± {spread:.3g}"
            for row, spread in zip(self.mean[:5], self.standard_deviation[:5], strict=True)
        ]
        more = [f"  … {tests - 5} more"] if tests > 5 else []
        head = f"Prediction at infinite width, {self.statement}: {tests} test inputs, {outputs} outputs"
        note = [f"  diagonal of the kernel shifted by {self.shift:.3g}"] if self.shift else []
        return "\n".join([head, "  mean of each output ± spread over networks", *rows, *more, *note])
