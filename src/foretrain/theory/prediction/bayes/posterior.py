"""The Bayesian posterior of an infinitely wide network: Gaussian, and independent over outputs (6.66), (6.67)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP
from foretrain.theory.flow.entry import check_network
from foretrain.theory.network_tangent_kernel import check_targets, real_array
from foretrain.theory.prediction.factor import Factor, check_noise, factorise
from foretrain.theory.prediction.kernels import training_blocks

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
Spread = Literal["covariance", "variance", "none"]

_SPREADS = ("covariance", "variance", "none")


@dataclass(frozen=True, eq=False, repr=False)
class BayesPrediction:
    """What observing the training targets says about the outputs on test inputs.

    ``mean`` has dimensions (test, output). ``covariance`` (test_1, test_2) and ``variance`` (test,) hold for every
    output alike, since outputs neither depend on each other's targets nor correlate; what was not asked for is None.
    """

    mean: xr.DataArray
    covariance: xr.DataArray | None
    variance: xr.DataArray | None
    log_evidence: float
    noise: float
    jitter: float

    def to_dataset(self) -> xr.Dataset:
        """Everything in one dataset, for saving."""
        import xarray as xr

        found = {"mean": self.mean, "covariance": self.covariance, "variance": self.variance}
        numbers = {"log_evidence": self.log_evidence, "noise": self.noise, "jitter": self.jitter}
        return xr.Dataset({name: part for name, part in found.items() if part is not None}, attrs=numbers)

    def __repr__(self) -> str:
        tests, outputs = self.mean.shape
        lines = [f"Bayesian prediction at infinite width: {tests} test inputs, {outputs} outputs"]
        lines.append(
            f"  log evidence {self.log_evidence:.6g}, noise {self.noise:.3g}, jitter {self.jitter:.3g}"
        )
        if self.variance is not None:
            low, high = np.sqrt(np.clip([self.variance.min(), self.variance.max()], 0, None))
            lines.append(f"  standard deviation of an output: {low:.3g} to {high:.3g}")
        parts = [name for name in ("mean", "covariance", "variance") if getattr(self, name) is not None]
        return "\n".join([*lines, f"  .{', .'.join(parts)}: labelled arrays"])


def bayes_prediction(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    *,
    noise: float = 0.0,
    noisy_labels: bool = False,
    spread: Spread = "covariance",
) -> BayesPrediction:
    """Mean (6.64) and covariance (6.57) of the outputs on test inputs, given targets on training inputs.

    Parameters
    ----------
    noise
        Variance of independent noise on every target (6.10): it adds to the diagonal of K on training inputs.
    noisy_labels
        Whether the prediction is of noisy labels, whose variance contains the noise, or of the outputs themselves.
    spread
        "covariance" of all pairs of test inputs, "variance" of each (for many of them), or "none".

    Only K_AA, K_AB and what ``spread`` needs of K_BB are computed; the cost is that of one Cholesky factor.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = bayes_prediction(ft.MLP("relu", 3, 100, C_W=2.0), [[1.0, 0.0]], [1.0], [[1.0, 0.0], [0.0, 1.0]])
    >>> found.mean.values.ravel().round(4)
    array([1.    , 0.4937])
    """
    check_network(mlp)
    if spread not in _SPREADS:
        raise unknown_name("spread", str(spread), _SPREADS)
    train, test = mlp.check_inputs(X_train), mlp.check_inputs(X_test)
    targets = check_targets(Y_train, len(train), mlp.n_out)
    noise = check_noise(noise)
    if train.shape[1] != test.shape[1]:
        raise InputError(
            f"training inputs have {train.shape[1]} components and test inputs {test.shape[1]}: give the same number."
        )
    K, cross, own = training_blocks(mlp, train, test, spread)
    return _labelled(factorise(K, noise), targets, cross, own, noise, noise * noisy_labels)


def condition(
    K: ArrayLike,
    Y: ArrayLike,
    K_train_test: ArrayLike,
    K_test: ArrayLike | None = None,
    *,
    noise: float = 0.0,
) -> BayesPrediction:
    """The same for any kernel: K (A, A) and targets (A, outputs), K_train_test (A, B), K_test (B, B) or (B,)."""
    training = factorise(K, check_noise(noise))
    cross = real_array("the kernel between training and test inputs", K_train_test)
    size = len(training.lower)
    if cross.ndim != 2 or len(cross) != size:
        raise InputError(
            f"the kernel between training and test inputs has shape {cross.shape}: give ({size}, tests)."
        )
    tests = cross.shape[1]
    own = None if K_test is None else real_array("the kernel of test inputs", K_test)
    if own is not None and own.shape not in ((tests,), (tests, tests)):
        raise InputError(
            f"the kernel of test inputs has shape {own.shape}: give ({tests}, {tests}) or ({tests},)."
        )
    return _labelled(training, targets_for(Y, size), cross, own, noise, 0.0)


def targets_for(Y: ArrayLike, inputs: int) -> Array:
    """Targets (inputs, outputs) with any number of outputs; one dimension means one output."""
    targets = real_array("targets", Y)
    targets = targets[:, None] if targets.ndim == 1 else targets
    return check_targets(targets, inputs, targets.shape[-1] if targets.ndim else 1)


def log_density(training: Factor, targets: Array) -> float:
    """Sum over outputs of log N(y_i; 0, K) (6.34)."""
    inputs, outputs = int(targets.shape[0]), int(targets.shape[1])
    square = float((training.whiten(targets) ** 2).sum())
    return -0.5 * (square + outputs * (training.log_determinant + inputs * math.log(2 * math.pi)))


def _labelled(
    training: Factor, targets: Array, cross: Array, own: Array | None, noise: float, label_noise: float
) -> BayesPrediction:
    import xarray as xr

    require_memory(
        8.0 * (2 * cross.size + (0 if own is None else 2 * own.size)),
        "the posterior",
        "use fewer test inputs",
    )
    outputs = xr.DataArray(
        cross.T @ training.solve(targets), dims=("test", "output"), name="mean", attrs={"equation": "(6.64)"}
    )
    covariance = variance = None
    named = partial(xr.DataArray, attrs={"equation": "(6.57)", "meaning": "the same for every output"})
    if own is not None:
        white = training.whiten(cross)
        if own.ndim == 2:
            full = own - white.T @ white
            full[np.diag_indices_from(full)] += label_noise
            covariance = named((full + full.T) / 2, dims=("test_1", "test_2"), name="covariance")
        each = (
            np.diagonal(covariance) if covariance is not None else own - (white**2).sum(axis=0) + label_noise
        )
        variance = named(np.maximum(each, 0.0), dims=("test",), name="variance")
    return BayesPrediction(
        outputs, covariance, variance, log_density(training, targets), noise, training.jitter
    )
