"""Eigenvalues of kernels, metrics and weights, and how many of them count."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from foretrain.empirical.autograd_graph.chain import Chain
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory

Array = NDArray[np.float64]


def kernel_eigenvalues(kernel: Tensor) -> Tensor:
    """Eigenvalues of a kernel (M, M, C, C) as a matrix over inputs and outputs, from the largest down."""
    inputs, outputs = kernel.shape[0], kernel.shape[2]
    matrix = kernel.permute(0, 2, 1, 3).reshape(inputs * outputs, inputs * outputs)
    values: Tensor = torch.linalg.eigvalsh(_precise(matrix))
    return values.flip(0)


def metric_eigenvalues(chain: Chain, number: int, inputs: Tensor) -> Tensor:
    """Nonzero part of the spectrum of G_l of an input with itself, (inputs, min(n_l, n_{l+1})), l = 0..L-1.

    Squared singular values of diag(a_{l+1}) W_{l+1}; if n_l > n_{l+1} the other eigenvalues are exactly zero.
    """
    weight = chain.layer(number + 1).weight
    require_memory(
        2 * len(inputs) * weight.numel() * 8, f"metrics of {len(inputs)} inputs", "ask for fewer inputs"
    )
    return weight_eigenvalues(chain.a(number + 1)[inputs][:, :, None] * weight)


def metric_alignment(chain: Chain, number: int, inputs: Tensor, gradients: Tensor) -> Tensor:
    """g^T G g / (|g|^2 lambda_max(G)) of G_l of each input with itself, 0..1; nan where g or G is zero.

    ``gradients`` (inputs, n_l) are those of the loss by u_l: 1 means that they lie along the stiffest direction of G.
    """
    seen = chain.a(number + 1)[inputs] * (gradients @ chain.layer(number + 1).weight.T)
    quotient = (seen**2).sum(dim=1) / (gradients**2).sum(dim=1)
    return quotient / metric_eigenvalues(chain, number, inputs)[:, 0].to(quotient)


def weight_eigenvalues(weight: Tensor) -> Tensor:
    """Squared singular values of W, or of each of many: the eigenvalues of W^T W not zero by its shape alone."""
    values: Tensor = torch.linalg.svdvals(_precise(weight))
    return values**2


def effective_rank(eigenvalues: ArrayLike) -> float:
    """(sum of lambda)^2 / sum of lambda^2, the participation ratio: how many eigenvalues count; nan if all are zero.

    Examples
    --------
    >>> effective_rank([1.0, 1.0, 1.0, 0.0])
    3.0
    """
    values = _spectrum(eigenvalues)
    total = float(np.sum(values**2))
    return float(np.sum(values)) ** 2 / total if total > 0 else float("nan")


def entropy_rank(eigenvalues: ArrayLike) -> float:
    """Exponential of the entropy of lambda / sum of lambda, never below ``effective_rank``; nan if all are zero.

    Examples
    --------
    >>> round(entropy_rank([2.0, 2.0, 0.0]), 12)
    2.0
    """
    values = _spectrum(eigenvalues)
    if not values.any():
        return float("nan")
    shares = values[values > 0] / values.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))


def _spectrum(eigenvalues: ArrayLike) -> Array:
    """Eigenvalues of a positive matrix; round-off below zero is taken off."""
    values = np.asarray(eigenvalues, dtype=np.float64).ravel()
    if values.size == 0 or not np.isfinite(values).all():
        raise InputError("the spectrum is empty or not finite: give the eigenvalues of a positive matrix.")
    if values.min() < -1e-4 * max(values.max(), 0.0):
        raise InputError(
            f"the spectrum has the negative eigenvalue {values.min():.3g}: give a positive matrix."
        )
    return np.maximum(values, 0.0)


def _precise(matrix: Tensor) -> Tensor:
    # torch has no decompositions in half precision.
    return matrix.float() if matrix.dtype in (torch.float16, torch.bfloat16) else matrix
