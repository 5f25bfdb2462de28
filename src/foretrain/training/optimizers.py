"""Optimizers that the experiments compare with plain gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from foretrain.support.errors import InputError, NotSupportedError


def shampoo(
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
    lr: float = 1e-3,
    *,
    epsilon: float = 1e-6,
) -> torch.optim.Optimizer:
    """Shampoo (Gupta, Koren & Singer 2018) as pytorch_optimizer has it: full preconditioners, no momentum.

    A matrix moves by -lr L^(-1/4) G R^(-1/4), where L and R are epsilon times the identity plus the sums of all G G*
    and G* G so far; a vector by -lr H^(-1/2) g with the sum of all g g*, and so on with 2 * order for tensors.

    Parameters
    ----------
    lr
        Steps shrink by themselves as the sums grow, so it may be larger than for gradient descent.
    epsilon
        What the sums begin with. Directions that have had gradients below its root are held back.

    Notes
    -----
    Roots are taken at every step, from singular values of a matrix with as many rows as each axis of a parameter:
    that is what costs time. Roots kept from earlier steps would be huge, up to epsilon^(-1/2), for new gradients.
    """
    if not lr > 0:
        raise InputError(f"`lr` is {lr}, but a learning rate must be positive.")
    if not epsilon > 0:
        raise InputError(
            f"`epsilon` is {epsilon}, but it must be positive, or roots of zero would be divided by."
        )
    try:
        from pytorch_optimizer import Shampoo
    except ImportError as error:
        raise NotSupportedError(
            "shampoo needs the package pytorch-optimizer: install it with `pip install pytorch-optimizer`."
        ) from error
    found: torch.optim.Optimizer = Shampoo(parameters, lr=lr, matrix_eps=epsilon)
    return found
