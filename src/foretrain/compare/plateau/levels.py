"""The loss of a network on the plateau, and the loss at which it counts as escaped."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.support.errors import InputError

Loss = Callable[[Any, Any], Tensor]

_NAMES: dict[Loss, str] = {
    nn.functional.mse_loss: "mean squared error",
    nn.functional.cross_entropy: "cross-entropy",
}
FLAT = 0.1  # within this share of its level the loss is called flat


@dataclass(frozen=True)
class Task:
    """Inputs, targets and loss as the model takes them."""

    x: Tensor
    y: Tensor
    loss: Loss
    loss_name: str

    def value(self, model: nn.Module) -> float:
        """The loss over all data."""
        with torch.no_grad():
            return float(self.loss(model(self.x), self.y))


def prepare(model: nn.Module, x: Any, y: Any, loss: Loss | None) -> Task:
    """Tensors in the model's precision; without a loss, cross-entropy for whole-number labels, else mean squares."""
    like = next(model.parameters()).detach()
    inputs = torch.as_tensor(x).to(like.device)
    inputs = inputs.to(like.dtype) if inputs.is_floating_point() else inputs
    targets = torch.as_tensor(y).to(like.device)
    if len(inputs) != len(targets) or not len(inputs):
        raise InputError(f"x has {len(inputs)} samples and y {len(targets)}: give one target for each input.")
    with torch.no_grad():
        outputs = model(inputs[:2])
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"the model returns a {type(outputs).__name__}: wrap it so that it returns a tensor."
        )
    whole = not targets.is_floating_point()
    if loss is None:
        classes = whole and outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1
        loss = nn.functional.cross_entropy if classes else nn.functional.mse_loss
    if loss is nn.functional.mse_loss:
        targets = _shaped_like(targets.to(like.dtype), outputs)
    elif loss is nn.functional.cross_entropy and whole:
        targets = _checked_labels(targets.long(), outputs.shape[1])
    elif not whole:
        targets = targets.to(like.dtype)
    name = _NAMES.get(loss, getattr(loss, "__name__", type(loss).__name__))
    task = Task(inputs, targets, loss, name)
    _check_value(task, model)
    return task


def _shaped_like(targets: Tensor, outputs: Tensor) -> Tensor:
    """One number for each output; a missing axis of length one is added, nothing is broadcast."""
    shape = (len(targets), *outputs.shape[1:])
    if targets.numel() != math.prod(shape):
        raise InputError(
            f"a target has shape {tuple(targets.shape[1:])} but an output {tuple(outputs.shape[1:])}: "
            "give targets in the shape of the outputs, or whole-number labels."
        )
    return targets.reshape(shape)


def _checked_labels(labels: Tensor, classes: int) -> Tensor:
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(
            f"labels run from {int(labels.min())} to {int(labels.max())}, but the model has {classes} outputs: "
            f"give labels from 0 to {classes - 1}."
        )
    return labels


def _check_value(task: Task, model: nn.Module) -> None:
    with torch.no_grad():
        value = task.loss(model(task.x), task.y)
    if not isinstance(value, Tensor) or value.numel() != 1 or not torch.isfinite(value).all():
        raise InputError("loss(model(x), y) must be one finite number: average it over the data.")


def plateau_level(model: nn.Module, task: Task) -> float:
    """The loss at the saddle.

    At zero weight matrices the output is the same for all inputs. If the loss has a slope there (a bias, or an
    activation with σ(0) ≠ 0, can still move it), the network first learns the best constant, and waits at its loss.
    """
    zeroed = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in zeroed.parameters():
            if parameter.ndim >= 2 and parameter.requires_grad:
                parameter.zero_()
    moving = [parameter for parameter in zeroed.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        outputs = zeroed(task.x)
        value = task.loss(outputs, task.y)
        slopes = torch.autograd.grad(value, moving, allow_unused=True) if value.requires_grad else ()
    steep = max((float(slope.abs().max()) for slope in slopes if slope is not None), default=0.0)
    varies = float((outputs - outputs[:1]).detach().abs().max())
    at_zero = float(value.detach())
    if steep <= 1e-7 * max(abs(at_zero), 1e-30) or varies > 1e-6 * (1 + float(outputs.detach().abs().max())):
        return at_zero
    return min(at_zero, _best_constant(outputs[:1].detach(), task))


def _best_constant(start: Tensor, task: Task) -> float:
    """The least loss of outputs that are the same for all inputs."""
    from scipy.optimize import minimize

    def loss_and_slope(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        constant = torch.as_tensor(values).to(start).reshape(start.shape).requires_grad_()
        with torch.enable_grad():
            value = task.loss(constant.expand(len(task.x), *start.shape[1:]), task.y)
        (slope,) = torch.autograd.grad(value, constant)
        return float(value.detach()), slope.double().cpu().numpy().ravel()

    at = start.double().cpu().numpy().ravel()
    return float(minimize(loss_and_slope, at, jac=True, method="L-BFGS-B").fun)


def escape_level(level: float, threshold: float | None, share: float) -> float:
    """The loss below which the network has escaped: given, or a share of the plateau's."""
    highest = 1 - FLAT
    if not level > 0:
        raise InputError(
            f"the loss at the saddle is {level:g}, so there is nothing to learn from it: give targets that are not "
            "fitted by a constant, and a loss that is positive."
        )
    if threshold is None:
        if not 0 < share < highest:
            raise InputError(
                f"share is {share}: give a part of the plateau's loss between 0 and {highest:g}."
            )
        return share * level
    if not threshold < highest * level:
        raise InputError(
            f"threshold is {threshold:g}, but the plateau is at {level:g}: give less than {highest * level:g}."
        )
    return threshold
