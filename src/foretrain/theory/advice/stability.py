"""The largest stable step of gradient descent with a network's own rates, from its tangent kernel on given inputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

LOSSES = ("squared_error", "mse", "cross_entropy")
_SHARE = 0.5  # of the largest stable step: there the steepest direction reaches its minimum at once


class StableStep(NamedTuple):
    """eta at which descent on all inputs together begins to diverge at infinite width, and half of it."""

    loss: str
    largest: float
    recommended: float
    eigenvalue: float  # the largest of Theta on the inputs
    inputs: int


def check_loss(loss: str, n_out: int) -> None:
    """An error for a loss that is not known, or not for one output."""
    if loss not in LOSSES:
        raise unknown_name("loss", str(loss), LOSSES)
    if loss == "cross_entropy" and n_out < 2:
        raise InputError("cross entropy needs two outputs or more: set n_out to the number of classes.")


def stable_step(mlp: MLP, X: ArrayLike, loss: str) -> StableStep:
    """2 / curvature, since a step multiplies errors by 1 - eta curvature: the top of Theta times that of the loss.

    ``squared_error`` is half the SUM of squares, ``mse`` the mean over inputs and outputs as torch has it, and
    ``cross_entropy`` the mean over inputs, with the largest second derivative 1/2 that a softmax has anywhere.
    """
    check_loss(loss, mlp.n_out)
    Theta = flow(mlp, X, ["Theta"])["Theta"].values[-1]
    inputs, top = len(Theta), float(np.linalg.eigvalsh(Theta)[-1])
    bend = {"squared_error": 1.0, "mse": 2 / (inputs * mlp.n_out), "cross_entropy": 0.5 / inputs}[loss]
    largest = 2 / (top * bend)
    return StableStep(loss, largest, _SHARE * largest, top, inputs)
