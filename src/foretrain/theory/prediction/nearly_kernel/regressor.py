"""A nearly-kernel method as an estimator in scikit-learn's manner; scikit-learn itself is not needed.

>>> import numpy as np
>>> def powers(x):
...     return np.power.outer(x[:, 0], np.arange(8))
>>> def bends(x):
...     return np.power.outer(x[:, 0], np.add.outer(np.arange(8), np.arange(8)))
>>> x = np.linspace(-1, 1, 5)[:, None]
>>> estimator = NearlyKernelRegressor(features=powers, meta_features=bends, algorithm="flow", epsilon=0.01)
>>> round(estimator.fit(x, x[:, 0] ** 2).score(x, x[:, 0] ** 2), 6)
1.0
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Self

import numpy as np

from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.prediction.nearly_kernel.models import Model, QuadraticModel, finite
from foretrain.theory.prediction.nearly_kernel.solution import Solution, TrainedModel, solve, train

_WAYS = ("formula", "training")


class NearlyKernelRegressor:
    """Regression by a quadratic model z = Σ W φ + ε/2 Σ W W ψ, trained from W = 0 on half the sum of squares.

    Parameters
    ----------
    features, meta_features
        φ: x -> (N, P) and ψ: x -> (N, P, P), symmetric, with P at least the number of training outputs. Without
        meta_features this is regression with the kernel Σ φφ.
    kernel, meta_kernel
        In place of features: k(x1, x2) -> (N1, N2) and μ(x0, x1, x2) -> (N0, N1, N2). Axes of outputs as
        in ``ft.ntk`` and ``ft.dntk`` mean outputs that share parameters.
    model
        In place of both: an object that knows its own sums over features, such as
        ``foretrain.empirical.quadratic_features.NetworkFeatures`` of a torch network; then epsilon is 1.
    offset
        Outputs before training, x -> (N,) or (N, outputs).
    algorithm
        "gradient_descent", "flow", "direct" or "ridgeless": at first order in ε they end at different predictions.
    epsilon
        Multiplies the meta-features, or the meta-kernel.
    eta
        Learning rate of gradient descent, below 2 / w_max; by default 1 / w_max.
    solver
        "formula": closed form, first order in ε. "training": the model itself is trained, which needs features.

    After ``fit``: ``solution_`` (a :class:`Solution` or :class:`TrainedModel`), ``eta_``, ``expansion_parameter_``.
    """

    _estimator_type = "regressor"

    def __init__(
        self,
        features: Callable[[Any], Any] | None = None,
        meta_features: Callable[[Any], Any] | None = None,
        *,
        kernel: Callable[[Any, Any], Any] | None = None,
        meta_kernel: Callable[[Any, Any, Any], Any] | None = None,
        model: Model | None = None,
        offset: Callable[[Any], Any] | None = None,
        algorithm: str = "gradient_descent",
        epsilon: float = 1.0,
        eta: float | None = None,
        solver: str = "formula",
    ) -> None:
        self.features = features
        self.meta_features = meta_features
        self.kernel = kernel
        self.meta_kernel = meta_kernel
        self.model = model
        self.offset = offset
        self.algorithm = algorithm
        self.epsilon = epsilon
        self.eta = eta
        self.solver = solver

    def fit(self, X: Any, y: Any) -> Self:
        """Train on samples X (N, ...) and targets y (N,) or (N, outputs)."""
        if self.solver not in _WAYS:
            raise unknown_name("`solver`", str(self.solver), _WAYS)
        model, x = self._model(), self._samples(X)
        self.solution_: Solution | TrainedModel
        vars(self).pop("expansion_parameter_", None)  # of a fit before this one
        if self.solver == "training":
            self.solution_ = train(model, x, y, self.algorithm, self.eta)
        else:
            self.solution_ = solve(model, x, y, self.algorithm, self.eta)
            self.expansion_parameter_ = self.solution_.expansion_parameter
        self.eta_ = self.solution_.eta
        self.n_features_in_ = int(np.prod(x.shape[1:]))
        self._sample_shape = x.shape[1:]
        return self

    def predict(self, X: Any) -> Array:
        """Outputs after training: (N,) or (N, outputs), as the targets were."""
        return self._fitted().predict(self._like_training(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The coefficient of determination R², averaged over outputs."""
        found, target = self.predict(X), real_array("y", y)
        if target.shape != found.shape:
            raise InputError(f"y has shape {target.shape}, but predictions have {found.shape}.")
        weight = np.ones(len(target)) if sample_weight is None else real_array("sample_weight", sample_weight)
        if weight.shape != (len(target),) or not weight.sum() > 0:
            raise InputError(f"sample_weight has shape {weight.shape}: give (N,), with a sum above zero.")
        left = weight @ ((target - found) ** 2).reshape(len(target), -1)
        around = target - np.average(target, axis=0, weights=weight)
        spread = weight @ (around**2).reshape(len(target), -1)
        flat = spread == 0
        scores = np.where(flat, np.where(left == 0, 1.0, 0.0), 1 - left / np.where(flat, 1.0, spread))
        return float(scores.mean())

    def effective_kernel(self, X1: Any, X2: Any = None) -> Array:
        """The kernel after training (11.137), (11.138): (outputs, rows, rows)."""
        return self._fitted().effective_kernel(
            self._like_training(X1), None if X2 is None else self._like_training(X2)
        )

    def effective_features(self, X: Any) -> Array:
        """The features after training (11.107), where features were given: (outputs, rows, P)."""
        return self._fitted().effective_features(self._like_training(X))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor; none of them has parameters of its own, so ``deep`` changes nothing."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **parameters: Any) -> Self:
        """Change arguments of the constructor; fit again afterwards."""
        for name in parameters:
            if name not in self._names():
                raise unknown_name("parameter", name, self._names())
        vars(self).update(parameters)
        return self

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(name for name in signature(cls.__init__).parameters if name != "self")

    def _model(self) -> Model:
        for name in ("features", "meta_features", "kernel", "meta_kernel", "offset"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise InputError(f"`{name}` is a {type(given).__name__}: give a function of the samples.")
        if self.model is not None:
            if not all(hasattr(self.model, name) for name in ("points", "start")):
                raise InputError(
                    f"model is a {type(self.model).__name__}: give a QuadraticModel, or for a torch network "
                    "foretrain.empirical.quadratic_features.NetworkFeatures(network)."
                )
            others = (self.features, self.meta_features, self.kernel, self.meta_kernel, self.offset)
            if any(each is not None for each in others) or self.epsilon != 1:
                raise InputError(
                    "a model brings its own features, kernels, offset and epsilon: leave them out."
                )
            return self.model
        if self.features is not None and self.kernel is None:
            if self.meta_kernel is not None:
                raise InputError("meta_kernel goes with kernel: with features, give meta_features.")
            return QuadraticModel.from_features(self.features, self.meta_features, self.epsilon, self.offset)
        if self.kernel is None or self.features is not None:
            raise InputError(
                "give either features (and meta_features), or kernel (and meta_kernel), or a model."
            )
        if self.meta_features is not None:
            raise InputError("meta_features go with features: with kernel, give meta_kernel.")
        epsilon = finite(self.epsilon)
        scaled = None if self.meta_kernel is None else partial(_scaled, self.meta_kernel, epsilon)
        return QuadraticModel.from_kernels(self.kernel, scaled, self.offset)

    def _fitted(self) -> Solution | TrainedModel:
        if not hasattr(self, "solution_"):
            raise InputError("this NearlyKernelRegressor is not fitted: call fit(X, y) first.")
        return self.solution_

    def _like_training(self, X: Any) -> Any:
        self._fitted()
        x = self._samples(X)
        if x.ndim == 2 and len(self._sample_shape) == 1 and x.shape[1] != self.n_features_in_:
            raise InputError(f"X has {x.shape[1]} columns, but there were {self.n_features_in_} in training.")
        if x.shape[1:] != self._sample_shape:
            raise InputError(
                f"X has samples of shape {x.shape[1:]}, but there was {self._sample_shape} in training."
            )
        return x

    def _samples(self, X: Any) -> Any:
        """Samples as real numbers; whole ones stay so for a model, because a network may want them."""
        x = real_array("X", X)
        if x.ndim < 1 or not len(x):
            raise InputError(f"X has shape {x.shape}: give at least one sample, (N, features).")
        given = np.asarray(X)
        return given if self.model is not None and given.dtype.kind in "iu" else x

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "solution_")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks for; only it calls this, so it is there to be imported."""
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True, multi_output=True),
            input_tags=InputTags(),
            regressor_tags=RegressorTags(),
        )

    def __repr__(self) -> str:
        defaults = {name: each.default for name, each in signature(type(self).__init__).parameters.items()}
        told = ", ".join(
            f"{name}={getattr(value, '__name__', repr(value))}"
            for name, value in self.get_params().items()
            if value is not defaults[name] and value != defaults[name]
        )
        return f"NearlyKernelRegressor({told})"


def _scaled(meta_kernel: Callable[[Any, Any, Any], Any], epsilon: float, x0: Any, x1: Any, x2: Any) -> Array:
    return epsilon * real_array("the meta-kernel", meta_kernel(x0, x1, x2))
