"""What trained networks of infinite width answer, as a regressor and a classifier of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from foretrain.compare.estimators.network import NetworkKernels, in_parts
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.prediction.cholesky import CholeskyFactor, factorise

_ENTRIES = 2**24  # of a kernel between test and training inputs that is made at once
_TOGETHER = 64  # test inputs, at least, whose covariances are made at once
_LEAST_SCALE = 1e-3  # of logits: probabilities that still order classes as the scores do


@dataclass(kw_only=True, eq=False, repr=False)
class _KernelMachine(NetworkKernels, BaseEstimator):
    """Regression with the kernel of a network: Theta(x, X) times the coefficients (Theta(X, X) + noise)^-1 y."""

    noise: float = 0.0

    def _train(self, X: Array, targets: Array) -> tuple[Array, CholeskyFactor]:
        """Fit, and return the NNGP of the training inputs and the factor of Theta + noise."""
        K, Theta = self._kernels(X)
        factor = factorise(Theta, self.noise)
        self.X_train_ = X
        self.dual_coef_ = factor.solve(targets)
        return K, factor

    def _tests(self, X: Any) -> Array:
        """Test inputs, checked against the training inputs."""
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))

    def _means(self, X: Any) -> Array:
        """Mean answers, for as many rows at a time as their kernel has room."""
        parts = in_parts(self._tests(X), max(1, _ENTRIES // len(self.X_train_)))
        return np.concatenate([self._kernels(part, self.X_train_)[1] @ self.dual_coef_ for part in parts])


@dataclass(kw_only=True, eq=False, repr=False)
class NTKRegressor(MultiOutputMixin, RegressorMixin, _KernelMachine):
    """Regression by trained networks of infinite width: their mean answer, and how far single networks are from it.

    The mean over initialisations is Theta(x, X) (Theta(X, X) + noise)^-1 y, since outputs begin with mean zero; for
    targets far from zero see ``sklearn.compose.TransformedTargetRegressor``.

    Parameters
    ----------
    activation, depth, C_W, C_b
        An MLP with ``depth`` layers of weights of variance C_W / fan-in and biases of variance C_b, one number or one
        for each layer. Rates are lambda_W = C_W and lambda_b = C_b: the "ntk" parametrisation.
    fixed_layers
        How many first layers are not trained.
    kernel
        "ntk": the other layers train. "nngp": the last layer alone, on random features.
    noise
        Ridge, added to the kernel of the training inputs: the variance of noise on targets, or the weight of a
        penalty on how far parameters move from where they started.
    learner
        What the spread is: "gradient_descent", the covariance of trained networks over their initialisations, or
        "bayes", the posterior covariance of a Gaussian process with this kernel, exact inference for "nngp".
    network
        In place of the MLP by its constants: an ``ft.MLP`` with its own constants and rates, a torch module or a
        function make(width), or a ``foretrain.theory.layers.Signal``.
    init, rates
        How a torch module was drawn and is trained, as ``ft.infinite_width`` takes them.
    input_shape
        The shape of one sample, for networks that take images: rows of X are reshaped to it.

    Examples
    --------
    >>> import foretrain as ft
    >>> regressor = ft.NTKRegressor(depth=2).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])
    >>> mean, deviation = regressor.predict([[1.0], [1.5]], return_std=True)
    >>> mean.round(4), deviation.round(4)
    (array([1.    , 0.5021]), array([0.    , 0.0111]))
    """

    learner: str = "gradient_descent"

    def fit(self, X: Any, y: Any) -> Self:
        """Train on samples X (N, features) and targets y (N,) or (N, outputs)."""
        if self.learner not in ("gradient_descent", "bayes"):
            raise unknown_name("`learner`", str(self.learner), ("gradient_descent", "bayes"))
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        K, self.factor_ = self._train(X, np.asarray(y, dtype=np.float64))
        self.initial_covariance_ = K if self.learner == "gradient_descent" else None
        return self

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False
    ) -> Array | tuple[Array, Array]:
        """Mean answers (N,) or (N, outputs), and with them their standard deviations or covariances over networks.

        Deviations have the shape of the mean, covariances (N, N) or (N, N, outputs), the same for every output.
        """
        if return_std and return_cov:
            raise InputError("`return_std` and `return_cov` are both given: ask for one of them.")
        if not (return_std or return_cov):
            return self._means(X)
        # Covariances of few tests at a time cost little beside their kernel with the training inputs.
        tests = self._tests(X)
        rows = len(tests) if return_cov else max(_TOGETHER, len(self.X_train_) // 4)
        means, covariances = zip(*map(self._mean_and_covariance, in_parts(tests, rows)), strict=True)
        mean, spread = np.concatenate(means), covariances[0]
        if return_std:
            spread = np.sqrt(np.maximum(np.concatenate([np.diagonal(one) for one in covariances]), 0.0))
        return mean, spread if mean.ndim == 1 else np.repeat(spread[..., None], mean.shape[1], axis=-1)

    def _mean_and_covariance(self, X: Array) -> tuple[Array, Array]:
        """Of test outputs: over initialisations (10.40), (10.41), or of the posterior (6.64), (6.57)."""
        K_cross, cross = self._kernels(X, self.X_train_)
        K, Theta = self._kernels(X)
        weights = self.factor_.solve(cross.T)
        if self.initial_covariance_ is None:
            covariance = Theta - cross @ weights
        else:  # that of z(0) + Theta(x, X) (Theta + noise)^-1 [y - z_X(0)]
            covariance = K - K_cross @ weights
            covariance -= weights.T @ (K_cross.T - self.initial_covariance_ @ weights)
        return cross @ self.dual_coef_, (covariance + covariance.T) / 2


@dataclass(kw_only=True, eq=False, repr=False)
class NTKClassifier(ClassifierMixin, _KernelMachine):
    """Classification by trained networks of infinite width with one output for each class.

    The rule is regression on one-hot labels minus 1 / classes, the protocol of Arora et al. (2019): scores are
    Theta(x, X) (Theta(X, X) + noise)^-1 (one-hot - 1 / classes), and the class with the largest one is predicted.

    Networks that are trained to the end on the cross-entropy of labels with smoothing e answer the same: without
    noise their mean logits are the scores times log((1 - e)(classes - 1) / e). Probabilities are the softmax of that.
    They are calibrated by e: by default it is the one by which the labels of the training inputs are likeliest when
    each of them is predicted without itself.

    Probabilities over single networks, after a time of training, or without smoothing are those of
    ``ft.predict(..., loss="cross_entropy")``; a Laplace posterior comes from
    ``sklearn.gaussian_process.GaussianProcessClassifier`` with an ``ft.NTKKernel``.

    Parameters
    ----------
    activation, depth, C_W, C_b, fixed_layers, kernel, noise, network, init, rates, input_shape
        As in ``ft.NTKRegressor``.
    label_smoothing
        The share e of a class's probability that goes to the others; None: by leaving one out. Fitted,
        ``label_smoothing_`` is the one that is used.

    Examples
    --------
    >>> import foretrain as ft
    >>> classifier = ft.NTKClassifier(depth=2).fit([[0.0], [1.0], [2.0], [3.0]], ["a", "a", "b", "b"])
    >>> classifier.predict([[0.5], [2.5]])
    array(['a', 'b'], dtype='<U1')
    """

    label_smoothing: float | None = None

    def fit(self, X: Any, y: Any) -> Self:
        """Train on samples X (N, features) and labels y (N,) of any kind."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        others, smoothing = len(self.classes_) - 1, self.label_smoothing
        if not others:
            raise InputError("`y` holds one class: give samples of at least two.")
        if smoothing is not None and not 0 < smoothing < others / (others + 1):
            raise InputError(
                f"`label_smoothing` is {smoothing!r}: give a share above 0 and below 1 - 1 / classes, or None."
            )
        targets = np.eye(others + 1)[numbers] - 1 / (others + 1)
        _, factor = self._train(X, targets)
        self.logit_scale_ = (
            self._likeliest_scale(factor, targets, numbers)
            if smoothing is None
            else float(np.log((1 - smoothing) * others / smoothing))
        )
        self.label_smoothing_ = others / (np.exp(self.logit_scale_) + others)
        return self

    def decision_function(self, X: Any) -> Array:
        """Scores (N, classes); of two classes (N,), of the second minus the first."""
        scores = self._means(X)
        return scores if len(self.classes_) > 2 else scores[:, 1] - scores[:, 0]

    def predict(self, X: Any) -> Any:
        """The labels (N,) of the largest scores."""
        scores = self._means(X)
        return self.classes_[scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (N, classes): the softmax of mean logits of networks trained on smoothed labels."""
        scores = self._means(X)
        return np.asarray(softmax(self.logit_scale_ * scores, axis=1))

    def _likeliest_scale(self, factor: CholeskyFactor, targets: Array, numbers: Any) -> float:
        """The scale of logits by which the training labels are likeliest, each predicted by all others."""
        # Leaving one out in closed form: y_i - [A^-1 y]_i / [A^-1]_ii (Rasmussen & Williams, 5.12).
        precisions = (factor.whiten(np.eye(len(targets))) ** 2).sum(axis=0)
        left_out = targets - self.dual_coef_ / precisions[:, None]
        own = left_out[np.arange(len(targets)), numbers]

        def unlikeliness(scale: float) -> float:
            return float(np.sum(logsumexp(scale * left_out, axis=1) - scale * own))

        # N samples do not show that errors are rarer than by Laplace's rule of succession, e = (C - 1) / (N + C).
        bounds = (_LEAST_SCALE, np.log(len(targets) + 1))
        return float(minimize_scalar(unlikeliness, bounds=bounds, method="bounded").x)
