"""The posterior of a finite network without an expansion: networks weighted by the density of the targets.

Given the metric of the last layer, outputs are Gaussian at any width. So metrics are drawn from the prior, without
weights of networks, and every draw counts with w = prod_i N(y_i; 0, metric_AA + noise): the evidence is the mean of
w, and the posterior of anything its mean with weights w. The effective number of draws falls exponentially in the
variance of log w.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import BATCHES, BatchSums, Ensemble
from foretrain.theory.prediction.bayes.finite_width import Observed, observe

if TYPE_CHECKING:
    import xarray as xr


_DRAWS = 100_000
_SINGULAR = 1e-14
_FEW, _TOO_FEW = 400.0, 20.0  # effective draws: below, error bars are rough, or nothing is known


@dataclass(frozen=True, eq=False, repr=False)
class ImportancePosterior(Result):
    """Weighted means over networks, with standard errors of the same names in ``standard_error``.

    ``mean`` (test, output); ``covariance`` (test_1, test_2) of one output given the metric, the same for all;
    ``wiring`` (test_1, output_1, test_2, output_2), the covariance of means over metrics, which adds to it;
    ``metric`` (layer, input_1, input_2), the shift of the mean metric of layers 2..L from prior to posterior, on
    training inputs followed by test inputs. ``effective_draws`` is (sum w)^2 / sum w^2.
    """

    mean: xr.DataArray
    covariance: xr.DataArray
    wiring: xr.DataArray
    metric: xr.DataArray
    log_evidence: float
    effective_draws: float
    draws: int
    noise: float
    standard_error: xr.Dataset

    def to_dataset(self) -> xr.Dataset:
        """Everything in one dataset, for saving."""
        import xarray as xr

        names = ("mean", "covariance", "wiring", "metric", "log_evidence")
        errors = {f"standard_error_of_{name}": self.standard_error[name] for name in names}
        numbers = {"effective_draws": self.effective_draws, "draws": self.draws, "noise": self.noise}
        return xr.Dataset({name: getattr(self, name) for name in names} | errors, attrs=numbers)

    def answer(self) -> Answer:
        """How many draws it rests on, and the evidence."""
        return fields_answer(
            self,
            f"Posterior of finite networks by importance weights: {self.draws:,} networks, as good as "
            f"{self.effective_draws:,.0f} of the posterior; log evidence {self.log_evidence:.6g} ± "
            f"{float(self.standard_error['log_evidence']):.1g}.",
            data=self.to_dataset,
        )


def importance_posterior(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    *,
    draws: int = _DRAWS,
    noise: float = 0.0,
    seed: Seed = 0,
) -> ImportancePosterior:
    """Posterior and evidence at finite width, exact up to sampling, for any width and activation.

    Examples
    --------
    >>> import foretrain as ft
    >>> net = ft.MLP("tanh", depth=3, width=32, n_out=2, C_b=0.1, C_W=1.5)
    >>> found = importance_posterior(net, [[1.0, 0.5]], [[0.5, -0.5]], [[0.0, 1.0]], draws=2000)
    >>> round(found.log_evidence, 5), round(found.effective_draws)
    (-1.73329, 1987)
    """
    data = observe(mlp, X_train, Y_train, noise)
    tests = data.test_inputs(X_test)
    _refuse_degenerate(data)
    layout = _Layout(len(data.inputs), len(tests), mlp.n_out, mlp.depth)
    require_memory(
        8.0 * (BATCHES + 4) * layout.size, "the batches of importance weights", "use fewer test inputs"
    )
    ensemble = Ensemble(mlp, np.concatenate([data.inputs, tests]), draws, seed=seed)
    sums, reference = BatchSums(ensemble.draws, (layout.size,)), -math.inf
    with Progress("networks", total=ensemble.draws) as bar:
        for metrics in ensemble.metrics(range(1, mlp.depth + 1)):
            weighed = _weigh(data, metrics[mlp.depth])
            if reference == -math.inf:
                reference = float(weighed.log_density.max())
            sums.add(layout.statistics(weighed, metrics, reference))
            bar.advance(len(weighed.log_density))
    value, error = sums.estimate(layout.read)
    found, errors = layout.split(value), layout.split(error)
    found["log_evidence"] = found["log_evidence"] + reference
    effective = ensemble.draws * float(found.pop("share"))
    advice = "give more draws, wider layers, a noise or fewer training inputs"
    told = f"{ensemble.draws:,} networks are as good as {max(0.0, effective):.1f} of the posterior"
    if not effective >= _TOO_FEW:  # nor nan, where weights exceed all numbers
        raise InputError(f"{told}, because a few have nearly all the weight: {advice}.")
    if effective < _FEW:
        warn_user(f"{told}, so that standard errors are rough: {advice}.")
    return _labelled(found, errors, effective, ensemble.draws, data.noise)


class _Weighed(NamedTuple):
    """For each of many metrics: log w, and mean (draws, B, outputs) and covariance (draws, B, B) it gives tests."""

    log_density: Array
    mean: Array
    covariance: Array


def _weigh(data: Observed, metric: Array) -> _Weighed:
    """Gaussian conditioning on the targets, for metrics (draws, N, N)."""
    size, outputs = data.targets.shape
    seen = metric[:, :size, :size] + data.noise * np.eye(size)
    cross, own = metric[:, size:, :size], metric[:, size:, size:]
    able = np.ones(len(seen), dtype=bool)
    try:
        lower = np.linalg.cholesky(seen)
    except np.linalg.LinAlgError:
        able = _able(seen, data.targets)
        lower = np.linalg.cholesky(np.where(able[:, None, None], seen, np.eye(size)))
    targets = np.broadcast_to(data.targets, (len(metric), size, outputs))
    white = np.linalg.solve(lower, np.concatenate([targets, cross.transpose(0, 2, 1)], axis=2))
    y, features = white[:, :, :outputs], white[:, :, outputs:]
    log_determinant = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    constant = outputs * (log_determinant + size * math.log(2 * math.pi))
    transposed = features.transpose(0, 2, 1)
    log_density = np.where(able, -0.5 * ((y**2).sum(axis=(1, 2)) + constant), -math.inf)
    return _Weighed(log_density, transposed @ y, own - transposed @ features)


def _able(seen: Array, targets: Array) -> NDArray[np.bool_]:
    """Which networks can take the targets: not those with a singular metric, which have the density zero.

    An error if the targets of a singular network lie in its reach, where the density is infinite, or if none is able.
    """
    values, vectors = np.linalg.eigh(seen)
    lost = values <= _SINGULAR * values[:, -1:]
    able = ~lost.any(axis=1)
    out_of_reach = np.where(lost[:, :, None], np.abs(vectors.transpose(0, 2, 1) @ targets), 0.0).max(
        axis=(1, 2)
    )
    reached = ~able & (out_of_reach <= _SINGULAR * np.abs(targets).max())
    if reached.any() or not able.any():
        raise InputError(
            "the targets have no density, because metrics of networks are singular on the training inputs: give a "
            "noise, use fewer training inputs or wider layers."
        )
    return np.asarray(able)


class _Layout:
    """Where sums stand in one long row of statistics, and what is made of their means."""

    def __init__(self, training: int, tests: int, outputs: int, depth: int) -> None:
        everything, layers = training + tests, depth - 1
        self._layers = range(2, depth + 1)
        self._sums = {
            "weight": (),
            "square": (),
            "mean": (tests, outputs),
            "covariance": (tests, tests),
            "products": (tests, outputs, tests, outputs),
            "prior": (layers, everything, everything),
            "posterior": (layers, everything, everything),
        }
        self._found = {
            "log_evidence": (),
            "share": (),
            "mean": self._sums["mean"],
            "covariance": self._sums["covariance"],
            "wiring": self._sums["products"],
            "metric": self._sums["prior"],
        }
        self.size = sum(math.prod(shape) for shape in self._sums.values())

    def statistics(self, weighed: _Weighed, metrics: Mapping[int, Array], reference: float) -> Array:
        """One row for each draw."""
        weight = np.exp(weighed.log_density - reference)
        hidden = np.stack([metrics[layer] for layer in self._layers], axis=1) if self._layers else np.empty(0)
        products = np.einsum("dbi,dcj->dbicj", weighed.mean, weighed.mean, optimize=True)
        parts = [weighed.mean, weighed.covariance, products]
        rows = [(weight[:, None] * part.reshape(len(weight), -1)) for part in parts]
        prior = hidden.reshape(len(weight), -1)
        return np.column_stack([weight, weight**2, *rows, prior, weight[:, None] * prior])

    def read(self, means: Array) -> Array:
        """Weighted means from means of sums (batches, size), in one row each."""
        sums = self._cut(means, self._sums)
        weight = sums["weight"][:, None]
        mean, products = sums["mean"] / weight, sums["products"] / weight
        tests, outputs = self._sums["mean"]
        by_test = mean.reshape(-1, tests, outputs)
        wiring = products - np.einsum("dbi,dcj->dbicj", by_test, by_test).reshape(products.shape)
        return np.concatenate(
            [
                np.log(weight),
                weight**2 / sums["square"][:, None],
                mean,
                sums["covariance"] / weight,
                wiring,
                sums["posterior"] / weight - sums["prior"],
            ],
            axis=1,
        )

    def split(self, row: Array) -> dict[str, Array]:
        """The row of what was found, by name."""
        return {
            name: part.reshape(self._found[name]) for name, part in self._cut(row[None], self._found).items()
        }

    @staticmethod
    def _cut(rows: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
        parts = np.split(rows, ends[:-1], axis=1)
        return {
            name: part if shape else part[:, 0]
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }


def _refuse_degenerate(data: Observed) -> None:
    """The metric of n neurons has rank n, and one more with biases."""
    size, mlp = len(data.inputs), data.mlp
    if not mlp.hidden_widths or data.noise:
        return
    rank = mlp.hidden_widths[-1] + (mlp.C_b[-1] > 0)
    if rank < size:
        raise InputError(
            f"networks of width {mlp.hidden_widths[-1]} cannot take the targets of {size} training inputs: give a "
            "noise, fewer training inputs or wider layers."
        )


def _labelled(
    found: dict[str, Array], errors: dict[str, Array], effective: float, draws: int, noise: float
) -> ImportancePosterior:
    import xarray as xr

    dims = {
        "log_evidence": (),
        "mean": ("test", "output"),
        "covariance": ("test_1", "test_2"),
        "wiring": ("test_1", "output_1", "test_2", "output_2"),
        "metric": ("layer", "input_1", "input_2"),
    }
    layers = {"layer": np.arange(2, len(found["metric"]) + 2)}
    values, deviations = (
        xr.Dataset({name: (dims[name], part[name]) for name in dims}, coords=layers)
        for part in (found, errors)
    )
    mean, covariance, wiring, metric, evidence = (
        values[name] for name in ("mean", "covariance", "wiring", "metric", "log_evidence")
    )
    return ImportancePosterior(
        mean, covariance, wiring, metric, float(evidence), effective, draws, noise, deviations
    )
