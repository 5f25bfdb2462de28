"""What every prediction is: mean and spread of the outputs on test inputs, labelled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Answer, Result

if TYPE_CHECKING:
    import xarray as xr

Descent = Literal["gradient_descent", "flow"]
"""In steps or in continuous time: what has a rate, and may be stopped before its end."""
InfiniteAlgorithm = Literal[Descent, "newton"]
"""Of squared errors at infinite width."""
FiniteAlgorithm = Literal[Descent, "two_step"]
"""Of squared errors at finite width, where the end depends on the algorithm."""
Algorithm = Literal[Descent, "two_step", "newton"]
"""All of them."""


Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False, eq=False)
class PredictedOutputs(Result):
    """Outputs on test inputs, over networks or under a posterior.

    ``mean`` has the dimensions (test, output). ``covariance`` (test_1, test_2) and ``variance`` (test,) are those of
    every output alike; what was not asked for is None. ``task`` holds the data it is about, where they are known.
    """

    mean: xr.DataArray
    covariance: xr.DataArray | None
    variance: xr.DataArray | None
    statement: str  # of how the outputs came about
    jitter: float = 0.0  # what had to be added to the diagonal of a kernel that was singular to rounding
    task: xr.Dataset | None = field(default=None, kw_only=True)

    @property
    def standard_deviation(self) -> xr.DataArray | None:
        """The root of the variance of each test output: (test,)."""
        return None if self.variance is None else (self.variance**0.5).rename("standard_deviation")

    def to_dataset(self) -> xr.Dataset:
        """Everything in one dataset, for saving."""
        import xarray as xr

        found = {name: part for name, part in self._arrays().items() if part is not None}
        about = {"statement": self.statement, "jitter": self.jitter, **self._numbers()}
        task = {} if self.task is None else self.task
        return xr.Dataset({**found, **task}, attrs={**about, **getattr(task, "attrs", {})})

    def _arrays(self) -> dict[str, xr.DataArray | None]:
        return {"mean": self.mean, "covariance": self.covariance, "variance": self.variance}

    def _numbers(self) -> dict[str, Any]:
        """What a dataset keeps besides arrays."""
        return {}

    def notes(self) -> list[str]:
        """What else is to be said about the numbers."""
        return []

    def about(
        self, X: Array, Y: Array, X_test: Array, Y_test: Array | None = None, **attributes: str
    ) -> Self:
        """The same with the data it is about, which its picture shows and its losses are of."""
        import xarray as xr

        given = {"x": X, "x_test": X_test, "y": Y} | ({} if Y_test is None else {"y_test": Y_test})
        found: dict[str, Any] = {}
        for name, values in given.items():
            dims = "test" if "test" in name else "train", "component" if name[0] == "x" else "output"
            found[name] = (dims[: np.ndim(values)], values)
        return replace(self, task=xr.Dataset(found, attrs=attributes))

    def answer(self) -> Answer:
        """Mean and spread in a table, the loss where targets are known, and the picture."""
        from foretrain.theory.prediction.presentation import prediction_answer

        return prediction_answer(self)


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
