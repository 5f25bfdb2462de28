"""``ft.predict``: what trained networks answer, of an MLP by its theory and of any torch module by its kernels.

At infinite width a prediction needs nothing of a network but its NNGP K and NTK Theta between the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.prediction.algorithms import Algorithm, AlgorithmName
from foretrain.theory.prediction.kernels import OutputKernels, Spread
from foretrain.theory.prediction.predict import Bayes, Learner, LossName, Regime, predict_from_kernels
from foretrain.theory.prediction.predict import predict as predict_mlp
from foretrain.theory.prediction.predicted_outputs import PredictedOutputs

if TYPE_CHECKING:
    from torch import nn


def predict(
    mlp: MLP | nn.Module | Callable[[int], nn.Module] | Any,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    regime: Regime = "infinite",
    learner: Learner | Bayes = "gradient_descent",
    algorithm: AlgorithmName | Algorithm = "gradient_descent",
    eta: float | None = None,
    time: float | None = None,
    *,
    loss: LossName = "squared_error",
    label_smoothing: float | None = None,
    noise: float = 0.0,
    noisy_labels: bool = False,
    spread: Spread = "covariance",
    draws: int | None = None,
    seed: Seed = 0,
    tolerance: float | None = None,
    init: Any = "module",
    rates: Any = "ntk",
) -> PredictedOutputs:
    """What networks answer on test inputs after training: mean and spread over initialisations, or a posterior.

    Parameters
    ----------
    mlp
        An ``MLP``; or, at infinite width, a torch module or a function make(width), read as ``infinite_width`` reads
        them, with its ``init`` and ``rates``.
    Y_train
        Targets (inputs, outputs). For the cross-entropy whole numbers 0, 1, ... that name classes, (inputs,) or
        (inputs, 1), or probabilities (inputs, classes).
    regime
        ``infinite`` width, or ``finite`` (an MLP only): the mean to first order in 1/width, in ``terms`` of different
        origin beside ``infinite_mean``; of Bayesian inference also covariance and evidence.
    learner, algorithm, eta, time
        ``gradient_descent`` by steps, ``flow``, ``two_step`` or ``newton`` at a rate for a time (None: to the end),
        or exact ``bayes`` inference: see :func:`foretrain.theory.prediction.predict.predict`, as for other options.
    loss
        ``squared_error``, half the SUM of squares, or ``cross_entropy`` of the softmax.
    spread
        "covariance" of all pairs of test inputs, "variance" of each, or "none": for many test inputs.

    Every result has ``mean`` (test, output), ``covariance``, ``variance`` and ``standard_deviation``.

    Examples
    --------
    >>> import foretrain as ft
    >>> mlp = ft.MLP("relu", depth=3, width=100, C_W=2.0)
    >>> found = ft.predict(mlp, [[1.0], [-1.0]], [1.0, 0.0], [[2.0], [0.5]])
    >>> found
    Networks of infinite width at the end of training: 2 test inputs, 1 output.
    <BLANKLINE>
    Outputs on test inputs
    <BLANKLINE>
    test    x     mean  ± spread
    ----  ---  -------  --------
       0    2  1.53286  0.724187
       1  0.5  0.73357  0.362094

    A torch module with the same weights and rates:

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    >>> options = {"init": {"*": (2.0, 0.0)}, "rates": {"*": (1.0, 1.0)}}
    >>> ft.predict(net, [[1.0], [-1.0]], [1.0, 0.0], [[2.0], [0.5]], **options).mean.values.round(5).ravel()
    array([1.53286, 0.73357])
    """
    given: dict[str, Any] = {
        "learner": learner,
        "algorithm": algorithm,
        "eta": eta,
        "time": time,
        "loss": loss,
        "label_smoothing": label_smoothing,
        "noise": noise,
        "noisy_labels": noisy_labels,
        "spread": spread,
        "draws": draws,
        "seed": seed,
    }
    if isinstance(mlp, MLP) or not callable(mlp):
        if init != "module" or rates != "ntk":
            raise InputError(
                "`init` and `rates` are for torch modules: an MLP has its own constants and rates."
            )
        network: Any = mlp  # what is no network is refused there
        return predict_mlp(network, X_train, Y_train, X_test, regime, tolerance=tolerance, **given)
    if regime != "infinite" or tolerance is not None:
        raise InputError("a torch module is predicted at infinite width: leave `regime` and `tolerance` out.")
    kernels, outputs = _kernels(mlp, X_train, X_test, spread, init, rates, seed)
    found = predict_from_kernels(kernels, Y_train, outputs, **given)
    flat = [np.asarray(one).reshape(len(np.asarray(one)), -1) for one in (X_train, X_test)]
    return found.about(flat[0], np.asarray(Y_train), flat[1], network=type(mlp).__name__, loss=loss)


def _kernels(
    model: Any, X_train: Any, X_test: Any, spread: Spread, init: Any, rates: Any, seed: Seed
) -> tuple[OutputKernels, int]:
    """Kernels of the output between training and test inputs, and how many outputs there are."""
    from foretrain.compare.infinite_width import infinite_width

    options: dict[str, Any] = {"init": init, "rates": rates, "seed": seed}
    train = infinite_width(model, X_train, **options)
    if train.nngp.ndim > 2:
        raise InputError(
            "the output of the model keeps positions: predict a model that picks or averages them."
        )
    cross = infinite_width(model, X_test, X_train, **options)
    own = None
    if spread != "none":
        own = infinite_width(model, X_test, **options).nngp.values
        own = own if spread == "covariance" else np.diagonal(own).copy()
    blocks = (train.nngp.values, cross.nngp.values, own, train.ntk.values, cross.ntk.values)
    return OutputKernels(*blocks), train.outputs
