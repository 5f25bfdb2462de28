"""What a prediction at finite width is: the infinite-width mean and its corrections of order 1/n, by origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Result
from foretrain.theory.prediction.result import PredictedOutputs, labelled_mean

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_MEANINGS = {
    "ntk_mean": "1/n shift of the mean tangent kernel",
    "ntk_variance": "fluctuations of the tangent kernel (∞.162)",
    "dntk": "first differential of the tangent kernel (∞.163)",
    "ddntk_1": "second differential of the first kind (∞.164)",
    "ddntk_2": "second differential of the second kind (∞.165)",
}


@dataclass(frozen=True, repr=False)
class Expansion(Result):
    """How small the corrections are; where these numbers are not, neither is what the expansion leaves out.

    ``ratios`` are A, B, P, Q over n Theta^2 and R, S, T, U times (K + y^2) over n Theta^3 (∞.170), means over the
    training inputs; ``terms`` is the sum of the sizes of all terms and ``correction`` the size of their sum, both
    relative to the infinite-width mean.
    """

    ratios: Mapping[str, float]
    terms: float
    correction: float

    @property
    def largest(self) -> float:
        """The largest of all."""
        return max(self.terms, *(abs(ratio) for ratio in self.ratios.values()))


class Rest(Protocol):
    """What computes the rest on demand."""

    def ntk_change(self) -> xr.DataArray:
        """The mean change of the tangent kernel."""

    def covariance_correction(self) -> xr.Dataset:
        """The covariance at order 1/n."""


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class FinitePrediction(PredictedOutputs):
    """The mean over initialisations of the outputs of trained networks, to order 1/n, and where it comes from.

    ``mean``, ``infinite_mean`` and each of ``terms`` have the dimensions (test, output), with the 1/n inside.
    ``covariance`` and ``variance`` are those at infinite width, ``standard_error`` that of a sampled mean, else None.
    """

    infinite_mean: xr.DataArray
    terms: dict[str, xr.DataArray]
    expansion: Expansion
    width: int
    eta: float | None
    time: float | None
    standard_error: xr.DataArray | None
    rest: Rest

    @cached_property
    def ntk_change(self) -> xr.DataArray:
        """Mean change of the tangent kernel by training, with its 1/n: (sample_1, sample_2, output_1, output_2).

        Training samples come first, then tests; computed when first asked for, for all pairs of samples.
        """
        return self.rest.ntk_change()

    @cached_property
    def covariance_correction(self) -> xr.Dataset:
        """All of order 1/n in the covariance at the end of training: its ``total`` and five parts, with their 1/n.

        (test_1, test_2, output_1, output_2), since outputs are no longer independent; computed when first asked for.
        """
        return self.rest.covariance_correction()

    def _arrays(self) -> dict[str, xr.DataArray | None]:
        # What is computed on demand only, as far as it was: saving must not take hours.
        known = self.__dict__
        return {
            **super()._arrays(),
            "infinite_mean": self.infinite_mean,
            **{f"term_{name}": term for name, term in self.terms.items()},
            "standard_error": self.standard_error,
            **{
                f"covariance_correction_{k}": part
                for k, part in known.get("covariance_correction", {}).items()
            },
            "ntk_change": known.get("ntk_change"),
        }

    def _numbers(self) -> dict[str, Any]:
        given = {"eta": self.eta, "time": self.time}
        sizes = {"terms_over_mean": self.expansion.terms, "correction_over_mean": self.expansion.correction}
        ratios = {f"ratio_{name}": value for name, value in self.expansion.ratios.items()}
        known = {name: value for name, value in given.items() if value is not None}
        return {"width": self.width, **known, **sizes, **ratios}

    def notes(self) -> list[str]:
        """How small the corrections are."""
        found = [
            f"Terms together are {self.expansion.terms:.2g} of the mean; about the square of that is left out."
        ]
        if self.standard_error is not None:
            found.append(
                f"They are sampled, with a standard error of at most {self.standard_error.max().item():.2g}."
            )
        return found


def labelled_terms(terms: Mapping[str, Array]) -> dict[str, xr.DataArray]:
    """Terms (tests, outputs) with names and meanings."""
    return {
        name: labelled_mean(values, f"{_MEANINGS[name]}, with its 1/n").rename(name)
        for name, values in terms.items()
    }
