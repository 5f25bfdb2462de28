"""The plateau of a torch network: how long, because of which layers, and how to remove it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from foretrain.compare.plateau.layers import (
    Bottleneck,
    find_bottleneck,
    has_normalisation,
    is_chain,
    read_layers,
)
from foretrain.compare.plateau.levels import escape_level, plateau_level
from foretrain.compare.plateau.prediction import Forecast, forecast
from foretrain.compare.plateau.rates import Descent, descent_of
from foretrain.compare.plateau.rescaling import ScalingLaw, factors_to_natural, rescaled
from foretrain.compare.plateau.result import Plateau
from foretrain.compare.task import Loss, Task, prepare
from foretrain.empirical.layer_scales import LayerScales, layer_scales
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import InputError, NotSupportedError


def plateau(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    lr: float | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Loss | str | None = None,
    batch_size: int | None = None,
    threshold: float | None = None,
    share: float = 0.5,
    max_steps: float = 1e7,
) -> Plateau:
    """Predict how many steps of gradient descent a network stays on the plateau of a small initialization.

    The network's own gradient flow on all its data is integrated with adaptive steps until the loss falls below
    ``threshold``, by default the ``share`` of the loss at the saddle (that of zero weights, or of the best constant
    output where biases can learn it). ``optimizer`` gives rates by layer and momentum; ``lr`` is one rate for all.
    ``batch_size`` matters for :meth:`Plateau.verify` only, which trains. The model is not changed.

    ``loss`` is "squared_error" (half the SUM of squares), "mse", "cross_entropy" or any function of outputs and
    targets; by default cross-entropy for whole-number labels, else torch's mean squared error.

    >>> network = nn.Sequential(nn.Linear(4, 16, bias=False), nn.Tanh(), nn.Linear(16, 1, bias=False))
    >>> x = torch.randn(64, 4)
    >>> plateau(network, x, torch.tanh(x[:, :1]), lr=0.1).forecast.escape < 1000
    True
    """
    _check(model, max_steps)
    descent = descent_of(model, lr, optimizer)
    task = prepare(model, x, y, loss)
    if batch_size is not None and whole_number("batch_size", batch_size) > len(task.x):
        raise InputError(
            f"`batch_size` is {batch_size}: give a whole number from 1 to {len(task.x)}, all samples."
        )
    layers = read_layers(model, task.x)
    found = find_bottleneck(layers)
    level = plateau_level(model, task)
    goal = escape_level(level, threshold, share)
    given = forecast(model, task, descent, level, goal, max_steps)
    factors: dict[str, float] = {}
    after: Forecast | None = None
    law: ScalingLaw | None = None
    if given.has_plateau and found.count and not has_normalisation(model):
        factors = factors_to_natural(found)
        after = forecast(rescaled(model, factors), task, descent, level, goal, max_steps)
        law = _law(model, task, descent, found, given, max_steps, is_chain(model, task.x, layers))
    scales = _theory_scales(model, task, len(layers))
    return Plateau(model, task, descent, batch_size, layers, found, given, law, factors, after, scales)


def _theory_scales(model: nn.Module, task: Task, count: int) -> LayerScales | None:
    """X_l for networks the theory speaks of; the signal is the direction of inputs that says most about targets."""
    try:
        inputs = task.x.flatten(1).double()
        targets = task.y if task.y.is_floating_point() else nn.functional.one_hot(task.y)
        targets = targets.reshape(len(targets), -1).double()
        covariance = (inputs - inputs.mean(0)).T @ (targets - targets.mean(0))
        direction = torch.linalg.svd(covariance, full_matrices=False).U[:, 0]
        scales = layer_scales(model, direction.cpu().numpy())
    except (NotSupportedError, InputError):
        return None
    return scales if len(scales.layers) == count else None


def _law(
    model: nn.Module,
    task: Task,
    descent: Descent,
    found: Bottleneck,
    given: Forecast,
    max_steps: float,
    chain: bool,
) -> ScalingLaw:
    """The law for this bottleneck, beside the flow from half the scale."""
    ratio = math.nan
    if math.isfinite(given.escape):
        halves = rescaled(model, {layer.name: 0.5 for layer in found.layers})
        longest = max(max_steps, 4.0 * 2.0**found.count * given.escape)
        smaller = forecast(halves, task, descent, given.level, given.threshold, longest)
        ratio = smaller.escape / given.escape if math.isfinite(smaller.escape) else math.nan
    return ScalingLaw(found.count, found.epsilon, ratio, chain)


def _check(model: nn.Module, max_steps: float) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give a torch.nn.Module.")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise InputError("the model has lazy layers without weights: call it once on a few inputs before.")
    positive("max_steps", max_steps)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise NotSupportedError("the model drops units at random: call model.eval(), or remove dropout.")
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise NotSupportedError(
                "batch normalisation lets samples depend on their batch, and undoes the scale of the layer before: "
                "call model.eval() to freeze its statistics."
            )
