"""How much one step of gradient descent moves the last hidden layer: nothing at infinite width, 1/n before it.

To first order in eta, averaged over networks, for every neuron of layer L - 1 ((10.11), and (10.12) completed by the
variance of the tangent kernel, which is of the same order where there are two hidden layers or more).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_learning_rate, check_targets
from foretrain.theory.flow import flow
from foretrain.theory.prediction.cholesky import square_root
from foretrain.theory.prediction.infinite_width.losses import SQUARED_ERROR, Loss
from foretrain.theory.recursions.expectations import PairExpectations, next_kernel


class LossMoments(NamedTuple):
    """Over initial outputs, summed over outputs, on training inputs (A, A)."""

    curvature: Array  # sum_i <d^2 L / dz_i;a dz_i;b>
    products: Array  # sum_i <epsilon_i;a epsilon_i;b>


@dataclass(frozen=True, repr=False, eq=False)
class HiddenUpdate(Result):
    """Change of a neuron of the last hidden layer in one step: training inputs first, then the others."""

    mean: Array  # (inputs,) (10.11)
    covariance: Array  # (inputs, inputs), of each neuron; different neurons are uncorrelated
    covariance_without_ntk_variance: Array  # (10.12) as printed
    eta: float
    width: int


def hidden_update(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike | None = None,
    eta: float = 1.0,
    loss: Loss = SQUARED_ERROR,
    draws: int = 20_000,
    seed: Seed = 0,
) -> HiddenUpdate:
    """Mean and covariance of dz^(L-1) of one neuron, at leading order in 1/width.

    Squared errors are exact; for another loss its moments over initial outputs are sampled with ``draws``.
    """
    check_network(mlp)
    if mlp.depth < 2:
        raise InputError("the network has no hidden layer: give depth 2 or more.")
    if mlp.is_residual:
        raise NotSupportedError(
            "updates of hidden layers are known without skip connections only: drop gamma."
        )
    train = mlp.check_inputs(X_train, "X_train")
    mlp, training = mlp.with_inputs(train), len(train)
    inputs = train if X_test is None else np.concatenate([train, mlp.check_inputs(X_test, "X_test")])
    targets = check_targets(Y_train, training, mlp.n_out, "Y_train")
    eta, width, last = check_learning_rate(eta), mlp.hidden_widths[-1], mlp.layers[-1]
    # The network whose output is the last hidden layer.
    hidden, rates = mlp.depth - 1, (mlp.C_b, mlp.C_W, mlp.lambda_b, mlp.lambda_W)
    widths = list(mlp.hidden_widths[:-1]) if hidden > 1 else None
    below = MLP(mlp.activation, hidden, widths, mlp.n_in, width, *(list(values[:-1]) for values in rates))
    names = ["K", "Theta"] + ["B"] * (below.depth > 1)
    at = {name: tensor.sel(layer=below.depth).values for name, tensor in flow(below, inputs, names).items()}
    seen = slice(None, training)
    expectations = PairExpectations(mlp.activation, at["K"][seen, seen])
    output = next_kernel(expectations, last)
    if loss is SQUARED_ERROR:
        curvature, products = mlp.n_out * np.eye(training), mlp.n_out * output + targets @ targets.T
        moments = LossMoments(curvature, products)
    else:
        moments = sampled_moments(output, targets, loss, draws, seed)
    tangent = at["Theta"][:, seen]
    pulled = (moments.curvature * expectations.of(1, 0)).sum(axis=1)
    weights = expectations.of(1, 1) * moments.products
    printed = tangent @ weights @ tangent.T
    whole = printed.copy()
    if below.depth > 1:
        ratio = width / mlp.hidden_widths[-2]
        whole += ratio * np.einsum("deab,ab->de", at["B"][:, :, seen, seen], weights)
    scale = last.C_W / width
    return HiddenUpdate(
        -eta * scale * tangent @ pulled, eta**2 * scale * whole, eta**2 * scale * printed, eta, width
    )


def sampled_moments(K: Array, targets: Array, loss: Loss, draws: int = 20_000, seed: Seed = 0) -> LossMoments:
    """Moments of any loss over initial outputs ~ N(0, K), sampled."""
    loss.check(targets)
    require_memory(40 * draws * targets.size, f"outputs of {draws:,} networks", "use fewer draws")
    noise = generator(seed).standard_normal((draws, *targets.shape))
    z = np.einsum("ab,dbi->dai", square_root(K), noise, optimize=True)
    error = loss.slope(z, targets)
    flat = z.reshape(-1, targets.shape[1])
    curvature = loss.curvature(flat, np.tile(targets, (draws, 1)))
    traces = np.trace(curvature, axis1=1, axis2=2).reshape(draws, -1).mean(axis=0)
    return LossMoments(np.diag(traces), np.einsum("dai,dbi->ab", error, error, optimize=True) / draws)
