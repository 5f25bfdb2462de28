"""``ft.predict``: what trained networks answer, of an MLP by its theory and of any torch module by its kernels.

At infinite width a prediction needs nothing of a network but its NNGP K and NTK Theta between the inputs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, error_text
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.prediction.algorithms import Algorithm, AlgorithmName
from foretrain.theory.prediction.infinite_width.losses import Loss
from foretrain.theory.prediction.kernels import OutputKernels, Spread
from foretrain.theory.prediction.predict import (
    Bayes,
    Learner,
    LossName,
    LossPair,
    Options,
    Regime,
)
from foretrain.theory.prediction.predict import predict as predict_mlp
from foretrain.theory.prediction.predicted_outputs import PredictedOutputs

if TYPE_CHECKING:
    from torch import Tensor, nn


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
    momentum: float = 0.0,
    loss: LossName | Loss | LossPair | Callable[[Any, Any], Any] = "squared_error",
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
        (inputs, 1), or probabilities (inputs, classes). A loss of your own takes either.
    regime
        ``infinite`` width, or ``finite`` (an MLP only): the mean to first order in 1/width, in ``terms`` of different
        origin beside ``infinite_mean``; of Bayesian inference also covariance and evidence.
    learner
        ``gradient_descent`` of all parameters at the network's rates, or exact ``bayes`` inference with the
        initialisation as prior.
    algorithm
        ``gradient_descent`` in steps, ``flow`` in continuous time, ``two_step`` or ``newton``. At infinite width all
        end alike (10.33). A value of :mod:`foretrain.theory.prediction.algorithms`, such as
        ``GradientFlow(time=2.0)``, says its rate and time itself, as ``learner=Bayes(noise=0.1)`` its noise.
    eta
        Overall learning rate: of steps by default the best constant one, of the flow 1. It has no effect on
        ``two_step`` and ``newton``, which end in the same place at every rate.
    time
        Number of steps, or flow time; None is the end of training.
    momentum
        Of steps at infinite width, as torch.optim.SGD has it; Nesterov's is ``Descent(..., nesterov=True)``.
    loss
        ``squared_error``, half the SUM of squares, or ``cross_entropy`` of the softmax. At infinite width and for a
        ``time`` also any torch loss, such as ``torch.nn.functional.huber_loss`` or ``nn.BCEWithLogitsLoss()``, a pair
        of numpy functions (value, gradient) of outputs (inputs, outputs) and targets, or a
        :class:`~foretrain.theory.prediction.infinite_width.Loss`. It is differentiated as it is: torch's default, the
        MEAN, learns as many times more slowly than ``reduction="sum"`` as there are numbers in it. Networks are drawn
        and trained in function space; the result has ``mean_standard_error`` and ``samples``.
    label_smoothing
        Share of a class's probability that goes to the others: training on hard labels has no end without it.
    noise, noisy_labels
        Of Bayesian inference: variance of independent noise on every target, and whether predictions include it.
    spread
        "covariance" of all pairs of test inputs, "variance" of each, or "none": for many test inputs.
    draws, seed
        Of initialisations, where no closed form is known: softmax outputs, and all losses but squared errors at
        finite times (1000 by default). At finite width of inputs, where there are too many for all sums.
    tolerance
        Of the integrals of training at finite width, 1e-10 by default: training inputs that are nearly alike need
        less, and 1e-7 is several times faster for activations without closed forms. Of the flow on other losses than
        squared errors, 1e-6 by default.

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

    Five steps with momentum, and a loss of torch for a time of the flow:

    >>> task = mlp, [[1.0], [-1.0]], [1.0, 0.0], [[2.0], [0.5]]
    >>> ft.predict(*task, eta=0.1, time=5, momentum=0.9).mean.values.round(5).ravel()
    array([1.86971, 0.83985])
    >>> huber = ft.predict(*task, algorithm="flow", time=1.0, loss=nn.HuberLoss(reduction="sum"), draws=400)
    >>> huber.mean.dims, huber.samples.sizes["network"]
    (('test', 'output'), 400)
    """
    options: dict[str, Any] = {
        "regime": regime,
        "learner": learner,
        "algorithm": algorithm,
        "eta": eta,
        "time": time,
        "momentum": momentum,
        "loss": torch_loss(loss) if callable(loss) else loss,
        "label_smoothing": label_smoothing,
        "noise": noise,
        "noisy_labels": noisy_labels,
        "spread": spread,
        "draws": draws,
        "seed": seed,
        "tolerance": tolerance,
    }
    if isinstance(mlp, MLP) or not callable(mlp):
        if init != "module" or rates != "ntk":
            raise InputError(
                "`init` and `rates` are for torch modules: an MLP has its own constants and rates."
            )
        network: Any = mlp  # what is no network is refused there
        return predict_mlp(network, X_train, Y_train, X_test, **options)
    if regime != "infinite":
        raise InputError("a torch module is predicted at infinite width: leave `regime` out.")
    asked = Options(**options)
    kernels, outputs = _kernels(mlp, X_train, X_test, asked.kernel_spread, init, rates, seed)
    found = asked.of_kernels(kernels, asked.targets(Y_train, kernels.training, outputs), outputs)
    flat = [np.asarray(one).reshape(len(np.asarray(one)), -1) for one in (X_train, X_test)]
    name = type(mlp).__name__
    return found.about(flat[0], np.asarray(Y_train), flat[1], network=name, loss=asked.loss_name)


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


def torch_loss(loss: Callable[[Any, Any], Any]) -> Loss:
    """A torch loss of outputs and targets with its gradient in the outputs, of many networks at once.

    It sees one network at a time, so that a mean is that over its inputs and outputs, with nothing divided by the
    number of networks; targets are float64, or int64 where they name classes.
    """
    import torch

    if isinstance(loss, torch.nn.Module):  # in the precision of the outputs, if it holds weights of classes
        loss = copy.deepcopy(loss).to("cpu", torch.float64)
    name = getattr(loss, "__name__", type(loss).__name__).replace("<lambda>", "a given loss")

    def one_value(outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of one network, or an error that says why it is none."""
        try:
            value = loss(outputs, targets)
        except Exception as error:
            raise InputError(
                f"`loss` {name} cannot be taken of outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} "
                f"({error_text(error)}): give a torch loss, or a pair (value, gradient) of numpy functions."
            ) from error
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
            raise InputError(
                f"`loss` {name} does not give one number that depends on the outputs: use reduction='sum' or 'mean'."
            )
        return value.reshape(())

    def gradients_and_values(z: Array, y: Array) -> tuple[Array, Array]:
        outputs, targets = torch.tensor(z), torch.tensor(y)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operations that are slower when batched
            try:
                batched = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(0, None))
                gradients, values = batched(outputs, targets)
            except (
                Exception
            ):  # a condition on values cannot be batched; what else is wrong is said one by one
                outputs.requires_grad_()
                values = torch.stack([one_value(one, targets) for one in outputs])
                (gradients,) = torch.autograd.grad(values.sum(), outputs)
        return gradients.numpy(), values.detach().double().numpy()

    return Loss(name, lambda z, y: gradients_and_values(z, y)[1], lambda z, y: gradients_and_values(z, y)[0])
