"""The evidence of a network of finite width, log p(y_A) to order 1/n, and what it says about hypotheses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Result
from foretrain.support.errors import AccuracyWarning
from foretrain.support.progress import track
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width.expansion import LARGE
from foretrain.theory.prediction.bayes.finite_width.observed import observe
from foretrain.theory.prediction.bayes.finite_width.posterior import warn_of_expansion
from foretrain.theory.prediction.bayes.finite_width.shifts import shifts
from foretrain.theory.prediction.bayes.scan import evidence_scan

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class FiniteEvidence(Result):
    """log p(y_A): ``value`` = ``infinite`` + ``correction`` (1/n included), ``standard_error`` 0 if not sampled.

    ``expansion`` is the variance of the log density over networks, which must be small.
    """

    also = ("value",)
    infinite: float
    correction: float
    expansion: float
    standard_error: float

    @property
    def value(self) -> float:
        """Both orders."""
        return self.infinite + self.correction

    def __float__(self) -> float:
        return self.value


def finite_log_evidence(
    mlp: MLP,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    noise: float = 0.0,
    draws: int | None = None,
    seed: Seed = 0,
) -> FiniteEvidence:
    """log p(y_A) of a network before training, to order 1/n; ``draws`` as in :func:`finite_bayes_prediction`.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = finite_log_evidence(ft.MLP("relu", depth=5, width=100, C_W=2.0), [[1.0]], [1.0])
    >>> round(found.value, 9), round(found.infinite, 9), round(found.correction, 9)
    (-1.509262123, -1.515512123, 0.00625)
    """
    found = _evidence(mlp, X, Y, noise, draws, seed)
    warn_of_expansion(found.expansion)
    return found


def _evidence(
    mlp: MLP, X: ArrayLike, Y: ArrayLike, noise: float, draws: int | None, seed: Seed
) -> FiniteEvidence:
    data = observe(mlp, X, Y, noise, "X")
    value, error = shifts(data, data.inputs[:0], "none", draws, seed)
    scale = data.inverse_width
    return FiniteEvidence(
        data.infinite_log_evidence,
        scale * float(value.evidence),
        scale * float(value.fluctuation),
        0.0 if error is None else scale * float(error.evidence),
    )


def finite_bayes_factor(
    first: MLP,
    second: MLP,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    noise: float = 0.0,
    draws: int | None = None,
    seed: Seed = 0,
) -> float:
    """log of the Bayes factor p(y | first) / p(y | second) to order 1/n (6.30): widths count, too."""
    mine, other = (
        finite_log_evidence(mlp, X, Y, noise=noise, draws=draws, seed=seed) for mlp in (first, second)
    )
    return float(mine) - float(other)


def finite_evidence_scan(
    mlp: MLP,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    C_b: ArrayLike | None = None,
    C_W: ArrayLike | None = None,
    depth: Sequence[int] | None = None,
    noise: float = 0.0,
    draws: int | None = None,
    seed: Seed = 0,
) -> xr.Dataset:
    """The evidence to order 1/n over (depth, C_b, C_W), beside :func:`evidence_scan` at infinite width.

    Variables: ``log_evidence``, ``infinite_log_evidence``, ``expansion``, and ``reliable`` where the latter is small.
    Points that infinite width cannot compute are nan. Hidden layers must have equal widths, to go to other depths.
    """
    whole = evidence_scan(mlp, X, Y, C_b=C_b, C_W=C_W, depth=depth, noise=noise)
    infinite = whole["log_evidence"]
    found = np.full((2, *infinite.shape), math.nan)
    for place in track(np.argwhere(np.isfinite(infinite.values)), "hypotheses"):
        point = infinite[tuple(int(index) for index in place)]
        other = mlp.replace(**{name: point[name].item() for name in ("depth", "C_b", "C_W")})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)  # the variable reliable tells
            evidence = _evidence(other, X, Y, noise, draws, seed)
        found[:, *place] = evidence.value, evidence.expansion
    return whole[[]].assign(
        log_evidence=infinite.copy(data=found[0]).assign_attrs(long_name="log p(targets) to order 1/n"),
        infinite_log_evidence=infinite,
        expansion=infinite.copy(data=found[1]).assign_attrs(
            long_name="variance of the log density over networks"
        ),
        reliable=infinite.copy(data=found[1] < LARGE).assign_attrs(
            long_name="whether 1/n is a small parameter"
        ),
    )
