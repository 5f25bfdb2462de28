"""The Bayesian posterior of an infinitely wide network: Gaussian, and independent over outputs (6.66), (6.67).

Training with a penalty sum_mu a_mu theta_mu^2 on the parameters (footnote 21 of chapter 10).

A step of gradient descent then moves outputs by -eta H (z - y) - 2 eta R, with R_i = sum lambda a theta dz_i/dtheta
from the recursion (10.43). What that gives at infinite width:

* At initialisation outputs and R are jointly Gaussian, equal and independent over neurons (:func:`response_law`);
the mean of R is zero, so a first step leaves the mean of outputs alone and changes their kernel by -2 eta (S +
S^T), S = Cov(R, z). * For a_W of order one, R of the weights is suppressed by 1/n: only penalties of order n, as
the prior has them, act. * If the output layer alone is trained the loss is convex in its parameters, and training
forgets where it started: it ends at ridge regression on the features (:func:`regularised_prediction`). With the
penalties of the prior that is the posterior mean with noise (:func:`output_layer_estimates`). * If hidden layers
are trained, such penalties shrink their weights by O(1): kernels move, and no closed form is left.

The hypotheses of section 6.2 have likelihoods and losses of maximum likelihood and maximum a posteriori, except for
the deterministic one (6.9), which demands that outputs equal targets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from foretrain.support.answers import labelled
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_targets
from foretrain.theory.ensembles import Parameters, activity, forward
from foretrain.theory.prediction.cholesky import CholeskyFactor, check_noise, factorise
from foretrain.theory.prediction.kernels import Spread, check_spread, training_blocks
from foretrain.theory.prediction.predicted_outputs import PredictedOutputs, labelled_mean, labelled_spread
from foretrain.theory.recursions.expectations import PairExpectations, next_kernel

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, eq=False, repr=False)
class BayesPrediction(PredictedOutputs):
    """What observing the training targets says about the outputs on test inputs.

    Outputs neither depend on each other's targets nor correlate, so that one covariance holds for all.
    """

    log_evidence: float = math.nan
    noise: float = 0.0

    def notes(self) -> list[str]:
        """The evidence."""
        return [f"Log evidence of the training targets: {self.log_evidence:.6g}."]


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
    spread = check_spread(spread)
    train = mlp.check_inputs(X_train, "X_train")
    test = inputs_like(train, mlp, X_test)
    targets, noise = check_targets(Y_train, len(train), mlp.n_out, "Y_train"), check_noise(noise)
    K = training_blocks(mlp, train, test, spread)
    return _posterior(factorise(K.train, noise), targets, K.cross, K.test, noise, noise * noisy_labels)


def inputs_like(train: Array, mlp: MLP, X: ArrayLike) -> Array:
    """Test inputs with as many components as the training inputs, or an error."""
    tests = mlp.check_inputs(X, "X_test")
    if train.shape[1] != tests.shape[1]:
        raise InputError(
            f"training inputs have {train.shape[1]} components and test inputs {tests.shape[1]}: give the same "
            "number."
        )
    return tests


def condition(
    K: ArrayLike,
    Y: ArrayLike,
    K_train_test: ArrayLike,
    K_test: ArrayLike | None = None,
    *,
    noise: float = 0.0,
    noisy_labels: bool = False,
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
    return _posterior(training, targets_for(Y, size), cross, own, noise, noise * noisy_labels)


def targets_for(Y: ArrayLike, inputs: int, name: str = "targets") -> Array:
    """Targets (inputs, outputs) with any number of outputs; one dimension means one output."""
    targets = real_array(name, Y)
    targets = targets[:, None] if targets.ndim == 1 else targets
    return check_targets(targets, inputs, targets.shape[-1] if targets.ndim else 1, name)


def log_density(training: CholeskyFactor, targets: Array) -> float:
    """Sum over outputs of log N(y_i; 0, K) (6.34)."""
    inputs, outputs = int(targets.shape[0]), int(targets.shape[1])
    square = float((training.whiten(targets) ** 2).sum())
    return -0.5 * (square + outputs * (training.log_determinant + inputs * math.log(2 * math.pi)))


def _posterior(
    training: CholeskyFactor,
    targets: Array,
    cross: Array,
    own: Array | None,
    noise: float,
    label_noise: float,
) -> BayesPrediction:
    require_memory(
        8.0 * (2 * cross.size + (0 if own is None else 2 * own.size)),
        "the posterior",
        "use fewer test inputs",
    )
    spread = None
    if own is not None:
        white = training.whiten(cross)
        if own.ndim == 2:
            spread = own - white.T @ white
            spread = (spread + spread.T) / 2
            spread[np.diag_indices_from(spread)] += label_noise
        else:
            spread = own - np.einsum("ab,ab->b", white, white) + label_noise
    covariance, variance = labelled_spread(spread, "posterior covariance (6.57)")
    return BayesPrediction(
        labelled_mean(cross.T @ training.solve(targets), "posterior mean (6.64)"),
        covariance,
        variance,
        "Bayesian inference at infinite width",
        training.jitter,
        log_density(training, targets),
        noise,
    )


def bayes_equivalent_rates(mlp: MLP) -> MLP:
    """The same network with lambda = C in the output layer and zero in all others, so that Theta = K (10.46)-(10.49).

    Gradient descent then trains the output layer alone, on random features; over initialisations its end has mean
    and covariance of the posterior without noise.

    Examples
    --------
    >>> bayes_equivalent_rates(MLP("tanh", depth=3, width=100, C_b=0.1, C_W=1.5)).lambda_W
    (0.0, 0.0, 1.5)
    """
    check_network(mlp)
    still = (0.0,) * (mlp.depth - 1)
    return mlp.replace(lambda_b=(*still, mlp.C_b[-1]), lambda_W=(*still, mlp.C_W[-1]))


class Penalty(NamedTuple):
    """a_mu of the penalty sum_mu a_mu theta_mu^2 for the biases and for the weights of one layer."""

    bias: float
    weight: float


def gaussian_loss(outputs: ArrayLike, Y: ArrayLike, noise: float) -> float:
    """-log p(y | outputs) under Gaussian noise, summed over inputs and outputs (6.10), (6.17)."""
    variance = check_noise(noise)
    if not variance:
        raise InputError(
            "noise is zero, which makes a likelihood infinite or zero: give a positive variance."
        )
    given = real_array("outputs", outputs)
    targets = check_targets(Y, len(given), given.shape[1] if given.ndim > 1 else 1, "Y")
    misses = given.reshape(targets.shape) - targets
    return float((misses**2).sum() / (2 * variance) + targets.size * np.log(2 * np.pi * variance) / 2)


def categorical_loss(outputs: ArrayLike, labels: ArrayLike) -> float:
    """-log p(labels | softmax of the outputs): the cross-entropy (6.11); labels: probabilities (inputs, outputs)."""
    given = real_array("outputs", outputs)
    if given.ndim != 2:
        raise InputError(f"outputs have shape {given.shape}: give (inputs, outputs).")
    chances = check_targets(labels, given.shape[0], given.shape[1], "labels")
    if (chances < 0).any() or not np.allclose(chances.sum(axis=1), 1):
        raise InputError("labels are not probabilities: give rows that are not negative and sum to one.")
    return float((chances * (logsumexp(given, axis=1, keepdims=True) - given)).sum())


def prior_penalties(mlp: MLP) -> tuple[Penalty, ...]:
    """a_mu = 1 / (2 Var theta_mu) of every layer, by which the prior regularises a loss (6.22).

    Infinite where the variance is zero: there the prior allows no other value than zero.
    """
    fan_ins = mlp.widths[:-1]
    with np.errstate(divide="ignore"):
        return tuple(
            Penalty(float(0.5 / np.float64(layer.C_b)), float(0.5 * fan_in / np.float64(layer.C_W)))
            for layer, fan_in in zip(mlp.layers, fan_ins, strict=True)
        )


def log_prior(parameters: Parameters) -> Array:
    """log p(theta) of every network under the law of the initialisation (6.6): (draws,)."""
    mlp, total = parameters.mlp, np.zeros(len(parameters.biases[0]))
    groups = zip(prior_penalties(mlp), parameters.biases, parameters.weights, strict=True)
    for penalty, biases, weights in groups:
        for a, values in zip(penalty, (biases, weights), strict=True):
            flat = values.reshape(len(total), -1)
            if np.isfinite(a):
                total += flat.shape[1] * np.log(a / np.pi) / 2 - a * (flat**2).sum(axis=1)
            elif flat.any():
                raise InputError(
                    "parameters whose prior variance is zero must be zero: use C_b > 0, C_W > 0."
                )
    return total


def negative_log_posterior(parameters: Parameters, X: ArrayLike, Y: ArrayLike, noise: float) -> Array:
    """-log p(y | theta) - log p(theta) of every network: what maximum a posteriori minimises (6.19), (6.22)."""
    outputs = forward(parameters, X)[parameters.mlp.depth]
    losses = [gaussian_loss(one.T, Y, noise) for one in outputs]
    return np.asarray(losses - log_prior(parameters))


def penalty_response(parameters: Parameters, X: ArrayLike, penalties: Sequence[Penalty]) -> dict[int, Array]:
    """R of every layer of actual networks, {layer: (draws, n_l, inputs)}, exact at any width (10.43)."""
    mlp = parameters.mlp
    inputs, z = mlp.check_inputs(X), forward(parameters, X)
    _check_penalties(mlp, penalties)
    found: dict[int, Array] = {}
    signals = np.broadcast_to(inputs.T, (len(z[1]), *inputs.T.shape))
    groups = zip(mlp.layers, penalties, parameters.biases, parameters.weights, strict=True)
    for layer, penalty, biases, weights in groups:
        fan_in = weights.shape[2]
        moved = (penalty.weight * layer.lambda_W / fan_in) * signals
        if found:
            moved = moved + mlp.activation.derivative(z[layer.number - 1], 1) * found[layer.number - 1]
        response = penalty.bias * layer.lambda_b * biases[..., None] + weights @ moved
        if layer.gamma:
            response = response + layer.gamma * found[layer.number - 1]
        found[layer.number] = response
        signals = activity(mlp, z[layer.number])
    return found


def response_law(mlp: MLP, X: ArrayLike, penalties: Sequence[Penalty]) -> xr.Dataset:
    """The joint Gaussian law of z and R at initialisation and infinite width, at every layer.

    Variables ``K`` = Cov(z, z), ``S`` = Cov(R, z) with R in front, and ``Q`` = Cov(R, R), over (layer, input_1,
    input_2). The widths of ``mlp`` enter only through a_W / n_{l-1}, which is to be of order one.
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    mlp = mlp.with_inputs(inputs)
    _check_penalties(mlp, penalties)
    if not mlp.activation.is_smooth:
        raise NotSupportedError(
            f"{mlp.activation.label} has kinks, but the law of R takes its third derivative: use a smooth one, "
            "or penalty_response on sampled networks."
        )
    require_memory(
        8.0 * (3 * mlp.depth + 30) * len(inputs) ** 2, "the law of R", "use fewer inputs or layers"
    )
    # (K, S, Q) at layers 1..L.
    shares = [
        (penalty.bias * layer.lambda_b, penalty.weight * layer.lambda_W / fan_in)
        for layer, penalty, fan_in in zip(mlp.layers, penalties, mlp.widths, strict=False)
    ]
    bias, weight = shares[0]
    fresh, shared = mlp.C_b[0], mlp.first_kernel(inputs) - mlp.C_b[0]
    found = [(fresh + shared, bias * fresh + weight * shared, bias**2 * fresh + weight**2 * shared)]
    for layer, (bias, weight) in zip(track(mlp.layers[1:], "layers"), shares[1:], strict=True):
        K, S, Q = found[-1]
        old = PairExpectations(mlp.activation, K)
        # Stein's identity: <R_1 s'_1 s_2> and <R_1 R_2 s'_1 s'_2> with R and z jointly Gaussian.
        own = np.diagonal(S)
        once = own[:, None] * old.of(2, 0) + S * old.of(1, 1)
        twice = Q * old.of(1, 1) + (np.outer(own, own) + S * S.T) * old.of(2, 2)
        twice = twice + own[:, None] * S.T * old.of(3, 1) + S * own[None, :] * old.of(1, 3)
        skip = layer.gamma**2
        next_S = bias * layer.C_b + layer.C_W * (weight * old.of(0, 0) + once) + skip * S
        inner = weight**2 * old.of(0, 0) + weight * (once + once.T) + twice
        next_Q = bias**2 * layer.C_b + layer.C_W * inner + skip * Q
        found.append((next_kernel(old, layer), next_S, next_Q))
    parts = zip(("K", "S", "Q"), zip(*found, strict=True), strict=True)
    named = {name: ("layer input_1 input_2", np.stack(part)) for name, part in parts}
    return labelled(named, counted=("layer",))


def regularised_prediction(
    mlp: MLP, X_train: ArrayLike, Y_train: ArrayLike, X_test: ArrayLike, penalty: Penalty
) -> xr.DataArray:
    """Outputs (test, output) at the end of training the output layer with a penalty, at infinite width.

    The loss is half the sum of squares plus sum a theta^2 over the output layer. Its minimum is
    k_BA (k_AA + 1)^-1 y with k = 1 / (2 a_b) + n / (2 a_W) <s s>, the same for every initialisation.
    """
    check_network(mlp)
    if not (penalty.bias > 0 and penalty.weight > 0):
        raise InputError(
            f"the penalty is {tuple(penalty)}: give two positive numbers, for biases and weights."
        )
    fan_in = mlp.with_inputs(X_train).widths[-2]
    features = mlp.replace(
        C_b=(*mlp.C_b[:-1], 0.5 / penalty.bias), C_W=(*mlp.C_W[:-1], 0.5 * fan_in / penalty.weight)
    )
    return bayes_prediction(features, X_train, Y_train, X_test, noise=1.0, spread="none").mean


def output_layer_estimates(
    mlp: MLP, X_train: ArrayLike, Y_train: ArrayLike, X_test: ArrayLike, noise: float
) -> xr.Dataset:
    """``maximum_a_posteriori`` (6.22) and ``maximum_likelihood`` (6.21) of the output layer, at infinite width.

    Both are (test, output). The first is the posterior mean with this noise. Many parameters maximise the likelihood;
    those nearest to zero, in units of the prior, are meant: the limit of the first without noise.
    """
    import xarray as xr

    found = {
        name: bayes_prediction(mlp, X_train, Y_train, X_test, noise=variance, spread="none").mean
        for name, variance in (("maximum_a_posteriori", noise), ("maximum_likelihood", 0.0))
    }
    return xr.Dataset({name: mean.rename(name) for name, mean in found.items()})


def _check_penalties(mlp: MLP, penalties: Sequence[Penalty]) -> None:
    if len(penalties) != mlp.depth:
        raise InputError(
            f"penalties list {len(penalties)} layers but the network has {mlp.depth}: give one Penalty each."
        )
    if not all(np.isfinite(a) and a >= 0 for penalty in penalties for a in penalty):
        raise InputError("penalties contain numbers that are negative or infinite: give finite ones.")
