"""The loss of a network on the plateau, and the loss at which it counts as escaped."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.support.errors import InputError

FLAT = 0.1  # within this share of its level the loss is called flat


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
                f"`share` is {share}: give a part of the plateau's loss between 0 and {highest:g}."
            )
        return share * level
    if not threshold < highest * level:
        raise InputError(
            f"`threshold` is {threshold:g}, but the plateau is at {level:g}: give less than {highest * level:g}."
        )
    return threshold
