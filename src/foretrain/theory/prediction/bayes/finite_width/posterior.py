"""Posterior and evidence of a network of finite width, to order 1/n (6.79)-(6.89)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import AccuracyWarning
from foretrain.support.progress import track
from foretrain.support.seeds import Seed
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width.statistics import LARGE
from foretrain.theory.prediction.bayes.evidence import evidence_scan
from foretrain.theory.prediction.bayes.finite_width.shifts import PARTS, Observed, Shifts, observe, shifts
from foretrain.theory.prediction.kernels import Spread, check_spread, training_blocks
from foretrain.theory.prediction.predicted_outputs import PredictedOutputs

if TYPE_CHECKING:
    import xarray as xr


_MEANINGS = {
    "mean": "posterior mean to order 1/n",
    "infinite_mean": "posterior mean at infinite width (6.64)",
    "covariance": "covariance of one output given the metric, the same for every output, to order 1/n",
    "infinite_covariance": "posterior covariance at infinite width (6.57)",
    "variance_given_metric": "variance of one output given the metric, the same for every output, to order 1/n",
    "infinite_variance": "posterior variance at infinite width (6.57)",
    "wiring": "covariance of outputs by the scatter of their means over metrics, of order 1/n (6.89)",
    "variance": "variance of every output: given the metric, and by the scatter of means",
}
_SHIFTS = {
    "wiring": "by the targets of all outputs, V:(sum_k u_k u_k^T) u / 2",
    "rest": "by all but the wiring: trace, exchange and metric",
    "trace": "by the expected size of the outputs, -n_L V:P u / 2",
    "exchange": "by exchange of inputs between the pairs of V, -V_(ac)(bd) P^cd u^b",
    "metric": "by the 1/n part of the mean metric, G1 u",
}
_PAIRS, _OUTPUTS = ("test_1", "test_2"), ("test", "output")
_WIRING = {
    "covariance": ("test_1", "output_1", "test_2", "output_2"),
    "variance": ("test", "output_1", "output_2"),
}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FiniteBayesPrediction(PredictedOutputs):
    """What observing the training targets says about the outputs of a finite network on test inputs.

    ``mean`` (test, output) = ``infinite_mean`` + the ``terms``: ``wiring``, by which outputs learn from each other's
    targets, and the ``rest``, which ``rest_terms`` splits into ``trace``, ``exchange`` and ``metric`` (from G1). All
    contain their 1/n.
    The covariance of outputs i and j at two tests is ``covariance`` (test_1, test_2), where i = j, plus ``wiring``
    (test_1, output_1, test_2, output_2). ``variance`` (test, output) is that of every output,
    ``variance_given_metric`` (test,) without the wiring. With spread="variance" the wiring is (test, output_1,
    output_2) and there is no covariance; what was not asked for is None.
    ``expansion`` is the variance of the log density of the targets over networks: what must be small for an expansion
    in 1/n. ``standard_error`` has a variable for every array, where integrals were sampled, else it is None.
    """

    infinite_mean: xr.DataArray
    terms: dict[str, xr.DataArray]
    rest_terms: dict[str, xr.DataArray]
    infinite_covariance: xr.DataArray | None
    variance_given_metric: xr.DataArray | None
    infinite_variance: xr.DataArray | None
    wiring: xr.DataArray | None
    log_evidence: float
    infinite_log_evidence: float
    expansion: float
    standard_error: xr.Dataset | None
    noise: float

    def _parts(self) -> tuple[dict[str, xr.DataArray], dict[str, Any]]:
        found = {f"mean_{name}": part for name, part in (self.terms | self.rest_terms).items()}
        errors = {} if self.standard_error is None else self.standard_error.items()
        return found | {f"standard_error_of_{name}": part for name, part in errors}, {}

    def notes(self) -> list[str]:
        """Evidence, and whether the expansion can be trusted."""
        how = "exact integrals" if self.standard_error is None else "sampled integrals, see .standard_error"
        verdict = "small" if self.expansion < LARGE else "NOT small: widen the network"
        return [
            f"Log evidence of the training targets: {self.log_evidence:.6g}.",
            f"Variance of the log density over networks: {self.expansion:.3g} ({verdict}); {how}.",
        ]


def finite_bayes_prediction(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    *,
    noise: float = 0.0,
    spread: Spread = "covariance",
    draws: int | None = None,
    seed: Seed = 0,
) -> FiniteBayesPrediction:
    """Mean, covariance and evidence to order 1/n, given targets on training inputs (6.88), (6.89).

    Parameters
    ----------
    noise
        Variance of independent noise on every target (6.10).
    spread
        "covariance" of all pairs of test inputs, "variance" of each (for many of them), or "none".
    draws
        Integrals over four inputs, of which there are about N^4/24 for N training inputs, are exact where that takes
        half a minute at most, and with ``draws=0``; otherwise sampled with ``draws`` and ``seed``, which gives
        standard errors.

    Examples
    --------
    >>> import foretrain as ft
    >>> net = ft.MLP("relu", 3, 100, n_out=2, C_W=2.0)
    >>> found = finite_bayes_prediction(net, [[1.0, 0.0]], [[1.5, -1.0]], [[0.8, 0.6]])
    >>> (found.mean - found.infinite_mean).values.round(5), found.wiring.squeeze().values.round(4)
    (array([[ 0.00173, -0.00115]]), array([[ 0.0276, -0.0184],
           [-0.0184,  0.0123]]))
    """
    spread = check_spread(spread)
    data = observe(mlp, X_train, Y_train, noise)
    tests = data.test_inputs(X_test)
    value, error = shifts(data, tests, spread, draws, seed)
    expansion = data.inverse_width * float(value.fluctuation)
    warn_of_expansion(expansion)
    _, cross, own = training_blocks(mlp, data.inputs, tests, spread)
    leading = cross.T @ data.u
    white = data.factor.whiten(cross)
    bracket = None
    if own is not None:
        bracket = own - (white.T @ white if spread == "covariance" else (white**2).sum(axis=0))
    return _labelled(data, value, error, leading, bracket, spread, expansion)


def warn_of_expansion(expansion: float) -> None:
    """A warning where the log density of the targets varies much over networks."""
    if expansion >= LARGE:
        warn_user(
            f"the log density of what was observed has the variance {expansion:.2g} over networks of this width, so "
            "that the first order in 1/n is only a guide: widen the network, observe less, give a noise, or use "
            "importance_posterior."
        )


def _labelled(
    data: Observed,
    value: Shifts,
    error: Shifts | None,
    leading: Array,
    bracket: Array | None,
    spread: Spread,
    expansion: float,
) -> FiniteBayesPrediction:
    scale, width = data.inverse_width, data.mlp.hidden_widths[-1:]
    shift = {name: scale * part for name, part in zip(PARTS, value.mean, strict=True)}
    parts = {name: _named(f"mean_{name}", shift[name], _OUTPUTS) for name in _SHIFTS}
    return FiniteBayesPrediction(
        mean=_named("mean", leading + shift["total"], _OUTPUTS),
        infinite_mean=_named("infinite_mean", leading, _OUTPUTS),
        **_spreads(bracket, value, scale, spread),
        terms={name: parts[name] for name in ("wiring", "rest")},
        rest_terms={name: parts[name] for name in ("trace", "exchange", "metric")},
        log_evidence=data.infinite_log_evidence + scale * float(value.evidence),
        infinite_log_evidence=data.infinite_log_evidence,
        expansion=expansion,
        standard_error=None if error is None else _errors(error, scale, spread),
        statement=f"Bayesian inference to order 1/n, n = {width[0]}" if width else "Bayesian inference",
        noise=data.noise,
        jitter=data.factor.jitter,
    )


def _spreads(bracket: Array | None, value: Shifts, scale: float, spread: Spread) -> dict[str, Any]:
    """Covariances and variances with their labels; None for those that were not asked for."""
    names = (
        "covariance",
        "infinite_covariance",
        "variance_given_metric",
        "infinite_variance",
        "wiring",
        "variance",
    )
    found: dict[str, Any] = dict.fromkeys(names)
    if bracket is None:
        return found
    both = {"": bracket + scale * value.covariance, "infinite_": bracket}
    each = {name: np.diagonal(part) if part.ndim == 2 else part for name, part in both.items()}
    if bracket.ndim == 2:
        found |= {
            f"{name}covariance": _named(f"{name}covariance", part, _PAIRS) for name, part in both.items()
        }
    wiring = scale * value.wiring
    tests = np.arange(len(bracket))
    own = wiring[tests, tests] if wiring.ndim == 4 else wiring
    variance = each[""][:, None] + np.diagonal(own, axis1=1, axis2=2)
    return found | {
        "variance_given_metric": _named("variance_given_metric", each[""], ("test",)),
        "infinite_variance": _named("infinite_variance", each["infinite_"], ("test",)),
        "wiring": _named("wiring", _by_tests(wiring), _WIRING[spread]),
        "variance": _named("variance", variance, _OUTPUTS),
    }


def _named(name: str, values: Array, dims: tuple[str, ...]) -> xr.DataArray:
    import xarray as xr

    shift = _SHIFTS.get(name.removeprefix("mean_"))
    meaning = _MEANINGS.get(name, f"shift of the posterior mean {shift}, with its 1/n")
    return xr.DataArray(values, dims=dims, name=name, attrs={"meaning": meaning})


def _errors(error: Shifts, scale: float, spread: Spread) -> xr.Dataset:
    """Standard errors of everything that was sampled."""
    import xarray as xr

    found: dict[str, Any] = {
        f"mean_{name}": (_OUTPUTS, scale * part) for name, part in zip(PARTS, error.mean, strict=True)
    }
    found["mean"] = found.pop("mean_total")
    if spread != "none":
        given = ("covariance", _PAIRS) if spread == "covariance" else ("variance_given_metric", ("test",))
        found[given[0]] = given[1], scale * error.covariance
        found["wiring"] = _WIRING[spread], scale * _by_tests(error.wiring)
    numbers = {"log_evidence": error.evidence, "expansion": error.fluctuation}
    return xr.Dataset(found | {name: ((), scale * part) for name, part in numbers.items()})


def _by_tests(wiring: Array) -> Array:
    """(B, B, i, j) as (B, i, B, j); (B, i, j) stays."""
    return wiring.transpose(0, 2, 1, 3) if wiring.ndim == 4 else wiring


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
