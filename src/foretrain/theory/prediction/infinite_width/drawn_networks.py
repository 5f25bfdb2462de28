"""Networks of infinite width trained on any loss: their initial outputs are drawn, and followed in function space.

With the tangent kernel frozen, training sees a network through its outputs alone: after steps or a flow

    z(t) = z(0) - Theta_.A s,    s the sum over steps, times eta, or the integral of the error factors dL/dz_A,

so that test outputs follow from s without an inverse, and s is what is stepped or integrated (10.4), (10.19).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.integrate import DOP853

from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed, generator
from foretrain.theory.prediction.algorithms import Algorithm, Descent, GradientFlow
from foretrain.theory.prediction.cholesky import spectrum_of, square_root
from foretrain.theory.prediction.infinite_width.losses import Loss
from foretrain.theory.prediction.kernels import OutputKernels
from foretrain.theory.prediction.predicted_outputs import (
    PredictedOutputs,
    labelled_mean,
)

if TYPE_CHECKING:
    import xarray as xr

TOLERANCE = 1e-6
"""Of outputs after the flow, relative to the spread of those before."""

_STAGES = 18  # copies of the state that the integrator holds
_DIGITS = 1e-13  # relative error of what is integrated: as good as none
_LOOK = 200  # steps between two looks at how far it is
_MOST_STEPS = 100_000  # that the integrator may have before it at its present pace
_STILL = 1e-12  # of the largest eigenvalue: smaller ones are rounding


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class SampledPrediction(PredictedOutputs):
    """Outputs of networks trained on a loss of which no closed form is known, over as many as were drawn.

    ``samples`` (network, test, output) are the outputs of every one. They are not Gaussian, and each output has a
    spread of its own: ``variance`` is (test, output), ``covariance`` (test_1, test_2, output). ``initial_loss`` and
    ``training_loss`` are means over networks of the loss on the training inputs, before and after.
    """

    mean_standard_error: xr.DataArray
    samples: xr.DataArray
    initial_loss: float
    training_loss: float

    def notes(self) -> list[str]:
        """How well the mean is known, and what became of the loss."""
        error = float(self.mean_standard_error.max())
        return [
            f"Over {self.samples.sizes['network']} networks drawn; standard error of the mean at most {error:.2g}.",
            f"Their mean loss on the training inputs went from {self.initial_loss:.4g} to {self.training_loss:.4g}.",
        ]


class DrawnNetworks(NamedTuple):
    """Outputs (draws, inputs, outputs) on training inputs before and after training, and on test inputs after it."""

    start: Array
    train: Array
    test: Array


def check_way(algorithm: Algorithm) -> Descent | GradientFlow:
    """The algorithm, or an error unless it says when to stop, and the size of steps."""
    if not isinstance(algorithm, Descent | GradientFlow) or algorithm.time is None:
        raise InputError(
            "the end of training on a loss of your own has no closed form: give a `time`, of steps or with "
            "`algorithm='flow'`; where its only minimum is at the targets, the end is that of squared errors."
        )
    if isinstance(algorithm, Descent) and algorithm.eta is None:
        raise InputError(
            "which steps are best on a loss of your own is not known: give `eta`, or use `algorithm='flow'`."
        )
    return algorithm


def sampled_prediction(
    kernels: OutputKernels,
    loss: Loss,
    targets: Array,
    outputs: int,
    algorithm: Algorithm,
    draws: int = 1000,
    seed: Seed = 0,
    tolerance: float = TOLERANCE,
) -> SampledPrediction:
    """Mean and spread on test inputs over networks trained on any loss, for a number of steps or a time of the flow.

    The kernels must hold variances of test inputs. Step after step is done; the work of the flow, integrated to a
    relative ``tolerance``, grows with eta x time x lambda_max and the largest curvature of the loss.
    """
    import xarray as xr

    way = check_way(algorithm)
    z = train_networks(kernels, loss, targets, outputs, way, draws, seed, tolerance)
    samples = xr.DataArray(
        z.test, dims=("network", "test", "output"), attrs={"meaning": "outputs of each network"}
    )
    variance, covariance = samples.var("network", ddof=1).rename("variance"), None
    if kernels.K_test is not None and kernels.K_test.ndim == 2:
        gaps = z.test - z.test.mean(axis=0)
        pairs = np.einsum("dbi,dci->bci", gaps, gaps, optimize=True) / (draws - 1)
        covariance = xr.DataArray(pairs, dims=("test_1", "test_2", "output"), name="covariance")
    return SampledPrediction(
        labelled_mean(z.test.mean(axis=0), "mean output over initialisations"),
        covariance,
        variance,
        f"Networks of infinite width trained on {loss.name}, {way.statement}",
        mean_standard_error=(variance / draws) ** 0.5,
        samples=samples,
        initial_loss=float(np.mean(loss.value(z.start, targets))),
        training_loss=float(np.mean(loss.value(z.train, targets))),
    )


def train_networks(
    kernels: OutputKernels,
    loss: Loss,
    targets: Array,
    outputs: int,
    way: Descent | GradientFlow,
    draws: int,
    seed: Seed = 0,
    tolerance: float = TOLERANCE,
) -> DrawnNetworks:
    """Networks drawn and trained. The same seed draws the same initial functions, whatever the loss and the time."""
    start, test = initial_outputs(kernels, outputs, draws, seed)
    check_slope(loss, start, targets)
    sums = error_sums(kernels.Theta_train, lambda z: loss.slope(z, targets), start, way, tolerance)
    return DrawnNetworks(
        start, _moved(start, kernels.Theta_train, sums), _moved(test, kernels.Theta_cross, sums)
    )


def error_sums(
    Theta: Array,
    slope: Callable[[Array], Array],
    start: Array,
    way: Descent | GradientFlow,
    tolerance: float = TOLERANCE,
) -> Array:
    """What the error factors of every network add up to over training: (draws, A, outputs).

    ``slope`` gives dL/dz at outputs of this shape, Theta is the tangent kernel (A, A) of the training inputs. Steps
    need their eta.
    """
    if isinstance(way, GradientFlow):
        return _integral(Theta, slope, start, way.speed * (way.time or 0.0), tolerance)
    eta, m = way.eta, way.momentum
    assert eta is not None
    total, velocity = np.zeros_like(start), np.zeros_like(start)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in track(range(way.steps or 0), "steps"):
            error = slope(_moved(start, Theta, total))
            velocity = m * velocity + error
            total = total + eta * (error + m * velocity if way.nesterov else velocity)
            if not np.isfinite(total).all():
                raise InputError(
                    f"outputs ran away within {step + 1} steps: give a smaller `eta` than {eta:g}."
                )
    return total


def _integral(
    Theta: Array, slope: Callable[[Array], Array], start: Array, time: float, tolerance: float
) -> Array:
    """The integral of the error factors over a time of the flow, by steps that adapt to the error of all networks."""
    if time == 0:
        return np.zeros_like(start)

    def errors(_: float, flat: Array) -> Array:
        return slope(_moved(start, Theta, flat.reshape(start.shape))).ravel()

    # Sums along slow directions grow large, and outputs are Theta times them: only an absolute error of the sums, of
    # the size of outputs over a bound of lambda_max, keeps every output right.
    size = float(np.sqrt(np.mean(start**2))) or 1.0
    bound = float(np.abs(Theta).sum(axis=1).max()) or 1.0  # where it is zero nothing moves
    absolute = tolerance * size / bound
    solver = DOP853(errors, 0.0, np.zeros(start.size), time, rtol=_DIGITS, atol=absolute)
    looked, steps = 0.0, 0
    with Progress("integrating", total=time) as bar:
        while solver.status == "running":
            before, steps = solver.t, steps + 1
            solver.step()
            bar.advance(solver.t - before)
            if steps % _LOOK == 0:
                if (time - solver.t) * _LOOK > _MOST_STEPS * (solver.t - looked):
                    solver.status = "failed"
                looked = solver.t
    if solver.status == "failed":
        raise NotSupportedError(
            f"from {solver.t / time:.0%} of its time on the flow takes more than {_MOST_STEPS:,} steps to integrate: "
            "give a shorter `time`, or use small steps of descent where the gradient of the loss jumps."
        )
    return np.asarray(solver.y.reshape(start.shape))


def _moved(start: Array, Theta: Array, sums: Array) -> Array:
    return np.asarray(start - np.einsum("ba,dai->dbi", Theta, sums, optimize=True))


def check_slope(loss: Loss, z: Array, targets: Array) -> None:
    """An error unless value and slope at outputs (draws, inputs, outputs) have their shapes and belong together."""
    value, slope = loss.value(z, targets), loss.slope(z, targets)
    if (
        value.shape != z.shape[:1]
        or slope.shape != z.shape
        or not np.isfinite([value.sum(), slope.sum()]).all()
    ):
        raise InputError(
            f"`loss` has values of shape {value.shape[1:]} and gradients of shape {slope.shape[1:]} at outputs of "
            f"shape {z.shape[1:]}: give one finite number, and as many as there are outputs."
        )
    # Up the slope everywhere, so that what it says of all networks adds up.
    ahead = 1e-4 * np.where(slope < 0, -1, 1) * np.abs(generator(0).standard_normal(z.shape))
    change = np.sum(loss.value(z + ahead, targets) - loss.value(z - ahead, targets)) / 2
    said = np.sum(slope * ahead)
    if abs(change - said) > 0.01 * said + 1e-12 * np.sum(np.abs(value)):
        raise InputError(
            f"`loss` changes by {change:.4g} where its gradient says {said:.4g}: give the gradient of exactly this "
            "value, summed or averaged as it is."
        )


def initial_outputs(kernels: OutputKernels, outputs: int, draws: int, seed: Seed = 0) -> tuple[Array, Array]:
    """Outputs before training ~ N(0, K): (draws, A, outputs) and (draws, B, outputs).

    With variances of test inputs alone every one of them is drawn given the training inputs, not given the others.
    """
    size = kernels.training + kernels.tests
    require_memory(8 * _STAGES * draws * size * outputs, f"outputs of {draws:,} networks", "use fewer draws")
    noise = generator(seed).standard_normal((draws, size, outputs))
    if kernels.K_test is None or kernels.K_test.ndim == 2:
        z = np.einsum("ab,dbi->dai", square_root(kernels.joint), noise, optimize=True)
        return z[:, : kernels.training], z[:, kernels.training :]
    seen, new = noise[:, : kernels.training], noise[:, kernels.training :]
    values, vectors = spectrum_of(kernels.K_train)
    roots = np.sqrt(values)
    inverse = np.divide(1, roots, out=np.zeros_like(roots), where=values > _STILL * values[-1])
    weights = kernels.K_cross @ (vectors * inverse) @ vectors.T
    left = np.sqrt(np.maximum(kernels.K_test - np.sum(weights**2, axis=1), 0.0))
    train = np.einsum("ab,dbi->dai", (vectors * roots) @ vectors.T, seen, optimize=True)
    return train, np.einsum("ba,dai->dbi", weights, seen, optimize=True) + left[:, None] * new
