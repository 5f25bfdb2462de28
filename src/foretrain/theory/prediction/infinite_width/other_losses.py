"""Networks of infinite width trained on other losses than squared errors: any loss, and the cross-entropy.

Initial outputs are drawn, and followed in function space.
With the tangent kernel frozen, training sees a network through its outputs alone: after steps or a flow

    z(t) = z(0) - Theta_.A s,    s the sum over steps, times eta, or the integral of the error factors dL/dz_A,

so that test outputs follow from s without an inverse, and s is what is stepped or integrated (10.4), (10.19).

On the cross-entropy (10.36)-(10.38) training keeps the mean over outputs of every training output, so targets are
logits log p up to a shift c of each input that depends on the network: c = mean_i (z_i(0) - y_i). Softmax outputs do
not feel it. Hard labels have their minimum at infinity: for them give a time, or smooth them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import DOP853
from scipy.special import softmax

from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed, generator
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.algorithms import Algorithm, Descent, GradientFlow
from foretrain.theory.prediction.cholesky import spectrum_of, square_root
from foretrain.theory.prediction.infinite_width.gradient_descent import GradientDescent
from foretrain.theory.prediction.infinite_width.losses import (
    CROSS_ENTROPY,
    ExpectedLoss,
    Loss,
    check_probabilities,
    expected_loss,
)
from foretrain.theory.prediction.kernels import OutputKernels, Spread
from foretrain.theory.prediction.predicted_outputs import (
    PredictedOutputs,
    labelled_mean,
    labelled_spread,
    labelled_tests,
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
        # The integral of the error factors over a time of the flow, by steps that adapt to the error of all
        # networks.
        time = way.speed * (way.time or 0.0)
        if time == 0:
            return np.zeros_like(start)

        def errors(_: float, flat: Array) -> Array:
            return slope(_moved(start, Theta, flat.reshape(start.shape))).ravel()

        # Sums along slow directions grow large, and outputs are Theta times them: only an absolute error of the
        # sums, of the size of outputs over a bound of lambda_max, keeps every output right.
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
                f"from {solver.t / time:.0%} of its time on the flow takes more than {_MOST_STEPS:,} steps to "
                "integrate: give a shorter `time`, or use small steps of descent where the gradient of the loss "
                "jumps."
            )
        return np.asarray(solver.y.reshape(start.shape))
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


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class CrossEntropyPrediction(PredictedOutputs):
    """Logits on test inputs of networks trained on the cross-entropy, and their softmax, over ``draws`` networks.

    The shift of a network correlates its logits: ``between_outputs`` is the covariance of two of them, of pairs of
    tests or of each, like that of one. At the end of training logits are exact, and their standard error is zero.
    """

    mean_standard_error: xr.DataArray
    probabilities: xr.DataArray
    probabilities_standard_error: xr.DataArray
    between_outputs: xr.DataArray | None
    draws: int

    def without_shift(self) -> PredictedOutputs:
        """Logits up to what is common to all outputs of an input, which no softmax and no cross-entropy feels."""
        given = self.variance if self.covariance is None else self.covariance
        spread = None
        if given is not None and self.between_outputs is not None:
            spread = given.values - self.between_outputs.values
        covariance, variance = labelled_spread(spread, "covariance of a logit without its shift")
        return PredictedOutputs(self.mean, covariance, variance, self.statement, self.jitter)

    def only(self, spread: Spread) -> CrossEntropyPrediction:
        """The same with no more than this spread kept."""
        found, between = super().only(spread), self.between_outputs
        if spread == "none" or between is None:
            return replace(found, between_outputs=None)
        if spread == "variance" and between.ndim == 2:
            between = labelled_tests("between_outputs", np.diagonal(between.values), between.attrs["meaning"])
        return replace(found, between_outputs=between)

    def notes(self) -> list[str]:
        """How well the probabilities are known."""
        error = float(self.probabilities_standard_error.max())
        return [
            f"Mean probabilities over {self.draws} networks, with a standard error of at most {error:.2g}."
        ]


def target_logits(probabilities: ArrayLike) -> Array:
    """log p with mean zero over outputs; an error for hard labels, whose logits are infinite."""
    p = np.asarray(probabilities, dtype=float)
    check_probabilities(p)
    if (p <= 0).any():
        raise InputError(
            "a target probability is zero, so that training never ends: give a `time`, or soft labels, such as "
            "`label_smoothing=0.1`."
        )
    logits = np.log(p)
    return np.asarray(logits - logits.mean(axis=-1, keepdims=True))


def cross_entropy_of_kernels(
    kernels: OutputKernels,
    probabilities: Array,
    algorithm: Algorithm,
    draws: int = 1000,
    seed: Seed = 0,
    tolerance: float = TOLERANCE,
) -> CrossEntropyPrediction:
    """Test outputs over networks trained on target probabilities (inputs, classes), at infinite width.

    The kernels must hold variances of test inputs. At the end the logits are Gaussian in closed form and only their
    softmax is sampled. At a finite time networks are drawn and trained in function space, as on any other loss.
    """
    if algorithm.time is not None:
        return _sampled(kernels, probabilities, algorithm, draws, seed, tolerance)
    if isinstance(algorithm, Descent) and algorithm.eta is not None:
        check_step(kernels, algorithm)
    return cross_entropy_end(kernels, probabilities, draws, seed)


def cross_entropy_end(
    kernels: OutputKernels, probabilities: Array, draws: int = 1000, seed: Seed = 0
) -> CrossEntropyPrediction:
    """The end for soft labels: logits are Gaussian with mean P y (10.37).

    Differences of logits have the covariance (10.41) of squared errors, S; their mean over outputs is that of the
    initial outputs: Cov(z_i, z_j) = (delta_ij - 1/n) S + K / n.
    """
    logits = target_logits(probabilities)
    trained = GradientDescent(kernels, logits).end()
    deviation = trained.standard_deviation
    if kernels.K_test is None or deviation is None:
        raise InputError("the softmax needs variances: make the kernels with `spread='variance'`.")
    mean, outputs = trained.mean.values, logits.shape[1]
    own = trained.variance if trained.covariance is None else trained.covariance
    between = (kernels.K_test - np.asarray(own)) / outputs
    # Softmax outputs of one test input need the variance of that input alone.
    noise = generator(seed).standard_normal((draws, *mean.shape))
    samples = softmax(mean + deviation.values[:, None] * noise, axis=-1)
    found = _labelled(
        mean, np.zeros_like(mean), np.asarray(own) + between, between, samples, "at the end of training"
    )
    return replace(found, jitter=trained.jitter)


def _labelled(
    mean: Array, error: Array, spread: Array, between: Array, probabilities: Array, statement: str
) -> CrossEntropyPrediction:
    """From logits, their covariances or variances, and samples of probabilities (draws, tests, outputs)."""
    covariance, variance = labelled_spread(spread, "covariance of a logit over initialisations (10.41)")
    draws = len(probabilities)
    doubt = probabilities.std(axis=0, ddof=1) / np.sqrt(draws)
    return CrossEntropyPrediction(
        labelled_mean(mean, "mean logit over initialisations (10.37)"),
        covariance,
        variance,
        f"Networks of infinite width trained on the cross-entropy, {statement}",
        mean_standard_error=labelled_mean(error, "standard error of the mean logit"),
        probabilities=labelled_mean(probabilities.mean(axis=0), "mean softmax output over initialisations"),
        probabilities_standard_error=labelled_mean(doubt, "standard error of the mean softmax output"),
        between_outputs=labelled_tests("between_outputs", between, "covariance of two different logits"),
        draws=draws,
    )


def expected_cross_entropy(kernels: OutputKernels, P_train: Array, P_test: ArrayLike) -> ExpectedLoss:
    """Mean test loss at the end, to second order (10.55).

    Nothing in it feels the shift, so that the law of logits of squared errors with targets log p serves.
    """
    return expected_loss(GradientDescent(kernels, target_logits(P_train)).end(), P_test, CROSS_ENTROPY)


def network_end(
    kernels: OutputKernels, probabilities: Array, outputs_train: ArrayLike, outputs_test: ArrayLike
) -> Array:
    """Final test logits of the one network that starts with these outputs, its shift c included (10.37)."""
    logits = target_logits(probabilities)
    z = check_targets(outputs_train, len(logits), logits.shape[1], "outputs_train")
    shifted = logits + z.mean(axis=1, keepdims=True)
    return GradientDescent(kernels, shifted).network(z, outputs_test)


def _sampled(
    kernels: OutputKernels,
    p: Array,
    algorithm: Descent | GradientFlow,
    draws: int,
    seed: Seed,
    tolerance: float,
) -> CrossEntropyPrediction:
    way = algorithm
    if isinstance(way, Descent):
        way = replace(way, eta=check_step(kernels, way))
    z = train_networks(kernels, CROSS_ENTROPY, p, p.shape[1], way, draws, seed, tolerance).test
    pairs = kernels.K_test is not None and kernels.K_test.ndim == 2
    own, between = _logit_covariances(z - z.mean(axis=0), pairs)
    error = z.std(axis=0, ddof=1) / np.sqrt(draws)
    return _labelled(z.mean(axis=0), error, own, between, softmax(z, axis=-1), way.statement)


def _logit_covariances(centred: Array, pairs: bool) -> tuple[Array, Array]:
    """Covariances of a logit with itself and with another, over networks, of pairs of tests or of each alone."""
    draws, _, outputs = centred.shape
    sums = centred.sum(axis=2)
    if pairs:
        own, whole = np.tensordot(centred, centred, axes=((0, 2), (0, 2))), sums.T @ sums
    else:
        own, whole = np.sum(centred**2, axis=(0, 2)), np.sum(sums**2, axis=0)
    count = outputs * (draws - 1)
    return own / count, (whole - own) / (count * (outputs - 1))


def check_step(kernels: OutputKernels, descent: Descent) -> float:
    """The rate of steps, by default 2 / lambda_max, or an error unless it is stable at the largest curvature, 1/2.

    Plain steps below that limit always lower the loss.
    """
    largest = GradientDescent(kernels, np.zeros((kernels.training, 1))).rates.largest
    rate = 2 / largest if descent.eta is None else descent.eta
    limit = 4 * descent.stretch / largest
    if rate >= limit:
        raise InputError(
            f"`eta` is {rate:g}, but steps on the cross-entropy are sure to be stable only below "
            f"{4 * descent.stretch:.4g} / lambda_max = {limit:.6g}: give a smaller `eta`."
        )
    return rate
